"""ResNet against another implementation."""

import pytest
import torch
from torch import nn

from dubito.backbones import BACKBONES


def test_stem_follows_the_size_of_the_image():
    resnet = BACKBONES.build("resnet", width=2)
    sides = {
        side: resnet.build((3, side, side)).stem(torch.rand(1, 3, side, side)).shape[-1]
        for side in (8, 32, 33, 64, 65, 224)
    }
    assert sides == {8: 8, 32: 32, 33: 17, 64: 32, 65: 17, 224: 56}


def test_stages_halve_the_resolution_and_double_the_channels():
    network = BACKBONES.build("resnet", width=2).build((3, 32, 32))
    shapes, maps = [], network.stem(torch.rand(1, 3, 32, 32))
    for stage in network.stages:
        maps = stage(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)]


@pytest.mark.parametrize(("depth", "blocks"), [(18, [2, 2, 2, 2]), (34, [3, 4, 6, 3])])
def test_equals_transformers(depth, blocks):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=blocks, layer_type="basic"
    )
    other = transformers.ResNetModel(config)
    network = BACKBONES.build("resnet", depth=depth, width=8).build((3, 96, 80))
    for tensor in network.parameters():  # also those of batch norms
        nn.init.normal_(tensor, std=0.2)
    state = zip(other.state_dict(), network.state_dict().values(), strict=True)
    other.load_state_dict(dict(state))
    x = torch.randn(4, 3, 96, 80)
    for mode in (True, False):  # the first updates the statistics
        expected = other.train(mode)(x).pooler_output.flatten(1)
        torch.testing.assert_close(network.train(mode)(x), expected, rtol=1e-5, atol=1e-5)
