"""The page of a training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dubito._legacy import Prediction
from dubito.bundle import Promise, limits
from dubito.report.training import Trained, write


def trained(said: Prediction, labels: torch.Tensor, inputs: torch.Tensor, error: float) -> Trained:
    classes = [f"<class {i}>" for i in range(said.probs.shape[-1])]
    entry = {"loss": 1.0, "validation_loss": 2.0, "validation_accuracy": 0.5}
    history = [{"epoch": 1, "loss": 3.0}, {"epoch": 2, **entry}, {"epoch": 4, **entry}]
    return Trained(
        title="iedl on <data>", classes=classes, inputs=inputs, labels=labels, said=said,
        limits=limits(said, labels, Promise(error=error)), history=history, epoch=4, facts=("a",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("classes", "evidential", "shape", "error"),
    [
        (3, True, (3, 6, 5), 0.2),
        (30, True, (1, 4, 4), 1e-6),
        (3, False, (7,), 0.2),
    ],
)
def test_a_page_of_every_kind(
    classes: int, evidential: bool, shape: tuple[int, ...], error: float, tmp_path: Path
) -> None:
    drawn = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (300,), generator=drawn)
    logits = torch.randn(300, classes, generator=drawn) + 3 * torch.eye(classes)[labels]
    said = (
        Prediction.from_logits(logits) if evidential else Prediction.from_probs(logits.softmax(1))
    )
    inputs = torch.rand(300, *shape, generator=drawn) * 3 - 1
    text = write(tmp_path, trained(said, labels, inputs, error)).read_text("utf-8")
    assert "<data>" not in text
    assert "<class" not in text
    assert "http" not in text.replace("http://www.w3.org", "")
    right = (said.label == labels).double().mean().item()
    assert f"{100 * right:.2f} %" in text
    assert ("abstains on everything" in text) is (error < 1e-3)
    assert ("Images to look at" in text) is (len(shape) == 3)
    assert ("What it confuses" in text) is (classes == 3)
    rows = re.findall(r'<th scope="row">&lt;class (\d+)&gt;</th><td>(\d+)</td>', text)
    assert len(rows) == min(classes, 20)
    assert all(int(count) == (labels == int(name)).sum() for name, count in rows)
