"""`dubito train`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dubito.cli._stop import stoppable

if TYPE_CHECKING:
    import torch

    from dubito.bundle import Limits, Promise
    from dubito.policy import Policy
    from dubito.runs import Plan


_TRAINING, _METHOD, _DATA, _POLICY = "Training", "Method", "Data", "Policy"


NOTES = (
    "The same command again goes on with a run that was stopped, to the same result, and leaves a "
    "finished one alone. What is not given has the method's and the loop's defaults, which are "
    "printed and stored in OUT/config.json; but evidential methods have scale=per_class, which is "
    "the paper's for ten classes and fits its weights to any other number of them. "
    "The validation samples give a calibration and a policy that accepts or abstains; OUT is then "
    "a bundle for `dubito predict`. A finished run with another promise gets its policy anew. "
    "Several processes: torchrun --nproc-per-node 2 -m dubito train ..."
)


def _option(text: str, *names: str, panel: str | None = None) -> Any:
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel)


def train(
    out: Annotated[Path, _option("The run's folder.", "--out")],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A known name (mnist, cifar-10, digits, ...), an image folder, .npz or .csv.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None, _option("What to train: iedl (default), edl, softmax, ...", panel=_METHOD)
    ] = None,
    backbone: Annotated[
        str | None,
        _option(
            "mlp, convnet, vgg16, wide_resnet, or auto (default): convnet for grey images from "
            "20 x 20 pixels, vgg16 for colour images of 32 x 32, else mlp.",
            panel=_METHOD,
        ),
    ] = None,
    fisher_weight: Annotated[
        float | None, _option("Weight of I-EDL's -ln|I| term.", panel=_METHOD)
    ] = None,
    kl_weight: Annotated[
        float | None, _option("Weight of the KL term once it has risen.", panel=_METHOD)
    ] = None,
    seed: Annotated[
        int | None, _option("Weights and batches follow from it.", panel=_TRAINING)
    ] = None,
    seeds: Annotated[
        str | None,
        _option("Several at once, as 1,2,3: runs in OUT/seed-1, OUT/seed-2, ...", panel=_TRAINING),
    ] = None,
    epochs: Annotated[int | None, _option("Most passes over the data.", panel=_TRAINING)] = None,
    batch_size: Annotated[
        int | None, _option("Samples a step, in each process.", panel=_TRAINING)
    ] = None,
    lr: Annotated[float | None, _option("The learning rate.", "--lr", panel=_TRAINING)] = None,
    optimizer: Annotated[
        str | None, _option("adam, sgd, or any other of torch's.", panel=_TRAINING)
    ] = None,
    patience: Annotated[
        int | None,
        _option("Checks without a better one that end the run; 0: none.", panel=_TRAINING),
    ] = None,
    precision: Annotated[str | None, _option("float32, tf32 or bfloat16.", panel=_TRAINING)] = None,
    augment: Annotated[
        str | None,
        _option("none, or paper: flips, shifted crops, rotations.", panel=_TRAINING),
    ] = None,
    validation: Annotated[
        float | None, _option("The share of the training part to hold out.", panel=_DATA)
    ] = None,
    train_ood: Annotated[
        str | None,
        _option("OOD inputs for kl_pn and rkl_pn, instead of noise: a name or path.", panel=_DATA),
    ] = None,
    class_weight: Annotated[
        str | None,
        _option("balanced: all classes count alike, however rare.", panel=_DATA),
    ] = None,
    error: Annotated[
        float | None,
        _option("The error rate to promise among accepted predictions: 0.05.", panel=_POLICY),
    ] = None,
    confidence: Annotated[
        float | None, _option("The confidence of that promise: 0.95.", panel=_POLICY)
    ] = None,
    false_alarms: Annotated[
        float | None,
        _option("The share of ordinary inputs to refuse as unfamiliar: 0.05.", panel=_POLICY),
    ] = None,
    config: Annotated[
        Path | None,
        _option("A .toml with sections data, backbone, method, training; flags override it."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        _option("Any other key, as kl_ramp=5, backbone.hidden=[64,64], data.label=kind.", "--set"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    report: Annotated[bool, typer.Option(help="Write report.html when done.")] = True,
) -> None:
    """Train a classifier, and leave its weights and all of its settings in a folder."""
    from dubito import runs
    from dubito.cli._options import merged, numbers
    from dubito.training import parallel

    if seed is not None and seeds is not None:
        raise ValueError("give --seed or --seeds, not both")
    flags: dict[str, dict[str, Any]] = {
        "data": {
            "source": source, "validation": validation, "train_ood": train_ood,
            "class_weight": class_weight,
        },
        "backbone": {"name": backbone},
        "method": {"name": method, "fisher_weight": fisher_weight, "kl_weight": kl_weight},
        "training": {
            "epochs": epochs, "batch_size": batch_size, "learning_rate": lr, "seed": seed,
            "optimizer": optimizer, "patience": patience, "precision": precision,
            "augment": augment,
        },
    }  # fmt: skip
    chosen = merged(config, flags, assignments or ())
    if "source" not in chosen.get("data", {}):
        raise ValueError("what is there to learn from? Give DATA, or [data] source in the --config")
    checked = runs.configure(chosen)
    promise = _promise(error=error, confidence=confidence, false_alarms=false_alarms)
    several = None if seeds is None else numbers(seeds, "--seeds")
    with parallel.process_group() as given:
        console = Console(quiet=parallel.rank() != 0)
        plan = runs.plan(checked, out, seeds=several, device=_device(device, given))
        _show(plan, chosen, console)
        _train(plan, console, promise, report and parallel.rank() == 0)


def _promise(**given: float | None) -> Promise | None:
    """The promise asked for; None where nothing is, which leaves a finished run alone."""
    from dubito.bundle import Promise

    chosen = {name: value for name, value in given.items() if value is not None}
    return Promise(**chosen) if chosen else None


def _device(name: str, given: torch.device | None) -> torch.device:
    """The device asked for, or the one that torchrun's processes have."""
    from dubito.runs import device_named

    if given is None:
        return device_named(name)
    if name not in ("auto", given.type):
        raise ValueError(
            f"--device {name}: with torchrun each process has a device of its own, here {given}"
        )
    return given


def _train(plan: Plan, console: Console, promise: Promise | None, report: bool) -> None:
    from dubito import runs
    from dubito.bundle import read_limits
    from dubito.cli._progress import shown

    left = [member for member in plan.members if member.state != runs.FINISHED]
    for member in plan.members:
        if member.state == runs.FINISHED:
            rest = "nothing to do" if promise is None else "its policy is for this promise now"
            console.print(Text(f"{member.folder} is finished: {rest}"), soft_wrap=True)
        elif member.state == runs.STOPPED:
            console.print(Text(f"{member.folder} was stopped: it goes on"), soft_wrap=True)
    seeds = [member.config.training["seed"] for member in left]
    watched = shown(console, seeds, plan.config.training["epochs"]) if left else nullcontext()
    with stoppable(console), watched as tell:
        summaries = runs.train(plan, tell, promise=promise)
    for member, summary in zip(plan.members, summaries, strict=False):
        accuracy = f"validation accuracy {100 * summary['validation_accuracy']:.2f} %"
        over = member.config.settings().averaged
        mean = f", weights averaged over {over}" if over else ""
        words = f"best of {summary['epochs']} epochs: {summary['epoch']}{mean}, {accuracy}"
        console.print(Text(f"{member.folder}: {words}"), soft_wrap=True)
        if member in left or promise is not None:
            _tell(read_limits(member.folder), console)
            if report:
                page = runs.write_report(plan, member.folder)
                console.print(Text(f"  what it learnt, in pictures: {page}"), soft_wrap=True)


def _tell(limits: Limits, console: Console) -> None:
    """What calibration and policy did on the validation samples."""
    effect, policy = limits.effect, limits.policy
    count = f"{effect['samples']:g} validation samples"
    console.print(
        Text(
            f"  calibration on {count}: ECE {effect['ece_before']:.2%} -> "
            f"{effect['ece_after']:.2%}, NLL {effect['nll_before']:.4f} -> "
            f"{effect['nll_after']:.4f}"
        ),
        soft_wrap=True,
    )
    if policy is None or policy.guarantee is None:
        return
    asked = f"an error rate <= {policy.guarantee.level:.3g}"
    asked += f" with confidence {policy.guarantee.confidence:.3g}"
    if policy.accepts_nothing:
        console.print(
            Text(
                f"  policy: {asked} was not shown by {count}, so it abstains on everything; "
                "hold out more (--validation), or promise less (--error, --confidence)"
            ),
            style="yellow",
            soft_wrap=True,
        )
        return
    console.print(
        Text(
            f"  policy: {asked}: accepts {effect['accepted']:.1%} of them, "
            f"{effect['accepted_wrong']:g} wrong; it looks at {_bounds(policy)}"
        ),
        soft_wrap=True,
    )


def _bounds(policy: Policy) -> str:
    """What is asked of a prediction; too few samples give no bound for unfamiliar ones."""
    ood = policy.ood_threshold
    if ood is None or math.isinf(ood.value):
        return f"{policy.threshold!r}, and at nothing for unfamiliar inputs"
    return f"{policy.threshold!r}, and {ood!r} for unfamiliar inputs"


def _show(plan: Plan, chosen: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """The data in a line, and every setting, those that were chosen in bold."""
    from rich.table import Table

    facts = plan.config.facts
    console.print(
        Text(
            f"{plan.train.name}: {facts.train} training and {facts.validation} validation samples "
            f"of shape {tuple(facts.shape)}, {len(facts.classes)} classes; on {facts.device}"
        ),
        soft_wrap=True,
    )
    method = plan.config.make_method()
    if caution := method.caution(len(facts.classes)):
        console.print(Text(caution, style="yellow"), soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    seeds = [member.config.training["seed"] for member in plan.members]
    for name, section in plan.config.sections().items():
        if "seed" in section and len(seeds) > 1:
            section["seed"] = seeds
        told = Text()
        for key, value in section.items():
            style = "bold" if key in chosen.get(name, {}) else "dim" if value is None else ""
            told.append(f"{key}={_plain(value)}", style).append("  ")
        table.add_row(name, told)
    console.print(table)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)
