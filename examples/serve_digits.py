"""A web page that classifies drawn digits: train a model, make a gallery, serve both.

I-EDL on scikit-learn's digits and on digits made of strokes, both distorted, so that drawings of a
user are in distribution. Outliers get a loss of their own, the KL divergence to no evidence. The
published method has no such term, but without it letters and scribbles get evidence. Run it with

    python examples/serve_digits.py [--out serve-digits] [--port 8000] [--train-only]

which trains for some seconds, unless the folder exists, and prints the address of the page.

The settings were tuned on the gallery and on drawn digits: neither measures accuracy.
Calibration and policy use digits that were not trained on.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from scipy.interpolate import BSpline
from torch import Tensor

from dubito import data, losses
from dubito.data import Source
from dubito.formats import ImageFormat, Preprocessing
from dubito.losses import Term
from dubito.methods import IEDL
from dubito.model import Model
from dubito.serve import serve
from dubito.tasks import Classification
from dubito.training import TrainConfig, Trainer

#: sub-folders of the output
MODEL, GALLERY = "digits", "gallery"
#: pixels of an image, and while it is distorted
SIDE, WORK = 16, 32
VARIANTS, STROKES, OUTLIERS = 20, 5000, 9000
#: how the page prepares drawings, see docs/serve.md
FILL, STROKE = 0.94, 0.18
DRAWING = {"fill": FILL, "center": "box", "stroke": STROKE}
KL_RAMP, BACKBONE = 3, {"name": "mlp", "hidden": [256, 128]}
TRAINING = TrainConfig(
    epochs=12, batch_size=128, lr=2e-3, optimizer="adamw", optimizer_options={"weight_decay": 1e-3},
    schedule="cosine", keep="last",
)  # fmt: skip
#: ways to write digits, and letters and signs that training does not see
SHAPES = json.loads(Path(__file__).with_name("strokes.json").read_bytes())


def main(argv: Sequence[str] | None = None) -> None:
    """Train if need be, then serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("serve-digits"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--train-only", action="store_true")
    args = parser.parse_args(argv)
    make(args.out)
    print(f"dubito serve {args.out / MODEL} --gallery {args.out / GALLERY}")
    if not args.train_only:
        serve(args.out / MODEL, port=args.port, gallery=args.out / GALLERY, on_start=print)


def make(folder: Path) -> None:
    """Write a model and a gallery, unless the folder exists."""
    if folder.is_dir():
        return
    torch.set_num_threads(1)  # the fastest for a network of this size
    torch.manual_seed(0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Made elsewhere and renamed, because a folder that exists is complete.
    with tempfile.TemporaryDirectory(dir=folder.parent) as part:
        made = Path(part) / folder.name
        train, held_out = data.split(data.open("digits", "train"), 0.75, seed=0, stratify=True)
        _train(train, held_out).save(made / MODEL)
        _write_gallery(made / GALLERY, data.open("digits", "test"))
        made.rename(folder)


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
    model = Model.build(_WithOutliers(kl_ramp=KL_RAMP), task, preprocessing, BACKBONE)
    ood = _pixels(_outliers(images, random))
    Trainer(TRAINING).fit(model, (_pixels(inputs), targets), ood=ood)
    model.method = IEDL(kl_ramp=KL_RAMP)  # predicts alike, and is registered
    digits = _distort(_enlarge(held_out), 0.5)  # a little, as drawings are
    model.calibrate(_pixels(digits), held_out.target)
    return model.fit_policy(_pixels(digits), held_out.target, error_rate=0.02, false_alarms=0.04)


def _outliers(digits: Tensor, random: np.random.Generator) -> Tensor:
    """Return scribbles, digits over others, and noise."""
    drawn = [_draw(_scribble(random), random.uniform(0.08, 0.22)) for _ in range(OUTLIERS // 2)]
    first, second = digits[torch.randint(len(digits), (2, OUTLIERS // 6))]
    lines = _distort(torch.cat([torch.stack(drawn), torch.maximum(first, second)]))
    return torch.cat([lines, _noise(OUTLIERS // 6)])


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


def _draw(strokes: Sequence[Any], width: float = STROKE) -> Tensor:
    """Draw strokes as the page does: (1, 32, 32)."""
    side = 3 * WORK
    line = np.concatenate([_curve(points) for points in strokes])
    low, high = line.min(0), line.max(0)
    scale = side * (FILL - width) / max(*(high - low), 2)
    sheet = Image.new("L", (side, side))
    pen, radius = ImageDraw.Draw(sheet), width * side / 2
    for x, y in side / 2 + scale * (line - (low + high) / 2):
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], 255)
    small = sheet.resize((WORK, WORK), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small, np.float32) / 255)[None]


def _curve(points: Any) -> Any:
    """Return points on parabolas between the middles of segments."""
    degree = min(2, len(points) - 1)
    knots = np.pad(np.linspace(0, 1, len(points) - degree + 1), degree, "edge")
    return BSpline(knots, points, degree)(np.linspace(0, 1, 16 * len(points)))


def _distort(x: Tensor, strength: float = 1.0) -> Tensor:
    """Turn, slant, scale and shift images, and vary their strokes."""

    def within(most: float, *shape: int) -> Tensor:
        return most * strength * (2 * torch.rand(len(x), *shape) - 1)

    matrix = torch.eye(2) / 0.93 + within(0.25, 2, 2)  # turns, slants and scales
    affine = torch.cat([matrix, within(0.1, 2, 1)], -1)
    grid = F.affine_grid(affine, list(x.shape), align_corners=False)
    moved = F.grid_sample(x, grid, align_corners=False)
    # Contrast about a level of gray: strokes get thinner or thicker, sharper or softer.
    level, contrast = 0.45 + within(0.2, 1, 1, 1), (1 + within(1, 1, 1, 1)).exp()
    return (level + contrast * (moved - level)).clamp(0, 1) * (0.9 + within(0.1, 1, 1, 1))


def _noise(count: int) -> Tensor:
    """Return noise of several scales and contrasts."""
    drawn = [torch.rand(count // 4, 1, side, side) for side in (2, 4, 8, WORK)]
    noise = torch.cat([F.interpolate(x, (WORK, WORK), mode="bilinear") for x in drawn])
    return noise * torch.rand(len(noise), 1, 1, 1)


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
    groups = {str(name): images[names == name][:2] for name in np.unique(names)}
    first = torch.cat([group[:1] for group in groups.values()])
    for key in ("letters", "signs"):
        groups[key.title()] = torch.stack([_draw(_points(text)) for text in SHAPES[key]])
    groups |= {"Two at once": torch.maximum(first[:6], first[4:]), "Noise": _noise(8)}
    for name, group in groups.items():
        (folder / name).mkdir(parents=True)
        for place, image in enumerate(_pixels(group)):
            Image.fromarray(image[0].numpy()).save(folder / name / f"{place:02}.png")
    (folder / "drawing.json").write_text(json.dumps(DRAWING))


if __name__ == "__main__":
    main()
