"""Scalings of features."""

from __future__ import annotations

import pytest
import torch

from dubito.errors import DubitoError
from dubito.fewshot._scalings import PRESETS, scale
from dubito.methods.base import from_dict
from fewshot.samples import draw_features


def test_unit_gives_the_mean_length_of_the_reference() -> None:
    reference = draw_features(seed=1)
    lengths = scale(draw_features(), "unit", reference).values.norm(dim=-1)
    expected = reference.values.norm(dim=-1).mean()
    torch.testing.assert_close(lengths, expected.expand_as(lengths))


def test_centered_uses_the_mean_of_the_reference() -> None:
    data, reference = draw_features(), draw_features(seed=1)
    moved = data.values - reference.values.mean(0)
    result = scale(data, "centered", reference).values
    cosine = torch.cosine_similarity(result, moved)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


def test_none_leaves_features_alone() -> None:
    data = draw_features()
    assert scale(data, "none", None) is data


def test_scaling_needs_a_reference() -> None:
    with pytest.raises(DubitoError, match="'unit' needs a reference"):
        scale(draw_features(), "unit", None)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_name_known_methods(name: str) -> None:
    from_dict(PRESETS[name][0])
