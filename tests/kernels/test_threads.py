"""The CPU kernel in threads and processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from dubito import losses
from dubito.kernels import function
from tests.kernels.samples import alphas, labels


def in_threads(count: int, alpha: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        leaf = alpha.clone().requires_grad_()
        value = losses.iedl(leaf, target)
        return value.detach(), torch.autograd.grad(value, leaf)[0]
    finally:
        torch.set_num_threads(before)


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, target = alphas(9001, 5), labels(9001, classes=5)
    parts: list[int] = []
    monkeypatch.setattr(function, "PER_THREAD", 1)
    pool = function.ThreadPoolExecutor(4)
    submit = pool.submit
    monkeypatch.setattr(pool, "submit", lambda *a: parts.append(1) or submit(*a))
    monkeypatch.setattr(function, "_pool", pool)
    one, *others = (in_threads(count, alpha, target) for count in (1, 2, 3, 4))
    for other in others:
        assert torch.equal(other[0], one[0])
        assert torch.equal(other[1], one[1])
    assert len(parts) == 1 + 2 + 3  # the calling thread does a part itself


def test_what_a_thread_finds_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, target = alphas(9001, 5), labels(9001, classes=5)
    monkeypatch.setattr(function, "PER_THREAD", 1)
    alpha[-1, -1] = -1
    with pytest.raises(ValueError, match=r"alpha must be > 0.*the first at \[9000, 4\]"):
        in_threads(3, alpha, target)


def test_many_threads_may_call_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function, "PER_THREAD", 1)
    alpha, target = alphas(2000, 5), labels(2000, classes=5)
    expected = losses.iedl(alpha, target)
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as callers:
            seen = list(callers.map(lambda _: losses.iedl(alpha, target), range(40)))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(value, expected) for value in seen)


IN_WORKERS = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from dubito import losses
from dubito.kernels import Weights, function

function.PER_THREAD = 1


class Losses(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        torch.set_num_threads(2)  # a worker starts with one
        torch.manual_seed(index)
        return losses.iedl(1 + torch.rand(4000, 5), torch.zeros(4000, dtype=torch.long))


if __name__ == "__main__":
    torch.set_num_threads(2)
    here = [Losses()[index] for index in range(3)]
    assert function._pool is not None
    loader = DataLoader(
        Losses(), num_workers=1, multiprocessing_context=sys.argv[1], batch_size=None, timeout=100
    )
    assert [value.item() for value in loader] == [value.item() for value in here]
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_loader(context: str, tmp_path: Path, source_env: dict[str, str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(IN_WORKERS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), context],
        env={**source_env, "DUBITO_KERNELS": "auto"},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
