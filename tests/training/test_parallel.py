"""Two processes that train together."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dubito.training import Trainer, parallel
from tests.training import ranks
from tests.training.helpers import TRAIN, VALIDATION, weights, wrap
from tools.resume_proof import context

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs gloo",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both processes saw."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    processes = [context().Process(target=ranks.main, args=(folder, rank)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(600)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_two_processes_train_like_one_with_twice_the_batch(both: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = wrap(nn.Linear(4, 2))
    config = ranks.CONFIG.model_copy(update={"batch_size": 40})
    history = Trainer(config).fit(model, TRAIN, VALIDATION)
    for result in both:
        torch.testing.assert_close(result["weights"], weights(model), rtol=1e-4, atol=1e-6)
        for record, loss, metrics in zip(
            history.records, result["losses"], result["metrics"], strict=True
        ):
            assert loss == pytest.approx(record["loss"], rel=1e-4)
            assert metrics == pytest.approx(record["validation"], rel=1e-3)


def test_processes_end_with_the_same_network(both: list[dict[str, Any]]) -> None:
    assert torch.equal(both[0]["weights"], both[1]["weights"])
    assert both[0]["metrics"] == both[1]["metrics"]


def test_one_network_is_validated(both: list[dict[str, Any]]) -> None:
    for kind, watched in both[0]["watched"].items():
        here, there = watched["statistics"], both[1]["watched"][kind]["statistics"]
        assert len(here) == len(there) >= 2, kind
        assert all(map(torch.equal, here, there)), kind
        assert not torch.equal(here[0], here[-1]), kind


def test_no_dropout_mask_is_drawn_twice(both: list[dict[str, Any]]) -> None:
    for kind in both[0]["watched"]:
        masks = [mask for result in both for mask in result["watched"][kind]["masks"]]
        assert len(masks) >= 16, kind
        assert not any(itertools.starmap(torch.equal, itertools.combinations(masks, 2))), kind


def test_without_torchrun_there_is_one_process() -> None:
    with parallel.process_group() as device:
        assert (device, parallel.rank(), parallel.world()) == (None, 0, 1)
