"""Recipes of trainings and their evaluation, and the ids of their records.

A file in recipes/ has a [base] and recipes that inherit from it: `extends` names another recipe of
the same file or of the file that it `includes`. Tables are merged key by key; a method with another
name starts from methods.toml.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dubito.errors import DubitoError

if TYPE_CHECKING:
    from dubito.config import RunConfig

__all__ = ["Cell", "Recipe", "groups", "merge", "read_recipes", "select"]

FOLDER = Path(__file__).parent / "recipes"
METHODS = "methods"
FEWSHOT = "fewshot"
COMPARISON = "comparison"
TRAINING_SECTIONS = ("data", "backbone", "method", "training")
FIELDS = ("dataset", "variant", "about", "tables", "seeds", "evaluate")
Sections = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One row of a table: a training, or episodes of one few-shot setting."""

    name: str
    group: str
    """Name without the value of a sweep and the few-shot setting."""
    dataset: str
    """"mnist", "cifar10" or "fewshot"."""
    sections: Sections = field(repr=False)
    """Sections of `RunConfig`; or of episodes: features, ood, setting, method, tune."""
    seeds: tuple[int, ...]
    variant: str = ""
    """Difference from the method as published."""
    swept: float | None = None
    """Value of the sweep that the recipe is part of."""
    evaluate: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """OOD sets, levels of noise, human labels, and whether to evaluate at each validation."""
    tables: tuple[str, ...] = ()
    about: str = ""
    quick: bool = False
    """Embedded data and a short training."""

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.sections["method"]["name"])

    @property
    def is_fewshot(self) -> bool:
        """Whether the recipe is about episodes."""
        return self.dataset == FEWSHOT

    @property
    def setting(self) -> tuple[int, int]:
        """Ways and shots of episodes."""
        return self.sections["setting"]["ways"], self.sections["setting"]["shots"]

    @cached_property
    def config(self) -> RunConfig:
        """Configuration of the training."""
        from dubito.config import RunConfig

        sections = {name: dict(self.sections[name]) for name in TRAINING_SECTIONS}
        # As the paper has it, the validation samples choose the epoch; there is no policy.
        sections["data"] |= {"selection": sections["data"].pop("validation"), "calibration": 0.0}
        del sections["data"]["stratify"]  # as selection samples are
        training = sections["training"]
        if training.get("augment") == "none":
            del training["augment"]
        elif "augment" in training:
            training["augment"] = {"name": "shift", **training["augment"]}
        training["schedule_by"] = "epoch"
        return RunConfig.merge(sections, {})

    def cells(self, seeds: Sequence[int] | None = None) -> list[Cell]:
        """Return a cell for each seed."""
        return [Cell(self, seed) for seed in (self.seeds if seeds is None else seeds)]


@dataclass(frozen=True)
class Cell:
    """A recipe and a seed: one record."""

    recipe: Recipe
    seed: int

    @property
    def id(self) -> str:
        """Hash of everything that the record depends on."""
        recipe = self.recipe
        sections = first_edition(recipe)
        text = _canonical({**sections, "seed": self.seed, "evaluate": dict(recipe.evaluate)})
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.recipe.name} seed {self.seed}"


def _canonical(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


# --- ids ---

#: (section, key) -> key in the first edition, whose ids the records keep
RENAMED = {
    ("data", "stratify"): "stratified",
    ("training", "lr"): "learning_rate",
    ("training", "average_epochs"): "average",
    ("method", "samples"): "passes",
}
#: few-shot recipes of ablations -> their method in the first edition
HEADS = {"fewshot-edl-logdet": "mse_logdet", "fewshot-iedl-no-logdet": "i_mse"}
#: hyperparameters that few-shot methods of the first edition did not have
NO_HEAD = ("likelihood", "evidence", "scale", "ood_weight")


def first_edition(recipe: Recipe) -> Sections:
    """Return the sections of a recipe as the first edition named them, which ids are made of."""
    if recipe.dataset == COMPARISON:
        return recipe.sections
    if recipe.is_fewshot:
        return _first_edition_episodes(recipe)
    renamed = {
        name: {RENAMED.get((name, key), key): value for key, value in recipe.sections[name].items()}
        for name in TRAINING_SECTIONS
    }
    training = renamed["training"]
    training.setdefault("augment", "none")
    if not training.get("compile"):
        training.pop("compile", None)
    if training["patience"]:  # counted the best validation, too
        training["patience"] += 1
    return renamed


def _first_edition_episodes(recipe: Recipe) -> Sections:
    sections = recipe.sections
    setting, tune = dict(sections["setting"]), dict(sections.get("tune", {}))
    head = {k: v for k, v in sections["method"].items() if k not in NO_HEAD}
    tune_episodes = setting.pop("tune_episodes", None)
    renamed: Sections = {
        "fewshot": {
            "features": sections["features"], "ood": sections["ood"], "queries": "code",
            "scaling": "none", "reference": "",
        },
        "setting": setting,
        "head": head,
    }  # fmt: skip
    if tune:
        renamed["head"] = {"name": head["name"]}
        renamed["tune"] = {
            "features": tune["features"],
            "objective": tune["objective"],
            "episodes": tune_episodes,
            "grid": tune.get("fisher_weight"),
            "kl_grid": [[weight, 10] for weight in tune["kl_weight"]],
            "scalings": [name.replace("centered", "centred") for name in tune["scaling"]],
        }
    elif recipe.group in HEADS:
        head["name"] = HEADS[recipe.group]
        if not head["fisher_weight"]:
            del head["fisher_weight"]
    return renamed


# --- files ---


def read_recipes(folder: Path = FOLDER) -> dict[str, Recipe]:
    """Read the recipes of a folder, by name.

    >>> recipes = read_recipes()
    >>> recipes["cifar10-iedl"].sections["method"]["fisher_weight"]
    0.05
    >>> recipes["mnist-iedl"].cells()[0].id
    '796bc75f5fa92821'
    """
    files = {path.stem: _read(path) for path in sorted(folder.glob("*.toml"))}
    methods = files.pop(METHODS)
    recipes: dict[str, Recipe] = {}
    for stem, content in files.items():
        parent = files[content["includes"]] if "includes" in content else {}
        base = content.get("base") or parent["base"]
        known = {**parent.get("recipe", {}), **content["recipe"]}
        for key in content["recipe"]:
            try:
                merged = _inherit(key, known, base, methods)
                recipes |= {recipe.name: recipe for recipe in _expand(key, merged)}
            except (KeyError, TypeError) as error:
                raise DubitoError(f"recipe {key!r} in {stem}.toml: {error!r}") from error
    return recipes


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DubitoError(f"cannot read {path}: {error}") from error


def _inherit(
    key: str, known: Mapping[str, Any], base: Mapping[str, Any], methods: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge a recipe with the one that it extends."""
    own = dict(known[key])
    name = own.pop("extends", None)
    parent = _inherit(name, known, base, methods) if name else dict(base)
    method = own.get("method", {})
    if "name" in method:
        parent["method"] = dict(methods[method["name"]])
    return merge(parent, own)


def merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables; values of the child win.

    Args:
        parent: Table.
        child: Table with other values, or more.
    """
    merged = dict(parent)
    for key, value in child.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _expand(key: str, merged: dict[str, Any]) -> Iterator[Recipe]:
    """Yield a recipe for each few-shot setting and each value of the sweep."""
    sweep, settings = merged.pop("sweep", None), merged.pop("settings", None)
    only = merged.pop("only", {})
    own = {name: merged.pop(name) for name in FIELDS if name in merged}
    own |= {name: tuple(own[name]) for name in ("seeds", "tables")}
    name = f"{own['dataset']}-{key}"
    base = Recipe(name=name, group=name, sections=merged, **own)
    for recipe in [base] if settings is None else [_set(base, each, only) for each in settings]:
        if sweep is None:
            yield recipe
        else:
            ((hyperparameter, values),) = sweep.items()
            for value in values:
                method = {**recipe.sections["method"], hyperparameter: value}
                sections = {**recipe.sections, "method": method}
                name = f"{recipe.name}-{value}"
                yield replace(recipe, name=name, sections=sections, swept=value)


def _set(base: Recipe, setting: Mapping[str, Any], only: Mapping[str, Any]) -> Recipe:
    """Return the recipe of one few-shot setting; other keys of it are hyperparameters."""
    sizes = {k: v for k, v in setting.items() if k.endswith(("ways", "shots", "episodes"))}
    own = {k: v for k, v in setting.items() if k not in sizes}
    method = {**base.sections["method"], **own}
    tables = [
        table
        for table in base.tables
        if all(setting[key] in values for key, values in only.get(table, {}).items())
    ]
    return replace(
        base,
        name=f"{base.name}-{setting['ways']}w{setting['shots']}s",
        sections={**base.sections, "setting": sizes, "method": method},
        tables=tuple(tables),
    )


# --- selection ---


def groups(recipes: Iterable[Recipe]) -> dict[str, list[str]]:
    """Return the names of the recipes of each table.

    >>> groups(read_recipes().values())["tab_ablation"]
    ['fewshot-edl-5w5s', 'fewshot-edl-logdet-5w5s', 'fewshot-iedl-5w5s', ...]
    """
    members: dict[str, list[str]] = {}
    for recipe in recipes:
        for table in recipe.tables:
            members.setdefault(table, []).append(recipe.name)
    return dict(sorted(members.items()))


def select(recipes: Mapping[str, Recipe], names: Iterable[str]) -> list[Recipe]:
    """Return the recipes of tables, sweeps or patterns of names; all of them without any.

    >>> [recipe.name for recipe in select(read_recipes(), ["mnist-k*"])]
    ['mnist-kl-pn']
    """
    known = groups(recipes.values())
    for recipe in recipes.values():
        known.setdefault(recipe.group, []).append(recipe.name)
    known |= {name: [name] for name in recipes}
    selected: dict[str, Recipe] = {}
    for name in names:
        hits = fnmatch.filter(known, name)
        if not hits:
            tables = ", ".join(groups(recipes.values()))
            raise DubitoError(f"unknown table or recipe {name!r}; tables: {tables}; see --list")
        selected |= {each: recipes[each] for hit in hits for each in known[hit]}
    return list((selected or dict(recipes)).values())
