"""The backbone protocol: a network from inputs to features."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrizations

from dubito.errors import DubitoError
from dubito.formats import Preprocessing
from dubito.registry import Entry, Registry
from dubito.types import Options

__all__ = ["BACKBONES", "Backbone"]

Shape = tuple[int, ...]
Size = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Backbone(Entry, ABC):
    """A network from inputs (N, *shape) to features (N, D), without the head of a method.

    Fields are options. A subclass defines `build`.

    Attributes:
        pretrained: Whether `build` can load weights from elsewhere.
    """

    pretrained: ClassVar[bool] = False
    dropout: Rate | None = None
    """Dropout rate; None is that of the architecture."""
    spectral_norm: bool = False
    """Whether the largest singular value of each linear layer and convolution is kept at 1 (Miyato
    et al., ICLR 2018, https://arxiv.org/abs/1802.05957)."""

    @abstractmethod
    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the module, with an attribute `out_features`, D.

        Args:
            shape: Shape of one input.
            pretrained: Whether to load weights from elsewhere, if the backbone has any. Only
                training does: a saved model brings its weights.
        """

    def network(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the module, and normalize its layers if the options say so.

        Args:
            shape: Shape of one input.
            pretrained: Whether to load weights from elsewhere, if the backbone has any.
        """
        return self.normalized(self.build(shape, pretrained=pretrained))

    def normalized(self, module: nn.Module) -> nn.Module:
        """Normalize the layers of a module in place, if the options say so.

        Args:
            module: Module of this backbone.
        """
        if self.spectral_norm:
            for layer in [*module.modules()]:
                if isinstance(layer, nn.Linear | _ConvNd):
                    parametrizations.spectral_norm(layer)
        return module

    def inputs(self) -> Preprocessing | None:
        """Return format and normalization that pretrained weights expect; None: any will do."""
        return None

    def saved(self) -> Self:
        """Return the entry that a model is saved with; its inputs are those of the model."""
        return self

    def classifier(self) -> tuple[nn.Linear, tuple[str, ...] | None] | None:
        """Return the last layer of pretrained weights and the names of its classes, if known; None
        without."""
        return None

    def warning(self, shape: Shape) -> str | None:
        """Return a warning about inputs that the backbone is not made for, or None.

        Args:
            shape: Shape of one input.
        """
        return None


class Checkpoint(Backbone):
    """A network of another package, which holds architecture and inputs by value.

    So a saved model needs neither its checkpoint nor a hub. A subclass also defines `read`.
    """

    argument: ClassVar[str | None] = "path"
    pretrained: ClassVar[bool] = True

    path: str
    """Folder of a checkpoint, or its name."""
    config: Options | None = None
    """Architecture; None: that of the checkpoint."""
    expects: Preprocessing | None = Field(default=None, repr=False)
    """Inputs of the network; with a configuration, None means any."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Read and check the checkpoint, unless its configuration is given."""
        for name, value in self.read().items() if self.config is None else ():
            object.__setattr__(self, name, value)
        return self

    @abstractmethod
    def read(self) -> Options:
        """Return the values of fields that the checkpoint determines."""

    def inputs(self) -> Preprocessing | None:
        return self.expects

    def saved(self) -> Self:
        return replace(self, expects=None)


BACKBONES: Registry[Backbone] = Registry("backbone", Backbone)

#: a backbone, its name or "auto", a dict with its name, or a function from a shape to a module
BackboneLike = Backbone | str | Mapping[str, object] | Callable[[Shape], nn.Module]


def chain(out_features: int, *, dropout: float | None = None, **parts: nn.Module) -> nn.Sequential:
    """Chain modules whose last one returns features.

    Args:
        out_features: Number of features.
        dropout: Rate of a dropout layer after them, if there is one.
        **parts: Modules by name.
    """
    network = nn.Sequential(OrderedDict(parts))
    if dropout:
        network.add_module("dropout", nn.Dropout(dropout))
    network.out_features = out_features  # type: ignore[assignment]
    return network


def pooled(out_features: int, *, dropout: float | None, **parts: nn.Module) -> nn.Sequential:
    """Chain modules whose last one returns maps (N, D, H, W); features are means over their places.

    Convolutions start from He et al. (2015).

    Args:
        out_features: Number of maps, D.
        dropout: Rate of a dropout layer after the means, if there is one.
        **parts: Modules by name.
    """
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = chain(out_features, dropout=dropout, **parts, pool=pool)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def image_shape(shape: Shape, smallest: int, name: str) -> Shape:
    """Check a shape (channels, height, width)."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < smallest:
        raise DubitoError(
            f"the backbone {name!r} needs images (channels, height, width) of at least "
            f"{smallest}x{smallest} pixels, but the shape is {shape}"
        )
    return shape
