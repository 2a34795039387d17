"""The constants of a loss are validated when it is built."""

from __future__ import annotations

from typing import Any

import pytest

from dubito.kernels._spec import loss_spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forms": ()}, "forms is empty"),
        ({"forms": ("mse",)}, "unknown form 'mse'; known: 'mse_bias'"),
        ({"forms": ("mse_bias", "mse_bias")}, "forms must differ"),
        ({"evidence": "elu"}, "unknown evidence 'elu'"),
        ({"prior": -1.0}, "prior must be at least 0"),
        ({"prior": float("inf")}, "prior must be at least 0 and finite"),
        ({"prior": 0.0, "evidence": "relu"}, "use prior > 0"),
        ({"beta": 0.0}, "beta must be positive"),
        ({"reduction": "max"}, "unknown reduction 'max'"),
    ],
)
def test_invalid_constants(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss_spec(**({"forms": ("mse_bias",)} | options))


def test_is_hashable() -> None:
    assert len({loss_spec(("mse_bias",), prior=0.1), loss_spec(("mse_bias",), prior=0.1)}) == 1
