"""The theory page: its script runs, and its numbers are those of the library."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dubito import losses

ROOT = Path(__file__).resolve().parents[1]
#: the page without its line breaks
PAGE = " ".join((ROOT / "docs" / "theory.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def theory() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_theory", ROOT / "examples" / "theory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_script_draws_the_figures_of_the_page(
    theory: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    theory.main(["--out", str(first)])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    theory.main(["--out", str(second)])
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(re.findall(r"assets/(theory-\w+\.svg)", PAGE))
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    assert all((ROOT / "docs" / "assets" / name).is_file() for name in names)
    assert len(rows) == 8
    assert [row for row in rows if row not in PAGE] == []


def test_frequencies_of_labels_are_not_recovered(theory: ModuleType) -> None:
    shares = torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64)

    def probs(weights: dict[Any, float]) -> str:
        evidence = theory.minimize(shares, weights)[0]
        return ", ".join(f"{p:.2f}" for p in (evidence + 1) / (evidence.sum() + 3))

    assert f"p̂ = {probs(theory.EDL)} in EDL and {probs(theory.IEDL)} in I-EDL" in PAGE


def test_numbers_of_trigamma() -> None:
    values = torch.polygamma(1, torch.tensor([1.0, 10.0, 100.0]).double()).tolist()
    assert values == pytest.approx([1.64, 0.105, 0.010], abs=5e-3)
    assert "1.64 at α = 1 to 0.105 at 10 and 0.010 at 100" in PAGE


def test_evidence_of_all_classes_makes_errors_cheap(theory: ModuleType) -> None:
    equal = torch.tensor([[0.0] * 3, [100.0] * 3], dtype=torch.float64)
    assert theory.loss(equal, theory.FISHER_MSE).tolist() == pytest.approx([1.37, 0.007], abs=5e-3)
    assert "from 1.37 without evidence to 0.007" in PAGE


@pytest.mark.parametrize(("weight", "expected"), [(0.05, 7.8), (0.005, 32.5)])
def test_log_determinant_limits_evidence(
    theory: ModuleType, weight: float, expected: float
) -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    limit = theory.minimize(certain, {**theory.IEDL, losses.fisher_penalty: weight})[0]
    assert limit.tolist() == pytest.approx([expected, 0, 0], abs=0.05)
    assert f"{expected} for" in PAGE


# --- what each term does ---


def pushes(theory: ModuleType, sample: str) -> dict[str, list[float]]:
    row = torch.tensor([theory.SAMPLES[sample]], dtype=torch.float64)
    groups = {"mse": "MSE", "weighted": "FISHER_MSE", "logdet": "PENALTY", "kl": "KL"}
    return {
        key: theory.push(row, getattr(theory, name))[0].tolist() for key, name in groups.items()
    }


def test_terms_with_little_evidence(theory: ModuleType) -> None:
    push = pushes(theory, "little")
    assert min(push["weighted"]) > 0
    assert max(push["weighted"], key=abs) > max(map(abs, push["mse"] + push["kl"]))
    assert max(push["logdet"]) < 0


def test_terms_with_conflicting_evidence(theory: ModuleType) -> None:
    push = pushes(theory, "conflicting")
    assert [theory.signed(v) for v in push["mse"][:2]] == ["+0.049", "−0.046"]
    assert [theory.signed(v) for v in push["weighted"][:2]] == ["+0.0089", "−0.0016"]
    assert "+0.049 and −0.046 for EDL's error, +0.0089 and −0.0016 for I-MSE" in PAGE
    assert -push["weighted"][1] / push["weighted"][0] == pytest.approx(0.2, abs=0.03)
    assert push["kl"][1] < min(push["mse"][1], push["weighted"][1])
    assert push["kl"][2] > 0


def test_terms_with_much_evidence(theory: ModuleType) -> None:
    right, wrong = pushes(theory, "much"), pushes(theory, "much, wrong")
    assert max(map(abs, right["mse"] + right["weighted"])) < 0.01
    assert right["kl"] == pytest.approx([0, 0, 0], abs=1e-12)
    assert right["logdet"][0] + right["weighted"][0] < 0
    assert wrong["weighted"][0] / wrong["mse"][0] == pytest.approx(20, rel=0.1)
    assert -wrong["weighted"][1] < 0.005 < -wrong["kl"][1]
