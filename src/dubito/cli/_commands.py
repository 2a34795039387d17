"""The commands: their options, and what they print."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from dubito._plugins import import_plugin, load_plugins
from dubito.cli._generate import Setting, command, of_fields, of_function, spelled
from dubito.errors import DubitoError

if TYPE_CHECKING:
    from dubito.model import Model

__all__ = ["add"]

Run = Callable[..., Any]
REPORT = "report.html"
FEWSHOT_METHOD = "iedl"
SOME_FAILED, INTERRUPTED = 1, 130  # exit statuses
#: settings without an option: only Python has them, or they have another place
HIDDEN = {
    *("callbacks", "progress", "backbone.shape", "data.source"),
    *("serve.on_start", "serve.config", "service.token"),
}
IMPORT = Setting(
    name="import",
    annotation=Sequence[str],
    default=(),
    help="Module or .py file that registers methods, scores, backbones or datasets.",
)
VERBOSE = Setting(
    name="verbose",
    annotation=bool,
    default=False,
    help="Show the terms of the loss and all validation metrics.",
)
DEMO = Setting("demo", bool, False, "Serve a model of handwritten digits, trained on the spot.")


def add(app: typer.Typer, name: str, argv: Sequence[str]) -> None:
    """Generate a command.

    Args:
        app: App to add it to.
        name: Name of the command.
        argv: Arguments of the program, which determine the options of method and backbone.
    """
    for module in _given(argv, "import"):
        import_plugin(module)
    package, show = COMMANDS[name]
    function = getattr(import_module(package), name)
    found = [*of_function(function), *_more_settings(name, argv), IMPORT]
    settings = [one for one in found if not {one.name, f"{name}.{one.name}"} & HIDDEN]
    if name == "serve":
        settings[0] = replace(settings[0], default=None)  # a model, or --demo

    def call(**values: Any) -> None:
        values.pop("import", None)
        show(function, **values)

    app.command(name, context_settings={"token_normalize_func": spelled})(
        command(function, call, settings)
    )


def _given(argv: Sequence[str], name: str) -> list[str]:
    """Return the values of an option, before the command is generated.

    >>> _given(["train", "--import=a", "--import", "b"], "import")
    ['a', 'b']
    """
    words = [value for word, value in pairwise(argv) if word == f"--{name}"]
    return [word.partition("=")[2] for word in argv if word.startswith(f"--{name}=")] + words


def _more_settings(name: str, argv: Sequence[str]) -> Iterator[Setting]:
    """Yield the options of a command that are not parameters of its function."""
    if name == "train":
        yield VERBOSE
        yield from _run_settings(argv)
    elif name == "fewshot":
        yield from _method_settings(*_given(argv, "method")[-1:] or [FEWSHOT_METHOD])
    elif name == "serve":
        from dubito.serve import ServeConfig

        yield DEMO
        yield from of_fields(ServeConfig.model_fields, "service")


def _run_settings(argv: Sequence[str]) -> Iterator[Setting]:
    """Yield the fields of `RunConfig`; options of method and backbone depend on their names."""
    from dubito.api.config import RunConfig, read_config

    load_plugins()
    files = _given(argv, "config")
    config = read_config(files[-1]) if files else {}
    named = {"method": _method_settings, "backbone": _backbone_settings}
    for section, field in RunConfig.model_fields.items():
        if section in named:
            before = config.get(section, field.default)
            known = before.get("name", "") if isinstance(before, Mapping) else str(before)
            yield Setting(section, str, known, field.description or "", section.capitalize())
            yield from named[section](*_given(argv, section)[-1:] or [known])
        elif isinstance(field.default, BaseModel):
            yield from of_fields(type(field.default).model_fields, section)
        else:
            yield Setting(section, field.annotation, field.default, field.description or "")


def _method_settings(name: str) -> Iterator[Setting]:
    from dubito.methods import METHODS

    if name in METHODS:
        kind: Any = METHODS[name]
        yield from of_fields(kind.__pydantic_fields__, "method")


def _backbone_settings(name: str) -> Iterator[Setting]:
    from dubito.backbones import BACKBONES

    found: dict[str, Setting] = {}
    for backbone in BACKBONES if name == "auto" else {name} & {*BACKBONES}:
        for option in of_function(BACKBONES[backbone]):
            key = f"backbone.{option.name}"
            found.setdefault(key, replace(option, name=key, panel="Backbone", positional=False))
    yield from found.values()


# --- what the commands print ---


def _train(run: Run, *, out: str, verbose: bool = False, **values: Any) -> None:
    """Train with a progress display, and summarize the models."""
    from dubito.cli._progress import shown
    from dubito.model._card import format_metric

    is_first = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun
    console = Console(quiet=not is_first, soft_wrap=True)
    try:
        with shown(console, verbose) as update:
            models = run(out=out, callbacks=[update], **values)
    except KeyboardInterrupt:
        console.print("interrupted: run the same command again to resume from the last checkpoint")
        raise typer.Exit(INTERRUPTED) from None
    for model in models if isinstance(models, list) else [models]:
        record: Any = model.record
        if record is None:  # of a process that does not save
            continue
        folder = Path(out) / f"seed-{record.seed}" if isinstance(models, list) else Path(out)
        metric = model.task.monitor.metric
        best = f"best epoch {record.best_epoch} of {record.epochs}"
        value = format_metric(metric, record.metrics[metric])
        console.print(Text(f"{folder}: {best}, validation {metric} {value}"))
        _print_policy(model, console)
        if (folder / REPORT).exists():
            console.print(Text(f"report: {folder / REPORT}"))


def _evaluate(run: Run, **values: Any) -> None:
    """Evaluate, and print tables."""
    from dubito.cli._tables import tables

    result, console = run(**values), Console()
    if result["part"] == "validation":
        text = (
            f"{result['data']} has no test part: these are the validation samples, which chose "
            "weights, calibration and policy. Evaluate other data for unbiased figures."
        )
        console.print(Text(text), style="yellow")
    for table in tables(result):
        console.print(table)


def _predict(
    run: Run, *, out: Any = None, format: Any = None, scores: Sequence[str] = (), **values: Any
) -> None:
    """Predict, and print the rows or what became of them."""
    from dubito.api import write_rows
    from dubito.cli._tables import row_lines

    prediction = run(out=out, format=format, scores=scores, **values)
    if out is None and format is None:
        sys.stdout.writelines(f"{line}\n" for line in row_lines(prediction, scores))
    elif out is None:
        write_rows(prediction, sys.stdout, format, scores)
    reason = prediction.reason
    reasons = ["predicted"] * len(prediction) if reason is None else reason.tolist()
    for row in prediction.errors:
        reasons[row] = "with errors"
    listed = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons).items())
    place = "" if out is None else f"; {out}"
    sys.stderr.write(f"{len(prediction)} inputs: {listed}{place}\n")
    if prediction.errors:
        raise typer.Exit(SOME_FAILED)


def _calibrate(run: Run, **values: Any) -> None:
    """Calibrate, and print the policy."""
    _print_policy(run(**values), Console(soft_wrap=True))


def _export(run: Run, **values: Any) -> None:
    """Export, and print the file and its difference from torch."""
    done = run(**values)
    largest = max(done.differences.network, done.differences.columns)
    sys.stdout.write(
        f"{done.path}: {done.size / 1e6:.2f} MB, largest difference from torch {largest:.1e}\n"
    )


def _serve(run: Run, *, model: str | None = None, demo: bool = False, **values: Any) -> None:
    """Serve a model or the demo, and print the address."""
    from dubito.api.config import validated
    from dubito.serve import ServeConfig

    if demo:
        from dubito.serve._demo import GALLERY, MODEL, make_demo

        with Console(stderr=True).status("training a model of digits ..."):
            folder = make_demo()
        model, values["gallery"] = str(folder / MODEL), folder / GALLERY
    if model is None:
        raise DubitoError("there is nothing to serve: pass the folder of a model, or --demo")
    config = validated(ServeConfig, _section(values, "service"))
    run(model, config=config, on_start=Console(soft_wrap=True).print, **values)


def _fewshot(run: Run, *, method: Any = FEWSHOT_METHOD, **values: Any) -> None:
    """Evaluate episodes with a progress bar, and print the metrics."""
    from dubito.cli._tables import fewshot_table

    if options := _section(values, "method"):
        method = {"name": method, **options}
    with _counted("episodes") as progress:
        result = run(method=method, progress=progress, **values)
    Console().print(fewshot_table(result))


def _features(run: Run, **values: Any) -> None:
    """Extract features with a progress bar, and print what they are."""
    with _counted("inputs") as progress:
        found = run(progress=progress, **values)
    count, size = found.values.shape
    sys.stdout.write(f"{count} x {size} features of {len(found.classes)} classes\n")


@contextmanager
def _counted(what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to a number on the screen."""
    with Progress(TextColumn(f"{{task.completed}} {what}"), TimeElapsedColumn()) as bars:
        task = bars.add_task(what, total=None)
        yield lambda count: bars.advance(task, count)


def _section(values: dict[str, Any], section: str) -> dict[str, Any]:
    """Remove the values of a section, and return them."""
    names = [name for name in values if name.startswith(f"{section}.")]
    return {name.removeprefix(f"{section}."): values.pop(name) for name in names}


def _demo(run: Run, *, out: str = "dubito-demo", **values: Any) -> None:
    """Run the demo with a progress display, and print its tables."""
    from dubito.cli._tables import demo_table
    from dubito.report._demo import sentence, tables

    console = Console()
    with console.status("training EDL and I-EDL on digits ..."):
        result = run(out=out, **values)
    for table in tables(result):
        console.print(demo_table(table))
    console.print(Text(f"{sentence(result)}\nReport: {Path(out) / REPORT}"))


def _print_policy(model: Model, console: Console) -> None:
    policy = model.policy
    if policy is None:
        console.print(
            "no policy: errors of a regression need --tolerance, the largest deviation that is none"
        )
        return
    text = repr(policy).removeprefix("Policy(").removesuffix(")")
    if policy.accepts_nothing:
        text += "; hold out more samples (--validation) or allow more errors (--error-rate)"
    console.print(Text(f"policy: {text}"), style="yellow" if policy.accepts_nothing else "")


#: name -> module of the function, and what calls it and prints its result
COMMANDS: dict[str, tuple[str, Run]] = {
    "train": ("dubito.api", _train),
    "evaluate": ("dubito.api", _evaluate),
    "predict": ("dubito.api", _predict),
    "calibrate": ("dubito.api", _calibrate),
    "export": ("dubito.api", _export),
    "serve": ("dubito.serve", _serve),
    "fewshot": ("dubito.fewshot", _fewshot),
    "features": ("dubito.fewshot", _features),
    "demo": ("dubito.demo", _demo),
}
