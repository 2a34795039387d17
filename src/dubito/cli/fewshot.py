"""`dubito fewshot`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dubito.cli._options import ADDRESS, GPUS, cluster, refuse
from dubito.cli._stop import stoppable

if TYPE_CHECKING:
    from dubito.fewshot import Pool, Setting
    from dubito.fewshot.tuning import Trial, Tuned
    from dubito.report.tables import Table

OPTIONS = {"fisher_weight": "--weight", "kl_weight": "--kl-weight", "kl_ramp": "--kl-ramp"}
TUNE_EPISODES = 1000
GOES_ON = "the {} that are done stay, and the same command goes on"
NOTES = (
    "Feature files are .npz, .safetensors or .pkl with `features` (N, D) and `labels`. Episodes "
    "follow from the seed and their number. Finished parts are kept in DIR/parts, and what --tune "
    "has tried in DIR: start the same command again and it goes on; copy the parts of all shards "
    "into one folder and it joins them. Figures are printed in per cent and written as fractions "
    "to DIR/result.json."
)


def fewshot(
    features: Annotated[
        Path, typer.Argument(metavar="FEATURES", help="Features of the classes to tell apart.")
    ],
    ood: Annotated[
        Path | None,
        typer.Option(
            metavar="FEATURES",
            help="Features to draw OOD queries from. Default: the classes outside an episode.",
        ),
    ] = None,
    ways: Annotated[int, typer.Option(help="Classes in an episode.")] = 5,
    shots: Annotated[int, typer.Option(help="Support samples of each class.")] = 5,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 10_000,
    method: Annotated[
        str | None,
        typer.Option(help="The head; see `dubito.fewshot.HEADS`.", show_default="iedl"),
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="The weight of -log det, where the head has it.")
    ] = None,
    kl_weight: Annotated[
        float | None, typer.Option(help="What the weight of the KL term rises to.")
    ] = None,
    kl_ramp: Annotated[
        int | None, typer.Option(min=0, help="Rounds in which the weight of the KL term rises.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A named choice of head and scaling; see `dubito.fewshot.PRESETS`."),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="What is done to features: none, unit or centred.", show_default="none"),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FEATURES",
            help="Base or validation classes, for their mean and length. Default: those of --tune.",
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="Queries a class: code, max(15, shots), or paper, min(15, shots).")
    ] = "code",
    tune: Annotated[
        Path | None,
        typer.Option(
            metavar="FEATURES", help="Choose the weight on these validation classes first."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What to choose by: accuracy, ood_aupr or pareto.")
    ] = "pareto",
    search: Annotated[str, typer.Option(help="How to search: grid or optuna.")] = "grid",
    tune_kl: Annotated[
        bool, typer.Option("--tune-kl", help="Search the schedule of the KL term as well.")
    ] = False,
    tune_scaling: Annotated[
        bool, typer.Option("--tune-scaling", help="Search the scaling of the features as well.")
    ] = False,
    tune_episodes: Annotated[
        int, typer.Option(min=1, help="Episodes for each candidate.")
    ] = TUNE_EPISODES,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Compute only every N-th part, from the I-th.")
    ] = "1/1",
    ray: Annotated[
        bool, typer.Option("--ray", help="Compute the parts on a Ray cluster: see --address.")
    ] = False,
    address: Annotated[str | None, ADDRESS] = None,
    gpus: Annotated[float | None, GPUS] = None,
    seed: Annotated[int, typer.Option(min=0, help="The episodes follow from it.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go.")] = Path(
        "fewshot"
    ),
    save_episodes: Annotated[
        bool, typer.Option("--save-episodes", help="Write each episode's figures as well.")
    ] = False,
) -> None:
    """Few-shot episodes on frozen features: accuracy, confidence and OOD detection."""
    from dubito import fewshot as core
    from dubito import runs

    console = Console()
    place = runs.device_named(device)
    where = cluster(ray, address, gpus)
    setting = core.Setting(ways, shots, protocol, seed)
    chosen = {"fisher_weight": weight, "kl_weight": kl_weight, "kl_ramp": kl_ramp}
    given = {name: value for name, value in chosen.items() if value is not None}
    name, given, scaled = _preset(preset, method, given, scaling)
    inside = _pool(features)
    outside, validation = _others(inside, "--ood", ood), _others(inside, "--tune", tune)
    part = core.Shard.named(shard)
    known = validation if reference is None else _pool(reference)
    core.Sampler(inside, outside, setting)  # what can't be drawn is told before a search
    _check_widths(inside, known, validation)
    if validation is None:
        needless = {
            "--tune-kl": tune_kl, "--tune-scaling": tune_scaling,
            "--tune-episodes": tune_episodes != TUNE_EPISODES,
            "--objective": objective != "pareto", "--search": search != "grid",
        }  # fmt: skip
        refuse(needless, "nothing is chosen without --tune")
        if scaled == "none":
            refuse({"--reference": reference}, "it is for --scaling unit or centred")
    else:
        if not tune_scaling:
            refuse({"--reference": reference}, "scalings are not searched without --tune-scaling")
        _check_free(preset, [*given, *(["scaling"] if scaling is not None else [])])
        options = {"objective": objective, "search": search, "episodes": tune_episodes}
        grids = (tune_kl, tune_scaling)
        options["reference"] = known if reference is not None else None
        found = _tuned(console, validation, setting, name, grids, options, place, out)
        given, scaled = found.hyperparameters, found.scaling
    prepared = core.scaling(scaled, known)
    engine = core.Engine(
        prepared.of(inside), None if outside is None else prepared.of(outside), setting,
        core.head(name, **given), device=place,
    )  # fmt: skip
    with stoppable(console, GOES_ON.format("parts")), progress_bar(console) as bar:
        share = _share(episodes, part)
        task = bar.add_task(f"{setting} {name}", total=share)
        result = core.run(
            engine, episodes, out, shard=part, keep_episodes=save_episodes,
            tell=lambda done: bar.advance(task, done),
            ray=where, gpus=gpus,
        )  # fmt: skip
    _show(console, result, out, part)


def _preset(
    name: str | None, method: str | None, given: dict[str, Any], scaling: str | None
) -> tuple[str, dict[str, Any], str]:
    """The head, its hyperparameters and the scaling, which a preset may decide."""
    from dubito import _checks
    from dubito.fewshot import PRESETS, head

    if name is None:
        method = method or "iedl"
        terms = head(method).hyperparameters()
        without = {OPTIONS[key]: value for key, value in given.items() if key not in terms}
        refuse(without, f"the head {method!r} has no such term")
        return method, given, scaling or "none"
    if method is not None:
        raise ValueError(f"--preset {name} has a head of its own: leave --method out")
    found = _checks.entry(PRESETS, name, "preset")
    return found.method, {**found.hyperparameters, **given}, scaling or found.scaling


def _check_free(preset: str | None, decided: list[str]) -> None:
    """An error where something decides what --tune is to choose."""
    if preset is not None:
        raise ValueError(f"--tune chooses what --preset {preset} decides: leave one of them out")
    if decided:
        raise ValueError(f"--tune chooses {', '.join(decided)} itself: leave the options out")


def _check_widths(inside: Pool, *others: Pool | None) -> None:
    """An error where features are of another network."""
    width = inside.features.shape[1]
    for other in others:
        if other is not None and other.features.shape[1] != width:
            raise ValueError(
                f"{inside.name} has features of {width} numbers, and {other.name} of "
                f"{other.features.shape[1]}: they are not of the same network"
            )


def _others(inside: Pool, option: str, path: Path | None) -> Pool | None:
    """Other classes than those that are judged, if an option names a file of them."""
    found = None if path is None else _pool(path)
    if found is not None and found.features.equal(inside.features):
        raise ValueError(
            f"{option} {path} holds the features of {inside.name} itself: name a file of other "
            "classes, or leave it out"
        )
    return found


def _pool(path: os.PathLike[str]) -> Pool:
    from dubito.data import read_features
    from dubito.fewshot import Pool

    return Pool.of(read_features(path))


def progress_bar(console: Console) -> Progress:
    """A bar that counts what is done and tells the time."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    return Progress(*columns, console=console, transient=True)


def _share(episodes: int, shard: Any) -> int:
    """How many episodes a shard has."""
    from dubito.fewshot import PART

    starts = range(PART * (shard.index - 1), episodes, PART * shard.count)
    return sum(min(PART, episodes - start) for start in starts)


def _tuned(
    console: Console,
    validation: Pool,
    setting: Setting,
    method: str,
    grids: tuple[bool, bool],
    options: dict[str, Any],
    device: Any,
    out: Path,
) -> Tuned:
    """What validation classes choose, of weights, KL schedules and scalings; written and told."""
    from dubito.fewshot import SCALINGS, tuning

    kl_grid = tuning.KL_GRID if grids[0] else tuning.KL_GRID[:1]
    scalings = tuple(SCALINGS) if grids[1] else ("none",)
    with stoppable(console, GOES_ON.format("candidates")), progress_bar(console) as bar:
        task = bar.add_task("Tuning", total=None)

        def tell(done: int, total: int, trial: Trial) -> None:
            bar.update(task, completed=done, total=total)

        found = tuning.tune(
            validation, setting, method, kl_grid=kl_grid, scalings=scalings, device=device,
            tell=tell, folder=out, **options,
        )  # fmt: skip
    console.print(_trials(found), soft_wrap=True)
    return found


def _trials(found: Any) -> Any:
    from dubito.report.tables import Cell, Table, terminal

    rows = []
    for i, trial in enumerate(found.trials):
        given = trial.hyperparameters
        name = f"KL {given['kl_weight']:g}/{given['kl_ramp']}, {trial.scaling}"
        if "fisher_weight" in given:
            name = f"λ {given['fisher_weight']:.3g}, {name}"
        figures = (trial.accuracy, trial.ood_aupr)
        cells = [Cell(_percent(asked.mean, asked.interval), i == found.choice) for asked in figures]
        rows.append((name, tuple(cells)))
    title = f"Validation classes, by {found.objective} (%)"
    return terminal(Table(title, ("Candidate", "Accuracy ↑", "OOD AUPR (α₀) ↑"), tuple(rows)))


def _percent(mean: float, interval: float | None) -> str:
    """A figure; one of a single episode has no interval."""
    known = f" ±{100 * interval:.2f}" if interval is not None and math.isfinite(interval) else ""
    return f"{100 * mean:.2f}{known}"


def _show(console: Console, result: dict[str, Any] | None, out: Path, shard: Any) -> None:
    from dubito.report.tables import terminal

    if result is None:
        console.print(
            Text(
                f"shard {shard.index}/{shard.count} is done; other parts are missing in {out}, "
                "so there is no result yet"
            ),
            style="yellow",
        )
        return
    console.print(terminal(_table(result)))
    console.print(Text(str(out / "result.json")), soft_wrap=True)


def _table(result: dict[str, Any]) -> Table:
    """A row for each measure, a column for each task and metric."""
    from dubito._legacy import MEASURES
    from dubito.report.tables import NONE, Cell, Table

    setting, figures = result["setting"], result["figures"]
    heads = {
        ("confidence", "aupr"): "Conf. AUPR", ("confidence", "auroc"): "AUROC",
        ("ood", "aupr"): "OOD AUPR", ("ood", "auroc"): "AUROC",
    }  # fmt: skip

    def cell(name: str) -> Cell:
        found = figures.get(name)
        if found is None or found["episodes"] == 0:
            return Cell(NONE)
        return Cell(_percent(found["mean"], found["interval"]))

    rows = tuple(
        (measure.label, tuple(cell(f"{task}/{name}/{metric}") for task, metric in heads))
        for name, measure in MEASURES.items()
        if f"confidence/{name}/aupr" in figures
    )
    accuracy = _percent(figures["accuracy"]["mean"], figures["accuracy"]["interval"])
    title = (
        f"{setting['ways']}-way {setting['shots']}-shot, {result['head']['name']}, "
        f"{result['episodes']} episodes: accuracy {accuracy} %"
    )
    return Table(title, ("Measure (%)", *heads.values()), rows)
