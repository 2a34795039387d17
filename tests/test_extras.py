"""What is said where an extra is missing, and when."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dubito
from dubito import data
from tests.commands import run

Hide = Callable[[str], None]
ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def brought(extra: str) -> set[str]:
    """Return the packages that an extra names, also through other extras."""
    found = set()
    for requirement in EXTRAS[extra]:
        name, inner = re.match(r"([\w-]+)(?:\[(.+)\])?", requirement).groups()
        found |= set().union(*map(brought, inner.split(","))) if name == "dubito" else {name}
    return found


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


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_report_that_cannot_be_written_is_an_error_before_any_work(
    package: str, hide: Hide, tmp_path: Path
) -> None:
    samples = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2
    dubito.train(samples, out=tmp_path / "run", epochs=1, report=False)
    hide(package)
    expected = rf"^{package} is not installed: pip install 'dubito\[cli\]', or pass report=False$"
    with pytest.raises(dubito.DubitoError, match=expected):
        dubito.train(samples, out=tmp_path / "other", epochs=1)
    with pytest.raises(dubito.DubitoError, match=expected):
        dubito.evaluate(tmp_path / "run", samples)
    with pytest.raises(dubito.DubitoError, match=expected):
        dubito.wrap("hf:nowhere", "nothing", out=tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (tmp_path / "run" / "evaluation").exists()
    dubito.train(samples, out=tmp_path / "other", epochs=1, calibration=0)  # there is none
    assert dubito.evaluate(tmp_path / "run", samples, report=False)["metrics"]


def test_svhn_needs_scipy_before_it_is_downloaded(
    hide: Hide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    hide("pooch")  # which downloads
    hide("scipy")
    with pytest.raises(dubito.DubitoError, match=r"^scipy is not installed: pip install 'dubito"):
        data.open("svhn")


def test_parquet_names_its_extra(hide: Hide, tmp_path: Path) -> None:
    (path := tmp_path / "table.parquet").write_bytes(b"PAR1")
    hide("pyarrow")
    expected = r"^pyarrow is not installed: pip install 'dubito\[parquet\]'$"
    with pytest.raises(dubito.DubitoError, match=expected):
        data.open(path, target="kind")


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("transformers", {"accelerate", "pillow", "transformers"}),  # its Trainer needs the first
        ("peft", {"peft", "pillow", "transformers"}),
        ("parquet", {"pandas", "pyarrow"}),
    ],
)
def test_extras_bring_what_their_features_need(extra: str, packages: set[str]) -> None:
    assert packages <= brought(extra)


def test_extras_that_are_named_exist() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    text = "".join(path.read_text("utf-8") for path in files)
    lists = re.findall(r"""(?:pip install '(?:\.|dubito)\[|need\("[\w.]+", ")([a-z,]+)""", text)
    assert {extra for names in lists for extra in names.split(",")} <= EXTRAS.keys()
