"""The demonstration: EDL and I-EDL trained on digits, and asked about what is no digit.

Both get the same network, the same starts and the same batches, five times over: a single run says
little, since what rounding changes in one can be more than what the methods differ by.

The settings are not blind. Epochs and learning rate were chosen by accuracy on validation digits.
These do not tell Fisher weights from 0.005 to 0.05 apart; 0.05, the package's default, was settled
on after 0.01, and after a look at the out-of-distribution figures of both, where it does better.
The weight decay, the same for both methods, and the scale of the patches came after a look too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from dubito import __version__, backbones, metrics
from dubito._legacy import Prediction, calibration_metrics, misclassification, ood_figures
from dubito._threads import one_thread
from dubito.data import Arrays, Batches, embedded
from dubito.losses import EDLLoss, IEDLLoss
from dubito.report.examples import Example, choose

__all__ = ["METHODS", "SETS", "Method", "Outcome", "Results", "Scores", "Settings", "run"]

Progress = Callable[[int, int, str], None]
Networks = Callable[[Tensor], Tensor]
Said = dict[str, Prediction]
Detection = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Settings:
    """What the demonstration is run with."""

    epochs: int = 60
    seed: int = 0
    runs: int = 5
    hidden: tuple[int, ...] = (256,)
    batch_size: int = 64
    learning_rate: float = 5e-3
    # Pixels that no digit inks get no gradient: without decay their first, random weights would
    # stay, and a patch that is bright there would gather evidence by chance.
    weight_decay: float = 1e-4
    fisher_weight: float = 0.05
    kl_epochs: int = 10
    noise: float = 0.5
    accepted: float = 0.95  # the share of validation digits that the threshold lets pass

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {self.epochs}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}")


@dataclass(frozen=True)
class Method:
    """A method's name in tables, and its loss."""

    title: str
    loss: Callable[[Settings], EDLLoss | IEDLLoss]


#: name -> method, the baseline first
METHODS: dict[str, Method] = {
    "edl": Method("EDL", lambda settings: EDLLoss(kl_ramp=settings.kl_epochs)),
    "iedl": Method(
        "I-EDL", lambda settings: IEDLLoss(settings.fisher_weight, kl_ramp=settings.kl_epochs)
    ),
}
#: name -> words: the test digits, and the two sets that are out of distribution
SETS = {"digits": "test digits", "patches": "photo patches", "noisy": "noisy digits"}
OUTSIDE = ("patches", "noisy")
#: the measure that the figure draws
DRAWN = "mutual_information"


@dataclass(frozen=True)
class Scores:
    """The figures of one run, all fractions; sets by their names in `SETS`, and "validation".

    `confidence` is empty where no prediction is wrong: there is then nothing to tell apart.
    """

    validation_accuracy: float
    accuracy: float
    mean_max_prob: float
    calibration: dict[str, float]
    confidence: Detection
    ood: dict[str, Detection]
    vacuity_threshold: float
    refused: dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """What became of one method: the scores of its runs, and the drawn measure of all of them.

    `drawn` is scaled to [0, 1] over all sets; the energy distances are from the test digits, in it.
    """

    title: str
    runs: tuple[Scores, ...]
    energy_distance: dict[str, float]
    drawn: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class Results:
    """What was found, and the files it was written to; the examples are of I-EDL's first run."""

    settings: Settings
    samples: dict[str, int]
    methods: dict[str, Outcome]
    examples: list[Example]
    files: dict[str, Path] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "dubito": __version__,
            "settings": asdict(self.settings),
            "samples": self.samples,
            "methods": {name: _numbers(outcome) for name, outcome in self.methods.items()},
            "examples": [_numbers(example) for example in self.examples],
        }


def _numbers(record: Outcome | Example) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name not in ("drawn", "image")}


def run(
    out: Path, epochs: int = Settings.epochs, seed: int = 0, progress: Progress | None = None
) -> Results:
    """Train, evaluate, and write results.json, results.md, densities.png and report.html to `out`.

    `progress` is told after each epoch how many epochs of how many are done, and of which method.
    """
    from dubito.report import demo as report
    from dubito.report import files

    settings = Settings(epochs=epochs, seed=seed)
    folder = files.folder(out)  # an error here comes before the work
    with one_thread():
        results = _results(settings, progress)
    return report.write(results, folder)


def _results(settings: Settings, progress: Progress | None) -> Results:
    digits = embedded.digits(settings.seed)
    test = digits.test.floats()
    sets = {
        "digits": test,
        "patches": embedded.patches(len(test), settings.seed),
        "noisy": embedded.noisy(test, settings.noise, settings.seed),
    }
    said: dict[str, Said] = {}
    for i, (name, method) in enumerate(METHODS.items()):

        def tell(epoch: int, before: int = i * settings.epochs, title: str = method.title) -> None:
            if progress is not None:
                progress(before + epoch, len(METHODS) * settings.epochs, title)

        networks = _train(method.loss(settings), digits.train, settings, tell)
        said[name] = _ask(networks, {**sets, "validation": digits.validation.floats()})
    methods = {
        name: _outcome(METHODS[name].title, found, digits, settings) for name, found in said.items()
    }
    threshold = methods["iedl"].runs[0].vacuity_threshold
    first = {name: prediction[0] for name, prediction in said["iedl"].items()}
    samples = {name: len(part) for name, part in vars(digits).items()}
    samples |= {name: len(sets[name]) for name in OUTSIDE}
    return Results(settings, samples, methods, choose(first, sets, digits.test, threshold))


def _train(
    loss: EDLLoss | IEDLLoss, data: Arrays, settings: Settings, tell: Callable[[int], None]
) -> Networks:
    """The networks of all runs, trained side by side: (N, *shape) -> (runs, N, K).

    Their starts and their batches depend on the seed alone, and not on the loss.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        networks = [
            backbones.build("mlp", data.shape, len(data.classes), hidden=settings.hidden)
            for _ in range(settings.runs)
        ]
    weights, _ = stack_module_state(networks)

    def logits(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(networks[0], weights, (x,))
        return found

    optimiser = torch.optim.Adam(
        weights.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    generator = torch.Generator().manual_seed(settings.seed)
    batches = [Batches(data, settings.batch_size, generator) for _ in networks]
    for epoch in range(settings.epochs):
        loss.set_epoch(epoch)
        for batch in zip(*batches, strict=True):
            x, target = (torch.stack(part) for part in zip(*batch, strict=True))
            optimiser.zero_grad()
            # The mean is over the runs too: times their number, each sees its own loss alone.
            (len(networks) * loss(vmap(logits)(weights, x), target)).backward()
            optimiser.step()
        tell(epoch + 1)
    return lambda x: vmap(logits, in_dims=(0, None))(weights, x)


@torch.no_grad()
def _ask(networks: Networks, sets: dict[str, Tensor]) -> Said:
    return {name: Prediction.from_logits(networks(inputs)) for name, inputs in sets.items()}


def _outcome(title: str, said: Said, digits: embedded.Digits, settings: Settings) -> Outcome:
    """A method's scores of what its runs said of each set, (runs, N) samples each."""
    drawn = _scaled({name: said[name].measure(DRAWN).flatten() for name in SETS})
    apart = {name: metrics.energy_distance(drawn["digits"], drawn[name]).item() for name in OUTSIDE}
    runs = (
        _scores({name: prediction[i] for name, prediction in said.items()}, digits, settings)
        for i in range(settings.runs)
    )
    return Outcome(title, tuple(runs), apart, drawn)


def _scores(said: Said, digits: embedded.Digits, settings: Settings) -> Scores:
    inside, target = said["digits"], digits.test.labels
    # An observed value, and not one between two: at least the promised share is accepted.
    threshold = said["validation"].vacuity.quantile(settings.accepted, interpolation="higher")
    mistaken = bool((inside.label != target).any())
    validation = metrics.accuracy(said["validation"].probs, digits.validation.labels)
    return Scores(
        validation_accuracy=validation.item(),
        accuracy=metrics.accuracy(inside.probs, target).item(),
        mean_max_prob=inside.max_prob.mean().item(),
        calibration=calibration_metrics(inside, target),
        confidence=misclassification(inside, target) if mistaken else {},
        ood={name: ood_figures(inside, said[name]) for name in OUTSIDE},
        vacuity_threshold=threshold.item(),
        refused={
            name: (said[name].vacuity > threshold).float().mean().item()
            for name in ("validation", *SETS)
        },
    )


def _scaled(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The values of all sets on one scale, from 0 for the least to 1 for the greatest of them."""
    everything = torch.cat(list(values.values()))
    low, high = everything.min(), everything.max()
    return {name: (value - low) / (high - low) for name, value in values.items()}
