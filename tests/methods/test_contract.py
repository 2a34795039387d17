"""What every entry of METHODS keeps: a new method is tested here without a new line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dubito.methods
from dubito.methods import METHODS, Ensemble, Method, method
from methods.digits import BACKBONES, CLASSES, digits, predict, total, trained, untrained

#: what differs from the defaults, to save time alone
CHEAPER = {"ensemble": {"size": 2}}
#: those that need no second epoch of the slower backbone to be far from chance
QUICK = {"iedl", "edl", "redl", "rkl_pn", "softmax", "label_smoothing", "ensemble"}


def made(name: str) -> Method:
    return method(name, **CHEAPER.get(name, {}))


EVERY_METHOD = pytest.mark.parametrize("name", METHODS)
EVERY_BACKBONE = pytest.mark.parametrize("backbone", BACKBONES)


def batch(count: int = 16) -> tuple[Tensor, Tensor]:
    x, y, _, _ = digits()
    return x[:count], y[:count]


def same(first: object, second: object) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@EVERY_BACKBONE
@EVERY_METHOD
def test_learns_saves_loads_and_predicts_the_same(name: str, backbone: str, tmp_path: Path) -> None:
    one = made(name)
    model = trained(one, backbone, epochs=1 if backbone == "convnet" and name in QUICK else 2)
    _, _, x, y = digits()
    said = predict(one, model, x)
    assert (said.label == y).float().mean() > 0.4  # chance: 0.1
    for measure in said.available:
        assert said.measure(measure).shape == y.shape
        assert said.measure(measure).isfinite().all(), measure

    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = untrained(one, backbone, seed=1)
    assert not torch.equal(predict(one, other, x).probs, said.probs)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    again = predict(one, other, x)
    assert again.available == said.available
    for measure in said.available:
        same(again.measure(measure), said.measure(measure))


@EVERY_BACKBONE
@EVERY_METHOD
def test_terms_are_per_sample_and_have_finite_gradients(name: str, backbone: str) -> None:
    one = made(name)
    model = untrained(one, backbone)
    x, y = batch()
    terms = one.terms(model, x, y, torch.Generator().manual_seed(0))
    for term in terms.values():
        assert term.shape == y.shape
        assert term.isfinite().all()
    total(one, terms).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert any(bool((parameter.grad != 0).any()) for parameter in model.parameters())


@EVERY_METHOD
def test_the_summed_loss_is_that_of_the_terms(name: str) -> None:
    one = made(name)
    model = untrained(one).eval()
    x, y = batch()
    outputs = model(one.inputs(x, torch.Generator().manual_seed(0)))
    weights = torch.tensor(list(one.weights(1, 2).values()))
    loss, sums = one.loss_of(outputs, y, weights)
    terms = one.terms_of(outputs, y)
    torch.testing.assert_close(loss, len(y) * total(one, terms))
    torch.testing.assert_close(sums, torch.stack([terms[key].sum() for key in one.weights(1, 2)]))


@EVERY_METHOD
def test_a_prediction_is_of_every_sample_and_leaves_the_model_alone(name: str) -> None:
    one = made(name)
    model = untrained(one).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x, y = batch()
    said = predict(one, model, x)
    assert said.probs.shape == (len(y), CLASSES)
    torch.testing.assert_close(said.probs.sum(-1), torch.ones(len(y)))
    assert not any(module.training for module in model.modules())
    for key, value in model.state_dict().items():
        same(value, before[key])


@EVERY_METHOD
def test_the_same_in_float64(name: str) -> None:
    one = made(name)
    model = untrained(one).eval()
    x, y = batch()
    with torch.no_grad():
        outputs = model(one.inputs(x, torch.Generator().manual_seed(0)))
    single, double = one.terms_of(outputs, y), one.terms_of(outputs.double(), y)
    for key, term in double.items():
        assert term.dtype == torch.float64
        torch.testing.assert_close(single[key].double(), term, rtol=1e-5, atol=1e-6)
    model.double()
    terms = one.terms(model, x.double(), y, torch.Generator().manual_seed(0))
    assert {term.dtype for term in terms.values()} == {torch.float64}
    said = predict(one, model, x.double())
    assert said.probs.dtype == torch.float64


@EVERY_METHOD
def test_bfloat16_autocast_trains_and_predicts_in_float32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # oneDNN believes a virtual CPU that lists AMX instructions, and dies where it has none
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    one = made(name)
    model = untrained(one)
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = one.terms(model, x, y, torch.Generator().manual_seed(0))
        total(one, terms).backward()
        said = predict(one, model, x)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert all(term.isfinite().all() for term in terms.values())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    exact = predict(one, model, x)
    assert said.probs.dtype == torch.float32
    torch.testing.assert_close(said.probs, exact.probs, rtol=0, atol=0.05)


@EVERY_METHOD
def test_outputs_may_have_leading_axes(name: str) -> None:
    one = made(name)
    if isinstance(one, Ensemble):
        pytest.skip("the leading axis of an ensemble's outputs is its members'")
    x, y = batch()
    with torch.no_grad():
        outputs = untrained(one)(one.inputs(x))
    stacked = torch.stack([outputs, outputs.flip(0)])
    for key, term in one.terms_of(stacked, torch.stack([y, y])).items():
        assert term.shape == (2, len(y))
        torch.testing.assert_close(term[0], one.terms_of(outputs, y)[key])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler's, of itself
@EVERY_METHOD
def test_a_step_is_one_graph(name: str) -> None:
    """No look at a value, no control flow on data: what a captured or compiled step needs."""
    one = made(name)
    model = untrained(one).eval()  # dropout would draw other numbers
    x, y = batch()

    @torch.no_grad()  # the backward pass is torch's, or dubito.losses', which have their own test
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return total(one, one.terms(model, x, y))

    torch._dynamo.reset()
    torch.manual_seed(0)
    value = torch.compile(loss, backend="eager", fullgraph=True)(x, y)
    torch.manual_seed(0)
    torch.testing.assert_close(value, loss(x, y))


@EVERY_METHOD
def test_repr_and_hyperparameters_make_it_again(name: str) -> None:
    one = made(name)
    assert eval(repr(one), vars(dubito.methods)) == one
    stored = json.loads(json.dumps(one.hyperparameters()))
    assert method(name, **stored) == one


@EVERY_METHOD
def test_is_frozen_and_hashable(name: str) -> None:
    one = made(name)
    assert {one: name}[made(name)] == name
    with pytest.raises(AttributeError):
        one.anything = 1  # type: ignore[attr-defined]


@EVERY_METHOD
def test_weights_are_numbers_in_every_epoch(name: str) -> None:
    one = made(name)
    weights = [one.weights(epoch, 20) for epoch in range(20)]
    assert len({tuple(w) for w in weights}) == 1
    assert all(type(value) is float for w in weights for value in w.values())


@EVERY_METHOD
def test_a_brought_module_will_do(name: str) -> None:
    one = made(name)
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU()]
    dropout = [] if one.dropout is None else [nn.Dropout(one.dropout)]
    network = nn.Sequential(*layers, *dropout, nn.Linear(32, one.outputs(CLASSES)))
    model = one.model(network, CLASSES, [140] * CLASSES)
    x, y = batch()
    assert total(one, one.terms(model, x, y)).isfinite()
    assert predict(one, model, x).probs.shape == (len(y), CLASSES)


@EVERY_METHOD
def test_labels_outside_the_classes_are_refused(name: str) -> None:
    one = made(name)
    x, _ = batch(2)
    with pytest.raises(ValueError, match=r"labels from 0 to 9.*\[10\]"):
        one.terms(untrained(one), x, torch.tensor([3, 10]))


def test_an_unknown_method_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'i-edl'; known: 'iedl', 'edl', 'redl'"):
        method("i-edl")


def test_an_unknown_hyperparameter_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"method 'edl': 'prior'; known: 'likelihood', "):
        method("edl", prior=0.1)
