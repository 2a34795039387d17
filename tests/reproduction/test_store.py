import json
from pathlib import Path
from typing import Any

import pytest

from dubito.errors import DubitoError
from reproduction.recipes import Recipe
from reproduction.store import Store

Recipes = dict[str, Recipe]


def record(recipe: Recipe, seed: int, **more: Any) -> dict[str, Any]:
    cell = recipe.cells([seed])[0]
    return {"format": 2, "recipe": recipe.name, "seed": seed, "id": cell.id, "quick": False, **more}


def test_records_survive_compaction(tmp_path: Path, recipes: Recipes) -> None:
    store = Store(tmp_path, recipes)
    for name in ("mnist-iedl", "fewshot-edl-5w5s"):
        store.add(record(recipes[name], 1, result={"accuracy": 0.5}))
    store.compact()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fewshot.jsonl.xz",
        "mnist.jsonl.xz",
    ]
    assert Store(tmp_path, recipes).current() == store.current()
    assert len(store.current()) == 2


def test_unfinished_line_of_a_killed_run_is_dropped(tmp_path: Path, recipes: Recipes) -> None:
    store = Store(tmp_path, recipes)
    store.add(record(recipes["mnist-iedl"], 1))
    with store.journal.open("a") as file:
        file.write(json.dumps(record(recipes["mnist-iedl"], 2))[:-9])
    again = Store(tmp_path, recipes)
    assert len(again) == 1
    again.add(record(recipes["mnist-iedl"], 3))
    assert [one["seed"] for one in Store(tmp_path, recipes).current()] == [1, 3]


def test_record_of_a_changed_recipe_does_not_count(tmp_path: Path, recipes: Recipes) -> None:
    store, recipe = Store(tmp_path, recipes), recipes["mnist-iedl"]
    store.add(record(recipe, 1, id="0123456789abcdef"))
    assert store.get(recipe.cells([1])[0]) is None
    assert store.current() == []
    store.add(record(recipe, 1))
    assert store.get(recipe.cells([1])[0]) is not None


@pytest.mark.parametrize("content", [b"damaged", b""])
def test_damaged_file_is_named(tmp_path: Path, recipes: Recipes, content: bytes) -> None:
    (tmp_path / "mnist.jsonl.xz").write_bytes(content)
    with pytest.raises(DubitoError, match=r"mnist\.jsonl\.xz is damaged"):
        Store(tmp_path, recipes)


def test_unknown_format_is_an_error(tmp_path: Path, recipes: Recipes) -> None:
    Store(tmp_path, recipes).add({**record(recipes["mnist-iedl"], 1), "format": 99})
    with pytest.raises(DubitoError, match="unknown format 99"):
        Store(tmp_path, recipes)


def test_repository_has_all_records(store: Store, recipes: Recipes) -> None:
    cells = [cell for recipe in recipes.values() for cell in recipe.cells()]
    assert all(store.get(cell) is not None for cell in cells)
    assert len(store) == len(store.current()) == 280
    assert sum(path.stat().st_size for path in store.folder.iterdir()) < 1_500_000
