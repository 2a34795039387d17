"""Configuration of a training run."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from dubito import _checks, data
from dubito.api import AnyPath
from dubito.backbones import BACKBONES
from dubito.backbones.default import AUTO
from dubito.data import Source
from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.tasks import Task
from dubito.training import TrainConfig

__all__ = ["RunConfig"]

M = TypeVar("M", bound=BaseModel)
METHOD = "iedl"
#: fields that say how data is read
READING = {"target", "ignore", "categories", "size", "mode", "on_error"}


class DataConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Training data."""

    source: str | None = None
    """Known name, image folder, .npz, .csv or .parquet file; None if the data was in memory."""
    target: str | tuple[str, ...] | None = None
    """Target columns of a table."""
    ignore: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that are categories."""
    size: int | tuple[int, int] | None = None
    """Side, or height and width, to which images are resized."""
    mode: Literal["L", "RGB"] | None = None
    """Gray or color images."""
    on_error: Literal["skip", "raise"] = "skip"
    """Skip unreadable images with a warning, or stop."""
    validation: float = Field(default=0.2, gt=0, lt=1)
    """Share of the training data that is held out for validation."""
    split_seed: int = 0
    """Seed of that division."""
    stratify: bool = True
    """Hold out the same share of each class."""
    train_ood: str | None = None
    """Out-of-distribution inputs for methods that train with some, in place of noise."""
    class_weight: Literal["balanced"] | None = None
    """Weight samples by the rarity of their class."""
    standardize: bool | None = None
    """Scale features to mean 0 and deviation 1; None does so for tables and flat arrays."""
    stream: bool | None = None
    """Read inputs from disk in each epoch; None does so beyond 4 GB."""
    task: Literal["classification", "regression"] | None = None
    """What the target is; None follows the method."""
    tolerance: float | tuple[float, ...] | None = None
    """Deviation beyond which a predicted number is an error; needed for a policy."""

    def open(self, source: Any, split: str = "train", **options: Any) -> Source:
        """Open data; see `dubito.data.open`.

        Args:
            source: Data, such as `self.source`.
            split: Part of the data.
            **options: Further arguments of `dubito.data.open`.
        """
        return data.open(source, split, **self.model_dump(include=READING), **options)

    def divide(self, source: Source, task: Task) -> tuple[Source, Source]:
        """Return the training and the validation samples.

        Args:
            source: Training data.
            task: Task; only classes can be stratified.
        """
        stratify = self.stratify and task.kind == "classification"
        train, rest = data.split(source, 1 - self.validation, self.split_seed, stratify=stratify)
        # Ranges come from the training samples alone: the policy's guarantee is about validation
        # samples that pass the same filter as future inputs.
        fitted = source.refit(train.indices)
        return fitted.subset(train.indices), fitted.subset(rest.indices)


class PolicyConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Guarantee of the policy."""

    error_rate: float = Field(default=0.05, gt=0, lt=1)
    """Largest error rate among accepted predictions."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Probability with which the guarantee holds."""
    false_alarms: float = Field(default=0.05, gt=0, lt=1)
    """Share of ordinary inputs that may be rejected as unfamiliar."""
    score: str | None = None
    """Score that ranks predictions; None is that of the method."""
    ood_score: str | None = None
    """Score that ranks inputs by familiarity; None is that of the method."""


def _method_dict(value: Any) -> dict[str, Any]:
    """Return all hyperparameters of a method that is given by name, as a dict or as an object."""
    named = {"name": METHOD, **value} if isinstance(value, Mapping) else value
    return METHODS.to_dict(METHODS.build(named))


def _backbone_dict(value: Any) -> dict[str, Any]:
    """Return all options of a backbone; those of "auto" are checked when the data is known."""
    named = {"name": AUTO, **value} if isinstance(value, Mapping) else value
    named = {"name": named} if named == AUTO else named
    if isinstance(named, dict) and named["name"] == AUTO:
        return named
    return BACKBONES.to_dict(BACKBONES.build(named))


class RunConfig(
    BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
):  # fmt: skip
    """Configuration of a training run.

    >>> RunConfig(method="edl", training={"epochs": 5}).method["likelihood"]
    'mse'
    """

    data: DataConfig = DataConfig()
    """Training data."""
    method: Annotated[dict[str, Any], BeforeValidator(_method_dict)] = {"name": METHOD}
    """Name of the method, or a dict with its hyperparameters."""
    backbone: Annotated[dict[str, Any], BeforeValidator(_backbone_dict)] = {"name": AUTO}
    """Name of the backbone, or a dict with its options."""
    training: TrainConfig = TrainConfig()
    """Training loop."""
    posthoc: tuple[str, ...] = ()
    """Post-hoc scores to fit on the training data, such as energy."""
    policy: PolicyConfig = PolicyConfig()
    """Guarantee of the policy."""

    @classmethod
    def merge(
        cls, config: RunConfig | Mapping[str, Any] | AnyPath | None, settings: Mapping[str, Any]
    ) -> RunConfig:
        """Create from a configuration and settings that override it.

        Args:
            config: Configuration, its sections as a dict, or the path of a .toml or .json file;
                the model.json of an earlier run will do.
            settings: Values by field ("lr"), by section and field ("training.lr"), or by section.
        """
        if isinstance(config, str | os.PathLike):
            config = read_config(config)
        sections = config.model_dump() if isinstance(config, RunConfig) else dict(config or {})
        for key, value in settings.items():
            section, _, field = SHORT.get(key, key).partition(".")
            before = sections.get(section, {})
            if isinstance(before, BaseModel):
                before = before.model_dump()
            elif isinstance(before, str):
                before = {"name": before}
            if field:
                value = {**before, field: value}
            elif "name" in before and value == before["name"]:
                value = before  # the same method keeps its hyperparameters
            sections[section] = value
        return validated(cls, sections)

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the trained weights, by section and field."""
        values = self.model_dump(mode="json", include={"data", "method", "backbone"})
        values |= {"training": self.training.identity(), "posthoc": {"scores": self.posthoc}}
        return {f"{section}.{key}": v for section in values for key, v in values[section].items()}


#: field of a section -> the same with its section
SHORT = {
    name: f"{section}.{name}"
    for section, field in RunConfig.model_fields.items()
    if isinstance(field.default, BaseModel)
    for name in type(field.default).model_fields
}


def read_config(path: AnyPath) -> dict[str, Any]:
    """Read the sections of a configuration file.

    Args:
        path: A .toml or .json file, or the model.json of an earlier run.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        content = json.loads(text) if file.suffix.lower() == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise DubitoError(f"cannot read the configuration {file}: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("training"), dict):
        content = content["training"].get("config", content)  # a model.json
    if not isinstance(content, dict):
        raise DubitoError(f"{file} must have the sections {_checks.listed(RunConfig.model_fields)}")
    return content


def validated(model: type[M], values: Mapping[str, Any]) -> M:
    """Build a configuration; the first problem is an error in one line.

    Args:
        model: Class of the configuration.
        values: Its fields.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"][:2])  # without the member of a union
    if problem["type"] == "extra_forbidden":
        known = known_keys(model, problem["loc"])
        key = ".".join(map(str, problem["loc"]))
        near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}? Known" if near else "known"
        raise DubitoError(f"unknown setting {key!r}; {hint}: {_checks.listed(known)}")
    if problem["type"] == "value_error":
        raise DubitoError(problem["msg"].removeprefix("Value error, "))
    raise DubitoError(f"{key}: {problem['msg']}, not {problem['input']!r}")


def known_keys(model: Any, place: Sequence[Any]) -> list[str]:
    """Return the fields of the section in which an unknown key stands.

    Args:
        model: Class of a configuration.
        place: Location of the key in it.
    """
    short = SHORT if model is RunConfig and len(place) == 1 else ()
    for part in place[:-1]:
        kind = model.model_fields[part].annotation
        model = next(one for one in (kind, *get_args(kind)) if hasattr(one, "model_fields"))
    return [*short, *model.model_fields]
