"""Training data that is damaged is refused in words, or read as what it holds."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dubito import data
from dubito.data import Arrays
from tests.fuzzing import FUZZ, damaged


def whole(kind: str) -> bytes:
    held = io.BytesIO()
    if kind == "csv":
        rows = [f"{i},{'rs'[i % 2]},{'ab'[i // 3 % 2]}" for i in range(12)]
        return "\n".join(["size,hue,y", *rows, ""]).encode()
    if kind == "npz":
        np.savez(held, x=np.arange(60, dtype=np.float32).reshape(10, 6), y=np.arange(10) % 2)
    else:
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(held, kind)
    return held.getvalue()


@pytest.mark.filterwarnings("ignore:images of:UserWarning")  # of other sizes, since damaged
@FUZZ
@given(drawn=st.data())
@pytest.mark.parametrize("kind", ["csv", "npz", "png", "jpeg"])
def test_training_data_is_refused_in_words_or_read(
    tmp_path_factory: pytest.TempPathFactory, kind: str, drawn: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("damaged")
    content = damaged(whole(kind), drawn)
    source = place / f"x.{kind}"
    if kind in ("png", "jpeg"):
        source = place
        for name in ("a", "b"):
            (place / name).mkdir()
            (place / name / f"1.{kind}").write_bytes(whole(kind))
        (place / "a" / f"2.{kind}").write_bytes(content)
    else:
        source.write_bytes(content)
    said = "nothing"
    try:
        found: Arrays | None = data.load(str(source))
    except (ValueError, OSError) as error:
        found, said = None, str(error)
    assert 1 <= len(said.splitlines()) <= 3
    if found is None:
        return
    assert len(found) == len(found.labels) > 0
    assert len(found.classes) >= 2
    assert found.floats().isfinite().all()
    assert 0 <= found.labels.min() <= found.labels.max() < len(found.classes)
