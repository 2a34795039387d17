"""Parts, shards and resumption: whoever computes what, the result is that of one run."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dubito.fewshot import Engine, Setting, Shard, evaluate, head, run, summary
from dubito.fewshot import engine as engine_module
from dubito.fewshot.results import summed
from fewshot.samples import pool

PART, EPISODES = 8, 30


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(pool(), None, Setting(ways=3, shots=2), head("iedl"))


@pytest.fixture(scope="module")
def single(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run."""
    out = tmp_path_factory.mktemp("single")
    assert run(engine, EPISODES, out, part=PART, keep_episodes=True) is not None
    return out


def test_figures_are_means_of_the_episodes(engine: Engine, single: Path) -> None:
    result = json.loads((single / "result.json").read_text())
    values = engine.values(0, EPISODES)
    with np.load(single / "episodes.npz", allow_pickle=False) as held:
        assert set(held.files) == set(values)
        for name, column in values.items():
            np.testing.assert_array_equal(held[name], column)
    for name, column in values.items():
        have = column[~np.isnan(column)].astype(np.float64)
        found = result["figures"][name]
        assert found["episodes"] == len(have)
        assert found["mean"] == pytest.approx(have.mean(), rel=1e-12)
        wanted = 1.96 * have.std(ddof=1) / len(have) ** 0.5
        assert found["interval"] == pytest.approx(wanted, rel=1e-12)
    assert result["head"] == {"name": "iedl", **engine.head.hyperparameters()}
    assert result["setting"]["queries"] == 15


def test_shards_join_to_the_single_run(engine: Engine, single: Path, tmp_path: Path) -> None:
    for i in (3, 1):
        out = tmp_path / str(i)
        assert run(engine, EPISODES, out, part=PART, shard=Shard(i, 3)) is None
        assert not (out / "result.json").exists()
    joined = tmp_path / "3"
    shutil.copytree(tmp_path / "1" / "parts", joined / "parts", dirs_exist_ok=True)
    assert len(list((joined / "parts").iterdir())) == 3
    run(engine, EPISODES, joined, part=PART, shard=Shard(2, 3), keep_episodes=True)
    for name in ("result.json", "config.json"):
        assert (joined / name).read_bytes() == (single / name).read_bytes()
    with np.load(joined / "episodes.npz") as one, np.load(single / "episodes.npz") as other:
        for name in one.files:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_stopped_run_goes_on(engine: Engine, single: Path, tmp_path: Path) -> None:
    told: list[int] = []

    def stop(done: int) -> None:
        told.append(done)
        if sum(told) >= 2 * PART:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(engine, EPISODES, tmp_path, part=PART, tell=stop)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    assert len(kept) == 1  # the second was not finished yet
    told.clear()
    run(engine, EPISODES, tmp_path, part=PART, tell=told.append)
    assert sum(told) == EPISODES
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert (tmp_path / "result.json").read_bytes() == (single / "result.json").read_bytes()


def test_more_episodes_keep_the_finished_parts(
    engine: Engine, single: Path, tmp_path: Path
) -> None:
    run(engine, 12, tmp_path, part=PART)
    first = (tmp_path / "parts" / "part-000000.npz").stat().st_mtime_ns
    run(engine, EPISODES, tmp_path, part=PART)
    assert (tmp_path / "parts" / "part-000000.npz").stat().st_mtime_ns == first
    assert (tmp_path / "result.json").read_bytes() == (single / "result.json").read_bytes()


def test_batches_do_not_matter(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine.values(0, 20)
    monkeypatch.setattr(engine_module, "_CPU_BUDGET", 3 * engine._bytes())
    assert engine.batch(20) == 3
    for name, column in engine.values(0, 20).items():
        np.testing.assert_allclose(column, whole[name], rtol=0, atol=1e-6)


def test_parts_are_the_same_as_evaluate(engine: Engine) -> None:
    values = evaluate(engine, 10)
    assert summary(values)["accuracy"].episodes == 10
    np.testing.assert_array_equal(values["accuracy"], engine.values(0, 10)["accuracy"])


def test_another_run_is_not_mixed_in(engine: Engine, single: Path) -> None:
    other = Engine(engine.pool, None, engine.setting, head("iedl", fisher_weight=0.2))
    with pytest.raises(ValueError, match="holds episodes of another run: head differ"):
        run(other, EPISODES, single, part=PART)
    features = Engine(pool(seed=5), None, engine.setting, engine.head)
    with pytest.raises(ValueError, match="another run: features differ"):
        run(features, EPISODES, single, part=PART)


def test_a_broken_part_is_named(engine: Engine, tmp_path: Path) -> None:
    run(engine, PART, tmp_path, part=PART)
    path = tmp_path / "parts" / "part-000000.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"part-000000\.npz is no finished part"):
        run(engine, PART, tmp_path, part=PART)


def test_figures_that_no_episode_has_are_null(tmp_path: Path) -> None:
    easy = pool()
    easy.features.copy_(10 * easy.features.new_zeros(1))
    for i, (start, size) in enumerate(zip(easy.starts, easy.sizes, strict=True)):
        easy.features[easy.order[start : start + size], i] = 9.0
    engine = Engine(easy, None, Setting(ways=3, shots=2), head("softmax"))
    result = run(engine, 6, tmp_path)
    assert result is not None
    assert result["figures"]["accuracy"]["mean"] == 1
    assert result["figures"]["confidence/max_prob/aupr"] == {
        "mean": 1.0, "interval": 0.0, "episodes": 6,
    }  # fmt: skip
    assert result["figures"]["confidence/max_prob/auroc"]["mean"] is None


def test_episodes_are_at_least_one(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="episodes must be at least 1, not 0"):
        run(engine, 0, tmp_path)


def test_threads_do_not_matter(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_CPU_BUDGET", 3 * engine._bytes())
    alone = engine.values(0, 20)
    told: list[int] = []
    torch.set_num_threads(3)
    try:
        together = engine.values(0, 20, told.append)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert told == [3, 3, 3, 3, 3, 3, 2]
    for name, column in together.items():
        np.testing.assert_array_equal(column, alone[name])


def test_outside_classes_that_do_not_divide_the_queries() -> None:
    """Of 5 classes 2 are left for 45 OOD queries: 23 each, one of which is not needed."""
    engine = Engine(pool(classes=5), None, Setting(ways=3, shots=2), head("iedl"))
    assert engine.sampler.outside_ways == 2
    figures = summary(evaluate(engine, episodes=20))
    assert figures["accuracy"].mean > 0.4
    assert figures["ood/max_prob/aupr"].episodes == 20


def test_figures_of_parts_are_those_of_all() -> None:
    drawn = np.random.default_rng(0)
    column = (1e3 + drawn.normal(size=1000)).astype(np.float32)
    column[[3, 500, 999]] = np.nan
    cuts = [0, 1, 2, 4, 400, 1000]
    parts = [{"a": column[i:j]} for i, j in pairwise(cuts)]
    found = summed(iter(parts))["a"]
    held = column[~np.isnan(column)].astype(np.float64)
    assert found.episodes == 997
    assert found.mean == pytest.approx(held.mean(), rel=1e-14)
    assert found.interval == pytest.approx(1.96 * held.std(ddof=1) / 997**0.5, rel=1e-10)
    nothing = summed([{"a": np.full(3, np.nan, np.float32)}])["a"]
    assert (nothing.episodes, np.isnan(nothing.mean)) == (0, True)


def test_no_part_is_kept_while_they_are_summed() -> None:
    """Memory does not grow with the episodes."""
    alive: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def parts() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for _ in range(20):
            column = np.ones(1000, np.float32)
            alive.append(weakref.ref(column))
            yield {"a": column}
            del column
            assert sum(one() is not None for one in alive) <= 1

    assert summed(parts())["a"].episodes == 20_000
