"""KL(Dir(alpha) || Dir(beta)): the closed form of two Dirichlets, its value and its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito._forms import kl_gradient
from dubito._moments import Moments
from dubito.special import bregman_excess, log_gap


class _Divergence(torch.autograd.Function):
    """KL(Dir(alpha) || Dir(beta)) = beta0 KL(mean beta || mean alpha) + excesses."""

    generate_vmap_rule = True

    @staticmethod
    def _parts(a: Moments, b: Moments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        d = a.alpha - b.alpha
        d0 = d.sum(-1, keepdim=True)
        ratio = a.probs / b.probs
        up = (d / b.alpha - d0 / b.alpha0) * (b.alpha0 / a.alpha0)
        down = (d / a.alpha - d0 / a.alpha0) * (a.alpha0 / b.alpha0) * ratio
        t = torch.where(a.alpha0 >= b.alpha0, up, down)
        return d, d0, t, ratio

    @staticmethod
    def forward(alpha: Tensor, beta: Tensor) -> Tensor:
        a, b = Moments(alpha), Moments(beta)
        _, d0, t, ratio = _Divergence._parts(a, b)
        leading = (beta * log_gap(t, ratio)).sum(-1)
        total = bregman_excess(a.alpha0, b.alpha0, d0).squeeze(-1)
        return leading + (bregman_excess(alpha, beta).sum(-1) - total)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def _slopes(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        a, b = Moments(alpha), Moments(beta)
        d, d0, t, ratio = _Divergence._parts(a, b)
        by_alpha = kl_gradient(a, d, beta, d0, b.alpha0)
        near = t.abs() < 0.5
        logs = torch.where(near, torch.log1p(torch.where(near, t, 0)), ratio.log())
        halves = 0.5 * (a.each.reciprocal - a.total.reciprocal) + (a.each.delta - a.total.delta)
        target = 0.5 * (b.each.reciprocal - b.total.reciprocal) + (b.each.delta - b.total.delta)
        far = (halves - target) - logs
        # a class that holds most of both totals: each psi(alpha0) - psi(alpha_j) is small by itself
        both = a.top & b.top & (a.rest < 0.5 * a.alpha0) & (b.rest < 0.5 * b.alpha0)
        return by_alpha, torch.where(both, _gap(a) - _gap(b), far)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        by_alpha, by_beta = _Divergence._slopes(*ctx.saved_tensors)
        return grad.unsqueeze(-1) * by_alpha, grad.unsqueeze(-1) * by_beta


class _DivergenceForwards(_Divergence):
    """The same for forward differentiation too, with which torch.compile takes no function."""

    @staticmethod
    def jvp(ctx, *tangents: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        by_alpha, by_beta = _Divergence._slopes(*ctx.saved_tensors)
        return (by_alpha * tangents[0] + by_beta * tangents[1]).sum(-1)


def _gap(m: Moments) -> Tensor:
    halves = 0.5 * (m.rest / m.alpha0) * m.each.reciprocal
    return m.surprise + halves + (m.each.delta - m.total.delta)


def divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    """KL(Dir(alpha) || Dir(beta)), (..., K) each -> (...)."""
    kind = _Divergence if torch.compiler.is_compiling() else _DivergenceForwards
    return kind.apply(alpha, beta)  # type: ignore[no-any-return, no-untyped-call]
