"""One of two processes that train together; what it saw goes into a file."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep alive
from torch import Tensor, nn

from dubito.training import Trainer
from tests.training.helpers import SHORT, TRAIN, VALIDATION, Stream, weights, wrap

CONFIG = SHORT.model_copy(update={"epochs": 2, "batch_size": 20})


class Watched(nn.Module):
    """Network that keeps its masks, and its batch norm statistics in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        mask = self.dropout(torch.ones(len(x), 8))
        if self.training:
            MASKS.append(mask)
        else:
            STATISTICS.append(torch.cat([b.flatten().double() for b in self.norm.buffers()]))
        outputs: Tensor = self.last(self.norm(self.first(x)).relu() * mask)
        return outputs


MASKS: list[Tensor] = []
STATISTICS: list[Tensor] = []


def watched() -> dict[str, dict[str, list[Tensor]]]:
    """Train on all kinds of data, with averaged weights and without."""
    records = {}
    for name, inputs in {"memory": TRAIN[0], "streamed": Stream(TRAIN[0])}.items():
        for average in (0, 2):
            MASKS.clear()
            STATISTICS.clear()
            config = CONFIG.model_copy(update={"average_epochs": average})
            Trainer(config).fit(wrap(Watched()), (inputs, TRAIN[1]), VALIDATION)
            records[f"{name} {average}"] = {"masks": [*MASKS], "statistics": [*STATISTICS]}
    return records


def main(folder: Path, rank: int) -> None:
    """Train as one process of two."""
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder / 'meeting'}", timedelta(seconds=600)
    dist.init_process_group("gloo", meeting, patience, world_size=2, rank=rank)
    torch.manual_seed(0)
    model = wrap(nn.Linear(4, 2))
    history = Trainer(CONFIG).fit(model, TRAIN, VALIDATION, out=folder)
    metrics = [record["validation"] for record in history.records]
    losses = [record["loss"] for record in history.records]
    result = {"weights": weights(model), "metrics": metrics, "losses": losses, "watched": watched()}
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()
