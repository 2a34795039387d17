from __future__ import annotations

from dubito.training._history import History


def history(*values: float | None, best: int = 0) -> History:
    records = [{} if value is None else {"validation": {"nll": value}} for value in values]
    return History(records, best_epoch=best)


def test_first_of_equals_stays() -> None:
    found = history(3.0, 1.0, best=2)
    assert not found.improves(1.0, "nll", "min")
    assert found.improves(0.9, "nll", "min")
    assert found.improves(1.1, "nll", "max")


def test_first_validation_is_the_best() -> None:
    assert history(None).improves(float("inf"), "nll", "min")


def test_validations_since_best_leave_out_other_epochs() -> None:
    assert history(1.0, None, 2.0, None, 3.0, best=1).validations_since_best == 2
