"""Post-hoc scores."""

import pytest
import torch

from dubito import scores
from dubito.errors import DubitoError
from dubito.scores import Energy


def test_energy_is_the_scaled_log_sum_exp():
    outputs = torch.randn(4, 3)
    torch.testing.assert_close(Energy()(None, outputs), outputs.logsumexp(-1))
    expected = 2 * (outputs.double() / 2).exp().sum(-1).log()
    torch.testing.assert_close(Energy(temperature=2)(None, outputs), expected.float())


def test_energy_of_members_is_their_mean():
    outputs = torch.randn(4, 5, 3)
    torch.testing.assert_close(Energy()(None, outputs), outputs.logsumexp(-1).mean(-1))


def test_build_makes_an_equal_score_from_its_options():
    score = scores.build("energy", temperature=3.0)
    assert scores.build("energy", **score.options).options == {"temperature": 3.0}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("magic", {}, "unknown score 'magic'; known: 'energy'"),
        ("energy", {"warmth": 1}, "score 'energy': .*'warmth'"),
        ("energy", {"temperature": 0}, "temperature must be a finite number > 0, not 0"),
    ],
)
def test_wrong_arguments(name, options, message):
    with pytest.raises(DubitoError, match=message):
        scores.build(name, **options)


def test_names_of_the_package_are_taken():
    with pytest.raises(ValueError, match="there is a score 'energy' already"):
        scores.register("energy")(type("Mine", (scores.Energy,), {}))
