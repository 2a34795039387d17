"""The demonstration's model and gallery: made of embedded data in seconds, and kept.

I-EDL on scikit-learn's digits, each written in many ways, and on some that are made of strokes, so
that digits are known that a person draws. Besides, the network sees images that are no digits, and
is asked for no evidence there: the published method has no such term, but one that never saw a
scribble finds evidence in letters.

The settings are not blind: they were chosen after a look at how letters and other people's digits
fared, and held-out digits were in view as well, so these figures flatter it a little. Training and
policy saw none of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor

from dubito import _legacy, backbones, bundle, data, losses, training
from dubito._legacy import Method
from dubito._threads import one_thread
from dubito.bundle import Preprocessing, Promise
from dubito.data import Arrays
from dubito.data.download import data_root
from dubito.losses import Term
from dubito.methods import IEDL
from dubito.methods.base import CONFIG, NonNegative
from dubito.report import files
from dubito.serve import _gallery, _outside, _strokes
from dubito.serve._warp import SIDE, plain, warped

__all__ = ["demo"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recipe:
    """What the model is made with; another recipe is kept apart."""

    data: int = 4  # of how images are made: another number, and all is made anew
    variants: int = 32
    strokes: int = 4000
    outliers: int = 8000
    hidden: tuple[int, ...] = (256, 128)
    epochs: int = 12
    batch_size: int = 128
    learning_rate: float = 2e-3
    fisher_weight: float = 0.005
    outlier_weight: float = 0.3
    error: float = 0.02
    false_alarms: float = 0.04
    seed: int = 0


MILD = 0.5  # how far held-out digits are warped, compared with those of training
#: how digits sit in their square, for those that a person draws
DRAWING = {"fill": 0.94, "centre": "box", "stroke": 0.18}
BLENDS = ((3, 8), (4, 9), (1, 7), (5, 6), (0, 6), (2, 3))
ABOUT = (
    "Data: scikit-learn's 1797 digits of 8 x 8 pixels, enlarged to 16 x 16 and written in many "
    "ways; 70 % for training, 18 % for calibration and policy, 12 % for the gallery.",
    "Training has digits made of strokes as well, in shapes that people draw on a screen.",
    "Besides the published loss, images that are no digits (scribbles, pieces of digits, noise, "
    "waves, negatives) are asked to have no evidence.",
)


def demo(
    progress: Progress = lambda done, total: None,
    root: Path | None = None,
    recipe: Recipe | None = None,
) -> Path:
    """The folder of the demonstration: a bundle in `digits`, its samples in `gallery`.

    It is kept in the user's cache folder, or where DUBITO_DATA says, and made where it is not.
    """
    from filelock import FileLock

    chosen = recipe or Recipe()
    described = json.dumps([asdict(chosen), bundle.versions()["dubito"]])
    key = hashlib.sha256(described.encode()).hexdigest()
    home = files.folder(data_root(root) / "demo")
    place = home / key[:12]
    with FileLock(home / ".lock"):
        if not place.is_dir():
            part = home / f".{key[:12]}.{os.getpid()}.part"
            try:
                _make(part, chosen, progress)
                part.rename(place)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return place


@dataclass(frozen=True)
class Parts:
    """The digits, divided: for training, for the policy, and for the gallery."""

    train: Arrays
    held: Arrays
    shown: Arrays


def parts() -> Parts:
    """Every part has the classes in the same proportion."""
    everything = data.load("digits", "all")
    train, rest, _ = data.split(everything, 0.7, 0, stratified=True)
    held, shown, _ = data.split(rest, 0.6, 0, stratified=True)
    return Parts(train, held, shown)


def _make(place: Path, recipe: Recipe, progress: Progress) -> None:
    digits = parts()
    with one_thread():
        model, method = _trained(digits, recipe, progress)
        held = _held_out(digits.held, recipe.seed + 1)
        said = bundle.says(method, model, PREPARED, held.inputs, 512)
        promise = Promise(error=recipe.error, false_alarms=recipe.false_alarms)
        limits = bundle.limits(said, held.labels, promise)
    bundle.save(
        place / "digits", model, method=method, classes=digits.train.classes,
        shape=(1, SIDE, SIDE), backbone={"name": "mlp", "hidden": list(recipe.hidden)},
        preprocessing=PREPARED, calibration=limits.calibration, policy=limits.policy, about=ABOUT,
    )  # fmt: skip
    _write_gallery(place / "gallery", digits.shown)


PREPARED = Preprocessing(pixels=True, mode="L")


# --- training ------------------------------------------------------------------------------------


@pydantic_dataclass(frozen=True, kw_only=True, config=CONFIG)
class Exposed(IEDL):
    """I-EDL, and a term that takes evidence from outliers."""

    outlier_weight: NonNegative = 0.3
    """Weight of that term."""

    @property
    def ood_terms(self) -> Mapping[str, Term]:
        """KL(Dir(alpha) || Dir(1))."""
        return {"outlier_kl": losses.kl_to_uniform}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Weights of I-EDL, and of the outliers."""
        return {**super().weights(epoch, epochs), "outlier_kl": self.outlier_weight}


def _trained(digits: Parts, recipe: Recipe, progress: Progress) -> tuple[torch.nn.Module, Method]:
    generator = torch.Generator().manual_seed(recipe.seed)
    epochs, images = recipe.epochs, digits.train.floats()
    progress(0, epochs)
    strokes, labels = _strokes.written(recipe.strokes, generator)
    made = [warped(images, generator) for _ in range(recipe.variants)]
    known = torch.cat([digits.train.labels.repeat(recipe.variants), labels])
    train = Arrays(torch.cat([*made, warped(strokes, generator)]), known, digits.train.classes)
    bank = _outside.outliers(images, recipe.outliers, generator)
    method = _legacy.method("iedl", fisher_weight=recipe.fisher_weight, kl_ramp=3)
    loss = Exposed(**method.hyperparameters(), outlier_weight=recipe.outlier_weight)
    exposed = Method(core=loss, ood=bank, ood_share=0.5)
    settings = training.Settings(
        epochs=epochs, batch_size=recipe.batch_size, learning_rate=recipe.learning_rate,
        optimizer="adamw", optimizer_options={"weight_decay": 1e-3}, schedule="cosine",
        validate_every=epochs, patience=0, seed=recipe.seed,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = backbones.build("mlp", train.shape, 10, hidden=recipe.hidden)
    # Validated once, at the end, with what it was trained on: no held-out sample chooses anything.
    seen = Arrays(plain(images), digits.train.labels, train.classes)
    run = training.fit(
        exposed, network, train, seen, settings,
        callback=lambda told: progress(int(told["epoch"]), epochs),
    )  # fmt: skip
    return run.model.eval(), method


def _held_out(held: Arrays, seed: int) -> Arrays:
    """Half of them as they are, half as another hand would write them that takes some care.

    None is there twice: a promise counts samples that know nothing of each other.
    """
    generator = torch.Generator().manual_seed(seed)
    images = held.floats()
    other = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    made = torch.where(other, warped(images, generator, MILD), plain(images))
    return Arrays(made, held.labels, held.classes)


# --- the gallery ---------------------------------------------------------------------------------


def _write_gallery(folder: Path, digits: Arrays) -> None:
    folder.mkdir(parents=True)
    groups = [_group(folder, place, *group) for place, group in enumerate(_groups(digits))]
    text = files.json_text({"groups": groups, "drawing": DRAWING})
    files.write(folder / _gallery.NAME, text)


Truths = list[str | None]
Images = tuple[str, str, str, Tensor, Truths]


def _groups(digits: Arrays) -> list[Images]:
    images, labels = digits.floats(), digits.labels
    chosen = torch.cat([(labels == k).nonzero()[:2, 0] for k in range(10)])
    first = {k: images[(labels == k).nonzero()[2, 0]] for k in range(10)}
    blends = _outside.mixed(*(torch.stack([first[pair[i]] for pair in BLENDS]) for i in (0, 1)))
    nothing: Truths = [None]
    return [
        ("Test digits", "known", "Digits that training never saw.", plain(images[chosen]),
         [digits.classes[k] for k in labels[chosen].tolist()]),
        ("Letters", "unknown", "Shapes of strokes, as digits are, but of another alphabet.",
         _outside.letters(), nothing * len(_outside.LETTERS)),
        ("Signs", "unknown", "Drawings of other things.", _outside.signs(),
         nothing * len(_outside.SIGNS)),
        ("Two at once", "unknown", "One digit laid over another.", blends, nothing * len(BLENDS)),
        ("Photographs", "unknown", "Small pieces of two photographs.", _outside.photographs(8),
         nothing * 8),
        ("Noise and waves", "unknown", "Nothing at all, evenly spread.", _outside.static(8),
         nothing * 8),
    ]  # fmt: skip


def _group(
    folder: Path,
    place: int,
    name: str,
    kind: str,
    about: str,
    images: Tensor,
    truths: list[str | None],
) -> dict[str, object]:
    items = []
    for number, (image, truth) in enumerate(zip(images, truths, strict=True)):
        file = f"{place}-{number}.png"
        (folder / file).write_bytes(_png(image))
        items.append({"file": file, "truth": truth})
    return {"name": name, "kind": kind, "about": about, "items": items}


def _png(image: Tensor) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.fromarray((image[0] * 255).round().byte().numpy()).save(made, "PNG")
    return made.getvalue()
