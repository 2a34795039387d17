"""ONNX files of a bundle: the network, its preprocessing, all measures and the policy in one graph.

The file (extra `onnx`) takes what decoding gives, bytes or numbers as the data has them, in batches
of one or more, and tells what `Bundle.predict`, `calibrated` and `decide` tell:

| output | shape | what |
| --- | --- | --- |
| label | (N,) int64 | the most probable class; -1 where an input is not finite |
| probs | (N, K) | calibrated probabilities |
| belief | (N, K) | before calibration, where the method has evidence |
| one for each measure | (N,) | before calibration, those that the method has |
| accept | (N,) bool | whether the policy answers, where there is one |
| reason | (N,) int64 | 0 accepted, 1 ambiguous, 2 unfamiliar |
| outputs | (N, K) | what the network gives; (N, M, K) for the M members of an ensemble |

Classes, method, policy and what else it takes to use the file alone stand in its metadata. Before a
file gets its name it is run beside torch; one that differs is not written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dubito.bundle import Bundle
from dubito.export._check import TOLERANCE, Differences, check
from dubito.export._file import OPSET, ExportError, needed, serialised
from dubito.export._graph import check_method
from dubito.report import files

__all__ = ["OPSET", "TOLERANCE", "Differences", "ExportError", "Exported", "to_onnx"]

SUFFIX = ".onnx"


@dataclass(frozen=True)
class Exported:
    """A file that was written, its size in bytes, its metadata, and how far it is from torch."""

    path: Path
    size: int
    metadata: Mapping[str, str] = field(repr=False)
    differences: Differences


def to_onnx(
    bundle: Bundle,
    path: str | os.PathLike[str],
    *,
    measures: Sequence[str] | None = None,
    floats: bool = False,
) -> Exported:
    """Write a bundle as an .onnx file, once it has been found to say what torch says.

    A bundle of images takes bytes from 0 to 255, or with `floats` numbers from 0 to 1. All others
    take float32 numbers as the data has them: standardisation is in the graph. With `measures` the
    file gives those alone, beside the ones that the policy looks at: it is smaller and faster.

    The file's outputs of the network may differ from torch's by 1e-4 of a sample's largest (or of
    one, if that is larger), and all else by 1e-4, relative for values above one, from what torch
    makes of the same outputs. An `ExportError` says what would differ by more.
    """
    place = Path(path)
    if place.suffix.lower() != SUFFIX:
        raise ValueError(f"path must end with {SUFFIX}, but is {str(place)!r}")
    if place.is_dir():
        raise ValueError(f"cannot write {str(place)!r}: a folder is in the way")
    check_method(bundle.method)
    needed()
    files.folder(place.parent)
    content, told = serialised(bundle, floats, measures)
    differences = check(content, bundle, floats, measures)
    files.write(place, content)
    return Exported(place, len(content), told, differences)
