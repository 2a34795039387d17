"""Single inputs that are worth a look, and what a model says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dubito._legacy import Prediction
from dubito.data import Arrays

__all__ = ["Example", "choose"]


@dataclass(frozen=True)
class Example:
    """An input and what was said of it; `truth` is None where no class is the right one."""

    heading: str
    source: str
    index: int
    truth: str | None
    label: str
    belief: float
    second_label: str
    second_belief: float
    vacuity: float
    refused: bool
    image: Tensor = field(repr=False)


@dataclass(frozen=True)
class _Pick:
    """What to look for: of the eligible inputs of a set, the one with the highest score."""

    heading: str
    source: str
    score: Callable[[Prediction], Tensor]
    eligible: Callable[[Tensor], Tensor] = torch.ones_like  # given which predictions are right
    labelled: bool = True


def _sure(said: Prediction) -> Tensor:
    return -said.vacuity


def _unsure(said: Prediction) -> Tensor:
    return said.vacuity


def _torn(said: Prediction) -> Tensor:
    return said.dissonance


_PICKS = (
    _Pick("The surest digit", "digits", _sure, eligible=lambda right: right),
    _Pick("The most torn digit", "digits", _torn),
    _Pick("The surest mistake", "digits", _sure, eligible=lambda right: ~right),
    _Pick("The most doubted patch", "patches", _unsure, labelled=False),
    _Pick("The most believed patch", "patches", _sure, labelled=False),
    _Pick("The most doubted noisy digit", "noisy", _unsure),
)


def choose(
    said: Mapping[str, Prediction], sets: Mapping[str, Tensor], test: Arrays, threshold: float
) -> list[Example]:
    """The examples there are (a model may make no mistake) in sets (N, 1, height, width) by name.

    Digits, with noise or without, have the labels of `test`. Above the threshold of vacuity an
    answer is refused.
    """
    found = []
    for pick in _PICKS:
        prediction = said[pick.source]
        candidates = pick.eligible(prediction.label == test.labels).nonzero().flatten()
        if len(candidates):
            index = int(candidates[pick.score(prediction)[candidates].argmax()])
            image = sets[pick.source][index, 0]
            found.append(_example(pick, index, prediction[index], image, test, threshold))
    return found


def _example(
    pick: _Pick, index: int, said: Prediction, image: Tensor, test: Arrays, threshold: float
) -> Example:
    belief, label = said.belief.topk(2)
    return Example(
        heading=pick.heading,
        source=pick.source,
        index=index,
        truth=test.classes[int(test.labels[index])] if pick.labelled else None,
        label=test.classes[int(label[0])],
        belief=belief[0].item(),
        second_label=test.classes[int(label[1])],
        second_belief=belief[1].item(),
        vacuity=said.vacuity.item(),
        refused=said.vacuity.item() > threshold,
        image=image,
    )
