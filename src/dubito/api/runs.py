"""Train, evaluate and calibrate."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import data as datasets
from dubito._files import atomic_write, json_text, make_folder
from dubito.api import AnyModel, AnyPath, find_device, load_model
from dubito.api.config import DataConfig, PolicyConfig, RunConfig, validated
from dubito.data import Source
from dubito.data.sources import parts
from dubito.errors import DubitoError
from dubito.formats import Preprocessing
from dubito.methods import METHODS, Method
from dubito.model import Model, Prediction
from dubito.model._folder import MODEL, TrainingRecord
from dubito.plugins import load_plugins
from dubito.tasks import Classification, Regression, Task
from dubito.training import JSONLines, TensorBoard, Trainer, _parallel
from dubito.training._run import CHECKPOINT, History
from dubito.training.callbacks import Callback

__all__ = ["calibrate", "evaluate", "train"]

#: streamed inputs, and their bytes, that determine means and deviations
MAX_FITTED, FITTED_BYTES = 4096, 1 << 27


class _Prepared(NamedTuple):
    """Training data, opened and divided."""

    task: Task
    train: Source
    validation: Source
    fingerprint: str


def train(
    data: Any = None,
    *,
    out: AnyPath,
    config: RunConfig | Mapping[str, Any] | AnyPath | None = None,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    report: bool = True,
    tensorboard: bool = False,
    callbacks: Sequence[Callback] = (),
    on_start: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Model | list[Model]:
    """Train a model, calibrate it and fit its policy.

    The same call resumes a run that was interrupted, with the same result, and returns the model of
    a finished run. A finished run with another policy only gets the new policy.

    Args:
        data: Known name, image folder, .npz, .csv or .parquet file; or arrays (inputs, target), or
            a DataFrame.
        out: Folder of the model.
        config: Configuration, or the path of a .toml or .json file with its sections; settings
            override it.
        seeds: Train a model for each of these seeds, in OUT/seed-0 and so on.
        device: "auto", "cpu" or "cuda".
        report: Write report.html.
        tensorboard: Write scalars for TensorBoard.
        callbacks: Functions that are called during training.
        on_start: Function that is called with a line about data and model, such as `print`.
        **settings: Fields of the sections of `RunConfig`: `epochs=5`, `method="edl"`,
            `error_rate=0.01`, or with the section: `{"training.epochs": 5}`.

    Returns:
        The model, or a model for each of `seeds`.
    """
    load_plugins()
    if isinstance(data, str | os.PathLike):
        is_known = data in datasets.DATASETS
        settings["data.source"] = str(data if is_known else Path(data).expanduser().resolve())
    run = RunConfig.merge(config, settings)
    source = run.data.source if data is None or "data.source" in settings else data
    if source is None:
        raise DubitoError("there is nothing to train on: pass data, or data.source in the config")
    runs = {Path(out): run}
    if seeds is not None:
        runs = {Path(out) / f"seed-{s}": RunConfig.merge(run, {"seed": s}) for s in seeds}
        if len(runs) < max(1, len(seeds)):
            raise DubitoError(f"seeds must be distinct numbers, at least one, not {seeds}")
    with _parallel.process_group() as own_device:
        place = own_device or find_device(device)
        prepared = _prepare(run, source)
        models: Any = {folder: _finished(folder, runs[folder], prepared) for folder in runs}
        missing = {folder: runs[folder] for folder in runs if models[folder] is None}
        places = [(folder, config.training.seed) for folder, config in missing.items()]
        logs: list[Callback] = [JSONLines(path / "metrics.jsonl", seed=s) for path, s in places]
        if tensorboard:
            logs += [TensorBoard(path / "tensorboard", seed=s) for path, s in places]
        if missing:
            models |= _fit(missing, prepared, place, (*logs, *callbacks), on_start, report)
    return models[Path(out)] if seeds is None else [models[folder] for folder in runs]


def _prepare(run: RunConfig, data: Any) -> _Prepared:
    source = run.data.open(data)
    if source.target is None:
        raise DubitoError(f"{source.name} has no target to learn")
    task: Task
    if (run.data.task or METHODS.build(run.method).tasks[0]) == "regression":
        task = Regression.from_target(source.target, tolerance=run.data.tolerance)
        return _Prepared(task, *run.data.divide(source, task), source.fingerprint())
    values = np.asarray(source.target)
    is_number = values.dtype.kind == "f" and len(np.unique(values)) > len(values) / 2
    if is_number and run.data.task is None:
        raise DubitoError(
            f"the target of {source.name} looks like a number, not a class: use the method 'der' "
            "for regression, or task='classification'"
        )
    task = Classification.from_target(source.target)
    train, validation = run.data.divide(source, task)
    counts = torch.bincount(task.encode(train.target), minlength=task.size).tolist()
    task = task.model_copy(update={"counts": tuple(counts)})
    return _Prepared(task, train, validation, source.fingerprint())


def _finished(folder: Path, run: RunConfig, prepared: _Prepared) -> Model | None:
    """Return the model of a finished run; raise if the folder contains another run."""
    if not (folder / MODEL).exists() or (folder / CHECKPOINT).exists():
        return None
    model = Model.load(folder)
    if model.record is None:
        raise DubitoError(
            f"{folder} contains a model that was trained elsewhere: choose another folder"
        )
    before = _recorded(model)
    saved = {**before.identity(), "fingerprint": model.record.fingerprint}
    for key, value in {**run.identity(), "fingerprint": prepared.fingerprint}.items():
        if saved.get(key) != value:
            raise DubitoError(
                f"{folder} contains another run: its {key} is {saved.get(key)!r}, not {value!r}; "
                "choose another folder"
            )
    if before.policy != run.policy and _parallel.rank() == 0:
        _refit(model, prepared.validation, run.policy)
        model.save(folder)
    return model


def _fit(
    runs: Mapping[Path, RunConfig],
    prepared: _Prepared,
    device: torch.device,
    callbacks: Sequence[Callback],
    on_start: Callable[[str], Any] | None,
    report: bool,
) -> dict[Path, Model]:
    """Train a model in each folder, or resume; then calibrate, fit the policy and save."""
    run, task = next(iter(runs.values())), prepared.task
    method = METHODS.build(run.method)
    train, validation = (
        _samples(run.data, part, task) for part in (prepared.train, prepared.validation)
    )
    inputs, source = train[0], prepared.train
    if not isinstance(inputs, Tensor):
        count = max(1, min(MAX_FITTED, FITTED_BYTES // source[0].nbytes))
        inputs = source.subset(range(0, len(source), -(-len(source) // count))).load()
    preprocessing = Preprocessing.fit(source.format, inputs, run.data.standardize)
    seeds = [config.training.seed for config in runs.values()]
    models = [Model.build(method, task, preprocessing, run.backbone, seed=seed) for seed in seeds]
    if warning := method.warning(task):
        warnings.warn(warning, stacklevel=3)
    if on_start is not None:
        on_start(_summary(models[0], prepared, device))
    histories = Trainer(run.training, callbacks=callbacks, device=device).fit_many(
        models, train, validation, seeds=seeds, ood=_train_ood(run, method, preprocessing),
        class_weight=_class_weight(run.data, task), out=list(runs),
    )  # fmt: skip
    for folder, model, history in zip(runs, models, histories, strict=True):
        if _parallel.rank() == 0:
            _finish(model, folder, runs[folder], prepared, history, report)
    return dict(zip(runs, models, strict=True))


def _summary(model: Model, prepared: _Prepared, device: torch.device) -> str:
    """Describe data and model in a line."""
    task, backbone = model.task, model.backbone or {"name": "custom"}
    classifies = task.kind == "classification"
    target = f"{task.size} classes" if classifies else f"target {', '.join(task.names)}"
    return (
        f"{prepared.train.name}: {len(prepared.train):,} training and "
        f"{len(prepared.validation):,} validation samples of shape {model.preprocessing.shape}, "
        f"{target}; method {METHODS.name_of(model.method)}, backbone {backbone['name']}, {device}"
    )


def _samples(config: DataConfig, source: Source, task: Task) -> Any:
    """Return inputs, in memory if they fit, and encoded targets."""
    stream = not source.is_in_memory if config.stream is None else config.stream
    return source if stream else source.load(), task.encode(source.target)


def _class_weight(config: DataConfig, task: Task) -> Tensor | None:
    """Return weights with which all classes count alike, 1 on average over the samples."""
    if config.class_weight is None:
        return None
    if not isinstance(task, Classification) or task.counts is None:
        raise DubitoError("class_weight is for classification")
    counts = torch.tensor(task.counts, dtype=torch.float64)
    return (counts.sum() / (len(counts) * counts)).float()


def _train_ood(run: RunConfig, method: Method, preprocessing: Preprocessing) -> Tensor | None:
    source = run.data.train_ood
    if source is None:
        return None
    if not method.ood_terms:
        name = run.method["name"]
        raise DubitoError(f"train_ood is for methods that train with OOD inputs, not for {name!r}")
    return datasets.open(source, "train", format=preprocessing.inputs, labeled=False).load()


def _finish(
    model: Model, folder: Path, run: RunConfig, prepared: _Prepared, history: History, report: bool
) -> None:
    """Add scores, calibration, policy and record, save, and remove the checkpoint."""
    for score in run.posthoc:
        model.add_score(score, prepared.train)
    device = next(model.parameters()).device
    model.record = TrainingRecord(
        config=run.model_dump(mode="json"),
        seed=run.training.seed,
        epochs=len(history.records),
        best_epoch=history.best_epoch,
        seconds=history.seconds,
        train_samples=len(prepared.train),
        validation_samples=len(prepared.validation),
        fingerprint=prepared.fingerprint,
        metrics=history.best["validation"],
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )
    prediction = _calibrate(model, prepared.validation, run.policy.model_dump())
    model.save(folder)
    if report:
        from dubito.report._training import write

        write(model, folder, prepared.validation, prediction, history.records)
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _calibrate(model: Model, source: Source, policy: Mapping[str, Any]) -> Prediction:
    """Fit calibration and policy to one prediction of the samples, and return it with both."""
    prediction = model.predict(source)
    model.calibrate(prediction, source.target)
    if model.task.defines_errors or policy.get("coverage") is not None:
        model.fit_policy(prediction, source.target, **policy)
    return model.predict(prediction)


def evaluate(
    model: AnyModel,
    data: Any = None,
    *,
    ood: Sequence[str] = (),
    noise: Sequence[float] = (),
    resize: bool = False,
    out: AnyPath | None = None,
    seed: int = 0,
    device: str = "auto",
    network: str | Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Evaluate a model: metrics, detection of errors and OOD inputs, policy.

    Samples are the test part of the training data; without a test part the validation samples,
    which chose the weights, calibration and policy, so that the figures may be a little high.

    Args:
        model: Model, or the folder of one, or of the models of several seeds.
        data: Other labeled data: known name, image folder, .npz or .csv file, arrays, DataFrame.
        ood: Out-of-distribution inputs to detect: known names or paths.
        noise: Standard deviations of normal noise; noisy samples are to be detected.
        resize: Convert images of another size, gray or in color.
        out: File for the result, JSON; by default evaluation/result.json in the model's folder.
        seed: Seed of the noise.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".

    Returns:
        The result; of several seeds {"mean", "std"} for each number.
    """
    folders = [model] if isinstance(model, Model) else _seed_folders(Path(model))
    results = []
    for folder in folders:
        loaded = load_model(folder, device, network)
        source, part = _labeled(loaded, data, resize)
        options: Any = {"format": loaded.preprocessing.inputs, "resize": resize, "labeled": False}
        unlabeled = {str(name): datasets.open(name, _test_part(name), **options) for name in ood}
        metrics = loaded.evaluate(source, ood=unlabeled, noise=noise, seed=seed)
        results.append({"data": source.name, "part": part, **metrics})
    result: dict[str, Any] = results[0] if len(results) == 1 else averaged(results)
    if out is None and not isinstance(model, Model):
        out = make_folder(Path(model) / "evaluation") / "result.json"
    if out is not None:
        atomic_write(Path(out), json_text(result))
    return result


def _test_part(source: Any) -> str:
    return "test" if "test" in parts(source) else "all"


def _labeled(model: Model, data: Any, resize: bool = False) -> tuple[Source, str]:
    """Return samples to evaluate with, and which part of the data they are."""
    config = _recorded(model).data
    place = config.source if data is None else data
    part = _test_part(place)
    if data is None and part == "all":
        return _validation(model), "validation"
    return config.open(place, part, format=model.preprocessing.inputs, resize=resize), part


def _recorded(model: Model) -> RunConfig:
    """Return the configuration that a model was trained with; the default one if it is unknown."""
    return RunConfig.merge(None if model.record is None else model.record.config, {})


def _validation(model: Model) -> Source:
    """Return the validation samples of the training."""
    config = _recorded(model).data
    if config.source is None or model.record is None:
        raise DubitoError("the validation samples of this model are unknown: pass data")
    source = config.open(config.source)
    if source.fingerprint() != model.record.fingerprint:
        raise DubitoError(
            f"{config.source} has changed since the training, so the validation samples are "
            "unknown: pass data"
        )
    return config.divide(source, model.task)[1]


def _seed_folders(folder: Path) -> list[Path]:
    """Return the folder of a model, or those of its seeds: folder/seed-1, ..."""
    seeds = [path for path in folder.glob("seed-*") if (path / MODEL).exists()]
    if (folder / MODEL).exists() or not seeds:
        return [folder]
    return sorted(seeds, key=lambda path: int(path.name.removeprefix("seed-")))


def averaged(results: Sequence[Any]) -> Any:
    """Return mean and standard deviation of each number that all results have.

    >>> averaged([{"accuracy": 0.5, "samples": 9}, {"accuracy": 1.0, "samples": 9}])
    {'accuracy': {'mean': 0.75, 'std': 0.353...}, 'samples': 9}
    """
    first = results[0]
    if isinstance(first, Mapping):
        shared = [key for key in first if all(key in result for result in results)]
        return {key: averaged([result[key] for result in results]) for key in shared}
    if isinstance(first, float):
        spread = stdev(results) if np.isfinite(results).all() else None
        return {"mean": fmean(results), "std": spread}
    return first


def calibrate(
    model: AnyModel,
    data: Any = None,
    *,
    coverage: float | None = None,
    out: AnyPath | None = None,
    device: str = "auto",
    network: str | Callable[[], Any] | None = None,
    **settings: Any,
) -> Model:
    """Refit calibration and policy of a finished model.

    A policy that accepts predictions is not replaced by one that accepts none: that is an error.

    Args:
        model: Model, or the folder of one, which is updated.
        data: Labeled data that was not used for training; by default the validation samples.
        coverage: Guarantee this share of accepted predictions in place of an error rate.
        out: Folder for the new model.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
        **settings: Fields of the policy in `RunConfig`: `error_rate=0.01`, `confidence=0.9`, ...;
            default as in training.
    """
    loaded = load_model(model, device, network)
    source = _validation(loaded) if data is None else _labeled(loaded, data)[0]
    before = _recorded(loaded).policy.model_dump()
    _refit(loaded, source, validated(PolicyConfig, before | settings), coverage)
    folder = model if out is None else out
    if not isinstance(folder, Model):
        loaded.save(folder)
    return loaded


def _refit(
    model: Model, source: Source, config: PolicyConfig, coverage: float | None = None
) -> None:
    """Fit calibration and policy again, and record the configuration of the policy."""
    calibration, policy = model.calibration, model.policy
    _calibrate(model, source, {**config.model_dump(), "coverage": coverage})
    new = model.policy
    if new is not None and new.accepts_nothing and policy and not policy.accepts_nothing:
        model.calibration, model.policy = calibration, policy
        raise DubitoError(
            f"the model keeps its policy, because the new one would be {new!r}: pass more data, "
            "or allow more errors (error_rate)"
        )
    if model.record is not None:
        settings = {**model.record.config, "policy": config.model_dump()}
        model.record = model.record.model_copy(update={"config": settings})
