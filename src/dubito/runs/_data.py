"""The data that a run is trained with, and how its inputs are made."""

from __future__ import annotations

from pathlib import Path

from dubito import data
from dubito.bundle import Columns, Preprocessing, read_table
from dubito.data import Arrays
from dubito.runs._config import READER_OPTIONS, Config

__all__ = ["is_table", "prepared", "training_data", "training_table"]

_TABLE_OPTIONS = {"label", "delimiter", "categories"}


def training_data(config: Config) -> Arrays:
    """The part of the source that is divided into training and validation."""
    return training_table(config)[0]


def training_table(config: Config) -> tuple[Arrays, Columns | None]:
    """The same, and how the columns of a table were read."""
    given = {key: config.data[key] for key in READER_OPTIONS if config.data[key] is not None}
    path = Path(config.data["source"]).expanduser()
    try:
        if is_table(config.data["source"]) and not given.keys() - _TABLE_OPTIONS:
            return read_table(path, **given)
        return data.load(config.data["source"], "train", **given), None
    except TypeError as error:  # an option of another format
        raise ValueError(str(error)) from error


def is_table(source: str) -> bool:
    """Whether a source is a .csv file that is there."""
    path = Path(source).expanduser()
    return source not in data.DATASETS and path.suffix.lower() == ".csv" and path.is_file()


def prepared(config: Config, train: Arrays, columns: Columns | None) -> Preprocessing:
    """How inputs are made, with what the training samples show of their features."""
    made = Preprocessing.of(train.inputs, columns)
    wanted = config.data["standardize"]
    if wanted or (wanted is None and columns is not None):
        return made.fitted(train.inputs)
    return made
