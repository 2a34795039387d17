"""MC Dropout: masks follow from the input, and are as good as random."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from dubito.methods import MCDropout, mc_dropout
from dubito.methods.mc_dropout import Sampled
from tests.methods.digits import digits, predict, trained


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)
    )


class Layer(nn.Module):
    """A dropout layer alone, applied to a constant: its masks."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.full((len(x), *self.shape), 2.0))


def test_training_gives_one_sample_and_evaluation_many():
    network, x = Sampled(small(), 7), torch.randn(6, 4)
    assert network.train()(x).shape == (6, 1, 3)
    samples = network.eval()(x)
    assert samples.shape == (6, 7, 3)
    assert not torch.equal(samples[:, 0], samples[:, 1])
    assert not any(module.training for module in network.modules())


def test_prediction_does_not_depend_on_the_batch():
    network, x = Sampled(small(), 5).eval(), torch.randn(6, 4)
    whole = network(x)
    torch.testing.assert_close(network(x.flip(0)).flip(0), whole)
    torch.testing.assert_close(torch.cat([network(row) for row in x.split(1)]), whole)
    assert torch.equal(network(x), whole)
    assert not torch.equal(Sampled(small(), 5, seed=1).eval()(x), whole)


DROPOUTS = {
    nn.Dropout(0.4): (6, 5),
    nn.Dropout(0.4, inplace=True): (6, 5),
    nn.Dropout1d(0.4): (6, 5),
    nn.Dropout2d(0.4): (6, 5, 4),
    nn.Dropout3d(0.4): (6, 3, 2, 2),
    nn.Dropout(1.0): (6, 5),
}


@pytest.mark.parametrize(("layer", "shape"), DROPOUTS.items(), ids=repr)
def test_masks_are_those_of_the_layer(layer, shape):
    torch.manual_seed(0)
    network, x = Layer(layer, shape), torch.randn(7, 3)
    own = torch.stack([network.train()(x) for _ in range(400)], 1)
    sampled = Sampled(network, 400).eval()(x)
    torch.testing.assert_close(sampled.unique(), own.unique())
    # Channels are dropped together where the layer does so, and only there.
    assert (sampled.flatten(3).std(-1).max() == 0) == (own.flatten(3).std(-1).max() == 0)
    assert (sampled.mean(1) - own.mean()).abs().max() < 0.6


def test_masks_are_as_good_as_random():
    """Over 400 samples, 20 inputs that differ in one bit, and 30 units."""
    x = torch.ones(20, 30)
    x[:, 0] += torch.finfo().eps * torch.arange(20)
    mask = Sampled(Layer(nn.Dropout(0.3), (30,)), 400).eval()(x) > 0
    assert mask.float().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / mask.numel()) ** 0.5)
    for axis in range(3):
        size = mask.shape[axis] - 1
        left, right = mask.narrow(axis, 0, size), mask.narrow(axis, 1, size)
        together = (left & right).float().mean().item()
        assert together == pytest.approx(0.49, abs=4 * (0.25 / left.numel()) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8])
def test_inputs_of_any_type_have_masks_of_their_own(dtype):
    network = Sampled(Layer(nn.Dropout(0.5), (64,)), 1).eval()
    x = torch.arange(12).view(3, 4).to(dtype)
    assert len(network(x).unique(dim=0)) == 3
    assert network(x[:0]).shape == (0, 1, 64)


def test_masks_are_the_same_in_chunks(monkeypatch):
    network, x = Sampled(Layer(nn.Dropout(0.5), (4, 6)), 3).eval(), torch.randn(5, 3)
    whole = network(x)
    for chunk in (1, 100):
        monkeypatch.setattr(mc_dropout, "_CHUNK", chunk)
        assert torch.equal(network(x), whole)


def test_mean_over_many_samples_is_the_mean_over_all_masks():
    last = nn.Linear(2, 2, bias=False)
    network = Sampled(nn.Sequential(nn.Dropout(0.5), last), 4000).eval()
    x = torch.tensor([[1.0, -2.0]])
    masks = torch.cartesian_prod(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0]))
    with torch.no_grad():
        expected = last(masks * x).softmax(-1).mean(0)
        dist = MCDropout().distribution(network(x))
    torch.testing.assert_close(dist.probs[0], expected, rtol=0, atol=0.02)


def test_transformer_layers_are_sampled():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True)
    network, x = Sampled(nn.TransformerEncoder(layer, 2), 20).eval(), torch.randn(4, 6, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        assert (network(x).std(1) > 0).float().mean() > 0.9


def test_threads_do_not_share_masks():
    network, x = Sampled(small(), 5).eval(), torch.randn(32, 4)
    expected = [network(row) for row in x.split(1)]
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(pool.map(network, x.split(1)), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_a_copy_samples_the_same():
    network, x = Sampled(small(), 5).eval(), torch.randn(6, 4)
    assert torch.equal(deepcopy(network)(x), network(x))


def test_disagreement_is_larger_on_noise():
    method = MCDropout()
    _, _, x, _ = digits()
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
    dist, ood = (predict(method, trained(method), inputs) for inputs in (x, noise))
    assert ood.epistemic.mean() > dist.epistemic.mean()


class Odd(nn.Dropout):
    pass


def test_networks_that_cannot_be_sampled_are_refused():
    for network in (nn.Linear(4, 3), nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3))):
        with pytest.raises(ValueError, match="MC Dropout needs dropout layers with p > 0"):
            Sampled(network, 3)
    for layer in (Odd(0.5), nn.AlphaDropout(0.5)):
        with pytest.raises(ValueError, match=rf"nn\.Dropout3d, not {type(layer).__name__}"):
            Sampled(nn.Sequential(layer), 3)

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mT)

    with pytest.raises(ValueError, match=r"does not count the 5 inputs"):
        Sampled(Sequence(), 3).eval()(torch.randn(5, 7))


def test_hash_is_that_of_splitmix64():
    # the first number of the published generator from the seed 1234567
    start = torch.tensor([1234567 + 0x9E3779B97F4A7C15 - 2**64])
    assert mc_dropout._hash(start).item() == 6457827717110365317
