"""Configuration of a training run."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    FiniteFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dubito import _checks, data
from dubito.backbones import BACKBONES
from dubito.backbones.default import AUTO, CHOSEN, default_for
from dubito.calibration import Level
from dubito.data import Source
from dubito.data.base import Subset
from dubito.errors import DubitoError
from dubito.formats import FORMATS, Preprocessing
from dubito.formats.base import AnyFormat, InputFormat
from dubito.formats.images import Fit, ImageFormat, Mode
from dubito.methods import METHODS
from dubito.methods.base import AnyMethod, Method
from dubito.scores import SCORES
from dubito.scores.base import AnyScore, Score
from dubito.tasks import Classification, Regression, are_numbers
from dubito.training import TrainConfig
from dubito.training.config import LAST
from dubito.types import Json

__all__ = ["RunConfig"]

Deviation = Annotated[FiniteFloat, Field(ge=0)]
M = TypeVar("M", bound=BaseModel)
#: methods for classes and for numbers
METHOD, NUMBERS_METHOD = "iedl", "der"
KINDS = ("classification", "regression")
#: share of the samples that chooses the epoch, where one is chosen
SELECTION = 0.1
POSTHOC = "posthoc"
#: fields that say how data is read
READING = {"target", "weight", "ignore", "categories", "text", "on_error", "stream"}
READING |= {"size", "mode", "fit"}
#: those that determine the format of images
SHAPING = ("size", "mode", "fit")
#: those that a backbone may have expectations of
INPUTS = ("format", *SHAPING, "mean", "std", "standardize")


class Parts(NamedTuple):
    """Parts of the training data, each with one purpose.

    Attributes:
        train: Samples that the network is trained on.
        selection: Samples that choose the epoch; None: the last weights are kept.
        calibration: Samples that calibration and policy are fitted to; None without.
    """

    train: Subset
    selection: Subset | None
    calibration: Subset | None


class DataConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Training data."""

    source: str | None = None
    """Known name, folder, .npz, .csv or .parquet file; None if the data was in memory."""
    target: str | tuple[str, ...] | None = None
    """Target columns of a table."""
    weight: str | None = None
    """Column of a table with sample weights."""
    ignore: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    categories: tuple[str, ...] = ()
    """Columns of numbers that are categories."""
    size: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None
    """Side, or height and width, to which images are resized."""
    mode: Mode | None = None
    """Gray or color images."""
    fit: Fit | None = None
    """Stretch images to the size, crop their center, or pad them; None: by the images."""
    text: str | None = None
    """Column of a table to read as text, the only input."""
    format: AnyFormat | None = None
    """Format of the inputs with all its options, in place of the options above."""
    mean: tuple[FiniteFloat, ...] | None = None
    """Mean of each channel or feature, in place of that of the data."""
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] | None = None
    """Standard deviation of each channel or feature."""
    on_error: Literal["skip", "raise"] = "skip"
    """Skip unreadable images with a warning, or stop."""
    calibration: float = Field(default=0.2, ge=0, lt=1)
    """Share of the samples for calibration and policy, which serves no other purpose."""
    selection: float | None = Field(default=None, ge=0, lt=1)
    """Share of the samples that chooses the epoch; None: 0.1 for regression and with `keep`, or 0,
    which keeps the last weights."""
    folds: int | None = Field(default=None, ge=2)
    """Train as many networks, each without one fold of the data, and deploy their ensemble: for
    small data. Its promises are approximate."""
    split_seed: int = 0
    """Seed of the division."""
    train_ood: str | None = None
    """Out-of-distribution inputs for methods that train with some, in place of noise."""
    class_weight: Literal["auto", "balanced", "none"] = "auto"
    """Weight samples by the rarity of their class; "auto" does so where the most frequent class has
    at least three times the samples of the rarest."""
    standardize: bool | None = None
    """Scale features to mean 0 and deviation 1; None does so for tables and flat arrays."""
    stream: bool | None = None
    """Read inputs from disk in each epoch; None does so beyond 2 GB."""
    task: Literal["classification", "regression"] | None = None
    """What the target is; None follows the method."""
    tolerance: Deviation | tuple[Deviation, ...] | None = None
    """Deviation beyond which a predicted number is an error; needed for a policy."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        share = self.calibration + (self.selection or 0)
        if share >= 1:
            raise ValueError(f"calibration and selection leave {1 - share:g} for the training")
        if (self.mean is None) is not (self.std is None):
            raise ValueError("mean and std go together")
        if self.mean is not None and self.standardize is False:
            raise ValueError("standardize=False contradicts mean and std: drop one of them")
        return self

    def open(self, source: Any, split: str = "train", **options: Any) -> Source:
        """Open data; see `dubito.data.open`.

        Args:
            source: Data, such as `self.source`.
            split: Part of the data.
            **options: Further arguments of `dubito.data.open`.
        """
        options.setdefault("format", self.format)
        return data.open(source, split, **self.model_dump(include=READING), **options)


class PolicyConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Guarantee of the policy, and of intervals or prediction sets."""

    error_rate: float = Field(default=0.05, gt=0, lt=1)
    """Largest error rate among accepted predictions."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Probability with which the guarantee holds."""
    false_alarms: float = Field(default=0.05, gt=0, lt=1)
    """Share of ordinary inputs that may be rejected as unfamiliar."""
    score: str | None = None
    """Score that ranks predictions by the risk of an error; None is that of the method."""
    ood_score: str | None = None
    """Score that ranks inputs by familiarity; None: mahalanobis for classes of images, if one
    network has features, and else that of the method. A post-hoc score is fitted if it is named."""
    max_width: FiniteFloat | None = Field(default=None, gt=0)
    """Abstain where the interval of a predicted number is wider, in place of the error rate."""
    levels: tuple[Level, ...] | None = Field(default=None, min_length=1)
    """Coverage of intervals, or of prediction sets of classes; None: 0.9 for numbers, no sets."""

    @field_validator("levels")
    @classmethod
    def _check(cls, levels: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if levels is not None and len({*levels}) < len(levels):
            raise ValueError(f"levels must be distinct, not {levels}")
        return levels


def _named_method(value: Any) -> Any:
    """Give options without a name that of the default."""
    return {"name": METHOD, **value} if isinstance(value, Mapping) else value


def _backbone_dict(value: Any) -> Json:
    """Return all options of a backbone; values of "auto" are checked when the data is known."""
    named = {"name": AUTO, **value} if isinstance(value, Mapping) else value
    named = {"name": named} if named == AUTO else named
    if isinstance(named, dict) and named["name"] == AUTO:
        for option in named.keys() - {"name"}:
            known = {"name"}.union(*(signature(BACKBONES[name]).parameters for name in CHOSEN))
            _checks.one_of(sorted(known), option, "option of the backbone")
        return named
    return BACKBONES.to_dict(BACKBONES.build(named))


class RunConfig(
    BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
):  # fmt: skip
    """Configuration of a training run.

    Every name in it is looked up when it is built, before data is read.

    >>> RunConfig(method="edl", training={"epochs": 5}).method.likelihood
    'mse'
    """

    data: DataConfig = DataConfig()
    """Training data."""
    method: Annotated[AnyMethod, BeforeValidator(_named_method)] = METHODS.build(METHOD)
    """Name of the method, or a dict with its hyperparameters."""
    backbone: Annotated[Json, BeforeValidator(_backbone_dict)] = {"name": AUTO}
    """Name of the backbone, or a dict with its options."""
    training: TrainConfig = TrainConfig()
    """Training loop."""
    posthoc: tuple[AnyScore, ...] = ()
    """Post-hoc scores to fit on the training data, such as energy: names, or dicts with options."""
    policy: PolicyConfig = PolicyConfig()
    """Guarantee of the policy, and of intervals or prediction sets."""

    @field_validator("posthoc")
    @classmethod
    def _new_scores(cls, scores: tuple[Score, ...], info: ValidationInfo) -> tuple[Score, ...]:
        """Leave out scores that the method has: one list serves all methods of a comparison."""
        if (method := info.data.get("method")) is None:  # it is not valid
            return scores
        own, name_of = method_scores(method), SCORES.name_of
        for name in (name_of(score) for score in scores if name_of(score) in own):
            text = f"{METHODS.name_of(method)} has a score {name!r} of its own"
            warnings.warn(f"{text}: that of posthoc is skipped", stacklevel=2)
        return tuple(score for score in scores if name_of(score) not in own)

    @model_validator(mode="before")
    @classmethod
    def _choose_method(cls, values: Any) -> Any:
        """Choose a method for numbers where the task says that numbers are predicted."""
        data = values.get("data") if isinstance(values, Mapping) else None
        task = data.get("task") if isinstance(data, Mapping) else getattr(data, "task", None)
        if task == "regression" and "method" not in values:
            return {**values, "method": NUMBERS_METHOD}
        return values

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Check names that depend on several sections."""
        kind, keep = self.task_kind, self.training.keep
        _checks.one_of(KINDS, kind, f"task of the method {type(self.method).__name__}")
        if kind not in self.method.tasks:
            name = METHODS.name_of(self.method)
            raise ValueError(f"{name} is for {' and '.join(self.method.tasks)}, not for {kind}")
        modes = Regression.modes if kind == "regression" else Classification.modes
        if keep not in (None, LAST):
            _checks.one_of([LAST, *modes, "loss"], keep, "metric to keep")
        if self.data.train_ood is not None and not self.method.ood_terms:
            name = METHODS.name_of(self.method)
            raise ValueError(
                f"train_ood is for methods that train with OOD inputs, not for {name!r}"
            )
        if self.data.class_weight == "balanced" and kind != "classification":
            raise ValueError("class_weight is for classification")
        if self.policy.max_width is not None and kind != "regression":
            raise ValueError("max_width is for regression: it is about intervals")
        named = {self.policy.score, self.policy.ood_score} - {*self.scores}
        needs_fit = any(score.needs_fit for score in self.posthoc)
        needs_fit |= any(SCORES[name].needs_fit for name in named if name and name in SCORES)
        if self.data.folds is not None and needs_fit:
            raise ValueError("posthoc scores are fitted to one network: train without folds")
        return self

    @model_validator(mode="after")
    def _check_scores(self) -> Self:
        """Check the names of scores."""
        kind = self.task_kind
        for option in ("error_score", "ood_score"):
            name = getattr(self.method, option)
            if name not in self.scores:
                method = METHODS.name_of(self.method)
                known = _checks.listed(self.scores)
                raise ValueError(f"method {method!r}: {option} is {name!r}, not one of {known}")
        for name, score in ((SCORES.name_of(score), score) for score in self.posthoc):
            if kind not in score.tasks:
                raise ValueError(f"the score {name!r} is not for {kind}")
        for option in ("score", "ood_score"):
            name = getattr(self.policy, option)
            if name not in (None, *self.scores):
                others = [name for name, score in SCORES.items() if kind in score.tasks]
                _checks.one_of([*dict.fromkeys((*self.scores, *others))], name, option)
        return self

    def open(self, source: Any, split: str = "train") -> Source:
        """Open training data in the format that the backbone wants, but for what is set.

        The backbone "auto" depends on the format that fits the data.

        Args:
            source: Data, such as `self.data.source`.
            split: Part of the data.
        """
        if self.data.format is None and self.backbone["name"] == AUTO:
            return self.data.open(source, split, format=self._wanted, resize=True)
        wanted = None if self.data.format is not None else self.inputs()
        format = self.data.format if wanted is None else wanted.inputs
        tokenizer = getattr(wanted and wanted.inputs, "tokenizer", None)
        if tokenizer is not None:  # the length is that of the texts
            return self.data.open(source, split, format=None, tokenizer=tokenizer)
        return self.data.open(source, split, format=format and self._shaped(format), resize=True)

    def _wanted(self, fitted: InputFormat) -> InputFormat:
        """Return the format of the backbone that "auto" means for a format fitted to the data."""
        wanted = self.resolved(fitted).inputs()
        return fitted if wanted is None else self._shaped(wanted.inputs) or fitted

    def for_target(self, target: Any) -> Self:
        """Return this configuration, for regression if no method is set and targets are numbers.

        Args:
            target: Targets of the training data.
        """
        is_set = "method" in self.model_fields_set or self.data.task is not None
        if is_set or not are_numbers(target):
            return self
        return self.merge(self, {"task": "regression"})

    def _shaped(self, format: InputFormat) -> InputFormat | None:
        """Return a format with the size, mode and fit that are set; None if it has none."""
        changes = {name: getattr(self.data, name) for name in SHAPING}
        if all(value is None for value in changes.values()):
            return format
        return format.changed(**changes) if isinstance(format, ImageFormat) else None

    def resolved(self, format: InputFormat) -> Self:
        """Return this configuration with the name of the backbone that "auto" means.

        Args:
            format: Format of the inputs.
        """
        if self.backbone["name"] != AUTO:
            return self
        kind = FORMATS.name_of(format)
        name = default_for(format.shape, kind, self.task_kind, pretrained=True)
        entry = BACKBONES.build({**self.backbone, "name": name})
        return self.model_copy(update={"backbone": BACKBONES.to_dict(entry)})

    def inputs(self) -> Preprocessing | None:
        """Return format and normalization that the backbone expects; None: any will do."""
        is_auto = self.backbone["name"] == AUTO
        return None if is_auto else BACKBONES.build(self.backbone).inputs()

    def input_warning(self) -> str | None:
        """Return a warning about settings that contradict the backbone's inputs, or None."""
        given = {name: getattr(self.data, name) for name in INPUTS}
        given = {name: value for name, value in given.items() if value is not None}
        if not given or (wanted := self.inputs()) is None:
            return None
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        normal = "" if wanted.mean is None else f", mean {wanted.mean}, deviation {wanted.std}"
        return f"{shown} replaces what the backbone expects: {wanted.inputs}{normal}"

    @property
    def task_kind(self) -> str:
        """What the target is: "classification" or "regression"."""
        return self.data.task or self.method.tasks[0]

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores of a prediction, post-hoc scores included."""
        return (*method_scores(self.method), *map(SCORES.name_of, self.posthoc))

    @property
    def selection(self) -> float:
        """Share of the samples that chooses the epoch."""
        if self.data.selection is not None:
            return self.data.selection
        chooses = self.task_kind == "regression" or self.training.keep not in (None, LAST)
        return SELECTION if chooses else 0.0

    def divide(self, source: Source) -> list[Parts]:
        """Divide training data at random into parts with one purpose each.

        Selection samples and folds have every class in the same proportion; calibration samples are
        drawn regardless of it, as the proof of a policy needs.

        Args:
            source: Training data.

        Returns:
            The parts; with folds those of each fold, whose calibration samples are the fold.
        """
        if self.data.folds is not None:
            return self._folds(source, self.data.folds)
        rows = list(range(len(source)))
        shares = {"calibration": self.data.calibration, "selection": self.selection}
        found: dict[str, list[int]] = {}
        left = 1.0
        for name, share in shares.items():
            if share:
                balanced = name != "calibration"
                rows, found[name] = self._split(source, rows, 1 - share / left, balanced)
                left -= share
        # Ranges come from the training samples alone: the guarantee is about calibration samples
        # that pass the same filter as future inputs.
        fitted = source.refit(rows)
        held_out = {name: fitted.subset(own) for name, own in found.items()}
        selection, calibration = held_out.get("selection"), held_out.get("calibration")
        return [Parts(fitted.subset(rows), selection, calibration)]

    def _split(
        self, source: Source, rows: list[int], fraction: float, balanced: bool = True
    ) -> tuple[list[int], list[int]]:
        stratify = balanced and self.task_kind == "classification"
        both = data.split(source.subset(rows), fraction, self.data.split_seed, stratify=stratify)
        first, second = ([rows[index] for index in part.indices] for part in both)
        return first, second

    def _folds(self, source: Source, count: int) -> list[Parts]:
        """Return the parts of each fold; the folds have nearly one size."""
        rows, folds, parts = list(range(len(source))), [], []
        for left in range(count, 1, -1):
            rows, fold = self._split(source, rows, 1 - 1 / left)
            folds.append(fold)
        for fold in (*folds, rows):
            rest, selection = sorted({*range(len(source))} - {*fold}), None
            if self.selection:
                rest, chosen = self._split(source, rest, 1 - self.selection)
                selection = source.subset(chosen)
            parts.append(Parts(source.subset(rest), selection, source.subset(fold)))
        return parts

    @classmethod
    def merge(
        cls,
        config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None,
        settings: Mapping[str, Any],
    ) -> Self:
        """Create from a configuration and settings that override it.

        Args:
            config: Configuration, its sections as a dict, or the path of a .toml or .json file;
                the model.json of an earlier run will do.
            settings: Values by field ("lr"), by section and field ("training.lr"), or by section;
                options of an entry by its setting ("method.kl_weight", "augment.scale",
                "posthoc.knn.k").
        """
        if isinstance(config, str | os.PathLike):
            config = read_config(config)
        sections: Any = dict(config or {}) if not isinstance(config, RunConfig) else None
        if isinstance(config, RunConfig):  # without defaults, which would look as if they were set
            sections = config.model_dump(exclude_unset=True)
        changes = [(_path(key), value) for key, value in settings.items()]
        for path, value in sorted(changes, key=lambda change: len(change[0])):
            sections = _changed(sections, path, value)  # options after the name of their entry
        return validated(cls, sections)

    def identity(self) -> Json:
        """Return the settings that determine the trained weights, by section and field."""
        values = self.model_dump(mode="json", include={"data", "method", "backbone"})
        scores = [SCORES.to_dict(score) for score in self.posthoc]
        values |= {"training": self.training.identity(), "posthoc": {"scores": scores}}
        return {f"{section}.{key}": v for section in values for key, v in values[section].items()}


def method_scores(method: Method) -> tuple[str, ...]:
    """Return the names of the scores of a method's predictions.

    Args:
        method: The method.
    """
    # They follow from the kind of distribution, whatever the number of classes.
    return method.scores(Classification(classes=("0", "1")))


def _path(key: str) -> list[str]:
    """Return the section of a setting, its field and the option of an entry there."""
    first, *rest = key.split(".")
    return [*SHORT.get(first, first).split("."), *rest]


def _changed(before: Any, path: Sequence[str], value: Any) -> Any:
    """Return a section, an entry or a list of entries with the value at a path replaced."""
    if not path:  # the same entry keeps its options
        return before if isinstance(before, Mapping) and value == before.get("name") else value
    first, *rest = path
    if isinstance(before, list | tuple):
        return with_option(before, ".".join(path), value)
    if isinstance(before, BaseModel):
        before = before.model_dump(exclude_unset=True)
    elif isinstance(before, str):
        before = {"name": before}
    values = before if isinstance(before, Mapping) else {}
    default = () if first == POSTHOC else None
    return {**values, first: _changed(values.get(first, default), rest, value)}


def with_option(scores: Sequence[Any], option: str, value: Any) -> list[Any]:
    """Set an option of a post-hoc score, which is added if it is not there.

    Args:
        scores: Names, dicts with a name, or scores.
        option: Name of the score and its option: "knn.k".
        value: Value of the option.
    """
    name, _, field = option.partition(".")
    dicts = [SCORES.to_dict(one) if isinstance(one, Score) else one for one in scores]
    named = [{"name": one} if isinstance(one, str) else dict(one) for one in dicts]
    found = [one for one in named if one.get("name", "").partition(":")[0] == name]
    if not found:
        named.append({"name": name})
    for one in found or named[-1:]:
        one[field] = value
    return named


#: field of a section -> the same with its section
SHORT = {
    name: f"{section}.{name}"
    for section, field in RunConfig.model_fields.items()
    if isinstance(field.default, BaseModel)
    for name in type(field.default).model_fields
}


def read_config(path: str | os.PathLike[str]) -> Json:
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
        if part not in model.model_fields:  # a key of a mapping
            continue
        kind = model.model_fields[part].annotation
        model = next(one for one in (kind, *get_args(kind)) if hasattr(one, "model_fields"))
    return [*short, *model.model_fields]
