"""A student of five networks, and the densities that it learns by."""

from pathlib import Path

import mpmath as mp
import pytest
import torch
from scipy.stats import spearmanr

from dubito import data
from dubito.config import RunConfig
from dubito.data import Source
from dubito.distributions import Categorical, Dirichlet, FlexibleDirichlet
from dubito.methods import METHODS, MethodLoss
from dubito.model import Model
from dubito.pipeline import Pipeline
from dubito.training import TrainConfig, Trainer

FAMILIES = pytest.mark.parametrize("family", ["dirichlet", "flexible_dirichlet"])


def fit(method: object, source: Source, seed: int = 7) -> Model:
    config = RunConfig.merge(
        {"method": method, "backbone": "mlp"},
        {"epochs": 15, "batch_size": 16, "lr": 2e-3, "data.calibration": 0},
    )
    pipeline = Pipeline(config)
    prepared = pipeline.prepare(source)
    model = pipeline.build(prepared, seed)
    pipeline.train([model], prepared, seeds=[seed])
    return model


@pytest.fixture(scope="module")
def source() -> Source:
    return data.open("digits", "train").subset(range(400))


@pytest.fixture(scope="module")
def teachers(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    for seed in range(5):
        fit("softmax", source, seed).save(folder / f"seed-{seed}")
    return folder


@FAMILIES
def test_student_is_closer_to_the_ensemble(
    family: str, source: Source, teachers: Path, tmp_path: Path
) -> None:
    test = data.open("digits", "test")
    five = [Model.load(folder).predict(test) for folder in teachers.iterdir()]
    logs = torch.stack([each.distribution.log_probs for each in five], 1)
    ensemble = Categorical(logs).mixture()

    def apart(model: Model) -> tuple[float, float]:
        dist = model.predict(test).distribution
        nll = -(ensemble.probs * dist.log_probs).sum(-1).mean().item()
        return nll, spearmanr(ensemble.epistemic, dist.epistemic).statistic

    method = {"name": "distill", "family": family}
    student = fit({**method, "teachers": [str(teachers)]}, source)
    rival = fit("edl" if family == "dirichlet" else "fedl", source)
    assert apart(student)[0] < apart(rival)[0]
    assert apart(student)[1] > apart(rival)[1]
    student.save(tmp_path / "student")
    moved = teachers.rename(teachers.with_name("moved"))
    try:
        again = Model.load(tmp_path / "student").predict(test).distribution
        assert torch.equal(again.probs, student.predict(test).distribution.probs)
        with pytest.raises(ValueError, match="teachers"):
            fit({**method, "teachers": [str(teachers)]}, source)
    finally:
        moved.rename(teachers)


def test_teacher_of_other_data_is_an_error(source: Source, teachers: Path) -> None:
    method = {"name": "distill", "teachers": [str(teachers)]}
    with pytest.raises(ValueError, match=r"seed-0 has other classes than its student"):
        fit(method, source.subset([i for i in range(400) if source.target[i] != "0"]))


def test_class_weights_are_those_of_the_teachers(source: Source, teachers: Path) -> None:
    teacher = Model.load(teachers / "seed-0")
    samples = source.load(), teacher.task.encode(source.target)
    member = {"name": "distill", "teachers": [str(teachers)]}
    method = {"name": "ensemble", "member": member, "size": 2}

    def weights(class_weight: torch.Tensor | None) -> torch.Tensor:
        model = Model.build(method, teacher.task, teacher.preprocessing, "mlp")
        config = TrainConfig(epochs=1, keep="last")
        Trainer(config).fit(model, samples, class_weight=class_weight)
        return torch.nn.utils.parameters_to_vector(model.network.parameters())

    assert weights(torch.arange(1.0, 11.0)).equal(weights(None))


def test_labels_that_teachers_replace_are_not_smoothed(source: Source, teachers: Path) -> None:
    teacher = Model.load(teachers / "seed-0")
    samples = source.load(), teacher.task.encode(source.target)
    method = {"name": "distill", "teachers": [str(teachers)]}
    model = Model.build(method, teacher.task, teacher.preprocessing, "mlp")
    with pytest.raises(ValueError, match="label_smoothing cannot change what teachers predict"):
        Trainer(TrainConfig(label_smoothing=0.1, keep="last")).fit(model, samples)


def test_loops_without_teachers_are_refused() -> None:
    with pytest.raises(ValueError, match="learns from teachers"):
        MethodLoss(METHODS.build("distill", teachers=["runs/five"]))


@pytest.mark.parametrize("scale", [1e-4, 1e-1, 1e1, 1e4, 1e7])
def test_densities_equal_mpmath(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    alpha = scale * torch.rand(4, 3, generator=generator).add(0.1)
    logs = (3 * torch.randn(4, 3, generator=generator)).log_softmax(-1)
    p, tau = torch.rand(4, 3, generator=generator).softmax(-1), torch.tensor([0.1, 1, 9, 99])

    def exact(a: list[mp.mpf], row: int) -> mp.mpf:
        terms = [
            (x - 1) * mp.mpf(y) - mp.loggamma(x) for x, y in zip(a, logs[row].tolist(), strict=True)
        ]
        return mp.loggamma(sum(a)) + sum(terms)

    plain = Dirichlet(alpha, prior=0).log_density(logs)
    flexible = FlexibleDirichlet(alpha, p, tau).log_density(logs)
    with mp.workdps(40):
        for row in range(4):
            a = [mp.mpf(x) for x in alpha[row].tolist()]
            assert plain[row].item() == pytest.approx(float(exact(a, row)), rel=1e-6)
            parts = []
            for k, share in enumerate(p[row].tolist()):
                shifted = [x + (tau[row].item() if i == k else 0) for i, x in enumerate(a)]
                parts.append(share * mp.exp(exact(shifted, row)))
            total = mp.log(sum(parts))
            assert flexible[row].item() == pytest.approx(float(total), rel=1e-6)
