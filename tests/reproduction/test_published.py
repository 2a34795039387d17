import math

import pytest

from reproduction.published import Number, Published, verdict


@pytest.mark.parametrize(
    ("ours", "higher", "expected"),
    [
        (98.5, True, "agrees"),
        (98.51, True, "better"),
        (98.51, False, "worse"),
        (98.09, True, "worse"),
        (math.inf, True, ""),
    ],
)
def test_verdict(ours: float, higher: bool, expected: str) -> None:
    assert verdict(ours, Number(98.3, 0.2), higher) == expected


def test_published_zero_deviation_stands_for_less_than_its_last_digit() -> None:
    assert verdict(97.19, Number(97.15, 0.0)) == "agrees"
    assert verdict(97.09, Number(97.15, 0.0)) == "worse"


def test_all_numbers_are_there() -> None:
    published = Published()
    assert len(published.images) == 127
    assert published.images["cifar-10", "iedl", "ood/svhn/max_prob/aupr"] == Number(83.26, 2.4)
    assert published.images["cifar-10", "iedl", "accuracy"].mean == 89.20
    # Two tables differ in the deviation of this number; the first counts.
    assert published.images["mnist", "edl", "ood/kmnist/alpha0/aupr"] == Number(96.31, 2.0)
    assert str(published.fewshot[5, 5, "edl logdet", "accuracy"]) == "81.82 ±0.14"
    assert published.code[5, 1, "edl", "confidence/max_alpha/aupr"].deviation is None
