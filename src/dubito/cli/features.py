"""`dubito features`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dubito.cli._options import merged, refuse
from dubito.cli._stop import stoppable

if TYPE_CHECKING:
    import torch

    from dubito.bundle import Factory
    from dubito.fewshot.extract import Extractor

NOTES = (
    "DATA with a folder base/ in it, and others beside: --train learns the classes of base/, and "
    "features of every other folder go to OUT/NAME.npz, ready for `dubito fewshot`. A training "
    "that was stopped goes on when the same command is started again, and a finished one is used "
    "as it is. --module imports and runs code of yours."
)
MODULE = "Your own network: package.module:factory. Runs your code."
_NETWORK, _TRAINING = "Network (one of --weights, --module, --train)", "Training"


def _option(text: str, *names: str, panel: str | None = None) -> Any:
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel)


def features(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="An image folder with a folder for each class, a known name, an .npz or .csv.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help=".npz or .safetensors; a folder for several parts.")
    ],
    backbone: Annotated[
        str | None,
        _option("mlp, convnet, vgg16 or wide_resnet (default with --train).", panel=_NETWORK),
    ] = None,
    weights: Annotated[
        Path | None,
        _option("A bundle's folder, or a .safetensors file for the --backbone.", panel=_NETWORK),
    ] = None,
    module: Annotated[
        str | None,
        _option(MODULE, panel=_NETWORK),
    ] = None,
    train: Annotated[
        bool,
        _option("Train the --backbone on the classes of DATA first.", "--train", panel=_NETWORK),
    ] = False,
    run: Annotated[
        Path | None, _option("The training's folder. Default: beside OUT.", panel=_TRAINING)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="What to train with.", show_default="softmax", rich_help_panel=_TRAINING),
    ] = None,
    epochs: Annotated[int | None, _option("Most passes over the data.", panel=_TRAINING)] = None,
    assignments: Annotated[
        list[str] | None,
        _option(
            "Any other key, as learning_rate=0.1, backbone.depth=16.", "--set", panel=_TRAINING
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the decoded images, where none is stored.")
    ] = None,
    grey: Annotated[bool, typer.Option("--grey", help="Decode images as grey ones.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode images.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Extract a network's features from images, for few-shot episodes."""
    from dubito import runs
    from dubito.fewshot import extract

    console, place = Console(), runs.device_named(device)
    parts = extract.parts_of(source)
    targets = _targets(source, out, parts, train)
    if train + (module is not None or weights is not None) != 1:
        raise ValueError(
            "whose features? Give --weights or --module for a trained network, or --train"
        )
    if train:
        home = run if run is not None else out.with_name(f"{out.stem}-run")
        flags: dict[str, dict[str, Any]] = {
            "data": {"source": parts.get(extract.BASE, source), "size": size,
                     "mode": "L" if grey else None},
            "backbone": {"name": backbone or "wide_resnet"},
            "method": {"name": method or "softmax"},
            "training": {"epochs": epochs},
        }  # fmt: skip
        network = _trained(flags, assignments or (), home, place, console)
    else:
        training = {
            "--run": run, "--method": method, "--epochs": epochs, "--set": bool(assignments),
        }  # fmt: skip
        refuse(training, "nothing is trained without --train")
        images = {"--size": size, "--grey": grey}
        network = _given(source, backbone, weights, module, images, place, console)
    for name, target in targets.items():
        _extracted(network, name, target, batch_size, workers, console)


def own_factory(module: str | None, console: Console) -> Factory | None:
    """What --module names, if anything, and a line that tells that it is run."""
    if module is None:
        return None
    from dubito.fewshot import extract

    console.print(Text(f"running your code: {module}"), style="yellow", soft_wrap=True)
    return extract.factory_named(module)


def _targets(source: str, out: Path, parts: Mapping[str, str], train: bool) -> dict[str, Path]:
    """What is read and where its features go."""
    from dubito import _checks
    from dubito.fewshot.extract import BASE, WRITERS

    if not parts:
        _checks.one_of(WRITERS, out.suffix, f"kind of feature file, {out}:")
        return {source: out}
    if out.suffix in WRITERS:
        raise ValueError(
            f"{source} has the parts {', '.join(parts)}: --out must be a folder for them, not {out}"
        )
    held = {name: path for name, path in parts.items() if not (train and name == BASE)}
    if not held:
        raise ValueError(f"{source} has {BASE}/ alone: there are no classes beside it to extract")
    return {path: out / f"{name}.npz" for name, path in held.items()}


def _shape(source: str, images: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of inputs, from the data or from the size that was asked for."""
    from dubito import data

    if source in data.DATASETS or not Path(source).expanduser().is_dir():
        refuse(images, f"the inputs of {source} have a shape already")
        return data.load(source, "all").shape
    size = images["--size"]
    if size is None:
        raise ValueError("of which size are the network's images? Give --size")
    return (1 if images["--grey"] else 3, size, size)


def _given(
    source: str,
    backbone: str | None,
    weights: Path | None,
    module: str | None,
    images: Mapping[str, Any],
    device: torch.device,
    console: Console,
) -> Extractor:
    """A network that is trained already."""
    from dubito.fewshot import extract

    network = {"--backbone": backbone}
    if weights is not None and weights.is_dir():
        refuse({**network, **images}, f"the bundle {weights} knows its network and its images")
        return extract.from_bundle(weights, device, own_factory(module, console))
    if weights is not None and not weights.exists():
        raise FileNotFoundError(f"there are no weights {weights}")
    if module is not None:
        refuse(network, f"the network is that of --module {module}")
        own_factory(module, console)
        return extract.from_module(module, _shape(source, images), device, weights)
    if backbone is None or weights is None:
        raise ValueError(f"which network has the weights {weights}? Give --backbone")
    return extract.from_weights(weights, backbone, _shape(source, images), device)


def _trained(
    flags: Mapping[str, Mapping[str, Any]],
    assignments: Any,
    home: Path,
    device: torch.device,
    console: Console,
) -> Extractor:
    """The network in a folder, trained as far as it is not yet."""
    from dubito import runs
    from dubito.cli._progress import shown
    from dubito.fewshot import extract

    plan = runs.plan(runs.configure(merged(None, flags, assignments)), home, device=device)
    (member,) = plan.members
    if member.state != runs.FINISHED:
        facts = plan.config.facts
        console.print(
            Text(
                f"training {plan.config.backbone['name']} on {facts.train} samples of "
                f"{len(facts.classes)} classes in {home}"
            ),
            soft_wrap=True,
        )
        epochs = plan.config.training["epochs"]
        watched = shown(console, [plan.config.training["seed"]], epochs)
        with stoppable(console), watched as tell:
            runs.train(plan, tell)
    return extract.from_bundle(home, device)


def _extracted(
    network: Extractor,
    source: str,
    target: Path,
    batch_size: int,
    workers: int,
    console: Console,
) -> None:
    from dubito.cli.fewshot import progress_bar
    from dubito.fewshot import extract

    with progress_bar(console) as shown:
        task = shown.add_task(target.name, total=None)
        found = extract.extract(
            network, source, batch_size=batch_size, workers=workers,
            tell=lambda done, total: shown.update(task, completed=done, total=total),
        )  # fmt: skip
    extract.write(found, target)
    words = (
        f"{target}: {len(found)} samples of {len(found.classes)} classes, {found.shape[0]} features"
    )
    console.print(Text(words), soft_wrap=True)
