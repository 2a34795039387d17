"""On a GPU: the captured step is the step, and a run is its own whoever runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dubito import _legacy as methods
from dubito import backbones, data
from dubito.training import Settings, fit, fit_many

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # torch's compiler warns of what it does itself
]

DIGITS = data.load("digits", "train")
TRAIN, VALIDATION, _ = data.split(data.split(DIGITS, 0.5, seed=0)[0], 0.8, seed=0)
IEDL = methods.method("iedl")
SETTINGS = Settings(epochs=4, batch_size=32, learning_rate=3e-3, precision="float32")


def network(seed: int = 0, dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return backbones.build("mlp", TRAIN.shape, 10, hidden=(32,), dropout=dropout)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_captured_step_is_the_step() -> None:
    captured = fit(IEDL, network(), TRAIN, VALIDATION, SETTINGS, device="cuda")
    eager = fit(IEDL, network(), TRAIN, VALIDATION, replace(SETTINGS, graph=False), device="cuda")
    torch.testing.assert_close(weights(captured.model), weights(eager.model), rtol=1e-3, atol=1e-4)
    assert captured.best["validation_accuracy"] > 0.7


def test_a_compiled_network_is_the_network() -> None:
    plain = fit(IEDL, network(), TRAIN, VALIDATION, SETTINGS, device="cuda")
    fast = fit(IEDL, network(), TRAIN, VALIDATION, replace(SETTINGS, compile=True), device="cuda")
    torch.testing.assert_close(weights(fast.model), weights(plain.model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compile", [False, True])
def test_seeds_beside_each_other_are_those_of_single_runs(compile: bool) -> None:
    """With dropout, whose masks are drawn without being asked for."""
    chosen = replace(SETTINGS, compile=compile, epochs=3)
    settings = [replace(chosen, seed=seed) for seed in (1, 2, 3)]
    single = [
        weights(fit(IEDL, network(s.seed, 0.3), TRAIN, VALIDATION, s, device="cuda").model)
        for s in settings
    ]
    networks = [network(s.seed, 0.3) for s in settings]
    many = fit_many(IEDL, networks, TRAIN, VALIDATION, settings, device="cuda")
    for run, expected in zip(many, single, strict=True):
        assert torch.equal(weights(run.model), expected)


def stop_after(epoch: int) -> Callable[[dict[str, object]], None]:
    def stop(entry: dict[str, object]) -> None:
        if entry["epoch"] == epoch:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("average", [0, 2])
def test_a_stopped_run_ends_with_the_same_weights(tmp_path: Path, average: int) -> None:
    chosen = replace(SETTINGS, epochs=5, average=average)
    whole = fit(IEDL, network(0, 0.3), TRAIN, VALIDATION, chosen, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        fit(
            IEDL, network(0, 0.3), TRAIN, VALIDATION, chosen, device="cuda", out=tmp_path,
            callback=stop_after(3),
        )  # fmt: skip
    resumed = fit(IEDL, network(0, 0.3), TRAIN, VALIDATION, chosen, device="cuda", out=tmp_path)
    assert torch.equal(weights(resumed.model), weights(whole.model))
