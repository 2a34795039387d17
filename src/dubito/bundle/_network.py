"""Build a network by the names in a description, and give it its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito import _legacy, backbones
from dubito._legacy import Method
from dubito.bundle._manifest import CONFIG, BundleError

__all__ = ["Factory", "build", "described", "fill", "filled", "made"]

#: kinds of weights that may stand for each other
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
#: (shape, outputs) -> a module from (N, *shape) to (N, outputs)
Factory = Callable[[tuple[int, ...], int], nn.Module]


def described(method: Method) -> dict[str, Any]:
    """A method as its name and hyperparameters.

    >>> described(_legacy.method("softmax"))
    {'name': 'softmax'}
    """
    if method.name is None:
        raise TypeError(f"{method.core!r} is none of the methods of dubito.methods.METHODS")
    return {"name": method.name, **method.hyperparameters()}


def made(values: Mapping[str, Any]) -> Method:
    """The method that `described` described."""
    options = dict(values)
    return _legacy.method(options.pop("name"), **options)


def build(
    method: Method,
    backbone: Mapping[str, Any] | Factory,
    shape: Sequence[int],
    classes: int,
    class_counts: Sequence[int] | None,
) -> nn.Module:
    """What is trained: the backbone by its name, or from a factory, in what the method makes of it.

    >>> build(_legacy.method("iedl"), {"name": "mlp", "hidden": [8]}, (4,), 3, None).head
    Linear(in_features=8, out_features=3, bias=True)
    """
    outputs = method.outputs(classes)
    if not isinstance(backbone, Mapping):
        return method.model(backbone(tuple(shape), outputs), classes, class_counts)
    return method.model(_named(method, backbone, shape, outputs), classes, class_counts)


def _named(
    method: Method, backbone: Mapping[str, Any], shape: Sequence[int], outputs: int
) -> nn.Module:
    options = dict(backbone)
    name, dropout = options.pop("name"), options.pop("dropout", None)
    if method.dropout is not None and dropout not in (None, method.dropout):
        raise ValueError(
            f"the method {described(method)['name']!r} has dropout {method.dropout}, but the "
            f"backbone {dropout}; set the method's alone"
        )
    chosen = dropout if method.dropout is None else method.dropout
    return backbones.build(name, tuple(shape), outputs, dropout=chosen, **options)


def filled(
    method: Method,
    backbone: Mapping[str, Any] | Factory,
    shape: Sequence[int],
    classes: int,
    class_counts: Sequence[int] | None,
    tensors: dict[str, Tensor],
    path: Path,
) -> nn.Module:
    """The network of a file's weights; torch's own random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        if not isinstance(backbone, Mapping):
            model = build(method, backbone, shape, classes, class_counts)
        else:
            try:
                _check_size(method, backbone, shape, classes, tensors)
                model = build(method, backbone, shape, classes, class_counts)
            except Exception as error:  # what a description may be wrong in has no end
                place = path.parent / CONFIG
                raise BundleError(f"{place} describes no network: {error}") from error
    fill(model, tensors, path)
    return model


def _check_size(
    method: Method,
    backbone: Mapping[str, Any],
    shape: Sequence[int],
    classes: int,
    tensors: Mapping[str, Tensor],
) -> None:
    """An error before memory is taken for a network far larger than its weights."""
    with torch.device("meta"):
        network = _named(method, backbone, shape, method.outputs(classes))
    wanted = sum(math.prod(value.shape) for value in network.state_dict().values())
    wanted *= getattr(method, "size", 1)
    held = sum(value.numel() for value in tensors.values())
    if wanted > held:
        raise ValueError(f"it would have {wanted} numbers, but the file of weights holds {held}")


def fill(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Give the network its weights, all of them and no others."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    held = {name: tuple(value.shape) for name, value in tensors.items()}
    if wanted != held:
        wrong = sorted(name for name in {*wanted, *held} if wanted.get(name) != held.get(name))
        name = wrong[0]
        raise BundleError(
            f"{path} holds the weights of another network: {len(wrong)} tensors differ, the first "
            f"is {name!r}, with shape {held.get(name, 'none')} in the file and "
            f"{wanted.get(name, 'none')} in the network of {CONFIG}"
        )
    for name, value in model.state_dict().items():
        _check_values(tensors[name], value.dtype, name, path)
    model.load_state_dict(tensors, strict=True)


def _check_values(held: Tensor, wanted: torch.dtype, name: str, path: Path) -> None:
    """An error unless the numbers are of the network's kind, and finite."""
    if held.dtype != wanted and not {held.dtype, wanted} <= FLOATS:
        raise BundleError(f"{path}: {name!r} holds {held.dtype}, but the network has {wanted}")
    if held.is_floating_point() and not bool(held.isfinite().all()):
        raise BundleError(f"{path}: the weights {name!r} are not all finite")
