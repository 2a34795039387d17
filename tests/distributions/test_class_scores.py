"""Scores of class distributions against mpmath."""

import mpmath as mp
import pytest
import torch

from dubito.distributions import Categorical, Dirichlet


def generalized_entropy(weights, most=100):
    """Sum of p^0.1 (1 - p)^0.1 over the largest p, which are proportional to the weights."""
    with mp.workdps(60):
        total = mp.fsum(weights)
        largest = sorted(range(len(weights)), key=lambda k: weights[k])[-most:]
        terms = []
        for k in largest:
            rest = mp.fsum(w for j, w in enumerate(weights) if j != k)
            terms.append((weights[k] / total * rest / total) ** mp.mpf("0.1"))
        return float(mp.fsum(terms))


@pytest.mark.parametrize("classes", [2, 10, 150])
@pytest.mark.parametrize("spread", [0.1, 3.0, 60.0])
def test_gen_equals_mpmath(classes, spread):
    logits = spread * torch.randn(5, classes)
    expected = [-generalized_entropy([mp.exp(z) for z in row]) for row in logits.tolist()]
    found = Categorical(logits).gen
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-6)


def test_gen_of_a_dirichlet_reads_its_mean():
    alpha = torch.tensor([[1.0, 2.0, 3.0], [1e6, 1.0, 1.0], [1e-3, 1e-3, 5.0]])
    expected = [-generalized_entropy([mp.mpf(a) for a in row]) for row in alpha.tolist()]
    torch.testing.assert_close(Dirichlet(alpha).gen, torch.tensor(expected))


def test_gen_of_certain_classes_is_zero():
    assert Categorical.from_probs(torch.tensor([1.0, 0.0, 0.0])).gen == 0


def test_energy_is_the_log_sum_exp():
    logits = 50 * torch.randn(20, 7)
    expected = [float(mp.log(mp.fsum(mp.exp(z) for z in row))) for row in logits.tolist()]
    torch.testing.assert_close(Categorical(logits).energy, torch.tensor(expected))
