"""What is done to features, with what other classes say of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dubito.fewshot import PRESETS, SCALINGS, Engine, Pool, Setting, head, scaling
from dubito.fewshot.results import described
from fewshot.samples import pool


def test_unit_and_centred_are_what_numpy_says() -> None:
    reference, other = pool(seed=3), pool(seed=4)
    mean = reference.features.double().numpy().mean(0)
    length = np.linalg.norm(reference.features.double().numpy(), axis=1).mean()
    raw = other.features.double().numpy()
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True) * length
    moved = raw - mean
    centred = moved / np.linalg.norm(moved, axis=1, keepdims=True) * length
    for name, wanted in (("none", raw), ("unit", unit), ("centred", centred)):
        found = scaling(name, reference).of(other)
        np.testing.assert_allclose(found.features.numpy(), wanted, atol=1e-4)
        assert found.scaling == name
        assert found.classes == other.classes
    assert other.scaling == "none"


def test_nothing_of_the_novel_classes_is_used() -> None:
    """A novel sample is scaled the same whatever stands beside it."""
    made = scaling("centred", pool(seed=3))
    whole = pool(seed=4).features
    assert torch.equal(made(whole)[:7], made(whole[:7]))


def test_episodes_of_scaled_features_are_another_run() -> None:
    made = scaling("unit", pool(seed=1))

    def config(one: Pool) -> dict[str, Any]:
        return described(Engine(one, None, Setting(3, 2), head("edl")))

    plain, scaled = config(pool()), config(made.of(pool()))
    assert plain["features"] != scaled["features"]
    assert scaled["features"]["scaling"] == "unit"


@pytest.mark.parametrize(
    ("name", "reference", "message"),
    [
        ("big", None, "unknown scaling 'big'; known: 'none', 'unit', 'centred'"),
        ("unit", None, "needs a reference: features of base or validation classes"),
        ("unit", scaling("unit", pool()).of(pool()), "scaled already: unit"),
    ],
)
def test_what_is_refused(name: str, reference: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scaling(name, reference)  # type: ignore[arg-type]


def test_another_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="of dimension 64, and the reference of the scaling 8"):
        scaling("centred", pool(size=8)).of(pool())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_heads_and_scalings(name: str) -> None:
    preset = PRESETS[name]
    assert preset.scaling in SCALINGS
    made = head(preset.method, **preset.hyperparameters).hyperparameters()
    assert made.items() >= dict(preset.hyperparameters).items()


def scaled(factor: float) -> Engine:
    data = pool()
    features = data.features * factor
    return Engine(replace(data, features=features), None, Setting(ways=3, shots=2), head("iedl"))


@pytest.mark.parametrize("factor", [1e-30, 1e-5, 1e5, 1e30])
def test_features_too_short_or_long_are_told_with_a_remedy(factor: float) -> None:
    words = f"made-0 have a mean length of {4.3 * factor:.2g};"
    with pytest.warns(RuntimeWarning, match=re.escape(words)) as told:
        engine = scaled(factor)
    remedy = float(str(told[0].message).split()[-1])
    assert remedy == pytest.approx(1 / factor)
    wanted = scaled(1).values(0, 20)["accuracy"].mean()
    assert scaled(factor * remedy).values(0, 20)["accuracy"].mean() == pytest.approx(wanted)
    assert wanted > 0.9
    if factor < 1:
        assert engine.values(0, 20)["accuracy"].mean() == pytest.approx(1 / 3)


@pytest.mark.parametrize("length", [2.1, 490])
def test_nothing_is_told_of_ordinary_features(length: float) -> None:
    scaled(length / float(pool().features.norm(dim=-1).mean()))
