"""What each epoch brought, for TensorBoard where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dubito.training import parallel

__all__ = ["Callback", "told"]

Callback = Callable[[dict[str, Any]], None]
FOLDER = "tensorboard"
FIGURES = ("loss", "validation_accuracy", "validation_loss", "samples_per_second")


@contextmanager
def told(folders: Mapping[int, Path], callback: Callback | None) -> Iterator[Callback]:
    """Who is told of each epoch: TensorBoard in the folder of the seed, and the caller."""
    with ExitStack() as stack:
        boards: dict[int, Any] = {}
        if parallel.rank() == 0 and (writer := _writer()) is not None:
            for seed, folder in folders.items():
                boards[seed] = stack.enter_context(writer(str(folder / FOLDER)))

        def tell(entry: dict[str, Any]) -> None:
            for name, value in _scalars(entry).items() if entry["seed"] in boards else ():
                boards[entry["seed"]].add_scalar(name, value, entry["epoch"])
            if callback is not None:
                callback(entry)

        yield tell


def _writer() -> Any:
    """TensorBoard's writer, or None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter


def _scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    terms = {f"terms/{name}": value for name, value in entry["terms"].items()}
    return terms | {name: entry[name] for name in FIGURES if name in entry}
