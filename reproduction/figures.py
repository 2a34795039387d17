"""Figures of the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reproduction import fewshot
from reproduction.recipes import Recipe
from reproduction.results import DATASETS, METHODS, OOD, SCORES, Results, at, label
from reproduction.tables import SHOWN

__all__ = ["Drawing", "drawings", "new_figure", "style"]

#: distinguishable with color blindness (Okabe and Ito, 2008)
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
INK, FAINT = "#222222", "#8a8a8a"
LINES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1))
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
HATCHES = ("", "////", "....")
#: methods whose densities and images are shown, as in the paper
COMPARED = ("edl", "iedl")


class Drawing(NamedTuple):
    """A figure: name of its file, caption, and function that draws it."""

    key: str
    caption: str
    draw: Callable[[], Figure]


def new_figure(count: int, across: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Create a figure of several panels.

    Args:
        count: Number of panels.
        across: Panels in a row.
        size: Width and height of a panel in inches.
    """
    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def heading(ax: Axes, title: str, note: str = "") -> None:
    """Set a title with a line of smaller text below it, and light axes."""
    lines = note.count("\n") + 1 if note else 0
    ax.set_title(title, fontsize=10.5, fontweight="bold", loc="left", color=INK, pad=5 + 10 * lines)
    ax.text(0, 1.03, note, transform=ax.transAxes, fontsize=8, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(labelsize=9, color=FAINT)


def style(index: int) -> dict[str, Any]:
    """Return color, line and marker of a curve; after the last color, lines and markers change."""
    turn, place = divmod(index, len(COLORS))
    other = (place + 3 * turn) % len(LINES)
    return {"color": COLORS[place], "linestyle": LINES[other], "marker": MARKERS[other]}


def shared_legend(
    figure: Figure, axes: Sequence[Axes], columns: int, loc: Any = "outside lower center"
) -> None:
    """Add one legend for all panels."""
    entries: dict[str, Any] = {}
    for ax in axes:
        handles, names = ax.get_legend_handles_labels()
        entries |= dict(zip(names, handles, strict=True))
    if len(entries) > 1:
        figure.legend(
            list(entries.values()), list(entries), loc=loc, ncols=columns,
            frameon=False, fontsize=8.5, handlelength=3,
        )  # fmt: skip


def drawings(results: Results) -> Iterator[Drawing]:
    """Yield the figures that the records have the numbers for."""
    yield from _overview(results)
    for dataset in DATASETS:
        yield from _densities(results, dataset)
        yield from _epochs(results, dataset)
        yield from _lambda(results, dataset)
        yield from _reliability(results, dataset)
        yield from _images(results, dataset)
    yield from _risk_coverage(results)
    yield from _fewshot_methods(results)
    yield from _fewshot_lambda(results)
    yield from _fewshot_tuning(results)


# --- our runs beside published intervals ---

Rows = dict[str, tuple[list[float], Any]]


def _intervals(panels: Mapping[str, Rows], xlabel: str) -> Figure:
    """Draw a row per name: bar and tick are published, dots are runs, a diamond is their mean."""
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    figure, axes = new_figure(len(panels), 2, (5.2, 0.3 * len(names) + 0.75))
    before: list[str] = []
    for ax, (title, rows) in zip(axes, panels.items(), strict=True):
        for place, name in enumerate(reversed(rows)):
            runs, theirs = rows[name]
            if theirs is not None:
                low, width = theirs.mean - theirs.deviation, 2 * theirs.deviation
                ax.barh(place, width, left=low, height=0.55, color=COLORS[4], alpha=0.45)
                ax.plot([theirs.mean] * 2, [place - 0.34, place + 0.34], color=COLORS[1], lw=2)
            if runs:
                dots = [place] * len(runs)
                ax.plot(runs, dots, "o", color=COLORS[0], ms=4, alpha=0.65, mew=0)
                ax.plot(mean(runs), place, "D", color=INK, ms=5, fillstyle="none")
        same = ax in axes[1::2] and list(rows) == before  # as the panel to the left
        before = list(rows)
        ax.set_yticks(range(len(rows)), [""] * len(rows) if same else list(reversed(rows)))
        ax.grid(True, axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        heading(ax, title)
    figure.supxlabel(xlabel, fontsize=9.5, color=INK)
    handles = {
        "published mean": Line2D([], [], color=COLORS[1], linewidth=2),
        "± deviation": Patch(color=COLORS[4], alpha=0.45),
        "our runs": Line2D([], [], color=COLORS[0], marker="o", linestyle="", markersize=4),
        "their mean": Line2D([], [], color=INK, marker="D", linestyle="", fillstyle="none"),
    }
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper right", ncols=4, frameon=False,
        fontsize=8.5,
    )  # fmt: skip
    return figure


def _overview(results: Results) -> Iterator[Drawing]:
    panels: dict[str, Rows] = {}
    for dataset, (name, title) in DATASETS.items():
        for ood in results.ood(dataset):
            quantity, rows = f"ood/{ood}/max_prob/aupr", {}
            for recipe in results.trained(dataset):
                key = name, recipe.method, quantity
                theirs = None if recipe.variant else results.published.images.get(key)
                runs = _runs(results, recipe, quantity)
                if runs or theirs is not None:
                    rows[label(recipe)] = runs, theirs
            panels[f"{title} → {OOD[ood]}"] = rows
    if len(results.runs):
        caption = "AUPR by Max.P: every run, and the paper's mean ± deviation."
        yield Drawing("overview", caption, lambda: _intervals(panels, "AUPR (%)"))


def _runs(results: Results, recipe: Recipe, quantity: str, factor: float = 100) -> list[float]:
    if quantity not in results.runs or recipe.name not in results.by_recipe:
        return []
    values = results.runs.loc[recipe.name, quantity].dropna()
    return [factor * value for value in values]


def _fewshot_methods(results: Results) -> Iterator[Drawing]:
    order, panels = list(METHODS), {}
    known = sorted(fewshot.settings(results).items(), key=lambda item: order.index(item[0][0]))
    for score in ("max_prob", "alpha0"):
        quantity, rows = f"ood/{score}/aupr", {}
        for (method, variant, setting), recipe in known:
            ours = fewshot.pooled(results.by_recipe[recipe.name], quantity)
            if not variant and setting == (5, 5) and ours is not None:
                theirs = results.published.fewshot.get((5, 5, method, quantity))
                rows[label(recipe)] = [ours.mean], theirs
        if rows:
            panels[f"by {SCORES[score]}"] = rows
    if panels:
        caption = "5-way 5-shot AUPR of CUB: ours, and the paper's on its own features."
        yield Drawing("fewshot-methods", caption, lambda: _intervals(panels, "AUPR (%)"))


# --- densities of the scores ---


def _densities(results: Results, dataset: str) -> Iterator[Drawing]:
    recipes = [r for r in results.drawn(dataset) if r.method in COMPARED]
    panels = [(recipe, score) for recipe in recipes for score in SHOWN]

    def draw() -> Figure:
        figure, axes = new_figure(len(panels), len(SHOWN), (2.7, 2.3))
        for ax, (recipe, score) in zip(axes, panels, strict=True):
            _ridge(ax, results, recipe, score)
        figure.supxlabel(
            "scaled to [0, 1]; numbers: energy distance from the test set", fontsize=9.5, color=INK
        )
        return figure

    if panels:
        title = DATASETS[dataset][1]
        yield Drawing(f"densities-{dataset}", f"{title}: densities of the scores.", draw)


def _ridge(ax: Axes, results: Results, recipe: Recipe, score: str) -> None:
    names, notes = ["test", *results.ood(recipe.dataset)], []
    for place, name in enumerate(names):
        densities = [at(r, "curves.densities")[name][score] for r in results.by_recipe[recipe.name]]
        heights = np.mean(densities, axis=0)
        base = len(names) - 1 - place
        ax.stairs(
            # Areas are equal: a narrow peak would flatten the other rows.
            base + 0.9 * heights / heights.max(), np.linspace(0, 1, len(heights) + 1),
            baseline=base, fill=True, facecolor=(COLORS[place], 0.4), edgecolor=COLORS[place],
            linewidth=0.8, hatch=HATCHES[place],
        )  # fmt: skip
        if far := _runs(results, recipe, f"energy_distance/{name}/{score}", 1):
            notes.append(f"{OOD[name]} {mean(far):.2f}")
    labels = [f"{DATASETS[recipe.dataset][1]} test", *(OOD[name] for name in names[1:])]
    ax.set_yticks(range(len(names) - 1, -1, -1), labels, fontsize=8, va="bottom")
    ends = ("sure", "unsure") if score.endswith(("entropy", "information")) else ("unsure", "sure")
    ax.set(xlim=(0, 1), ylim=(-0.02, len(names)))
    heading(ax, f"{label(recipe)}, {SCORES[score]}", "\n".join(notes))
    ax.set_xticks([0, 1], [f"0\n{ends[0]}", f"1\n{ends[1]}"], fontsize=8)
    ax.set_frame_on(False)


# --- over the epochs ---


def _epochs(results: Results, dataset: str) -> Iterator[Drawing]:
    for recipe in results.trained(dataset):
        records = results.by_recipe.get(recipe.name, [])
        if records and all(at(record, "training.history.watched") for record in records):
            title = f"{DATASETS[dataset][1]}, {label(recipe)}"
            caption = (
                f"{title}: test accuracy and detection at each validation of {len(records)} seeds. "
                "Diamonds are the weights that were kept, circles the lowest validation loss."
            )
            yield Drawing(f"epochs-{recipe.name}", caption, partial(_draw_epochs, results, recipe))


def _draw_epochs(results: Results, recipe: Recipe) -> Figure:
    records = results.by_recipe[recipe.name]
    watched = [name for name in at(records[0], "training.history.watched") if "auroc" not in name]
    panels = ["accuracy", *(name for name in watched if name.endswith("max_prob/aupr"))]
    if all(at(record, "training.history.validation_loss") for record in records):
        panels.insert(0, "validation_loss")
    figure, axes = new_figure(len(panels), 2 if len(panels) == 4 else 3, (4.6, 3.1))
    for ax, name in zip(axes, panels, strict=True):
        _trajectories(ax, records, recipe, name)
        other = name.replace("max_prob", "alpha0")
        if other != name and other in watched:
            dashed = _mean_curve(records, other)
            ax.plot(*dashed, "--", color=COLORS[3], linewidth=1.6, label="mean, by α₀")
        ood, _, is_ood = name.partition("/")
        ax.set_xlabel("epoch", fontsize=9, color=INK)
        ax.set_ylabel("AUPR by Max.P (%)" if is_ood else "", fontsize=9, color=INK)
        heading(ax, OOD[ood] if is_ood else name.replace("_", " "))
    shared_legend(figure, axes, 4)
    return figure


def _values(record: Mapping[str, Any], name: str) -> list[float]:
    history = record["training"]["history"]
    loss = name == "validation_loss"
    return [float(v) if loss else 100 * v for v in (history if loss else history["watched"])[name]]


def _mean_curve(records: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], Any]:
    """Return the mean over seeds, up to the end of the shortest training."""
    values = [_values(record, name) for record in records]
    least = min(map(len, values))
    epochs = records[0]["training"]["history"]["epoch"][:least]
    return epochs, np.mean([curve[:least] for curve in values], axis=0)


def _trajectories(
    ax: Axes, records: Sequence[Mapping[str, Any]], recipe: Recipe, name: str
) -> None:
    marks: dict[str, list[tuple[int, float]]] = {"lowest loss": [], "kept": []}
    for record in records:
        epochs, values = record["training"]["history"]["epoch"], _values(record, name)
        ax.plot(epochs, values, color=FAINT, linewidth=0.7, alpha=0.8)
        best = record["training"]["best_epoch"]
        marks["kept"].append((best, values[epochs.index(best)]))
        # In old records early losses are low because the KL weight still rises.
        ramp = recipe.sections["method"].get("kl_ramp", 0)
        settled = [place for place, epoch in enumerate(epochs) if epoch > ramp]
        if settled and "validation_loss" in record["training"]["history"]:
            low = min(settled, key=_values(record, "validation_loss").__getitem__)
            marks["lowest loss"].append((epochs[low], values[low]))
    epochs, curve = _mean_curve(records, name)
    ax.plot(epochs, curve, color=COLORS[0], linewidth=2.2, label="mean")
    circles, diamonds = marks["lowest loss"], marks["kept"]
    if circles:
        ax.plot(
            *zip(*circles, strict=True), "o", color=COLORS[2], mfc="none", ms=9, label="lowest loss"
        )
    ax.plot(*zip(*diamonds, strict=True), "D", color=COLORS[1], ms=5, label="kept")
    late = curve[len(curve) // 4 :]
    if name == "validation_loss" and (room := 0.5 * (late.max() - late.min())) > 0:
        ax.set_ylim(late.min() - room, late.max() + room)  # the first epochs would hide the rest


# --- against the weight of the log-determinant ---

Curves = dict[str, tuple[list[float], list[float], list[float]]]


def _sweep(panels: Mapping[str, Curves], ylabels: Sequence[str], marked: float | None) -> Figure:
    figure, axes = new_figure(len(panels), 3, (3.9, 3.4))
    weights = sorted({x for curves in panels.values() for xy in curves.values() for x in xy[0]})
    logs = {weight: math.log10(weight) for weight in weights if weight > 0}
    places = {weight: logs.get(weight, min(logs.values()) - 0.5) for weight in weights}
    for ax, ylabel, (title, curves) in zip(axes, ylabels, panels.items(), strict=True):
        for number, (name, (x, y, spread)) in enumerate(curves.items()):
            aside = 0.03 * (number - (len(curves) - 1) / 2)  # error bars side by side
            ax.errorbar(
                [places[weight] + aside for weight in x], y, yerr=spread, label=name, capsize=2,
                linewidth=1.4, markersize=4.5, elinewidth=0.9, **style(number),
            )  # fmt: skip
        if marked is not None:
            ax.axvline(places[marked], color=FAINT, linewidth=1, linestyle=":", zorder=0)
        ax.set_xticks(list(places.values()), [f"{w:g}" for w in places], rotation=40)
        ax.set(xlabel="λ", ylabel=ylabel)
        heading(ax, title)
    shared_legend(figure, axes, 5)
    return figure


def _lambda(results: Results, dataset: str) -> Iterator[Drawing]:
    swept = results.swept(dataset)
    panels: dict[str, Curves] = {}
    groups = {"accuracy": {"accuracy": "accuracy"}} | {
        f"→ {OOD[name]}": {SCORES[s]: f"ood/{name}/{s}/aupr" for s in SHOWN}
        for name in results.ood(dataset)
    }
    for title, quantities in groups.items():
        curves: Curves = {}
        for name, quantity in quantities.items():
            statistics = {w: results.statistics(r, quantity) for w, r in swept.items()}
            points = {w: s for w, s in statistics.items() if s[2]}
            spread = [0.0 if math.isnan(s[1]) else 100 * s[1] for s in points.values()]
            curves[name] = list(points), [100 * s[0] for s in points.values()], spread
        panels[title] = curves
    own = [w for w, recipe in swept.items() if not recipe.variant]
    if swept:
        caption = f"{DATASETS[dataset][1]}: the weight λ of the log-determinant."
        ylabels = ["accuracy (%)", *["AUPR (%)"] * (len(panels) - 1)]
        marked = own[0] if own else None
        yield Drawing(f"lambda-{dataset}", caption, lambda: _sweep(panels, ylabels, marked))


def _fewshot_lambda(results: Results) -> Iterator[Drawing]:
    panels: dict[str, Curves] = {}
    ylabels = []
    for (ways, shots), recipes in fewshot.sweep(results).items():
        names = {SCORES[score]: f"ood/{score}/aupr" for score in SHOWN}
        for ylabel, quantities in (("accuracy (%)", {"accuracy": "accuracy"}), ("AUPR (%)", names)):
            curves: Curves = {}
            for name, quantity in quantities.items():
                by_weight = {
                    weight: fewshot.pooled(results.by_recipe[recipe.name], quantity)
                    for weight, recipe in recipes.items()
                }
                points = {weight: point for weight, point in by_weight.items() if point is not None}
                means = [point.mean for point in points.values()]
                curves[name] = list(points), means, [point.interval for point in points.values()]
            panels[f"{ways}-way {shots}-shot: {ylabel.split()[0]}"] = curves
            ylabels.append(ylabel)
    if panels:
        caption = "Few-shot: the weight λ of the log-determinant; 95 % intervals over episodes."
        yield Drawing("fewshot-lambda", caption, lambda: _sweep(panels, ylabels, None))


# --- calibration and selective prediction ---


def _reliability(results: Results, dataset: str) -> Iterator[Drawing]:
    recipes = results.drawn(dataset)

    def draw() -> Figure:
        figure, axes = new_figure(len(recipes), 5, (2.15, 2.5))
        for ax, recipe in zip(axes, recipes, strict=True):
            records, errors = results.by_recipe[recipe.name], []
            ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.9)
            for number, (when, prefix) in enumerate((("before", ""), ("after", "calibrated/"))):
                parts = [at(record, f"curves.reliability.{when}") for record in records]
                count = np.array([part["count"] for part in parts], dtype=float)
                x, y = (
                    (np.array([part[key] for part in parts]) * count).sum(0) / count.sum(0).clip(1)
                    for key in ("confidence", "accuracy")
                )
                full = count.sum(0) > 0
                shares, color = count.sum(0)[full] / count.sum(), COLORS[1 - number]
                line = {"color": color, "linestyle": LINES[1 - number]}
                ax.plot(x[full], y[full], linewidth=1.3, label=f"{when} calibration", **line)
                ax.scatter(x[full], y[full], 90 * shares, color=color, alpha=0.8)
                errors.append(mean(_runs(results, recipe, f"{prefix}calibration/ece")))
            ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
            heading(ax, label(recipe), f"ECE {' → '.join(f'{e:.1f}' for e in errors)} %")
        figure.supxlabel("probability of the prediction", fontsize=9.5, color=INK)
        figure.supylabel("share of correct predictions", fontsize=9.5, color=INK)
        shared_legend(figure, axes, 2, "outside upper center")
        return figure

    if recipes:
        caption = f"{DATASETS[dataset][1]}: reliability before and after calibration."
        yield Drawing(f"reliability-{dataset}", caption, draw)


def _risk_coverage(results: Results) -> Iterator[Drawing]:
    panels = {dataset: results.drawn(dataset) for dataset in DATASETS}

    def draw() -> Figure:
        figure, axes = new_figure(len(panels), 2, (5.2, 4.0))
        for ax, (dataset, recipes) in zip(axes, panels.items(), strict=True):
            for number, recipe in enumerate(reversed(recipes)):
                records = results.by_recipe[recipe.name]
                parts = [at(record, "curves.risk_coverage.max_prob") for record in records]
                x = parts[0]["coverage"]
                risk = np.mean([np.interp(x, f["coverage"], f["risk"]) for f in parts], axis=0)
                shown = np.where(risk > 0, 100 * risk, np.nan)
                look = style(number) | {"markevery": 0.12, "markersize": 4, "linewidth": 1.6}
                ax.plot(100 * np.asarray(x), shown, label=label(recipe), **look)
            ax.set(yscale="log", xlabel="accepted (%)", ylabel="errors among them (%)")
            heading(ax, DATASETS[dataset][1])
        shared_legend(figure, axes, 5)
        return figure

    if any(panels.values()):
        yield Drawing("risk-coverage", "Error rate of the most confident predictions.", draw)


# --- tuning trials and images ---


def _fewshot_tuning(results: Results) -> Iterator[Drawing]:
    tuned = [
        recipe
        for (_, variant, _), recipe in fewshot.settings(results).items()
        if variant == "tuned" and "tuning" in results.by_recipe[recipe.name][0]
    ]
    settings = sorted({recipe.setting for recipe in tuned})

    def draw() -> Figure:
        figure, axes = new_figure(len(settings), 3, (3.7, 3.4))
        for ax, (ways, shots) in zip(axes, settings, strict=True):
            for recipe in (recipe for recipe in tuned if recipe.setting == (ways, shots)):
                for record in results.by_recipe[recipe.name]:
                    _trials(ax, record["tuning"], 2 * COMPARED.index(recipe.method), recipe)
            heading(ax, f"{ways}-way {shots}-shot")
        figure.supxlabel("accuracy (%)", fontsize=9.5, color=INK)
        figure.supylabel("OOD AUPR by α₀ (%)", fontsize=9.5, color=INK)
        shared_legend(figure, axes, 4, "outside upper center")
        return figure

    if tuned:
        caption = "Trials on the validation classes; circled: the choice, by the sum of both."
        yield Drawing("fewshot-tuning", caption, draw)


def _trials(ax: Axes, tuning: Mapping[str, Any], first: int, recipe: Recipe) -> None:
    """Draw trials, apart those without the KL term on centered features."""
    for trial in tuning["trials"]:
        hyperparameters = trial["hyperparameters"]
        apart = trial["scaling"] in ("centred", "centered") and hyperparameters["kl_weight"] == 0
        name = f"{label(recipe).split()[0]}, {'centered, no KL' if apart else 'other'}"
        x, y = 100 * trial["accuracy"]["mean"], 100 * trial["ood_aupr"]["mean"]
        look = style(first + apart) | {"linestyle": ""}
        ax.plot([x], [y], markersize=5, alpha=0.8, label=name, **look)
        if hyperparameters == tuning["choice"] and trial["scaling"] == tuning["scaling"]:
            ax.plot([x], [y], "o", markersize=12, fillstyle="none", color=INK)


def _images(results: Results, dataset: str) -> Iterator[Drawing]:
    """Yield the most and the least uncertain test images, if the images are at hand."""
    from dubito.data.known import data_folder

    for recipe in results.drawn(dataset):
        record = results.by_recipe[recipe.name][0]
        classes = at(record, "extremes.data_uncertainty")
        at_hand = any((data_folder() / str(recipe.sections["data"]["source"])).glob("*"))
        if recipe.method in COMPARED and classes and at_hand:
            caption = (
                f"{DATASETS[dataset][1]}: test images of each class with the lowest and the "
                f"highest expected entropy, {label(recipe)}, seed {record['seed']}."
            )
            yield Drawing(f"images-{recipe.name}", caption, partial(_draw_images, recipe, classes))


def _draw_images(recipe: Recipe, classes: Mapping[str, Any]) -> Figure:
    from dubito import data

    source = data.open(recipe.sections["data"]["source"], "test")
    rows = [(name, [*samples["easy"], *samples["hard"]]) for name, samples in classes.items()]
    figure, axes = new_figure(10 * len(rows), 10, (0.5, 0.5))
    for number, ax in enumerate(axes):
        name, indices = rows[number // 10]
        ax.imshow(source[indices[number % 10]].permute(1, 2, 0).squeeze(-1), cmap="gray")
        ax.set_xticks([], [])
        ax.set_yticks([], [])
        if number % 10 == 0:
            ax.set_ylabel(name, fontsize=7, rotation=0, ha="right", va="center")
    figure.suptitle("lowest and highest data uncertainty", fontsize=9)
    return figure
