"""The experiment about guarantees: tasks, networks side by side, results."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dubito.losses import weighted_sums
from dubito.methods import IEDL
from reproduction.promise import Cell, Clusters, Networks, Numbers, main, run, summary

TINY = [Cell("K=3, n=50", 3, 50, 2), Cell("regression, n=50", 0, 50, 2)]


@pytest.mark.parametrize("cell", TINY, ids=["classes", "numbers"])
def test_a_run_resumes_and_is_summarized(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reproduction.promise.SPREAD", {3: 2.0})
    monkeypatch.setattr("reproduction.promise.FRESH", 200)
    path = tmp_path / "results.jsonl"
    first = run(cell, path, 2, at_once=2)
    assert run(cell, path, 2, at_once=2) == first
    assert [line["number"] for line in run(cell, path, 3, at_once=2)] == [0, 1, 2]
    assert [json.loads(line) for line in path.read_text().splitlines()[:2]] == first
    text = list(summary(cell, first))
    assert len(text) == (3 * 3 if cell.classes else 2 * 4)
    assert ("broken 0.0% [0.0%, 84.2%]" if cell.classes else "coverage ") in text[0]


def test_networks_train_side_by_side_as_alone() -> None:
    """One step equals that of torch's own layers; the average over ten epochs has a tenth."""
    x = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    networks = Networks(x, 3, torch.Generator().manual_seed(1))
    weights = [weight.detach().clone() for weight in networks.weights]
    alone = nn.Sequential(
        nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    with torch.no_grad():
        for index, parameter in enumerate(alone.parameters()):
            parameter.copy_(weights[index][1].T.squeeze())
    torch.testing.assert_close(networks.outputs(x)[1], alone(x[1]))
    target = torch.arange(40).expand(2, 40) % 3
    networks.train(target, IEDL(), 1)  # one batch of all samples, whose order does not matter
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-3)
    method = IEDL()
    loss, _ = weighted_sums(
        method.terms, method.distribution(alone(x[1])), target[1],
        torch.tensor(list(method.weights(0, 1).values())), reduction="mean",
    )  # fmt: skip
    loss.backward()
    optimizer.step()
    for weight, parameter in zip(networks.weights, alone.parameters(), strict=True):
        torch.testing.assert_close(10 * weight[1].T.squeeze(), parameter.detach())


def test_the_known_truth_is_that_of_the_samples() -> None:
    rng = np.random.default_rng(0)
    _, label, probs = Clusters(5, rng).draw(20_000, rng)
    counted = np.bincount(label, minlength=5) / 20_000
    np.testing.assert_allclose(counted, probs.mean(0), atol=0.015)
    hits = probs[np.arange(20_000), label].mean()  # E p(y) = E sum p^2
    assert hits == pytest.approx((probs**2).sum(1).mean(), abs=0.01)
    _, y, known = Numbers().draw(20_000, rng)
    z = (y - known[:, 0]) / known[:, 1]
    assert abs(z.mean()) < 0.03
    assert z.std() == pytest.approx(1, abs=0.02)


def test_unknown_cells_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["K=7"])
    assert "unknown cells: K=7" in capsys.readouterr().err
