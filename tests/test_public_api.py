"""The public names, and that their parameters are documented."""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dubito.cli._generate import argument_docs

SOURCE = Path(__file__).resolve().parents[1] / "src" / "dubito"

#: name -> names in its `__all__`; modules inside a package export nothing that the package does not
PUBLIC = {
    "dubito": "Categorical DERLoss Dirichlet DubitoError EDLLoss EvidentialClassifier "
    "EvidentialRegressor FlexibleDirichlet IDERLoss IEDLLoss Model NormalInverseGamma "
    "NormalInverseWishart calibrate edl evaluate export iedl load predict train uce wrap",
    "dubito.api": "calibrate evaluate export load predict train wrap",
    "dubito.augmentations": "AUGMENTATIONS Augmentation",
    "dubito.backbones": "BACKBONES Backbone",
    "dubito.config": "RunConfig",
    "dubito.calibration": "Calibration",
    "dubito.data": "DATASETS Dataset Source open split",
    "dubito.distributions": "Categorical ClassDistribution Dirichlet Distribution "
    "FlexibleDirichlet NormalInverseGamma NormalInverseWishart RealDistribution confidence_score "
    "uncertainty_score",
    "dubito.errors": "DubitoError",
    "dubito.evaluation": "error_detection evaluate ood_detection",
    "dubito.fewshot": "Features features fewshot read_features write_features",
    "dubito.formats": "FORMATS ArrayFormat Encoded ImageFormat InputFormat Preprocessing "
    "Resize TableFormat",
    "dubito.lightning": "EvidentialModule",
    "dubito.losses": "DERLoss EDLLoss IDERLoss IEDLLoss Term cross_entropy differential_entropy "
    "edl expected_cross_entropy fisher_bias fisher_penalty fisher_variance forward_kl iedl "
    "label_removed_kl marginal_nll mse_bias mse_variance reverse_kl uce",
    "dubito.methods": "DER EDL IDER IEDL METHODS Ensemble MCDropout Method MethodLoss NonNegative "
    "PosteriorNetwork Softmax TaskLike",
    "dubito.metrics": "accuracy aupr aurc auroc brier coverage ece fpr95 mae rmse",
    "dubito.model": "Model Prediction",
    "dubito.onnx": "export",
    "dubito.pipeline": "Pipeline Prepared",
    "dubito.policy": "Policy",
    "dubito.registry": "Entry Registry",
    "dubito.scores": "SCORES Score",
    "dubito.serve": "ServeConfig create_app serve",
    "dubito.sklearn": "EvidentialClassifier EvidentialRegressor",
    "dubito.targets": "Target",
    "dubito.tasks": "Classification Regression",
    "dubito.training": "Callback History JSONLines NonFiniteLoss Progress "
    "TensorBoard TrainConfig Trainer",
    "dubito.transformers": "loss",
}
MOST = 120
#: parameters that need no words: `kind` discriminates the classes of a union in a file
IMPLICIT = ("self", "cls", "kind")


def exported(path: Path) -> list[str]:
    """Return the names in `__all__` of a source file, which every public file has."""
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(targets[0], ast.Name) and targets[0].id == "__all__":
            return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    raise AssertionError(f"{path} has no __all__: list the names that are for users")


def public_files() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            yield ".".join(["dubito", *parts]), path


def test_public_names_are_pinned() -> None:
    found = {}
    for module, path in public_files():
        package = module if module in PUBLIC else module.rpartition(".")[0]
        assert {*exported(path)} <= {*PUBLIC.get(package, "").split()}, module
        if module == package:
            found[module] = sorted(exported(path))
    assert found == {module: sorted(names.split()) for module, names in PUBLIC.items()}


def test_there_are_few_public_names() -> None:
    assert len({name for names in PUBLIC.values() for name in names.split()}) <= MOST


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in PUBLIC.items() for name in names.split()],
)
def test_parameters_are_documented(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    if inspect.isfunction(value):
        check(name, value, argument_docs(value.__doc__ or ""))
    is_protocol = getattr(value, "_is_protocol", False)
    if inspect.isclass(value) and not issubclass(value, Exception) and not is_protocol:
        text = value.__doc__ or ""
        if issubclass(value, BaseModel | tuple):  # its fields are parameters
            text = text.replace("Attributes:", "Args:")
        check(name, value, {**argument_docs(text), **field_docs(value)})
        for member, found in vars(value).items():
            function = getattr(found, "__func__", found)
            is_override = any(hasattr(base, member) for base in value.__mro__[1:])
            if inspect.isfunction(function) and not member.startswith("_") and not is_override:
                check(f"{name}.{member}", function, argument_docs(function.__doc__ or ""))


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass or a pydantic model."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("dubito") or "[" in base.__name__:
            continue  # foreign, or a generic class with its parameters
        (definition,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = ast.unparse(text)
    return found


def check(name: str, value: Any, described: Mapping[str, str]) -> None:
    parameters = [p.lstrip("*") for p in inspect.signature(value).parameters]
    missing = [p for p in parameters if p not in (*described, *IMPLICIT)]
    assert not missing, f"{name} does not document {missing} under Args:"


def test_modules_are_attributes_of_the_package(source_env: dict[str, str]) -> None:
    code = "import dubito; print(dubito.backbones.__name__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=source_env, capture_output=True, text=True, check=True)
    assert done.stdout == "dubito.backbones\n"
