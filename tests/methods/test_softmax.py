"""Softmax, label smoothing and MC Dropout: against torch, and which modules draw."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dubito.methods import LabelSmoothing, MCDropout, Softmax, mc_dropout, method
from dubito.methods.mc_dropout import networks_drawn
from methods.digits import digits, predict, trained

LOGITS, TARGET = (
    torch.randn(16, 4, generator=torch.Generator().manual_seed(0)),
    torch.arange(16) % 4,
)


@pytest.mark.parametrize(
    ("name", "smoothing"), [("softmax", 0.0), ("mc_dropout", 0.0), ("label_smoothing", 0.1)]
)
def test_loss_is_that_of_torch(name: str, smoothing: float) -> None:
    expected = cross_entropy(LOGITS, TARGET, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(method(name).terms_of(LOGITS, TARGET)["cross_entropy"], expected)


def test_probabilities_have_no_evidence() -> None:
    for one in (Softmax(), LabelSmoothing()):
        said = one.prediction(LOGITS)
        torch.testing.assert_close(said.probs, LOGITS.softmax(-1))
        assert said.available == ("max_prob", "entropy_of_mean")


def small() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)]
    return nn.Sequential(*layers)


def test_only_dropout_is_drawn_and_all_is_restored() -> None:
    network, x = small().eval(), torch.randn(6, 4)
    quiet = network(x)
    with networks_drawn(network, x):
        assert not torch.equal(network(x), quiet)
        assert not network[1].training
    assert torch.equal(network(x), quiet)
    network.train()
    with networks_drawn(network, x):
        assert network[1].training
    assert all(module.training for module in network.modules())
    network[3].eval()
    with suppress(KeyboardInterrupt), networks_drawn(network, x):
        raise KeyboardInterrupt
    assert [module.training for module in network] == [True, True, True, False, True]
    assert "forward" not in vars(network[3])


DROPOUTS = {
    nn.Dropout(0.4): (7, 6, 5),
    nn.Dropout1d(0.4): (7, 6, 5),
    nn.AlphaDropout(1.0): (7, 6, 5),
    nn.Dropout2d(0.4): (7, 6, 5, 4),
    nn.Dropout3d(0.4): (7, 6, 3, 2, 2),
    nn.AlphaDropout(0.4): (7, 6, 5),
    nn.FeatureAlphaDropout(0.4): (7, 6, 5, 4),
    nn.Dropout(0.4, inplace=True): (7, 6, 5),
}


@pytest.mark.parametrize(("layer", "shape"), DROPOUTS.items(), ids=repr)
def test_masks_are_of_the_layers_own_kind(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.full(shape, 2.0)
    own = torch.stack([layer.train()(x.clone()) for _ in range(400)])
    with networks_drawn(layer, torch.randn(shape)):
        drawn = torch.stack([layer(x.clone()) for _ in range(400)])
    torch.testing.assert_close(drawn.unique(), own.unique())
    # Units go together where the layer takes whole channels, and only there.
    assert (drawn.flatten(3).std(-1).max() == 0) == (own.flatten(3).std(-1).max() == 0)
    assert (drawn.mean(0) - own.mean()).abs().max() < 0.6  # no unit that is always there


def test_masks_are_as_good_as_random() -> None:
    """Of 400 passes, 20 inputs and 30 units, which are alike but for one bit."""
    torch.manual_seed(0)
    layer, x = nn.Dropout(0.3), torch.ones(20, 30)
    x[:, 0] += torch.finfo().eps * torch.arange(20)
    with networks_drawn(layer, x):
        kept = torch.stack([layer(x) for _ in range(400)]) > 0
    count = kept.numel()
    assert kept.float().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / count) ** 0.5)
    for axis in range(3):  # what a unit has says nothing of the next pass, input or unit
        left, right = (
            kept.narrow(axis, 0, kept.shape[axis] - 1),
            kept.narrow(axis, 1, -1 + kept.shape[axis]),
        )
        together = (left & right).float().mean().item()
        assert together == pytest.approx(0.49, abs=4 * (0.25 / left.numel()) ** 0.5)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.uint8])
def test_inputs_of_any_type_have_masks(kind: torch.dtype) -> None:
    layer, x = nn.Dropout(0.5), torch.arange(12).view(3, 4).to(kind)
    with networks_drawn(layer, x):
        kept = layer(torch.ones(3, 64)) > 0
    assert len(kept.unique(dim=0)) == 3
    with networks_drawn(layer, x[:0]):
        assert layer(torch.ones(0, 64)).shape == (0, 64)
    with networks_drawn(layer, x):
        assert layer(torch.ones(7, 2)).shape == (7, 2)  # along no axis of inputs
    with networks_drawn(layer, x[:, 0]):
        assert len((layer(torch.ones(3, 64)) > 0).unique(dim=0)) == 3


def test_masks_are_the_same_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Dropout(0.5), torch.randn(5, 3)

    def kept() -> Tensor:
        torch.manual_seed(0)
        with networks_drawn(layer, x):
            return layer(torch.ones(10, 4, 6))

    whole = kept()
    for portion in (1, 100):  # a row, two rows and what is left of five
        monkeypatch.setattr(mc_dropout, "_AT_ONCE", portion)
        assert torch.equal(kept(), whole)


@pytest.mark.parametrize("passes", [1, 5])
def test_what_is_said_of_an_input_does_not_hang_on_the_others(passes: int) -> None:
    one, network, x = MCDropout(passes=passes), small().eval(), torch.randn(6, 4)

    def said(rows: Tensor) -> Tensor:
        with torch.no_grad(), one.seeded(3):
            return one.predict(network, rows).probs

    whole = said(x)
    torch.testing.assert_close(said(x.flip(0)).flip(0), whole)
    torch.testing.assert_close(torch.cat([said(row) for row in x.split(1)]), whole)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.layer.p, self.layer.training)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dropout(0.5, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        kept = x.clone()
        self.layer(kept)
        return kept


class Copied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = deepcopy(self.layer)(x)
        return found


class InTime(nn.Dropout):
    """One mask for all of the second axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x * super().forward(torch.ones_like(x[:, :1]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        empty = x.abs().sum(-1) == 0
        found: Tensor = self.encoder(x, src_key_padding_mask=empty)[:, 0]
        return found


@pytest.mark.parametrize("kind", [Functional, InPlace, Copied, InTime, Attention])
def test_dropout_of_other_kinds_is_drawn(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    network, x = kind().eval(), torch.randn(4, 6, 8)
    x[1, 4:] = 0  # padding
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        quiet, drawn = network(x), MCDropout(passes=60).outputs_for(network, x)
        assert torch.equal(network(x), quiet)
    assert (drawn.std(0) > 0).float().mean() > 0.9
    if kind is InTime:
        gone = (drawn == 0)[:, x[:, -1, 0] != 0]  # of inputs without padding
        assert (gone == gone[:, :, :1]).all()
    elif kind is not Attention:
        assert (drawn == 0)[:, x != 0].float().mean().item() == pytest.approx(0.5, abs=0.03)


class Wrapped(nn.Module):
    """A module of one's own, which alone compiles itself."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


@pytest.mark.parametrize("where", ["network", "within", "forward"])
def test_a_compiled_network_is_drawn_too(where: str) -> None:
    network, x = Wrapped(small()).eval(), torch.randn(6, 4)
    before, traced = network(x), []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        traced.append(graph)
        return graph.forward

    compiled: nn.Module = network
    if where == "network":
        compiled = torch.compile(network, backend=backend)  # type: ignore[assignment]
    elif where == "within":
        network.compile(backend=backend)
    else:
        network.forward = torch.compile(network.forward, backend=backend)  # type: ignore[method-assign]
    torch.testing.assert_close(compiled(x), before)
    for _ in range(2):
        assert (predict(MCDropout(passes=3), compiled, x).mutual_information > 0).all()
    torch.testing.assert_close(compiled(x), before)
    assert len(traced) == 1  # not again for every draw


def test_masks_are_on_the_device_of_the_layer() -> None:
    class Parts(nn.Module):
        """The second part is elsewhere; "meta" stands for another GPU."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(4, 8), nn.Dropout())
            self.second = nn.Sequential(nn.Dropout(), nn.Linear(8, 3)).to("meta")

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.second(self.first(x).to("meta"))
            return found

    said = MCDropout(passes=3).outputs_for(Parts().eval(), torch.randn(6, 4))
    assert (said.shape, said.device.type) == ((3, 6, 3), "meta")


def test_masks_are_drawn_under_vmap() -> None:
    network, x = small().eval(), torch.randn(6, 4)
    mc = MCDropout(passes=3)
    said = torch.func.vmap(
        lambda one: mc.outputs_for(network, one[None]), randomness="different", out_dims=1
    )(x)
    assert said.shape == (3, 6, 1, 3)
    assert not torch.equal(said[0], said[1])


def test_passes_are_samples_whose_mean_is_told() -> None:
    network, x = small().eval(), torch.randn(6, 4)
    said = predict(MCDropout(passes=7), network, x)
    assert said.samples.shape == (7, 6, 3)
    torch.testing.assert_close(said.probs, said.samples.mean(0))
    assert (said.mutual_information > 0).all()
    assert not torch.equal(said.samples[0], said.samples[1])
    assert torch.equal(predict(MCDropout(passes=7), network, x).samples, said.samples)


def test_many_passes_tell_the_mean_network_over_dropout() -> None:
    """By hand: all masks of two units, each kept with probability 1/2 and then doubled."""
    last = nn.Linear(2, 2, bias=False)
    network, x = nn.Sequential(nn.Dropout(0.5), last).eval(), torch.tensor([[1.0, -2.0]])
    masks = torch.cartesian_prod(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0]))
    with torch.no_grad():
        expected = last(masks * x).softmax(-1).mean(0)
    said = predict(MCDropout(passes=4000), network, x)
    torch.testing.assert_close(said.probs[0], expected, rtol=0, atol=0.02)


def test_disagreement_is_larger_on_noise() -> None:
    one = MCDropout()
    _, _, x, _ = digits()
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
    inside, outside = (predict(one, trained(one, "mlp"), inputs) for inputs in (x, noise))
    assert outside.mutual_information.mean() > inside.mutual_information.mean()


def test_a_backbone_without_dropout_is_refused() -> None:
    for network in (nn.Linear(4, 3), nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3))):
        with pytest.raises(ValueError, match="MC Dropout needs dropout modules with p > 0, but"):
            MCDropout().model(network, 3)


def test_wrong_hyperparameters() -> None:
    with pytest.raises(ValueError, match=r"dropout must be in \(0, 1\), not 0\.0"):
        MCDropout(dropout=0.0)
    with pytest.raises(ValueError, match="passes must be at least 1, not 0"):
        MCDropout(passes=0)
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\), not 1\.0"):
        LabelSmoothing(smoothing=1.0)
