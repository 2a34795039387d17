"""The command line: `dubito COMMAND`.

Commands are generated from typed functions. Only the command that runs is imported, so
`dubito --help` needs neither torch nor pydantic.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from dubito import __version__
from dubito._extras import need
from dubito.errors import DubitoError

__all__: list[str] = []

FAILED = 2  # exit status

#: first line of each function's docstring
SUMMARIES = {
    "train": "Train a model, calibrate it and fit its policy.",
    "wrap": "Make a model of a network that is already trained, without training.",
    "evaluate": "Evaluate a model: metrics, detection of errors and OOD inputs, policy.",
    "predict": "Predict with a model: value, probability, uncertainty, accept or abstain.",
    "calibrate": "Refit calibration and policy of a finished model, perhaps with further scores.",
    "export": "Write a model as an ONNX file that needs neither torch nor dubito.",
    "serve": "Serve a model over HTTP until SIGTERM or SIGINT.",
    "fewshot": "Evaluate few-shot episodes on frozen features: accuracy, confidence and OOD "
    "detection.",
    "features": "Extract the features that a network has before its last layer, for few-shot "
    "episodes.",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; an error that a user can fix is printed in one line.

    Args:
        argv: Arguments; by default those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            need("typer", "cli")
            _app(words)(words, prog_name="dubito")
        except DubitoError as error:
            _print("error", str(error), "31")
            sys.exit(FAILED)


def _app(argv: list[str]) -> Any:
    """Return an app in which the command of `argv` is complete; others have only a summary."""
    import typer

    def print_version(given: bool) -> None:
        if given:
            sys.stdout.write(f"dubito {__version__}\n")
            raise typer.Exit

    app = typer.Typer(
        name="dubito", add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True
    )

    option = typer.Option(
        "--version", help="Print the version.", callback=print_version, is_eager=True
    )

    @app.callback(help="Evidential deep learning: models that know when they don't know.")
    def root(version: Annotated[bool, option] = False) -> None:
        pass

    for name, summary in SUMMARIES.items():
        if name == next((word for word in argv if not word.startswith("-")), None):
            from dubito.cli import _commands

            _commands.add(app, name, argv)
        else:
            app.command(name, help=summary)(lambda: None)
    return app


def _print(kind: str, text: str, color: str) -> None:
    """Print a line to stderr, in color on a terminal."""
    start, end = (f"\x1b[{color}m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    sys.stderr.write(f"{start}{kind}: {text}{end}\n")


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    _print("warning", str(message), "33")
