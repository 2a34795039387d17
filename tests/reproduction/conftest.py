from pathlib import Path

import pytest

from reproduction.quick import quick
from reproduction.recipes import Recipe, read_recipes
from reproduction.results import Results
from reproduction.store import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def recipes() -> dict[str, Recipe]:
    return read_recipes()


@pytest.fixture(scope="session")
def quick_recipes(recipes: dict[str, Recipe]) -> dict[str, Recipe]:
    return {name: quick(recipe) for name, recipe in recipes.items()}


@pytest.fixture(scope="session")
def store(recipes: dict[str, Recipe]) -> Store:
    """The records of the repository."""
    return Store(ROOT / "results", recipes)


@pytest.fixture(scope="session")
def results(store: Store) -> Results:
    return Results(store.current(), store.recipes)
