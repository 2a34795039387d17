"""Networks of the user: "module:path.to:factory" or "module:file.py:factory"."""

from collections.abc import Callable
from inspect import signature
from typing import ClassVar

from pydantic import Field
from torch import nn

from dubito.backbones.base import BACKBONES, Backbone, Shape
from dubito.errors import DubitoError
from dubito.plugins import import_function
from dubito.types import Options

__all__: list[str] = []


@BACKBONES.register("module")
class UserModule(Backbone):
    """A module with an attribute `out_features`, which a function or class of the user returns.

    The function gets the shape of an input if it has a required parameter, and options by name.
    Loading a saved model does not import it: pass it as `network`.
    """

    argument: ClassVar[str | None] = "path"

    path: str
    """Function or class: path.to:factory or file.py:factory."""
    options: Options = Field(default_factory=dict)
    """Arguments of the factory."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Import the factory and call it."""
        return self._call(import_function(self.path), shape)

    def called(self, factory: Callable[..., nn.Module], shape: Shape) -> nn.Module:
        """Build the network with a factory in place of the one of the path.

        Args:
            factory: Function or class.
            shape: Shape of one input.
        """
        return self.normalized(self._call(factory, shape))

    def _call(self, factory: Callable[..., nn.Module], shape: Shape) -> nn.Module:
        options = self.options | ({} if self.dropout is None else {"dropout": self.dropout})
        takes = signature(factory)
        required = (
            one.name not in options
            and one.default is one.empty
            and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            for one in takes.parameters.values()
        )
        arguments = (shape,) if any(required) else ()
        try:
            takes.bind(*arguments, **options)
        except TypeError as error:
            raise DubitoError(f"the backbone {self.path!r} takes {takes}: {error}") from None
        return factory(*arguments, **options)
