"""Rows that are worked on a part at a time give what they give all at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dubito import _forms, losses

NAMES = tuple(_forms.FORMS)


def inputs(*lead: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    alpha = 1 + torch.rand(*lead, classes, dtype=torch.float64) * 20
    return alpha.requires_grad_(), torch.rand_like(alpha).softmax(-1)


def outputs(alpha: Tensor, y: Tensor) -> list[Tensor]:
    """All values, their gradient, and the gradient of that."""
    values = _forms.evaluate(NAMES, alpha, y)
    mixed = sum(((i + 1) * value).square().sum() for i, value in enumerate(values))
    assert isinstance(mixed, Tensor)
    (slopes,) = torch.autograd.grad(mixed, alpha, create_graph=True)
    (second,) = torch.autograd.grad(slopes.square().sum(), alpha)
    return [*values, slopes, second]


@pytest.mark.parametrize("lead", [(7,), (2, 3), (1,), (3, 1, 4)])
@pytest.mark.parametrize("at_once", [1, 10, 33])
def test_parts_give_what_the_whole_gives(
    monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...], at_once: int
) -> None:
    alpha, y = inputs(*lead)
    whole = outputs(alpha, y)
    calls = []
    once = _forms._values
    monkeypatch.setattr(_forms, "_values", lambda *given: calls.append(1) or once(*given))
    monkeypatch.setattr(_forms, "AT_ONCE_ON_CPU", at_once)
    parts = outputs(alpha, y)
    rows = alpha.numel() // 5
    assert len(calls) == (1 if alpha.numel() <= at_once else -(-rows // max(at_once // 5, 1)))
    for one, other in zip(parts, whole, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_lone_row_and_no_row_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_forms, "AT_ONCE_ON_CPU", 1)
    alpha, y = inputs()
    assert outputs(alpha, y)[0].shape == ()
    assert _forms.evaluate(NAMES, torch.ones(0, 5))[0].shape == (0,)


def test_memory_beside_the_logits_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor within the closed forms is longer than a part, but for what comes out of them."""
    monkeypatch.setattr(_forms, "AT_ONCE_ON_CPU", 50)
    longest = []
    once = _forms.Moments
    monkeypatch.setattr(_forms, "Moments", lambda a, *r: longest.append(a.numel()) or once(a, *r))
    alpha, _ = inputs(100)
    labels = torch.arange(100) % 5
    losses.weighted({"fisher_bias": 1.0, "label_removed_kl": 1.0}, alpha, labels).backward()
    assert len(longest) > 10
    assert max(longest) <= 50


def test_transforms_see_through_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, y = inputs(4, 6)

    def slope(a: Tensor, b: Tensor) -> Tensor:
        return torch.func.grad(lambda x: _forms.evaluate(("kl_to_uniform",), x, b)[0].sum())(a)

    whole = torch.func.vmap(slope)(alpha.detach(), y)
    monkeypatch.setattr(_forms, "AT_ONCE_ON_CPU", 12)
    torch.testing.assert_close(torch.func.vmap(slope)(alpha.detach(), y), whole)
