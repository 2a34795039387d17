"""The paper's experiments: recipes, its numbers, and a runner that keeps what is done.

A recipe is a .toml file: the four sections of `dubito.runs`, seeds, and what to judge by. A cell is
a recipe and a seed; its identity is a hash of all that, so that a cell is run again exactly when
its recipe has changed. Its record, a small json file, holds all that tables and figures need.

>>> known = recipes()
>>> [recipe.name for recipe in chosen(known, ["tab_conf"])][:2]
['cifar10-edl', 'cifar10-iedl']
>>> known["cifar10-iedl"].cells()[0].name
'cifar10-iedl seed 322'
"""

from dubito.experiments._quick import quick
from dubito.experiments._recipe import Cell, Recipe, chosen, paper, read_recipes, recipes, tables
from dubito.experiments._runner import Outcome, reproduce
from dubito.experiments._store import CHANGED, DONE, MISSING, Store

__all__ = [
    "CHANGED",
    "DONE",
    "MISSING",
    "Cell",
    "Outcome",
    "Recipe",
    "Store",
    "chosen",
    "paper",
    "quick",
    "read_recipes",
    "recipes",
    "reproduce",
    "tables",
]
