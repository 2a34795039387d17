"""What every registered method does: a new method is tested here without a new line."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dubito.methods as methods
from dubito.errors import DubitoError
from dubito.methods import METHODS, Method, MethodLoss
from tests.methods.digits import data_of, loss_of, predict, task_of, trained, untrained

CHEAPER = {"ensemble": {"size": 2}, "mc_dropout": {"samples": 4}}
#: methods that need more than three epochs to be within two points of EDL
SLOWER = {"kl_pn": 0.06}
BUILT_IN = [name for name in METHODS if METHODS[name].__module__.startswith("dubito.")]
EACH = pytest.mark.parametrize("name", BUILT_IN)
VARIANTS: dict[str, Method] = {
    "ensemble_of_iedl": METHODS.build("ensemble", member="iedl", size=2),
    "ensemble_of_mc_dropout": METHODS.build(
        "ensemble", member=METHODS.build("mc_dropout", samples=2), size=2
    ),
    "weighted_gaussian": METHODS.build("gaussian", beta=0.5),
    **{
        f"{mixed}_of_{name}": METHODS.build(mixed, member=name, **CHEAPER[mixed])
        for mixed in CHEAPER
        for name in BUILT_IN
        if name not in CHEAPER and "regression" in METHODS[name].tasks
    },
    "ensemble_of_prior_networks": METHODS.build("ensemble", member="rkl_pn", size=2),
    "iedl_with_beta": METHODS.build("iedl", kl_beta=2.0),
    "edl_with_fisher": METHODS.build("edl", likelihood="cross_entropy", fisher_weight=0.01),
    "linear_fedl": METHODS.build("fedl", hidden=0),
    "logit_norm_of_re_edl": METHODS.build("logit_norm", member="re_edl"),
    "t2f_norm_of_iedl": METHODS.build("t2f_norm", member="iedl"),
}


def build_method(name: str) -> Method:
    return VARIANTS[name] if name in VARIANTS else METHODS.build(name, **CHEAPER.get(name, {}))


def small(name: str) -> tuple[Method, nn.Module, Tensor, Tensor]:
    """A method, its untrained network in evaluation mode, and 16 samples."""
    method = build_method(name)
    x, y, _, _ = data_of(method)
    return method, untrained(method).eval(), x[:16], y[:16]


def accuracy(method: Method) -> float:
    _, _, x, y = data_of(method)
    return (predict(method, trained(method), x).probs.argmax(-1) == y).double().mean().item()


EACH_VARIANT = pytest.mark.parametrize("name", [*BUILT_IN, *VARIANTS])


@EACH
def test_learns_saves_and_predicts_the_same(name, tmp_path):
    method = build_method(name)
    network = trained(method)
    _, _, x, y = data_of(method)
    dist = predict(method, network, x)
    if y.ndim == 1:
        assert accuracy(method) > accuracy(METHODS.build("edl")) - SLOWER.get(name, 0.02)
    else:
        assert (dist.mean - y).square().mean() < 0.8 * y.square().mean()
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    other = untrained(method, seed=1)
    assert not torch.equal(predict(method, other, x).total, dist.total)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    again = predict(method, other, x)
    for score in dist.scores:
        assert dist.score(score).isfinite().all()
        assert torch.equal(again.score(score), dist.score(score))


@EACH_VARIANT
def test_gradients_reach_every_parameter(name):
    method, network, x, y = small(name)
    total, sums = loss_of(method, network.train(), x, y)
    total.backward()
    assert sums.isfinite().all()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@EACH_VARIANT
def test_loss_is_the_weighted_sum_of_the_term_sums(name):
    method, network, x, y = small(name)
    total, sums = loss_of(method, network, x, y)
    assert len(sums) == len(method.terms) + len(method.ood_terms)
    torch.testing.assert_close(total, (method.weight_tensor(1, 2) * sums).sum())


@EACH
def test_terms_are_functions_of_distribution_and_target(name):
    method, network, x, y = small(name)
    dist, target, members = method.distribution(network(x)).for_loss(y)
    _, sums = loss_of(method, network, x, y)
    for term, total in zip(method.terms.values(), sums, strict=False):
        value = term(dist, target)
        takes_numbers = "regression" in method.tasks
        assert value.shape == (target.shape if takes_numbers else dist.batch_shape)
        torch.testing.assert_close(value.sum() / members, total)


@EACH
def test_the_same_in_float64(name):
    method, network, x, y = small(name)
    with torch.no_grad():
        outputs = network(x)
    weights = method.weight_tensor(1, 2)
    ood = method.distribution(-outputs) if method.ood_terms else None
    exact = ood.to(torch.float64) if ood else None
    single = method.loss(method.distribution(outputs), y, weights, ood=ood)
    double = method.loss(method.distribution(outputs).to(torch.float64), y, weights, ood=exact)
    torch.testing.assert_close(single[0].double(), double[0].double(), rtol=1e-5, atol=1e-5)


@EACH
def test_autocast_trains_and_predicts_in_float32(name, monkeypatch):
    # oneDNN trusts a virtual CPU that lists AMX instructions, and crashes where there are none.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    method, network, x, y = small(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, _ = loss_of(method, network.train(), x, y)
        total.backward()
        dist = predict(method, network, x)
    assert total.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
    assert dist.total.dtype == torch.float32


@EACH
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own use of torch
def test_loss_is_one_graph(name):
    method, network, x, y = small(name)
    with torch.no_grad():
        outputs = network(x)
    weights = method.weight_tensor(1, 2)

    def loss(outputs):
        dist = method.distribution(outputs)
        return method.loss(dist, y, weights, ood=dist if method.ood_terms else None)[0]

    torch._dynamo.reset()
    (eager,) = torch.autograd.grad(loss(leaf := outputs.clone().requires_grad_()), leaf)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    (ours,) = torch.autograd.grad(compiled(leaf := outputs.clone().requires_grad_()), leaf)
    torch.testing.assert_close(ours, eager)


@EACH_VARIANT
def test_json_round_trip(name):
    method = build_method(name)
    assert METHODS.build(json.loads(json.dumps(METHODS.to_dict(method)))) == method
    assert eval(repr(method), {kind.__name__: kind for kind in METHODS.values()}) == method


@EACH_VARIANT
def test_is_frozen_and_hashable(name):
    method = build_method(name)
    assert {method: name}[build_method(name)] == name
    with pytest.raises(AttributeError):
        method.kl_weight = 1


@EACH_VARIANT
def test_weights_name_the_terms_in_every_epoch(name):
    method = build_method(name)
    for epoch in range(20):
        weights = method.weights(epoch, 20)
        assert set(weights) == {*method.terms, *method.ood_terms}
        assert all(math.isfinite(weight) for weight in weights.values())
    assert method.weight_tensor(0, 20).dtype == torch.float32


@EACH_VARIANT
def test_scores_of_the_method_exist(name):
    method = build_method(name)
    dist = predict(method, untrained(method), data_of(method)[2][:4])
    assert dist.confidence(method.error_score).shape == (4,)
    assert dist.confidence(method.ood_score).shape == (4,)


@EACH
def test_method_loss_is_the_mean_loss(name):
    method, network, x, y = small(name)
    if method.ood_terms:
        with pytest.raises(ValueError, match="out-of-distribution inputs"):
            MethodLoss(method)
        return
    criterion = MethodLoss(method, epochs=2)
    if method.weights(0, 2) != method.weights(100, 2):
        with pytest.raises(RuntimeError, match="set_epoch"):
            criterion(network(x), y)
    criterion.set_epoch(1)
    total, _ = loss_of(method, network, x, y)
    torch.testing.assert_close(criterion(network(x), y), total / 16)


@EACH
def test_wrong_hyperparameters_are_named(name):
    with pytest.raises(ValueError, match=rf"'{name}': unknown option 'magic'; known"):
        METHODS.build(name, magic=1)
    for field, info in METHODS[name].__pydantic_fields__.items():
        if info.annotation in (int, float):
            with pytest.raises(ValueError, match=rf"method '{name}': {field}: .*, not 'many'"):
                METHODS.build(name, **{field: "many"})
        if info.annotation is float:
            with pytest.raises(ValueError, match=rf"method '{name}': {field}: .*, not nan"):
                METHODS.build(name, **{field: math.nan})
            with pytest.raises(ValueError, match=rf"method '{name}': {field}: .*, not -1"):
                METHODS.build(name, **{field: -1.0})
        if info.annotation is int:
            with pytest.raises(ValueError, match=rf"method '{name}': {field}: .*, not -1"):
                METHODS.build(name, **{field: -1})


@EACH
def test_every_hyperparameter_has_a_help_text(name):
    for field, info in METHODS[name].__pydantic_fields__.items():
        assert info.description, field


def test_defaults():
    evidential = {"kl_weight": 1.0, "kl_ramp": 10, "evidence": "softplus", "scale": "per_class"}
    defaults = {
        "iedl": {**evidential, "fisher_weight": 0.005, "kl_beta": None},
        "redl": {**evidential, "prior": 0.1}, "re_edl": {"prior": 0.8, "evidence": "softplus"},
        "red": {**evidential, "evidence": "exp", "likelihood": "marginal"},
        "dappr": {"evidence_weight": 2e-4, "ramp": 10}, "der": {"evidence_weight": 0.01},
        "sder": {"evidence_weight": 0.01}, "gaussian": {"beta": 0.0},
        "quantile": {"probabilities": (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)},
        "ider": {"fisher_weight": 0.02, "beta": 0.5},
        "label_smoothing": {"smoothing": 0.1}, "fedl": {"hidden": 64},
        "daedl": {"kl_weight": 0.05, "spectral_norm": True},
        "modex": {"tau_weight": 0.1, "hidden": 64, "spectral_norm": True},
        "logit_norm": {"temperature": 0.04}, "t2f_norm": {"temperature": 0.1},
        "kl_pn": {"beta": 100.0, "ood_weight": 1.0}, "rkl_pn": {"beta": 100.0, "ood_weight": 1.0},
        "posterior_network": {"latent_dim": 6, "flow_length": 6, "entropy_weight": 1e-5},
    }  # fmt: skip
    assert all(METHODS[name]() == METHODS[name](**values) for name, values in defaults.items())
    assert METHODS["der"]().weights(0, 1) == {"nll": 1.0, "evidence_penalty": 0.01}


def test_names_of_the_package_are_taken():
    with pytest.raises(ValueError, match="the method 'edl' exists already: choose another name"):
        methods.METHODS.register("edl")(type("Mine", (methods.EDL,), {}))
    assert METHODS["edl"] is methods.EDL


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, r"method 'misnamed': weights\(\) lacks 'cross_entropy'"),
        ({"cross_entropy": 1, "kl": 1}, r"weights\(\) has 'kl'; its terms are 'cross_entropy'"),
    ],
)
def test_weights_with_other_names_are_an_error(weights, message, monkeypatch):
    class Misnamed(methods.Softmax):
        def weights(self, epoch, epochs):
            return weights

    monkeypatch.setattr(METHODS, "_entries", {**METHODS._entries, "misnamed": Misnamed})
    with pytest.raises(DubitoError, match=message):
        Misnamed().weight_tensor(0, 1)


def test_task_decides_the_number_of_outputs():
    task = task_of(METHODS.build("iedl"))
    assert METHODS.build("fedl").outputs(task) == 21
    assert METHODS.build("der").outputs(task) == 40
    assert METHODS.build("sder").outputs(task) == 30
    assert METHODS.build("gaussian").outputs(task) == 20
    assert METHODS.build("quantile").outputs(task) == 90
