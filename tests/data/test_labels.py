from __future__ import annotations

import numpy as np
import pytest

from dubito.data.labels import encode


@pytest.mark.parametrize(
    ("labels", "classes", "indices", "names"),
    [
        (["b", "a"], None, [1, 0], ("a", "b")),
        ([10, 9, 10], None, [1, 0, 1], ("9", "10")),
        ([[2], [1]], None, [1, 0], ("1", "2")),
        ([True, False], None, [1, 0], ("0", "1")),
        ([2.0, 1.0], None, [1, 0], ("1", "2")),
        ([b"b", b"a"], None, [1, 0], ("a", "b")),
        (["b", "b"], ("b", "a"), [0, 0], ("b", "a")),
        ([1, 0], ("b", "a"), [1, 0], ("b", "a")),  # indices: no class is called 1
        ([7, 3], ("3", "7"), [1, 0], ("3", "7")),  # names: all classes are numbers
        ([-1, 1], ("-1", "1"), [0, 1], ("-1", "1")),
    ],
)
def test_encode(labels: list, classes: tuple | None, indices: list, names: tuple) -> None:
    encoded, known = encode(np.array(labels), classes, "file")
    assert (encoded.tolist(), known) == (indices, names)


@pytest.mark.parametrize(
    ("labels", "classes", "error", "message"),
    [
        (["a", "c"], ("a", "b"), ValueError, r"file: labels \['c'\] are outside .* is label 1"),
        ([3, 4], ("3", "7"), ValueError, r"labels \['4'\] are outside the classes \['3', '7'\]"),
        ([0.5, 1.0], None, ValueError, "label 0 is 0.5: a continuous target"),
        ([0.0, np.nan], None, ValueError, "label 1 is nan"),
        ([0.0, np.inf], None, ValueError, "label 1 is inf"),
        ([[0, 1], [1, 0]], None, ValueError, r"shape \(2, 2\): expected \(N,\)"),
        (3, None, ValueError, r"shape \(\): expected"),
        ([1j], None, TypeError, "integers or words, not complex128"),
    ],
)
def test_bad_labels(labels: object, classes: tuple | None, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        encode(np.array(labels), classes, "file")
