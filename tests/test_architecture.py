"""Imports point one way, and special functions have one home."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "dubito"

#: lowest first; units on one line do not import each other
LAYERS: list[list[str]] = [
    ["errors"],
    ["_extras", "_files", "plugins", "types"],
    ["registry"],
    ["_checks"],
    ["binomial", "targets"],
    ["numerics"],
    ["kernels"],
    ["distributions"],
    ["losses"],
    ["methods"],
    ["metrics"],
    ["tasks"],
    ["calibration"],
    ["policy"],
    ["evaluation"],
    ["formats"],
    ["augmentations", "backbones", "scores"],
    ["data"],
    ["model"],
    ["sanity", "training"],
    ["onnx", "report"],
    ["config"],
    ["pipeline"],
    ["runs"],
    ["wrapping"],
    ["api"],
    ["fewshot", "lightning", "serve", "sklearn", "transformers"],
    # The package itself, which re-exports the layers below.
    ["dubito"],
    ["cli"],
    ["__main__"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

SPECIAL_FUNCTIONS = {"lgamma", "digamma", "polygamma", "gammaln", "psi", "mvlgamma", "multigammaln"}
#: `binomial` has factorials only
SPECIAL_HOMES = {"numerics", "kernels", "binomial"}


def rank(unit: str) -> int:
    """Return the layer of a top-level module or package."""
    assert unit in RANKS, f"dubito.{unit} has no layer: add it to LAYERS in {Path(__file__).name}"
    return RANKS[unit]


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


def wrong_imports(text: str, module: str) -> list[str]:
    """Describe each import of another unit that is not on a lower layer."""
    unit = unit_of(module)
    return [
        f"{module}:{line} (layer {rank(unit)}) imports {other} (layer {rank(other)})"
        for line, other in imported_units(ast.parse(text))
        if other != unit and rank(other) >= rank(unit)
    ]


def special_calls(text: str, module: str) -> list[str]:
    """Describe each call of a special function in a module that does not define them."""
    if unit_of(module) in SPECIAL_HOMES:
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
    found = wrong_imports(path.read_text("utf-8"), module_name(path))
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
        ("dubito.numerics.gamma", "from dubito.losses import edl", ["losses"]),
        ("dubito.numerics.forms", "from dubito.numerics.gamma import Gamma", []),
        ("dubito.kernels", "from dubito.distributions import Dirichlet", ["distributions"]),
        ("dubito.backbones.base", "from dubito import scores", ["scores"]),
        ("dubito.losses", "def f():\n    from dubito.methods import METHODS", ["methods"]),
        ("dubito.report.page", "from dubito import Dirichlet", ["dubito"]),
        ("dubito._checks", "import dubito.losses as x, dubito.report.page", ["losses", "report"]),
        ("dubito.training", "if TYPE_CHECKING:\n    from dubito.cli.train import x", ["cli"]),
        ("dubito.model", "from dubito import __version__", []),
        ("dubito.training", "from dubitous.cli import x", []),
    ],
)
def test_wrong_imports_are_found(module: str, text: str, expected: list[str]) -> None:
    found = wrong_imports(text, module)
    assert [line.split(" imports ")[1].split()[0] for line in found] == expected


@pytest.mark.parametrize("call", ["torch.lgamma(a)", "a.digamma()", "polygamma(1, a)", "psi(a)"])
def test_special_calls_are_found(call: str) -> None:
    for outside in ("dubito.losses", "dubito.distributions.dirichlet"):
        assert len(special_calls(f"x = {call}", outside)) == 1
    homes = ("dubito.numerics.gamma", "dubito.kernels.fisher")
    for home in homes:
        assert special_calls(f"x = {call}", home) == []
