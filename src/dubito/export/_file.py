"""From a bundle to the bytes of an .onnx file that explains itself."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dubito import _checks
from dubito.bundle import Bundle, versions
from dubito.export._graph import INVALID, Graph, takes_bytes
from dubito.policy import REASONS
from dubito.report import files

__all__ = ["FORMAT", "INPUT", "OPSET", "ExportError", "metadata", "needed", "serialised"]

FORMAT = "dubito-onnx-1"
#: of 2022: read by onnxruntime from 1.14 on
OPSET, IR = 18, 8
INPUT, BATCH = "inputs", "batch"
MOST_WORDS = 200  # characters of an error of torch's
LARGEST = (1 << 31) - 1  # bytes that one file of this format can hold
EXTRA = "export needs an extra: pip install 'dubito[onnx]'"

MEANING = {
    "label": f"the most probable class, an index into `classes`; {INVALID}: input not finite",
    "probs": "calibrated probabilities of the classes",
    "belief": "evidence for each class; with vacuity it sums to one",
    "max_prob": "largest probability before calibration; rises with confidence",
    "max_alpha": "largest Dirichlet parameter; rises with confidence",
    "alpha0": "all evidence and the prior; rises with confidence",
    "differential_entropy": "spread of the Dirichlet; rises with uncertainty",
    "mutual_information": "uncertainty that more evidence would remove, in nats",
    "expected_entropy": "uncertainty that more evidence would not remove, in nats",
    "entropy_of_mean": "total uncertainty before calibration, in nats",
    "vacuity": "lack of evidence, from 0 to 1",
    "dissonance": "conflict between classes, from 0 to 1",
    "accept": "whether the policy answers",
    "reason": "why: an index into `reasons`",
    "outputs": "what the network gives, before all else",
}


class ExportError(ValueError):
    """A network that can't be exported, or a file that would not say what torch says."""


def needed() -> tuple[Any, Any]:
    """The packages onnx and onnxruntime, or an error that says how to have them."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch writes the file with it
    except ImportError as error:
        raise ValueError(f"{EXTRA} ({error})") from error
    return onnx, onnxruntime


def metadata(bundle: Bundle, names: list[str], floats: bool) -> dict[str, str]:
    """What a user of the file alone can read, by name; all but the card and the format is JSON."""
    limits = bundle.limits.as_dict()
    told: dict[str, Any] = {
        "classes": list(bundle.classes),
        "method": bundle.config["method"],
        "inputs": {
            "shape": list(bundle.shape),
            "type": "uint8" if takes_bytes(bundle, floats) else "float32",
            "means": _means(bundle, floats),
            "features": _features(bundle),
        },
        "outputs": {name: MEANING[name] for name in names},
        "preprocessing": bundle.preprocessing.as_dict(),
        "calibration": limits["calibration"],
        "policy": limits["policy"],
        "reasons": list(REASONS),
        "versions": {"exported": versions(), "trained": bundle.config["versions"]},
    }
    plain = {key: json.dumps(files.plain(value), allow_nan=False) for key, value in told.items()}
    return {"format": FORMAT, **plain, "card": bundle.card}


def _means(bundle: Bundle, floats: bool) -> str:
    """What to put into the file, in words."""
    if takes_bytes(bundle, floats):
        return "bytes 0 to 255 as decoded; scaling and standardisation are in the graph"
    if bundle.preprocessing.pixels:
        return "numbers from 0 to 1, bytes divided by 255; standardisation is in the graph"
    return "numbers as in the data; standardisation is in the graph"


def _features(bundle: Bundle) -> list[str] | None:
    """What the inputs of a table are called, a category as column=category."""
    columns = bundle.preprocessing.columns
    if columns is None:
        return None
    named: list[str] = []
    for column in columns.columns:
        words = column.categories
        named += [column.name] if words is None else [f"{column.name}={word}" for word in words]
    return named


def serialised(
    bundle: Bundle, floats: bool, measures: Sequence[str] | None = None
) -> tuple[bytes, dict[str, str]]:
    """The file's content, and its metadata."""
    onnx, _ = needed()
    graph = Graph(bundle, measures).eval()
    kind = torch.uint8 if takes_bytes(bundle, floats) else torch.float32
    example = torch.zeros(3, *bundle.shape, dtype=kind)
    with torch.no_grad():
        names = list(graph(example))
    try:
        proto = _traced(graph, example, names)
    except Exception as error:  # torch raises errors of many kinds, and long ones
        words = next(filter(str.strip, str(error).splitlines()), type(error).__name__)
        network = type(bundle.model).__name__
        raise ExportError(
            f"torch can't write {network} as a graph: {words[:MOST_WORDS]}"
        ) from error
    size = proto.ByteSize()
    if size > LARGEST:
        raise ValueError(f"the network takes {size} bytes, but an .onnx file holds up to {LARGEST}")
    _clean(proto)
    told = metadata(bundle, names, floats)
    _explain(onnx, proto, told)
    onnx.checker.check_model(proto)
    return proto.SerializeToString(deterministic=True), told


def _traced(graph: Graph, example: torch.Tensor, names: list[str]) -> Any:
    """The graph as a model of ONNX, for batches of one or more."""
    with torch.no_grad(), _quiet():
        traced = torch.export.export(
            graph, (example,), dynamic_shapes=({0: torch.export.Dim(BATCH)},), strict=False
        )
        written = torch.onnx.export(
            traced, (), dynamo=True, opset_version=OPSET, verbose=False, input_names=[INPUT],
            output_names=names, custom_translation_table={torch.ops.aten.log1p.default: _log1p},
        )  # fmt: skip
    assert written is not None
    return written.model_proto


def _log1p(x: Any) -> Any:
    """ln(1 + x), to the last digits also for small x; ONNX has no such operation.

    With u the rounded 1 + x, what ln(u) misses of it is the ratio x/(u - 1) (Kahan).
    """
    from onnxscript import opset18

    op: Any = opset18  # its types know constants of a graph, and no numbers
    one = op.CastLike(1.0, x)
    u = op.Add(x, one)
    log = op.Log(u)
    near = op.Where(op.Equal(u, one), x, op.Mul(log, op.Div(x, op.Sub(u, one))))
    return op.Where(op.Equal(u, x), log, near)  # also for infinity, whose ratio is not a number


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of packages that are not needed and of itself."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)  # it tells of each operation of torchvision that it can't have
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning
            )
            yield
    finally:
        log.setLevel(level)


def _clean(proto: Any) -> None:
    """Without what torch notes for its developers: stack traces, with the paths of this machine."""
    proto.ir_version = IR
    for holder in (proto, proto.graph):
        del holder.metadata_props[:]
    for part in ("node", "input", "output", "initializer", "value_info"):
        for one in getattr(proto.graph, part):
            del one.metadata_props[:]
            one.doc_string = ""
    del proto.graph.value_info[:]
    for one in (*proto.graph.input, *proto.graph.output):
        for side in one.type.tensor_type.shape.dim:
            if side.dim_param:  # the only size that is free, under a name that torch drew
                side.dim_param = BATCH


def _explain(onnx: Any, proto: Any, told: Mapping[str, str]) -> None:
    proto.graph.name = "dubito"
    proto.producer_name = "dubito"
    proto.producer_version = json.loads(told["versions"])["exported"]["dubito"]
    meanings = json.loads(told["outputs"])
    _checks.one_of([one.name for one in proto.graph.input], INPUT, "input of the graph")
    proto.graph.input[0].doc_string = json.loads(told["inputs"])["means"]
    for one in proto.graph.output:
        one.doc_string = meanings[one.name]
    onnx.helper.set_model_props(proto, dict(told))
