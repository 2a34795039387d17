"""Types of pydantic fields."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, PlainSerializer

__all__ = ["ExtendedFloat"]


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number, not NaN")
    return value


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


#: a number or an infinity, which is "inf" or "-inf" in JSON
ExtendedFloat = Annotated[float, AfterValidator(_number), PlainSerializer(_plain, when_used="json")]
