"""Losses, distributions and methods need torch, numpy, safetensors and pydantic alone."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

SCRIPT = Path(__file__).with_name("minimal.py")
BASE = ("torch", "numpy", "safetensors", "pydantic")

BLOCKED = """
import runpy, sys

sys.modules.update(dict.fromkeys({blocked!r}))  # None: an import raises ModuleNotFoundError
runpy.run_path({script!r}, run_name="__main__")
"""


def required(names: tuple[str, ...]) -> set[str]:
    """Distributions that the named ones require, themselves included."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        todo += [re.split(r"[ ;<>=!~\[(]", r)[0] for r in requirements if "extra ==" not in r]
    return found


def test_runs_with_the_base_dependencies_alone(source_env):
    allowed = required(BASE)
    blocked = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & allowed
    } - {"dubito", "torch"}
    assert {"scipy", "sklearn", "pandas", "matplotlib"} <= blocked
    code = BLOCKED.format(blocked=sorted(blocked), script=str(SCRIPT))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=source_env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
