"""What every registered score does: a new score is tested here without a new line."""

from functools import cache

import numpy as np
import pytest
import torch

import dubito
from dubito.errors import DubitoError
from dubito.model import Model
from dubito.scores import SCORES
from tests.model import models
from tests.scores.features import draw, head

BUILT_IN = [name for name in SCORES if SCORES[name].__module__.startswith("dubito.")]
EACH = pytest.mark.parametrize("name", BUILT_IN)
METHODS = {
    "iedl": "iedl",
    "ensemble": {"name": "ensemble", "member": "iedl", "size": 2},
    "mc_dropout": {"name": "mc_dropout", "member": "iedl", "samples": 3},
}
X, _ = models.samples()
NAMES = models.names()
FAR = 20 + X[:200]


@cache
def trained(method: str) -> Model:
    return models.train(models.build(METHODS[method]))


def scored(name: str, method: str = "iedl") -> Model:
    """A new model with a score that its policy reads."""
    part = trained(method)
    model = Model(part.network, part.method, part.task, part.preprocessing, backbone=part.backbone)
    model.eval().add_scores([name], X, NAMES)
    return model.fit_policy(X, NAMES, error_rate=0.2, score=name, ood_score=name)


@EACH
@pytest.mark.parametrize("method", METHODS)
def test_is_saved_evaluated_and_decides(name, method, tmp_path):
    model = scored(name, method)
    values = model.predict(X[:50]).score(name)
    assert values.shape == (50,)
    assert values.dtype == torch.float32
    loaded = Model.load(model.save(tmp_path))
    assert torch.equal(loaded.predict(X[:50]).score(name), values)
    assert torch.equal(loaded.predict(FAR).codes, model.predict(FAR).codes)
    assert model.policy.ood_threshold.score == name
    result = model.evaluate(X, NAMES, ood={"far": FAR})
    assert name in result["aurc"]
    assert 0 <= result["ood"]["far"]["detection"][name]["auroc"] <= 1


def test_onnx_file_equals_torch(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    others = [name for name in BUILT_IN if name != "energy"]
    model = scored("energy", "ensemble").add_scores(others, X, NAMES)
    model.fit_policy(X, NAMES, error_rate=0.2, score="knn", ood_score="mahalanobis")
    exported = dubito.export(model, tmp_path / "model.onnx", scores=BUILT_IN)
    assert exported.difference <= 1e-4
    session = runtime.InferenceSession(exported.path)
    inputs = torch.cat([X[:100], FAR])
    expected = model.predict(inputs)
    *values, codes = session.run([*BUILT_IN, "reason"], {"inputs": inputs.numpy()})
    for name, column in zip(BUILT_IN, values, strict=True):
        np.testing.assert_allclose(column, expected.score(name), 1e-4, 1e-4, err_msg=name)
    assert np.mean(codes == expected.codes.numpy()) > 0.99  # rounding decides at a threshold


@EACH
def test_does_not_depend_on_the_batch(name):
    model = scored(name)
    together = model.predict(X[:40]).score(name)
    each = torch.cat([model.predict(X[row : row + 1]).score(name) for row in range(40)])
    torch.testing.assert_close(together, each)


def constant(x):
    x[:, 3] = 1.5
    return x


def repeated(x):
    x[:, 5:] = x[:, :1]
    return x


#: samples and what is changed in them
UNUSUAL = {
    "constant": (300, constant),
    "all_constant": (300, torch.ones_like),
    "duplicated": (300, repeated),
    "huge": (300, lambda x: 1e4 * x),
    "few": (7, lambda x: x),
    "two": (2, lambda x: x),
    "dead": (300, lambda x: x * (torch.arange(x.shape[1]) < 3)),
}


@EACH
@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_features_have_finite_scores(name, kind):
    count, change = UNUSUAL[kind]
    bank, y = draw(count)
    y[0], y[-1] = 2, 3  # a class with one sample
    bank, x, layer = change(bank), change(draw(40, seed=4)[0]), head()
    score = SCORES.build(name)
    with torch.no_grad():
        score.fit(bank, layer(bank), y, layer)
        values = score(torch.cat([x, bank]), layer(torch.cat([x, bank])))
    assert values.isfinite().all()


@EACH
def test_half_precision_is_computed_in_float32(name):
    (bank, y), layer, score = draw(300), head(), SCORES.build(name)
    bank = bank.bfloat16().float()
    with torch.no_grad():
        outputs = layer(bank).bfloat16()
        score.fit(bank.bfloat16(), outputs, y, layer)
        values = score(bank.bfloat16(), outputs)
        torch.testing.assert_close(values, score(bank, outputs.float()))


@EACH
def test_features_that_are_not_finite_are_an_error(name):
    if not SCORES[name].needs_fit:
        pytest.skip("is not fitted")
    model = models.build()
    next(model.network.parameters()).data[0, 0] = torch.nan
    with pytest.raises(DubitoError, match="features of the training samples are not finite"):
        model.add_scores([name], X, NAMES)
