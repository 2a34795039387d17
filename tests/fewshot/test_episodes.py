"""Episodes."""

import hashlib

import numpy as np
import pytest

from dubito.errors import DubitoError
from dubito.fewshot._episodes import Sampler, Setting
from tests.fewshot.samples import draw_features


@pytest.mark.parametrize(
    ("ways", "shots", "apart", "expected"),
    [
        (4, 1, True, "c8b07538890dee48"),
        (4, 5, True, "167d7d4a0bfb4365"),
        (3, 2, False, "5ca3b5cb8c7bc788"),
    ],
)
def test_seed_keeps_its_episodes(ways, shots, apart, expected):
    """The hashes are those of the first edition."""
    ood = draw_features(5, 60, 64, 1) if apart else None
    drawn = Sampler(draw_features(), ood, Setting(ways, shots, seed=7)).draw(3, 200)
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in drawn))
    assert digest.hexdigest()[:16] == expected


def test_samples_of_an_episode_are_disjoint():
    features = draw_features()
    drawn = Sampler(features, None, Setting(3, 4)).draw(0, 300)
    for support, query, ood in zip(*drawn, strict=True):
        everything = np.concatenate([support, query, ood])
        assert len(set(everything.tolist())) == len(everything)
        inside = set(features.labels[support].tolist())
        assert inside == set(features.labels[query].tolist())
        assert not inside & set(features.labels[ood].tolist())


def test_more_shots_contain_fewer():
    few, many = (Sampler(draw_features(), None, Setting(3, k, 15)).draw(0, 50) for k in (2, 5))
    assert (many.support.reshape(50, 3, 5)[:, :, :2] == few.support.reshape(50, 3, 2)).all()


def test_draws_are_uniform():
    drawn = Sampler(draw_features(), None, Setting(4, 1)).draw(0, 20_000)
    counts = np.bincount(draw_features().labels[drawn.support].flatten().numpy())
    assert abs(counts / counts.mean() - 1).max() < 0.03


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (Setting(9, 1), "ways=9, but sample-0 has 8 classes"),
        (Setting(3, 30), "need 60 samples of each class, but in sample-0 class 'class-0' has 40"),
        (Setting(8, 1), "need 120 out-of-distribution queries, but sample-0 has 0 classes"),
    ],
)
def test_impossible_episodes_are_errors(setting, message):
    with pytest.raises(DubitoError, match=message):
        Sampler(draw_features(), None, setting)


def test_all_samples_of_a_class_can_be_used():
    drawn = Sampler(draw_features(), None, Setting(2, 25, 15)).draw(0, 1)
    assert len({*drawn.support[0].tolist(), *drawn.query[0].tolist()}) == 80


def test_settings_and_features_that_do_not_fit_are_errors():
    with pytest.raises(DubitoError, match="ways must be at least 2, not 1"):
        Setting(ways=1)
    with pytest.raises(DubitoError, match="sample-0 has 64 features and sample-1 32"):
        Sampler(draw_features(), draw_features(size=32, seed=1), Setting())
