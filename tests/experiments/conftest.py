"""Small recipes on embedded data, as files that a test may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

RECIPE = """
title = "{name} on digits"
protocol = "dubito"
about = "A network small enough for a test."
tables = ["tab_small"]
seeds = {seeds}

[data]
source = "{source}"

[backbone]
name = "mlp"
hidden = [16]

[method]
name = "{method}"

[training]
epochs = {epochs}
batch_size = 128
learning_rate = {rate}
validate_every = 1
patience = {patience}

[evaluate]
ood = ["{ood}"]
noise = [0.3]
"""


@pytest.fixture(scope="session")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs that are no digits."""
    path = tmp_path_factory.mktemp("outside") / "uniform.npz"
    pixels = np.random.default_rng(0).integers(256, size=(80, 1, 8, 8), dtype=np.uint8)
    np.savez(path, images=pixels)
    return path


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, uniform: Path) -> Write:
    """Write a recipe into the test's folder of recipes; the folder."""
    folder = tmp_path / "recipes"
    folder.mkdir()

    def one(name: str, *, extra: str = "", **values: object) -> Path:
        given: dict[str, object] = {"method": "iedl", "epochs": 3, "rate": 0.01, "patience": 10}
        given |= {"source": "digits", "seeds": "[1, 2]", "ood": uniform}
        text = RECIPE.format(name=name, **{**given, **values})
        (folder / f"{name}.toml").write_text(text + extra)
        return folder

    return one
