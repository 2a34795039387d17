"""Build the backbone of a network, and fill a network with saved weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dubito.backbones import base
from dubito.errors import DubitoError
from dubito.methods import Method

__all__ = ["build_backbone", "described", "fill"]


def described(backbone: str | Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the name and options of a backbone, "auto" resolved."""
    options = {"name": backbone} if isinstance(backbone, str) else dict(backbone)
    if not isinstance(options.get("name"), str):
        raise DubitoError(f"a backbone needs a name, but is {backbone!r}")
    if options["name"] == "auto":
        options["name"] = base.default_for(shape)
    return options


def build_backbone(
    described: Mapping[str, Any], shape: tuple[int, ...], method: Method
) -> nn.Module:
    """Build a registered backbone, with the dropout rate of the method if it has one."""
    options = dict(described)
    rate = _dropout(method)
    if rate is not None and options.setdefault("dropout", rate) != rate:
        raise DubitoError(
            f"the backbone has dropout {options['dropout']}, but the method {rate}: set that of "
            "the method alone"
        )
    return base.build(shape=shape, **options)


def _dropout(method: Method) -> float | None:
    """Return the dropout rate of a method or of its members."""
    rate: float | None = getattr(method, "dropout", None)
    member = getattr(method, "member", None)
    return _dropout(member) if rate is None and member is not None else rate


def fill(network: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Set all weights of a network, or raise if they are those of another one."""
    try:
        network.load_state_dict(dict(tensors))
    except RuntimeError as error:
        _, problem, *more = str(error).strip().splitlines()
        raise DubitoError(
            f"{folder} holds the weights of another network: {problem.strip()[:300]}"
            f"{f' (and {len(more)} more)' if more else ''}"
        ) from error
