"""What the report calls things, and in which order it shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dubito._legacy import MEASURES

__all__ = [
    "ABLATION",
    "BASELINES",
    "METHODS_SHOWN",
    "OOD_SHOWN",
    "SETS",
    "SHOWN",
    "SWEEP",
    "Set",
    "base_of",
    "in_order",
    "label_of",
    "method_label",
    "ood_label",
    "plain",
    "set_of",
    "variant_of",
]


@dataclass(frozen=True)
class Set:
    """A data set that networks were trained on: its name, and what it is told from in the paper."""

    label: str
    ood: tuple[str, ...]


#: how recipes begin -> the data set
SETS: dict[str, Set] = {
    "mnist": Set("MNIST", ("kmnist", "fashion-mnist")),
    "cifar10": Set("CIFAR-10", ("svhn", "cifar-100")),
}
#: a data set's name -> its name in tables
OOD_SHOWN = {
    "kmnist": "KMNIST",
    "fashion-mnist": "FMNIST",
    "svhn": "SVHN (re-cropped)",
    "cifar-100": "CIFAR-100",
    "mnist": "MNIST",
    "cifar-10": "CIFAR-10",
}
#: the rest of a recipe's name -> the method's name in tables, in the order of the paper's
METHODS_SHOWN = {
    "softmax": "Softmax",
    "label-smoothing": "Label smoothing",
    "mc-dropout": "MC Dropout",
    "ensemble": "Ensemble",
    "kl-pn": "KL-PN",
    "rkl-pn": "RKL-PN",
    "posterior-network": "PostN",
    "redl": "R-EDL",
    "edl": "EDL",
    "iedl": "I-EDL",
}
#: what every table of methods has a row for, run or not
BASELINES = ("mc-dropout", "kl-pn", "rkl-pn", "posterior-network", "edl", "iedl")
#: recipe -> what it has of I-EDL: the weighted error, the log-determinant
ABLATION = {
    "edl": "MSE (EDL)",
    "edl-logdet": "MSE + log det",
    "iedl-no-logdet": "I-MSE",
    "iedl": "I-MSE + log det (I-EDL)",
}
SWEEP = "iedl-lambda-"
#: the measures that the paper tells data sets apart by
SHOWN = ("max_prob", "alpha0", "differential_entropy", "mutual_information")


def plain(name: str) -> str:
    """A name without the signs in which spellings differ.

    >>> plain("CIFAR-10"), plain("kl_pn"), plain("fmnist")
    ('cifar10', 'klpn', 'fashionmnist')
    """
    bare = "".join(sign for sign in name.lower() if sign.isalnum())
    return {"fmnist": "fashionmnist", "postn": "posteriornetwork"}.get(bare, bare)


def ood_label(name: str) -> str:
    """The name in tables of data that networks were not trained on."""
    return OOD_SHOWN.get(name, name)


def label_of(measure: str) -> str:
    """A measure's name in tables.

    >>> label_of("alpha0")
    'α₀'
    """
    return MEASURES[measure].label


def set_of(recipe: str) -> str | None:
    """The data set that a recipe's name begins with, or None where it is no known one.

    >>> set_of("cifar10-iedl"), set_of("digits-iedl")
    ('cifar10', None)
    """
    return next((name for name in SETS if recipe.startswith(f"{name}-")), None)


def variant_of(recipe: str) -> str:
    """What is left of a recipe's name after its data set: the method, and what it differs in.

    >>> variant_of("mnist-iedl-no-logdet")
    'iedl-no-logdet'
    """
    known = set_of(recipe)
    return recipe if known is None else recipe.removeprefix(f"{known}-")


def base_of(variant: str) -> str | None:
    """The method whose name a variant begins with.

    >>> base_of("kl-pn-long"), base_of("other")
    ('kl-pn', None)
    """
    fitting = [m for m in METHODS_SHOWN if variant == m or variant.startswith(f"{m}-")]
    return max(fitting, key=len, default=None)


def method_label(variant: str) -> str:
    """A variant's name in tables: the method's, and in words of the recipe what is different.

    >>> method_label("iedl"), method_label("iedl-by-loss"), method_label("other")
    ('I-EDL', 'I-EDL (by loss)', 'other')
    """
    base = base_of(variant)
    if base is None:
        return variant
    rest = variant.removeprefix(base).removeprefix("-").replace("-", " ")
    return METHODS_SHOWN[base] + (f" ({rest})" if rest else "")


def in_order(variants: Iterable[str]) -> list[str]:
    """Variants in the order of tables, each one after the method that it varies.

    >>> in_order(["iedl-long", "other", "edl", "iedl"])
    ['edl', 'iedl', 'iedl-long', 'other']
    """
    order = list(METHODS_SHOWN)

    def place(variant: str) -> tuple[int, bool, str]:
        base = base_of(variant)
        return (len(order) if base is None else order.index(base), variant != base, variant)

    return sorted(set(variants), key=place)
