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
    ["binomial"],
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
SPECIAL_HOMES = {"_special", "binomial", "distributions", "kernels"}


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


def imported_units(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the unit of each import of dubito, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "dubito":
                    yield node.lineno, unit_of(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            if base == "dubito":
                # The version is a constant, which any module may record; other names that are not
                # modules come through the package itself.
                for name in (alias.name for alias in node.names if alias.name != "__version__"):
                    is_module = name in RANKS or name.startswith("_")
                    yield node.lineno, name if is_module else "dubito"
            elif base.startswith("dubito."):
                yield node.lineno, unit_of(base)


def upward_imports(text: str, module: str) -> list[str]:
    """Describe each import of a higher layer in the source of `module`."""
    here = rank(unit_of(module))
    return [
        f"{module}:{line} (layer {here}) imports {unit} (layer {rank(unit)})"
        for line, unit in imported_units(ast.parse(text))
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
    found = upward_imports(path.read_text("utf-8"), module_name(path))
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
    ("module", "text", "expected"),
    [
        ("dubito._special", "from dubito.losses import edl", ["losses"]),
        ("dubito.losses", "def f():\n    from dubito.methods import METHODS", ["methods"]),
        ("dubito.report._html", "from dubito import Dirichlet", ["dubito"]),
        ("dubito._checks", "import dubito.losses as x, dubito.report._html", ["losses", "report"]),
        ("dubito.training", "if TYPE_CHECKING:\n    from dubito.cli.train import x", ["cli"]),
        ("dubito.model", "from dubito import __version__", []),
        ("dubito.training", "from dubitous.cli import x", []),
    ],
)
def test_upward_imports_are_found(module: str, text: str, expected: list[str]) -> None:
    found = upward_imports(text, module)
    assert [line.split(" imports ")[1].split()[0] for line in found] == expected


@pytest.mark.parametrize("call", ["torch.lgamma(a)", "a.digamma()", "polygamma(1, a)", "psi(a)"])
def test_special_calls_are_found(call: str) -> None:
    for outside in ("dubito.losses", "dubito.methods._base"):
        assert len(special_calls(f"x = {call}", outside)) == 1
    homes = ("dubito._special", "dubito.distributions", "dubito.kernels.fisher", "dubito._exact")
    for home in homes:
        assert special_calls(f"x = {call}", home) == []
