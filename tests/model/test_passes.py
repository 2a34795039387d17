"""How often the network runs, and how often inputs are read."""

from collections import Counter

import pytest
import torch
from torch import nn

import dubito
from dubito import data
from dubito.data.base import Items
from dubito.formats import ArrayFormat, ImageFormat, Preprocessing
from dubito.model import Model
from tests.model import models

X = models.samples()[0]
NAMES = models.names()
OOD = X[:50] + 2


class Reads(Items):
    """Inputs in memory that count how often each is read."""

    def encode(self, indices):
        self.counts = getattr(self, "counts", Counter())
        self.counts.update(indices)
        return super().encode(indices)


def source(model):
    opened = data.open((X.numpy(), NAMES), format=model.preprocessing.inputs)
    return Reads("rows", opened.format, opened.items, opened.target, encoded=opened.encoded)


def wrapped():
    """A network that exposes nothing."""
    part = models.build()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return Model(network, part.method, part.task, part.preprocessing)


#: model, and how often an input passes its first layer in one prediction
MODELS = {
    "plain": (models.build, 1),
    "ensemble": (lambda: models.build({"name": "ensemble", "member": "iedl", "size": 3}), 3),
    "mc_dropout": (lambda: models.build({"name": "mc_dropout", "member": "iedl", "samples": 4}), 4),
    "wrapped": (wrapped, 1),
}
SETS = {"none": (), "energy": ("energy",), "features": ("energy", "knn")}


@pytest.fixture(params=MODELS)
def counted(request):
    """A model, the number of inputs that pass its first layers, and the passes of one input."""
    make, passes = MODELS[request.param]
    model = make().eval()
    counts = Counter()
    size = next(m for m in model.network.modules() if isinstance(m, nn.Linear)).in_features
    for layer in model.network.modules():
        if isinstance(layer, nn.Linear) and layer.in_features == size == 4:
            layer.register_forward_hook(lambda _, x, y: counts.update(inputs=len(y)))
    return model, counts, passes


@pytest.mark.parametrize("scores", SETS.values(), ids=SETS)
def test_each_input_passes_the_network_once(counted, scores):
    model, counts, passes = counted

    def passed():
        return counts.pop("inputs", 0) / passes

    model.add_scores(scores, X, NAMES)
    assert passed() == (len(X) if "knn" in scores else 0)
    prediction = model.predict(X)
    assert passed() == len(X)
    model.calibrate(prediction, NAMES).fit_policy(prediction, NAMES)
    model.evaluate(prediction.reread(model), NAMES)
    assert passed() == 0
    model.calibrate(X, NAMES)
    assert passed() == len(X)
    model.evaluate(X, NAMES, ood={"far": OOD}, noise=[0.1, 0.2])
    assert passed() == 3 * len(X) + len(OOD)


def test_inputs_are_read_once():
    model = models.build()
    inputs = source(model)
    model.add_scores(["energy", "knn", "mahalanobis"], inputs)
    assert inputs.counts == Counter(range(len(X)))
    inputs.counts.clear()
    model.evaluate(inputs, noise=[0.1, 0.2, 0.3])
    assert inputs.counts == Counter(range(len(X)))


def test_training_ends_with_one_pass_over_each_part(tmp_path, monkeypatch):
    passed = Counter()
    run = Model.run

    def counting(self, inputs, **options):
        passed.update(inputs=len(inputs))
        return run(self, inputs, **options)

    monkeypatch.setattr(Model, "run", counting)
    model = dubito.train(
        (X.numpy(), NAMES), out=tmp_path, epochs=1, report=False, backbone={"hidden": [8]},
        posthoc=("energy", "knn"),
    )  # fmt: skip
    assert sum(model.record.samples.values()) == len(X)
    assert passed["inputs"] == len(X) + 2  # blank ones, before the training: are there features?


# --- the size of batches ---


@pytest.mark.parametrize(("side", "most"), [(28, 1024), (224, 32), (1024, 2), (2048, 1)])
def test_batches_are_smaller_for_larger_inputs(side, most):
    sizes = []

    class Mean(nn.Module):
        def forward(self, x):
            sizes.append(len(x))
            return x.mean((2, 3))

    part = models.build()
    images = ImageFormat(size=(side, side), mode="RGB")
    model = Model(Mean(), part.method, part.task, Preprocessing(inputs=images))
    count = min(1500, 2 * most + 1)
    pixels = torch.zeros(1, 3, side, side, dtype=torch.uint8).expand(count, -1, -1, -1)
    assert len(model.predict(pixels)) == count
    assert max(sizes) == most


def test_noise_does_not_depend_on_the_batches(monkeypatch):
    model = models.build()
    first = model.evaluate(X, NAMES, noise=[0.5])["noise"]
    monkeypatch.setattr("dubito.model.prediction.MOST", 64)
    second = model.evaluate(X, NAMES, noise=[0.5])["noise"]
    assert first["0.5"]["metrics"] == pytest.approx(second["0.5"]["metrics"], rel=1e-6)


def test_indices_reach_the_network_as_they_are():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 1)

        def forward(self, x):
            assert x.dtype == torch.int64
            return x[:, :3] % 7 + self.table.weight[0]

    part = models.build()
    flat = Preprocessing(inputs=ArrayFormat(shape=(4,), dtype="int64"))
    model = Model(Tokens(), part.method, part.task, flat)
    tokens = torch.full((2, 4), (1 << 24) + 1)
    assert model.run(tokens)[1].shape == (2, 3)
