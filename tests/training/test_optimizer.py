from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.methods.base import Network
from dubito.model import Model
from dubito.training import TrainConfig, Trainer
from dubito.training.optimizer import build_optimizer, depths, frozen, read_rates
from tests.training.helpers import SHORT, TRAIN, VALIDATION, Normed, small_model, weights, wrap

CPU = torch.device("cpu")


def with_values(**values: Any) -> TrainConfig:
    return TrainConfig(**{**SHORT.model_dump(exclude_unset=True), **values})


def options(network: nn.Module, **values: Any) -> dict[str, tuple[float, float]]:
    """Return learning rate and weight decay of the trained parameters, by name."""
    config = TrainConfig(optimizer="adamw", **values)
    with frozen(config, [network]):
        groups = build_optimizer(config, network, CPU).param_groups
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    return {name: found[id(p)] for name, p in network.named_parameters() if id(p) in found}


def network(**backbone: Any) -> nn.Module:
    return small_model(**backbone).network


def test_untouched_parameters_are_one_group() -> None:
    inner = network()
    optimizer = build_optimizer(TrainConfig(), inner, CPU)
    assert optimizer.param_groups[0]["params"] == list(inner.parameters())
    inner.backbone.requires_grad_(False)  # type: ignore[union-attr, operator]
    optimizer = build_optimizer(TrainConfig(), inner, CPU)
    assert optimizer.param_groups[0]["params"] == list(inner.head.parameters())  # type: ignore[union-attr]


def test_first_pattern_counts() -> None:
    groups = {"head.*": {"lr": 0.5}, "*.bias": {"weight_decay": 0.0}, "*": {"lr": 0.25}}
    assert options(network(), lr=1.0, param_groups=groups) == {
        "backbone.layers.0.weight": (0.25, 0.01),
        "backbone.layers.0.bias": (1.0, 0.0),
        "head.weight": (0.5, 0.01),
        "head.bias": (0.5, 0.01),
    }


def test_rate_of_zero_freezes_during_the_training() -> None:
    model, asked = small_model(), []
    before = [p.detach().clone() for p in model.network.parameters()]
    first = next(model.network.parameters())
    model.network.register_forward_hook(
        lambda network, *_: asked.append(first.requires_grad) if network.training else None
    )
    config = with_values(param_groups={"backbone.*": {"lr": 0}})
    Trainer(config).fit(model, TRAIN, VALIDATION)
    same = [torch.equal(a, b) for a, b in zip(before, model.network.parameters(), strict=True)]
    assert same == [True, True, False, False]
    assert set(asked) == {False}
    assert all(p.requires_grad for p in model.network.parameters())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"param_groups": {"encoder.*": {"lr": 0.1}}},
         r"no parameter matches 'encoder\.\*'; the network has 'backbone\.layers\.0\.weight' to"),
        ({"param_groups": {"*": {"lr": 0}}}, "nothing to train: all parameters"),
        ({"param_groups": {"*": {"weight_decay": 0.1}}, "optimizer": "rprop"},
         "'rprop' has no weight_decay"),
    ],
)  # fmt: skip
def test_groups_without_effect_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DubitoError, match=message):
        Trainer(with_values(**values)).fit(small_model(), TRAIN, VALIDATION)


# --- layer decay ---


def test_rates_fall_from_the_head_to_the_stem() -> None:
    found = options(network(hidden=(8, 8, 8)), lr=1.0, layer_decay=0.5)
    assert {name: lr for name, (lr, _) in found.items() if name.endswith("weight")} == {
        "backbone.layers.0.weight": 0.125,
        "backbone.layers.2.weight": 0.25,
        "backbone.layers.4.weight": 0.5,
        "head.weight": 1.0,
    }


class Vision(nn.Module):
    """Names of a vision transformer."""

    out_features = 2

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(2))
        self.patches = nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in "ab")
        self.norm = nn.LayerNorm(2)


def test_stages_are_stem_blocks_and_head() -> None:
    head = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    expected = {"token": 3, "patches": 3, "blocks.0": 2, "blocks.1": 1, "norm": 0, "head": 0}
    for name, depth in depths(Network(Vision(), head)).items():
        (stage,) = [s for s in expected if name.removeprefix("backbone.").startswith(s)]
        assert depth == expected[stage], name


def test_each_member_of_an_ensemble_has_stages_of_its_own() -> None:
    method = METHODS.build("ensemble", member="iedl", size=2)
    found = depths(small_model(method).network)
    assert sorted(found.values()) == [0] * 4 + [1] * 4
    assert {depth for name, depth in found.items() if "head" in name} == {0}


# --- steps ---


class Recording(torch.optim.SGD):
    """SGD that keeps its learning rates and the norm of the gradients."""

    seen: list[tuple[list[float], float]]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.cat([g.flatten() for g in gradients]).norm().item()
        self.seen.append(([float(group["lr"]) for group in self.param_groups], norm))
        super().step(closure)


def recorded(
    monkeypatch: pytest.MonkeyPatch, model: Model | None = None, **values: Any
) -> list[tuple[list[float], float]]:
    seen: list[tuple[list[float], float]] = []
    monkeypatch.setitem(build_optimizer.__globals__["OPTIMIZERS"], "recording", Recording)
    monkeypatch.setattr(Recording, "seen", seen, raising=False)
    config = with_values(optimizer="recording", **values)
    Trainer(config).fit(model or small_model(), TRAIN, VALIDATION)
    return seen


def test_each_step_has_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"schedule": "cosine", "warmup_steps": 0.25, "lr": 0.5, "layer_decay": 0.5}
    seen = recorded(monkeypatch, **values)
    config = with_values(**values)
    factors = [factor for epoch in range(3) for factor in config.lr_factors(epoch, 4)]
    assert len(set(factors[4:])) == 8
    # The head comes last, the layer before it has half its rate.
    assert [rates for rates, _ in seen] == [[0.25 * f, 0.5 * f] for f in factors]


def test_gradients_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [norm for _, norm in recorded(monkeypatch)]
    limit = sorted(free)[len(free) // 2]
    clipped = [norm for _, norm in recorded(monkeypatch, max_grad_norm=limit)]
    assert max(free) > 1.1 * limit >= max(clipped)
    assert min(clipped) < 0.99 * limit


def test_rates_on_the_device_train_like_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph reads them from a table."""
    values = {"schedule": "linear", "warmup_steps": 3, "layer_decay": 0.25}  # exact in float32
    config = with_values(optimizer="sgd", lr=0.125, **values)

    def on_device(*arguments: Any) -> torch.optim.Optimizer:
        optimizer = build_optimizer(*arguments)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        return optimizer

    results: list[Tensor] = []
    for _ in range(2):
        model = small_model()
        Trainer(config).fit(model, TRAIN, VALIDATION)
        results.append(weights(model))
        monkeypatch.setattr("dubito.training.run.build_optimizer", on_device)
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


def test_reading_rates_compiles_without_breaks() -> None:
    parameters = [{"params": [nn.Parameter(torch.ones(1))], "lr": torch.ones(())} for _ in "ab"]
    optimizer = torch.optim.SGD(parameters)
    fast = torch.compile(read_rates, backend="aot_eager", fullgraph=True)
    fast(optimizer, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1]))
    assert [group["lr"].item() for group in optimizer.param_groups] == [2.0, 4.0]


# --- batch norm ---


@pytest.mark.parametrize("average", [{}, {"average_epochs": 2}, {"ema_decay": 0.5}])
def test_frozen_batch_norm_keeps_its_statistics(average: dict[str, Any]) -> None:
    model = wrap(Normed())
    norm: Any = model.network.norm
    norm.running_mean.fill_(0.5)
    Trainer(with_values(freeze_batch_norm=True, **average)).fit(model, TRAIN, VALIDATION)
    assert norm.running_mean.tolist() == [0.5] * 8
    assert norm.running_var.tolist() == [1.0] * 8
    assert norm.num_batches_tracked == 0
    assert not torch.equal(norm.weight, torch.ones(8))
