from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _kernels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test the kernels even where the rest of the tests run without them."""
    monkeypatch.delenv("DUBITO_KERNELS", raising=False)
