"""Demo of the page: a model of handwritten digits, and a gallery.

I-EDL on scikit-learn's digits and on digits made of strokes, both distorted, so that drawings of a
user are in distribution. Outliers get a loss of their own, the KL divergence to no evidence. The
published method has no such term, but without it letters and scribbles get evidence.

The settings were tuned on the gallery and on drawn digits: neither measures accuracy.
Calibration and policy use digits that were not trained on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from dubito import __version__, data, losses
from dubito._extras import need
from dubito._files import atomic_write, make_folder
from dubito._threads import one_thread
from dubito.data import ImageFormat, Source
from dubito.data._files import data_folder
from dubito.losses import Term
from dubito.methods import IEDL
from dubito.methods.base import CONFIG
from dubito.model import Model, Preprocessing
from dubito.serve._gallery import DRAWING as DRAWING_FILE
from dubito.serve._gallery import Drawing
from dubito.tasks import Classification
from dubito.training import TrainConfig, Trainer

__all__ = ["GALLERY", "MODEL", "make_demo"]

#: sub-folders of the demo
MODEL, GALLERY = "digits", "gallery"
#: pixels of an image, and while it is distorted
SIDE, WORK = 16, 32
VARIANTS, STROKES, OUTLIERS = 20, 5000, 9000
DRAWING: Drawing = {"fill": 0.94, "center": "box", "stroke": 0.18}
KL_RAMP, BACKBONE = 3, {"name": "mlp", "hidden": [256, 128]}
TRAINING = TrainConfig(
    epochs=12, batch_size=128, lr=2e-3, optimizer="adamw", optimizer_options={"weight_decay": 1e-3},
    schedule="cosine", validate_every=12, patience=0,
)  # fmt: skip
#: ways to write digits, and letters and signs that training does not see
SHAPES = json.loads(Path(__file__).with_name("strokes.json").read_bytes())


def make_demo(folder: Path | None = None) -> Path:
    """Return the folder of the demo, with a model and a gallery; make it if there is none.

    Args:
        folder: Folder of the demo; None: a folder beside the known datasets.
    """
    place = folder or data_folder() / f"demo-{__version__}"
    if place.is_dir():
        return place
    # Made elsewhere and renamed, because a folder that exists is complete.
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=make_folder(place.parent)) as part:
        demo = make_folder(Path(part) / "demo")
        train, held_out = data.split(data.open("digits", "train"), 0.75, seed=0, stratify=True)
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            _train(train, held_out).save(demo / MODEL)
            _write_gallery(make_folder(demo / GALLERY), data.open("digits", "test"))
        if not place.is_dir():  # another process may have been faster
            demo.rename(place)
    return place


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class _WithOutliers(IEDL):
    """I-EDL with a loss of outliers."""

    @property
    def ood_terms(self) -> Mapping[str, Term]:
        return {"ood_kl": losses.reverse_kl(1.0)}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        return {**super().weights(epoch, epochs), "ood_kl": 0.2}


def _train(train: Source, held_out: Source) -> Model:
    random = np.random.default_rng(0)
    task = Classification.from_target(train.target)
    images, target = _enlarge(train), task.encode(train.target)
    names = random.choice(task.classes, STROKES).tolist()
    drawn = [_unsteady(random.choice(SHAPES["digits"][name]), random) for name in names]
    inputs = torch.cat([_distort(x) for x in [images] * VARIANTS + [torch.stack(drawn)]])
    targets = torch.cat([target] * VARIANTS + [task.encode(names)])
    preprocessing = Preprocessing(inputs=ImageFormat(size=(SIDE, SIDE), mode="L"))
    trained = Model.build(_WithOutliers(kl_ramp=KL_RAMP), task, preprocessing, BACKBONE)
    # The validation selects nothing: there is only one, at the end.
    samples, validation = (_pixels(inputs), targets), (_pixels(images), target)
    ood = _pixels(_outliers(images, random))
    Trainer(TRAINING).fit(trained, samples, validation, ood=ood)
    model = Model(trained.network, IEDL(kl_ramp=KL_RAMP), task, preprocessing, backbone=BACKBONE)
    # Half of the digits are distorted a little, as drawings are.
    digits = _enlarge(held_out)
    digits[::2] = _distort(digits[::2], 0.5)
    model.calibrate(_pixels(digits), held_out.target)
    return model.fit_policy(_pixels(digits), held_out.target, error_rate=0.02, false_alarms=0.04)


def _outliers(digits: Tensor, random: np.random.Generator) -> Tensor:
    """Return scribbles, digits over others, negatives and noise."""
    drawn = [_draw(_scribble(random), random.uniform(0.08, 0.22)) for _ in range(OUTLIERS // 2)]
    first, second = digits[torch.randint(len(digits), (2, OUTLIERS // 6))]
    lines = _distort(torch.cat([torch.stack(drawn), torch.maximum(first, second)]))
    return torch.cat([lines, 1 - first, _noise(OUTLIERS // 6)])


# --- images: (N, 1, 32, 32) in [0, 1] -------------------------------------------------------------


def _unsteady(text: str, random: np.random.Generator) -> Tensor:
    """Draw strokes with an unsteady hand."""
    strokes = [line + random.normal(0, 0.3, line.shape) for line in _points(text)]
    return _draw(strokes, random.uniform(0.08, 0.22))


def _scribble(random: np.random.Generator) -> list[Any]:
    """Return two to five strokes, round or with corners."""
    counts = random.integers(2, 6, random.integers(2, 6))
    return [random.uniform(0, 9, (n, 2)).repeat(random.integers(1, 3), 0) for n in counts]


def _points(text: str) -> list[Any]:
    """Return the points of each stroke, (n, 2)."""
    return [np.array([[*map(int, p)] for p in line.split()], float) for line in text.split("/")]


def _draw(strokes: Sequence[Any], width: float = DRAWING["stroke"]) -> Tensor:
    """Draw strokes as the page does: (1, 32, 32)."""
    image, side = need("PIL.Image", "data"), 3 * WORK
    line = np.concatenate([_curve(points) for points in strokes])
    low, high = line.min(0), line.max(0)
    scale = side * (DRAWING["fill"] - width) / max(*(high - low), 2)
    sheet = image.new("L", (side, side))
    pen, radius = need("PIL.ImageDraw", "data").Draw(sheet), width * side / 2
    for x, y in side / 2 + scale * (line - (low + high) / 2):
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], 255)
    small = sheet.resize((WORK, WORK), image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small, np.float32) / 255)[None]


def _curve(points: Any) -> Any:
    """Return points on parabolas between the middles of segments."""
    middles = (points[1:] + points[:-1]) / 2
    ends = [points[0], *middles[1:-1], points[-1]]
    controls = points[1:-1] if len(points) > 2 else middles
    t = np.linspace(0, 1, 16)[:, None]
    parts = zip(ends[:-1], controls, ends[1:], strict=True)
    return np.concatenate([(1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c for a, b, c in parts])


def _distort(x: Tensor, strength: float = 1.0) -> Tensor:
    """Turn, slant, stretch, shift and bend images, and vary their strokes."""

    def within(most: float, *shape: int) -> Tensor:
        return most * strength * (2 * torch.rand(len(x), *shape) - 1)

    turn, slant, stretch = within(15).deg2rad(), within(0.3), within(0.2).exp()
    rotate = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).view(-1, 2, 2)
    scale = torch.stack([1 / stretch, slant, 0 * slant, stretch], -1).view(-1, 2, 2)
    affine = torch.cat([scale @ rotate / (0.93 + within(0.12, 1, 1)), within(0.1, 2, 1)], -1)
    knots = 0.1 * strength * torch.randn(len(x), 2, 4, 4)
    bend = F.interpolate(knots, (WORK, WORK), mode="bicubic", align_corners=True)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False) + bend.permute(0, 2, 3, 1)
    moved = F.grid_sample(x, grid, align_corners=False)
    # Contrast about a level of gray: strokes get thinner or thicker, sharper or softer.
    level, contrast = 0.45 + within(0.2, 1, 1, 1), (1 + within(1, 1, 1, 1)).exp()
    return (level + contrast * (moved - level)).clamp(0, 1) * (0.9 + within(0.1, 1, 1, 1))


def _noise(count: int) -> Tensor:
    """Return noise of several scales, brightnesses and contrasts."""
    drawn = [torch.rand(count // 4, 1, side, side) for side in (2, 4, 8, WORK)]
    noise = torch.cat([F.interpolate(x, (WORK, WORK), mode="bilinear") for x in drawn])
    contrast, offset = torch.rand(2, len(noise), 1, 1, 1).unbind()
    return (1.5 * contrast * noise + 0.5 * offset - 0.2).clamp(0, 1)


def _enlarge(digits: Source) -> Tensor:
    pixels = digits.load() / 255
    return F.interpolate(pixels, (WORK, WORK), mode="bicubic", align_corners=False).clamp(0, 1)


def _pixels(images: Tensor) -> Tensor:
    """Resize as the service does: (N, 1, 16, 16) uint8."""
    small = F.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
    return (255 * small).round().clamp(0, 255).byte()


# --- gallery --------------------------------------------------------------------------------------


def _write_gallery(folder: Path, digits: Source) -> None:
    names, images = np.asarray(digits.target), _enlarge(digits)
    shown = np.concatenate([np.flatnonzero(names == name)[:2] for name in np.unique(names)])
    first = images[shown[::2]]
    _write_group(folder, names[shown], images[shown])
    for key in ("letters", "signs"):
        drawn = [_draw(_points(text)) for text in SHAPES[key]]
        _write_group(folder, [key.title()] * len(drawn), torch.stack(drawn))
    _write_group(folder, ["Two at once"] * 6, torch.maximum(first[:6], first[4:]))
    _write_group(folder, ["Noise"] * 8, _noise(8))
    atomic_write(folder / DRAWING_FILE, json.dumps(DRAWING))


def _write_group(folder: Path, names: Sequence[str], images: Tensor) -> None:
    """Write each image to the sub-folder of its name."""
    for place, (name, image) in enumerate(zip(names, _pixels(images), strict=True)):
        file = make_folder(folder / str(name)) / f"{place:02}.png"
        need("PIL.Image", "data").fromarray(image[0].numpy()).save(file)
