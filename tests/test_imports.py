"""`import dubito` brings little besides the torch that it needs."""

import json
import subprocess
import sys

HEAVY = {"matplotlib", "pandas", "pydantic", "rich", "scipy", "sklearn", "typer"}
#: modules besides torch's that the losses need: their own, and a few small ones
MOST = 50

# One process sees all of it: starting one costs more than everything that it then looks at.
CODE = """
import json, sys
import torch
before = set(sys.modules)
seen = []
def look():
    seen.append(sorted(set(sys.modules) - before))
import dubito
dubito.IEDLLoss  # what is exported is imported when it is used
look()
dubito.EvidentialClassifier()
look()
import rich
look()
from dubito.methods import METHODS
assert "fedl" in [*METHODS] and "dubito.methods.fedl" not in sys.modules
METHODS.build("fedl")  # an entry of a registry is imported when it is used, too
print(json.dumps(seen))
"""


def packages(modules: list[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_import_dubito_brings_little(source_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=source_env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    losses, estimator, rich = json.loads(done.stdout)
    assert len(losses) <= MOST, losses
    assert packages(losses) & HEAVY == set()
    ours = {name.split(".")[1] for name in losses if name.startswith("dubito.")}
    assert "losses" in ours
    assert ours.isdisjoint({"cli", "report", "data", "backbones"})
    # what is heavy would have been seen: it comes with what needs it
    assert {"sklearn", "scipy"} <= packages(estimator)
    assert "rich" in packages(rich)
