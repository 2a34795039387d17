"""Every example in README and docs runs, on small data.

The blocks of a page run in order, in one folder and one namespace. Commands that train run for two
epochs. Commands that download or serve are not run; their options are checked.
"""

import importlib.util
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import dubito
from dubito import cli
from tests.backbones import checkpoints
from tests.test_public_api import PUBLIC

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: first line of a block that is a file: its name
FILE = re.compile(r"# (\S+\.(?:toml|py))\n")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
#: commands that run, and options for those that would take long
RUN = {
    "train": ["--epochs", "2", "--no-report"],
    "wrap": ["--no-report"],
    "evaluate": [],
    "predict": [],
    "calibrate": [],
    "export": [],
}
#: packages whose examples are skipped without them
SKIPPED = {"datasets"}
DOWNLOADED = {"mnist", "fashion-mnist", "kmnist", "cifar-10", "cifar-100", "svhn"}


class Block(NamedTuple):
    """A fenced block, and the line of its first character."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for fence in FENCE.finditer(text):
        yield Block(fence[1], fence[2], text.count("\n", 0, fence.start(2)))


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each line of a shell block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield words


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that examples read."""
    datasets, image = pytest.importorskip("sklearn.datasets"), pytest.importorskip("PIL.Image")
    pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("files")
    digits = datasets.load_digits()
    for i, pixels in enumerate(digits.images[:500]):
        home = folder / ("photos" if i % 5 else "new") / str(digits.target[i])
        home.mkdir(parents=True, exist_ok=True)
        image.fromarray((pixels * 15.9375).astype("uint8")).save(home / f"{i}.png")
    photo = image.fromarray(datasets.load_sample_images().images[0]).convert("L")
    (folder / "unknown").mkdir()
    for i in range(20):
        patch = photo.crop((30 * i, 200, 30 * i + 32, 232)).resize((8, 8))
        patch.save(folder / "unknown" / f"{i}.png")
    wine = datasets.load_wine(as_frame=True).frame
    wine = wine.assign(kind=wine.pop("target").map({0: "a", 1: "b", 2: "c"}))
    wine.to_csv(folder / "wine.csv", index_label="id")
    diabetes = datasets.load_diabetes(as_frame=True).frame
    diabetes[:400].to_csv(folder / "diabetes.csv", index=False)
    diabetes[400:].drop(columns="target").to_csv(folder / "patients.csv", index=False)
    checkpoints.write_reviews(folder / "reviews.csv")
    if importlib.util.find_spec("transformers"):
        checkpoints.save("bert_encoder", folder / "minilm")
    return folder


def write_networks(folder: Path) -> None:
    """Write a checkpoint of transformers, and weights that tell the digits in the photos."""
    import torch

    from tests.backbones import checkpoints

    checkpoints.save("resnet", folder / "resnet", classes=list("0123456789"))
    source = dubito.data.open(folder / "photos", size=8, mode="L")
    x, y = source.load() / 255, torch.tensor([int(name) for name in source.target])
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(network.state_dict(), folder / "plain.pt")


@pytest.fixture
def here(page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a new folder with these files."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    if page.stem in ("README", "wrap"):
        pytest.importorskip("transformers")
        write_networks(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def names(page: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the namespace of a page, that of a module, which dataclasses look up.

    README and index do not define the network in their example.
    """
    import torch

    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    names = vars(module)
    if page.name in ("README.md", "index.md"):
        names["model"], names["x"] = torch.nn.Linear(4, 3), torch.randn(8, 4)
        names["x_new"], names["y"] = torch.randn(2, 4), torch.randint(3, (8,))
    return names


PER_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@PER_PAGE
def test_examples_run(
    page: Path, here: Path, names: dict[str, Any], optional_packages: frozenset[str]
) -> None:
    for block in blocks(page):
        if file := FILE.match(block.text):
            (here / file[1]).write_text(block.text, "utf-8")
        if block.language == "python":
            code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
            try:
                exec(code, names)
            except ImportError as error:
                package = (error.name or "").split(".")[0]
                if package in SKIPPED:
                    continue
                if package in optional_packages:
                    pytest.skip(f"needs an extra: {error}")
                raise
        elif block.language == "bash":
            for words in commands(block):
                run(words)


def run(words: list[str]) -> None:
    """Run a command, or check its target or options."""
    program = Path(words[0]).name
    if program == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        for target in (word for word in words[1:] if "=" not in word):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), shlex.join(words)
    if program == "dubito":
        name, *options = words[1:]
        if name in RUN and not DOWNLOADED & set(options):
            assert status([name, *options, *RUN[name]]) == 0, shlex.join(words)
        else:
            assert status([name, "--help"]) == 0, shlex.join(words)


def status(argv: list[str]) -> int:
    """Run the command line in this process."""
    with warnings.catch_warnings():  # which the command line prints
        warnings.simplefilter("default")
        try:
            cli.main(argv)
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@PER_PAGE
def test_options_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [words[1:] for block in blocks(page) if block.language == "bash"
             for words in commands(block) if Path(words[0]).name == "dubito"]  # fmt: skip
    for name, *options in lines:
        if name in RUN:
            continue  # run above
        status([name, "--help"])
        listed = capsys.readouterr().out
        for option in (word.partition("=")[0] for word in options if word.startswith("--")):
            assert option in listed, f"dubito {name} has no option {option}"


@PER_PAGE
def test_links_and_scripts_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    scripts = re.findall(r"python ((?:examples|tools)/\w+\.py)", text)
    assert not missing + [script for script in scripts if not (ROOT / script).exists()]


def test_reference_has_every_public_module() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert sorted([*listed, "dubito"]) == sorted(PUBLIC)


def test_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == dubito.__version__
    assert re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)[1] == dubito.__version__
