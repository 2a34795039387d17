"""The Triton kernels under autograd: compiled once per configuration, launched from cached plans.

In eager mode the loss is an `autograd.Function` whose forward pass computes the gradient too; its
backward pass multiplies that in place. A plan keeps what a launch needs, so that a call costs one
lookup, three allocations and a launch; `Kernel` bypasses Triton's argument binder. Under
torch.compile the same kernels are the operator `dubito::weighted_sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from dubito.kernels import triton_loss, triton_rows
from dubito.kernels.spec import LossSpec
from dubito.kernels.triton_math import COMPILED
from dubito.kernels.triton_plan import (
    ALONE,
    Layout,
    below_one,
    blocks,
    columns,
    constants,
    groups,
    is_supported,
    layout,
    programs_on,
)
from dubito.kernels.triton_rows import Config, Sizes, Tensors

_TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
}
#: types of values and soft targets
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
#: types of labels
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SIZES = Sizes("i32", "i32", "i32", "i32", "i32", "i64", "i64", "i32", "i32", "i64", "i64")
_MOST_ROWS = 1 << 30  # rows are counted in 32 bits
_WEIGHERS = 256  # programs that add up the weights of rows
_WEIGHED = 4096  # rows that they take at once
_MANY_ROWS = 1 << 17  # rows from which their weights are added up before the gradient


# --- launching -----------------------------------------------------------------------------------


class Kernel:
    """A kernel compiled for one configuration and device.

    Integers are not specialized: one binary serves all batch sizes. Pointers are passed as numbers.
    """

    def __init__(
        self,
        function: Any,
        options: tuple[Any, ...],
        types: tuple[str, ...],
        aligned: tuple[int, ...],
        warps: int,
        device: torch.device,
    ) -> None:
        self.function, self.options, self.device = function, options, device
        self.run: Callable[..., None] | None = None
        self.resident = 2  # programs at once on the whole device
        if COMPILED.value:
            names = function.arg_names
            pointers = Tensors(*(f"*{name}" for name in types))
            signature = dict(zip(names, (pointers, _SIZES), strict=False))
            signature |= dict.fromkeys(names[2:], "constexpr")
            source = triton.compiler.ASTSource(
                function,
                signature,
                {(2 + i,): option for i, option in enumerate(options)},
                {(0, i): [["tt.divisibility", 16]] for i in aligned},
            )
            with on(device):
                target = triton.runtime.driver.active.get_current_target()
                made = triton.compile(source, target, {"num_warps": warps, "num_stages": 1})
                self.run = made.run  # loads the binary onto the current device
                self.handle, self.metadata = made.function, made.packed_metadata
                self.resident = _resident(made.n_regs, warps, device)
            self.rest = (None,) * len(options)

    def __call__(self, programs: int, tensors: tuple[Any, ...], sizes: Sizes) -> None:
        """Launch on the current stream."""
        if self.run is None:  # interpreted
            unused = torch.empty(1, device=self.device)
            given = Tensors(*(unused if t is None else t for t in tensors))
            self.function[(programs,)](given, sizes, *self.options)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        pointers = tuple([0 if t is None else t.data_ptr() for t in tensors])
        self.run(
            programs, 1, 1, stream, self.handle, self.metadata, None, None, None,
            pointers, sizes, *self.rest,
        )  # fmt: skip

    def on_device(self, programs: int, tensors: tuple[Any, ...], sizes: Sizes) -> None:
        """The same, with the kernel's device as the current one."""
        if self.run is None or self.device.index == torch._C._cuda_getDevice():
            self(programs, tensors, sizes)
        else:
            with torch.cuda.device(self.device):
                self(programs, tensors, sizes)


def _resident(registers: int, warps: int, device: torch.device) -> int:
    """Programs that the registers of a device have room for."""
    properties = torch.cuda.get_device_properties(device)
    each = -(-registers // 8) * 8 * 32 * warps
    registers_each: int = properties.regs_per_multiprocessor  # type: ignore[attr-defined]
    return min(registers_each // each, 32) * properties.multi_processor_count


def type_name(dtype: torch.dtype) -> str:
    """The name of a type in Triton."""
    return _TYPES[dtype]


def on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one, on which Triton launches."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


@cache
def _kernel(
    function: Any,
    options: tuple[Any, ...],
    types: tuple[str, ...],
    aligned: tuple[int, ...],
    warps: int,
    device: torch.device,
) -> Kernel:
    return Kernel(function, options, types, aligned, warps, device)


# --- plans ---------------------------------------------------------------------------------------


class Result(NamedTuple):
    """What the kernels compute."""

    loss: Tensor
    sums: Tensor
    gradient: Tensor | None
    scale: Tensor | None  # What the gradient still is to be multiplied by.


class Plan:
    """How to compute a loss for tensors of given shapes, strides and types."""

    def __init__(
        self,
        spec: LossSpec,
        values: Tensor,
        target: Tensor,
        weights: Tensor,
        class_weight: Tensor | None,
        wanted: bool,
        unscaled: bool = False,
    ) -> None:
        self.spec, self.device, self.wanted = spec, values.device, wanted
        classes, soft = int(values.shape[-1]), target.is_floating_point()
        self.count = values.numel() // classes
        where = layout(values)
        self.copied = where is None
        place = where or Layout(1, 1, classes, 0, True)
        self.like = wanted and _empty_gradient(values.to("meta")).stride() == values.stride()
        cut = blocks(classes, place.class_stride, self.count <= ALONE and not soft)
        aim = layout(target) if soft else None
        self.target_copied = (
            aim is None or (cut.across and aim.class_stride != 1)
            if soft
            else not target.is_contiguous()
        )
        lies = Layout(1, 1, classes, 0, True) if self.target_copied or aim is None else aim
        self.programs = -(-self.count // cut.R)
        self.weighers = min(_WEIGHERS, -(-self.count // _WEIGHED))
        self.shape = values.shape[:-1] if spec.reduction == "none" else torch.Size()
        single, split = self.programs == 1, cut.BLOCKS > 1 and wanted and not soft
        self.factor = _factor(spec, values, soft, self.count, single or split, unscaled)
        many = self.factor == "total" and spec.reduction == "mean" and not (single or split)
        self.weighed = many and wanted
        weighted = class_weight is not None
        contiguous = place.flat and place.class_stride == 1 and place.row_stride == classes
        self.config = Config(
            K=classes, C=cut.C, BLOCKS=cut.BLOCKS, TAIL=cut.TAIL, LAST=cut.LAST, R=cut.R,
            across=cut.across, flat=place.flat,
            packed=contiguous, dense=not self.like or contiguous,
            whole=self.count >= cut.R, single=single, factor=self.factor,
            width=len(spec.forms) + 1, columns=columns(spec), groups=groups(spec),
            constants=constants(spec, classes), evidence=spec.evidence, below_one=below_one(spec),
            soft=soft, class_weighted=weighted, ignored=spec.ignore_index,
            reduction=spec.reduction, gradient=wanted, split=split,
        )  # fmt: skip
        self.strides = (*place[:4], *lies[:4])
        self.types = tuple(
            _TYPES[dtype]
            for dtype in (
                values.dtype, target.dtype,
                torch.float32 if class_weight is None else class_weight.dtype, weights.dtype,
                torch.float32, torch.float32, values.dtype, *(torch.float32,) * 5,
            )
        )  # fmt: skip
        self.warps = cut.warps
        self.aligned = (0, 6) if self.copied or values.data_ptr() % 16 == 0 else (6,)
        fresh = self.target_copied or target.data_ptr() % 16 == 0
        self.target_aligned = (1,) if fresh else ()
        self._main: Kernel | None = None

    def _build(self) -> Kernel:
        """Compile the kernels, or take them from the cache: when the plan first runs."""
        small = self.config._replace(
            C=1, BLOCKS=1, TAIL=0, LAST=0, R=1, across=False, flat=True, packed=False, dense=True,
            whole=False, gradient=False, evidence=None, soft=self.config.soft,
        )  # fmt: skip
        rest = (self.types, self.target_aligned, 8, self.device)
        if self.config.split:
            given = (self.config._replace(whole=False), _WEIGHERS)
            self._gradient = _kernel(
                triton_loss.gradient_rows, given, self.types, self.aligned, self.warps, self.device
            )
        if self.weighed:
            self._weigh = _kernel(triton_rows.weigh, (small, _WEIGHED), *rest)
        if self.programs > 1:
            self._finish = _kernel(triton_rows.finish, (small, 4096), *rest)
        self._main = _kernel(
            triton_loss.loss_rows, (self.config, _WEIGHERS),
            self.types, self.aligned, self.warps, self.device,
        )  # fmt: skip
        # as many programs as run at once: more would leave multiprocessors idle at the end
        self.programs = min(self.programs, self._main.resident)
        self.sizes = Sizes(self.count, self.programs, self.weighers, *self.strides)
        return self._main

    def run(  # noqa: C901 - one allocation per output
        self, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
    ) -> Result:
        """Compute the loss, the sums of the terms, and the gradient if it is wanted."""
        main = self._main or self._build()
        if self.copied:
            values = values.contiguous()
        if self.target_copied:
            target = target.contiguous()
        sums = torch.empty_like(weights, dtype=torch.float32)
        loss = sums.new_empty(self.shape)
        gradient = scale = partial = totals = kept = None
        if self.wanted:
            gradient = torch.empty_like(values) if self.like else values.new_empty(values.shape)
        if self.factor != "total" or self.config.split:
            scale = sums.new_empty(())
        if self.config.split:
            kept = sums.new_empty((10, self.count))
        if self.programs > 1:
            partial = sums.new_empty((self.programs, self.config.width))
        if self.weighed:
            totals = sums.new_empty((self.weighers,))
        tensors = (
            values, target, class_weight, weights, loss, sums, gradient, scale, partial, totals,
            kept, None,
        )  # fmt: skip
        if self.weighed:
            self._weigh.on_device(self.weighers, tensors, self.sizes)
        main.on_device(self.programs, tensors, self.sizes)
        if self.programs > 1:
            self._finish.on_device(1, tensors, self.sizes)
        if self.config.split:
            self._gradient.on_device(-(-self.count // self.config.R), tensors, self.sizes)
        return Result(loss, sums, gradient, None if self.factor == "total" else scale)


def _factor(
    spec: LossSpec, values: Tensor, soft: bool, count: int, known: bool, unscaled: bool
) -> str:
    """What the gradient contains of the mean's factor; `known` if that is known in time.

    Half precision cannot represent the gradient of a mean before a loss scale multiplies it. In a
    batch that is not large, the number of rows takes the place of their weights: if all rows count
    alike this is right, and else the backward pass corrects it.
    """
    if unscaled or (spec.reduction == "mean" and values.dtype == torch.float16):
        return "none"
    if spec.reduction == "mean" and not known and (soft or count < _MANY_ROWS):
        return "rows"
    return "total"


def _empty_gradient(values: Tensor) -> Tensor:
    """Empty, with the strides of the values where these are dense, and else contiguous."""
    empty = torch.empty_like(values)
    if empty.stride() == values.stride() and layout(values) is not None:
        return empty
    return values.new_empty(values.shape)


def applies(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> bool:
    """Whether the kernels are for these tensors; their values do not matter."""
    soft = target.is_floating_point()
    if not is_supported(spec, soft) or values.dtype not in FLOATS or values.ndim == 0:
        return False
    shape, device = values.shape, values.device
    if shape[-1] < 2 or not 0 < values.numel() // shape[-1] < _MOST_ROWS:
        return False
    if target.dtype not in (FLOATS if soft else INTEGERS) or target.requires_grad:
        return False
    if target.shape != (shape if soft else shape[:-1]) or target.device != device:
        return False
    if weights.shape != (len(spec.forms),) or weights.device != device or weights.requires_grad:
        return False
    if weights.dtype not in FLOATS or not weights.is_contiguous():
        return False
    if class_weight is None:
        return True
    known = class_weight.device == device and class_weight.shape == shape[-1:]
    flat = class_weight.is_contiguous() and class_weight.dtype in (*FLOATS, torch.float64)
    return known and flat and not class_weight.requires_grad


#: (specification, shapes, strides, types) -> plan, or None where the kernels are not for them
_plans: dict[Any, Plan | None] = {}


def _described(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _plan(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None,
    wanted: bool,
) -> Plan | None:  # fmt: skip
    # everything that `applies` and `Plan` look at: a plan is never used for other tensors
    key = (
        spec, wanted, values.shape, values.stride(), values.dtype, values.device,
        values.data_ptr() % 16, target.data_ptr() % 16,
        target.shape, target.stride(), target.dtype, target.device, target.requires_grad,
        weights.shape, weights.stride(), weights.dtype, weights.device, weights.requires_grad,
        class_weight is None or _described(class_weight),
    )  # fmt: skip
    try:
        return _plans[key]
    except KeyError:
        made = None
        if applies(spec, values, target, weights, class_weight):
            made = Plan(spec, values, target, weights, class_weight, wanted)
        if len(_plans) > 4096:  # batch sizes that come once
            _plans.clear()
        _plans[key] = made
        return made


# --- eager ---------------------------------------------------------------------------------------


def weighted_sums(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The weighted sum of a loss's terms by a kernel, or None where none applies."""
    wanted = values.requires_grad and torch.is_grad_enabled()
    plan = _plan(spec, values, target, weights, class_weight, wanted)
    if plan is None:
        return None
    if wanted:
        return _Loss.apply(values, target, weights, class_weight, plan)  # type: ignore[no-any-return, no-untyped-call]
    return plan.run(values, target, weights, class_weight)[:2]


class _Loss(torch.autograd.Function):
    """The kernel's loss with the kernel's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        target: Tensor,
        weights: Tensor,
        class_weight: Tensor | None,
        plan: Plan,
    ) -> tuple[Tensor, Tensor]:
        loss, sums, ctx.gradient, ctx.scale = plan.run(values, target, weights, class_weight)
        ctx.save_for_backward(values, target, weights, class_weight)
        ctx.plan = plan
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        return loss, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None, None
        plan: Plan = ctx.plan
        if torch.is_grad_enabled():
            values, target, weights, class_weight = ctx.saved_tensors
            slopes = second(plan.spec, values, target, weights, class_weight, grad)
            return slopes, None, None, None, None
        # not a saved tensor: whoever takes the gradient first may change it in place
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # the graph was retained, and this is not the first time
            again = plan.run(*ctx.saved_tensors)
            gradient, ctx.scale = again.gradient, again.scale
        assert gradient is not None
        return _multiply(gradient, grad, ctx.scale), None, None, None, None


def _multiply(gradient: Tensor, grad: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply a gradient in place by that of the loss, a scalar or one per row."""
    if grad.ndim:
        return gradient.mul_(grad.unsqueeze(-1))
    count = gradient.numel()
    kernel = _rescale(gradient.dtype, grad.dtype, scale is not None, gradient.device)
    sizes = Sizes(0, 0, 0, 0, 0, count, 0, 0, 0, 0, 0)
    programs = min(programs_on(gradient.device), -(-count // 2048))
    kernel.on_device(programs, (*(None,) * 6, gradient, scale, None, None, None, grad), sizes)
    return gradient


@cache
def _rescale(
    gradient: torch.dtype, grad: torch.dtype, scaled: bool, device: torch.device
) -> Kernel:
    types = (*("fp32",) * 6, _TYPES[gradient], *("fp32",) * 4, _TYPES[grad])
    return Kernel(triton_rows.rescale, (scaled, 2048), types, (6,), 4, device)


def second(
    spec: LossSpec,
    values: Tensor,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None,
    grad: Tensor,
) -> Tensor:
    """Compute a gradient that can be differentiated again: through the torch forms."""
    from dubito.distributions._closed_forms import weighted_sums_reference

    loss, _ = weighted_sums_reference(spec, values, target, weights, class_weight)
    (slopes,) = torch.autograd.grad(loss, values, grad, create_graph=True)
    return slopes


# --- torch.compile -------------------------------------------------------------------------------


@torch.library.custom_op(
    "dubito::weighted_sums",
    mutates_args=(),
    schema=(
        "(Tensor values, Tensor target, Tensor weights, Tensor? class_weight, str forms,"
        " str evidence, float prior, float beta, bool per_class, int ignore_index, str reduction,"
        " bool wanted) -> (Tensor, Tensor, Tensor, Tensor)"
    ),
)
def operator(
    values: Tensor,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None,
    forms: str,
    evidence: str,
    prior: float,
    beta: float,
    per_class: bool,
    ignore_index: int,
    reduction: str,
    wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, the sums of its terms, the gradient of the sum over rows, and its factor.

    `forms` are names joined by commas; `evidence` is empty if the values are alpha.
    """
    names = tuple(forms.split(","))
    spec = LossSpec(names, evidence or None, prior, beta, per_class, ignore_index, reduction)
    plan = Plan(spec, values, target, weights, class_weight, wanted, unscaled=True)
    loss, sums, gradient, scale = plan.run(values, target, weights, class_weight)
    assert scale is not None
    return loss, sums, values.new_empty(0) if gradient is None else gradient, scale


@operator.register_fake
def _(
    values: Any, target: Any, weights: Any, class_weight: Any, forms: Any, evidence: Any,
    prior: Any, beta: Any, per_class: Any, ignore_index: Any, reduction: Any, wanted: Any,
) -> Any:  # fmt: skip
    shape = values.shape[:-1] if reduction == "none" else ()
    loss = values.new_empty(shape, dtype=torch.float32)
    sums = values.new_empty(weights.shape, dtype=torch.float32)
    gradient = _empty_gradient(values) if wanted else values.new_empty(0)
    return loss, sums, gradient, values.new_empty((), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 12
    gradient, scale = ctx.saved_tensors
    factor = grad.unsqueeze(-1) if grad.ndim else grad * scale
    return (gradient.float() * factor).to(gradient.dtype), *(None,) * 11


operator.register_autograd(_backward, setup_context=_save)


def compiled_weighted_sums(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The same while torch.compile traces."""
    if not applies(spec, values, target, weights, class_weight):
        return None
    wanted = values.requires_grad and torch.is_grad_enabled()
    loss, sums, _, _ = torch.ops.dubito.weighted_sums(
        values, target, weights, class_weight, ",".join(spec.forms), spec.evidence or "",
        spec.prior, spec.beta, spec.per_class, spec.ignore_index, spec.reduction, wanted,
    )  # fmt: skip
    return loss, sums
