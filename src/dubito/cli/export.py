"""`dubito export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dubito.cli._options import refuse
from dubito.cli.features import MODULE, own_factory

NOTES = (
    "The file holds preprocessing, network, calibration, measures and policy, and takes batches of "
    "one or more: bytes 0 to 255 for images, else numbers as the data has them. Before it gets its "
    "name it is run beside torch, on random and extreme inputs; one that differs by more than 1e-4 "
    "is not written. The extra onnx has what it needs. --module imports and runs code of yours."
)


def export(
    folder: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="The folder of a finished run, or of a bundle.")
    ],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: model.onnx.")],
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            help="Only this one; several times for several. [default: all]",
            show_default=False,
        ),
    ] = None,
    floats: Annotated[
        bool, typer.Option("--floats", help="Take images as numbers from 0 to 1, not as bytes.")
    ] = False,
    module: Annotated[str | None, typer.Option(help=MODULE, show_default=False)] = None,
) -> None:
    """Write a trained model as an ONNX file that needs neither torch nor dubito."""
    from dubito import bundle
    from dubito.export import to_onnx

    console = Console(soft_wrap=True)
    loaded = bundle.load(folder, factory=own_factory(module, console))
    if not loaded.preprocessing.pixels:
        refuse({"--floats": floats}, f"{folder} is no bundle of images, and takes numbers anyway")
    with console.status("tracing, writing and comparing ..."):
        done = to_onnx(loaded, out, measures=measures or None, floats=floats)
    found, inputs = done.differences, json.loads(done.metadata["inputs"])
    shape = ", ".join(map(str, ("N", *inputs["shape"])))
    outputs = ", ".join(json.loads(done.metadata["outputs"]))
    console.print(
        Text(
            f"{done.path}: {done.size / 1e6:.2f} MB; inputs ({shape}) {inputs['type']} -> {outputs}"
        )
    )
    console.print(
        Text(
            f"  largest difference from torch on {found.samples} random and extreme inputs: "
            f"{found.overall:.1e}; of the network {found.network:.1e}, of the measures "
            f"{found.measures:.1e}"
        )
    )
