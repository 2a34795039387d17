"""Published features in pickles."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito.errors import DubitoError
from reproduction.pickles import read


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_published_pickles_are_read(tmp_path: Path, protocol: int) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    content = {np.int64(7): [rows[0], rows[1]], np.int64(3): [rows[2], rows[3]]}
    path = tmp_path / "novel.plk"
    path.write_bytes(pickle.dumps(content, protocol))
    result = read(path)
    assert result.classes == ("3", "7")
    assert result.labels.tolist() == [1, 1, 0, 0]
    np.testing.assert_array_equal(result.values.numpy(), rows)


def test_arrays_of_a_pickle_keep_order_and_type(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"features": values, "labels": np.array(["b", "a"])}))
    result = read(path)
    assert result.classes == ("a", "b")
    np.testing.assert_array_equal(result.values.numpy(), values)


class Harmful:
    def __reduce__(self) -> Any:
        return os.system, ("false",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Harmful(), "names (posix|nt).system"),
        ({"features": np.array([[None]]), "labels": [1]}, "contains an array of object"),
        ([1, 2], "expected a dictionary, not list"),
    ],
)
def test_other_pickles_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DubitoError, match=message):
        read(path)
