import os
import signal
import tomllib
from collections.abc import Generator
from pathlib import Path

# One torch thread a process. The tests run in several processes at once, and a thread pool in each
# of them as wide as the machine would have the processes wait for each other; results, too, would
# depend on the number of cores through the order of summation. torch reads the variable when it is
# imported, here and in the processes that tests start. It is not imported in this file because the
# process that only hands out the tests does well without.
os.environ["OMP_NUM_THREADS"] = "1"
# Figures are drawn without a display.
os.environ["MPLBACKEND"] = "Agg"
# Triton's kernels are interpreted where there is no GPU to compile them for. Triton reads the
# variable when it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell has what it starts in the background ignore an interrupt, and so would the processes that
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

# The first call of a torch function can take a hundred times as long as the second, so a time limit
# on a single example says nothing about the code.
settings.register_profile("dubito", deadline=None, print_blob=True)
settings.load_profile("dubito")

ROOT = Path(__file__).resolve().parents[1]
# Distributions that are imported under another name.
IMPORT_NAMES = {"python-multipart": "python_multipart", "mkdocs-material": "material"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail on a test file that cannot be imported: doctest would skip it, and with it its tests."""
    options = collector.config.option
    before = options.doctest_ignore_import_errors
    options.doctest_ignore_import_errors = not collector.name.startswith("test_")
    try:
        return (yield)
    finally:
        options.doctest_ignore_import_errors = before


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Let a test draw the same numbers whichever process and order it runs in."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Hold the number of threads even where torch was imported before this file was read."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's folder."""
    return ROOT


@pytest.fixture(scope="session")
def source_env() -> dict[str, str]:
    """Return an environment in which a new Python process imports this checkout."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    path = os.pathsep.join([str(ROOT / "src"), *inherited])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture(scope="session")
def optional_packages() -> frozenset[str]:
    """Return the import names of what the extras bring, and of triton, which few builds have."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    names = {
        requirement.partition(">=")[0].partition("[")[0]
        for extra, requirements in extras.items()
        if extra != "dev"
        for requirement in requirements
    }
    return frozenset({IMPORT_NAMES.get(name, name) for name in names} | {"triton"})
