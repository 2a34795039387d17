import pytest
import torch
from torch.nn.functional import conv2d

from dubito.backbones.convnet import FourierConv2d


@pytest.mark.parametrize("size", [(2, 2), (7, 7), (14, 9), (1, 32)])
def test_values_and_two_derivatives(size):
    layer, x = FourierConv2d(8, 4, 5), torch.rand(16, 8, *size, requires_grad=True)
    inputs, results = [x, *layer.parameters()], []
    for y in (layer(x), conv2d(x, layer.weight, layer.bias, padding=2)):
        first = torch.autograd.grad(y.square().mean(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().mean() for grad in first), inputs)
        results.append([y, *first, *second])
    assert not torch.equal(results[0][0], results[1][0])  # computed in another way
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_other_modes_are_those_of_conv2d():
    layer, x = FourierConv2d(8, 4, 5), torch.rand(16, 8, 7, 7)
    expected = conv2d(x, layer.weight, layer.bias, padding=2)
    assert "conv2d" in torch.export.export(layer, (x,)).graph_module.code
    assert torch.equal(torch.vmap(layer)(x[None])[0], expected)
    assert torch.equal(layer(x[:15]), expected[:15])
    assert torch.equal(layer.eval()(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.train()(x).dtype == torch.bfloat16
