import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dubito.errors import DubitoError
from dubito.training import checkpoint
from tests.training.helpers import SHORT, small_model, trained


def test_tensors_and_values_are_loaded(tmp_path: Path) -> None:
    tied = torch.arange(3.0)
    state = {"epoch": 1, "nll": float("inf")}
    checkpoint.save(tmp_path / "new" / "a", {"x": tied, "y": tied[:2], "z": torch.ones(())}, state)
    tensors, loaded = checkpoint.load(tmp_path / "new" / "a")
    assert loaded == state
    assert tensors["x"].tolist() == [0, 1, 2]
    assert tensors["y"].tolist() == [0, 1]


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(8)]
    for file in files:
        checkpoint.save(file, {"b": torch.ones(3), "a": torch.zeros(2)}, {"epoch": 1})
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None], ids=["empty", "text", "cut"])
def test_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.save(path, {"a": torch.ones(1000)}, {})
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(DubitoError, match=f"cannot read the checkpoint {path}.*remove it"):
        checkpoint.load(path)


def test_other_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(DubitoError, match="is not a checkpoint"):
        checkpoint.load(tmp_path / "other")


def test_slow_checkpoints_take_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saved = [0.0], [0]

    def slow(path: Path, tensors: object, state: object) -> None:
        clock[0] += 3.0
        saved[0] += 1

    def tick() -> float:
        clock[0] += 0.1
        return clock[0]

    monkeypatch.setattr(time, "perf_counter", tick)
    monkeypatch.setattr(checkpoint, "save", slow)
    trained(small_model(), SHORT.model_copy(update={"epochs": 300}), out=tmp_path)
    assert 0.02 < 3.0 * saved[0] / clock[0] < 0.06


def test_optimizer_state_has_the_memory_format_of_its_parameter() -> None:
    """With more than ten parameters, whose names are not in the order of their numbers."""

    def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        torch.manual_seed(0)
        network = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(6)])
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network, torch.optim.Adam(network.parameters(), fused=True)

    network, optimizer = make()
    network(torch.randn(2, 3, 4, 4)).sum().backward()
    optimizer.step()
    other, restored = make()
    stored = {k: v.contiguous() for k, v in checkpoint.optimizer_tensors(optimizer).items()}
    checkpoint.load_optimizer(restored, dict(sorted(stored.items())))
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        moments = restored.state[two]["exp_avg"]
        assert moments.stride() == two.stride()
        assert torch.equal(moments, optimizer.state[one]["exp_avg"])
