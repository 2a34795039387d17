"""What a run is made of: four sections, as a file or the command line gives them."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from dubito import _checks, _legacy, backbones, bundle
from dubito._legacy import METHODS, Method
from dubito.data import DATASETS, Augment
from dubito.runs._sections import Known, checked, known_of, unknown
from dubito.training import OPTIMIZERS, Settings

__all__ = ["AUGMENTS", "AUTO", "SECTIONS", "Config", "Data", "configure", "read_config"]

SECTIONS = ("data", "backbone", "method", "training")
AUTO = "auto"
#: what `augment` may be called, besides a table of its own numbers
AUGMENTS: dict[str, Augment | None] = {"none": None, "paper": Augment()}
_METHOD, _BACKBONE = "iedl", AUTO


@dataclass(frozen=True, kw_only=True)
class Data:
    """The section `data`: what to learn from, and how it is divided.

    `source` is a known name, an image folder, an .npz or a .csv file. `validation` is the share
    held out of its training part, of each class where `stratified`; `split_seed` draws it.
    `train_ood` is the source of OOD inputs for a method that trains with some. `class_weight`
    "balanced" weighs each sample by the rarity of its class. `standardize` gives each feature, or
    channel, mean 0 and deviation 1; without it tables alone are. The others are the readers':
    `size`, `mode` and `on_error` of image folders, `label`, `delimiter` and `categories` (columns
    of numbers that are categories) of .csv files.
    """

    source: str
    validation: float = 0.2
    split_seed: int = 0
    stratified: bool = True
    train_ood: str | None = None
    class_weight: Literal["balanced"] | None = None
    standardize: bool | None = None
    size: int | tuple[int, int] | None = None
    mode: str | None = None
    on_error: Literal["raise", "skip"] | None = None
    label: str | None = None
    delimiter: str | None = None
    categories: list[str] | None = None


READER_OPTIONS = ("size", "mode", "on_error", "label", "delimiter", "categories")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Four sections with every default filled in, as plain values; made by `configure`."""

    data: dict[str, Any]
    backbone: dict[str, Any]
    method: dict[str, Any]
    training: dict[str, Any]

    def sections(self) -> dict[str, dict[str, Any]]:
        """The sections by name."""
        return {name: dict(getattr(self, name)) for name in SECTIONS}

    def make_method(self, **given: Any) -> Method:
        """The method, with `given` data."""
        options = dict(self.method)
        return _legacy.method(options.pop("name"), **options, **given)

    def settings(self) -> Settings:
        """The settings of the training."""
        augment = self.training["augment"]
        given = None if augment is None else Augment(**augment)
        return Settings(**{**self.training, "augment": given})

    def network(self, shape: Iterable[int], classes: int, counts: Iterable[int]) -> nn.Module:
        """What is trained, from its seed; torch's own random state is left alone."""
        with torch.random.fork_rng():
            torch.manual_seed(self.training["seed"])
            return bundle.build(
                self.make_method(), self.backbone, tuple(shape), classes, list(counts)
            )


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The sections in a .toml file, or in the config.json of an earlier run."""
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        found = json.loads(text) if file.suffix.lower() == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} must hold the sections {_checks.listed(SECTIONS)}")
    if "format" in found:  # a run's: the rest of it was found, not chosen
        return {name: found[name] for name in SECTIONS if name in found}
    return found


def known_keys(sections: Mapping[str, Any]) -> dict[str, Known]:
    """What each section may hold, given the names of its method and backbone."""
    method = _checks.entry(METHODS, _name(sections, "method", _METHOD), "method")
    backbone = _name(sections, "backbone", _BACKBONE)
    _checks.one_of([AUTO, *backbones.BACKBONES], backbone, "backbone")
    builders = backbones.BACKBONES.values() if backbone == AUTO else [_builder(backbone)]
    options: Known = {}
    for builder in builders:
        options |= known_of(builder, skip=("shape", "outputs"))
    return {
        "data": known_of(Data),
        "backbone": {"name": (str, _BACKBONE), **options},
        "method": {"name": (str, _METHOD), **method},
        "training": {**known_of(Settings), "augment": (Any, None)},
    }


def _builder(name: str) -> Any:
    return _checks.entry(backbones.BACKBONES, name, "backbone")


def _name(sections: Mapping[str, Any], section: str, default: str) -> str:
    given = sections.get(section, {})
    name = given.get("name", default) if isinstance(given, Mapping) else default
    return str(name)


def configure(sections: Mapping[str, Any]) -> Config:
    """Check the keys and values of all sections and fill in the defaults.

    These are the settings' and the method's own, but for `scale`: "per_class", which is the same as
    the paper's for ten classes and keeps its weights meant for ten useful for any other number.

    >>> config = configure({"data": {"source": "digits"}, "training": {"epochs": 3}})
    >>> config.method["name"], config.method["scale"], config.settings().epochs
    ('iedl', 'per_class', 3)
    """
    for name in sections:
        if name not in SECTIONS:
            raise ValueError(unknown(name, SECTIONS, "the configuration's sections"))
    known = known_keys(sections)
    given = {name: sections.get(name, {}) for name in SECTIONS}
    plain = {name: checked(known[name], given[name], _where(name, given)) for name in SECTIONS}
    if plain["backbone"]["name"] == AUTO:  # the rest once the network is chosen
        plain["backbone"] = {"name": AUTO, **given["backbone"]}
    plain["method"] |= _per_class(METHODS[plain["method"]["name"]], given["method"])
    if "member" in plain["method"]:
        plain["method"]["options"] = _member_options(plain["method"])
    plain["training"]["augment"] = _augment(plain["training"]["augment"])
    plain["data"] |= {key: _place(plain["data"][key]) for key in ("source", "train_ood")}
    config = Config(**plain)
    _check_values(config)
    return config


def _where(section: str, given: Mapping[str, Any]) -> str:
    name = _name(given, section, "") if section in ("method", "backbone") else ""
    return f"[{section}] of {name!r}" if name else f"[{section}]"


def _per_class(method: Known, given: Mapping[str, Any]) -> dict[str, str]:
    scaled = "scale" in method and "scale" not in given
    return {"scale": "per_class"} if scaled else {}


def _member_options(ensemble: Mapping[str, Any]) -> dict[str, Any]:
    member = _checks.entry(METHODS, ensemble["member"], "member method")
    where = f"[method.options] of the member {ensemble['member']!r}"
    options = checked(member, ensemble["options"], where)
    return options | _per_class(member, ensemble["options"])


def _augment(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        named = _checks.entry(AUGMENTS, value, "augment")
        return None if named is None else vars(named).copy()
    return None if value is None else checked(known_of(Augment), value, "[training.augment]")


def _place(source: str | None) -> str | None:
    """A source that means the same in every folder one may be in later."""
    if source is None or source in DATASETS or not Path(source).expanduser().exists():
        return source
    return str(Path(source).expanduser().resolve())


def _check_values(config: Config) -> None:
    """What the classes themselves check, before any data is read."""
    method, settings = config.make_method(), config.settings()
    taken = known_of(OPTIMIZERS[settings.optimizer], skip=("params", "lr"))
    for option in settings.optimizer_options:
        if option not in taken:
            raise ValueError(unknown(option, taken, "[training.optimizer_options]"))
    if not 0 < config.data["validation"] < 1:
        raise ValueError(f"validation must be between 0 and 1, not {config.data['validation']!r}")
    if config.data["train_ood"] is not None and not method.trains_with_ood:
        able = [name for name in METHODS if _legacy.method(name).trains_with_ood]
        raise ValueError(
            f"train_ood is for methods that train with OOD inputs ({', '.join(able)}), "
            f"not for {config.method['name']!r}"
        )
