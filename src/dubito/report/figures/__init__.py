"""Figures, as PNG (and PDF for print), drawn without a display."""

from dubito.report.figures.clouds import Cloud, clouds
from dubito.report.figures.curves import Curve, reliability, risk_coverage, sweep
from dubito.report.figures.densities import Panel, densities, density
from dubito.report.figures.intervals import Interval, intervals
from dubito.report.figures.learning import confusion, learning
from dubito.report.figures.pictures import pictures
from dubito.report.figures.ridges import Ridge, ridges
from dubito.report.figures.style import COLOURS
from dubito.report.figures.trajectories import LOSS, Trajectory, trajectories

__all__ = [
    "COLOURS",
    "LOSS",
    "Cloud",
    "Curve",
    "Interval",
    "Panel",
    "Ridge",
    "Trajectory",
    "clouds",
    "confusion",
    "densities",
    "density",
    "intervals",
    "learning",
    "pictures",
    "reliability",
    "ridges",
    "risk_coverage",
    "sweep",
    "trajectories",
]
