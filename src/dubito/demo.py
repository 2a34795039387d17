"""The demonstration: EDL and I-EDL trained on digits, and asked about what is no digit.

Both get the same network, the same start and the same batches; everything follows from the seed.
Epochs and learning rate were chosen by accuracy on validation digits. These do not tell Fisher
weights from 0.005 to 0.05 apart, so it is the package's default. The weight decay, the same for
both, came after a look at the patches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito import __version__, backbones, evaluation, metrics
from dubito.data import Arrays, Batches, embedded
from dubito.losses import EDLLoss, IEDLLoss
from dubito.prediction import Prediction
from dubito.schedules import Linear

__all__ = ["METHODS", "SETS", "Example", "Method", "Results", "Scores", "Settings", "run"]

Progress = Callable[[int, int, str], None]
Said = dict[str, Prediction]


@dataclass(frozen=True)
class Settings:
    """What the demonstration is run with."""

    epochs: int = 60
    seed: int = 0
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
    "edl": Method("EDL", lambda settings: EDLLoss(kl_weight=Linear(settings.kl_epochs))),
    "iedl": Method(
        "I-EDL", lambda settings: IEDLLoss(settings.fisher_weight, Linear(settings.kl_epochs))
    ),
}
#: name -> words: the test digits, and the two sets that are out of distribution
SETS = {"digits": "test digits", "patches": "photo patches", "noisy": "noisy digits"}
OUTSIDE = ("patches", "noisy")
#: the measure that the figure draws
DRAWN = "mutual_information"


@dataclass(frozen=True)
class Scores:
    """One method's figures: fractions, and energy distances; sets by their names in `SETS`.

    `confidence` is empty where no prediction is wrong: there is then nothing to tell apart.
    `drawn` holds, for each set, the drawn measure scaled to [0, 1] over all sets, (N,).
    """

    title: str
    validation_accuracy: float
    accuracy: float
    mean_max_prob: float
    calibration: dict[str, float]
    confidence: evaluation.Detection
    ood: dict[str, evaluation.Detection]
    energy_distance: dict[str, float]
    vacuity_threshold: float
    refused: dict[str, float]
    drawn: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class Example:
    """An input, and what I-EDL says of it; `truth` is None where there is no right answer."""

    heading: str
    source: str
    index: int
    truth: str | None
    label: str
    belief: float
    second_label: str
    second_belief: float
    vacuity: float
    refused: bool
    image: Tensor = field(repr=False)


@dataclass(frozen=True)
class Results:
    """What the demonstration found, and the files it wrote."""

    settings: Settings
    samples: dict[str, int]
    scores: dict[str, Scores]
    examples: list[Example]
    files: dict[str, Path] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "dubito": __version__,
            "settings": asdict(self.settings),
            "samples": self.samples,
            "methods": {name: _without_tensors(scores) for name, scores in self.scores.items()},
            "examples": [_without_tensors(example) for example in self.examples],
        }


def _without_tensors(record: Scores | Example) -> dict[str, Any]:
    return {name: v for name, v in asdict(record).items() if name not in ("drawn", "image")}


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
    digits, sets = _data(settings)
    said: dict[str, Said] = {}
    for i, (name, method) in enumerate(METHODS.items()):

        def tell(epoch: int, before: int = i * epochs, title: str = method.title) -> None:
            if progress is not None:
                progress(before + epoch, len(METHODS) * epochs, title)

        model = _train(method.loss(settings), digits.train, settings, tell)
        said[name] = _ask(model, {**sets, "validation": digits.validation.floats()})
    scores = {name: _score(METHODS[name].title, said[name], digits, settings) for name in said}
    samples = {
        name: len(part) for name, part in {**vars(digits), **sets}.items() if name != "digits"
    }
    examples = _examples(said["iedl"], sets, digits.test, scores["iedl"].vacuity_threshold)
    return report.write(Results(settings, samples, scores, examples), folder)


def _data(settings: Settings) -> tuple[embedded.Digits, dict[str, Tensor]]:
    """The digits, and the inputs (N, 1, 8, 8) of the sets to ask about, equally many of each."""
    digits = embedded.digits(settings.seed)
    test = digits.test.floats()
    sets = {
        "digits": test,
        "patches": embedded.patches(len(test), settings.seed),
        "noisy": embedded.noisy(test, settings.noise, settings.seed),
    }
    return digits, sets


def _train(
    loss: EDLLoss | IEDLLoss, data: Arrays, settings: Settings, tell: Callable[[int], None]
) -> torch.nn.Module:
    """A network trained with the loss; its start and its batches depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = backbones.build("mlp", data.shape, len(data.classes), hidden=settings.hidden)
    optimiser = torch.optim.Adam(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    batches = Batches(data, settings.batch_size, torch.Generator().manual_seed(settings.seed))
    for epoch in range(settings.epochs):
        loss.set_epoch(epoch)
        for x, target in batches:
            optimiser.zero_grad()
            loss(model(x), target).backward()
            optimiser.step()
        tell(epoch + 1)
    return model.eval()


@torch.no_grad()
def _ask(model: torch.nn.Module, sets: dict[str, Tensor]) -> Said:
    return {name: Prediction.from_logits(model(inputs)) for name, inputs in sets.items()}


def _score(title: str, said: Said, digits: embedded.Digits, settings: Settings) -> Scores:
    """A method's figures of what it said of each set."""
    inside, target = said["digits"], digits.test.labels
    drawn = _scaled({name: said[name].measure(DRAWN) for name in SETS})
    # An observed value, and not one between two: at least the promised share is accepted.
    threshold = said["validation"].vacuity.quantile(settings.accepted, interpolation="higher")
    mistaken = bool((inside.label != target).any())
    validation = metrics.accuracy(said["validation"].probs, digits.validation.labels)
    return Scores(
        title=title,
        validation_accuracy=validation.item(),
        accuracy=metrics.accuracy(inside.probs, target).item(),
        mean_max_prob=inside.max_prob.mean().item(),
        calibration=evaluation.calibration(inside, target),
        confidence=evaluation.misclassification(inside, target) if mistaken else {},
        ood={name: evaluation.ood_detection(inside, said[name]) for name in OUTSIDE},
        energy_distance={
            name: metrics.energy_distance(drawn["digits"], drawn[name]).item() for name in OUTSIDE
        },
        vacuity_threshold=threshold.item(),
        refused={name: (said[name].vacuity > threshold).float().mean().item() for name in SETS},
        drawn=drawn,
    )


def _scaled(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The values of all sets on one scale, from 0 for the least to 1 for the greatest of them."""
    everything = torch.cat(list(values.values()))
    low, high = everything.min(), everything.max()
    return {name: (value - low) / (high - low) for name, value in values.items()}


@dataclass(frozen=True)
class _Pick:
    """An example to look for: of the eligible inputs of a set, the one with the highest score."""

    heading: str
    source: str
    score: Callable[[Prediction], Tensor]
    eligible: Callable[[Tensor], Tensor] = torch.ones_like  # given which predictions are right


def _sure(said: Prediction) -> Tensor:
    return -said.vacuity


def _unsure(said: Prediction) -> Tensor:
    return said.vacuity


_PICKS = (
    _Pick("The surest digit", "digits", _sure, eligible=lambda right: right),
    _Pick("The most torn digit", "digits", lambda said: said.dissonance),
    _Pick("The surest mistake", "digits", _sure, eligible=lambda right: ~right),
    _Pick("The most doubted patch", "patches", _unsure),
    _Pick("The most believed patch", "patches", _sure),
    _Pick("The most doubted noisy digit", "noisy", _unsure),
)


def _examples(said: Said, sets: dict[str, Tensor], test: Arrays, threshold: float) -> list[Example]:
    """The examples that there are: a model may make no mistake."""
    found = []
    for pick in _PICKS:
        prediction = said[pick.source]
        candidates = pick.eligible(prediction.label == test.labels).nonzero().flatten()
        if len(candidates):
            index = int(candidates[pick.score(prediction)[candidates].argmax()])
            found.append(_example(pick, index, prediction[index], sets, test, threshold))
    return found


def _example(
    pick: _Pick,
    index: int,
    said: Prediction,
    sets: dict[str, Tensor],
    test: Arrays,
    threshold: float,
) -> Example:
    belief, label = said.belief.topk(2)
    return Example(
        heading=pick.heading,
        source=pick.source,
        index=index,
        truth=None if pick.source == "patches" else test.classes[int(test.labels[index])],
        label=test.classes[int(label[0])],
        belief=belief[0].item(),
        second_label=test.classes[int(label[1])],
        second_belief=belief[1].item(),
        vacuity=said.vacuity.item(),
        refused=said.vacuity.item() > threshold,
        image=sets[pick.source][index, 0],
    )
