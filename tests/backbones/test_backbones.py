"""Every entry of BACKBONES: shapes, published sizes, initialization and errors."""

import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d
from torch.nn.modules.conv import _ConvNd

from dubito.backbones import BACKBONES
from dubito.backbones.default import default_for
from dubito.errors import DubitoError

#: name -> shape of an input, and options that make the network small
SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((3, 4), {"hidden": (16, 8)}),
    "tabular": ((7,), {"hidden": (16,), "bins": 4}),
    "convnet": ((1, 8, 8), {}),
    "resnet": ((3, 12, 12), {"width": 4}),
    "efficientnet_lite0": ((3, 32, 32), {}),
    "vgg16": ((3, 32, 32), {}),
    "wide_resnet": ((3, 12, 12), {"depth": 10, "width": 1}),
    "embedding": ((7,), {"vocabulary": 9, "size": 8, "hidden": (16,)}),
}
EACH = pytest.mark.parametrize("name", SMALL)


def build(name: str, shape: tuple[int, ...], **options: Any) -> Any:
    return BACKBONES.build(name, **options).build(shape)


def small(name: str, dropout: float | None = None) -> Any:
    shape, options = SMALL[name]
    return build(name, shape, dropout=dropout, **options)


def inputs(name: str, count: int = 4) -> torch.Tensor:
    if name == "embedding":
        return torch.randint(9, (count, *SMALL[name][0]))
    return torch.rand(count, *SMALL[name][0])


def dropout_rates(network: nn.Module) -> list[float]:
    return [module.p for module in network.modules() if isinstance(module, nn.Dropout)]


def test_all_are_tested():
    built_in = {name for name in BACKBONES if BACKBONES[name].__module__.startswith("dubito.")}
    assert built_in == {*SMALL, "hf", "module", "timm"}


@EACH
def test_features_have_the_declared_size(name):
    network = small(name)
    features = network(inputs(name))
    assert features.shape == (4, network.out_features)
    features.square().sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@EACH
def test_seed_determines_the_weights(name):
    vectors = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        vectors.append(nn.utils.parameters_to_vector(small(name).parameters()))
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


@EACH
def test_options_survive_json(name):
    entry = BACKBONES.build(name, **SMALL[name][1])
    assert BACKBONES.build(json.loads(json.dumps(BACKBONES.to_dict(entry)))) == entry


@EACH
def test_dropout_rate(name):
    assert dropout_rates(small(name)) == {"vgg16": [0.5, 0.5]}.get(name, [])
    rates = dropout_rates(small(name, dropout=0.3))
    assert rates == [0.3] * {"mlp": 2, "convnet": 3, "vgg16": 2, "wide_resnet": 3}.get(name, 1)
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(DubitoError, match=f"backbone '{name}': dropout: Input should be"):
            small(name, dropout=wrong)


@EACH
def test_spectral_norm_bounds_every_layer(name):
    shape, options = SMALL[name]
    entry = BACKBONES.build(name, spectral_norm=True, **options)
    network, x = entry.network(shape), inputs(name)
    for _ in range(8):  # each pass is one more iteration for the singular vector
        features = network(x)
    features.square().sum().backward()
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | _ConvNd)]
    for layer in layers:
        norm = torch.linalg.matrix_norm(layer.weight.flatten(1), 2)
        torch.testing.assert_close(norm, torch.ones(()), rtol=0.05, atol=0)
    assert len(layers) == sum(p.ndim > 1 for p in network.parameters()) - (name == "embedding")
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
    other = entry.network(shape)
    other.load_state_dict(network.state_dict())
    assert torch.equal(network.eval()(x), other.eval()(x))


@pytest.mark.parametrize("name", sorted({*SMALL} - {"mlp", "tabular", "embedding"}))
def test_channels_last_gives_the_same_features(name):
    network, x = small(name).eval(), inputs(name)
    expected = network(x)
    network.to(memory_format=torch.channels_last)
    result = network(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


# A 5x5 convolution has 25 c_in c_out + c_out parameters, and so on. With a head of ten classes the
# totals are those reported for VGG16-BN, less 4,224 biases before a batch norm, and
# WideResNet-28-10; for ResNet-18 and 34, with a head of 1,000 classes above 64 pixels.
@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters", "features"),
    [
        ("mlp", (1, 28, 28), {}, 784 * 128 + 128 + 128 * 128 + 128, 128),
        ("convnet", (1, 28, 28), {}, 1664 + 2 * 102_464 + 576 * 64 + 64 + 2 * 4160, 64),
        ("vgg16", (3, 32, 32), {}, 15_253_578 - 4224 - 5130, 512),
        ("wide_resnet", (3, 32, 32), {}, 36_479_194 - 6410, 640),
        ("resnet", (3, 224, 224), {}, 11_689_512 - 513_000, 512),
        ("resnet", (3, 224, 224), {"depth": 34}, 21_797_672 - 513_000, 512),
        ("resnet", (3, 32, 32), {}, 11_173_962 - 5130, 512),
        ("convnet", (3, 32, 40), {}, None, 64),
        ("vgg16", (1, 64, 70), {}, None, 512),
        ("wide_resnet", (3, 84, 84), {}, None, 640),
        ("resnet", (1, 8, 200), {}, None, 512),
    ],
)
def test_sizes_are_the_published_ones(name, shape, options, parameters, features):
    with torch.device("meta"):
        network = build(name, shape, **options)
        assert network(torch.empty(2, *shape)).shape == (2, features)
    if parameters is not None:
        assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def test_convnet_equals_the_published_order_of_layers():
    """The published network applies ReLU before pooling, which gives the same."""
    network, x = build("convnet", (1, 28, 28)), torch.rand(3, 1, 28, 28)
    maps = x
    for layer in network.convolutions:
        if isinstance(layer, nn.Conv2d):
            maps = max_pool2d(conv2d(maps, layer.weight, layer.bias, padding=2).relu(), 2)
    torch.testing.assert_close(network(x), network.dense(maps.flatten(1)))


def test_vgg_initialization():
    convolutions = [m for m in build("vgg16", (3, 32, 32)).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 13
    for layer in convolutions[1:]:
        spread = math.sqrt(2 / (9 * layer.out_channels))
        assert layer.weight.std().item() == pytest.approx(spread, rel=0.02)
        assert layer.bias is None


def test_wide_resnet_depth():
    with torch.device("meta"):
        network = build("wide_resnet", (3, 32, 32))
    sizes = [m.kernel_size for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert (sizes.count((3, 3)), sizes.count((1, 1))) == (25, 3)
    with torch.device("meta"):
        assert network.blocks(torch.empty(1, 16, 32, 32)).shape == (1, 640, 8, 8)
    with pytest.raises(DubitoError, match=r"depth must be 6 n \+ 4 with n >= 1 .*, not 27"):
        build("wide_resnet", (3, 32, 32), depth=27)
    with pytest.raises(DubitoError, match="width: Input should be greater than or equal to 1"):
        build("wide_resnet", (3, 32, 32), width=0)


@pytest.mark.parametrize("place", [0, 1])
def test_wide_resnet_block_activates_first(place):
    block = build("wide_resnet", (3, 12, 12), depth=16, width=2).blocks[place]
    first, _, _, second = block.residual
    x = torch.randn(3, first.in_channels, 8, 8)
    active = batch_norm(x, None, None, training=True).relu()
    hidden = conv2d(active, first.weight, padding=1)
    added = conv2d(batch_norm(hidden, None, None, training=True).relu(), second.weight, padding=1)
    shortcut = x if block.shortcut is None else conv2d(active, block.shortcut.weight)
    torch.testing.assert_close(block(x.clone()), shortcut + added, rtol=1e-4, atol=1e-5)


def test_mlp_without_hidden_layers_flattens_and_warns_of_photos():
    network, x = build("mlp", (2, 3), hidden=()), torch.rand(4, 2, 3)
    assert network.out_features == 6
    assert torch.equal(network(x), x.flatten(1))
    mlp = BACKBONES.build("mlp")
    assert mlp.warning((3, 32, 32)) is None
    assert "photos of 224x160 pixels: use 'resnet'" in mlp.warning((3, 224, 160))


def test_embedding_is_the_mean_of_the_tokens():
    network = build("embedding", (4,), vocabulary=6, size=3, hidden=())
    table = network.embedding.weight
    features = network(torch.tensor([[5, 2, 2, 0], [0, 0, 0, 0], [5, 6, 9000, 0], [5, 1, 1, 0]]))
    torch.testing.assert_close(features[0], (table[5] + 2 * table[2]) / 3)
    assert features[1].tolist() == [0, 0, 0]
    assert torch.equal(features[2], features[3])  # rare words are unknown ones
    with pytest.raises(DubitoError, match="'embedding' needs token ids, not numbers"):
        network(torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("convnet", (64,), {}, r"'convnet' needs images .* at least 8x8 .* shape is \(64,\)"),
        ("convnet", (1, 7, 28), {}, r"at least 8x8 pixels, but the shape is \(1, 7, 28\)"),
        ("resnet", (3, 7, 7), {}, r"'resnet' needs .* at least 8x8 pixels, .* \(3, 7, 7\)"),
        ("resnet", (3, 8, 8), {"depth": 50}, "backbone 'resnet': depth must be 18 or 34, not 50"),
        ("vgg16", (1, 28, 28), {}, r"'vgg16' needs .* at least 32x32 pixels, .* \(1, 28, 28\)"),
        ("embedding", (1, 28), {}, r"'embedding' needs token ids \(L,\), not \(1, 28\)"),
        ("mlp", (3, 0), {}, r"'mlp' needs a shape of sizes >= 1, not \(3, 0\)"),
        ("mlp", (3,), {"hidden": 64}, "hidden: Input should be a valid tuple, not 64"),
        ("mlp", (3,), {"hidden": (0,)}, r"hidden\.0: Input should be greater than or equal to 1"),
        ("mlp", (3,), {"width": 3}, "'mlp': unknown option 'width'; known: 'dropout'"),
        ("densenet", (3,), {}, "unknown backbone 'densenet'; known: .*'convnet'.*'mlp'"),
    ],
)
def test_wrong_arguments(name, shape, options, message):
    with pytest.raises(DubitoError, match=message):
        build(name, shape, **options)


@pytest.mark.parametrize(
    ("shape", "kind", "name"),
    [
        ((5,), "table", "mlp"),
        ((64,), "text", "embedding"),
        ((1, 8, 8), "image", "mlp"),
        ((3, 16, 40), "image", "mlp"),
        ((1, 28, 28), "array", "convnet"),
        ((1, 64, 64), "image", "convnet"),
        ((1, 64, 65), "image", "resnet"),
        ((3, 32, 32), "array", "resnet"),
        ((3, 224, 224), "image", "resnet"),
    ],
)
def test_default(shape, kind, name):
    assert default_for(shape, kind) == name
