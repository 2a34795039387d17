import re
from pathlib import Path

import pytest

from dubito.errors import DubitoError
from dubito.methods import METHODS
from reproduction.recipes import FOLDER, Cell, Recipe, read_recipes, select

Recipes = dict[str, Recipe]


def write(folder: Path, text: str) -> Path:
    (folder / "methods.toml").write_text("[softmax]\n[iedl]\nfisher_weight = 0.5\nkl_ramp = 3\n")
    (folder / "some.toml").write_text(text)
    return folder


BASE = '[base]\ndataset = "mnist"\nseeds = [1]\ntables = []\ntraining = { lr = 0.1, epochs = 2 }\n'


def test_child_overrides_single_keys(tmp_path: Path) -> None:
    text = '[recipe.a]\nmethod.name = "iedl"\n'
    text += '[recipe.b]\nextends = "a"\nmethod.kl_ramp = 9\ntraining.lr = 0.2\n'
    merged = read_recipes(write(tmp_path, BASE + text))["mnist-b"].sections
    assert merged["method"] == {"name": "iedl", "fisher_weight": 0.5, "kl_ramp": 9}
    assert merged["training"] == {"lr": 0.2, "epochs": 2}


def test_another_method_starts_from_its_own_values(tmp_path: Path) -> None:
    text = '[recipe.a]\nmethod = { name = "iedl", kl_ramp = 9 }\n'
    text += '[recipe.b]\nextends = "a"\nmethod.name = "softmax"\n'
    merged = read_recipes(write(tmp_path, BASE + text))
    assert merged["mnist-b"].sections["method"] == {"name": "softmax"}


def test_unknown_parent_names_the_recipe(tmp_path: Path) -> None:
    text = '[recipe.a]\nextends = "other"\nmethod.name = "iedl"\n'
    with pytest.raises(DubitoError, match=r"'a' in some\.toml.*other"):
        read_recipes(write(tmp_path, BASE + text))


def test_there_are_about_a_dozen_files() -> None:
    assert len(list(FOLDER.glob("*.toml"))) <= 12


def test_every_recipe_is_valid(recipes: Recipes) -> None:
    for recipe in recipes.values():
        if recipe.is_fewshot:
            assert METHODS.build(recipe.sections["method"]).tasks[0] == "classification"
        else:
            assert METHODS.name_of(recipe.config.method) == recipe.method


@pytest.mark.parametrize(
    ("name", "weight", "lr"), [("mnist-iedl", 0.005, 1e-3), ("cifar10-iedl", 0.05, 5e-4)]
)
def test_paper_values(recipes: Recipes, name: str, weight: float, lr: float) -> None:
    config = recipes[name].config
    assert config.method.fisher_weight == weight
    assert config.method.scale == "paper"
    assert (config.training.lr, config.training.keep) == (lr, "loss")


def test_fewshot_weights_are_those_of_each_setting(recipes: Recipes) -> None:
    weights = {
        recipe.setting: recipe.sections["method"]["fisher_weight"]
        for recipe in recipes.values()
        if recipe.group == "fewshot-iedl"
    }
    settings = [(5, 1), (5, 5), (5, 20), (10, 1)]
    assert [weights[setting] for setting in settings] == [0.01, 0.05, 0.005, 0.1]


@pytest.mark.parametrize(
    ("name", "seed", "expected"),
    [("mnist-iedl", 322, "796bc75f5fa92821"), ("fewshot-iedl-tuned-5w5s", 0, "1d9be89693b8628d")],
)
def test_ids_are_those_of_the_first_edition(
    recipes: Recipes, name: str, seed: int, expected: str
) -> None:
    assert Cell(recipes[name], seed).id == expected


def test_id_depends_on_seed_sections_and_evaluation(recipes: Recipes) -> None:
    ids = {recipe.cells([seed])[0].id for recipe in recipes.values() for seed in (1, 2)}
    swept = [recipe for recipe in recipes.values() if recipe.swept == 0.01]
    assert swept  # the sweeps of few-shot weights repeat the weights of some settings
    assert len(ids) > 2 * (len(recipes) - 10)


def test_select_by_table_sweep_and_pattern(recipes: Recipes) -> None:
    def names(*wanted: str) -> list[str]:
        return [recipe.name for recipe in select(recipes, wanted)]

    assert "cifar10-iedl" in names("tab_conf")
    assert len(names("mnist-iedl-lambda")) == 4
    assert names("mnist-*edl") == ["mnist-redl", "mnist-edl", "mnist-iedl"]
    assert len(names()) == len(recipes)


def test_unknown_table_lists_the_known_ones(recipes: Recipes) -> None:
    with pytest.raises(DubitoError, match=re.escape("'tab_odd'; tables: ablation,")):
        select(recipes, ["tab_odd"])
