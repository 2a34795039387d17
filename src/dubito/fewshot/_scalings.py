"""Scalings of features, and presets of a method with a scaling.

| scaling | features |
| --- | --- |
| none | unchanged |
| unit | scaled to one length |
| centered | the mean of the reference subtracted, then scaled to one length |

Mean and length come from a reference: base or validation classes, which are known before any novel
class. So nothing of the novel classes or of the out-of-distribution set is used.

| preset | method and features |
| --- | --- |
| published | I-EDL as published: KL weight round/10, fisher_weight 0.01, no scaling |
| centered | I-EDL without KL and log-determinant on centered features |

The second was chosen on validation classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.nn.functional import normalize

from dubito import _checks
from dubito.errors import DubitoError
from dubito.fewshot._episodes import Features

__all__ = ["PRESETS", "SCALINGS", "scale"]

#: names of the scalings
SCALINGS = ("none", "unit", "centered")


#: name -> method and scaling
PRESETS: dict[str, tuple[dict[str, Any], str]] = {
    "published": ({"name": "iedl", "fisher_weight": 0.01, "scale": "paper"}, "none"),
    "centered": ({"name": "iedl", "fisher_weight": 0.0, "kl_weight": 0.0}, "centered"),
}


def scale(features: Features, scaling: str, reference: Features | None) -> Features:
    """Scale features.

    Args:
        features: Features.
        scaling: One of `SCALINGS`.
        reference: Features of other classes, which determine mean and length.
    """
    _checks.one_of(SCALINGS, scaling, "scaling")
    if scaling == "none":
        return features
    if reference is None:
        raise DubitoError(
            f"scaling {scaling!r} needs a reference: features of base or validation classes"
        )
    features.check_width(reference)
    exact, values = reference.values.double(), features.values
    if scaling == "centered":
        values = values - exact.mean(0).float()
    length = float(exact.norm(dim=-1).mean())
    return replace(features, values=length * normalize(values, dim=-1))
