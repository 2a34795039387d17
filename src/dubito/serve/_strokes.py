"""Digits as strokes of a pen, in the shapes that people draw on a screen.

Without them the network knew too few: drawn sevens, nines and ones were refused most often.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from PIL import ImageDraw
from torch import Tensor

from dubito.serve._outside import CANVAS, stacked
from dubito.serve._warp import WORK

__all__ = ["SHAPES", "written"]

Points = list[tuple[float, float]]
Shape = list[Points]
TREMBLE = 0.025  # of a point, as a share of the square
WIDTHS = (5, 14)  # of strokes, in pixels of the canvas


def bow(
    x: float, y: float, across: float, down: float, begin: float, end: float, steps: int = 10
) -> Points:
    """A piece of an ellipse, by angles in degrees, clockwise from the right.

    >>> [(round(x, 2), round(y, 2)) for x, y in bow(0, 0, 1, 2, 0, 90, 1)]
    [(1.0, 0.0), (0.0, 2.0)]
    """
    turns = [math.radians(begin + (end - begin) * step / steps) for step in range(steps + 1)]
    return [(x + across * math.cos(t), y + down * math.sin(t)) for t in turns]


def _eight() -> Points:
    turns = [2 * math.pi * step / 28 for step in range(29)]
    return [(0.5 + 0.24 * math.sin(2 * t), 0.5 - 0.42 * math.cos(t)) for t in turns]


#: digit -> the ways to write it, on a square of side 1
SHAPES: dict[int, list[Shape]] = {
    0: [[bow(0.5, 0.5, 0.3, 0.42, -90, 270, 18)], [bow(0.5, 0.5, 0.2, 0.42, -60, 300, 18)]],
    1: [
        [[(0.5, 0.08), (0.5, 0.92)]],
        [[(0.32, 0.3), (0.52, 0.08), (0.52, 0.92)]],
        [[(0.34, 0.28), (0.52, 0.08), (0.52, 0.92)], [(0.32, 0.92), (0.72, 0.92)]],
    ],
    2: [
        [[*bow(0.5, 0.32, 0.26, 0.24, -170, 35), (0.22, 0.92), (0.8, 0.92)]],
        [[*bow(0.48, 0.3, 0.24, 0.22, -150, 20), (0.3, 0.84), (0.5, 0.84), (0.82, 0.92)]],
    ],
    3: [
        [[*bow(0.46, 0.3, 0.24, 0.22, -150, 80), *bow(0.46, 0.7, 0.28, 0.23, -80, 150)]],
        [[(0.24, 0.1), (0.74, 0.1), (0.46, 0.44), *bow(0.46, 0.68, 0.28, 0.24, -90, 150)]],
    ],
    4: [
        [[(0.34, 0.08), (0.22, 0.58), (0.8, 0.58)], [(0.66, 0.3), (0.62, 0.92)]],
        [[(0.6, 0.92), (0.6, 0.08), (0.18, 0.64), (0.82, 0.64)]],
    ],
    5: [
        [[(0.74, 0.1), (0.34, 0.1), (0.3, 0.46), *bow(0.46, 0.66, 0.28, 0.26, -110, 140)]],
        [[(0.34, 0.1), (0.3, 0.44), *bow(0.46, 0.66, 0.28, 0.26, -110, 150)],
         [(0.34, 0.1), (0.76, 0.1)]],
    ],
    6: [
        [[(0.64, 0.08), (0.4, 0.3), *bow(0.5, 0.68, 0.24, 0.24, -170, 190, 16)]],
        [[*bow(0.62, 0.5, 0.36, 0.42, -100, -180), *bow(0.5, 0.7, 0.24, 0.22, -180, 160, 16)]],
    ],
    7: [
        [[(0.2, 0.1), (0.78, 0.1), (0.42, 0.92)]],
        [[(0.22, 0.24), (0.24, 0.1), (0.76, 0.1), (0.54, 0.5), (0.46, 0.92)]],
        [[(0.2, 0.1), (0.78, 0.1), (0.42, 0.92)], [(0.34, 0.5), (0.74, 0.5)]],
    ],
    8: [
        [_eight()],
        [bow(0.5, 0.28, 0.2, 0.2, 90, 450, 16), bow(0.5, 0.7, 0.25, 0.22, -90, 270, 16)],
    ],
    9: [
        [[*bow(0.48, 0.32, 0.24, 0.23, 0, -350, 16), (0.72, 0.3), (0.68, 0.92)]],
        [[*bow(0.5, 0.32, 0.24, 0.23, 0, -350, 16), (0.74, 0.4),
          *bow(0.46, 0.66, 0.28, 0.26, -10, 120)]],
    ],
}  # fmt: skip


def written(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits (count, 1, 32, 32) in all these shapes with a trembling hand, and labels (count,)."""
    numbers = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
    shapes = [(digit, shape) for digit, ways in SHAPES.items() for shape in ways]
    # Each digit as often as any other, however many ways there are to write it.
    often = np.array([1 / len(SHAPES[digit]) for digit, _ in shapes])
    chosen = numbers.choice(len(shapes), count, p=often / often.sum())
    images = stacked([_pen(shapes[place][1], numbers) for place in chosen], WORK)
    return images, torch.tensor([shapes[place][0] for place in chosen])


def _pen(shape: Shape, numbers: np.random.Generator) -> Callable[[ImageDraw.ImageDraw], None]:
    def draw(pen: ImageDraw.ImageDraw) -> None:
        width = int(numbers.integers(*WIDTHS))
        for points in shape:
            line = np.asarray(points) + numbers.normal(0, TREMBLE, (len(points), 2))
            _line(pen, CANVAS * (0.1 + 0.8 * line), width)

    return draw


def _line(pen: ImageDraw.ImageDraw, line: npt.NDArray[np.float64], width: int) -> None:
    """A line with round ends."""
    pen.line([(x, y) for x, y in line.tolist()], 255, width, joint="curve")
    for x, y in (line[0], line[-1]):
        pen.ellipse([x - width / 2, y - width / 2, x + width / 2, y + width / 2], 255)
