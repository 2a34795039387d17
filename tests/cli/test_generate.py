"""Options that are generated from functions and configurations."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from dubito.cli._generate import Setting, command, of_fields, of_function, spelled


class Section(BaseModel, use_attribute_docstrings=True):
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Samples per step."""
    names: tuple[str, ...] = ()
    """Some `names`."""
    quick: bool | None = None
    """Whether to hurry."""
    mode: Literal["L", "RGB"] | None = None


def work(
    source: str, places: Sequence[str] = (), *, out: str, rate: float = 0.5, deep: bool = False
) -> None:
    """Do the `work`.

    It takes
    a while.

    Args:
        source: Where it comes
            from.
        places: Further sources.
        out: Where it goes.
        rate: How fast.
        deep: How deep.
    """


SETTINGS = [
    *of_function(work),
    *of_fields(Section.model_fields, "training"),
    Setting("method.kl_weight", float, default=1.0),
]


def run(*words: str) -> tuple[dict[str, Any], str]:
    """Return what the command calls its function with, and its output."""
    seen: dict[str, Any] = {}
    app = typer.Typer()
    app.command(context_settings={"token_normalize_func": spelled})(
        command(work, seen.update, SETTINGS)
    )
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return seen, result.output


def test_help_has_the_docstrings():
    _, text = run("--help")
    assert "Do the work." in text
    assert "It takes a while." in text
    assert "Where it comes from." in text
    assert "Samples per step. [default: 64]" in text
    assert "--batch-size" in text
    assert "L|RGB" in text
    assert "--method.kl-weight" in text
    assert "Args" not in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {}),
        (("x", "y", "--rate", "0.25"), {"places": ["x", "y"], "rate": 0.25}),
        (("--deep", "--method.kl_weight", "2"), {"deep": True, "method.kl_weight": 2}),
    ],
)
def test_given_values_are_converted_and_passed_on(words, expected):
    values, _ = run("a", *words, "--out", "b")
    assert values == {"source": "a", "out": "b", **expected}


@pytest.mark.parametrize(
    "words",
    [
        ("--batch-size", "3"),
        ("--batch_size=3",),
        ("--training.batch_size", "3"),
        ("--training.batch-size=3",),
    ],
)
def test_spellings_of_an_option(words):
    values, _ = run("a", "--out", "b", *words)
    assert values["training.batch_size"] == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--names", "x"), ("x",)),
        (("--names", "x, y"), ("x", "y")),
        (("--names", "x", "--names", "y"), ("x", "y")),
        (("--names", '["x,y"]'), ("x,y",)),
        (("--quick",), True),
        (("--no-training.quick",), False),
    ],
)
def test_several_values_and_flags(words, expected):
    values, _ = run("a", "--out", "b", *words)
    assert values["training.quick" if isinstance(expected, bool) else "training.names"] == expected


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int | None, "none", None),
        (str, "none", "none"),
        (str | None, "none", None),
        (str | tuple[str, ...], "a,b", ("a", "b")),
        (int | tuple[int, int], "8", 8),
        (int | tuple[int, int], "8,9", (8, 9)),
        (dict[str, Any], "momentum=0.9", {"momentum": 0.9}),
        (Mapping[str, Any], "{a = 1}", {"a": 1}),
        (Section | None, "batch_size=2, quick=true", Section(batch_size=2, quick=True)),
    ],
)
def test_values(annotation, text, value):
    assert Setting("x", annotation).read(text) == value


def test_bad_values_name_the_option():
    _, text = run("a", "--out", "b", "--rate", "fast")
    assert "Invalid value for --rate: Input should be a valid number" in text
    _, text = run("a", "--out", "b", "--mode", "CMYK")
    assert "Invalid value for --mode: Input should be 'L' or 'RGB', not 'CMYK'" in text
