"""Imports point one way, and special functions have one home."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "dubito"

LAYERS: list[list[str]] = [
    ["errors"],
    ["_special"],
    # Kernels leave second derivatives to the closed forms of the distributions.
    ["kernels", "distributions"],
    ["losses"],
    ["methods"],
    ["scores"],
    ["metrics"],
    ["tasks"],
    ["calibration"],
    ["policy"],
    ["evaluation"],
    ["data", "backbones"],
    ["model"],
    ["training"],
    ["onnx", "report"],
    ["api"],
    ["sklearn", "lightning", "fewshot", "serve", "demo"],
    # The command line and the package itself, which re-exports the layers below.
    ["cli", "dubito"],
    ["__main__"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

SPECIAL_FUNCTIONS = {"lgamma", "digamma", "polygamma", "gammaln", "psi", "mvlgamma", "multigammaln"}
SPECIAL_HOMES = {"_special", "distributions", "kernels"}


def rank(unit: str) -> int:
    """Return the layer of a top-level module or package; private ones belong to the lowest."""
    if unit in RANKS:
        return RANKS[unit]
    if unit.startswith("_"):
        return RANKS["errors"]
    raise AssertionError(f"dubito.{unit} has no layer: add it to LAYERS in {Path(__file__).name}")


def unit_of(module: str) -> str:
    """Return the part of a dotted module name that has a layer.

    `dubito.methods.iedl` belongs to `methods`, and `dubito` to itself.
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imported_units(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the unit of each import of dubito, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "dubito":
                    yield node.lineno, unit_of(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(node, module, is_package)
            if base == "dubito":
                # The version is a constant, which any module may record; other names that are not
                # modules come through the package itself.
                for name in (alias.name for alias in node.names if alias.name != "__version__"):
                    is_module = name in RANKS or name.startswith("_")
                    yield node.lineno, name if is_module else "dubito"
            elif base.startswith("dubito."):
                yield node.lineno, unit_of(base)


def absolute_base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the dotted name that `from X import ...` names, relative dots resolved."""
    if node.level == 0:
        return node.module or ""
    package = module.split(".") if is_package else module.split(".")[:-1]
    kept = package[: len(package) - (node.level - 1)]
    return ".".join([*kept, *filter(None, [node.module])])


def upward_imports(text: str, module: str, is_package: bool = False) -> list[str]:
    """Describe each import of a higher layer in the source of `module`."""
    here = rank(unit_of(module))
    return [
        f"{module}:{line} (layer {here}) imports {unit} (layer {rank(unit)})"
        for line, unit in imported_units(ast.parse(text), module, is_package)
        if rank(unit) > here
    ]


def special_calls(text: str, module: str) -> list[str]:
    """Describe each call of a special function in a module that does not define them."""
    parts = module.split(".")
    private_core = len(parts) == 2 and parts[1].startswith("_")
    if unit_of(module) in SPECIAL_HOMES or private_core:
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name in SPECIAL_FUNCTIONS:
                found.append(f"{module}:{node.lineno} calls {name}")
    return found


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = ["dubito", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(SOURCE.rglob("*.py"))
PER_FILE = pytest.mark.parametrize("path", FILES, ids=module_name)


@PER_FILE
def test_imports_point_down(path: Path) -> None:
    found = upward_imports(path.read_text("utf-8"), module_name(path), path.name == "__init__.py")
    assert not found, "\n".join(found)


@PER_FILE
def test_special_functions_have_one_home(path: Path) -> None:
    found = special_calls(path.read_text("utf-8"), module_name(path))
    assert not found, "\n".join(found)


@PER_FILE
def test_module_imports_or_lacks_an_extra(path: Path, optional_packages: frozenset[str]) -> None:
    name = module_name(path)
    try:
        importlib.import_module(name)
    except ImportError as error:
        # A module may put its extra's install line in an error of its own, raised from the first.
        missing = {(e.name or "").split(".")[0] for e in causes(error)}
        if not missing & optional_packages:
            raise
        pytest.skip(f"{name} needs an extra: {error}")


def causes(error: BaseException | None) -> Iterator[ImportError]:
    """Yield an import error and those it was raised from."""
    while isinstance(error, ImportError):
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("module", "text", "wanted"),
    [
        ("dubito._special", "from dubito.losses import edl", ["losses"]),
        ("dubito._special", "import dubito.distributions", ["distributions"]),
        ("dubito.losses", "def f():\n    from .methods import METHODS", ["methods"]),
        ("dubito.losses", "from . import training, _special", ["training"]),
        ("dubito.methods.iedl", "from ..training import fit", ["training"]),
        ("dubito.report._html", "from dubito import Dirichlet", ["dubito"]),
        ("dubito._checks", "import dubito.losses as x, dubito.report._html", ["losses", "report"]),
        ("dubito.training", "if TYPE_CHECKING:\n    from dubito.cli.train import x", ["cli"]),
    ],
)
def test_upward_imports_are_found(module: str, text: str, wanted: list[str]) -> None:
    found = upward_imports(text, module)
    assert [line.split(" imports ")[1].split()[0] for line in found] == wanted


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("dubito.losses", "import torch\nfrom dubito._special import Gamma\nfrom . import _checks"),
        ("dubito.methods.iedl", "from . import edl\nfrom ..losses import fisher"),
        ("dubito.api", "from dubito.report import table\nfrom dubito import losses"),
        ("dubito.model", "from dubito import __version__"),
        ("dubito.cli.predict", "from dubito import Dirichlet"),
        ("dubito.training", "import dubitous\nfrom dubitous.cli import x"),
    ],
)
def test_imports_of_lower_layers_pass(module: str, text: str) -> None:
    assert upward_imports(text, module) == []


def test_a_package_resolves_its_own_dots() -> None:
    assert upward_imports("from . import training", "dubito.methods", is_package=True) == []
    assert upward_imports("from .. import training", "dubito.methods", is_package=True) != []


def test_a_module_without_a_layer_is_named() -> None:
    with pytest.raises(AssertionError, match=r"dubito\.helpers has no layer"):
        upward_imports("", "dubito.helpers")


@pytest.mark.parametrize("call", ["torch.lgamma(a)", "a.digamma()", "polygamma(1, a)", "psi(a)"])
def test_special_calls_are_found(call: str) -> None:
    for outside in ("dubito.losses", "dubito.methods._base"):
        assert len(special_calls(f"x = {call}", outside)) == 1
    homes = ("dubito._special", "dubito.distributions", "dubito.kernels.fisher", "dubito._exact")
    for home in homes:
        assert special_calls(f"x = {call}", home) == []
