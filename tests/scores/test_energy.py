"""Energy."""

import torch

from dubito.scores import SCORES


def energy(outputs, temperature=1.0):
    return SCORES.build("energy", temperature=temperature)(None, outputs)


def test_energy_is_the_scaled_log_sum_exp():
    outputs = torch.randn(4, 3)
    torch.testing.assert_close(energy(outputs), outputs.exp().sum(-1).log())
    expected = 2 * (outputs.double() / 2).exp().sum(-1).log()
    torch.testing.assert_close(energy(outputs, 2), expected.float())


def test_energy_of_members_is_their_mean():
    outputs = torch.randn(4, 5, 3)
    torch.testing.assert_close(energy(outputs), outputs.exp().sum(-1).log().mean(-1))
