"""Load third-party methods, backbones, scores, formats, augmentations and datasets.

A plug-in is a module that registers its entries when it is imported. Packages announce theirs in
the entry-point group `dubito`; the command line also takes `--import MODULE`. A saved model never
names code to import.
"""

import functools
import hashlib
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from dubito.errors import DubitoError

__all__: list[str] = []


@functools.cache
def load_plugins() -> None:
    """Import all installed plug-ins, once; a broken one is a warning."""
    for entry in entry_points(group="dubito"):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(_broken(f"{entry.name} ({entry.value})", error), stacklevel=2)


def import_plugin(name: str) -> ModuleType:
    """Import a plug-in, and return its module.

    Args:
        name: Dotted name of a module, or path of a .py file.
    """
    path = Path(name)
    if path.suffix == ".py" and not path.is_file():
        raise DubitoError(f"there is no plug-in {name}")
    try:
        return _import_file(path.resolve()) if path.suffix == ".py" else import_module(name)
    except DubitoError:
        raise
    except Exception as error:
        raise DubitoError(_broken(name, error)) from error


def import_function(name: str) -> Callable[..., Any]:
    """Import a function, such as one that builds a network.

    Args:
        name: "module:function" or "file.py:function".
    """
    module, _, function = name.rpartition(":")
    if not module:
        raise DubitoError(f"{name!r} must be module:function or file.py:function")
    found: Callable[..., Any] | None = getattr(import_plugin(module), function, None)
    if not callable(found):
        raise DubitoError(f"{name!r}: {module} has no function {function!r}")
    return found


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own: random.py must not become the standard library's."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.parent)
    if folder not in sys.path:  # of modules that it imports
        sys.path.append(folder)
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _broken(name: str, error: Exception) -> str:
    return f"cannot import the plug-in {name}: {type(error).__name__}: {error}"
