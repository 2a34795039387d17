"""Recipes: what to train and how to judge it, and the identity that follows from just that."""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from dubito import _checks, runs
from dubito.experiments import _fewshot_recipe

__all__ = ["Cell", "Recipe", "chosen", "paper", "read_recipes", "recipes", "tables"]

PROTOCOLS = ("paper", "dubito")
REQUIRED = {"title": str, "protocol": str, "about": str, "seeds": list}
EVALUATE: dict[str, Any] = {"ood": [], "noise": [], "humans": False, "watch": False}
TRAINING = "training"
Sections = Mapping[str, Mapping[str, Any]]
#: kind of recipe -> the keys it may have
KNOWN = {
    TRAINING: (*REQUIRED, "tables", "sweep", *runs.SECTIONS, "evaluate"),
    _fewshot_recipe.FEWSHOT: (
        *REQUIRED, "tables", "sweep", "fewshot", "head", "setting", "tune",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One line of a table: a training, the seeds to repeat it with, and what to judge it by.

    Of the `kind` "fewshot" it is episodes on features; see `_fewshot_recipe`.
    """

    name: str
    title: str
    protocol: str
    about: str
    sections: Sections = field(repr=False)
    seeds: tuple[int, ...]
    evaluate: Mapping[str, Any] = field(repr=False)
    tables: tuple[str, ...] = ()
    group: str = ""
    quick: bool = False
    kind: str = TRAINING

    @property
    def resolved(self) -> Sections:
        """The sections with every default filled in, as plain values."""
        return _resolved(self.kind, json.dumps(self.sections))

    @property
    def training_id(self) -> str:
        """What is trained, whatever the seed: a hash of the sections with every default."""
        return _digest(self.resolved)

    def cells(self, seeds: Sequence[int] | None = None) -> list[Cell]:
        """A cell for each seed."""
        return [Cell(self, seed) for seed in (self.seeds if seeds is None else seeds)]


@dataclass(frozen=True)
class Cell:
    """A recipe and a seed: one training, one record."""

    recipe: Recipe
    seed: int

    @property
    def id(self) -> str:
        """The identity: a hash of the sections, the seed and what it is judged by."""
        return _digest(
            {**self.recipe.sections, "seed": self.seed, "evaluate": self.recipe.evaluate}
        )

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.recipe.name} seed {self.seed}"


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _configured(sections: Sections) -> dict[str, dict[str, Any]]:
    return dict(json.loads(json.dumps(runs.configure(sections).sections())))


#: kind of recipe -> its sections with every default filled in, as plain values
RESOLVED: dict[str, Callable[[Sections], dict[str, dict[str, Any]]]] = {
    TRAINING: _configured,
    _fewshot_recipe.FEWSHOT: _fewshot_recipe.resolved,
}


@cache
def _resolved(kind: str, sections: str) -> Sections:
    return RESOLVED[kind](json.loads(sections))


def recipes() -> dict[str, Recipe]:
    """The recipes that come with dubito, by name.

    >>> recipes()["mnist-iedl"].sections["method"]["fisher_weight"]
    0.005
    >>> [name for name in recipes() if name.startswith("mnist-iedl-lambda")][0]
    'mnist-iedl-lambda-0.1'
    """
    return read_recipes(resources.files("dubito.experiments") / "recipes")


def paper() -> dict[str, Any]:
    """The paper's numbers: its tables, each with its cells.

    >>> [table["label"] for table in paper()["table"]][:2]
    ['tab_ood', 'tab_conf']
    """
    return tomllib.loads((resources.files("dubito.experiments") / "paper.toml").read_text("utf-8"))


def read_recipes(folder: Traversable | Path) -> dict[str, Recipe]:
    """The recipes in the .toml files of a folder, by name; a sweep gives several."""
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=_name)
    found: dict[str, Recipe] = {}
    for file in files:
        for recipe in _read(file):
            if recipe.name in found:
                raise ValueError(f"{file}: there is another recipe called {recipe.name!r}")
            found[recipe.name] = recipe
    return found


def _name(file: Traversable | Path) -> str:
    return file.name.removesuffix(".toml")


def _read(file: Traversable | Path) -> Iterator[Recipe]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        yield from _recipes(_name(file), values)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def _recipes(name: str, values: dict[str, Any]) -> Iterator[Recipe]:
    kind = _fewshot_recipe.FEWSHOT if _fewshot_recipe.FEWSHOT in values else TRAINING
    for key in values:
        if key not in KNOWN[kind]:
            raise ValueError(runs.unknown(key, KNOWN[kind], "the recipe"))
    for key, expected in REQUIRED.items():
        if not isinstance(values.get(key), expected):
            raise ValueError(f"the recipe lacks {key!r} ({expected.__name__})")
    _checks.one_of(PROTOCOLS, values["protocol"], "protocol")
    if not _of(values.get("tables", []), str):
        raise ValueError(f"tables must be a list of names, not {values['tables']!r}")
    judged = values.get("evaluate", {})
    _check_evaluate(judged)
    base = Recipe(
        name=name,
        title=values["title"],
        protocol=values["protocol"],
        about=values["about"],
        sections={section: values.get(section, {}) for section in runs.SECTIONS},
        seeds=tuple(values["seeds"]),
        evaluate={**EVALUATE, **judged},
        tables=tuple(values.get("tables", ())),
        group=name,
    )
    if kind == _fewshot_recipe.FEWSHOT:
        _check_seeds(base)
        yield from _fewshot_recipe.expanded(base, values)
        return
    for recipe in _swept(base, values["sweep"]) if "sweep" in values else [base]:
        _check(recipe)
        yield recipe


def _swept(base: Recipe, sweep: Mapping[str, Any]) -> Iterator[Recipe]:
    """A recipe for each value of one key, which its name ends with."""
    whole = isinstance(sweep, Mapping) and set(sweep) == {"key", "values"} and sweep["values"]
    if not whole or not _of([sweep["key"]], str) or not isinstance(sweep["values"], list):
        raise ValueError("[sweep] has a `key`, as method.fisher_weight, and a list of `values`")
    if any("/" in str(value) for value in sweep["values"]):
        raise ValueError("the values of a [sweep] become names of folders: they can't have a /")
    section, _, key = sweep["key"].partition(".")
    _checks.one_of(runs.SECTIONS, section, "section in [sweep]")
    for value in sweep["values"]:
        sections = copy.deepcopy(dict(base.sections))
        sections[section] = {**sections[section], key: value}
        yield replace(
            base,
            name=f"{base.name}-{value}",
            title=f"{base.title}, {key.replace('_', ' ')} {value}",
            sections=sections,
        )


def _check(recipe: Recipe) -> None:
    """Errors in a recipe are told when it is read, not when its turn comes."""
    config = runs.configure(recipe.sections)
    if recipe.sections["training"].get("seed") is not None:
        raise ValueError("the recipe's seeds stand in `seeds`, not in [training]")
    _check_seeds(recipe)
    if recipe.evaluate["humans"] and config.data["source"] != "cifar-10":
        raise ValueError(
            "humans = true is for data that people were asked about, cifar-10, "
            f"not for {config.data['source']!r}"
        )


def _check_evaluate(judged: Mapping[str, Any]) -> None:
    """What would otherwise be told after the training."""
    for key, value in judged.items():
        if key not in EVALUATE:
            raise ValueError(runs.unknown(key, EVALUATE, "[evaluate]"))
        if isinstance(EVALUATE[key], bool) and not isinstance(value, bool):
            raise ValueError(f"{key} in [evaluate] is true or false, not {value!r}")
    if not _of(judged.get("ood", []), str):
        raise ValueError(f"ood in [evaluate] must be a list of data, not {judged['ood']!r}")
    noise = judged.get("noise", [])
    if not _of(noise, (int, float)) or not all(0 < level < math.inf for level in noise):
        raise ValueError(f"noise in [evaluate] must be a list of numbers > 0, not {noise!r}")


def _of(values: object, kind: type | tuple[type, ...]) -> bool:
    """Whether it is a list of that kind; true and false are no numbers."""
    return isinstance(values, list) and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )


def _check_seeds(recipe: Recipe) -> None:
    if not _of(list(recipe.seeds), int) or not all(abs(seed) < 2**63 for seed in recipe.seeds):
        raise ValueError(f"seeds must be whole numbers: {list(recipe.seeds)}")
    if not recipe.seeds or len(set(recipe.seeds)) < len(recipe.seeds):
        raise ValueError(f"seeds must be different numbers, at least one: {list(recipe.seeds)}")


def tables(known: Mapping[str, Recipe]) -> dict[str, list[str]]:
    """The tables and figures that recipes are part of, each with their names.

    >>> tables(recipes())["lambda"][-1]
    'mnist-iedl-lambda-0.001'
    """
    found: dict[str, list[str]] = {}
    for recipe in known.values():
        for table in recipe.tables:
            found.setdefault(table, []).append(recipe.name)
    return dict(sorted(found.items()))


def chosen(known: Mapping[str, Recipe], names: Iterable[str]) -> list[Recipe]:
    """The recipes of the named tables, sweeps, recipes or patterns of these, in the order named.

    Without a name they are all.

    >>> [recipe.name for recipe in chosen(recipes(), ["mnist-k*"])]
    ['mnist-kl-pn']
    """
    groups = tables(known)
    for recipe in known.values():
        groups.setdefault(recipe.group, []).append(recipe.name)
    groups |= {name: [name] for name in known}
    wanted: dict[str, Recipe] = {}
    for name in names:
        hits = [group for group in groups if fnmatch.fnmatchcase(group, name)]
        if not hits:
            raise ValueError(
                f"unknown table or recipe {name!r}; tables: {_checks.listed(tables(known))}; "
                f"recipes: {_checks.listed(dict.fromkeys(r.group for r in known.values()))}"
            )
        wanted |= {one: known[one] for hit in hits for one in groups[hit]}
    return list((wanted or known).values())
