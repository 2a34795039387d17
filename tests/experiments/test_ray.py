"""Cells as tasks of a cluster: of two nodes, one of which is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dubito import experiments

pytest.importorskip("ray", reason="needs the extra ray")
# Ray leaves sockets and files to the end of the process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def cluster(source_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that runs nothing, and a node that does."""
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", source_env["PYTHONPATH"])  # workers import this checkout
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    soon = {"health_check_period_ms": 300, "health_check_failure_threshold": 2}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": soon}
    held: Any = Cluster(initialize_head=True, head_node_args=head)
    yield held
    ray.shutdown()
    held.shutdown()


def test_the_cell_of_a_lost_node_is_run_again(write: Any, cluster: Any, tmp_path: Path) -> None:
    folder = write("one", method="softmax", epochs=150, patience=0, seeds="[1, 2]")
    known = list(experiments.read_recipes(folder).values())
    first = cluster.add_node(num_cpus=1)
    lost: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []

    def tell(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "epoch" and not lost:
            lost.append(event)
            cluster.add_node(num_cpus=1)
            cluster.remove_node(first, allow_graceful=False)

    options: dict[str, Any] = {"work": tmp_path / "work", "device": "cpu"}
    done = experiments.reproduce(
        known, out=tmp_path / "out", ray=cluster.address, tell=tell, **options
    )
    assert lost
    assert done.failed == {}
    assert len(done.ran) == 2
    starts = [event["state"] for event in events if event["event"] == "start"]
    assert len(starts) >= 3  # one of them twice
    options["work"] = tmp_path / "work-alone"
    again = experiments.reproduce(known, out=tmp_path / "alone", **options)
    assert done.results.read_bytes() == again.results.read_bytes()
