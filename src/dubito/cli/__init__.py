"""The command line: `dubito COMMAND`; each command has its file."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dubito import __version__
from dubito.cli import (
    demo,
    evaluate,
    export,
    features,
    fewshot,
    predict,
    report,
    reproduce,
    serve,
    train,
)
from dubito.training import CheckpointError, NonFiniteLoss

__all__ = ["app", "main"]

DEBUG = "DUBITO_DEBUG"
FAILED = 2  # the exit status of a command that could not be done as asked

app = typer.Typer(
    name="dubito",
    help="Evidential deep learning: classifiers that know when they don't know.",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train", epilog=train.NOTES)(train.train)
app.command("evaluate", epilog=evaluate.NOTES)(evaluate.evaluate)
app.command("predict", epilog=predict.NOTES)(predict.predict)
app.command("export", epilog=export.NOTES)(export.export)
app.command("features", epilog=features.NOTES)(features.features)
app.command("fewshot", epilog=fewshot.NOTES)(fewshot.fewshot)
app.command("reproduce", epilog=reproduce.NOTES)(reproduce.reproduce)
app.command("report", epilog=report.NOTES)(report.report)
app.command("serve", epilog=serve.NOTES)(serve.serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dubito {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line; what a user can mend is told in one line, without a traceback."""
    if os.environ.get(DEBUG) != "1":
        warnings.showwarning = _warn
    try:
        app()
    except (ValueError, OSError, CheckpointError, NonFiniteLoss) as error:
        if os.environ.get(DEBUG) == "1":
            raise
        _say("error", str(error), "red")
        sys.exit(FAILED)


def _say(kind: str, text: str, style: str) -> None:
    message = Text.assemble((f"{kind}: ", "bold"), text, style=style)
    Console(stderr=True, soft_wrap=True).print(message)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in one line, without the place in the code that gave it."""
    _say("warning", str(message), "yellow")
