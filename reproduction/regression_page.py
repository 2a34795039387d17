"""Tables and figure of the regression experiments: docs/regression-results.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dubito._files import atomic_write
from reproduction.figures import COLORS, FAINT, heading, new_figure
from reproduction.regression import ROWS, SETS
from reproduction.report import BLOCK, DOCS, frame_text, png
from reproduction.store import Store
from reproduction.tables import NONE, number

__all__ = ["blocks", "figure", "page", "ranks", "table", "write_page"]

PAGE, PICTURE = "regression-results.md", "regression-ranks.png"
TITLES = {name: each.title for name, each in ROWS.items()}
SINGLE = ("gaussian", "beta", "der", "der-beta", "sder", "ider", "quantile")
#: metric -> digits in tables; figures of targets have so many that three places count
TABLES = {
    "nll": 2, "crps": None, "rmse": None, "mae": None, "coverage/0.9": 3, "width/0.9": None,
    "calibration": 3, "aurc": None, "spearman": 2,
}  # fmt: skip
#: metrics that methods are ranked by
RANKED = ("nll", "crps", "rmse")
LEVELS = (0.5, 0.8, 0.9, 0.95)
#: RMSE and NLL of DER as published (Amini et al. 2020, table 1)
PUBLISHED = {
    "bostonHousing": (3.06, 2.35), "concrete": (5.85, 3.01), "energy": (2.06, 1.39),
    "kin8nm": (0.09, -1.24), "naval-propulsion-plant": (0.00, -5.73), "power-plant": (4.23, 2.81),
    "protein-tertiary-structure": (4.64, 2.63), "wine-quality-red": (0.61, 0.89),
    "yacht": (1.57, 1.03),
}  # fmt: skip


def frame(store: Store) -> pd.DataFrame:
    """Return a row for each record: set, row of the tables, split and metrics."""
    found = []
    for record in store.current():
        experiment = store.recipes[record["recipe"]]
        least = {f"least/{k}": v for k, v in record["training"].get("least", {}).items()}
        found.append(
            {"set": experiment.data, "row": experiment.row.name, "split": record["seed"]}
            | record["result"]
            | {"seconds": record["training"]["seconds"]}
            | least
        )
    return pd.DataFrame(found)


def table(data: pd.DataFrame, metric: str, digits: int | None = None) -> pd.DataFrame:
    """Return mean ± standard error of a metric, sets across; the best are bold.

    Args:
        data: Result of `frame`.
        metric: Name of the metric.
        digits: Decimal places; None for three significant digits of each set's best.
    """
    grouped = data.groupby(["row", "set"])[metric]
    mean, error = grouped.mean().unstack(), grouped.sem().unstack()
    timed = metric == "seconds"  # alike for splits that were trained together
    cells = pd.DataFrame(NONE, [name for name in TITLES if name in mean.index], list(SETS))
    lower = metric in ("nll", "crps", "rmse", "mae", "aurc", "calibration")
    for name in set(SETS) & set(mean.columns):
        known = mean[name].dropna()
        places = _places(known.min()) if digits is None else digits
        shown = known.map(lambda value, places=places: number(value, places))
        best = number(known.min(), places) if lower else None
        for row, text in shown.items():
            bold = f"**{text}**" if text == best else text
            spread = "" if timed else f" ±{error.loc[row, name]:.{places}f}"
            cells.loc[row, name] = bold + spread
    return _titled(cells.rename(columns={name: each.title for name, each in SETS.items()}))


def _places(value: float) -> int:
    return int(np.clip(2 - np.floor(np.log10(max(abs(value), 1e-9))), 0, 5))


def _titled(cells: pd.DataFrame) -> pd.DataFrame:
    return cells.rename(index=TITLES).rename_axis("Method")


def ranks(data: pd.DataFrame, metric: str, rows: Iterable[str] = TITLES) -> pd.DataFrame:
    """Return the rank of each row on each set, averaged over the splits; 1 is the best.

    Rows that lack splits which most have are left out.

    Args:
        data: Result of `frame`.
        metric: Name of a metric of which less is better.
        rows: Rows that are compared.
    """
    values = data[data["row"].isin(list(rows))].pivot_table(metric, ["set", "split"], "row")
    counts = values.groupby("set").count()
    has_all = counts.eq(counts.median(axis=1), axis=0).all()
    return values.loc[:, has_all].dropna().rank(axis=1).groupby("set").mean()


def _summary(data: pd.DataFrame, rows: Iterable[str] = TITLES) -> pd.DataFrame:
    """Return mean ranks ± their standard error over the sets, and differences to the Gaussian."""
    parts = {metric: ranks(data, metric, rows) for metric in RANKED}
    both = ((parts["nll"] + parts["crps"]) / 2).dropna(axis=1)
    parts = {"nll and crps": both} | parts
    columns = {}
    for metric, each in parts.items():
        pairs = zip(each.mean(), each.sem(), strict=True)
        title = f"Rank by {metric.upper().replace('AND', 'and')}"
        columns[title] = pd.Series([f"{m:.2f} ±{s:.2f}" for m, s in pairs], each.columns)
    mean = data.groupby(["row", "set"])[list(RANKED)].mean().unstack()
    for metric in ("crps", "rmse"):
        ratio = np.exp(np.log(mean[metric] / mean[metric].loc["gaussian"]).mean(axis=1))
        columns[f"{metric.upper()}, Gaussian = 1"] = ratio.map(lambda value: f"{value:.2f}")
    gain = (mean["nll"] - mean["nll"].loc["gaussian"]).mean(axis=1, skipna=False).dropna()
    columns["NLL, Gaussian = 0"] = gain.map(lambda value: number(value, 2))
    names = [name for name in TITLES if any(name in each.columns for each in parts.values())]
    return _titled(pd.DataFrame(columns).reindex(names).fillna(NONE))


def _levels(data: pd.DataFrame) -> pd.DataFrame:
    """Return coverage by level, averaged over the sets, and the widths beside the Gaussian's."""
    mean = data.groupby(["row", "set"]).mean(numeric_only=True)
    columns = {}
    for level in LEVELS:
        shares = mean[f"coverage/{level}"].groupby("row").mean()
        columns[f"{level:.0%} intervals"] = shares.map(lambda share: f"{share:.1%}")
    width = mean["width/0.9"].unstack()
    ratio = np.exp(np.log(width / width.loc["gaussian"]).mean(axis=1))
    columns["Width at 90%, Gaussian = 1"] = ratio.map(lambda value: f"{value:.2f}")
    names = set(ranks(data, "crps").columns)
    return _titled(pd.DataFrame(columns).loc[[name for name in TITLES if name in names]])


def _protocol(data: pd.DataFrame) -> pd.DataFrame:
    """Return DER's figures: as published, by the published protocol, and as they are."""
    mean = data[data["row"] == "der"].groupby("set").mean(numeric_only=True)
    columns = {}
    for place, metric in enumerate(("rmse", "nll")):
        digits = {
            name: 2 if metric == "nll" else _places(mean[metric][name]) for name in mean.index
        }
        published = {name: number(PUBLISHED[name][place], 2) for name in mean.index}
        columns[f"{metric.upper()}, published"] = published
        for key, title in ((f"least/{metric}", "its protocol"), (metric, "whole test set")):
            cells = {name: number(mean[key][name], digits[name]) for name in mean.index}
            columns[f"{metric.upper()}, {title}"] = cells
    order = [name for name in SETS if name in mean.index]
    titles = {name: each.title for name, each in SETS.items()}
    return pd.DataFrame(columns).loc[order].rename(index=titles).rename_axis("Set")


def blocks(data: pd.DataFrame) -> dict[str, str]:
    """Return the generated blocks of the page by name.

    Args:
        data: Result of `frame`.
    """
    frames = {m.split("/")[0]: table(data, m, digits) for m, digits in TABLES.items()}
    frames |= {"ranks-single": _summary(data, SINGLE), "ranks": _summary(data)}
    frames |= {"levels": _levels(data), "protocol": _protocol(data)}
    frames["seconds"] = table(data, "seconds", 1)
    counts = data.groupby(["row", "set"])["split"].nunique().unstack()
    spans = {k: sorted({int(counts[k].min()), int(counts[k].max())}) for k in SETS}
    listed = ", ".join(f"{SETS[k].title} {' to '.join(map(str, v))}" for k, v in spans.items())
    sentence = f"Splits: {listed}."
    return {name: frame_text(each) for name, each in frames.items()} | {"splits": sentence}


def page(data: pd.DataFrame, docs: Path = DOCS) -> str:
    """Return the page of the documentation with its generated blocks updated.

    Args:
        data: Result of `frame`.
        docs: Folder of the page.
    """
    made, text = blocks(data), (docs / PAGE).read_text("utf-8")
    return BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", text)


def figure(data: pd.DataFrame) -> Figure:
    """Draw mean ranks with intervals of 95 %, and the sets as dots.

    Args:
        data: Result of `frame`.
    """
    parts = {metric.upper(): ranks(data, metric) for metric in RANKED}
    names = list(parts["CRPS"].mean().sort_values(ascending=False).index)
    drawn, axes = new_figure(len(parts), 3, (3.6, 0.32 * len(names) + 1.1))
    for ax, (title, each) in zip(axes, parts.items(), strict=True):
        for place, name in enumerate(names):
            if name not in each:
                continue
            color = COLORS[0] if ROWS[name].trials or ROWS[name].base else COLORS[1]
            ax.plot(each[name], [place] * len(each), "o", color=color, ms=4, alpha=0.3, mew=0)
            ax.errorbar(
                each[name].mean(),
                place,
                xerr=_half(each[name]),
                fmt="D",
                color=color,
                ms=5,
                capsize=3,
            )
        labels = [TITLES[name] for name in names] if ax is axes[0] else [""] * len(names)
        ax.set_yticks(range(len(names)), labels)
        ax.set_ylim(-0.6, len(names) - 0.4)
        ax.grid(True, axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        heading(ax, title)
    drawn.supxlabel("mean rank over nine sets; 1 is the best", fontsize=9.5)
    return drawn


def _half(values: Sequence[float]) -> float:
    """Return half of a 95 % interval of the mean of nine values."""
    from scipy import stats

    count = len(values)
    return float(stats.t.ppf(0.975, count - 1) * np.std(values, ddof=1) / count**0.5)


def write_page(store: Store) -> None:
    """Update the generated blocks and the figure of the page.

    Args:
        store: Records.
    """
    data = frame(store)
    atomic_write(DOCS / PAGE, page(data))
    atomic_write(DOCS / "assets" / PICTURE, png(figure(data)))
