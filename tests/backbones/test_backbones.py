"""Every entry of BACKBONES: its shapes, its sizes as published, its start, and its errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from dubito.backbones import BACKBONES, Backbone, build
from dubito.backbones.wide_resnet import Block

#: name -> an input's shape, and options that make the network small
SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((3, 4), {"hidden": (16, 8)}),
    "convnet": ((1, 8, 8), {}),
    "vgg16": ((3, 32, 32), {}),
    "wide_resnet": ((3, 12, 12), {"depth": 10, "width": 1}),
}
EVERY_BACKBONE = pytest.mark.parametrize("name", BACKBONES)


def small(name: str, outputs: int = 7, dropout: float | None = None) -> Backbone:
    shape, options = SMALL[name]
    return build(name, shape, outputs, dropout=dropout, **options)


def inputs(name: str, count: int = 4) -> torch.Tensor:
    return torch.rand(count, *SMALL[name][0])


def dropouts(network: nn.Module) -> list[float]:
    return [module.p for module in network.modules() if isinstance(module, nn.Dropout)]


@EVERY_BACKBONE
def test_outputs_are_a_linear_map_of_the_features(name: str) -> None:
    network, x = small(name).eval(), inputs(name)
    features = network.features(x)
    assert features.shape == (4, network.feature_size)
    assert network(x).shape == (4, 7)
    expected = features @ network.head.weight.T + network.head.bias
    torch.testing.assert_close(network(x), expected)


@EVERY_BACKBONE
def test_every_parameter_has_a_finite_gradient(name: str) -> None:
    network = small(name)
    network(inputs(name)).square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@EVERY_BACKBONE
def test_the_seed_makes_the_network(name: str) -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(nn.utils.parameters_to_vector(small(name).parameters()))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@EVERY_BACKBONE
def test_dropout_is_where_it_was_asked_for(name: str) -> None:
    own = {"vgg16": [0.5, 0.5]}.get(name, [])
    assert dropouts(small(name)) == own
    asked = dropouts(small(name, dropout=0.3))
    assert len(asked) == {"mlp": 2, "convnet": 3, "vgg16": 2, "wide_resnet": 3}[name]
    assert set(asked) == {0.3}
    assert not any(dropouts(small(name, dropout=0.0)))
    network, x = small(name, dropout=0.3).eval(), inputs(name)
    assert torch.equal(network(x), network(x))
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(network(x), network(x))


@EVERY_BACKBONE
@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_wrong_dropout(name: str, dropout: float) -> None:
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), not"):
        small(name, dropout=dropout)


@EVERY_BACKBONE
def test_wrong_outputs(name: str) -> None:
    with pytest.raises(ValueError, match="outputs must be at least 1, not 0"):
        small(name, outputs=0)


@pytest.mark.parametrize("name", ["convnet", "vgg16", "wide_resnet"])
def test_channels_last_is_the_same_network(name: str) -> None:
    network, x = small(name).eval(), inputs(name)
    expected = network(x)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours = network(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


# Counted by hand: 25 c_in c_out + c_out a 5x5 convolution, and so on. The totals of VGG16-BN and
# WideResNet-28-10 for ten classes are also those reported for the published networks, but for VGG's
# 4,224 biases before a batch norm.
@pytest.mark.parametrize(
    ("name", "shape", "parameters", "features"),
    [
        ("mlp", (1, 28, 28), 784 * 128 + 128 + 128 * 128 + 128 + 1290, 128),
        ("convnet", (1, 28, 28), 1664 + 2 * 102_464 + 576 * 64 + 64 + 2 * 4160 + 650, 64),
        ("vgg16", (3, 32, 32), 15_253_578 - 4224, 512),
        ("wide_resnet", (3, 32, 32), 36_479_194, 640),
    ],
)
def test_sizes_are_the_published_ones(
    name: str, shape: tuple[int, ...], parameters: int, features: int
) -> None:
    with torch.device("meta"):
        network = build(name, shape, 10)
        assert network(torch.empty(2, *shape)).shape == (2, 10)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert network.feature_size == features


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("convnet", (3, 32, 40)),
        ("convnet", (1, 9, 15)),
        ("vgg16", (1, 64, 70)),
        ("wide_resnet", (3, 84, 84)),
        ("wide_resnet", (1, 28, 28)),
        ("mlp", (5,)),
    ],
)
def test_other_input_sizes_fit(name: str, shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        network = build(name, shape, 3)
        assert network(torch.empty(2, *shape)).shape == (2, 3)


def test_convnet_is_the_published_one() -> None:
    """Activated and then pooled, as published; ours pools first, which gives the same."""
    torch.manual_seed(0)
    network, x = build("convnet", (1, 28, 28), 10, init="he"), torch.rand(3, 1, 28, 28)
    maps = x
    for module in network.convolutions.children():  # type: ignore[union-attr]
        if isinstance(module, nn.Conv2d):
            assert (module.kernel_size, module.out_channels) == ((5, 5), 64)
            maps = max_pool2d(conv2d(maps, module.weight, module.bias, padding=2).relu(), 2)
    expected = network.head(network.dense(maps.flatten(1)))  # type: ignore[operator]
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    slopes = [
        torch.autograd.grad(y.square().sum(), list(network.parameters()))
        for y in (network(x), expected)
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())
    sizes = [m.in_features for m in network.modules() if isinstance(m, nn.Linear)]
    assert sizes == [576, 64, 64, 64]


def test_vgg_pools_after_each_stage() -> None:
    network = build("vgg16", (3, 32, 32), 10)
    layers = [type(module).__name__ for module in network.convolutions.children()]  # type: ignore[union-attr]
    block, last = ["Conv2d", "BatchNorm2d", "ReLU"], ["Conv2d", "BatchNorm2d", "MaxPool2d", "ReLU"]
    assert layers == 2 * (block + last) + 3 * (2 * block + last)


def test_convnet_init() -> None:
    torch.manual_seed(0)
    x = torch.rand(64, 1, 28, 28)
    faded, kept = (
        build("convnet", x.shape[1:], 10, init=init).features(x) for init in ("torch", "he")
    )
    assert kept.std(0).mean() > 50 * faded.std(0).mean()
    with pytest.raises(ValueError, match="unknown init 'xavier'; known: 'torch', 'he'"):
        build("convnet", (1, 28, 28), 10, init="xavier")


def test_vgg_starts_as_published() -> None:
    network = build("vgg16", (3, 32, 32), 10)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 13
    for module in convolutions[1:]:
        spread = math.sqrt(2 / (9 * module.out_channels))
        assert module.weight.std().item() == pytest.approx(spread, rel=0.02)
        assert module.weight.mean().item() == pytest.approx(0, abs=spread / 50)
        assert module.bias is None


def test_wide_resnet_has_its_depth() -> None:
    with torch.device("meta"):
        network = build("wide_resnet", (3, 32, 32), 10)
    kernels = [m.kernel_size for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert kernels.count((3, 3)) == 25  # and the three shortcuts and the last layer: 28 + 1
    assert kernels.count((1, 1)) == 3
    maps = network.blocks(network.stem(torch.empty(2, 3, 32, 32, device="meta")))  # type: ignore[operator]
    assert maps.shape == (2, 640, 8, 8)
    for depth in (8, 4, 27):
        with pytest.raises(ValueError, match=r"depth must be 6 n \+ 4 with n >= 1"):
            build("wide_resnet", (3, 32, 32), 10, depth=depth)
    with pytest.raises(ValueError, match="width must be at least 1"):
        build("wide_resnet", (3, 32, 32), 10, width=0)


@pytest.mark.parametrize(("entering", "stride"), [(4, 2), (4, 1), (6, 1)])
def test_a_block_is_activated_first(entering: int, stride: int) -> None:
    torch.manual_seed(0)
    block = Block(entering, 6, stride, 0.0)
    first, norm, _, second = block.residual
    x = torch.randn(3, entering, 8, 8)
    active = batch_norm(x, None, None, training=True).relu()
    hidden = conv2d(active, first.weight, stride=stride, padding=1)
    added = conv2d(batch_norm(hidden, None, None, training=True).relu(), second.weight, padding=1)
    kept = x if block.shortcut is None else conv2d(active, block.shortcut.weight, stride=stride)
    torch.testing.assert_close(block(x.clone()), kept + added, rtol=1e-4, atol=1e-5)
    assert (block.shortcut is None) == (entering == 6)
    assert norm.num_features == 6


def test_mlp_without_hidden_layers_is_linear() -> None:
    network = build("mlp", (2, 3), 4, hidden=())
    assert [type(module) for module in network.modules()].count(nn.Linear) == 1
    assert network.feature_size == 6
    with pytest.raises(ValueError, match="a hidden size must be at least 1, not 0"):
        build("mlp", (2, 3), 4, hidden=(0,))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "convnet",
            (64,),
            r"'convnet' expects images .* at least 8x8 pixels, but shape is \(64,\)",
        ),
        ("convnet", (28, 28), r"\(channels, height, width\) .* but shape is \(28, 28\)"),
        ("convnet", (1, 7, 28), r"at least 8x8 pixels, but shape is \(1, 7, 28\)"),
        ("vgg16", (1, 28, 28), r"'vgg16' expects .* at least 32x32 pixels, .* \(1, 28, 28\)"),
        ("wide_resnet", (0, 32, 32), r"'wide_resnet' expects images .* \(0, 32, 32\)"),
        ("mlp", (), r"'mlp' expects a shape of sizes >= 1, not \(\)"),
        ("mlp", (3, 0), r"'mlp' expects a shape of sizes >= 1, not \(3, 0\)"),
    ],
)
def test_wrong_shapes(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, shape, 10)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match="unknown backbone 'resnet'; known: 'mlp', 'convnet'"):
        build("resnet", (3, 32, 32), 10)
    with pytest.raises(ValueError, match="backbone 'mlp': 'width'; known: 'dropout', 'hidden'"):
        build("mlp", (64,), 10, width=3)
