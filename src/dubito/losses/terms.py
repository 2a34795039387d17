"""The terms that losses are made of, each of one sample: (..., K) -> (...)."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito import _checks, dirichlet
from dubito._forms import evaluate


def terms(
    names: tuple[str, ...], alpha: Tensor, target: Tensor, ignore_index: int | None = None
) -> dict[str, Tensor]:
    """Several terms by name, sharing their work: {name: (...)}, 0 where a label is ignored.

    >>> list(terms(("mse_bias", "mse_variance"), torch.ones(2, 3), torch.tensor([0, 2])))
    ['mse_bias', 'mse_variance']
    """
    alpha = _checks.concentration(alpha)
    values = evaluate(names, alpha, _checks.distribution(target, alpha, ignore_index))
    if ignore_index is not None and not target.is_floating_point():
        ignored = target.long() == ignore_index
        values = tuple(torch.where(ignored, 0, value) for value in values)
    return dict(zip(names, values, strict=True))


def _term(name: str, alpha: Tensor, target: Tensor) -> Tensor:
    return terms((name,), alpha, target)[name]


def _term_of_alpha(name: str, alpha: Tensor) -> Tensor:
    return evaluate((name,), _checks.concentration(alpha))[0]


def mse_bias(alpha: Tensor, target: Tensor) -> Tensor:
    r"""Squared bias of EDL's expected squared error, sum_j (y_j - p_j)^2.

    >>> mse_bias(torch.tensor([1.0, 1.0]), torch.tensor(0))
    tensor(0.5000)
    """
    return _term("mse_bias", alpha, target)


def mse_variance(alpha: Tensor) -> Tensor:
    r"""Variance part of EDL's expected squared error, sum_j p_j (1 - p_j)/(alpha0 + 1).

    >>> mse_variance(torch.tensor([1.0, 1.0]))
    tensor(0.1667)
    """
    return _term_of_alpha("mse_variance", alpha)


def fisher_bias(alpha: Tensor, target: Tensor) -> Tensor:
    r"""I-MSE's bias part, sum_j (y_j - p_j)^2 psi_1(alpha_j) (app_exp_mu_fisher_mse).

    >>> fisher_bias(torch.tensor([1.0, 1.0]), torch.tensor(0))
    tensor(0.8225)
    """
    return _term("fisher_bias", alpha, target)


def fisher_variance(alpha: Tensor) -> Tensor:
    r"""I-MSE's variance part, sum_j p_j (1 - p_j) psi_1(alpha_j)/(alpha0 + 1).

    >>> fisher_variance(torch.tensor([1.0, 1.0]))
    tensor(0.2742)
    """
    return _term_of_alpha("fisher_variance", alpha)


def fisher_penalty(alpha: Tensor) -> Tensor:
    r"""-ln |I(alpha)|, which keeps evidence from growing without bound (log_det_fisher).

    >>> fisher_penalty(torch.tensor([1.0, 1.0]))
    tensor(0.5378)
    """
    return _term_of_alpha("fisher_penalty", alpha)


def label_removed_kl(alpha: Tensor, target: Tensor) -> Tensor:
    r"""KL(Dir(alpha (1 - y) + y) || Dir(1)): evidence for wrong classes is unlearnt (obj_final_kl).

    >>> label_removed_kl(torch.tensor([9.0, 1.0]), torch.tensor(0))
    tensor(0.)
    """
    return _term("label_removed_kl", alpha, target)


def marginal_nll(alpha: Tensor, target: Tensor) -> Tensor:
    r"""-ln E[p_y] = sum_j y_j (ln alpha0 - ln alpha_j): type II maximum likelihood.

    >>> marginal_nll(torch.tensor([1.0, 1.0]), torch.tensor(0))
    tensor(0.6931)
    """
    return _term("marginal_nll", alpha, target)


def expected_cross_entropy(alpha: Tensor, target: Tensor) -> Tensor:
    r"""E[-sum_j y_j ln p_j] = sum_j y_j (psi(alpha0) - psi(alpha_j)).

    >>> expected_cross_entropy(torch.tensor([1.0, 1.0]), torch.tensor(0))
    tensor(1.)
    """
    return _term("expected_cross_entropy", alpha, target)


def reverse_kl(alpha: Tensor, target_alpha: Tensor) -> Tensor:
    r"""KL(Dir(alpha) || Dir(target_alpha)): the model first, mode seeking.

    >>> reverse_kl(torch.tensor([2.0, 1.0]), torch.ones(2))
    tensor(0.1931)
    """
    alpha = _checks.concentration(alpha)
    target_alpha = _target_alpha(alpha, target_alpha)
    return dirichlet.kl_divergence(alpha, target_alpha)


def forward_kl(alpha: Tensor, target_alpha: Tensor) -> Tensor:
    r"""KL(Dir(target_alpha) || Dir(alpha)): the target first, mass covering.

    >>> forward_kl(torch.tensor([2.0, 1.0]), torch.ones(2))
    tensor(0.3069)
    """
    alpha = _checks.concentration(alpha)
    return dirichlet.kl_divergence(_target_alpha(alpha, target_alpha), alpha)


def _target_alpha(alpha: Tensor, target_alpha: Tensor) -> Tensor:
    checked = _checks.concentration(target_alpha, "target_alpha")
    if checked.shape[-1] != alpha.shape[-1]:
        raise ValueError(
            f"target_alpha {tuple(checked.shape)} and alpha {tuple(alpha.shape)} differ in classes"
        )
    return checked


def label_dirichlet(target: Tensor, classes: int, beta: float = 100.0) -> Tensor:
    """The target Dirichlet of a label: beta for its class and 1 for the others. (...) -> (..., K).

    >>> label_dirichlet(torch.tensor([1]), 3)
    tensor([[  1., 100.,   1.]])
    """
    if not beta > 0:
        raise ValueError(f"beta must be > 0, not {beta!r}")
    shape = torch.empty(*target.shape, classes, device=target.device)
    return 1 + (beta - 1) * _checks.distribution(target, shape)
