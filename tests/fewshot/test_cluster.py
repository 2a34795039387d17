"""Episodes on a cluster: of two nodes, one of which is lost; the result is that of one run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dubito.fewshot import Engine, Setting, head, run
from fewshot.samples import pool

EPISODES, PART = 40, 5


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(pool(), pool(seed=1), Setting(ways=3, shots=2), head("iedl"))


def test_a_missing_extra_is_named(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'dubito\[ray\]'"):
        run(engine, EPISODES, tmp_path, ray="auto")


@pytest.fixture
def cluster(source_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that runs nothing, and a node that does."""
    ray: Any = pytest.importorskip("ray", reason="needs the extra ray")
    from ray.cluster_utils import Cluster

    # workers import this checkout, and the tests' samples
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", f"{source_env['PYTHONPATH']}:{tests}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    soon = {"health_check_period_ms": 300, "health_check_failure_threshold": 2}
    first = {"num_cpus": 0, "include_dashboard": False, "_system_config": soon}
    held: Any = Cluster(initialize_head=True, head_node_args=first)
    yield held
    ray.shutdown()
    held.shutdown()


# Ray leaves sockets and files to the end of the process.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_cluster_gives_the_single_run(engine: Engine, cluster: Any, tmp_path: Path) -> None:
    first = cluster.add_node(num_cpus=1)
    told: list[int] = []

    def tell(done: int) -> None:
        told.append(done)
        if len(told) == 1:
            cluster.add_node(num_cpus=1)
            cluster.remove_node(first, allow_graceful=False)

    assert run(engine, EPISODES, tmp_path / "alone", part=PART) is not None
    options: dict[str, Any] = {"part": PART, "ray": cluster.address}
    assert run(engine, EPISODES, tmp_path / "cluster", tell=tell, **options) is not None
    assert told == [PART] * (EPISODES // PART)
    for name in ("result.json", "config.json"):
        alone, together = (tmp_path / where / name for where in ("alone", "cluster"))
        assert alone.read_bytes() == together.read_bytes()
    # what is there is not computed again: no cluster is needed for that
    again = run(engine, EPISODES, tmp_path / "cluster", part=PART, ray="nowhere:1")
    assert again is not None
