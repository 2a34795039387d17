"""Bundles to serve, and services of them that many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dubito import _legacy as methods
from dubito import backbones, bundle, data, training
from dubito.bundle import Column, Columns, Preprocessing
from tests.limits import policy, scaling

if TYPE_CHECKING:
    from serve.running import Running

#: without what the extras `serve` and `dev` bring there is nothing to test
NEEDED = ("fastapi", "httptools", "httpx", "python_multipart", "uvicorn")
if any(find_spec(name) is None for name in NEEDED):
    collect_ignore_glob = ["*.py"]

HUES = ("red", "sky")
COLUMNS = Columns(columns=(Column("size", None, (0.0, 5.0)), Column("hue", HUES)), label="y")
POLICY = policy(("max_prob", 0.5), ("vacuity", 0.9), samples=9)
SCALING = scaling()


def saved(folder: Path, shape: tuple[int, ...], method: str = "iedl", **given: Any) -> Path:
    """A bundle that was never trained."""
    torch.manual_seed(0)
    network = backbones.build("mlp", shape, 2, hidden=(4,))
    return bundle.save(
        folder, network, method=method, classes=("a", "b"), shape=shape,
        backbone={"name": "mlp", "hidden": [4]}, **given,
    )  # fmt: skip


def trained(folder: Path, seed: int = 0) -> Path:
    """A bundle of the digits, good enough to be right mostly."""
    torch.manual_seed(seed)
    train, held, _ = data.split(data.load("digits", "all"), 0.7, 0, stratified=True)
    method = methods.method("iedl")
    network = backbones.build("mlp", train.shape, 10, hidden=(32,))
    settings = training.Settings(epochs=8, learning_rate=5e-3, validate_every=8)
    run = training.fit(method, network, train, held, settings)
    prepared = Preprocessing(pixels=True, mode="L")
    said = bundle.says(method, run.model.eval(), prepared, held.inputs, 1024)
    limits = bundle.limits(said, held.labels)
    return bundle.save(
        folder, run.model, method=method, classes=train.classes, shape=train.shape,
        backbone={"name": "mlp", "hidden": [32]}, preprocessing=prepared,
        calibration=limits.calibration, policy=limits.policy,
    )  # fmt: skip


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("serve") / "digits")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Preprocessing(columns=COLUMNS, mean=(1.0, 0.0, 0.0), scale=(2.0, 1.0, 1.0))
    folder = tmp_path_factory.mktemp("serve") / "table"
    return saved(folder, (3,), calibration=SCALING, policy=POLICY, preprocessing=made)


@pytest.fixture(scope="session")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("serve") / "softmax", (2,), method="softmax")


@pytest.fixture(scope="module")
def service(digits: Path) -> Iterator[Running]:
    """The digits with the default limits."""
    from serve.running import running

    with running(digits) as found:
        yield found
