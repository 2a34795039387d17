"""On a GPU: the same episodes, and figures that are those of the CPU but for rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dubito.fewshot import HEADS, Engine, Setting, head
from fewshot.samples import pool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", HEADS)
def test_figures_are_those_of_the_cpu(name: str) -> None:
    """Warnings are errors, so the CUDA graph must hold."""
    setting, one = Setting(ways=4, shots=5), head(name)
    found, wanted = (
        Engine(pool(), None, setting, one, device=torch.device(device)).values(0, 200)
        for device in ("cuda", "cpu")
    )
    assert found.keys() == wanted.keys()
    assert abs(found["accuracy"].mean() - wanted["accuracy"].mean()) < 0.005
    for key in ("confidence/max_prob/aupr", "ood/max_prob/aupr"):
        assert abs(np.nanmean(found[key]) - np.nanmean(wanted[key])) < 0.01


def test_a_second_run_gives_the_same() -> None:
    setting, one = Setting(ways=4, shots=5), head("iedl")
    engine = Engine(pool(), None, setting, one, device=torch.device("cuda"))
    first, second = engine.values(0, 300), engine.values(0, 300)
    for key, column in first.items():
        np.testing.assert_array_equal(column, second[key])
