"""Small bundles of kinds that the demo is not: many classes, and a table."""

from __future__ import annotations

from pathlib import Path

import torch

from dubito import backbones, bundle
from dubito.bundle import Column, Columns, Preprocessing

TREES = ("oak", "elm", "fir")
SPECIES = tuple(f"species {number:02d}" for number in range(40))


def many(folder: Path) -> Path:
    """Coloured images of 40 classes, evidential, without a policy; untrained."""
    torch.manual_seed(0)
    shape = (3, 16, 16)
    return bundle.save(
        folder,
        backbones.build("mlp", shape, len(SPECIES), hidden=(16,)),
        method="iedl",
        classes=SPECIES,
        shape=shape,
        backbone={"name": "mlp", "hidden": [16]},
        preprocessing=Preprocessing(pixels=True, mode="RGB"),
    )


def table(folder: Path) -> Path:
    """Rows of a number and a category, by softmax, which weighs no evidence; untrained."""
    torch.manual_seed(0)
    columns = Columns(
        columns=(Column("height", None, (2.0, 40.0)), Column("bark", ("grey", "red")))
    )
    return bundle.save(
        folder,
        backbones.build("mlp", (3,), len(TREES), hidden=(16,)),
        method="softmax",
        classes=TREES,
        shape=(3,),
        backbone={"name": "mlp", "hidden": [16]},
        preprocessing=Preprocessing(columns=columns, mean=(20.0, 0.0, 0.0), scale=(10.0, 1.0, 1.0)),
    )
