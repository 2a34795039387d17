"""Named choices of a head and a scaling: published, and the best that was found.

| name | what |
| --- | --- |
| published | I-EDL as published: features as they are, KL weight round/10, λ = 0.01 |
| centred | I-EDL without KL and log det on centred features: chosen on validation classes |

`docs/fewshot.md` has the sweep that "centred" comes from, and what it is worth on novel classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True)
class Preset:
    """A head by name, its hyperparameters, and the scaling of features."""

    method: str
    hyperparameters: Mapping[str, Any]
    scaling: str


#: name -> preset
PRESETS: dict[str, Preset] = {
    "published": Preset("iedl", {"fisher_weight": 0.01, "kl_weight": 1.0, "kl_ramp": 10}, "none"),
    "centred": Preset("iedl", {"fisher_weight": 0.0, "kl_weight": 0.0, "kl_ramp": 10}, "centred"),
}
