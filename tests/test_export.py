"""ONNX files: they say what torch says, explain themselves, and are not written when they don't."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dubito import _legacy as methods
from dubito import bundle
from dubito import export as exporting
from dubito.bundle import Bundle, Column, Columns, Preprocessing
from dubito.distributions import Dirichlet
from dubito.export import TOLERANCE, Exported, ExportError, to_onnx
from dubito.export._check import _judged, check, samples
from dubito.export._file import _log1p, _quiet, metadata
from dubito.export._graph import Graph, _blocks, _dissonance
from dubito.policy import REASONS
from tests.limits import policy, scaling, temperature

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CLASSES = ("ant", "bee", "cat")
SHAPES = {"mlp": (5,), "convnet": (1, 20, 20), "vgg16": (3, 32, 32)}
EXPORTED = [name for name in methods.METHODS if name != "mc_dropout"]


def made(folder: Path, method: str, backbone: str = "mlp", **given: Any) -> Bundle:
    """A bundle of random weights, calibrated, with a policy that finds some of each reason."""
    torch.manual_seed(3)
    chosen = methods.method(method, **given.pop("options", {}))
    shape, counts = SHAPES[backbone], [50] * len(CLASSES)
    named = {"name": backbone, **({"hidden": [8]} if backbone == "mlp" else {})}
    model = bundle.build(chosen, named, shape, len(CLASSES), counts).eval()
    said = chosen.predict(model, torch.randn(64, *shape))
    unfamiliar = next((n for n in ("vacuity", "mutual_information") if n in said.available), None)
    familiar = None if unfamiliar is None else (unfamiliar, _middle(said.measure(unfamiliar)))
    evidential = hasattr(said, "alpha") and said.prior > 0
    given.setdefault(
        "preprocessing", Preprocessing(mean=(0.1,) * shape[0], scale=(0.5,) * shape[0])
    )
    bundle.save(
        folder, model, method=chosen, classes=CLASSES, shape=shape, backbone=named,
        class_counts=counts, calibration=scaling() if evidential else temperature(0.7),
        policy=policy(("max_prob", _middle(said.max_prob)), familiar),
        **given,
    )  # fmt: skip
    return bundle.load(folder)


def _middle(values: Tensor) -> float:
    return float(values.detach().median())


def ran(path: Path, *batches: Any) -> list[dict[str, np.ndarray[Any, Any]]]:
    """What a file tells of some batches."""
    session = onnxruntime.InferenceSession(path)
    names = [one.name for one in session.get_outputs()]
    told = [session.run(names, {"inputs": np.asarray(x)}) for x in batches]
    return [dict(zip(names, values, strict=True)) for values in told]


def compare(
    loaded: Bundle,
    told: dict[str, np.ndarray[Any, Any]],
    x: Tensor,
    measures: Sequence[str] | None = None,
) -> None:
    """What a file told is what the bundle's own functions tell."""
    said = loaded.predict(x)
    wanted = {name: said.measure(name) for name in measures or said.available}
    wanted["probs"] = loaded.calibrated(said).probs
    if "vacuity" in said.available:
        wanted["belief"] = said.belief
    assert set(told) == {*wanted, "label", "accept", "reason", "outputs"}
    for name, value in wanted.items():
        assert told[name].dtype == np.float32
        np.testing.assert_allclose(told[name], value.numpy(), TOLERANCE, TOLERANCE, err_msg=name)
    decided = loaded.decide(said)
    assert (told["label"] == said.label.numpy()).all()
    assert (told["reason"] == decided.codes.numpy()).all()
    assert (told["accept"] == decided.accepted.numpy()).all()


CASES = [
    # method, backbone, hyperparameters, measures
    pytest.param("softmax", "vgg16", {}, None, id="vgg16"),
    pytest.param(
        "posterior_network", "convnet", {"flow_length": 2}, ["max_prob", "vacuity"], id="flows"
    ),
    # all measures take torch some ten seconds each; tests/cli has one that always runs
    *[
        pytest.param(method, backbone, {}, None, marks=pytest.mark.accuracy_full)
        for method in EXPORTED
        for backbone in SHAPES
    ],
]


@pytest.mark.parametrize(("method", "backbone", "options", "measures"), CASES)
def test_a_file_says_what_torch_says(
    method: str,
    backbone: str,
    options: dict[str, Any],
    measures: list[str] | None,
    tmp_path: Path,
) -> None:
    loaded = made(tmp_path / "bundle", method, backbone, options=options)
    done = to_onnx(loaded, tmp_path / "model.onnx", measures=measures)
    found = done.differences
    assert max(found.network, found.measures) <= TOLERANCE
    assert done.size == done.path.stat().st_size
    batches = [torch.randn(count, *loaded.shape) for count in (1, 9)]  # the batch is free
    for x, told in zip(batches, ran(done.path, *batches), strict=True):
        compare(loaded, told, x, measures)
    print(method, backbone, found)


# --- what a file takes, and how it explains itself -----------------------------------------------


COLUMNS = Columns(columns=(Column("size"), Column("hue", ("red", "sky", "tan", "blue"))))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Exported]:
    """A bundle of a table's rows, and its file."""
    folder = tmp_path_factory.mktemp("table")
    prepared = Preprocessing(
        columns=COLUMNS, mean=(1e6, 0.0, 0.0, 0.0, 0.0), scale=(3.0, 1.0, 1.0, 1.0, 1.0)
    )
    loaded = made(folder / "bundle", "label_smoothing", preprocessing=prepared)
    return loaded, to_onnx(loaded, folder / "model.onnx")


def test_rows_are_standardised_in_the_graph(table: tuple[Bundle, Exported]) -> None:
    loaded, done = table
    rows = COLUMNS.encode([["1000003.25", "sky"], ["999998", "tan"], ["1000001", "mauve"]]).inputs
    compare(loaded, ran(done.path, rows)[0], torch.from_numpy(rows))


def test_a_file_explains_itself(table: tuple[Bundle, Exported]) -> None:
    loaded, done = table
    held = onnxruntime.InferenceSession(done.path).get_modelmeta().custom_metadata_map
    assert held == dict(done.metadata)
    assert held["format"] == "dubito-onnx-1"
    told = {key: json.loads(value) for key, value in held.items() if key not in ("format", "card")}
    assert told["classes"] == list(CLASSES)
    assert told["method"] == loaded.config["method"]
    assert told["inputs"]["type"] == "float32"
    assert told["inputs"]["features"] == ["size", "hue=red", "hue=sky", "hue=tan", "hue=blue"]
    assert told["policy"] == loaded.limits.as_dict()["policy"]
    assert told["calibration"] == temperature(0.7).model_dump(mode="json")
    assert told["reasons"] == list(REASONS)
    assert told["versions"]["trained"] == told["versions"]["exported"] == bundle.versions()
    assert held["card"] == loaded.card
    names = ["label", "probs", "max_prob", "entropy_of_mean", "accept", "reason", "outputs"]
    assert list(told["outputs"]) == names


def test_a_file_is_for_any_batch_and_tells_nothing_of_this_machine(
    table: tuple[Bundle, Exported],
) -> None:
    content = table[1].path.read_bytes()
    assert str(Path(__file__).parents[1]).encode() not in content
    assert b"site-packages" not in content
    proto = onnx.load_from_string(content)
    assert (proto.opset_import[0].version, proto.ir_version) == (18, 8)
    for one in (*proto.graph.input, *proto.graph.output):
        assert one.type.tensor_type.shape.dim[0].dim_param == "batch"
        assert one.doc_string


def test_what_is_not_finite_is_not_answered(table: tuple[Bundle, Exported]) -> None:
    x = samples(table[0], floats=False)[:3]
    x[1, 2], x[2, 0] = math.nan, -math.inf
    (told,) = ran(table[1].path, x)
    assert told["label"][0] >= 0
    assert (told["label"][1:] == -1).all()
    assert not told["accept"][1:].any()
    for name in ("probs", "max_prob", "entropy_of_mean"):
        assert np.isfinite(told[name][0]).all()
        assert np.isnan(told[name][1:]).all()


@pytest.mark.parametrize("floats", [False, True])
def test_images_are_bytes_or_numbers(floats: bool, tmp_path: Path) -> None:
    prepared = Preprocessing(pixels=True, mean=(0.4,) * 5, scale=(0.2,) * 5)
    loaded = made(tmp_path / "bundle", "softmax", preprocessing=prepared)
    pixels = torch.randint(256, (6, 5), dtype=torch.uint8)
    with torch.no_grad():
        told = Graph(loaded)(pixels / 255 if floats else pixels)
    compare(loaded, {name: value.numpy() for name, value in told.items()}, pixels)
    about = metadata(loaded, list(told), floats)
    assert json.loads(about["inputs"])["type"] == ("float32" if floats else "uint8")
    drawn = samples(loaded, floats)
    assert drawn.dtype == (torch.float32 if floats else torch.uint8)
    assert (drawn.min(), drawn.max()) == (0, 1 if floats else 255)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [("mc_dropout", {}), ("ensemble", {"member": "mc_dropout", "size": 2})]
)
def test_methods_that_draw_are_refused(options: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    loaded = made(tmp_path / "bundle", options[0], options=options[1])
    with pytest.raises(ValueError, match=r"'mc_dropout' draws its predictions.* 'iedl', 'edl'"):
        to_onnx(loaded, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def altered(content: bytes, change: Any) -> bytes:
    """A file whose largest matrix of weights is another."""
    proto = onnx.load_from_string(content)
    matrix = max(proto.graph.initializer, key=lambda one: math.prod(one.dims))
    values = change(onnx.numpy_helper.to_array(matrix).copy())
    matrix.CopyFrom(onnx.numpy_helper.from_array(values, matrix.name))
    found: bytes = proto.SerializeToString()
    return found


@pytest.mark.parametrize("factor", [1.001, math.nan])
def test_a_wrong_file_is_not_written(
    factor: float, table: tuple[Bundle, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, done = table
    wrong = altered(done.path.read_bytes(), lambda weights: weights * np.float32(factor))
    monkeypatch.setattr(exporting, "serialised", lambda *_: (wrong, done.metadata))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"what was there")
    with pytest.raises(ExportError, match=r"no file was written: .*(differ|torch fails)"):
        to_onnx(loaded, path)
    assert path.read_bytes() == b"what was there"
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


def test_wrong_decisions_are_found(table: tuple[Bundle, Exported]) -> None:
    loaded, done = table
    x = samples(loaded, floats=False)
    assert check(done.path.read_bytes(), loaded, floats=False) == done.differences
    stricter = "max_prob", float(loaded.predict(x).max_prob.sort().values[-2])
    limits = bundle.Limits(loaded.calibration, policy(stricter))
    other = Bundle(**{**vars(loaded), "limits": limits})
    with pytest.raises(ExportError, match="decisions in it would differ"):
        check(done.path.read_bytes(), other, floats=False)


def test_measures_that_are_not_there_are_named(tmp_path: Path) -> None:
    loaded = made(tmp_path / "bundle", "softmax")
    with pytest.raises(ValueError, match="unknown measure of this bundle 'vacuity'; known: 'max"):
        to_onnx(loaded, tmp_path / "model.onnx", measures=["vacuity"])
    limits = bundle.Limits(None, policy(("vacuity", 0.5)))
    other = Bundle(**{**vars(loaded), "limits": limits})
    with pytest.raises(ValueError, match="unknown measure of the policy 'vacuity'; known:"):
        to_onnx(other, tmp_path / "model.onnx")


def test_chosen_measures_and_those_of_the_policy(tmp_path: Path) -> None:
    loaded = made(tmp_path / "bundle", "iedl")  # its policy looks at max_prob and vacuity
    with torch.no_grad():
        told = Graph(loaded, ["entropy_of_mean"])(torch.randn(4, 5))
    assert list(told) == ["label", "probs", "belief", "max_prob", "entropy_of_mean", "vacuity",
                          "accept", "reason", "outputs"]  # fmt: skip


class Branching(nn.Module):
    """A network that looks at its values, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return y if bool(y.sum() > 0) else -y


def test_a_network_that_has_no_graph_is_named(tmp_path: Path) -> None:
    bundle.save(tmp_path / "b", Branching(), method="softmax", classes=("a", "b"), shape=(4,))
    loaded = bundle.load(tmp_path / "b", factory=lambda shape, outputs: Branching())
    with pytest.raises(ExportError, match="torch can't write Branching as a graph: ") as caught:
        to_onnx(loaded, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)


def test_a_missing_extra_and_bad_paths_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = made(tmp_path / "bundle", "softmax")
    with pytest.raises(ValueError, match=r"path must end with \.onnx, but is '.*model\.pt'"):
        to_onnx(loaded, tmp_path / "model.pt")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ValueError, match="a folder is in the way"):
        to_onnx(loaded, tmp_path / "folder.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'dubito\[onnx\]'"):
        to_onnx(loaded, tmp_path / "model.onnx")


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 600])
def test_dissonance_in_fixed_blocks(classes: int) -> None:
    alpha = 1 + 10 * torch.rand(7, classes) * (torch.rand(7, classes) < 0.5)
    dist = Dirichlet(alpha)
    torch.testing.assert_close(_dissonance(dist.belief), dist.dissonance)
    blocks = list(_blocks(classes))
    assert [i for block in blocks for i in range(classes)[block]] == list(range(classes))
    assert len(blocks) == (1 if classes < 100 else 6)


@pytest.mark.parametrize("method", ["iedl", "kl_pn"])
def test_the_graph_in_torch_says_what_the_bundle_says(method: str, tmp_path: Path) -> None:
    loaded, x = made(tmp_path, method), torch.randn(9, 5)
    with torch.no_grad():
        told = {name: value.numpy() for name, value in Graph(loaded)(x).items()}
    compare(loaded, told, x)


def test_what_torch_refuses_is_judged(tmp_path: Path) -> None:
    loaded = made(tmp_path, "kl_pn")  # alpha = exp(outputs), which may underflow
    outputs = torch.tensor(
        [[1.0, 2.0, 3.0], [0.0, -1e4, 0.0], [0.0, -100.0, 0.0], [0, math.inf, 0]]
    )
    usable, refused = _judged(loaded, outputs)
    assert usable.tolist() == [True, False, False, False]
    assert refused.tolist() == [False, True, False, True]
    with pytest.raises(ValueError, match="alpha must be > 0"):
        loaded.calibrated(loaded.method.prediction(outputs[1:2]))


class Log1p(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log1p(x)


def test_log1p_keeps_the_digits_of_small_numbers() -> None:
    x = torch.cat([torch.logspace(-38, 38, 500), torch.tensor([0.0, -0.5, math.inf])])
    with _quiet():
        written = torch.onnx.export(
            Log1p().eval(), (x,), dynamo=True, opset_version=18, verbose=False,
            custom_translation_table={torch.ops.aten.log1p.default: _log1p},
        )  # fmt: skip
    assert written is not None
    session = onnxruntime.InferenceSession(written.model_proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    np.testing.assert_allclose(found, np.log1p(x.double().numpy()), rtol=5e-7)
