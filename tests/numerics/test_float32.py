"""The evaluation in float32 against mpmath and the general one, and where it runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from dubito.numerics import torch_backend
from dubito.numerics.functions import uncertainty
from dubito.numerics.spec import LossSpec
from dubito.numerics.torch_backend import FAST_FORMS, is_fast, loss_and_sums, reference_loss
from tests.accuracy import LARGEST, MEDIAN, Quantity, measure
from tests.accuracy_grid import CLASSES, cases, point
from tests.numerics.helpers import BETA, IEDL, SAMPLE, loss_and_gradient, passes
from tests.numerics.quantities import QUANTITIES, targeted

# The compiler's own libraries and torch's forward-mode rules warn about their future.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def fast(name: str) -> Quantity:
    """The form through `loss_and_sums` of alpha."""
    spec = LossSpec((name,), evidence=None, beta=BETA, reduction="none")

    def call(alpha: Tensor, target: Tensor | None = None) -> Tensor:
        if target is None:
            target = torch.zeros(alpha.shape[:-1], dtype=torch.long)
        return loss_and_sums(spec, alpha, target, torch.ones(1), None)[0]

    if name in ("reverse_kl", "forward_kl"):
        return targeted(name, call, BETA)
    return replace(QUANTITIES[name], call=call)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", sorted(FAST_FORMS))
def test_accuracy_of_the_fast_path(
    name: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "Quantities", None)  # the general path fails
    passes(measure(fast(name), cases(SAMPLE[classes])))


@pytest.mark.parametrize("evidence", ["softplus", "relu", "exp"])
@pytest.mark.parametrize("prior", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("soft", [False, True])
def test_fast_path_agrees_with_the_general_one(evidence: str, prior: float, soft: bool) -> None:
    """Joint families of several forms, from logits; each row relative to its largest slope."""
    forms = (*IEDL, "mse_bias", "marginal_nll") if prior >= 1 else ("mse_bias", "label_removed_kl")
    spec = LossSpec(forms, evidence=evidence, prior=prior, reduction="none", per_class=True)
    weights = torch.linspace(0.1, 1, len(forms))
    for classes, scale in ((2, 1.0), (10, 5.0), (100, 20.0)):
        logits = scale * torch.randn(200, classes)
        target = torch.randn(200, classes).softmax(-1) if soft else torch.randint(classes, (200,))
        assert is_fast(spec, logits, target)
        result = loss_and_gradient(loss_and_sums, spec, logits, target, weights)
        expected = loss_and_gradient(
            reference_loss, spec, logits.double(), target, weights.double()
        )
        torch.testing.assert_close(result[0].double(), expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result[2].double(), expected[2], rtol=1e-5, atol=1e-5)
        error = (result[1].double() - expected[1]).abs().amax(-1)
        assert (error <= 1e-5 * expected[1].abs().amax(-1) + 1e-30).all()


@pytest.mark.parametrize("form", sorted(form for form, prior in FAST_FORMS.items() if prior == 0))
@pytest.mark.parametrize("low", [-18.4, -2.0])
def test_fast_divergences_of_any_alpha(form: str, low: float) -> None:
    spec = LossSpec((form,), evidence="exp", prior=0.0, beta=BETA, reduction="none")
    for classes, high in ((2, 1.0), (10, 55.0), (100, 10.0)):
        logits = torch.empty(200, classes).uniform_(low, high)
        target = torch.randint(classes, (200,))
        assert is_fast(spec, logits, target)
        result = loss_and_gradient(loss_and_sums, spec, logits, target, torch.ones(1))
        expected = loss_and_gradient(reference_loss, spec, logits, target, torch.ones(1))
        for one, other in zip(result[:2], expected[:2], strict=True):
            error = (one - other).reshape(200, -1).abs().amax(-1)
            assert (error <= 1e-5 * other.reshape(200, -1).abs().amax(-1)).all()


@pytest.mark.parametrize("form", sorted(FAST_FORMS))
def test_fast_path_of_tensors_is_that_of_arrays(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors, which a GPU computes with, in place of NumPy's arrays."""
    logits, target = 3 * torch.randn(50, 7), torch.randint(7, (50,))
    arguments = LossSpec((form,), beta=BETA), logits, target, torch.ones(1)
    arrays = loss_and_gradient(loss_and_sums, *arguments)
    monkeypatch.setattr(torch_backend, "classes_first", lambda values: values.T.contiguous())
    for one, other in zip(loss_and_gradient(loss_and_sums, *arguments), arrays, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("spec", "dtype", "expected"),
    [
        (LossSpec(IEDL), torch.float32, True),
        (LossSpec(IEDL), torch.float64, False),
        (LossSpec(IEDL, prior=0.5), torch.float32, False),
        (LossSpec(("mse_bias", "label_removed_kl"), prior=0.1), torch.float32, True),
        (LossSpec(IEDL, evidence="exp", prior=0.0), torch.float32, False),
        (LossSpec(("mutual_information",)), torch.float32, False),
        (LossSpec(IEDL, evidence=None), torch.float32, False),
    ],
)
def test_which_path_runs(spec: LossSpec, dtype: torch.dtype, expected: bool) -> None:
    values = torch.tensor([[0.5, 2.0, 3.0]], dtype=dtype)
    labels = torch.zeros(1, dtype=torch.long)
    assert is_fast(spec, values, labels) == expected


def test_alpha_of_at_least_one_is_fast() -> None:
    values, labels = torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, dtype=torch.long)
    assert is_fast(LossSpec(IEDL, evidence=None), values, labels)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_uncertainty_is_exact(classes: int) -> None:
    """The fast path, which has no gradient, within the bar of the form of each part."""
    names = ("entropy_of_mean", "expected_entropy", "mutual_information")
    grid = cases(SAMPLE[classes])
    alpha = torch.from_numpy(np.stack([case.alpha for case in grid]))
    for name, value in zip(names, uncertainty(alpha), strict=True):
        expected = [QUANTITIES[name].truth(point(case, "", {})).value for case in grid]
        error = (value.double() / torch.tensor(expected, dtype=torch.float64) - 1).abs()
        assert error.max() < LARGEST, name
        assert error.median() < MEDIAN, name
