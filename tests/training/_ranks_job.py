"""One of two processes that train together: what it saw goes into a file of its own."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep alive
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dubito import _legacy as methods
from dubito import runs
from dubito.data import Arrays
from dubito.training import Settings, fit, parallel
from dubito.training.run import Source

JUDGED: list[Tensor] = []
MASKS: list[Tensor] = []


class Seen(nn.Module):
    """A network that keeps its batch norm's statistics when it is judged, and its masks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.drop(torch.ones(len(x), 8))
        if self.training:
            MASKS.append(mask)
        else:
            JUDGED.append(torch.cat([b.detach().flatten().double() for b in self.norm.buffers()]))
        out: Tensor = self.last(self.norm(self.first(x)).relu() * mask)
        return out


def trainings() -> dict[str, dict[str, list[Tensor]]]:
    """What was seen in trainings of all kinds of data, with the mean of the weights and without."""
    drawn = torch.Generator().manual_seed(1)
    labels = torch.arange(160) % 2
    held = Arrays(torch.randn(160, 4, generator=drawn) + labels[:, None], labels, ("a", "b"))
    sources: dict[str, Source] = {
        "arrays": held,
        "dataset": TensorDataset(held.inputs, held.labels),
    }
    found = {}
    for name, source in sources.items():
        for average in (0, 2):
            JUDGED.clear()
            MASKS.clear()
            settings = Settings(
                epochs=2, batch_size=20, validate_every=1, patience=0, average=average
            )
            fit(methods.method("iedl"), Seen(), source, held, settings)
            found[f"{name} {average}"] = {"judged": [*JUDGED], "masks": [*MASKS]}
    return found


def finished_before_the_other_looks(folder: Path) -> str:
    """A run that lacks its last file, which the first process writes; what this one found."""
    sections = {
        "data": {"source": str(folder.with_name("blobs.npz"))},
        "backbone": {"name": "mlp", "hidden": [8]},
        "training": {"epochs": 1},
    }
    config = runs.configure(sections)
    (trained,) = runs.train(runs.plan(config, folder))
    manifest = folder / "manifest.json"
    if parallel.rank() == 0:
        manifest.unlink()
    dist.barrier()
    while parallel.rank() == 1 and not manifest.exists():
        time.sleep(0.02)
    plan = runs.plan(config, folder)
    (summary,) = runs.train(plan)
    assert summary == trained
    return plan.members[0].state


def main(folder: Path, rank: int) -> str:
    torch.set_num_threads(1)
    # a process that waits for the other in vain is to say so
    meeting, patience = f"file://{folder / 'meeting'}", timedelta(seconds=60)
    dist.init_process_group("gloo", meeting, patience, world_size=2, rank=rank)
    torch.save(trainings(), folder / f"trainings-{rank}.pt")
    (folder / f"state-{rank}").write_text(finished_before_the_other_looks(folder / "run"))
    dist.destroy_process_group()
    return "done"
