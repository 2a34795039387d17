"""Bundles: a trained model in a folder, with all that it takes to use it.

| file | what |
| --- | --- |
| model.safetensors | the weights |
| config.json | the architecture by name, the preprocessing, the classes, versions |
| policy.json | the calibration and the abstention policy, as plain values |
| card.md | data, figures, limits, what the uncertainty means and what not |
| manifest.json | the sizes and hashes of these files; written last |

The folder of a finished run of `dubito train` is a bundle. Loading one runs nothing from it.

>>> from tempfile import TemporaryDirectory
>>> import torch
>>> network = torch.nn.Linear(4, 3)
>>> with TemporaryDirectory() as folder:
...     _ = save(folder, network, method="iedl", classes=("a", "b", "c"), shape=(4,))
...     bundle = load(folder, factory=lambda shape, outputs: torch.nn.Linear(shape[0], outputs))
>>> bundle.predict(torch.zeros(2, 4))
Prediction(2 samples, 3 classes: mean max_prob ..., mean vacuity ...)
"""

from dubito.bundle._bundle import Bundle, load, read_limits, save, versions, write
from dubito.bundle._card import card
from dubito.bundle._columns import Column, Columns
from dubito.bundle._limits import Limits, Promise, limits
from dubito.bundle._manifest import FILES, MANIFEST, BundleError, sign
from dubito.bundle._network import Factory, build, filled
from dubito.bundle._preprocessing import Preprocessing
from dubito.bundle._said import joined, says
from dubito.bundle._stream import Rows, row_columns, stream
from dubito.bundle._table import read_table

__all__ = [
    "FILES",
    "MANIFEST",
    "Bundle",
    "BundleError",
    "Column",
    "Columns",
    "Factory",
    "Limits",
    "Preprocessing",
    "Promise",
    "Rows",
    "build",
    "card",
    "filled",
    "joined",
    "limits",
    "load",
    "read_limits",
    "read_table",
    "row_columns",
    "save",
    "says",
    "sign",
    "stream",
    "versions",
    "write",
]
