"""Runs in folders: finished, interrupted, or of other settings."""

import pytest
import torch

import dubito
from dubito.api import train
from dubito.errors import DubitoError
from tests.training.helpers import AtEpochEnd, StopIn

SETTINGS = {"lr": 0.01, "batch_size": 16, "report": False, "backbone": {"hidden": [16]}}


def test_a_finished_run_is_not_trained_again(tmp_path):
    train("digits", out=tmp_path, epochs=2, **SETTINGS)
    settings = {**SETTINGS, "error_rate": 0.2, "callbacks": [AtEpochEnd(pytest.fail)]}
    model = train("digits", out=tmp_path, epochs=2, **settings)
    assert model.policy.guarantee.level == 0.2
    assert dubito.load(tmp_path).policy.guarantee.level == 0.2
    with pytest.raises(DubitoError, match=r"another run: its training\.epochs is 2, not 7"):
        train("digits", out=tmp_path, epochs=7, **SETTINGS)


def test_one_epoch_is_no_plural(tmp_path):
    samples, lines = (torch.randn(40, 2).numpy(), [0, 1] * 20), []
    settings = {**SETTINGS, "report": True, "epochs": 1, "on_start": lines.append}
    train(samples, out=tmp_path, **settings)
    assert lines[0].endswith("for 1 epoch")
    assert "for 1 epoch in" in (tmp_path / "report.html").read_text("utf-8")


def test_long_settings_are_shown_where_they_differ(tmp_path):
    samples = torch.randn(40, 90).numpy(), [0, 1] * 20
    settings = {**SETTINGS, "out": tmp_path, "epochs": 1, "mean": (0.0,) * 90}
    train(samples, std=(1.0,) * 90, **settings)
    with pytest.raises(DubitoError, match=r"data\.std is .*1\.0\], not .*2\.0\]; choose") as caught:
        train(samples, std=(1.0,) * 89 + (2.0,), **settings)
    assert len(str(caught.value)) < 500


def test_an_interrupted_training_can_be_finished(tmp_path):
    settings = {**SETTINGS, "epochs": 50, "out": tmp_path}
    with pytest.raises(DubitoError, match="checkpoint"):
        train("digits", finish=True, **settings)
    with pytest.raises(KeyboardInterrupt):
        train("digits", callbacks=[StopIn(7)], **settings)
    with pytest.raises(DubitoError, match="or with --finish"):
        dubito.load(tmp_path)
    model = train("digits", finish=True, **settings)
    assert model.record.epochs == 6
    assert model.policy is not None
    assert dubito.load(tmp_path).record.metrics["accuracy"] > 0.8
