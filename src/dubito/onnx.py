"""ONNX files: preprocessing, network, scores, calibration and policy of a model in one graph.

A file takes encoded inputs, uint8 or float32, in batches of any size. Its outputs are the columns
of `Prediction.tensors`, and `outputs`, those of the network. Where `Model.predict` raises because a
value is not finite, a file returns NaN and the class -1, and never accepts.

Before a file gets its name, onnxruntime runs it beside torch on random and extreme inputs. The
metadata describes task, columns and inputs, so that a file can be used without this package.
"""

import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_jsonable_python
from torch import Tensor, nn

from dubito import __version__, _checks
from dubito._extras import need
from dubito._files import atomic_write, json_text, make_folder
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.methods.mc_dropout import Sampled
from dubito.model import Model, Prediction
from dubito.policy import REASONS

__all__ = ["export"]

#: largest difference from torch, relative for values above 1
TOLERANCE = 1e-4
FORMAT = "dubito-onnx-2"
#: versions of 2022, which onnxruntime 1.14 and later read
OPSET, IR = 18, 8
INPUT, BATCH = "inputs", "batch"
LOGGER = "torch.onnx._internal.exporter._registration"
#: limit of a protocol buffer
MAX_BYTES = (1 << 31) - 1
#: operation in an error of torch, and colors
OPERATION, COLORS = re.compile(r"OpOverload\(op='([\w.]+)'"), re.compile(r"\x1b\[[\d;]*m")
#: samples of each kind in a check, and the spread of numbers in standard deviations
EACH, SPREADS = 8, (0.0, 1.0, 10.0, 1000.0)
#: indices that any network takes
FEW = 2

#: column -> its description in a file
COLUMNS = {
    "probability": "calibrated probability of the predicted class",
    "probs": "calibrated probability of each class",
    "lower": "lower end of the calibrated interval",
    "upper": "upper end of the calibrated interval",
    "set": "which classes are in the prediction set; none if a value is not finite",
    "accepted": "whether the policy accepts the prediction",
    "reason": "reason of the decision, an index into `reasons`",
    "outputs": "outputs of the network",
}


@dataclass(frozen=True)
class Exported:
    """A written file.

    Args:
        size: Size in bytes.
        metadata: Metadata of the file; values are JSON.
        difference: Largest difference from torch, relative for values above 1; at most 1e-4.
    """

    path: Path
    size: int
    metadata: Mapping[str, str] = field(repr=False)
    difference: float


def export(
    model: Model,
    path: str | os.PathLike[str],
    *,
    scores: Sequence[str] | None = None,
    floats: bool = False,
) -> Exported:
    """Write a model as an .onnx file.

    Args:
        model: Any model whose method does not sample.
        path: File to write, ending with .onnx.
        scores: Names of further scores.
        floats: Take images as float32 from 0 to 1 in place of uint8 from 0 to 255.

    Raises:
        DubitoError: If the network has no graph, or if the file would differ from torch.
    """
    path = Path(path)
    if path.suffix.lower() != ".onnx":
        raise DubitoError(f"path must end with .onnx, but is {str(path)!r}")
    make_folder(path.parent)
    content, metadata, difference = build(model, scores, floats)
    atomic_write(path, content)
    return Exported(path, len(content), metadata, difference)


@torch.no_grad()
def build(
    model: Model, scores: Sequence[str] | None = None, floats: bool = False
) -> tuple[bytes, dict[str, str], float]:
    """Return the content of a file, its metadata, and the largest difference from torch.

    Args:
        model: Any model whose method does not sample.
        scores: Names of further scores.
        floats: Take images as float32 from 0 to 1 in place of uint8 from 0 to 255.
    """
    if any(isinstance(module, Sampled) for module in model.network.modules()):
        raise DubitoError(
            "mc_dropout samples its predictions, which an ONNX file cannot repeat: use an ensemble"
        )
    for package in ("onnx", "onnxruntime", "onnxscript"):
        need(package, "onnx")
    for name in scores or ():
        _checks.one_of((*model.method.scores(model.task), *model.scores), name, "score")
    graph = _Graph(model, scores)
    samples = _samples(model, floats)
    content, metadata = _serialize(graph, samples[:3])
    return content, metadata, _check(content, graph, samples)


class Session:
    """Runs a file with onnxruntime, on the CPU.

    Args:
        content: Content of the file.
        threads: Threads of one computation.
    """

    def __init__(self, content: bytes, threads: int) -> None:
        runtime = need("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        self._session = runtime.InferenceSession(content, options, providers=providers)
        self._names = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name."""
        values = self._session.run(self._names, {INPUT: inputs.numpy()})
        return dict(zip(self._names, map(torch.from_numpy, values), strict=True))


# --- the graph ---


class _Graph(nn.Module):
    """Encoded inputs (N, *shape) to the columns of a prediction, and the network's outputs."""

    def __init__(self, model: Model, scores: Sequence[str] | None) -> None:
        super().__init__()
        self.model = deepcopy(model).cpu().float().eval().requires_grad_(False)
        self.scores = scores
        for name in self.model.scores.keys() - self.read_by_policy - {*(scores or ())}:
            del self.model.scores[name]  # it need not have a graph

    @property
    def read_by_policy(self) -> set[str]:
        """Names of the scores that the policy reads."""
        policy = self.model.policy
        thresholds = () if policy is None else (policy.threshold, policy.ood_threshold)
        return {threshold.score for threshold in thresholds if threshold is not None}

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        features, outputs = self.model.run(inputs)
        return {**self.columns(inputs, features, outputs), "outputs": outputs}

    def predict(self, inputs: Tensor, features: Tensor | None, outputs: Tensor) -> Prediction:
        """Read outputs of the network."""
        in_range = self.model.preprocessing.inputs.in_range(inputs)
        return self.model.prediction(self.model.distribution(features, outputs), in_range)

    def columns(
        self, inputs: Tensor, features: Tensor | None, outputs: Tensor
    ) -> dict[str, Tensor]:
        """Return the columns, marked where a value is not finite."""
        columns = self.predict(inputs, features, outputs).tensors(self.scores)
        # Ends of intervals may be infinite.
        floats = [v.unsqueeze(-1).flatten(1) for v in columns.values() if v.is_floating_point()]
        is_number = ~torch.cat(floats, 1).isnan().any(1)
        valid = _all_finite(inputs.float()) & _all_finite(outputs) & is_number
        return {name: _marked(name, values, valid) for name, values in columns.items()}


def _all_finite(values: Tensor) -> Tensor:
    """Return which samples are finite: (N, ...) -> (N,)."""
    return values.isfinite().flatten(1).all(1)


def _marked(name: str, values: Tensor, valid: Tensor) -> Tensor:
    """Mark samples that are not valid."""
    mask = valid if values.ndim == 1 else valid[:, None]
    if values.dtype == torch.bool:
        return values & mask
    if values.is_floating_point():
        return torch.where(mask, values, torch.nan)
    return torch.where(valid, values, REASONS.index("out_of_range") if name == "reason" else -1)


# --- the file ---


def _serialize(graph: _Graph, example: Tensor) -> tuple[bytes, dict[str, str]]:
    """Return the content of the file and its metadata."""
    onnx = need("onnx", "onnx")
    names = list(graph(example))
    try:
        proto = _trace(graph, example, names)
    except Exception as error:  # torch raises errors of many kinds, with many lines
        _check_scores(graph, example)
        network = type(graph.model.network).__name__
        raise DubitoError(f"torch cannot export {network} as a graph: {_reason(error)}") from error
    size = proto.ByteSize()
    if size > MAX_BYTES:
        raise DubitoError(f"the network takes {size} bytes, but an .onnx file at most {MAX_BYTES}")
    dist = graph.model(example)
    columns = {name: _description(name, dist, graph.model) for name in names}
    for value in proto.graph.output:
        value.doc_string = columns[value.name]
    metadata = _metadata(graph.model, example, columns)
    proto.graph.input[0].doc_string = json.loads(metadata["inputs"])["values"]
    onnx.helper.set_model_props(proto, metadata)
    onnx.checker.check_model(proto)
    return proto.SerializeToString(deterministic=True), metadata


def _check_scores(graph: _Graph, example: Tensor) -> None:
    """Raise if a score is what torch cannot export."""
    features, outputs = graph.model.run(example)
    for name, score in graph.model.scores.items():
        try:
            _program(score, features, outputs)
        except Exception as error:
            remedy = "leave it out of --scores"
            if name in graph.read_by_policy:
                remedy = "choose another score for the policy (dubito calibrate)"
            reason = _reason(error)
            raise DubitoError(
                f"score {name!r} cannot be exported ({reason}): {remedy}, or rewrite it"
            ) from error


def _reason(error: BaseException) -> str:
    """Say in a line what torch cannot export."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = COLORS.sub("", str(error))
    if operation := OPERATION.search(text):
        return f"{operation[1]} has no ONNX form"
    if text.startswith("Constraints violated"):
        return "its graph is for batches of some sizes only"
    if "data-dependent" in text:
        return "its graph depends on the values of a tensor"
    return next(filter(str.strip, text.splitlines()), type(error).__name__)[:200]


def _trace(graph: _Graph, example: Tensor, names: Sequence[str]) -> Any:
    """Return the graph as an ONNX model, for batches of any size."""
    outputs = [f"output:{name}" for name in names]
    proto = _program(graph, example, input_names=[INPUT], output_names=outputs).model_proto
    _rename(proto.graph, names)
    _clean(proto)
    return proto


def _program(module: nn.Module, *args: Tensor | None, **names: Sequence[str]) -> Any:
    """Return a module as an ONNX program, for batches of any size."""
    batch = {0: torch.export.Dim(BATCH)}
    shapes = tuple(None if arg is None else batch for arg in args)
    with _quiet():
        traced = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
        return torch.onnx.export(
            traced,
            (),
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            custom_translation_table={torch.ops.aten.log1p.default: _log1p},
            **names,  # type: ignore[arg-type]
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence notes of torch about itself, and about packages that are not needed."""
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            deprecated = r"`isinstance\(treespec, LeafSpec\)` is deprecated"
            warnings.filterwarnings("ignore", deprecated, FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _rename(graph: Any, names: Sequence[str]) -> None:
    """Give the outputs their names; torch may have used these for values inside."""
    new = {name: f"inner:{name}" for name in names} | {f"output:{name}": name for name in names}
    for node in graph.node:
        node.input[:] = [new.get(value, value) for value in node.input]
        node.output[:] = [new.get(value, value) for value in node.output]
    for value in (*graph.output, *graph.initializer):
        value.name = new.get(value.name, value.name)


def _log1p(x: Any) -> Any:
    """Compute ln(1 + x), accurate for small x, which ONNX has no operation for.

    With u = 1 + x rounded, ln(u) x/(u - 1) corrects the rounding (Kahan).
    """
    op: Any = need("onnxscript", "onnx").opset18
    one = op.CastLike(1.0, x)
    u = op.Add(x, one)
    log = op.Log(u)
    near = op.Where(op.Equal(u, one), x, op.Mul(log, op.Div(x, op.Sub(u, one))))
    return op.Where(op.Equal(u, x), log, near)  # also infinity


def _clean(proto: Any) -> None:
    """Remove stack traces with the paths of this machine, and name the size of the batch."""
    graph = proto.graph
    proto.ir_version, proto.producer_version = IR, __version__
    graph.name = proto.producer_name = "dubito"
    del proto.metadata_props[:], graph.metadata_props[:], graph.value_info[:]
    for entry in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del entry.metadata_props[:]
        entry.doc_string = ""
    for value in (*graph.input, *graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = BATCH


def _metadata(model: Model, example: Tensor, columns: Mapping[str, str]) -> dict[str, str]:
    """Describe the file in JSON."""
    format, values = model.preprocessing.inputs, "numbers as in the data"
    if format.dtype == "int64":
        values = "indices as encoded"
    elif format.is_pixels:
        values = "pixels from 0 to 1" if example.is_floating_point() else "pixels from 0 to 255"
    content = {
        "format": FORMAT,
        "task": model.task,
        "inputs": {
            "shape": list(example.shape[1:]),
            "type": str(example.dtype).removeprefix("torch."),
            "values": f"{values}; normalization is in the graph",
        },
        "columns": columns,
        "reasons": list(REASONS),
        "method": METHODS.to_dict(model.method),
        "preprocessing": model.preprocessing,
        "calibration": model.calibration,
        "policy": model.policy,
        "versions": {"dubito": __version__, "torch": str(torch.__version__)},
    }
    return {name: json_text(part) for name, part in to_jsonable_python(content).items()}


def _description(name: str, dist: Distribution, model: Model) -> str:
    """Describe a column."""
    if name == "prediction" and model.task.kind == "classification":
        return "index of the most probable class; -1 if a value is not finite"
    if name == "prediction":
        return "mean of the target"
    if (base := name.rstrip("0123456789_")) in COLUMNS:
        return COLUMNS[base] + (f", of {name[len(base) :]}%" if name != base else "")
    unit = f", in {dist.unit}" if name in ("total", "aleatoric", "epistemic") else ""
    return f"score {name} before calibration{unit}; a higher value means more {dist.higher(name)}"


# --- the check ---


def _samples(model: Model, floats: bool) -> Tensor:
    """Draw random and extreme inputs, of the type that the file takes."""
    prepare = model.preprocessing
    shape, draw = prepare.shape, torch.Generator().manual_seed(0)
    if prepare.inputs.is_pixels:
        noise = torch.randint(256, (EACH, *shape), generator=draw)
        extremes = 255 * torch.randint(2, (EACH, *shape), generator=draw)
        levels = torch.tensor([0, 1, 127, 255]).view(-1, *[1] * len(shape)).expand(-1, *shape)
        values = torch.cat([noise, extremes, levels])
        return values / 255 if floats else values.to(torch.uint8)
    if prepare.inputs.dtype == "int64":
        count = getattr(prepare.inputs, "size", FEW)  # of a vocabulary
        tokens = torch.randint(count, (2 * EACH, *shape), generator=draw)
        tokens[EACH:, 1 + shape[0] // 2 :] = getattr(prepare.inputs, "padding", 0)
        return tokens
    axes = (-1, *[1] * (len(shape) - 1))
    mean = torch.tensor(prepare.mean or [0.0]).view(axes)
    std = torch.tensor(prepare.std or [1.0]).view(axes)
    spread = [factor * torch.randn(EACH, *shape, generator=draw) for factor in SPREADS]
    return (mean + std * torch.cat(spread)).float()


def _check(content: bytes, graph: _Graph, samples: Tensor) -> float:
    """Raise if the file differs from torch, and return the largest difference."""
    session = Session(content, torch.get_num_threads())
    if samples.is_floating_point():
        _check_invalid(session, samples[:2].clone())
    return max(_compare(session, graph, samples[:count]) for count in (1, 2, len(samples)))


def _check_invalid(session: Session, inputs: Tensor) -> None:
    """Raise if the file answers inputs that are not finite."""
    inputs[0].view(-1)[0], inputs[1].view(-1)[-1] = torch.nan, torch.inf
    columns = session(inputs)
    for name in columns.keys() - {"outputs"}:
        expected = _marked(name, columns[name], torch.zeros(2, dtype=torch.bool))
        if not columns[name].allclose(expected, equal_nan=True):
            raise DubitoError(f"no file was written: its {name!r} hides inputs that are not finite")


def _compare(session: Session, graph: _Graph, inputs: Tensor) -> float:
    columns = session(inputs)
    features, expected = graph.model.run(inputs)
    # At the edge of float32 rounding decides what is finite: compare where both are.
    valid = ~columns["total"].isnan() & ~graph(inputs)["total"].isnan()
    if not bool(valid[:EACH].any()):
        raise DubitoError("no file was written: its columns are not finite for ordinary inputs")
    inputs, expected = inputs[valid], expected[valid]
    features = None if features is None else features[valid]
    columns = {name: values[valid] for name, values in columns.items()}
    outputs = columns.pop("outputs")
    largest = _difference("outputs", outputs, expected, expected.abs().amax(-1, keepdim=True))
    # From the file's outputs on: the rounding of the network may grow in the columns.
    reference = graph.columns(inputs, features, outputs)
    clear = ~_close_calls(graph.model, graph.predict(inputs, features, outputs))
    for name, values in columns.items():
        expected = reference[name]
        if values.is_floating_point():
            largest = max(largest, _difference(name, values, expected, expected.abs()))
        elif not torch.equal(values[clear], expected[clear]):
            raise DubitoError(f"no file was written: its {name!r} would differ from torch")
    return largest


def _difference(name: str, values: Tensor, expected: Tensor, scale: Tensor) -> float:
    """Return the largest difference, relative to a scale above 1; equal infinities have none."""
    gap = (values - expected).abs() / scale.clamp_min(1)
    difference = torch.where(values == expected, 0.0, gap).max().item()
    if not difference <= TOLERANCE:
        raise DubitoError(
            f"no file was written: its {name!r} would differ from torch by {difference:.2g}, more "
            f"than {TOLERANCE:g}"
        )
    return difference


def _close_calls(model: Model, prediction: Prediction) -> Tensor:
    """Return for which samples rounding decides the class or the reason: bool (N,)."""
    close = torch.zeros(len(prediction), dtype=torch.bool)
    if model.task.kind == "classification":
        dist: Any = prediction.distribution
        first, second = dist.predictive.probs.topk(2, -1).values.unbind(-1)
        close |= first - second <= TOLERANCE
        for (quantile,) in model.calibration.quantiles if model.calibration else ():
            close |= ((dist.distances - quantile).abs() <= TOLERANCE * (1 + quantile)).any(-1)
    policy = model.policy
    for threshold in () if policy is None else (policy.threshold, policy.ood_threshold):
        if threshold is not None:
            values = prediction.score(threshold.score)
            close |= (values - threshold.value).abs() <= TOLERANCE * values.abs()
    if policy is not None and policy.max_width is not None and model.calibration is not None:
        width = model.calibration.width(prediction.distribution)
        ends = torch.stack(prediction.interval()).abs().amax(0)[..., 0]
        close |= (width - policy.max_width).abs() <= TOLERANCE * ends  # which may round
    return close
