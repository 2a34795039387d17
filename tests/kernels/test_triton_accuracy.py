"""The Triton kernels against mpmath; interpreted where there is no GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from dubito import kernels
from dubito.numerics.spec import LOSS_FORMS, LossSpec
from tests.accuracy import measure
from tests.accuracy_grid import SETTINGS, Case, Grid, cases
from tests.kernels.devices import DEVICE, ON_DEVICE
from tests.numerics import quantities

pytestmark = ON_DEVICE
CLASSES = (2, 19) if DEVICE == "cpu" else (2, 3, 10, 19, 100, 1000, 10_000)
BETA = 101.0
#: forms with a kernel for alpha >= 1; the others use that of any alpha
ABOVE_ONE = tuple(form for form in LOSS_FORMS if form not in ("forward_kl", "kl_from_uniform"))
#: settings without soft targets, which some kernels leave to the torch forms
LABELS = {name: setting for name, setting in SETTINGS["target"].items() if "soft" not in name}


@cache
def small(classes: int) -> tuple[Case, ...]:
    """Vectors with entries from 1e-6 on: all small, of all sizes, and all alike."""
    vectors = []
    for draw, (low, high) in enumerate([(-6, -5), (-6, -3), (-6, 0), (-6, 3), (-3, 3), (-1, 1)]):
        seed = (91, draw)
        rng = np.random.default_rng(seed)
        values = rng.choice(10 ** rng.uniform(low, high, min(classes, 24)), classes)
        vectors.append(Case(f"1e{low} to 1e{high}", values.astype(np.float32), seed))
    for value in (1e-6, 1e-2, 0.1, 0.5, 0.999, 1.0, 1.001):
        vectors.append(Case(f"all {value}", np.full(classes, value, np.float32), (92,)))
    return tuple(vectors)


def by_kernel(form: str, evidence: str | None, prior: float) -> Callable[..., Tensor]:
    """The form of alpha itself or of relu evidence."""
    spec = LossSpec((form,), evidence, prior, beta=BETA, reduction="none")

    def call(alpha: Tensor, target: Tensor | None = None) -> Tensor:
        # a little more than no evidence, where relu would have no slope
        values = (alpha if evidence is None else alpha - prior + 1e-38).to(DEVICE)
        aim = torch.zeros(alpha.shape[:-1], dtype=torch.long) if target is None else target
        weights = torch.ones(1, device=DEVICE)
        result = kernels.fused_loss(spec, values, aim.to(DEVICE), weights, None)
        assert result is not None
        return result[0].cpu()

    return call


def check(form: str, call: Callable[..., Tensor], grid: tuple[Case, ...]) -> None:
    known = quantities.QUANTITIES.get(form)
    of = quantities.targeted(form, call, BETA) if known is None else replace(known, call=call)
    errors = measure(replace(of, value="inputs") if known is None else of, grid)
    assert errors.passes(), f"{errors.figures()}\n{errors.worst}"


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("form", ABOVE_ONE)
def test_evidence_meets_the_bar(form: str, classes: int) -> None:
    check(form, by_kernel(form, "relu", 1.0), cases(Grid(classes)))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("form", LOSS_FORMS)
def test_any_alpha_meets_the_bar(form: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "target", LABELS)
    call = by_kernel(form, None, 0.0)
    check(form, call, small(classes))
    check(form, call, cases(Grid(classes, sizes=(0.0, 1e-4, 1.0, 1e5, 1e12, 1e30))))
