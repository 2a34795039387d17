"""ONNX files equal torch, describe themselves, and are not written if they differ."""

import json
import logging
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito import methods
from dubito.calibration import Calibration
from dubito.distributions import Dirichlet
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, ImageFormat, Preprocessing, TableFormat
from dubito.formats.tables import Column
from dubito.formats.text import TextFormat
from dubito.model import Model
from dubito.onnx import Exported
from dubito.policy import REASONS
from dubito.scores import SCORES, Score
from dubito.tasks import Classification, Regression, Task

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

Arrays = dict[str, np.ndarray[Any, Any]]
TOLERANCE = 1e-4
SAMPLING = ("mc_dropout",)
CLASSES = Classification(classes=("ant", "bee", "cat"), counts=(90, 60, 50))
NUMBERS = Regression(names=("a", "b"), mean=(10.0, -3.0), std=(5.0, 0.1), tolerance=(4.0, 0.1))
FLAT = Preprocessing(
    inputs=ArrayFormat(shape=(5,), low=(-3,) * 5, high=(5,) * 5), mean=(1,) * 5, std=(2,) * 5
)


def build(
    method: Any, preprocessing: Preprocessing = FLAT, backbone: Any = None, *, limits: bool = True
) -> Model:
    """Return a model with random weights, calibrated, with a policy that uses all reasons."""
    method = methods.METHODS.build(method)
    task: Task = CLASSES if "classification" in method.tasks else NUMBERS
    backbone = {"name": "mlp", "hidden": [8]} if backbone is None else backbone
    model = Model.build(method, task, preprocessing, backbone, seed=3).eval()
    if limits:
        inputs = draw(model, 200)
        predicted = model.predict(inputs)
        target = predicted.labels.copy()
        target[::5] = target[7]  # a fifth of the targets are wrong
        model.calibrate(predicted, target, levels=(0.9, 0.5))
        model.fit_policy(predicted, coverage=0.5, false_alarms=0.2)
    return model


def draw(model: Model, count: int, spread: float = 1.0) -> Tensor:
    """Draw inputs like the training data."""
    generator, shape = torch.Generator().manual_seed(count), (count, *model.preprocessing.shape)
    if model.preprocessing.inputs.is_pixels:
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return 1 + 2 * spread * torch.randn(shape, generator=generator)


def run(path: Path, inputs: Any) -> Arrays:
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"inputs": np.asarray(inputs)}), strict=True))


def assert_equals_torch(
    model: Model, exported: Exported, inputs: Tensor, scores: Any = None, file_inputs: Any = None
) -> Arrays:
    """Compare the columns of a file with those of `Model.predict`."""
    columns = run(exported.path, inputs if file_inputs is None else file_inputs)
    outputs = columns.pop("outputs")
    expected = {n: v.numpy() for n, v in model.predict(inputs).tensors(scores).items()}
    assert list(columns) == list(expected)
    for name, values in expected.items():
        assert columns[name].dtype == values.dtype
        np.testing.assert_allclose(columns[name], values, TOLERANCE, TOLERANCE, err_msg=name)
    assert outputs.shape[0] == len(inputs)
    return columns


# --- equality ---


NAMES = sorted(methods.METHODS.keys() - {*SAMPLING, "label_smoothing", "ensemble"})
ENSEMBLES = [{"name": "ensemble", "member": member, "size": 2} for member in ("softmax", "der")]


# The table below is one of label smoothing.
@pytest.mark.parametrize("method", [*NAMES, *ENSEMBLES], ids=str)
def test_every_method_equals_torch(method, tmp_path):
    model = build(method)
    scores: list[str] | None = None
    if method == "edl":  # further scores, one of them post hoc
        scores = ["vacuity", "dissonance", "energy"]
        model.add_scores(["energy"], draw(model, 10), ["ant"] * 10)
    exported = dubito.export(model, tmp_path / "model.onnx", scores=scores)
    assert 0 <= exported.difference <= TOLERANCE
    inputs = draw(model, 50)
    columns = assert_equals_torch(model, exported, inputs, scores)
    assert_equals_torch(model, exported, inputs[:1], scores)
    assert set(np.unique(columns["reason"])) == {0, 1, 2}
    far = assert_equals_torch(model, exported, draw(model, 20, spread=20.0), scores)
    assert not far["accepted"].any()
    assert REASONS[far["reason"].max()] == "out_of_range"


@pytest.mark.parametrize("method", ["der", "quantile"])
def test_a_policy_about_widths_is_in_the_graph(method, tmp_path):
    task = Regression(names=("a",), mean=(10.0,), std=(5.0,))
    model = Model.build(method, task, FLAT, {"name": "mlp", "hidden": [8]}, seed=3).eval()
    x = draw(model, 300)
    noise = np.random.default_rng(0).normal(size=300)
    target = model.predict(x).point[:, 0].numpy() + 0.01 * noise  # q of quantiles is negative
    model.calibrate(x, target, levels=(0.8, 0.5))
    width = model.calibration.width(model.predict(x).distribution)
    model.fit_policy(x, max_width=width.median().item() + 1e-3)
    assert (min(model.calibration.quantiles[0]) < 0) == (method == "quantile")
    columns = assert_equals_torch(
        model, dubito.export(model, tmp_path / "model.onnx"), draw(model, 50)
    )
    assert set(np.unique(columns["reason"])) >= {0, 1}


def wrapped() -> Model:
    """Return a model of a network that does not say its features."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    return Model(network, methods.METHODS.build("edl"), CLASSES, FLAT).eval()


@pytest.mark.parametrize("make", [partial(build, "edl"), wrapped])
def test_scores_of_features_are_in_the_graph(make, tmp_path):
    model = make().add_scores(["vim"], draw(make(), 90), ["ant"] * 90)
    model.fit_policy(draw(model, 200), coverage=0.5, ood_score="vim")
    columns = assert_equals_torch(
        model, dubito.export(model, tmp_path / "model.onnx", scores=["vim"]),
        draw(model, 50), ["vim"],
    )  # fmt: skip
    assert columns["vim"].std() > 0


def test_mahalanobis_of_constant_features(tmp_path):
    model = build("edl", limits=False)
    for parameter in model.network.backbone.parameters():
        nn.init.zeros_(parameter)
    model.add_scores(["mahalanobis"], draw(model, 90), ["ant"] * 90)
    model.fit_policy(draw(model, 200), coverage=0.5, ood_score="mahalanobis")
    assert_equals_torch(model, dubito.export(model, tmp_path / "model.onnx"), draw(model, 9))


@pytest.mark.parametrize(
    ("method", "of_members"),
    [("iedl", False), ({"name": "ensemble", "member": "iedl", "size": 2}, True)],
)
def test_calibration_of_almost_no_evidence(method, of_members, tmp_path):
    model = build(method, limits=False)
    for name, parameter in model.network.named_parameters():
        if name.endswith("head.bias"):
            nn.init.constant_(parameter, -20.0)
    model.calibration = Calibration(theta=(12.0, -1.0), of_members=of_members)
    exported = dubito.export(model, tmp_path / "model.onnx")
    columns = assert_equals_torch(model, exported, draw(model, 50))
    np.testing.assert_allclose(columns["probs"].sum(-1), 1, rtol=1e-6)
    assert columns["probs"].std(0).max() > 0.01  # calibration tells apart what alpha does not
    assert (columns["probs"].argmax(-1) == columns["prediction"]).all()


def test_export_leaves_the_level_of_a_logger(tmp_path):
    logger = logging.getLogger(dubito.onnx.LOGGER)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        dubito.export(build("edl"), tmp_path / "a.onnx")
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_dissonance_of_many_classes_has_a_graph():
    class Dissonance(nn.Module):
        def forward(self, alpha: Tensor) -> Tensor:
            return Dirichlet(alpha).dissonance

    alpha = 1 + 10 * torch.rand(7, 150)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Dissonance(), (alpha,), dynamic_shapes=(batch,), strict=False)
    torch.testing.assert_close(program.module()(alpha[:2]), Dirichlet(alpha[:2]).dissonance)


PIXELS = ArrayFormat(shape=(1, 12, 12), dtype="uint8")


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("format", [ImageFormat(size=(12, 12), mode="L"), PIXELS])
def test_images_are_bytes_or_floats(format, floats, tmp_path):
    prepare = Preprocessing(inputs=format, mean=(0.4,), std=(0.2,))
    model = build("softmax", prepare, "convnet", limits=False)
    exported = dubito.export(model, tmp_path / "model.onnx", floats=floats)
    pixels = draw(model, 6)
    file_inputs = pixels.float() / 255 if floats else pixels
    assert "accepted" not in assert_equals_torch(model, exported, pixels, file_inputs=file_inputs)
    inputs = json.loads(exported.metadata["inputs"])
    assert inputs["type"] == ("float32" if floats else "uint8")
    assert ("pixels from 0 to 1;" in inputs["values"]) is floats


# --- the file ---


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Exported]:
    """Return a model of a table's rows, and its file."""
    columns = (
        Column(name="size", low=1e6 - 9, high=1e6 + 9),
        Column(name="hue", categories=("blue", "red", "sky", "tan")),
    )
    prepare = Preprocessing(
        inputs=TableFormat(columns=columns), mean=(1e6, 0, 0, 0, 0), std=(3, 1, 1, 1, 1)
    )
    model = build("label_smoothing", prepare, limits=False)
    rows = prepare.inputs.encode([{"size": 1e6 + i % 9, "hue": "red"} for i in range(40)]).inputs
    levels = {"levels": (0.9, 0.5), "quantiles": ((2.0,), (0.01,))}
    model.calibration = Calibration(theta=(0.3,), **levels)
    model.fit_policy(rows, coverage=0.5)
    return model, dubito.export(model, tmp_path_factory.mktemp("table") / "model.onnx")


def test_rows_of_a_table(table):
    model, exported = table
    rows = [
        {"size": 1000003.25, "hue": "sky"},
        {"size": 999998, "hue": "tan"},
        {"size": 1000001, "hue": "mauve"},
        {"size": 2e6, "hue": "red"},
    ]
    columns = assert_equals_torch(model, exported, model.preprocessing.inputs.encode(rows).inputs)
    assert columns["reason"].tolist()[2:] == [REASONS.index("out_of_range")] * 2


def test_metadata_describes_the_file(table):
    model, exported = table
    stored = onnxruntime.InferenceSession(exported.path).get_modelmeta().custom_metadata_map
    assert stored == dict(exported.metadata)
    content = {name: json.loads(text) for name, text in stored.items()}
    assert content["task"]["classes"] == ["ant", "bee", "cat"]
    assert content["method"] == methods.METHODS.to_dict(model.method)
    assert content["inputs"]["shape"] == [5]
    assert content["preprocessing"]["inputs"]["columns"][1]["categories"][2] == "sky"
    assert content["policy"]["guarantee"]["level"] == 0.5
    assert content["reasons"] == list(REASONS)
    names = ["prediction", "probability", "set", "set50", "total", "aleatoric", "epistemic"]
    assert list(content["columns"]) == [*names, "accepted", "reason", "probs", "outputs"]
    assert content["columns"]["set50"].endswith(", of 50%")
    assert "nats" in content["columns"]["total"]


def test_file_is_portable(table):
    content = table[1].path.read_bytes()
    assert len(content) == table[1].size
    assert b"site-packages" not in content
    assert str(Path(__file__).parents[1]).encode() not in content
    proto = onnx.load_from_string(content)
    assert (proto.opset_import[0].version, proto.ir_version) == (18, 8)
    for value in (*proto.graph.input, *proto.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
        assert value.doc_string


def test_inputs_that_are_not_finite_are_not_answered(table):
    inputs = torch.tensor([[1e6, 0, 1, 0, 0]]).repeat(3, 1)
    inputs[1, 2], inputs[2, 0] = math.nan, -math.inf
    columns = run(table[1].path, inputs)
    assert columns["prediction"][0] >= 0
    assert (columns["prediction"][1:] == -1).all()
    assert not columns["accepted"][1:].any()
    assert columns["set"].sum(1)[0] > 0
    assert not columns["set"][1:].any()
    for name in ("probs", "total", "epistemic"):
        assert np.isfinite(columns[name][0]).all()
        assert np.isnan(columns[name][1:]).all()


# --- errors ---


@pytest.mark.parametrize(
    "method", ["mc_dropout", {"name": "ensemble", "member": "mc_dropout", "size": 2}]
)
def test_methods_that_sample_are_refused(method, tmp_path):
    with pytest.raises(ValueError, match="mc_dropout samples its predictions"):
        dubito.export(build(method, limits=False), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("factor", [1.001, math.nan])
def test_a_file_that_differs_is_not_written(factor, tmp_path, monkeypatch):
    """A runtime that computes something else leaves the old file in place."""

    class Session(onnxruntime.InferenceSession):
        def __init__(self, content: bytes, *args: Any, **options: Any) -> None:
            proto = onnx.load_from_string(content)
            matrix = max(proto.graph.initializer, key=lambda tensor: math.prod(tensor.dims))
            values = onnx.numpy_helper.to_array(matrix) * np.float32(factor)
            matrix.CopyFrom(onnx.numpy_helper.from_array(values, matrix.name))
            super().__init__(proto.SerializeToString(), *args, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    with pytest.raises(DubitoError, match="no file was written"):
        dubito.export(Model(nn.Linear(5, 3), methods.Softmax(), CLASSES, FLAT), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class Branching(nn.Module):
    """A network that depends on its values, which a graph cannot express."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if bool(y.sum() > 0) else -y


def test_a_network_without_a_graph(tmp_path):
    model = Model(Branching(), methods.Softmax(), CLASSES, FLAT)
    with pytest.raises(DubitoError, match="torch cannot export Branching as a graph: ") as caught:
        dubito.export(model, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("its graph depends on the values of a tensor")


class Median(Score):
    """A score of an operation that ONNX does not have."""

    needs_fit = False

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        return features.kthvalue(2).values


def test_a_score_without_a_graph_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(SCORES, "_entries", {**SCORES._entries, "median": Median})
    model = build("softmax").add_scores(["median"])
    with pytest.raises(DubitoError) as caught:
        dubito.export(model, tmp_path / "model.onnx", scores=["median"])
    assert str(caught.value) == (
        "score 'median' cannot be exported (aten.kthvalue has no ONNX form): leave it out of "
        "--scores, or rewrite it"
    )
    assert_equals_torch(model, dubito.export(model, tmp_path / "model.onnx"), draw(model, 9))
    model.fit_policy(draw(model, 200), coverage=0.5, ood_score="median")
    with pytest.raises(DubitoError, match=r"\): choose another score for the policy \(dubito cal"):
        dubito.export(model, tmp_path / "model.onnx")


def test_bad_arguments(tmp_path, monkeypatch):
    model = build("softmax", limits=False)
    with pytest.raises(ValueError, match=r"path must end with \.onnx, but is '.*model\.pt'"):
        dubito.export(model, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="unknown score 'vacuity'; known: 'max_prob'"):
        dubito.export(model, tmp_path / "model.onnx", scores=["vacuity"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'dubito\[onnx\]'"):
        dubito.export(model, tmp_path / "model.onnx")


def test_texts(tmp_path):
    """Indices of words are the inputs of the file; torch is compared with on indices, too."""
    format = TextFormat(vocabulary=("good", "bad", "film"), length=4)
    backbone = {"name": "embedding", "vocabulary": format.size, "size": 4, "hidden": [8]}
    model = build("iedl", Preprocessing(inputs=format), backbone, limits=False)
    exported = dubito.export(model, tmp_path / "model.onnx")
    described = json.loads(exported.metadata["inputs"])
    assert described["type"] == "int64"
    assert described["values"].startswith("indices")
    texts = ["a good film", "bad bad bad bad film"]
    encoded = model.preprocessing.inputs.encode(texts).inputs
    assert_equals_torch(model, exported, encoded)
