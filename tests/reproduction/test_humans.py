from pathlib import Path

import numpy as np
import pytest

from dubito.errors import DubitoError
from reproduction.humans import human_counts

pytestmark = pytest.mark.filterwarnings("ignore:.*is not the published file")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    (tmp_path / "cifar-10h").mkdir()
    return tmp_path / "cifar-10h" / "cifar10h-counts.npy"


def test_counts_are_read(file: Path) -> None:
    counts = np.random.default_rng(0).multinomial(50, [0.1] * 10, size=10_000)
    np.save(file, counts)
    np.testing.assert_array_equal(human_counts().numpy(), counts)


@pytest.mark.parametrize("shape", [(10, 10), (10_000, 9)])
def test_other_counts(file: Path, shape: tuple[int, ...]) -> None:
    np.save(file, np.ones(shape, int))
    with pytest.raises(DubitoError, match=r"truncated or another file.*delete it to download it"):
        human_counts()


def test_damaged_file(file: Path) -> None:
    file.write_bytes(b"no array")
    with pytest.raises(DubitoError, match=r"truncated or another file.*delete it to download it"):
        human_counts()
