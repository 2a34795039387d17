"""Every example in the documents runs, and every command they name exists."""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]

PYTHON = {"python", "py", "pycon"}
SHELL = {"bash", "console", "sh", "shell"}

FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<marks>`{3,}|~{3,})[ ]*(?P<info>[^`\n]*)$")
RULE = re.compile(r"^([A-Za-z][\w -]*):(?![:=])", re.MULTILINE)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line its text starts at."""

    language: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown text; a fence left open raises."""
    opened: tuple[str, str, str, int] | None = None  # indent, marks, language, line
    body: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                info = fence["info"].strip().strip("{}.").split()
                language = info[0].strip("{}.").lower() if info else ""
                opened, body = (fence["indent"], fence["marks"], language, number), []
        elif fence and not fence["info"].strip() and fence["marks"].startswith(opened[1]):
            yield Block(opened[2], "\n".join(body) + "\n", opened[3] + 1)
            opened = None
        else:
            body.append(line.removeprefix(opened[0]))
    if opened is not None:
        raise AssertionError(f"the block opened at line {opened[3]} is never closed")


def run_python(block: Block, name: str) -> None:
    """Run a block in a namespace of its own: as a doctest if it has prompts, else as a script."""
    namespace: dict[str, object] = {"__name__": "__example__"}
    if not re.search(r"^[ ]*>>>", block.text, re.MULTILINE):
        # Newlines in front give errors the line of the document.
        exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)
        return
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(block.text, namespace, name, name, block.line - 1)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=flags)
    failed = runner.run(test, out=report.append, clear_globs=False).failed
    assert not failed, "".join(report)


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each simple command of a shell block, its assignments removed."""
    text = block.text.replace("\\\n", " ")
    lines = text.splitlines()
    if any(line.lstrip().startswith("$ ") for line in lines):
        # With prompts in it, the rest of the block is what the commands print.
        lines = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";|&"):
                while words and re.match(r"^\w+=", words[0]):
                    words.pop(0)
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def make_targets(words: list[str]) -> list[str]:
    """Return the targets of a `make` command; none for another command."""
    if Path(words[0]).name != "make":
        return []
    return [word for word in words[1:] if not word.startswith("-") and "=" not in word]


def sub_command(words: list[str]) -> str | None:
    """Return the sub-command of a `dubito` command, or None where there is none."""
    if Path(words[0]).name == "dubito":
        rest = words[1:]
    elif re.match(r"python[\d.]*$", Path(words[0]).name) and words[1:3] == ["-m", "dubito"]:
        rest = words[3:]
    else:
        return None
    return rest[0] if rest and re.match(r"\w", rest[0]) else None


def known_targets(makefile: str) -> set[str]:
    """Return the targets a Makefile has rules for."""
    return {target for targets in RULE.findall(makefile) for target in targets.split()}


def known_sub_commands(help_text: str) -> set[str]:
    """Return the first word of each line of a help page, frames and colours removed."""
    stripped = (line.strip(" │|┃") for line in ANSI.sub("", help_text).splitlines())
    return {line.split()[0] for line in stripped if line}


@pytest.fixture(scope="session")
def sub_commands() -> set[str]:
    from typer.testing import CliRunner

    from dubito import cli

    done = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return known_sub_commands(done.output)


def examples(languages: set[str]) -> list[object]:
    """Return a test parameter for each block of the documents in one of the languages."""
    return [
        pytest.param(block, id=f"{path.relative_to(ROOT)}:{block.line}")
        for path in DOCUMENTS
        for block in blocks(path.read_text("utf-8"))
        if block.language in languages
    ]


@pytest.mark.parametrize("block", examples(PYTHON))
def test_python_example_runs(
    block: Block,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optional_packages: frozenset[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    try:
        run_python(block, request.node.callspec.id)
    except ImportError as error:
        if (error.name or "").split(".")[0] not in optional_packages:
            raise
        pytest.skip(f"the example needs an extra: {error}")


@pytest.mark.parametrize("block", examples(SHELL))
def test_shell_example_names_what_exists(block: Block, request: pytest.FixtureRequest) -> None:
    targets = known_targets((ROOT / "Makefile").read_text("utf-8"))
    for words in commands(block):
        unknown = set(make_targets(words)) - targets
        assert not unknown, f"{shlex.join(words)}: the Makefile has {sorted(targets)}"
        if name := sub_command(words):
            known = request.getfixturevalue("sub_commands")
            assert name in known, f"{shlex.join(words)}: `dubito --help` lists no {name}"


def test_the_version_is_the_same_everywhere() -> None:
    import dubito

    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == dubito.__version__
    assert re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)[1] == dubito.__version__


SAMPLE = """\
# Title

```python
answer = 6 * 7
```

1. A list:

    ~~~~ python
    ```not a fence```
    ~~~~

````markdown
```python
never_run()
```
````

```{.bash title="x"}
make test
```

```
plain
```
"""


def test_blocks_are_found_with_language_and_line() -> None:
    found = list(blocks(SAMPLE))
    assert [block.language for block in found] == ["python", "python", "markdown", "bash", ""]
    assert [block.line for block in found] == [4, 10, 14, 20, 24]
    assert found[0].text == "answer = 6 * 7\n"
    assert found[1].text == "```not a fence```\n"
    assert found[2].text == "```python\nnever_run()\n```\n"


def test_an_open_fence_is_an_error() -> None:
    with pytest.raises(AssertionError, match="line 2 is never closed"):
        list(blocks("text\n```python\nx = 1\n"))


def test_a_wrong_script_fails_at_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(Block("python", "x = 1\nx / 0\n", 40), "doc.md")
    assert caught.traceback[-1].lineno == 40  # counted from 0
    run_python(Block("python", "assert __name__ != '__main__'\n", 1), "doc.md")


def test_namespaces_are_not_shared() -> None:
    run_python(Block("python", "leaked = 1\n", 1), "doc.md")
    with pytest.raises(NameError):
        run_python(Block("python", "leaked\n", 1), "doc.md")


def test_a_block_with_prompts_is_checked_against_its_output() -> None:
    run_python(Block("pycon", ">>> 6 * 7\n42\n", 1), "doc.md")
    with pytest.raises(AssertionError, match="Expected"):
        run_python(Block("python", ">>> 6 * 7\n41\n", 1), "doc.md")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("make test  # and a comment\n", [["make", "test"]]),
        ("$ FOO=1 make test && make lint\nmake of output\n", [["make", "test"], ["make", "lint"]]),
        ("dubito train a \\\n  -o 'runs/a b'\n", [["dubito", "train", "a", "-o", "runs/a b"]]),
        ("dubito train a | head; make x\n", [["dubito", "train", "a"], ["head"], ["make", "x"]]),
        ("# only a comment\n\n", []),
    ],
)
def test_commands_are_split(text: str, wanted: list[list[str]]) -> None:
    assert list(commands(Block("bash", text, 1))) == wanted


def test_targets_and_sub_commands_are_read() -> None:
    assert make_targets(["make", "-j2", "test", "lint", "WORKERS=4"]) == ["test", "lint"]
    assert make_targets(["cmake", "test"]) == []
    assert sub_command([".venv/bin/dubito", "demo", "--out", "x"]) == "demo"
    assert sub_command(["python3", "-m", "dubito", "serve"]) == "serve"
    assert sub_command(["dubito", "--version"]) is None
    assert sub_command(["pip", "install", "dubito"]) is None


def test_known_names_are_read() -> None:
    makefile = "A := b\nC ?= d\n.PHONY: all\nall test: x ## y\n\techo no: no\nlint: all\n"
    assert known_targets(makefile) == {"all", "test", "lint"}
    boxed = "\x1b[1m Usage:\x1b[0m dubito\n╭─ Commands ─╮\n│ demo  shows │\n│ train  fits │\n╰──╯\n"
    assert {"demo", "train"} <= known_sub_commands(boxed)
    assert "shows" not in known_sub_commands(boxed)
