"""Compare a model with the loop that trained its network."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.formats.images import ImageFormat, kind_of
from dubito.model.prediction import names_of

if TYPE_CHECKING:
    from dubito.model.model import Model

__all__: list[str] = []

#: largest difference from the expected outputs, relative to the largest of these
OUTPUT_TOLERANCE = 1e-3


def check_outputs(model: Model, inputs: object, expected: object) -> None:
    """Raise unless outputs or labels are the expected ones.

    Args:
        model: Model.
        inputs: Some inputs as users will pass them: paths, arrays, rows.
        expected: Results of the network where it was trained: outputs (N, M), or labels (N,).
    """
    values = expected if isinstance(expected, Tensor) else np.asarray(expected)
    if values.ndim > 1 and values.shape[-1] == model.method.outputs(model.task):
        target = torch.as_tensor(values).detach().cpu()
        result = model.outputs(inputs)[1].cpu()
    else:
        target, result = model.task.encode(expected), model.predict(inputs).point
    if result.shape != target.shape:
        raise DubitoError(
            f"check: expected values have shape {tuple(target.shape)}, but the model returns "
            f"{tuple(result.shape)}"
        )
    if target.is_floating_point():
        gaps, largest = (result - target).abs().flatten(1).amax(1), target.abs().max().item()
        wrong = ~(gaps <= OUTPUT_TOLERANCE * largest)
        problem = f"values up to {largest:.4g} differ from the expected ones by up to "
        problem += f"{gaps.max().item():.2g}"
    else:
        wrong = result != target
        problem = f"only {1 - wrong.double().mean().item():.1%} of the labels are as expected"
    if wrong.any():
        raise DubitoError(
            f"check: {problem}{_where(model, inputs, wrong)}: do preprocessing and the order of "
            "the classes match those of the training?"
        )


def _where(model: Model, inputs: object, wrong: Tensor) -> str:
    """Name the kinds of the images that differ, if others do not."""
    names = names_of(inputs)
    if names is None or wrong.all() or not isinstance(model.preprocessing.inputs, ImageFormat):
        return ""
    kinds = [kind_of(name)[0] for name in names]
    found = Counter(kind for kind, is_wrong in zip(kinds, wrong, strict=True) if is_wrong)
    parts = (f"{count} of {kinds.count(kind)} {kind} images" for kind, count in found.items())
    return f" ({', '.join(parts)})"
