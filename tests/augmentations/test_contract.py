"""What every registered augmentation keeps."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dubito.augmentations import AUGMENTATIONS, Augmentation
from dubito.errors import DubitoError

PIXELS = torch.randint(256, (6, 3, 20, 24), dtype=torch.uint8, generator=torch.manual_seed(0))


@pytest.fixture(params=sorted(AUGMENTATIONS))
def augmentation(request: pytest.FixtureRequest) -> Augmentation:
    return AUGMENTATIONS.build(request.param)


def drawn(augmentation: Augmentation, count: int = 6, seed: int = 0) -> Tensor:
    return augmentation.draw(count, torch.Generator().manual_seed(seed))


def test_equal_seeds_give_equal_results(augmentation):
    changes = drawn(augmentation)
    assert (changes.shape, changes.dtype) == ((6, augmentation.columns), torch.float32)
    assert torch.equal(changes, drawn(augmentation))
    assert not torch.equal(changes, drawn(augmentation, seed=1))
    before = torch.get_rng_state()
    first, second = (augmentation.apply(PIXELS, changes) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, PIXELS)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_shape_type_and_range_stay(augmentation, channels, dtype):
    images = PIXELS[:, :1].repeat(1, channels, 1, 1).to(dtype)
    before = images.clone()
    changed = augmentation.apply(images, drawn(augmentation))
    assert (changed.shape, changed.dtype) == (images.shape, dtype)
    assert changed.min() >= 0
    assert changed.max() <= 255
    assert torch.equal(images, before)


def test_images_do_not_depend_on_their_batch(augmentation):
    changes = drawn(augmentation)
    alone = torch.cat([augmentation.apply(PIXELS[i, None], changes[i, None]) for i in range(6)])
    difference = alone.int() - augmentation.apply(PIXELS, changes).int()
    assert difference.abs().max() <= 1


class Recorder(TorchDispatchMode):
    """Record operations and the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations.append((str(func), tuple(getattr(result, "shape", ()))))
        return result


def test_operations_do_not_depend_on_values(augmentation):
    # Otherwise a CUDA graph could not be captured.
    runs = []
    for seed in (1, 2):
        with Recorder() as recorder:
            augmentation.apply(PIXELS / 255, drawn(augmentation, seed=seed))
        runs.append(recorder.operations)
    assert runs[0] == runs[1]
    read = ("scalar_dense", "nonzero", "lift_fresh", "_to_copy.default_cpu")
    assert not [name for name, _ in runs[0] if any(part in name for part in read)]


def test_compiles_without_breaks(augmentation):
    fast = torch.compile(augmentation.apply, dynamic=False, backend="aot_eager", fullgraph=True)
    changes = drawn(augmentation)
    difference = fast(PIXELS, changes).int() - augmentation.apply(PIXELS, changes).int()
    assert difference.abs().max() <= 1


def test_other_shapes_are_refused(augmentation):
    columns = augmentation.columns
    message = rf"\(N, C, H, W\).*\(N, {columns}\), not \(2, 64\) and \(2, 3\)"
    with pytest.raises(DubitoError, match=message):
        augmentation.apply(torch.zeros(2, 64), torch.zeros(2, 3))
