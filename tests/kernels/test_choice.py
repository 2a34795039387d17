"""What the kernels are not for, and how they are chosen."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from dubito import _eager, kernels, losses
from dubito.kernels import function
from tests.kernels.samples import alphas, is_fused, labels

# --- what is left to plain torch -----------------------------------------------------------------


def with_weight(alpha: Tensor) -> Tensor:
    return losses.iedl(
        alpha, labels(8, classes=4), fisher_weight=torch.ones((), requires_grad=True)
    )


LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": lambda a: losses.iedl(a.double(), labels(8, classes=4)),
    "below one": lambda a: losses.iedl(a / a.max(), labels(8, classes=4)),
    "another term": lambda a: losses.uce(a, labels(8, classes=4)),
    "a learnt weight": with_weight,
    "a weight a sample": lambda a: losses.iedl(
        a, labels(8, classes=4), kl_weight=torch.ones(8), reduction="none"
    ),
    "a share above one": lambda a: losses.iedl(
        a, torch.tensor([1.00005, 0, 0, 0]).expand(8, 4), kl_weight=0.0
    ),
}


@pytest.mark.parametrize("call", LEFT.values(), ids=LEFT)
def test_left_to_plain_torch(call: Callable[[Tensor], Tensor]) -> None:
    value = call(alphas(8, 4).requires_grad_())
    assert not is_fused(value)
    assert value.isfinite().all()


@pytest.mark.parametrize(
    ("alpha", "target", "options", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 1]), {}, "alpha must be > 0"),
        (torch.tensor([[1.0, math.nan]]), torch.tensor([0]), {}, "alpha must be > 0 and finite"),
        (torch.tensor([[1.0, math.inf]]), torch.tensor([0]), {}, "alpha must be > 0 and finite"),
        (torch.ones(2, 3), torch.tensor([0, 3]), {}, r"labels from 0 to 2.*but has \[3\]"),
        (torch.ones(2, 3), torch.tensor([0, -1]), {}, r"labels from 0 to 2.*but has \[-1\]"),
        (torch.ones(2, 3), torch.full((2, 3), 0.4), {}, "sum to 1 over the classes"),
        (torch.ones(2, 3), torch.full((2, 3), math.nan), {}, "sum to 1 over the classes"),
        (torch.ones(0, 3), torch.zeros(0, dtype=torch.long), {}, "the batch is empty"),
        (torch.ones(2, 3), torch.tensor([0, 1]), {"class_weight": -torch.ones(3)}, "must be >= 0"),
        (torch.ones(2, 3), torch.tensor([0, 1]), {"class_weight": torch.ones(2)}, r"\(3,\)"),
    ],
)
def test_errors_are_those_of_plain_torch(
    alpha: Tensor,
    target: Tensor,
    options: losses.LossOptions,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = []
    for mode in ("auto", "off"):
        monkeypatch.setenv("DUBITO_KERNELS", mode)
        with pytest.raises(ValueError, match=message) as caught:
            losses.iedl(alpha, target, **options)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_functional_transforms() -> None:
    alpha, target = alphas(6, 4), labels(6, classes=4)
    each = torch.func.vmap(torch.func.grad(losses.iedl))(alpha, target)
    leaf = alpha.clone().requires_grad_()
    (together,) = torch.autograd.grad(losses.iedl(leaf, target, reduction="sum"), leaf)
    torch.testing.assert_close(each, together)
    over_targets = torch.func.vmap(lambda t: losses.iedl(alpha, t))(target.expand(3, 6))
    torch.testing.assert_close(over_targets, losses.iedl(alpha, target).expand(3))


def test_modes_that_look_at_every_operation() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.autograd.forward_ad import dual_level
    from torch.utils.flop_counter import FlopCounterMode

    assert _eager.plainly()
    for mode in (FakeTensorMode(), FlopCounterMode(display=False), dual_level()):
        with mode:
            assert not _eager.plainly()
    assert _eager.plainly()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    # the compiler turns this off for the whole process, and other tests are about it
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    alpha, target = alphas(6, 4).requires_grad_(), labels(6, classes=4)
    torch._dynamo.reset()
    # this backend leaves the derivative to the operators that were traced, and so shows which
    step = torch.compile(losses.iedl, backend="eager", fullgraph=True)
    compiled = step(alpha, target, scale="per_class")
    assert not is_fused(compiled)
    torch.testing.assert_close(compiled, losses.iedl(alpha, target, scale="per_class"))


# --- the choice ----------------------------------------------------------------------------------


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, target = alphas(6, 4).requires_grad_(), labels(6, classes=4)
    monkeypatch.setenv("DUBITO_KERNELS", "off")
    assert not is_fused(losses.iedl(alpha, target))
    for on in ("auto", ""):
        monkeypatch.setenv("DUBITO_KERNELS", on)
        assert is_fused(losses.iedl(alpha, target))
    monkeypatch.setenv("DUBITO_KERNELS", "of")
    with pytest.raises(ValueError, match=r"unknown DUBITO_KERNELS 'of'; known: 'auto', 'off'"):
        losses.iedl(alpha, target)


@pytest.fixture
def fresh() -> Iterator[None]:
    """No kernel has been looked for yet, and none of this test's is kept."""
    kernels._cpu.cache_clear()
    yield
    kernels._cpu.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_numba_plain_torch_is_used_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, target = alphas(6, 4).requires_grad_(), labels(6, classes=4)
    for name in [name for name in sys.modules if name.startswith("dubito.kernels.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not is_fused(losses.iedl(alpha, target))


@pytest.mark.usefixtures("fresh")
def test_a_numba_that_fails_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(cache: bool) -> None:
        raise OSError("no LLVM today")

    monkeypatch.setattr(function, "compiled", compiled)
    alpha, target = alphas(6, 4).requires_grad_(), labels(6, classes=4)
    with pytest.warns(RuntimeWarning, match="plain torch is used.*OSError: no LLVM today"):
        assert not is_fused(losses.iedl(alpha, target))
    assert not is_fused(losses.iedl(alpha, target))  # a second warning would be an error


@pytest.mark.usefixtures("fresh")
def test_a_cache_that_fails_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    working, asked = kernels._cpu().args[0], []  # type: ignore[union-attr]
    kernels._cpu.cache_clear()

    def compiled(cache: bool) -> Any:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'rows': no locator available")
        return working

    monkeypatch.setattr(function, "compiled", compiled)
    assert is_fused(losses.iedl(alphas(6, 4).requires_grad_(), labels(6, classes=4)))
    assert asked == [True, False]


def test_numba_is_imported_when_a_loss_is_taken(source_env: dict[str, str]) -> None:
    code = (
        "import sys, torch, dubito\n"
        "assert 'numba' not in sys.modules\n"
        "dubito.Prediction.from_alpha(torch.ones(2, 3)).vacuity\n"
        "dubito.losses.iedl(torch.ones(2, 3).double(), torch.tensor([0, 1]))\n"
        "dubito.losses.uce(torch.ones(2, 3), torch.tensor([0, 1]))\n"
        "assert 'numba' not in sys.modules\n"
        "dubito.losses.iedl(torch.ones(2, 3), torch.tensor([0, 1]))\n"
        "assert 'numba' in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**source_env, "DUBITO_KERNELS": "auto"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
