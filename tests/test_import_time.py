"""`import dubito` takes little longer than the `import torch` it needs, and brings little."""

import json
import subprocess
import sys
from dataclasses import dataclass

LIMIT = 1.5
ROUNDS = 6
HEAVY = {"matplotlib", "pandas", "pydantic", "rich", "scipy", "sklearn", "typer"}

# One process sees all of it: starting one costs more than everything that it then looks at.
CODE = """
import json, sys
from time import perf_counter

def new():
    return sorted(set(sys.modules) - before)

start = perf_counter()
import torch
torch_s = perf_counter() - start
before = set(sys.modules)
import dubito
dubito.IEDLLoss  # what is exported is imported when it is used
dubito_s = perf_counter() - start
ours = new()
exported = "EvidentialClassifier" in dubito.__all__
if sys.argv[1] == "more":
    dubito.EvidentialClassifier()
    with_estimator = new()
    import rich
else:
    with_estimator = []
print(json.dumps([torch_s, dubito_s, ours, exported, with_estimator, new()]))
"""


@dataclass(frozen=True)
class Seen:
    """Seconds since a new process began to import, and the modules it had besides torch's."""

    torch_s: float
    dubito_s: float
    imported: list[str]
    exported: bool
    with_estimator: list[str]
    with_rich: list[str]


def imported(env: dict[str, str], more: str = "") -> Seen:
    done = subprocess.run(
        [sys.executable, "-c", CODE, more], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Seen(*json.loads(done.stdout))


def packages(modules: list[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_import_dubito_is_fast_and_brings_little(source_env: dict[str, str]) -> None:
    seen = imported(source_env, "more")
    assert "dubito" in packages(seen.imported)
    assert packages(seen.imported) & HEAVY == set()
    ours = {name.split(".")[1] for name in seen.imported if name.startswith("dubito.")}
    assert "losses" in ours
    assert ours.isdisjoint({"cli", "report", "data", "backbones"})
    # what is heavy would have been seen: it comes with what needs it
    assert seen.exported
    assert {"sklearn", "scipy"} <= packages(seen.with_estimator)
    assert "rich" in packages(seen.with_rich)

    # Other processes only add to a time, so the least of several is compared.
    torch_s, dubito_s = seen.torch_s, seen.dubito_s
    for _ in range(ROUNDS):
        if dubito_s <= LIMIT * torch_s:
            break
        seen = imported(source_env)
        torch_s, dubito_s = min(torch_s, seen.torch_s), min(dubito_s, seen.dubito_s)
    ratio = dubito_s / torch_s
    assert ratio <= LIMIT, f"import dubito takes {ratio:.2f} x import torch ({torch_s:.2f} s)"
