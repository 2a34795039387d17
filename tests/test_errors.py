"""Bad input gets one clear error: the argument's name, what was seen and what is expected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dubito import (
    Dirichlet,
    EDLLoss,
    IEDLLoss,
    Prediction,
    dirichlet,
    evaluation,
    evidence,
    losses,
    measures,
    schedules,
)

ALPHA, LABELS = torch.full((4, 3), 2.0), torch.tensor([0, 1, 2, 0])
LOGITS = torch.zeros(4, 3)

OF_ALPHA: dict[str, Callable[[Tensor], object]] = {
    **{name: getattr(dirichlet, name) for name in dirichlet.__all__ if name[0].islower()},
    **{
        name: getattr(losses, name)
        for name in ("mse_variance", "fisher_variance", "fisher_penalty")
    },
    "Prediction.from_alpha": Prediction.from_alpha,
    "Prediction.vacuity": lambda alpha: Prediction.from_alpha(alpha).vacuity,
    "measures.measure": lambda alpha: measures.measure("alpha0", alpha),
    "iedl": lambda alpha: losses.iedl(alpha, LABELS),
    "edl": lambda alpha: losses.edl(alpha, LABELS),
    "uce": lambda alpha: losses.uce(alpha, LABELS),
    "reverse_kl": lambda alpha: losses.reverse_kl(alpha, ALPHA),
    "forward_kl": lambda alpha: losses.forward_kl(alpha, ALPHA),
}
OF_ALPHA["kl_divergence"] = lambda alpha: dirichlet.kl_divergence(alpha, ALPHA)
OF_LOGITS: dict[str, Callable[[Tensor], object]] = {
    "IEDLLoss": lambda logits: IEDLLoss()(logits, LABELS),
    "EDLLoss": lambda logits: EDLLoss()(logits, LABELS),
    "cross_entropy": lambda logits: losses.cross_entropy(logits, LABELS),
    "Prediction.from_logits": Prediction.from_logits,
    "evidence": evidence.evidence,
}
OF_TARGET: dict[str, Callable[[Tensor], object]] = {
    "iedl": lambda target: losses.iedl(ALPHA, target),
    "edl": lambda target: losses.edl(ALPHA, target),
    "uce": lambda target: losses.uce(ALPHA, target),
    "IEDLLoss": lambda target: IEDLLoss()(LOGITS, target),
    "cross_entropy": lambda target: losses.cross_entropy(LOGITS, target),
    "fisher_bias": lambda target: losses.fisher_bias(ALPHA, target),
}


@pytest.mark.parametrize("call", OF_ALPHA.values(), ids=OF_ALPHA)
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(call: Callable[[Tensor], object], bad: float) -> None:
    alpha = ALPHA.clone()
    alpha[2, 1] = bad
    with pytest.raises(ValueError, match=r"alpha must be (> 0|>= 1) and finite.*\[2, 1\]"):
        call(alpha)


@pytest.mark.parametrize("call", OF_ALPHA.values(), ids=OF_ALPHA)
def test_alpha_of_a_wrong_type_or_shape(call: Callable[[Tensor], object]) -> None:
    with pytest.raises(TypeError, match=r"must be floating point, not torch.int64"):
        call(torch.full((4, 3), 2))
    with pytest.raises(ValueError, match=r"shape \(4, 1\): expected \(\.\.\., K\), K >= 2"):
        call(torch.full((4, 1), 2.0))
    with pytest.raises(TypeError, match=r"must be a torch\.Tensor, not list"):
        call([2.0, 3.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("call", OF_LOGITS.values(), ids=OF_LOGITS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_logits_must_be_finite(call: Callable[[Tensor], object], bad: float) -> None:
    logits = LOGITS.clone()
    logits[3, 0] = bad
    with pytest.raises(
        ValueError, match=r"logits must be finite.*\(1 bad, the first at \[3, 0\]\)"
    ):
        call(logits)


@pytest.mark.parametrize("call", OF_TARGET.values(), ids=OF_TARGET)
def test_labels(call: Callable[[Tensor], object]) -> None:
    with pytest.raises(ValueError, match=r"labels from 0 to 2.*but has \[3, 7\]"):
        call(torch.tensor([0, 7, 3, 7]))
    with pytest.raises(TypeError, match=r"torch.float32 of shape \(4,\): labels must be integers"):
        call(LABELS.float())
    with pytest.raises(TypeError, match=r"not torch\.bool"):
        call(LABELS > 0)
    with pytest.raises(ValueError, match=r"target has shape \(3,\).*shape \(4,\)"):
        call(LABELS[:3])
    with pytest.raises(TypeError, match=r"target must be a torch\.Tensor, not list"):
        call([0, 1, 2, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("call", OF_TARGET.values(), ids=OF_TARGET)
def test_soft_targets(call: Callable[[Tensor], object]) -> None:
    with pytest.raises(ValueError, match=r"sum to 1 over the classes.*off by 0.5"):
        call(torch.full((4, 3), 0.5))
    with pytest.raises(ValueError, match=r">= 0.*the least is -1"):
        call(torch.tensor([[-1.0, 1.0, 1.0]]).repeat(4, 1))
    with pytest.raises(ValueError, match=r"target requires grad"):
        call(torch.full((4, 3), 1 / 3, requires_grad=True))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_empty_batch(reduction: losses.Reduction) -> None:
    empty, labels = torch.ones(0, 3), torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match=r"the batch is empty: predictions of shape \(0, 3\)"):
        losses.iedl(empty, labels, reduction=reduction)
    with pytest.raises(ValueError, match="the batch is empty"):
        IEDLLoss(reduction=reduction)(empty, labels)
    with pytest.raises(ValueError, match="the batch is empty"):
        losses.cross_entropy(empty, labels, reduction=reduction)


UNKNOWN: dict[str, tuple[Callable[[], object], str]] = {
    "evidence": (lambda: IEDLLoss(evidence="tanh"), "'softplus', 'relu', 'exp'"),
    "reduction": (lambda: IEDLLoss(reduction="max"), "'mean', 'sum', 'none'"),  # type: ignore[arg-type]
    "scale": (lambda: losses.iedl(ALPHA, LABELS, scale="big"), "'paper', 'per_class'"),
    "likelihood": (lambda: EDLLoss("l1"), "'mse', 'marginal', 'cross_entropy'"),
    "measure": (lambda: measures.measure("entropy", ALPHA), "'max_prob', 'max_alpha', 'alpha0'"),
    "confidence": (lambda: measures.confidence("entropy", ALPHA), "'max_prob', 'max_alpha'"),
    "prediction": (lambda: Prediction.from_alpha(ALPHA).measure("entropy"), "'max_prob'"),
    "evaluation": (lambda: evaluation.ood_detection(ALPHA, ALPHA, ["entropy"]), "'max_prob'"),
}


@pytest.mark.parametrize(("call", "known"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_names_list_the_known(call: Callable[[], object], known: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown .* known: {known}"):
        call()


NEGATIVE: dict[str, Callable[[], object]] = {
    "fisher_weight": lambda: IEDLLoss(fisher_weight=-0.1),
    "kl_weight": lambda: EDLLoss(kl_weight=-1.0),
    "fisher_weight ": lambda: losses.iedl(ALPHA, LABELS, fisher_weight=float("nan")),
    "kl_weight ": lambda: losses.edl(ALPHA, LABELS, kl_weight=-1),
    "kl_weight  ": lambda: losses.edl(ALPHA, LABELS, kl_weight=torch.tensor(-1.0)),
    "kl_weight   ": lambda: losses.edl(ALPHA, LABELS, kl_weight=torch.tensor(float("nan"))),
    "entropy_weight": lambda: losses.uce(ALPHA, LABELS, entropy_weight=-1),
    "weight": lambda: schedules.Constant(-1),
    "weight ": lambda: schedules.Linear(10, float("inf")),
    "beta": lambda: losses.label_dirichlet(LABELS, 3, beta=0),
    "epochs": lambda: schedules.Linear(0),
    "smoothing": lambda: losses.cross_entropy(LOGITS, LABELS, smoothing=1.5),
    "class_weight": lambda: losses.iedl(ALPHA, LABELS, class_weight=torch.tensor([1.0, -1, 1])),
}


@pytest.mark.parametrize(("name", "call"), NEGATIVE.items(), ids=NEGATIVE)
def test_weights_out_of_range(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=rf"^{name.strip()} must be"):
        call()


NO_NUMBER: dict[str, Callable[[], object]] = {
    "fisher_weight": lambda: IEDLLoss(fisher_weight="0.1"),  # type: ignore[arg-type]
    "kl_weight": lambda: losses.edl(ALPHA, LABELS, kl_weight=None),  # type: ignore[arg-type]
    "ignore_index": lambda: losses.iedl(ALPHA, LABELS, ignore_index=None),  # type: ignore[typeddict-item]
    "ignore_index ": lambda: IEDLLoss(ignore_index=1.5),  # type: ignore[typeddict-item]
    "class_dim": lambda: losses.cross_entropy(LOGITS, LABELS, class_dim=1.0),  # type: ignore[typeddict-item]
    "class_dim ": lambda: EDLLoss(class_dim=True),
    "ignore_index  ": lambda: losses.edl(ALPHA, LABELS, ignore_index=torch.tensor(0.5)),  # type: ignore[typeddict-item]
}


@pytest.mark.parametrize(("name", "call"), NO_NUMBER.items(), ids=NO_NUMBER)
def test_what_is_no_number(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=rf"^{name.strip()} must be a (whole )?number, not"):
        call()


def test_shapes_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"class_weight has shape \(2,\).*\(3,\)"):
        losses.iedl(ALPHA, LABELS, class_weight=torch.ones(2))
    with pytest.raises(ValueError, match=r"alpha \(4, 3\) and beta \(2,\) differ"):
        dirichlet.kl_divergence(ALPHA, torch.ones(2))
    with pytest.raises(ValueError, match=r"class_dim=2 is not an axis"):
        IEDLLoss(class_dim=2)(LOGITS, LABELS)
    with pytest.raises(ValueError, match=r"id_alpha has 3 classes and ood_alpha 2"):
        evaluation.ood_detection(ALPHA, torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"labels have shape \(3,\).*\(4,\)"):
        evaluation.calibration(ALPHA, LABELS[:3])
    with pytest.raises(ValueError, match=r"labels must be from 0 to 2, but span \[0, 9\]"):
        evaluation.misclassification(ALPHA, torch.tensor([0, 9, 1, 1]))
    with pytest.raises(TypeError, match=r"labels must be integers, not torch.float32"):
        evaluation.calibration(ALPHA, LABELS.float())


def test_belief_needs_at_least_the_prior() -> None:
    with pytest.raises(ValueError, match=r"alpha must be >= 1 and finite, .*\[0.5, 2\]"):
        dirichlet.belief(torch.tensor([0.5, 2.0]))
    assert dirichlet.belief(torch.tensor([0.5, 2.0]), prior=0.5).tolist() == pytest.approx([0, 0.6])


def test_a_prediction_without_evidence_says_what_it_has() -> None:
    said = Prediction.from_probs(torch.tensor([[0.5, 0.5]]))
    with pytest.raises(AttributeError, match=r"no measure 'alpha0'; it has 'max_prob', 'entropy"):
        _ = said.alpha0
    with pytest.raises(AttributeError, match="made of probs and has no belief"):
        _ = said.belief
    with pytest.raises(AttributeError, match="no 'uncertainty'"):
        _ = said.uncertainty


def test_torch_validates_ours_too() -> None:
    with pytest.raises(ValueError, match="concentration"):
        Dirichlet(torch.tensor([-1.0, 1.0]), validate_args=True)
