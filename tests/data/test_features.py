from __future__ import annotations

import json
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dubito.data import load, read_features

FEATURES = np.random.default_rng(0).random((6, 4), dtype=np.float32)
LABELS = np.array([3, 3, 8, 8, 8, 5])


def dumped(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "novel.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def check(path: Path, classes: tuple[str, ...] = ("3", "5", "8")) -> None:
    data = read_features(path)
    order = [int(np.flatnonzero((row.numpy() == FEATURES).all(1))[0]) for row in data.inputs]
    assert sorted(order) == list(range(6))
    assert data.classes == classes
    values = np.array([3, 5, 8])[data.labels.numpy()]
    np.testing.assert_array_equal(values, LABELS[order])


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "novel.npz"
    np.savez(path, features=FEATURES, labels=LABELS)
    check(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "novel.safetensors"
    content = {"features": torch.from_numpy(FEATURES).to(dtype), "labels": torch.tensor([0, 1] * 3)}
    save_file(content, path, {"classes": json.dumps(["jay", "owl"])})
    data = load(path, "all")
    assert (data.classes, data.labels.tolist()) == (("jay", "owl"), [0, 1] * 3)
    torch.testing.assert_close(data.inputs, content["features"].float(), rtol=0, atol=0)


@pytest.mark.parametrize("protocol", range(6))
def test_the_published_dictionary_of_lists(tmp_path: Path, protocol: int) -> None:
    content: Any = defaultdict(list)
    for label, row in zip(LABELS, FEATURES, strict=True):
        content[int(label)].append(row.copy())
    check(dumped(tmp_path, content, protocol))
    check(dumped(tmp_path, {np.int64(k): np.stack(v) for k, v in content.items()}, protocol))
    check(dumped(tmp_path, {"features": FEATURES, "labels": LABELS}, protocol))
    check(dumped(tmp_path, {"features": np.asfortranarray(FEATURES), "labels": LABELS}, protocol))


def test_half_and_bytes_become_float32_and_are_not_pixels(tmp_path: Path) -> None:
    path = tmp_path / "novel.npz"
    for dtype in (np.float16, np.uint8, np.float64):
        np.savez(path, features=np.full((2, 3), 2, dtype), labels=[0, 1])
        data = read_features(path)
        assert data.inputs.dtype == torch.float32
        assert data.floats().unique().tolist() == [2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    features = FEATURES.copy()
    features[2, 1] = bad
    message = rf"1 of 24 input values .* the first at \(2, 1\): {bad}"
    path = tmp_path / "novel.npz"
    np.savez(path, features=features, labels=LABELS)
    for file in (path, dumped(tmp_path, {"features": features, "labels": LABELS})):
        with pytest.raises(ValueError, match=message):
            read_features(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([FEATURES], "must hold a dictionary with features, not list"),
        ({}, "must hold a dictionary"),
        ({"features": FEATURES}, r"has no labels: it holds \['features'\]"),
        ({0: [FEATURES[0]], 1: [FEATURES[0, :2]]}, r"one shape, but have \[\(2,\), \(4,\)\]"),
        ({0: FEATURES, 1: 3}, "1 maps to int"),
        ({0: [], 1: []}, "one shape, but have"),
        ({"features": FEATURES[..., None], "labels": LABELS}, r"\(N, D\), but have shape"),
        ({"features": FEATURES, "labels": LABELS[:2]}, r"6 inputs need \(6,\)"),
    ],
)
def test_bad_dictionaries(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_features(dumped(tmp_path, content))


def test_unknown_and_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"kind of feature file.*'\.txt'; known: '\.npz'"):
        read_features(tmp_path / "a.txt")
    (tmp_path / "a.safetensors").write_bytes(b"not one")
    with pytest.raises(ValueError, match=r"not a \.safetensors file"):
        read_features(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="no part called 'test'"):
        read_features(dumped(tmp_path, {0: FEATURES}), "test")
