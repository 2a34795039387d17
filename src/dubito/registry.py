"""Methods, backbones, scores, formats, augmentations and datasets, each found by name.

An entry is a class with options as fields, registered under a name:

>>> COLORS = Registry("color", Entry)
>>> @COLORS.register("gray")
... class Gray(Entry):
...     argument = "level"
...     level: float = 0.5
...     "Brightness."
>>> COLORS.build("gray"), COLORS.build("gray:0.7"), COLORS.build({"name": "gray", "level": 1})
(Gray(level=0.5), Gray(level=0.7), Gray(level=1.0))
>>> COLORS.to_dict(Gray())
{'name': 'gray', 'level': 0.5}
>>> COLORS.build("blue")
Traceback (most recent call last):
dubito.errors.DubitoError: unknown color 'blue'; known: 'gray'; import the module that ...
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import get_annotations, isabstract
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, core_schema

from dubito.errors import DubitoError
from dubito.plugins import load_plugins
from dubito.types import Json

__all__ = ["Entry", "Registry"]

#: field docstrings become help texts
CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Entry:
    """Base class of registered classes; subclasses become frozen pydantic dataclasses.

    Fields are options: validated when an entry is built, set from the command line and from
    configuration files, and saved as JSON.

    Attributes:
        argument: Field that the argument in "name:argument" sets; None takes no argument.
    """

    argument: ClassVar[str | None] = None

    def __init_subclass__(cls, frozen: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_annotated(cls)
        # An entry that is not frozen is a module with state, which compares by identity.
        dataclass(frozen=frozen, eq=frozen, kw_only=True, config=CONFIG)(cls)
        _inherit_descriptions(cls)


def _check_annotated(entry: type) -> None:
    """Raise if a value looks like an option, but is none because it has no annotation."""
    own, parents = get_annotations(entry), entry.__mro__[1:]
    for name, value in vars(entry).items():
        is_code = callable(value) or hasattr(value, "__get__")
        if is_code or name in own or name.startswith("_") or name.isupper():
            continue
        is_declared = any(hasattr(one, name) or name in get_annotations(one) for one in parents)
        # The value of an inherited option would not change without an annotation either.
        if not is_declared or any(
            name in getattr(one, "__pydantic_fields__", ()) for one in parents
        ):
            kind = type(value).__name__
            raise DubitoError(
                f"{entry.__name__}.{name} is no option without an annotation: write {name}: {kind} "
                f"= {value!r}, or {name}: ClassVar[{kind}] for a constant"
            )


def _inherit_descriptions(entry: Any) -> None:
    """Pass field docstrings on to a subclass, which pydantic does not do."""
    for parent in entry.__mro__[1:]:
        for name, field in getattr(parent, "__pydantic_fields__", {}).items():
            own = entry.__pydantic_fields__[name]
            own.description = own.description or field.description


E = TypeVar("E", bound=Entry)
T = TypeVar("T", bound=Entry)


class Registry(Mapping[str, type[E]], Generic[E]):
    """Entries of one kind by name.

    Args:
        what: Kind of the entries in messages, such as "method".
        base: Base class of the entries.
    """

    def __init__(self, what: str, base: Any) -> None:
        self.what, self.base = what, base
        self._entries: dict[str, type[E]] = {}
        self._modules: dict[str, str] = {}

    __eq__, __hash__ = object.__eq__, object.__hash__  # not by the entries, as of a mapping

    def __getitem__(self, name: str) -> type[E]:
        if name not in self._entries and name in self._modules:
            import_module(self._modules[name])
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._modules, *self._entries}))

    def __len__(self) -> int:
        return len({*self._modules, *self._entries})

    def declare(self, package: str, *names: str, **modules: str) -> None:
        """Name entries whose modules register them, and are imported when they are first used.

        Args:
            package: Package of the modules.
            *names: Names of entries, and of their modules.
            **modules: Module of each entry whose name is another.
        """
        modules |= {name: name for name in names}
        self._modules |= {name: f"{package}.{module}" for name, module in modules.items()}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Register a class under a name.

        Args:
            name: Name for configurations, files and the command line.
        """

        def add(entry: Any) -> Any:
            if name in self and self[name].__module__.startswith("dubito."):
                raise DubitoError(f"the {self.what} {name!r} exists already: choose another name")
            if not issubclass(entry, self.base):
                base = f"{self.base.__module__}.{self.base.__qualname__}"
                raise DubitoError(f"the {self.what} {name!r} must be a subclass of {base}")
            if isabstract(entry):
                missing = ", ".join(sorted(entry.__abstractmethods__))
                raise DubitoError(f"the {self.what} {name!r} must define {missing}")
            self._entries[name] = entry
            return entry

        return add

    def find(self, name: str) -> type[E]:
        """Return the class of a name, after loading plug-ins if need be.

        Args:
            name: Name, perhaps with an argument: "name:argument".
        """
        name = name.partition(":")[0]
        if name not in self:
            load_plugins()
        if name not in self:
            known = ", ".join(map(repr, self))
            hint = "import the module that registers it first (--import MODULE)"
            raise DubitoError(f"unknown {self.what} {name!r}; known: {known}; {hint}")
        return self[name]

    def build(self, value: E | str | Mapping[str, Any], **options: Any) -> E:
        """Build an entry; one that is built already is returned as it is.

        Args:
            value: Name, "name:argument", a dict with the name and options, or an entry.
            **options: Fields of the entry.
        """
        if isinstance(value, self.base):
            return cast(E, value)
        if isinstance(value, Mapping):
            options = {**value, **options}
            value = options.pop("name", None)
        if not isinstance(value, str):
            raise DubitoError(f"the {self.what} needs a name, but is {value!r} with {options}")
        kind, (name, colon, argument) = self.find(value), value.partition(":")
        if colon and kind.argument is None:
            raise DubitoError(f"the {self.what} {name!r} takes no argument, but is {value!r}")
        if colon and kind.argument is not None:
            options = {kind.argument: argument, **options}
        try:
            return kind(**options)
        except ValidationError as error:
            raise DubitoError(f"{self.what} {name!r}: {_summary(kind, error)}") from None

    def name_of(self, entry: E | type[E]) -> str:
        """Return the name of an entry.

        Args:
            entry: Entry of this registry, or its class.
        """
        own = entry if isinstance(entry, type) else type(entry)
        for name, kind in self._entries.items():
            if own is kind:
                return name
        raise DubitoError(
            f"{own.__name__} is no registered {self.what}: decorate it with register(name)"
        )

    def to_dict(self, entry: E) -> Json:
        """Return name and options as JSON values, which `build` reads.

        Args:
            entry: Entry of this registry.
        """
        options = entry.__pydantic_serializer__.to_python(entry, mode="json")  # type: ignore[attr-defined]
        return {"name": self.name_of(entry), **options}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Make `Annotated[Base, REGISTRY]` a field for an entry, its name, or a dict with it."""
        to_dict = core_schema.plain_serializer_function_ser_schema(self.to_dict)
        return core_schema.no_info_plain_validator_function(self.build, serialization=to_dict)


def _summary(kind: Any, error: ValidationError) -> str:
    """Word the errors of pydantic in one line."""
    parts = []
    for item in error.errors():
        field = ".".join(map(str, item["loc"]))
        if item["type"] == "unexpected_keyword_argument":
            known = ", ".join(map(repr, kind.__pydantic_fields__)) or "none"
            parts.append(f"unknown option {field!r}; known: {known}")
        elif item["type"] == "missing":
            parts.append(f"{field} is required")
        elif item["type"] == "value_error":
            parts.append(item["msg"].removeprefix("Value error, "))
        else:
            parts.append(f"{field}: {item['msg']}, not {item['input']!r}")
    return "; ".join(parts)
