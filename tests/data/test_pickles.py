from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito.data.pickles import unpickle


def dumped(folder: Path, content: Any, protocol: int) -> Path:
    path = folder / "some.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


PLAIN = [
    {1: [1.5, None, True], "a": (b"bytes", {2, 3}, frozenset([4])), "c": 1 + 2j},
    OrderedDict(a=1),
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(4, dtype=">f4"),
    np.array(["rose", "iris"]),
    np.zeros((0, 3)),
    np.array(5.0),
    [np.float32(2.5), np.int64(7), np.bool_(True)],
    bytearray(b"x"),
]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("content", PLAIN, ids=lambda content: type(content).__name__)
def test_plain_content_comes_back(tmp_path: Path, content: Any, protocol: int) -> None:
    back: Any = unpickle(dumped(tmp_path, content, protocol))
    if isinstance(content, np.ndarray):
        assert (back.shape, back.dtype) == (content.shape, content.dtype)
        np.testing.assert_array_equal(back, content)
        assert back.flags.writeable
    else:
        assert back == content


def test_python_2_wrote_bytes_as_text(tmp_path: Path) -> None:
    # What Python 2 and numpy of its time made of {0: np.array([1.0])}.
    text = (
        b"(dp0\nI0\ncnumpy.core.multiarray\n_reconstruct\np1\n(cnumpy\nndarray\np2\n(I0\ntp3\n"
        b"S'b'\np4\ntp5\nRp6\n(I1\n(I1\ntp7\ncnumpy\ndtype\np8\n(S'f8'\np9\nI0\nI1\ntp10\nRp11\n"
        b"(I3\nS'<'\np12\nNNNI-1\nI-1\nI0\ntp13\nbI00\n"
        b"S'\\x00\\x00\\x00\\x00\\x00\\x00\\xf0?'\np14\ntp15\nbs."
    )
    path = tmp_path / "old.pkl"
    path.write_bytes(text)
    back: Any = unpickle(path)
    np.testing.assert_array_equal(back[0], [1.0])


class Touch:
    """Makes a file when it is unpickled by a reader that trusts it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    path = dumped(tmp_path, {"features": Touch(victim)}, protocol)
    with pytest.raises(ValueError, match=r"some\.pkl is refused: it names (posix|nt)\.system"):
        unpickle(path)
    assert not victim.exists()
    pickle.loads(path.read_bytes())  # noqa: S301 - to see that the trap would have worked
    assert victim.exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (Fraction(1, 2), "fractions.Fraction"),
        (Path("x"), "pathlib"),
        (np.random.default_rng(0), "numpy.random"),
        (np.dtype([("a", "f4")]), "void|V4"),
        (np.array([1, None], dtype=object), "object"),
        (np.array(["2024-01-01"], dtype="M8[D]"), "datetime64"),
        (print, "builtins.print|io"),
        (eval, "builtins.eval"),
        (getattr, "builtins.getattr"),
    ],
)
def test_foreign_things_are_named(tmp_path: Path, content: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"is refused: it .*({named})"):
        unpickle(dumped(tmp_path, content, 4))


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.pkl"
    path.write_bytes(b"c_codecs\nencode\n(Vtext\nVutf-16\ntR.")
    with pytest.raises(ValueError, match="asks for the encoding 'utf-16'"):
        unpickle(path)


# The shape of an array, (1,), becomes that of 2^40 values, of which the file has one.
HUGE = pickle.dumps(np.arange(1.0), 2).replace(
    b"K\x01K\x01\x85", b"K\x01\x8a\x06\0\0\0\0\0\x01\x85"
)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle at all",
        pickle.dumps({0: np.arange(100.0)}, 4)[:-30],
        # An array of 10^12 values with 8 bytes of content.
        pickle.dumps(np.arange(1.0), 2).replace(
            b"K\x01K\x01\x85", b"K\x01\x8a\x06\0\0\0\0\0\x01\x85"
        ),
        b"cnumpy\nndarray\n(tR(I1\nI2\nI3\ntb.",
        b"]\x94h\x00a.",  # a list that holds itself
    ],
)
def test_damaged_pickles(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.pkl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"some\.pkl is not a valid pickle"):
        unpickle(path)
