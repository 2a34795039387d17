"""Small trained models of each kind that the page shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dubito import data
from dubito.data import Source
from dubito.formats import ImageFormat, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification, Regression, Task
from dubito.training import TrainConfig, Trainer

COLORS = ("blue", "green", "red")
TREES = ("elm", "fir", "oak")
VERDICTS, OPINIONS = ("bad", "fair", "good"), ("awful", "passable", "wonderful")
SPECIES = tuple(f"species {number:02d}" for number in range(40))


def photos(folder: Path) -> Path:
    """Color images whose class is their dominant color, by I-EDL with a policy."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 900)
    images = rng.integers(0, 150, (900, 3, 24, 32), dtype=np.uint8)
    images[np.arange(900), 2 - labels] += 90
    source = data.open((images, np.array(COLORS)[labels]))
    return fitted("iedl", source, Classification.from_target(source.target)).save(folder)


def table(folder: Path) -> Path:
    """Rows of two numbers and a category, by softmax with a policy; heights may be missing."""
    frame, labels = _trees()
    source = data.open(frame.assign(tree=np.array(TREES)[labels]), target="tree")
    return fitted("softmax", source, Classification.from_target(source.target)).save(folder)


def reviews(folder: Path) -> Path:
    """Texts of a few words, by I-EDL with a policy."""
    draw = np.random.default_rng(0)
    verdicts = draw.integers(0, 3, 900)
    words = np.array(["film", "story", "the", "music", "actors", "was", "a", "day"])
    texts = [
        " ".join([*draw.choice(words, 5), OPINIONS[verdict], *draw.choice(words, 3)])
        for verdict in verdicts
    ]
    source = data.open((texts, np.array(VERDICTS)[verdicts]))
    task = Classification.from_target(source.target)
    return fitted("iedl", source, task, "embedding").save(folder)


def regression(folder: Path) -> Path:
    """The age of a tree by deep evidential regression, with a tolerance and a policy."""
    frame, labels = _trees()
    noise = np.random.default_rng(1).normal(0, 3, len(frame))
    age = 10 + 2 * frame["height"].fillna(20) + 8 * labels + noise
    source = data.open(frame.assign(age=age), target="age")
    task = Regression.from_target(source.target, names=["age"], tolerance=15)
    return fitted("der", source, task).save(folder)


def targets(folder: Path) -> Path:
    """Two numbers from an array, without calibration and policy; untrained."""
    inputs, target = torch.rand(60, 4), torch.rand(60, 2)
    task = Regression.from_target(target, names=["width", "depth"])
    source = data.open((inputs, target.numpy()))
    return Model.build("der", task, Preprocessing(inputs=source.format), "mlp").save(folder)


def species(folder: Path) -> Path:
    """Color images of 40 classes by I-EDL, without a policy; untrained."""
    format = ImageFormat(size=(16, 16), mode="RGB")
    task = Classification(classes=SPECIES)
    return Model.build("iedl", task, Preprocessing(inputs=format), "mlp").save(folder)


MLP = {"name": "mlp", "hidden": [32]}


def fitted(method: str, source: Source, task: Task, backbone: Any = MLP) -> Model:
    """Train a model; half of the samples are for calibration and policy."""
    train, held_out = data.split(source, 0.5, seed=0)
    preprocessing = Preprocessing.fit(source.format, train.load())
    model = Model.build(method, task, preprocessing, backbone)
    config = TrainConfig(epochs=15, batch_size=32, lr=5e-3, keep="last")
    Trainer(config).fit(model, (train.load(), task.encode(train.target)))
    return model.calibrate(held_out).fit_policy(held_out, error_rate=0.1)


def _trees() -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    height = 12 + 8 * labels + rng.normal(0, 3, 600)
    height[::25] = np.nan
    bark = np.where(rng.random(600) < 0.2 + 0.3 * labels, "gray", "red")
    columns = {"height": height.round(1), "girth": rng.uniform(0.2, 3, 600).round(2), "bark": bark}
    return pd.DataFrame(columns), labels
