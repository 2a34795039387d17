"""The commands: their options and output."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from dubito.backbones import BACKBONES
from dubito.backbones.default import AUTO, CHOSEN
from dubito.cli import _display
from dubito.cli._generate import REQUIRED, Setting, command, of_fields, of_function, spelled
from dubito.formats import FORMATS
from dubito.methods import METHODS
from dubito.model import Model
from dubito.model.card import format_metric, recall_text, sanity_text
from dubito.model.folder import MODEL
from dubito.plugins import import_plugin, load_plugins
from dubito.registry import Registry
from dubito.scores import SCORES
from dubito.types import Options

Run = Callable[..., Any]
REPORT = "report.html"
#: those that always name one -> name where none is given
DEFAULTS = {"method": "iedl", "backbone": "auto"}
SOME_FAILED, INTERRUPTED = 1, 130  # exit statuses
#: parameters without an option
HIDDEN = {
    *("callbacks", "on_start", "progress", "data.source", "wrap.check"),
    *("backbone.path", "backbone.config", "backbone.expects"),
    *("serve.config", "service.token", "training.first_epoch"),
}
PLUGIN_HELP = "Module or .py file that registers methods, backbones, scores, formats, ..."
IMPORT = Setting("import", Sequence[str], (), PLUGIN_HELP)
VERBOSE = {
    "train": "Show the terms of the loss and all validation metrics.",
    "evaluate": "Show all scores.",
}


def add(app: typer.Typer, name: str, argv: Sequence[str]) -> None:
    """Generate a command.

    Args:
        app: App to add it to.
        name: Name of the command.
        argv: Arguments of the program, which determine the options of method and backbone.
    """
    for module in _option_values(argv, "import"):
        import_plugin(module)
    package, show = COMMANDS[name]
    function = getattr(import_module(package), name)
    settings = [*of_function(function), *_more_settings(name, argv), IMPORT]
    settings = [s for s in settings if not {s.name, f"{name}.{s.name}"} & HIDDEN]

    def call(**values: Any) -> None:
        values.pop("import", None)
        try:
            show(function, **values)
        except KeyboardInterrupt:
            hint = ""
            if name == "train":
                hint = (
                    ": run the same command again to resume, or with --finish to use what is there"
                )
                if any(Path(values["out"]).glob(f"**/{MODEL}")):
                    hint += f"; {values['out']} has a first model that can be used already"
            sys.stderr.write(f"interrupted{hint}\n")
            raise typer.Exit(INTERRUPTED) from None

    app.command(name, context_settings={"token_normalize_func": spelled})(
        command(function, call, settings)
    )


def _option_values(argv: Sequence[str], name: str) -> list[str]:
    """Return the values of an option in any spelling, before the command is generated.

    >>> _option_values(["train", "--augment=a", "--training.augment", "b"], "augment")
    ['a', 'b']
    """
    found = []
    for word, following in pairwise([*argv, ""]):
        option, equals, value = word.partition("=")
        if option.startswith("--") and spelled(option[2:]) == name:
            found.append(value if equals else following)
    return found


def _more_settings(name: str, argv: Sequence[str]) -> Iterator[Setting]:
    """Yield the options of a command that are not parameters of its function."""
    if name in ("train", "wrap", "calibrate", "fewshot"):
        load_plugins()
    if name in VERBOSE:
        yield Setting("verbose", bool, False, VERBOSE[name])
    if name == "train":
        yield from _run_settings(argv)
    elif name == "wrap":
        from dubito.wrapping import is_for_training

        yield from (one for one in _run_settings(argv) if not is_for_training(one.name))
    elif name == "calibrate":
        from dubito.config import PolicyConfig

        for setting in of_fields(PolicyConfig.model_fields):
            yield replace(setting, default=None)  # that of the training
        yield from _score_settings(argv)
    elif name == "fewshot":
        named = _option_values(argv, "method") or [DEFAULTS["method"]]
        yield from _entry_settings("method", named[-1], METHODS, argv)
    elif name == "serve":
        from dubito.serve import ServeConfig

        yield from of_fields(ServeConfig.model_fields, "service")


def _run_settings(argv: Sequence[str]) -> Iterator[Setting]:
    """Yield the fields of `RunConfig`, and the options of entries that are named."""
    from dubito.config import POSTHOC, RunConfig, read_config

    files = _option_values(argv, "config")
    config = read_config(files[-1]) if files else {}
    for section, field in RunConfig.model_fields.items():
        if section == POSTHOC:
            text = f"{field.description} {_one_of(section)}"
            yield Setting(section, Sequence[str], (), text, section.capitalize())
            yield from _score_settings(argv)
        elif isinstance(field.default, BaseModel):
            values = config.get(section)
            for setting in of_fields(type(field.default).model_fields, section):
                name = setting.name.partition(".")[2]
                value = values.get(name) if isinstance(values, Mapping) else None
                yield from _with_options(setting, value, argv)
        else:
            setting = Setting(section, str, None, field.description or "", section.capitalize())
            yield from _with_options(setting, config.get(section), argv)


def _with_options(setting: Setting, value: Any, argv: Sequence[str]) -> Iterator[Setting]:
    """Yield a setting, and the options of the entry that it names, by default `value`."""
    setting = replace(setting, help=f"{setting.help} {_one_of(setting.name)}".strip())
    registry = _registries().get(setting.name)
    if registry is None:
        yield setting
        return
    name = value.get("name") if isinstance(value, Mapping) else value
    name = name or DEFAULTS.get(setting.name)
    kind: Any = str if setting.name in DEFAULTS else str | None
    yield replace(setting, annotation=kind, default=name)
    named = _option_values(argv, spelled(setting.name)) or [name or ""]
    yield from _entry_settings(setting.name, named[-1], registry, argv)


def _entry_settings(
    section: str, name: str, registry: Registry[Any], argv: Sequence[str]
) -> Iterator[Setting]:
    """Yield the options of an entry, or those of all backbones that "auto" may choose."""
    field = section.rpartition(".")[2]
    if not any(word == "--help" or field in word for word in argv):
        return  # its module need not be imported
    if name.lower() not in ("", "none", AUTO):
        registry.find(name)  # if it is unknown, that is the error, and not its options
    settings: dict[str, Setting] = {}
    for one in CHOSEN if name == AUTO else (name.partition(":")[0],):
        for setting in of_fields(getattr(registry.get(one), "__pydantic_fields__", {}), section):
            settings.setdefault(setting.name, setting)
    for setting in settings.values():  # a file may have set what has no default
        yield replace(setting, default=None) if setting.default is REQUIRED else setting


def _score_settings(argv: Sequence[str]) -> Iterator[Setting]:
    """Yield the options of all post-hoc scores."""
    for name in SCORES:
        yield from _entry_settings(f"posthoc.{name}", name, SCORES, argv)


def _registries() -> dict[str, Registry[Any]]:
    """Return the registries of settings that name an entry."""
    from dubito.augmentations import AUGMENTATIONS

    return {
        "data.format": FORMATS, "method": METHODS, "backbone": BACKBONES,
        "training.augment": AUGMENTATIONS,
    }  # fmt: skip


def _one_of(name: str) -> str:
    """List the names that a setting may have."""
    from dubito.training.config import OPTIMIZERS

    names: dict[str, Iterable[str]] = {
        **_registries(), "backbone": [AUTO, *BACKBONES], "posthoc": SCORES,
        "training.optimizer": OPTIMIZERS,
    }  # fmt: skip
    return f"Known: {', '.join(names[name])}." if name in names else ""


# --- commands: call the function and print its result ---


def _train(function: Run, *, out: str, verbose: bool = False, **values: Any) -> None:
    from dubito.cli._progress import TrainProgress

    is_first = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun
    console = Console(quiet=not is_first, soft_wrap=True)
    progress = TrainProgress(console, verbose)
    with progress.bars:
        models = function(out=out, callbacks=[progress], on_start=console.print, **values)
    for model in models if isinstance(models, list) else [models]:
        record: Any = model.record
        if record is None:  # of a process that does not save
            continue
        folder = Path(out) / f"seed-{record.seed}" if isinstance(models, list) else Path(out)
        text = f"{folder}: weights of epoch {record.best_epoch} of {record.epochs}"
        _print_summary(model, folder, text, console)


def _print_summary(model: Model, folder: Path, text: str, console: Console) -> None:
    metrics = {} if model.record is None else model.record.metrics
    if metrics:
        metric = model.task.monitor
        value = format_metric(metric, metrics[metric])
        text += f"; {metric} of the calibration samples {value}"
    console.print(Text(text))
    if model.record is not None and (hard := recall_text(model.record.recall)):
        console.print(Text(f"classes {hard}"), style="yellow")
    _print_policy(model, console)
    if (folder / REPORT).exists():
        console.print(Text(f"report: {folder / REPORT}"))


def _wrap(function: Run, *, out: str | None = None, **values: Any) -> None:
    if out is None:  # Python may keep the model in memory
        raise typer.BadParameter("the folder of the model is missing", param_hint="--out")
    console = Console(soft_wrap=True)
    model = function(out=out, on_start=lambda line: console.print(Text(line)), **values)
    _print_summary(model, Path(out), f"{out}: {values['network']}", console)


def _evaluate(function: Run, *, verbose: bool = False, **values: Any) -> None:
    result, console = function(**values), Console()
    if result["part"] == "calibration":
        text = (
            f"{result['data']} has no test part: these are the calibration samples, to which "
            "calibration and policy were fitted. Evaluate other data for unbiased figures."
        )
        console.print(Text(text), style="yellow")
    for table in _display.evaluation_tables(result, verbose):
        console.print(table)
    if text := recall_text(_display.means(result.get("recall", {}))):
        console.print(Text(f"classes {text}"), style="yellow")
    if "ood" in result:
        console.print(Text(_display.AUPR), style="dim")
    if values.get("report", True) and values.get("out") is None:
        page = Path(values["model"]) / "evaluation" / REPORT
        console.print(Text(f"report: {page}"), soft_wrap=True)


def _predict(
    function: Run, *, out: Any = None, format: Any = None, scores: Sequence[str] = (), **values: Any
) -> None:
    from dubito.api import write_rows

    prediction = function(out=out, format=format, scores=scores, **values)
    if out is None and format is None:
        sys.stdout.writelines(f"{line}\n" for line in _display.row_lines(prediction, scores))
    elif out is None:
        write_rows(prediction, sys.stdout, format, scores)
    reason = prediction.reason
    reasons = ["predicted"] * len(prediction) if reason is None else reason.tolist()
    for row in prediction.errors:
        reasons[row] = "with errors"
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons).items())
    sys.stderr.write(f"{len(prediction)} inputs: {counts}{f'; {out}' if out else ''}\n")
    if prediction.errors:
        raise typer.Exit(SOME_FAILED)


def _calibrate(function: Run, **values: Any) -> None:
    from dubito.config import with_option

    for option, value in _pop_section(values, "posthoc").items():
        values["posthoc"] = with_option(values.get("posthoc", ()), option, value)
    _print_policy(function(**values), Console(soft_wrap=True))


def _export(function: Run, **values: Any) -> None:
    exported = function(**values)
    size, difference = f"{exported.size / 1e6:.2f} MB", f"{exported.difference:.1e}"
    sys.stdout.write(f"{exported.path}: {size}, largest difference from torch {difference}\n")


def _serve(function: Run, **values: Any) -> None:
    from dubito.config import validated
    from dubito.serve import ServeConfig

    config = validated(ServeConfig, _pop_section(values, "service"))
    function(config=config, on_start=Console(soft_wrap=True).print, **values)


def _fewshot(function: Run, **values: Any) -> None:
    from dubito.cli._progress import counter

    if options := _pop_section(values, "method"):
        values["method"] = {"name": values.get("method", DEFAULTS["method"]), **options}
    with counter("episodes") as progress:
        result = function(progress=progress, **values)
    Console().print(_display.fewshot_table(result))


def _features(function: Run, **values: Any) -> None:
    from dubito.cli._progress import counter

    with counter("inputs") as progress:
        features = function(progress=progress, **values)
    count, size = features.values.shape
    sys.stdout.write(f"{count} x {size} features of {len(features.classes)} classes\n")


def _pop_section(values: Options, section: str) -> Options:
    names = [name for name in values if name.startswith(f"{section}.")]
    return {name.removeprefix(f"{section}."): values.pop(name) for name in names}


def _print_policy(model: Model, console: Console) -> None:
    policy = model.policy
    if policy is None:
        text = "no policy: a regression needs --tolerance, the largest deviation that is no error, "
        text += "or --max-width, the widest interval that is accepted"
        console.print(text)
        return
    text = repr(policy).removeprefix("Policy(").removesuffix(")")
    console.print(Text(f"policy: {text}"), style="yellow" if policy.accepts_nothing else "")
    if policy.advice:
        console.print(Text(f"{policy.advice} (--error-rate, --calibration)"), style="yellow")
    if policy.table:
        console.print(_display.promises(policy))
    if policy.sanity:
        is_bad = any(part.fails for part in policy.sanity.values())
        console.print(Text(sanity_text(policy)), style="yellow" if is_bad else "")


#: name -> module of the function, and the function that calls it and prints its result
COMMANDS: dict[str, tuple[str, Run]] = {
    "train": ("dubito.api", _train),
    "wrap": ("dubito.api", _wrap),
    "evaluate": ("dubito.api", _evaluate),
    "predict": ("dubito.api", _predict),
    "calibrate": ("dubito.api", _calibrate),
    "export": ("dubito.api", _export),
    "serve": ("dubito.serve", _serve),
    "fewshot": ("dubito.fewshot", _fewshot),
    "features": ("dubito.fewshot", _features),
}
