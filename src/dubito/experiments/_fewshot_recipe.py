"""Few-shot recipes: episodes on frozen features, one recipe for each setting of a .toml file.

| key | what |
| --- | --- |
| [fewshot] | `features`, `ood`, `reference`, `scaling`; `queries` is "code" or "paper" |
| [head] | the head's `name` and hyperparameters |
| [[setting]] | `ways`, `shots`, `episodes`, `tune_episodes`; other keys are the head's here |
| [tune] | `features` of validation classes, and what `dubito.fewshot.tuning.tune` takes |
| [sweep] | a `key` of the head, and its `values` |

Features are files below the folder of all data (DUBITO_DATA), as `dubito features` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dubito import _checks
from dubito.data import data_root
from dubito.fewshot import SCALINGS, Setting, head
from dubito.fewshot.tuning import OBJECTIVES
from dubito.runs import unknown

if TYPE_CHECKING:
    from dubito.experiments._recipe import Recipe

__all__ = [
    "FEWSHOT", "PREFIX", "expanded", "located", "quick", "resolved", "setting_of", "sources",
]  # fmt: skip

FEWSHOT = "fewshot"
PREFIX = "quick:"
#: section -> its keys with their defaults; None: it has to be given
SECTIONS: dict[str, dict[str, Any]] = {
    "fewshot": {
        "features": None, "ood": None, "queries": "code", "scaling": "none", "reference": "",
    },
    "setting": {"ways": None, "shots": None, "episodes": 10_000},
    "tune": {
        "features": None, "episodes": 400, "objective": "pareto", "grid": None, "kl_grid": None,
        "scalings": ["none"],
    },
}  # fmt: skip
ASIDE = ("tables", "tune_episodes")  # keys of a setting that are not the head's
QUICK_EPISODES, QUICK_GRID = 6, 2


def expanded(base: Recipe, values: Mapping[str, Any]) -> Iterator[Recipe]:
    """The recipes of a file: one for each setting and value of the sweep."""
    given = values[FEWSHOT]
    if not isinstance(values.get("setting"), list) or not values["setting"]:
        raise ValueError("a few-shot recipe has at least one [[setting]]")
    for setting in values["setting"]:
        own = {key: setting[key] for key in SECTIONS["setting"] if key in setting}
        rest = {key: setting[key] for key in setting if key not in (*own, *ASIDE)}
        sections: dict[str, dict[str, Any]] = {
            FEWSHOT: _filled(FEWSHOT, given),
            "setting": _filled("setting", own),
            "head": {**values.get("head", {}), **rest},
        }
        if "tune" in values:
            fewer = {"episodes": setting["tune_episodes"]} if "tune_episodes" in setting else {}
            sections["tune"] = _filled("tune", {**values["tune"], **fewer})
        name = f"{base.name}-{own['ways']}w{own['shots']}s"
        made = replace(
            base,
            name=name,
            title=f"{base.title}, {own['ways']} ways, {own['shots']} shots",
            sections=sections,
            evaluate={},
            tables=tuple(setting.get("tables", base.tables)),
            kind=FEWSHOT,
        )
        for recipe in _swept(made, values["sweep"]) if "sweep" in values else [made]:
            _check(recipe)
            yield recipe


def _filled(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = SECTIONS[section]
    for key in given:
        if key not in known:
            raise ValueError(unknown(key, known, f"[{section}]"))
    for key in ("features", "ways", "shots"):
        if key in known and key not in given:
            raise ValueError(f"[{section}] lacks {key!r}")
    return {**known, **given}


def _swept(base: Recipe, sweep: Mapping[str, Any]) -> Iterator[Recipe]:
    if set(sweep) != {"key", "values"} or not sweep["values"]:
        raise ValueError("[sweep] has a `key` of the head and a list of `values`")
    for value in sweep["values"]:
        sections = {**base.sections, "head": {**base.sections["head"], sweep["key"]: value}}
        title = f"{base.title}, {sweep['key'].replace('_', ' ')} {value}"
        yield replace(base, name=f"{base.name}-{value}", title=title, sections=sections)


def _check(recipe: Recipe) -> None:
    """Errors in a recipe are told when it is read, not when its turn comes."""
    sections = recipe.sections
    given = dict(sections["head"])
    head(given.pop("name", ""), **given)
    setting_of(recipe, 0)
    _checks.one_of(SCALINGS, sections[FEWSHOT]["scaling"], "scaling")
    if "tune" in sections:
        _checks.one_of(OBJECTIVES, sections["tune"]["objective"], "objective")
        for name in sections["tune"]["scalings"]:
            _checks.one_of(SCALINGS, name, "scaling")


def setting_of(recipe: Recipe, seed: int) -> Setting:
    """The setting of its episodes."""
    given = recipe.sections["setting"]
    queries = recipe.sections[FEWSHOT]["queries"]
    return Setting(given["ways"], given["shots"], queries, seed)


def resolved(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The sections with the head's defaults filled in, as plain values."""
    given = dict(sections["head"])
    name = given.pop("name")
    made = {"name": name, **head(name, **given).hyperparameters()}
    return dict(json.loads(json.dumps({**sections, "head": made})))


# --- where the features are ----------------------------------------------------------------------


def sources(recipe: Recipe) -> dict[str, str]:
    """What the recipe reads, by what it is for."""
    given, tune = recipe.sections[FEWSHOT], recipe.sections.get("tune", {})
    found = {"features": given["features"], "ood": given["ood"], "reference": given["reference"]}
    return {key: name for key, name in {**found, "tune": tune.get("features")}.items() if name}


def located(source: str, folder: Path) -> Path:
    """The file of a source; that of a quick recipe is in the folder of quick data."""
    if source.startswith(PREFIX):
        return folder / f"{source.removeprefix(PREFIX)}.npz"
    path = data_root() / source
    if not path.exists():
        raise FileNotFoundError(
            f"there are no features {path}: they can't be downloaded, but `dubito features` makes "
            "them from images; DUBITO_DATA names the folder of all data"
        )
    return path


def quick(recipe: Recipe) -> Recipe:
    """The same on a few tiny features, with a few episodes."""
    sections = {name: dict(values) for name, values in recipe.sections.items()}
    for section, keys in ((FEWSHOT, ("features", "ood", "reference")), ("tune", ("features",))):
        for key in keys:
            if section in sections and sections[section][key]:
                sections[section][key] = PREFIX + Path(sections[section][key]).stem
    sections["setting"]["episodes"] = QUICK_EPISODES
    if "tune" in sections:
        sections["tune"]["episodes"] = QUICK_EPISODES
        for key in ("grid", "kl_grid"):
            sections["tune"][key] = (sections["tune"][key] or [])[:QUICK_GRID] or None
    return replace(recipe, sections=sections, quick=True)
