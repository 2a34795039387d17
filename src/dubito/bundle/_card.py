"""card.md: what a bundle is, what it showed, and what its uncertainty does and does not mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dubito.bundle._limits import Limits
from dubito.bundle._preprocessing import Preprocessing

__all__ = ["card"]

SHOWN = 20  # classes that are named

MEANING = """\
## What the uncertainty means

- **Probability** is calibrated where a calibration is stored: among validation samples that were
  given 80 %, about 80 % were right. It speaks of inputs like those.
- **Belief and vacuity** are read from the evidence *before* calibration. A high vacuity says that
  the network found little of what it learnt to count as evidence. Calibration rescales evidence,
  by a large factor at times, so after it their amounts would mean nothing.
- **Mutual information and expected entropy** divide the uncertainty of a prediction into a part
  that more evidence would remove and a part that it would not, as this network sees it.

## What it does not mean

The second-order uncertainty of evidential networks orders inputs usefully; its amount is not an
estimate of what is unknown. Four published critiques say why:

- Bengs, Hüllermeier and Waegeman, *Pitfalls of Epistemic Uncertainty Quantification through Loss
  Minimisation* (NeurIPS 2022): minimising an average loss over such distributions rewards no
  faithful report of epistemic uncertainty.
- Bengs, Hüllermeier and Waegeman, *On Second-Order Scoring Rules for Epistemic Uncertainty
  Quantification* (ICML 2023): a score for which the honest second-order report is always best
  does not exist.
- Jürgens, Meinert, Bengs, Hüllermeier and Waegeman, *Is Epistemic Uncertainty Faithfully
  Represented by Evidential Deep Learning Methods?* (ICML 2024): what is learnt differs from the
  spread over training sets, and the strength of regularisation decides much of it.
- Shen et al., *Are Uncertainty Quantification Capabilities of Evidential Deep Learning a Mirage?*
  (NeurIPS 2024): the epistemic part does not vanish as data grows, and the methods are better
  understood as detectors of unfamiliar inputs than as estimates of model uncertainty.

So: use the measures to rank, to abstain and to notice strange inputs, and check that on data of
your own; do not read a vacuity of 0.2 as a 20 % chance of anything.
"""

LIMITS = """\
## Limits

- The promise about errors holds for inputs drawn like the validation samples. It says nothing of
  other cameras, clinics, years or populations.
- A confident wrong answer on a strange input is possible: the check for unfamiliar inputs notices
  many of them, not all.
"""
CHOSEN = """\
- The validation samples also chose the epoch whose weights were kept. A promise needs samples that
  shaped nothing, so this one is a little optimistic; figures after calibration were measured on
  the samples that it was fitted on. Judge it by other labelled data before relying on it.
"""


def card(
    *,
    method: Mapping[str, Any],
    backbone: Mapping[str, Any] | None,
    classes: Sequence[str],
    shape: Sequence[int],
    preprocessing: Preprocessing,
    limits: Limits,
    about: Iterable[str] = (),
    chosen: bool = False,
) -> str:
    """The text; `about` are lines on the data, `chosen` tells that validation chose the weights."""
    network = "a module of the user's own" if backbone is None else f"`{backbone['name']}`"
    further = f" and {len(classes) - SHOWN} more" if len(classes) > SHOWN else ""
    lines = [
        f"# A classifier of {len(classes)} classes",
        "",
        f"Trained by `{method['name']}` with {network}, made with dubito.",
        "",
        "## Data",
        "",
        f"- Classes: {', '.join(_plain(name) for name in classes[:SHOWN])}{further}",
        f"- Input: {_input(preprocessing, shape)}",
        *(f"- {line}" for line in about),
        "",
        "## Figures",
        "",
        *_figures(limits),
        "",
    ]
    return "\n".join(lines) + "\n" + MEANING + "\n" + LIMITS + (CHOSEN if chosen else "")


def _plain(name: str) -> str:
    """A class's name on one line, with nothing that Markdown would take for its own."""
    words = " ".join(name.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in words)


def _input(preprocessing: Preprocessing, shape: Sequence[int]) -> str:
    size = " x ".join(str(side) for side in shape)
    standard = ", standardised" if preprocessing.mean is not None else ""
    if preprocessing.mode is not None:
        kind = "grey" if preprocessing.mode == "L" else "colour"
        return f"{kind} images, resized to {size} (channels x height x width), in [0, 1]{standard}"
    if preprocessing.columns is not None:
        columns = preprocessing.columns.columns
        words = sum(column.categories is not None for column in columns)
        return f"rows of {len(columns)} columns, {words} of them categories{standard}"
    return f"arrays of shape {size}{standard}"


def _figures(limits: Limits) -> list[str]:
    if not limits.effect:
        return ["None are stored with this bundle.", *_promised(limits)]
    e = limits.effect
    return [
        f"On {e['samples']:g} validation samples:",
        "",
        "| | before calibration | after |",
        "| --- | ---: | ---: |",
        f"| Accuracy | {e['accuracy']:.2%} | the same |",
        f"| Calibration error, ECE | {e['ece_before']:.2%} | {e['ece_after']:.2%} |",
        f"| Negative log-likelihood | {e['nll_before']:.4f} | {e['nll_after']:.4f} |",
        "",
        *_promised(limits),
    ]


def _promised(limits: Limits) -> list[str]:
    policy = limits.policy
    if policy is None:
        return ["No policy is stored: every prediction is given without a decision."]
    asked = f"{policy!r}".removeprefix("Policy(").removesuffix(")")
    return [f"The policy: {asked}. It looks at what the network says before calibration."]
