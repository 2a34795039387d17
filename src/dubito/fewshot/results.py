"""Figures of many episodes: computed in parts that are kept, and joined in order.

A part is a fixed range of episode numbers, whoever computes it. So a run that was stopped goes on
where it was, shards on several machines are parts in one folder, and what is joined is what one run
alone would have given.

| file | what |
| --- | --- |
| config.json | setting, head, solver and features: what must be equal to share a folder |
| parts/part-000000.npz | the figures of each episode of a part |
| result.json | means with their 95 % intervals, once all parts are there |
| episodes.npz | the figures of each episode, on request |
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dubito import __version__
from dubito.fewshot.engine import Engine, Values
from dubito.fewshot.episodes import Pool
from dubito.fewshot.heads import HEADS
from dubito.fewshot.scalings import NONE
from dubito.report import files

__all__ = ["PART", "Figure", "Shard", "described", "evaluate", "run", "summary"]

PART = 10_000  # episodes
CONFIG, RESULT, EPISODES, PARTS = "config.json", "result.json", "episodes.npz", "parts"
FORMAT = "dubito-fewshot-1"
Tell = Callable[[int], None]


@dataclass(frozen=True)
class Figure:
    """A mean over episodes, half the width of its 95 % interval, and how many episodes had it."""

    mean: float
    interval: float
    episodes: int


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, from 1: every count-th part.

    >>> Shard.named("2/3")
    Shard(index=2, count=3)
    >>> Shard.named("4/3")
    Traceback (most recent call last):
    ValueError: shard must be i/n with 1 <= i <= n, such as 1/4, not '4/3'
    """

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(
                "shard must be i/n with 1 <= i <= n, such as 1/4, not "
                f"{f'{self.index}/{self.count}'!r}"
            )

    @classmethod
    def named(cls, text: str) -> Shard:
        """The shard "i/n"."""
        index, _, count = text.partition("/")
        if not (index.strip().isdecimal() and count.strip().isdecimal()):
            raise ValueError(f"shard must be i/n with 1 <= i <= n, such as 1/4, not {text!r}")
        return cls(int(index), int(count))


def summary(values: Mapping[str, NDArray[np.float32]]) -> dict[str, Figure]:
    """The mean of each figure over the episodes that have it, and 1.96 s/sqrt(n).

    >>> summary({"accuracy": np.array([0.5, 1.0, np.nan], np.float32)})
    {'accuracy': Figure(mean=0.75, interval=0.49, episodes=2)}
    """
    return summed([values])


def summed(parts: Iterable[Mapping[str, NDArray[np.float32]]]) -> dict[str, Figure]:
    """The same of parts in their order, none of which is kept: memory does not grow with them."""
    sums: dict[str, tuple[int, float, float]] = {}
    for part in parts:
        for name, column in part.items():
            held = column[~np.isnan(column)].astype(np.float64)
            sums[name] = _joined(sums.get(name, (0, 0.0, 0.0)), held)
    return {name: _figure(*moments) for name, moments in sums.items()}


def _joined(
    moments: tuple[int, float, float], held: NDArray[np.float64]
) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations, with those of further values (Chan et al.)."""
    count, mean, squares = moments
    if not len(held):
        return moments
    total, off = count + len(held), float(held.mean()) - mean
    added = float(np.square(held - held.mean()).sum())
    mean = mean + off * len(held) / total if count else float(held.mean())
    return total, mean, squares + added + off * off * count * len(held) / total


def _figure(count: int, mean: float, squares: float) -> Figure:
    if not count:
        return Figure(math.nan, math.nan, 0)
    spread = math.sqrt(squares / (count - 1)) if count > 1 else math.nan
    return Figure(mean, 1.96 * spread / math.sqrt(count), count)


def evaluate(engine: Engine, episodes: int, tell: Tell | None = None) -> Values:
    """The figures of each of the first `episodes` episodes, part by part: (E,) each."""
    parts = [engine.values(start, stop, tell) for start, stop in _ranges(episodes, PART)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _ranges(episodes: int, size: int) -> Iterator[tuple[int, int]]:
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, not {episodes}")
    for start in range(0, episodes, size):
        yield start, min(start + size, episodes)


# --- a folder of parts ---------------------------------------------------------------------------


def run(
    engine: Engine,
    episodes: int,
    out: Path,
    *,
    shard: Shard | None = None,
    part: int = PART,
    tell: Tell | None = None,
    keep_episodes: bool = False,
    ray: str | None = None,
    gpus: float | None = None,
) -> dict[str, Any] | None:
    """Compute the parts of a shard that the folder lacks; the result once it has all of them.

    None where parts of other shards are missing. `tell` hears of episodes, also of those found.
    `ray` is the address of a cluster whose nodes compute the parts, each with the share `gpus` of a
    GPU; they are written here, and are those that this machine would have computed.
    """
    folder = files.folder(out)
    store = _Store(folder, {**described(engine), "part": part})
    mine, left = shard or Shard(), []
    for i, (start, stop) in enumerate(_ranges(episodes, part)):
        if i % mine.count != mine.index - 1:
            continue
        if store.read(start, stop) is None:
            left.append((start, stop))
        elif tell is not None:
            tell(stop - start)
    if ray is not None and left:
        from dubito.fewshot import _ray

        for place, device, values in _ray.computed(engine, left, ray, gpus, tell):
            store.write(*place, values, device)
    else:
        for start, stop in left:
            store.write(start, stop, engine.values(start, stop, tell), str(engine.device))
    if not store.has(episodes):
        return None
    return _finish(store, episodes, keep_episodes)


def described(engine: Engine) -> dict[str, Any]:
    """What figures depend on, but for rounding: plain values."""
    name = next(name for name, kind in HEADS.items() if kind is type(engine.head))
    return {
        "format": FORMAT,
        "setting": asdict(engine.setting) | {"queries": engine.setting.queries},
        "head": {"name": name, **engine.head.hyperparameters()},
        "solver": asdict(engine.solver),
        "features": _fingerprint(engine.pool),
        "ood": None if engine.outside is None else _fingerprint(engine.outside),
    }


def _fingerprint(pool: Pool) -> dict[str, Any]:
    held = hashlib.blake2b(digest_size=16)
    for array in (pool.features.cpu().numpy(), pool.order, pool.sizes):
        held.update(np.ascontiguousarray(array).data)
    found = {"name": pool.name, "shape": list(pool.features.shape), "hash": held.hexdigest()}
    return found if pool.scaling == NONE else {**found, "scaling": pool.scaling}


def _identity(config: Mapping[str, Any]) -> str:
    """A name for what figures depend on."""
    text = json.dumps(config, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class _Store:
    """The parts in a folder, and what they are parts of."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.identity = _identity(config)
        self._claim()
        files.folder(folder / PARTS)

    def _claim(self) -> None:
        """Write config.json, or find the same there."""
        path = self.folder / CONFIG
        if not path.exists():
            files.write(path, json.dumps(self.config, indent=2) + "\n")
            return
        try:
            found = dict(json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"could not read {path}: {error}") from error
        other = [key for key in self.config if found.get(key) != self.config[key]]
        if other:
            raise ValueError(
                f"{self.folder} holds episodes of another run: {', '.join(other)} differ; "
                "name another folder, or delete it"
            )

    def _path(self, start: int) -> Path:
        return self.folder / PARTS / f"part-{start // self.config['part']:06d}.npz"

    def write(self, start: int, stop: int, values: Values, device: str) -> None:
        """Store a finished part."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            names=np.array(list(values)),
            values=np.stack(list(values.values())),
            range=np.array([start, stop]),
            identity=np.array(self.identity),
            device=np.array(device),
        )
        files.write(self._path(start), buffer.getvalue())

    def read(self, start: int, stop: int) -> Values | None:
        """A finished part, or None where it has to be computed."""
        path = self._path(start)
        if not path.exists():
            return None
        try:
            # opened here: numpy leaves a file open that it can't read
            with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
                first, last = held["range"].tolist()
                if str(held["identity"]) != self.identity or first != start:
                    raise ValueError("it belongs to another run")
                if last < stop:
                    return None
                columns = held["values"][:, : stop - start]
                return dict(zip(held["names"].tolist(), columns, strict=True))
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is no finished part: {error}; delete it") from error

    def has(self, episodes: int) -> bool:
        """Whether all parts are there."""
        return all(
            self.read(*place) is not None for place in _ranges(episodes, self.config["part"])
        )

    def parts(self, episodes: int) -> Iterator[Values]:
        """All parts in order, one at a time."""
        for start, stop in _ranges(episodes, self.config["part"]):
            part = self.read(start, stop)
            assert part is not None
            yield part


def _finish(store: _Store, episodes: int, keep_episodes: bool) -> dict[str, Any]:
    """Write result.json, and on request episodes.npz, for which all parts are held at once."""
    figures = {name: asdict(figure) for name, figure in summed(store.parts(episodes)).items()}
    result = _plain(
        {**store.config, "episodes": episodes, "dubito": __version__, "figures": figures}
    )
    text = json.dumps(result, indent=2, allow_nan=False)
    files.write(store.folder / RESULT, text + "\n")
    if keep_episodes:
        parts = list(store.parts(episodes))
        values = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        buffer = io.BytesIO()
        np.savez(buffer, **cast(dict[str, Any], values))
        files.write(store.folder / EPISODES, buffer.getvalue())
    return dict(result)


def _plain(value: Any) -> Any:
    """What JSON has: a figure that no episode has is null and not NaN."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
