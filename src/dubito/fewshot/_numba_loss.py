"""The losses on the CPU: a numba kernel for value and gradient in one pass over the rows.

The algebra is that of the closed forms in torch, for alpha >= 1 (evidence >= 0) and in float64:
what cancels at evidence 1e30 cancels in float64 too. The rows pass through the stages below in
blocks, in a workspace that stays in the processor's cache. The stages that evaluate functions
(`gamma.py`) see a block as one long vector, whatever the number of classes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dubito.fewshot import _numba_gamma as gamma
from dubito.fewshot._numba_gamma import exact, inlined, reordered


class Weights(NamedTuple):
    """Weights of the closed forms."""

    fisher_bias: float = 0.0
    fisher_variance: float = 0.0
    mse_bias: float = 0.0
    mse_variance: float = 0.0
    fisher_penalty: float = 0.0
    label_removed_kl: float = 0.0
    marginal_nll: float = 0.0
    expected_cross_entropy: float = 0.0


@inlined
def _gaps(p: Any, y: Any, top: Any, q_top: Any) -> Any:
    """1 - p and y - p, from the other classes' share where p may be close to one."""
    return (q_top, q_top - (1 - y)) if top else (1 - p, y - p)


@inlined
def _centred(field: Any, mean: Any, others: Any, top: Any, q_top: Any) -> Any:
    """A field less its mean, from the mean over the other classes where that may be close."""
    return q_top * field - others if top else field - mean


@reordered
def _squared_error(w: Any, block: Any, each: Any, count: Any, wanted: Any) -> None:
    """The bias and variance terms, weighed by the trigamma or not."""
    classes = block.alpha.shape[1]
    for i in range(count):
        top, s, share = block.top[i], 1 / block.alpha0[i], 1 / (block.alpha0[i] + 1)
        q_top = block.rest[i] * s
        bias, variance, fisher_bias, fisher_variance, others = 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(classes):
            p, trigamma = block.alpha[i, j] * s, each.trigamma[i, j]
            q, d = _gaps(p, block.y[i, j], j == top, q_top)
            c = w.mse_bias + w.fisher_bias * trigamma
            e = (w.mse_variance + w.fisher_variance * trigamma) * share
            field = (q - p) * e - 2 * d * c
            bias += d * d
            fisher_bias += d * d * trigamma
            variance += p * q
            fisher_variance += p * q * trigamma
            others += 0.0 if j == top else p * field
            block.field[i, j] = field
        block.terms[i, 0], block.terms[i, 1] = fisher_bias, fisher_variance * share
        block.terms[i, 2], block.terms[i, 3] = bias, variance * share
        variance = (w.mse_variance * variance + w.fisher_variance * fisher_variance) * share
        block.value[i] += w.mse_bias * bias + w.fisher_bias * fisher_bias + variance
        if wanted:
            mean = others + block.alpha[i, top] * s * block.field[i, top]
            for j in range(classes):
                p = block.alpha[i, j] * s
                q, d = _gaps(p, block.y[i, j], j == top, q_top)
                centred = _centred(block.field[i, j], mean, others, j == top, q_top)
                bend = d * d * w.fisher_bias + p * q * w.fisher_variance * share
                slope = bend * each.tetragamma[i, j] + centred * s - variance * share
                block.slopes[i, j] += slope


@reordered
def _penalty(weight: Any, block: Any, each: Any, total: Any, count: Any, wanted: Any) -> None:
    """-ln |I|."""
    classes = block.alpha.shape[1]
    for i in range(count):
        logs, excess = total.log[i, 0], total.excess[i, 0]
        for j in range(classes):
            logs += each.log[i, j]
            excess -= each.excess[i, j]
        bracket = 0.5 * (classes - 1) + excess
        block.terms[i, 4] = -(logs + math.log(bracket))
        block.value[i] += weight * block.terms[i, 4]
        if wanted:
            inverse = 1 / bracket
            common = total.log_slope[i, 0] + total.excess_slope[i, 0] * inverse
            for j in range(classes):
                own = each.log_slope[i, j] - each.excess_slope[i, j] * inverse
                block.slopes[i, j] -= weight * (own + common)


@reordered
def _evidence0(block: Any, count: Any) -> None:
    for i in range(count):
        total = 0.0
        for j in range(block.evidence.shape[1]):
            total += block.evidence[i, j]
        block.evidence0[i] = total


@reordered
def _kl(weight: Any, block: Any, each: Any, total: Any, count: Any, wanted: Any) -> None:
    """KL to the uniform Dirichlet, without the label's evidence."""
    classes = block.alpha.shape[1]
    for i in range(count):
        mean, inverse = block.evidence0[i] / classes, classes / (classes + block.evidence0[i])
        log = math.log(classes) - total.log[i, 0]
        value = 0.0
        for j in range(classes):
            t = (block.evidence[i, j] - mean) * inverse
            value += gamma.log_gap(t, each.log[i, j] + log) + each.bregman[i, j]
        block.terms[i, 5] = value - total.bregman[i, 0]
        block.value[i] += weight * block.terms[i, 5]
        if wanted:
            common = block.evidence0[i] * total.trigamma[i, 0]
            # both parts tend to 1 with the evidence: from there on by what they lack to it
            large = common >= 0.5
            if large:
                common = total.trigamma_excess[i, 0] - classes * total.trigamma[i, 0]
            for j in range(classes):
                trigamma = each.trigamma[i, j]
                own = block.evidence[i, j] * trigamma
                if large:
                    own = each.trigamma_excess[i, j] - trigamma
                block.slopes[i, j] += weight * (1 - block.y[i, j]) * (own - common)


@exact
def _likelihood(w: Any, block: Any, each: Any, total: Any, count: Any, wanted: Any) -> None:
    """The cross entropies: of the mean, and in expectation."""
    for i in range(count):
        a0, top, rest, trigamma0 = (
            block.alpha0[i],
            block.top[i],
            block.rest[i],
            total.trigamma[i, 0],
        )
        marginal, expected = 0.0, 0.0
        for j in range(block.alpha.shape[1]):
            a, y = block.alpha[i, j], block.y[i, j]
            if y > 0:
                surprise = math.log1p(rest / a) if j == top else math.log(a0 / a)
                more = 0.5 * (1 / a - 1 / a0) + (gamma.delta(a) - gamma.delta(a0))
                marginal += y * surprise
                expected += y * (surprise + more)
            if wanted:
                _, d = _gaps(a / a0, y, j == top, rest / a0)
                gap = each.trigamma[i, j] - trigamma0
                if j == top:
                    gap = rest / a0 / a * (1 + 0.5 * (1 / a + 1 / a0))
                    gap += gamma.tau(a) - gamma.tau(a0)
                slope = (1 - y) * trigamma0 - y * gap
                block.slopes[i, j] += w.expected_cross_entropy * slope - w.marginal_nll * d / a
        block.terms[i, 6], block.terms[i, 7] = marginal, expected
        block.value[i] += w.marginal_nll * marginal + w.expected_cross_entropy * expected


@exact
def _terms(w: Any, block: Any, each: Any, total: Any, count: Any, wanted: Any) -> None:
    """The terms with a weight, of the rows that were taken in."""
    classes = block.alpha.shape[1]
    fisher = w.fisher_bias + w.fisher_variance
    if fisher + w.fisher_penalty + w.expected_cross_entropy > 0:
        gamma.family(block.alpha.reshape(-1), count * classes, each[0])
        gamma.family(block.alpha0, count, total[0])
    if fisher + w.mse_bias + w.mse_variance > 0:
        _squared_error(w, block, each[0], count, wanted)
    if w.fisher_penalty > 0:
        _penalty(w.fisher_penalty, block, each[0], total[0], count, wanted)
    if w.label_removed_kl > 0:
        _evidence0(block, count)
        gamma.removed(block.evidence.reshape(-1), count * classes, each[1])
        gamma.removed_total(block.evidence0, classes, count, total[1])
        _kl(w.label_removed_kl, block, each[1], total[1], count, wanted)
    if w.marginal_nll + w.expected_cross_entropy > 0:
        _likelihood(w, block, each[0], total[0], count, wanted)
