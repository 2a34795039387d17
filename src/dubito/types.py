"""Types that several modules share."""

from typing import Any, TypeAlias

import numpy as np

__all__: list[str] = []

#: array of any shape and type
Array: TypeAlias = np.ndarray[Any, Any]
#: object of JSON: records, settings and results
Json: TypeAlias = dict[str, Any]
#: keyword arguments
Options: TypeAlias = dict[str, Any]
#: table and column of pandas, which is optional and has no types
Frame: TypeAlias = Any
Series: TypeAlias = Any
