from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _kernels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the kernels even where the rest of the tests run without them."""
    monkeypatch.delenv("DUBITO_KERNELS", raising=False)


@pytest.fixture
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the Triton kernels where they run."""
    from dubito import kernels
    from tests.kernels.devices import DEVICE

    monkeypatch.setattr(kernels, "_DEVICE", DEVICE)


@pytest.fixture(scope="session")
def _fast_interpreter() -> Iterator[None]:
    """Patch `triton.language` once per launch, which halves the time of interpreted kernels.

    Triton's interpreter patches it when a kernel is launched, and again in each call of a function
    inside of the kernel. The second patch has an effect only in functions of Triton's own library,
    which use `triton.language.core`; that one is never undone.
    """
    from triton.language import core
    from triton.runtime.interpreter import InterpretedFunction, _patch_lang

    is_patched = False

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_patched
        if not is_patched and any(value is core for value in self.fn.__globals__.values()):
            _patch_lang(self.fn)
            is_patched = True
        return self.rewrite()(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "__call__", call)
        yield
