"""What is said where an extra is missing, and when."""

import sys
from collections.abc import Callable

import pytest

from tests.commands import run

Hide = Callable[[str], None]


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Return a function that lets a package appear not to be installed."""

    def hide(package: str) -> None:
        inside = [name for name in sys.modules if name.startswith(f"{package}.")]
        for name in (package, *inside):
            monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.mark.parametrize("package", ["fastapi", "prometheus_client", "uvicorn"])
def test_serve_names_its_extra_in_one_line(
    package: str, hide: Hide, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide(package)
    for name in [name for name in sys.modules if f"{name}.".startswith("dubito.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    assert run("serve", "--help") == 2
    assert capsys.readouterr().err == (
        f"error: {package} is not installed: pip install 'dubito[serve]'\n"
    )
    with pytest.raises(ImportError, match="pip install"):
        import dubito.serve  # noqa: F401
