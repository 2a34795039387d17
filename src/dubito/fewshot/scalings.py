"""What is done to features before episodes meet them, with what other classes say about them.

| name | features |
| --- | --- |
| none | as they are |
| unit | all of one length |
| centred | less the mean of the reference, then all of one length |

The length is the mean length in the reference: base or validation classes, which are known before
any novel class is seen. So nothing of the classes to tell apart, nor of the OOD set, is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dubito import _checks
from dubito.fewshot.episodes import Pool

__all__ = ["NONE", "SCALINGS", "Scaling", "scaling"]

NONE = "none"


@dataclass(frozen=True, eq=False)
class Scaling:
    """A shift by `centre` (D,) and a common `length`, either of which may be left out.

    >>> scaled = Scaling("unit", None, 10.0)(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    >>> scaled.norm(dim=-1)
    tensor([10., 10.])
    """

    name: str
    centre: Tensor | None = None
    length: float | None = None

    def __call__(self, features: Tensor) -> Tensor:
        """Features (N, D), scaled; a vector without a direction stays zero."""
        moved = features if self.centre is None else features - self.centre.to(features)
        if self.length is None:
            return moved
        return self.length * torch.nn.functional.normalize(moved, dim=-1)

    def of(self, pool: Pool) -> Pool:
        """The same samples with scaled features."""
        if self.name == NONE:
            return pool
        if self.centre is not None and len(self.centre) != pool.features.shape[1]:
            raise ValueError(
                f"{pool.name} has features of dimension {pool.features.shape[1]}, and the "
                f"reference of the scaling {len(self.centre)}"
            )
        return replace(pool, features=self(pool.features), scaling=self.name)


def _unit(reference: Pool) -> Scaling:
    return Scaling("unit", None, _length(reference))


def _centred(reference: Pool) -> Scaling:
    mean = reference.features.double().mean(0).float()
    return Scaling("centred", mean, _length(reference))


def _length(reference: Pool) -> float:
    return float(reference.features.double().norm(dim=-1).mean())


#: name -> the scaling, from a pool of other classes
SCALINGS: dict[str, Callable[[Pool], Scaling]] = {
    NONE: lambda reference: Scaling(NONE),
    "unit": _unit,
    "centred": _centred,
}


def scaling(name: str, reference: Pool | None) -> Scaling:
    """The named scaling, with what it takes from the classes of `reference`.

    >>> scaling("none", None)
    Scaling(name='none', centre=None, length=None)
    """
    made = _checks.entry(SCALINGS, name, "scaling")
    if name == NONE:
        return Scaling(NONE)
    if reference is None:
        raise ValueError(
            f"the scaling {name!r} needs a reference: features of base or validation classes"
        )
    if reference.scaling != NONE:
        raise ValueError(f"the reference {reference.name} is scaled already: {reference.scaling}")
    return made(reference)
