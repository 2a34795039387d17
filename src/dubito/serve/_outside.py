"""What is no digit: made for training, and other things made for the gallery.

Training sees scribbles, digits of several pieces, noise, waves and negatives. The gallery's
letters, signs and photographs are kinds that training never saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dubito.data import embedded
from dubito.serve._warp import SIDE, WORK, enlarged, plain, shrunk, warped

__all__ = ["CANVAS", "letters", "mixed", "outliers", "photographs", "signs", "stacked", "static"]

CANVAS = 64  # pixels that are drawn on
FILL = 0.94  # the longer side of a drawing, as a share of the square
LETTERS = "AEFHKMNRTWXY"
Draw = Callable[[ImageDraw.ImageDraw], None]


def outliers(digits: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """About `count` images (N, 1, 16, 16) that are no digits, half of them scribbles."""
    some = count // 8
    pair = torch.maximum(*_drawn(digits, 2 * some, generator).chunk(2))
    pieces = _pieces(digits, some, generator)
    drawn = torch.cat([_scribbles(4 * some, generator), pieces, enlarged(pair)])
    negatives = 1 - _drawn(digits, some // 2, generator)
    made = [_noise(some, generator), _waves(some // 2, generator), enlarged(negatives)]
    grain = torch.rand(some, 1, SIDE, SIDE, generator=generator)
    return torch.cat([warped(drawn, generator), shrunk(torch.cat(made)), grain])


def _drawn(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return images[torch.randint(len(images), (count,), generator=generator)]


def _scribbles(count: int, generator: torch.Generator) -> Tensor:
    """Two to five strokes that mean nothing; a single one may well be a 1."""
    numbers = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    return stacked([lambda pen: _scribble(pen, numbers) for _ in range(count)], WORK)


def _scribble(pen: ImageDraw.ImageDraw, numbers: np.random.Generator) -> None:
    width = int(numbers.integers(6, 13))
    for _ in range(numbers.integers(2, 6)):
        if numbers.integers(3) == 2:
            corner = numbers.uniform(4, CANVAS - 20, 2)
            other = np.minimum(corner + numbers.uniform(12, CANVAS - 8, 2), CANVAS - 3)
            start, end = sorted(numbers.uniform(0, 720, 2))
            pen.arc([*corner, *other], start, end, 255, width)
            continue
        p = numbers.uniform(4, CANVAS - 4, (4, 2))
        t = np.linspace(0, 1, int(numbers.choice([2, 16])))[:, None]
        curve = (1 - t) ** 3 * p[0] + 3 * (1 - t) ** 2 * t * p[1] + 3 * (1 - t) * t**2 * p[2]
        pen.line([tuple(q) for q in curve + t**3 * p[3]], 255, width, joint="curve")


def _pieces(digits: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Quarters of four digits."""
    four = enlarged(_drawn(digits, 4 * count, generator)).unflatten(0, (4, count))
    half = WORK // 2
    made: Tensor = four[0].clone()
    made[..., :half, half:] = four[1][..., :half, half:]
    made[..., half:, :half] = four[2][..., half:, :half]
    made[..., half:, half:] = four[3][..., half:, half:]
    return made


def _noise(count: int, generator: torch.Generator) -> Tensor:
    """Blots of several sizes, brightnesses and contrasts."""
    blots = [torch.rand(count // 4 + 1, 1, n, n, generator=generator) for n in (2, 4, 8, 16)]
    made = torch.cat([F.interpolate(b, (WORK, WORK), mode="bilinear") for b in blots])
    contrast, offset = torch.rand(2, len(made), 1, 1, 1, generator=generator)
    blotted: Tensor = 1.5 * contrast * made + 0.5 * offset - 0.2
    return blotted.clamp(0, 1)


def _waves(count: int, generator: torch.Generator) -> Tensor:
    line = torch.linspace(0, 1, WORK)
    turn, rate, phase = torch.rand(3, count, 1, 1, 1, generator=generator)
    along = line * (math.pi * turn).cos() + line[:, None] * (math.pi * turn).sin()
    made: Tensor = 0.5 + 0.5 * torch.sin(2 * math.pi * ((0.5 + 4 * rate) * along + phase))
    return made


# --- the gallery's -------------------------------------------------------------------------------


def letters() -> Tensor:
    """Letters that are unlike any digit, in the font that comes with Pillow."""
    font = ImageFont.load_default(CANVAS * 0.7)

    def writer(letter: str) -> Draw:
        return lambda pen: pen.text((8, 2), letter, 255, font=font, stroke_width=2, stroke_fill=255)

    return stacked([writer(letter) for letter in LETTERS], SIDE)


def signs() -> Tensor:
    """A star, an arrow, a house, a heart, a face, a spiral, a cross and a ladder."""
    return stacked([lambda pen, s=sign: s(pen) for sign in SIGNS], SIDE)  # type: ignore[misc]


def photographs(count: int) -> Tensor:
    """Patches of two photographs."""
    return plain(embedded.patches(count, seed=1))


def static(count: int) -> Tensor:
    """What a screen without a picture shows, and waves."""
    generator = torch.Generator().manual_seed(7)
    grain = torch.rand(count - count // 2, 1, SIDE, SIDE, generator=generator)
    return torch.cat([grain, shrunk(_waves(count // 2, generator))])


def mixed(first: Tensor, second: Tensor) -> Tensor:
    """Half one digit and half another: (N, 1, 8, 8) each -> (N, 1, 16, 16)."""
    return plain(torch.maximum(first, second) * 0.55 + 0.45 * torch.minimum(first, second))


def stacked(drawings: Sequence[Draw], side: int) -> Tensor:
    """Drawings, each as large as a digit and in the middle: (N, 1, side, side)."""
    return torch.stack([_placed(draw, side) for draw in drawings])[:, None]


def _placed(draw: Draw, side: int) -> Tensor:
    sheet = Image.new("L", (CANVAS, CANVAS))
    draw(ImageDraw.Draw(sheet))
    box = sheet.getbbox()
    square = Image.new("L", (CANVAS, CANVAS))
    if box is not None:
        ink = sheet.crop(box)
        factor = FILL * CANVAS / max(ink.size)
        width, height = (max(1, round(length * factor)) for length in ink.size)
        place = ((CANVAS - width) // 2, (CANVAS - height) // 2)
        square.paste(ink.resize((width, height), Image.Resampling.BICUBIC), place)
    pixels = np.array(square.resize((side, side), Image.Resampling.BILINEAR), np.float32)
    return torch.from_numpy(pixels / 255)


def _star(pen: ImageDraw.ImageDraw) -> None:
    turns = [math.pi * k / 5 for k in range(10)]
    sizes = [30 if k % 2 == 0 else 12 for k in range(10)]
    pen.polygon(
        [(32 + r * math.sin(t), 32 - r * math.cos(t)) for r, t in zip(sizes, turns, strict=True)],
        255,
    )


def _arrow(pen: ImageDraw.ImageDraw) -> None:
    pen.line([(4, 32), (56, 32)], 255, 9)
    pen.line([(36, 10), (58, 32), (36, 54)], 255, 9, joint="curve")


def _house(pen: ImageDraw.ImageDraw) -> None:
    pen.line([(10, 30), (10, 60), (54, 60), (54, 30)], 255, 7, joint="curve")
    pen.line([(4, 34), (32, 6), (60, 34)], 255, 7, joint="curve")


def _heart(pen: ImageDraw.ImageDraw) -> None:
    turns = [2 * math.pi * k / 60 for k in range(60)]
    pen.polygon(
        [
            (
                32 + 1.8 * 16 * math.sin(t) ** 3,
                30 - 1.8 * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t)),
            )
            for t in turns
        ],
        255,
    )


def _face(pen: ImageDraw.ImageDraw) -> None:
    pen.ellipse([2, 2, 62, 62], outline=255, width=6)
    pen.ellipse([18, 18, 26, 28], 255)
    pen.ellipse([38, 18, 46, 28], 255)
    pen.arc([16, 20, 48, 50], 20, 160, 255, 6)


def _spiral(pen: ImageDraw.ImageDraw) -> None:
    turns = [k / 12 for k in range(12 * 16)]
    pen.line([(32 + 1.9 * t * math.cos(t), 32 + 1.9 * t * math.sin(t)) for t in turns], 255, 6)


def _cross(pen: ImageDraw.ImageDraw) -> None:
    pen.line([(32, 4), (32, 60)], 255, 9)
    pen.line([(4, 32), (60, 32)], 255, 9)


def _ladder(pen: ImageDraw.ImageDraw) -> None:
    for x in (14, 50):
        pen.line([(x, 2), (x, 62)], 255, 7)
    for y in (14, 32, 50):
        pen.line([(14, y), (50, y)], 255, 7)


SIGNS = (_star, _arrow, _house, _heart, _face, _spiral, _cross, _ladder)
