import pytest

from reproduction import stopping
from reproduction.results import Results

HISTORY = {
    "epoch": [2, 4, 6, 8, 10, 12],
    "validation_accuracy": [0.5, 0.7, 0.6, 0.8, 0.7, 0.6],
    "validation_loss": [0.5, 0.3, 0.4, 0.35, 0.6, 0.2],
    "watched": {"accuracy": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]},
}


@pytest.mark.parametrize(
    ("window", "keep", "kept"), [(2, "accuracy", 1), (3, "accuracy", 3), (4, "loss", 1)]
)
def test_rule_keeps_the_best_validation(window: int, keep: str, kept: int) -> None:
    assert stopping.by_patience(window, keep)(HISTORY) == kept


def test_rule_that_stops_later_than_the_training_decides_nothing() -> None:
    assert stopping.by_patience(4, "accuracy")(HISTORY) is None
    assert stopping.by_epoch(20)(HISTORY) is None


def test_mean_around_the_kept_validation() -> None:
    means = stopping.kept(stopping.by_epoch(4), [HISTORY], around=1)
    assert means["accuracy"].tolist() == pytest.approx([20.0])


def test_study_of_when_to_stop(results: Results) -> None:
    histories = stopping.histories(results, results.recipes["cifar10-iedl"])
    assert len(histories) == 10
    row = stopping.rules(histories).loc["window of 10, by loss"].tolist()
    assert row == ["46 to 82", "90.2 ±0.5", "83.1 ±4.4", "85.7 ±1.0"]
    spans = stopping.spans(histories).loc["svhn/max_prob/aupr"]
    assert spans["epochs"].iloc[0] == "20 to 38"
