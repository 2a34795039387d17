"""Checks of a section's keys: what is known of them follows from the code that they go to."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from dubito import _checks

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["Known", "checked", "known_of", "unknown"]

#: key -> its type and default; `...` stands for a key that must be given
Known = dict[str, tuple[Any, Any]]


def known_of(target: Callable[..., Any], skip: Iterable[str] = ()) -> Known:
    """The keyword arguments of a class or function, with types and defaults.

    A dataclass's fields that hold given data (those without `repr`) are left out.

    >>> from dubito.data import Augment
    >>> known_of(Augment)["padding"]
    (<class 'int'>, 4)
    """
    if isinstance(target, type) and is_dataclass(target):
        hints = get_type_hints(target)
        found = {f.name: (hints[f.name], _default(f)) for f in fields(target) if f.repr}
    else:
        hints = get_type_hints(target)
        if isinstance(target, type):
            hints = get_type_hints(vars(target)["__init__"])
        found = {
            name: (hints.get(name, Any), ... if one.default is one.empty else one.default)
            for name, one in inspect.signature(target).parameters.items()
        }
    return {name: entry for name, entry in found.items() if name not in skip}


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ... if field.default is MISSING else field.default


def checked(known: Known, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """All known keys as plain values, with defaults filled in; an error names what is wrong.

    >>> checked({"epochs": (int, 200), "keep": (str, "accuracy")}, {"epochs": "3"}, "[training]")
    {'epochs': 3, 'keep': 'accuracy'}
    """
    from pydantic import ConfigDict, ValidationError, create_model

    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be a section of keys and values, not {values!r}")
    setup = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True)
    model = create_model("Section", __config__=setup, **known)  # type: ignore[call-overload]
    try:
        plain: dict[str, Any] = model.model_validate(dict(values)).model_dump(mode="json")
    except ValidationError as error:
        raise ValueError(_worded(error, known, where)) from None
    return plain


def _worded(error: ValidationError, known: Known, where: str) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return unknown(key, known, where)
    if first["type"] == "missing":
        return f"{where} lacks the key {key!r}"
    expected = first["msg"].removeprefix("Input should be ")
    return f"{key!r} in {where} should be {expected}, not {first['input']!r}"


def unknown(key: str, known: Iterable[str], where: str) -> str:
    """A message about a key that is not known: the nearest that is, and all of them.

    >>> unknown("epoch", ["epochs", "keep"], "[training]")
    "unknown key 'epoch' in [training]; did you mean 'epochs'? Known: 'epochs', 'keep'"
    """
    names = list(known)
    near = difflib.get_close_matches(key, names, n=1)
    hint = f" did you mean {near[0]!r}? Known" if near else " known"
    return f"unknown key {key!r} in {where};{hint}: {_checks.listed(names)}"
