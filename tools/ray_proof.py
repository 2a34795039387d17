"""Run a small reproduction on two Ray nodes, kill one, and compare the records with a local run.

    python tools/ray_proof.py

Needs the extra `ray`. The node is killed while it runs something. The exit status is 1 if nothing
was interrupted, or if records are missing or differ.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from reproduction import runner  # noqa: E402
from reproduction.quick import quick  # noqa: E402
from reproduction.recipes import read_recipes, select  # noqa: E402
from reproduction.runner import Outcome, Unit, run_unit  # noqa: E402
from reproduction.store import Store, comparable  # noqa: E402

NAMES = ["mnist-*edl", "mnist-softmax", "cifar10-iedl", "fewshot-iedl-5w*"]
LOG = "log.txt"


def run_and_log(unit: Unit, work: Path, device: str) -> Outcome:
    """Run a unit, and log where it starts and ends."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    _log(work, f"start {node} {unit}")
    outcome = run_unit(unit, work, device)
    _log(work, f"end {node} {unit}")
    return outcome


def _log(work: Path, line: str) -> None:
    with (work.parent / LOG).open("a") as file:
        file.write(f"{line}\n")


def entries(log: Path) -> list[list[str]]:
    """Return the log: "start" or "end", node, unit."""
    text = log.read_text("utf-8") if log.exists() else ""
    return [line.split(" ", 2) for line in text.splitlines()]


def kill_when_busy(cluster: Any, doomed: Any, log: Path) -> None:
    """Kill a node after its first finished unit, while it runs another one."""
    while True:
        kinds = [kind for kind, node, _ in entries(log) if node == doomed.node_id]
        if "end" in kinds and kinds[-1] == "start":
            cluster.remove_node(doomed, allow_graceful=False)
            print("killed one of two nodes")
            return
        time.sleep(0.02)


def main() -> int:
    """Run both, and compare."""
    from ray.cluster_utils import Cluster

    recipes = {name: quick(recipe) for name, recipe in read_recipes().items()}
    selected = select(recipes, NAMES)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ray" / LOG
        threading.Thread(target=kill_when_busy, args=(cluster, doomed, log), daemon=True).start()
        for name, address in (("ray", cluster.address), ("local", None)):
            runner.run_unit = run_and_log if address else run_unit
            store = Store(Path(folder) / name / "results", recipes)
            work = Path(folder) / name / "work"
            problems = runner.run(selected, store, work, device="cpu", ray=address)
            print(f"{name}: {len(store)} records, {len(problems)} failures")
            results.append([comparable(record) for record in store.current()])
        starts = [unit for kind, _, unit in entries(log) if kind == "start"]
    cluster.shutdown()
    repeated = sorted({unit for unit in starts if starts.count(unit) > 1})
    expected = sum(len(recipe.seeds) for recipe in selected)
    equal = results[0] == results[1] and len(results[0]) == expected
    print(f"interrupted and repeated: {', '.join(repeated) or 'none'}")
    print(f"{expected} records expected, complete and equal: {equal}")
    return 0 if equal and repeated else 1


if __name__ == "__main__":
    sys.exit(main())
