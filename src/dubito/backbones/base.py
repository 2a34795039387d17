"""Registry of backbones, and checks of their arguments."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any, TypeVar

from torch import nn

from dubito import _checks
from dubito.errors import DubitoError
from dubito.plugins import load_plugins

__all__ = ["BACKBONES", "register"]

Shape = tuple[int, ...]
Builder = Callable[..., nn.Module]
B = TypeVar("B", bound=Builder)
#: name -> function (shape, *, dropout=None, ...) that builds the module
BACKBONES: dict[str, Builder] = {}


def register(name: str) -> Callable[[B], B]:
    """Register a backbone under a name, for configs, files and the command line.

    Args:
        name: Name, such as "mlp".
    """

    def add(builder: B) -> B:
        _checks.not_built_in(BACKBONES.get(name), name, "backbone")
        BACKBONES[name] = builder
        return builder

    return add


def build(
    name: str, shape: Sequence[int], *, dropout: float | None = None, **options: Any
) -> nn.Module:
    """Build a registered backbone: inputs (N, *shape) to features (N, out_features).

    Args:
        name: One of `BACKBONES`.
        shape: Shape of one input.
        dropout: Dropout rate; None leaves the default of the architecture.
        **options: Further arguments of the builder.

    >>> build("convnet", (1, 28, 28)).out_features
    64
    """
    if name not in BACKBONES:
        load_plugins()
    builder = _checks.entry(BACKBONES, name, "backbone")
    parameters = signature(builder).parameters
    if not any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            _checks.one_of(list(parameters)[1:], option, f"option of the backbone {name!r}:")
    if dropout is not None and not 0 <= dropout < 1:
        raise DubitoError(f"dropout must be in [0, 1), not {dropout!r}")
    module = builder(tuple(shape), dropout=dropout, **options)
    if not isinstance(getattr(module, "out_features", None), int):
        raise TypeError(f"the backbone {name!r} needs an attribute out_features, the size D")
    return module


def default_for(shape: Sequence[int]) -> str:
    """Return the name of the backbone that "auto" means for inputs of a shape.

    >>> default_for((1, 28, 28)), default_for((3, 32, 32)), default_for((13,))
    ('convnet', 'vgg16', 'mlp')
    """
    if len(shape) == 3 and shape[0] == 1 and min(shape[1:]) >= SMALLEST_CONVNET:
        return "convnet"
    return "vgg16" if tuple(shape) == (3, 32, 32) else "mlp"


#: Pixels from which three poolings leave the convnet enough to see.
SMALLEST_CONVNET = 20


def image_shape(shape: Shape, smallest: int, name: str) -> Shape:
    """Check a shape (channels, height, width)."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < smallest:
        raise DubitoError(
            f"the backbone {name!r} needs images (channels, height, width) of at least "
            f"{smallest}x{smallest} pixels, but the shape is {shape}"
        )
    return shape


def positive_size(size: int, name: str) -> int:
    """Check a size that is at least 1."""
    if not isinstance(size, int) or size < 1:
        raise DubitoError(f"{name} must be at least 1, not {size!r}")
    return size
