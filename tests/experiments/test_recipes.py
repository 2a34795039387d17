"""The recipes that come with dubito follow the published protocol, and have their identities."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dubito import experiments, runs
from dubito._legacy import MEASURES, METHODS
from dubito.training import Settings

# those of few-shot episodes have their own tests: test_fewshot_recipes.py
RECIPES = {n: r for n, r in experiments.recipes().items() if r.kind == "training"}
SEEDS = (322, 365, 382, 510, 988)


STUDIED = [name for name, recipe in RECIPES.items() if recipe.tables == ("study",)]
PUBLISHED = {name: recipe for name, recipe in RECIPES.items() if name not in STUDIED}


@pytest.mark.parametrize("recipe", PUBLISHED.values(), ids=PUBLISHED)
def test_the_protocol_is_the_published_one(recipe: experiments.Recipe) -> None:
    config = runs.configure(recipe.sections)
    mnist = config.data["source"] == "mnist"
    assert recipe.name.startswith("mnist-" if mnist else "cifar10-")
    assert config.data["validation"] == (0.2 if mnist else 0.05)
    assert config.backbone["name"] == ("convnet" if mnist else "vgg16")
    training = config.training
    stop = ("epochs", "batch_size", "validate_every", "patience", "average", "keep", "optimizer")
    # by loss, as the paper's text has it; its code keeps by accuracy: docs/stopping.md
    assert [training[key] for key in stop] == [200, 64, 2, 10, 0, "loss", "adam"]
    augment = None if mnist else {"flip": 0.5, "padding": 4, "degrees": 15.0}
    assert training["augment"] == augment
    main = recipe.name.split("-", 1)[1] in ("iedl", "edl")
    assert recipe.seeds == (SEEDS if main else SEEDS[:3])
    assert recipe.evaluate["ood"] == (
        ["kmnist", "fashion-mnist"] if mnist else ["svhn", "cifar-100"]
    )
    assert recipe.evaluate["noise"] == [0.1]
    assert recipe.evaluate["humans"] is not mnist
    if "kl_ramp" in config.method:
        assert (config.method["kl_ramp"], config.method["kl_weight"]) == (10, 1)


@pytest.mark.parametrize(
    ("name", "rate", "options"),
    [
        ("mnist-iedl", 1e-3, {"fisher_weight": 0.005}),
        ("mnist-edl", 1e-3, {"likelihood": "mse"}),
        ("cifar10-iedl", 5e-4, {"fisher_weight": 0.05}),
        ("cifar10-edl", 1e-4, {"likelihood": "mse"}),
        ("mnist-posterior-network", 1e-4, {"entropy_weight": 1e-6, "latent_dim": 6}),
        ("cifar10-posterior-network", 2.5e-4, {"entropy_weight": 1e-5, "flow_length": 6}),
        ("mnist-iedl-no-logdet", 1e-3, {"fisher_weight": 0}),
        ("cifar10-iedl-lambda-0.001", 5e-4, {"fisher_weight": 0.001}),
    ],
)
def test_rates_and_weights(name: str, rate: float, options: dict[str, Any]) -> None:
    sections = RECIPES[name].sections
    assert sections["training"]["learning_rate"] == rate
    assert {key: sections["method"][key] for key in options} == options


def test_every_method_of_the_paper_is_there_for_both_data_sets() -> None:
    for data in ("mnist", "cifar10"):
        trained = {
            recipe.sections["method"]["name"]
            for recipe in experiments.chosen(RECIPES, ["tab_ood"])
            if recipe.name.startswith(data)
        }
        assert trained == {"iedl", "edl", "kl_pn", "rkl_pn", "posterior_network", "mc_dropout"}


def test_the_papers_numbers() -> None:
    tables = {table["label"]: table["cell"] for table in experiments.paper()["table"]}
    sizes = {name: len(cells) for name, cells in tables.items()}
    assert sizes == {
        "tab_ood": 44, "tab_conf": 17, "app_exp_cifar100_auroc": 40, "app_exp_auroc_other": 48,
        "tab_mini": 36, "tab_ablation": 12, "tab_label_smooth": 16, "app_tab_mini_all": 64,
    }  # fmt: skip
    for cells in tables.values():
        for cell in cells:
            assert cell["method"] in METHODS or cell["method"].startswith(("edl-", "iedl-"))
            assert cell["metric"] in ("accuracy", "aupr", "auroc")
            assert ("measure" in cell) == (cell["metric"] != "accuracy")
            assert cell.get("measure", "alpha0") in MEASURES
            assert 0 < cell["deviation"] < 6 < cell["mean"] < 100 or cell["deviation"] == 0
    ours = {"method": "iedl", "data": "cifar-10", "ood": "svhn", "metric": "auroc"}
    (cell,) = (
        cell
        for cell in tables["app_exp_auroc_other"]
        if cell.items() >= {**ours, "measure": "mutual_information"}.items()
    )
    assert (cell["mean"], cell["deviation"]) == (87.01, 1.5)


def test_both_tables_print_the_same_aupr() -> None:
    """A check of the transcription: the main table's cells stand in the appendix again."""
    tables = {table["label"]: table["cell"] for table in experiments.paper()["table"]}
    keys = ("method", "data", "ood", "metric", "measure")
    main = {tuple(cell[key] for key in keys): cell["mean"] for cell in tables["tab_ood"]}
    compared = 0
    for label in ("app_exp_cifar100_auroc", "app_exp_auroc_other"):
        for cell in tables[label]:
            where = tuple(cell[key] for key in keys)
            if where in main:
                assert main[where] == cell["mean"], where
                compared += 1
    assert compared == 22


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_leaves_no_setting_of_its_training_to_a_default(
    recipe: experiments.Recipe,
) -> None:
    elsewhere = {"seed", "optimizer_options", "channels_last", "graph", "compile", "workers"}
    stated = set(recipe.sections["training"])
    assert {one.name for one in fields(Settings)} - elsewhere <= stated


def test_identity_is_content() -> None:
    recipe = RECIPES["mnist-iedl"]
    cell = recipe.cells()[0]
    assert len(cell.id) == 16
    assert replace(recipe, title="x", about="y", name="z").cells()[0].id == cell.id
    assert recipe.cells([365])[0].id != cell.id
    judged = replace(recipe, evaluate={**recipe.evaluate, "noise": [0.2]})
    assert judged.cells()[0].id != cell.id
    assert judged.training_id == recipe.training_id
    assert len({one.training_id for one in RECIPES.values()}) == len(RECIPES)


AUGMENT = {"augment", "epochs", "patience"}


@pytest.mark.parametrize("name", STUDIED)
def test_a_study_changes_what_its_name_says(name: str) -> None:
    base_name, expected = {
        "cifar10-edl-averaged": ("cifar10-edl", {"average"}),
        "cifar10-iedl-averaged": ("cifar10-iedl", {"average"}),
        "cifar10-iedl-averaged-no-padding": ("cifar10-iedl-averaged", AUGMENT),
        "cifar10-iedl-averaged-no-rotation": ("cifar10-iedl-averaged", AUGMENT),
        "cifar10-iedl-averaged-small-lambda": ("cifar10-iedl-averaged", {"fisher_weight"}),
        "cifar10-iedl-averaged-small-lambda-no-rotation": (
            "cifar10-iedl-averaged-small-lambda",
            {"augment"},
        ),
        "cifar10-iedl-by-accuracy": ("cifar10-iedl-by-accuracy-bf16", {"precision"}),
        "cifar10-iedl-by-accuracy-bf16": ("cifar10-iedl", {"keep"}),
        "cifar10-iedl-cosine": ("cifar10-iedl", {"schedule", "epochs", "patience"}),
        "cifar10-iedl-settled": ("cifar10-iedl", {"average", "epochs", "patience"}),
        "cifar10-rkl-pn-averaged": ("cifar10-rkl-pn", {"average"}),
        "cifar10-rkl-pn-short": ("cifar10-rkl-pn-averaged", {"epochs"}),
        "cifar10-rkl-pn-unaugmented": (
            "cifar10-rkl-pn",
            {"augment", "learning_rate", "validation"},
        ),
        "cifar10-softmax-averaged": ("cifar10-softmax", {"average"}),
        "mnist-edl-by-accuracy": ("mnist-edl", {"keep"}),
        "mnist-iedl-by-accuracy": ("mnist-iedl", {"keep"}),
    }[name]
    changed, base = RECIPES[name].sections, RECIPES[base_name].sections
    different = {
        key
        for part in ("data", "backbone", "method", "training")
        for key in changed[part] | base[part]
        if base[part].get(key) != changed[part].get(key)
    }
    assert different - {"compile"} == expected  # which is for speed alone


def test_names_are_tables_recipes_sweeps_or_patterns() -> None:
    def names(*given: str) -> list[str]:
        return [recipe.name for recipe in experiments.chosen(RECIPES, given)]

    assert names() == list(RECIPES)
    assert names("mnist-edl", "cifar10-edl") == ["mnist-edl", "cifar10-edl"]
    assert len(names("mnist-iedl-lambda")) == 4
    assert names("tab_conf") == [n for n in names("tab_ood") if n.startswith("cifar10")]
    assert names("*-redl") == ["cifar10-redl", "mnist-redl"]
    with pytest.raises(ValueError, match=r"'tab_oof'; tables: .*'tab_ood'.*recipes: 'cifar10-edl'"):
        names("tab_oof")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("epochs", "epoch"), "did you mean 'epochs'"),
        (("title", "titel"), "unknown key 'titel' in the recipe"),
        (('protocol = "dubito"', 'protocol = "mine"'), "unknown protocol 'mine'"),
        (("noise", "nose"), "unknown key 'nose' in \\[evaluate\\]"),
        (("[1, 2]", "[1, 1]"), "seeds must be different"),
        (("[1, 2]", "[]"), "seeds must be different"),
        (("[1, 2]", "[1, 'a']"), "seeds must be whole numbers"),
        (("[1, 2]", "[true]"), "seeds must be whole numbers"),
        (("[1, 2]", "[99999999999999999999]"), "seeds must be whole numbers"),
        (("[data]", "sweep = 3\n[data]"), r"\[sweep\] has a `key`"),
        (("[data]", "[sweep]\nkey = 3\nvalues = [1]\n[data]"), r"\[sweep\] has a `key`"),
        (("[data]", "[sweep]\nkey = 'method.x'\nvalues = 3\n[data]"), r"\[sweep\] has a `key`"),
        (("[data]", "[sweep]\nkey = 'data.source'\nvalues = ['a/b']\n[data]"), "can't have a /"),
        (('tables = ["tab_small"]', 'tables = "lambda"'), "tables must be a list of names"),
        (("noise = [0.3]", "noise = 0.3"), "noise in .* must be a list of numbers > 0"),
        (("noise = [0.3]", "noise = [-0.3]"), "noise in .* must be a list of numbers > 0"),
        (("noise = [0.3]", "noise = [nan]"), "noise in .* must be a list of numbers > 0"),
        (("noise = [0.3]", "noise = [0]"), "noise in .* must be a list of numbers > 0"),
        (("noise = [0.3]", "noise = [0.3]\nwatch = 'no'"), "watch in .* is true or false"),
        (("noise = [0.3]", "humans = true"), "humans = true is for"),
        (("[method]", "[method"), "one.toml"),
        (("[training]", "[training]\nseed = 3"), "stand in `seeds`"),
        (("[data]", "[sweep]\nkey = 'methods.x'\nvalues = [1]\n[data]"), "unknown section"),
    ],
)
def test_a_wrong_recipe_is_told_when_it_is_read(
    write: Any, change: tuple[str, str], words: str
) -> None:
    folder: Path = write("one")
    file = folder / "one.toml"
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change, 1))
    with pytest.raises(ValueError, match=words):
        experiments.read_recipes(folder)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_quick_recipe_is_another_one_and_needs_no_data(recipe: experiments.Recipe) -> None:
    quick = experiments.quick(recipe)
    assert quick.quick
    assert quick.name == recipe.name
    assert quick.sections["training"]["epochs"] == 2
    assert quick.sections["training"]["precision"] == "tf32"
    sources = [quick.sections["data"]["source"], *quick.evaluate["ood"]]
    assert all(source.startswith("quick:") for source in sources)
    assert quick.cells()[0].id != recipe.cells()[0].id
    assert quick.sections["method"]["name"] == recipe.sections["method"]["name"]
