"""On a GPU: the same episodes, and figures that differ by rounding from those of the CPU."""

import numpy as np
import pytest
import torch

from dubito.fewshot._engine import Engine
from dubito.fewshot._episodes import Setting
from dubito.methods import METHODS
from tests.fewshot.samples import draw_features

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NAMES = [
    "iedl", "edl", "redl", "fedl", "kl_pn", "rkl_pn", "softmax", "label_smoothing",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_the_cpu(name):
    setting = Setting(ways=4, shots=5)
    values, expected = (
        Engine(METHODS.build(name), draw_features(), setting=setting, device=device).values(0, 200)
        for device in ("cuda", "cpu")
    )
    assert values.keys() == expected.keys()
    assert abs(values["accuracy"].mean() - expected["accuracy"].mean()) < 0.005
    for key in ("confidence/max_prob/aupr", "ood/max_prob/aupr"):
        assert abs(np.nanmean(values[key]) - np.nanmean(expected[key])) < 0.01


def test_second_run_gives_the_same():
    engine = Engine(
        METHODS.build("iedl"), draw_features(), setting=Setting(ways=4, shots=5), device="cuda"
    )
    first, second = engine.values(0, 300), engine.values(0, 300)
    for key, column in first.items():
        np.testing.assert_array_equal(column, second[key])
