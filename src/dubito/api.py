"""The functions behind the commands: train, evaluate, predict, calibrate, export.

A training run is described by a `RunConfig`, which is saved with the model. The other functions
take a model, or the folder of one. Training is imported when it is used: prediction needs none of
it.

>>> from tempfile import TemporaryDirectory
>>> from dubito.api import evaluate, train
>>> with TemporaryDirectory() as out:
...     model = train("digits", out=out, epochs=5, lr=0.005, report=False)
...     result = evaluate(out, noise=[0.5])
>>> result["metrics"]["accuracy"] > 0.8, list(result["noise"])
(True, ['0.5'])
"""

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, TextIO

import numpy as np
import torch
from torch import nn

from dubito import _checks, onnx
from dubito import data as datasets
from dubito._files import atomic_path, atomic_write, json_text, make_folder
from dubito.data import Source
from dubito.data.sources import is_known, parts
from dubito.errors import DubitoError
from dubito.model import Model, Prediction
from dubito.model.folder import seed_folders
from dubito.plugins import import_function, load_plugins
from dubito.report import check_packages
from dubito.scores import SCORES
from dubito.types import Json, Options

if TYPE_CHECKING:
    from dubito.config import RunConfig

__all__ = ["calibrate", "evaluate", "export", "load", "predict", "train", "wrap"]

AnyPath = str | os.PathLike[str]
#: a model, or the folder of one
AnyModel = Model | AnyPath
#: function that builds a network, or its name: "module:function" or "file.py:function"
Factory = str | Callable[[], nn.Module]
FORMATS = ("csv", "jsonl")
#: rows that are converted for a file at once
PORTION = 10_000

load = Model.load


def find_device(name: str) -> torch.device:
    """Return a device by name.

    Args:
        name: "auto", "cpu" or "cuda".
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DubitoError(f"unknown device {name!r}; known: 'auto', 'cpu', 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DubitoError(f"the device {name!r} needs a GPU, and torch finds none")
    return device


def load_model(model: AnyModel, device: str = "cpu", network: Factory | None = None) -> Model:
    """Return a model, or load it.

    Args:
        model: Model, or the folder of one.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
    """
    if isinstance(model, Model):
        return model
    factory = import_function(network) if isinstance(network, str) else network
    return Model.load(model, network=factory, device=find_device(device))


def train(
    data: Any = None,
    *,
    out: AnyPath,
    config: Any = None,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    report: bool = True,
    tensorboard: bool = False,
    finish: bool = False,
    freeze: bool = False,
    callbacks: Sequence[Any] = (),
    on_start: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Model | list[Model]:
    """Train a model, calibrate it and fit its policy.

    A pretrained network is fine-tuned from a head on its features, a first model that is saved.

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
        finish: End an interrupted training now: make a model of the weights in its checkpoint.
        freeze: Train only the head of a pretrained network; the same call without it fine-tunes.
        callbacks: Objects whose methods are called at the events of the training.
        on_start: Function that is called with a line about data and model, such as `print`.
        **settings: Fields of the sections of `RunConfig`: `epochs=5`, `method="edl"`,
            `error_rate=0.01`, or with the section: `{"training.epochs": 5}`.

    Returns:
        The model, or a model for each of `seeds`.
    """
    from dubito.config import RunConfig
    from dubito.pipeline import Pipeline
    from dubito.runs import Runs
    from dubito.training import parallel

    load_plugins()
    settings |= _place(data)
    run = RunConfig.merge(config, settings)
    if report and (run.data.calibration or run.data.folds):  # of these samples
        check_packages()
    source = run.data.source if data is None or "data.source" in settings else data
    if source is None:
        raise DubitoError("there is nothing to train on: pass data, or data.source in the config")
    if run.data.train_ood is not None:
        parts(run.data.train_ood)  # it exists
    if run.backbone["name"] == "module":
        import_function(run.backbone["path"])  # it exists, too
    chosen = [run.training.seed] if seeds is None else list(seeds)
    if len({*chosen}) < max(1, len(chosen)):
        raise DubitoError(f"seeds must be distinct numbers, at least one, not {seeds}")
    folders = {s: Path(out) if seeds is None else Path(out) / f"seed-{s}" for s in chosen}
    with parallel.process_group() as own_device:
        place = own_device or find_device(device)
        opened = run.open(source)
        run = run.for_target(opened.target)
        pipeline = Pipeline(run.resolved(opened.format), device=place, callbacks=callbacks)
        prepared = pipeline.prepare(opened)
        runs = Runs(pipeline, prepared, folders, report=report, finish=finish, freeze=freeze)
        models = runs.train(tensorboard=tensorboard, on_start=on_start)
    return models[0] if seeds is None else models


def wrap(
    network: Any,
    data: Any,
    *,
    out: AnyPath | None = None,
    weights: str | None = None,
    classes: Sequence[str] | None = None,
    check: Any = None,
    calibration: float = 0.7,
    device: str = "auto",
    report: bool = True,
    on_start: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Model:
    """Make a model of a network that is already trained, without training.

    A part of the data fits the scores, the rest calibration and policy. The promise of the policy
    holds if none of these samples trained the network or chose its epoch.

    Args:
        network: Classifier trained with cross entropy: "hf:FOLDER", "timm:NAME", or
            "module:file.py:function" for a function without arguments that builds it; or a module
            from normalized inputs to logits (N, classes).
        data: Labeled data that the network was not trained on: image folder, .npz or .csv file,
            known name; or arrays (inputs, target), or a DataFrame.
        out: Folder of the model; None does not save it.
        weights: Weights of a module: a .safetensors file, or what torch.save wrote of its state
            dict.
        classes: Names of the classes in the order of the outputs; by default those of the
            checkpoint, or those of the data, sorted.
        check: Function from a list of files, or other inputs, to the outputs or labels that your
            own loop has for them; it gets images of each kind in the data. Or a pair of both.
        calibration: Share of the samples for calibration and policy; the others fit the scores.
        device: "auto", "cpu" or "cuda".
        report: Write report.html.
        on_start: Function that is called with a line about data and model, such as `print`.
        **settings: Fields of data and policy in `RunConfig`, and further scores: `size=224`,
            `error_rate=0.01`, `posthoc=["knn"]`.
    """
    from dubito import wrapping

    if report and out is not None:
        check_packages()
    load_plugins()
    trained = wrapping.Trained.read(network, weights)
    run = wrapping.configuration(trained, calibration, settings | _place(data))
    source = data if run.data.source is None else run.data.source
    return wrapping.wrap(
        trained, run, source, find_device(device), classes=classes, check=check,
        out=None if out is None else Path(out), report=report, on_start=on_start,
    )  # fmt: skip


def _place(data: Any) -> Options:
    """Return the setting that says where data is, unless it is in memory."""
    if not isinstance(data, str | os.PathLike):
        return {}
    return {"data.source": str(data if is_known(data) else Path(data).expanduser().resolve())}


def predict(
    model: AnyModel,
    inputs: AnyPath | Sequence[AnyPath] | Any,
    *,
    out: AnyPath | None = None,
    format: Literal["csv", "jsonl"] | None = None,
    scores: Sequence[str] = (),
    batch_size: int | None = None,
    device: str = "auto",
    network: Factory | None = None,
) -> Prediction:
    """Predict with a model: value, probability, uncertainty, accept or abstain.

    An input that cannot be read has an error in its row and does not affect the others.

    Args:
        model: Model, or the folder of one.
        inputs: Images and folders of images; or a .csv, .parquet or .npz file; or arrays, a
            DataFrame, a list of dicts.
        out: File for the rows.
        format: Format of that file: "csv" or "jsonl"; by default that of its name, else csv.
        scores: Further scores: "max_prob", "vacuity", ...
        batch_size: Inputs at once; by default as many as fit into memory.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
    """
    if format is not None:
        _checks.one_of(FORMATS, format, "format")
    loaded = load_model(model, device, network)
    known = (*loaded.method.scores(loaded.task), *loaded.scores)
    for name in scores:
        _checks.one_of(known, name, "score")
    source = datasets.open(
        inputs, "all", format=loaded.preprocessing.inputs, labeled=False, on_error="report"
    )
    prediction = loaded.predict(source, batch_size=batch_size, on_error="report")
    if out is not None:
        suffix = Path(out).suffix.lower()[1:]
        kind = format or (suffix if suffix in FORMATS else "csv")
        with atomic_path(Path(out)) as partial, partial.open("w", newline="") as file:
            write_rows(prediction, file, kind, scores)
    return prediction


def write_rows(
    prediction: Prediction, file: TextIO, format: str = "csv", scores: Sequence[str] = ()
) -> None:
    """Write the rows of a prediction.

    Args:
        prediction: Prediction of any number of inputs.
        file: Open text file.
        format: "csv" or "jsonl".
        scores: Further scores.
    """
    writer = csv.writer(file, lineterminator="\n")
    for start in range(0, len(prediction), PORTION):
        part = prediction[start : start + PORTION]
        if format == "jsonl":
            for row in part.rows(scores):
                file.write(json.dumps(_rounded(row), ensure_ascii=False, allow_nan=False) + "\n")
            continue
        columns = part.columns(scores)
        if not start:
            writer.writerow(columns)
        writer.writerows(map(_cell, row) for row in zip(*columns.values(), strict=True))


def _rounded(value: Any) -> Any:
    """Round to six digits, about those of float32."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _cell(value: Any) -> Any:
    """Return a value for a .csv file; pandas separates the names of a set with `sep="|"`."""
    return "|".join(value) if isinstance(value, list) else _rounded(value)


def export(
    model: AnyModel,
    path: AnyPath,
    *,
    scores: Sequence[str] | None = None,
    floats: bool = False,
    network: Factory | None = None,
) -> Any:
    """Write a model as an ONNX file that needs neither torch nor dubito.

    The file has preprocessing, network, calibration, scores and policy, and is compared with torch
    before it gets its name.

    Args:
        model: Model, or the folder of one.
        path: File to write.
        scores: Further scores; by default none.
        floats: Take images as numbers in [0, 1] rather than bytes.
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
    """
    return onnx.export(load_model(model, "cpu", network), path, scores=scores, floats=floats)


def evaluate(
    model: AnyModel,
    data: Any = None,
    *,
    ood: Sequence[str] | Mapping[str, Any] = (),
    noise: Sequence[float] = (),
    resize: bool = False,
    out: AnyPath | None = None,
    report: bool = True,
    seed: int = 0,
    device: str = "auto",
    network: Factory | None = None,
) -> Json:
    """Evaluate a model: metrics, detection of errors and OOD inputs, policy.

    Samples are the test part of the training data; without a test part the calibration samples, to
    which calibration and policy were fitted, so that their figures may be a little good.

    Args:
        model: Model, or the folder of one, or of the models of several seeds.
        data: Other labeled data: known name, image folder, .npz or .csv file, arrays, DataFrame.
        ood: Out-of-distribution inputs to detect: known names or paths; or data of any kind, each
            with a name.
        noise: Standard deviations of normal noise; noisy samples are to be detected.
        resize: Convert images of another size, gray or in color.
        out: File for the result, JSON; by default evaluation/result.json in the model's folder.
        report: Write report.html beside that default file; of several seeds, for the first.
        seed: Seed of the noise.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".

    Returns:
        The result; of several seeds {"mean", "std"} for each number.
    """
    places = _named(ood)
    for place in places.values():
        parts(place)  # it exists
    if report and out is None and not isinstance(model, Model):
        check_packages()
    folders = [model] if isinstance(model, Model) else seed_folders(Path(model))
    results: list[Json] = []
    for folder in folders:
        loaded = load_model(folder, device, network)
        source, part = _labeled(loaded, data, resize)
        options: Any = {"format": loaded.preprocessing.inputs, "resize": resize, "labeled": False}
        unlabeled = {
            name: datasets.open(place, _test_part(place), **options)
            for name, place in places.items()
        }
        prediction = loaded.predict(source)
        foreign = {name: loaded.predict(inputs) for name, inputs in unlabeled.items()}
        items = source if noise else prediction  # noise is added to inputs
        metrics = loaded.evaluate(items, source, ood=foreign, noise=noise, seed=seed)
        if not results:
            pairs = {name: (inputs, foreign[name]) for name, inputs in unlabeled.items()}
            shown = loaded, source, prediction
        results.append({"data": source.name, "part": part, **metrics})
    result: Json = results[0] if len(results) == 1 else averaged(results)
    place = None
    if out is None and not isinstance(model, Model):
        place = make_folder(Path(model) / "evaluation")
        out = place / "result.json"
    if out is not None:
        atomic_write(Path(out), json_text(result))
    if report and place is not None:
        from dubito.report.page import View

        View(*shown, evaluation=results[0], foreign=pairs).write(place)
    return result


def calibrate(
    model: AnyModel,
    data: Any = None,
    *,
    posthoc: Sequence[str | Mapping[str, Any]] = (),
    coverage: float | None = None,
    out: AnyPath | None = None,
    device: str = "auto",
    network: Factory | None = None,
    **settings: Any,
) -> Model:
    """Refit calibration and policy of a finished model, perhaps with further scores.

    A policy that accepts predictions is not replaced by one that accepts none: that is an error.

    Args:
        model: Model, or the folder of one, which is updated.
        data: Labeled data that was not used for training; by default the calibration samples.
        posthoc: Post-hoc scores to add or replace, names or dicts with options, fitted to the
            training samples; `score` and `ood_score` may name them.
        coverage: Guarantee this share of accepted predictions in place of an error rate.
        out: Folder for the new model.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
        **settings: Fields of the policy in `RunConfig`: `error_rate=0.01`, `confidence=0.9`, ...;
            default as in training.
    """
    from dubito.config import PolicyConfig, validated
    from dubito.pipeline import Pipeline, refit

    loaded = load_model(model, device, network)
    run = _recorded(loaded)
    policy = validated(PolicyConfig, run.policy.model_dump() | settings)
    built = {SCORES.name_of(score): score for score in map(SCORES.build, posthoc)}
    own = loaded.method.scores(loaded.task)
    known = (*own, *loaded.scores, *built)
    for name in filter(None, (policy.score, policy.ood_score)):
        _checks.one_of(known, name, "score")
    for name in built.keys() & loaded.scores.keys():  # it may have other options
        del loaded.scores[name]
    if data is None or any(score.needs_fit for score in built.values()):
        pipeline = Pipeline(run)
        prepared = pipeline.prepare(_training_data(loaded))
        pipeline.add_scores(loaded, [*built.values()], prepared)
    else:
        loaded.add_scores(built.values(), None)
    if data is None:
        prediction, samples = pipeline.held_out(loaded, prepared), prepared.calibration
        assert samples is not None
    else:
        samples, _ = _labeled(loaded, data)
        prediction = loaded.predict(samples)
    if loaded.record is not None:  # the policy may name new scores
        named = {SCORES.name_of(score): score for score in run.posthoc} | built
        scores = [SCORES.to_dict(score) for score in named.values()]
        config = {**loaded.record.config, "posthoc": scores}
        loaded.record = loaded.record.model_copy(update={"config": config})
    refit(loaded, prediction, samples, policy, coverage)
    folder = model if out is None else out
    if not isinstance(folder, Model):
        loaded.save(folder)
    return loaded


def _named(data: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Return data by name; that of a path is the path."""
    if isinstance(data, Mapping):
        return {str(name): place for name, place in data.items()}
    if not isinstance(data, str) and all(isinstance(one, str | os.PathLike) for one in data):
        return {str(place): place for place in data}
    raise DubitoError("ood must be a list of names or paths, or a dict: ood={'noise': array}")


def _test_part(source: Any) -> str:
    return "test" if "test" in parts(source) else "all"


def _labeled(model: Model, data: Any, resize: bool = False) -> tuple[Source, str]:
    """Return samples to evaluate with, and which part of the data they are."""
    run = _recorded(model)
    place = run.data.source if data is None else data
    part = _test_part(place)
    if data is None and part == "all":
        if run.data.folds is not None:
            raise DubitoError(
                "every sample trained some networks of this ensemble: pass data to evaluate with"
            )
        found = run.divide(_training_data(model))[0].calibration
        if found is None:
            raise DubitoError("this model was trained without calibration samples: pass data")
        return found, "calibration"
    resize = resize or data is None  # as in training
    return run.data.open(place, part, format=model.preprocessing.inputs, resize=resize), part


def _recorded(model: Model) -> "RunConfig":
    """Return the configuration that a model was trained with; the default one if it is unknown."""
    from dubito.config import RunConfig

    return RunConfig.merge(None if model.record is None else model.record.config, {})


def _training_data(model: Model) -> Source:
    """Return all samples of the training data, if it is the same as then."""
    run = _recorded(model)
    if run.data.source is None or model.record is None:
        raise DubitoError("the calibration samples of this model are unknown: pass data")
    source = run.open(run.data.source)
    if source.fingerprint() != model.record.fingerprint:
        raise DubitoError(
            f"{run.data.source} has changed since the training, so the calibration samples are "
            "unknown: pass data"
        )
    return source


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
