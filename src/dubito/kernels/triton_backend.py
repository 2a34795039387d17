"""The Triton kernels under autograd: compiled once per configuration, launched from cached plans.

In eager mode the loss is an `autograd.Function` whose forward pass computes the gradient too; its
backward pass multiplies that in place. A plan stores the arguments of a launch, so that a call
costs one lookup, three allocations and a launch; `Kernel` bypasses Triton's argument binder. Under
torch.compile the same kernels are the operator `dubito::weighted_sums`.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton._utils import canonicalize_dtype
from triton.compiler import ASTSource

from dubito.kernels import Incompatible, triton_loss, triton_rows
from dubito.kernels.triton_math import COMPILED
from dubito.kernels.triton_plan import ALONE, blocks, configure, is_supported, layout
from dubito.kernels.triton_rows import RESCALED, WEIGHERS, Config, Sizes, Tensors
from dubito.numerics.spec import LossSpec
from dubito.numerics.torch_backend import reference_loss

__all__: list[str] = []

if torch.version.cuda is not None:  # other builds of torch have no such names
    from torch._C import _cuda_getCurrentRawStream, _cuda_getDevice

#: types of values and soft targets
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_SIZES = Sizes("i32", "i32", "i32", "i32", "i64", "i64", "i32", "i32", "i64", "i64")
#: rows are counted in 32 bits
MOST_ROWS = 1 << 30
_MANY_BLOCKS = 1 << 17  # blocks of rows from which the weights are added up before the gradient

_Tensors = tuple[Tensor | None, ...]


# --- launching -----------------------------------------------------------------------------------


class Kernel:
    """A kernel compiled for one configuration and device.

    Integers are not specialized: one binary serves all batch sizes. Pointers are passed as numbers.
    """

    def __init__(
        self,
        function: Any,
        option: Config | bool,
        types: tuple[torch.dtype, ...],
        aligned: tuple[int, ...],
        warps: int,
        device: torch.device,
    ) -> None:
        self.function, self.option, self.device = function, option, device
        self.run: Callable[..., None] | None = None
        self.resident = 2  # programs that run at once on the device
        if COMPILED.value:
            try:
                self._compile(types, aligned, warps)
            except (AttributeError, TypeError) as error:
                raise Incompatible(error) from error

    def _compile(
        self, types: tuple[torch.dtype, ...], aligned: tuple[int, ...], warps: int
    ) -> None:
        """Compile for the device, through names that another Triton may not have."""
        pointers = Tensors(*(f"*{canonicalize_dtype(dtype)}" for dtype in types))
        signature = dict(zip(self.function.arg_names, (pointers, _SIZES, "constexpr"), strict=True))
        alignment = {(0, i): [["tt.divisibility", 16]] for i in aligned}
        source = ASTSource(self.function, signature, {(2,): self.option}, alignment)
        with torch.cuda.device(self.device):
            target = triton.runtime.driver.active.get_current_target()
            compiled = triton.compile(source, target, {"num_warps": warps, "num_stages": 1})
            self.run = compiled.run  # loads the binary onto the current device
        self.handle, self.metadata = compiled.function, compiled.packed_metadata
        properties: Any = torch.cuda.get_device_properties(self.device)
        registers = -(-compiled.n_regs // 8) * 8 * 32 * warps
        each = min(properties.regs_per_multiprocessor // registers, 32)
        self.resident = each * properties.multi_processor_count

    def __call__(self, programs: int, tensors: _Tensors, sizes: Sizes) -> None:
        """Launch on the current stream."""
        if self.run is None:  # interpreted
            unused = torch.empty(1, device=self.device)
            tensors = Tensors(*(unused if t is None else t for t in tensors))
            self.function[(programs,)](tensors, sizes, self.option)
        elif self.device.index != _cuda_getDevice():
            with torch.cuda.device(self.device):
                self(programs, tensors, sizes)
        else:
            stream = _cuda_getCurrentRawStream(self.device.index)
            pointers = tuple([0 if t is None else t.data_ptr() for t in tensors])
            try:
                self.run(
                    programs, 1, 1, stream, self.handle, self.metadata, None, None, None,
                    pointers, sizes, None,
                )  # fmt: skip
            except TypeError as error:  # the launcher takes other arguments
                raise Incompatible(error) from error


#: the same kernel for the same arguments
kernel = cache(Kernel)


# --- plans ---------------------------------------------------------------------------------------


class Plan:
    """How to compute a loss for tensors of certain shapes, strides and types."""

    def __init__(
        self,
        spec: LossSpec,
        values: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        needs_grad: bool,
    ) -> None:
        self.spec, self.needs_grad, self.device = spec, needs_grad, values.device
        classes, soft = int(values.shape[-1]), target.is_floating_point()
        self.count = values.numel() // classes
        where = layout(values.shape, values.stride())
        cut = blocks(classes, where.class_stride, self.count <= ALONE and not soft)
        target_where = layout(target.shape, target.stride(), unit=cut.across) if soft else where
        self.copied = where.copied
        self.target_copied = target_where.copied if soft else not target.is_contiguous()
        self.strides = (*where[:4], *target_where[:4])
        self.format = _gradient_format(values)
        self.shape = values.shape[:-1] if spec.reduction == "none" else torch.Size()
        self.programs = -(-self.count // cut.R)
        self.warps = cut.warps
        self.kernels: list[tuple[Kernel, int]] = []
        mean = spec.reduction == "mean" and needs_grad
        single = self.programs == 1
        if not mean:
            factor = "none"
        elif values.dtype == torch.float16:
            factor = "late"  # it cannot represent the gradient before a loss scale multiplies it
        elif single:
            factor = "tile"
        elif soft or self.count * cut.BLOCKS < _MANY_BLOCKS:
            factor = "rows"  # right if all rows count, else corrected
        else:
            factor = "totals"
        self.config = configure(
            spec, classes, cut, where,
            dense=where.packed or self.format == torch.contiguous_format,
            whole=self.count >= cut.R, single=single, soft=soft, gradient=needs_grad,
            class_weighted=class_weight is not None, factor=factor,
        )  # fmt: skip

    def _build(self, tensors: _Tensors) -> list[tuple[Kernel, int]]:
        """Compile the kernels when the plan first runs: each with its number of programs."""
        config = self.config
        types = tuple(torch.float32 if t is None else t.dtype for t in tensors)
        # values, target and gradient: their alignment is the same in every call
        aligned = tuple(i for i in (0, 1, 6) if (t := tensors[i]) is None or t.data_ptr() % 16 == 0)
        inputs = (types, aligned)
        main = kernel(triton_loss.loss_rows, config, *inputs, self.warps, self.device)
        # as many programs as run at once: more would leave multiprocessors idle at the end
        self.programs = min(self.programs, main.resident)
        self.kernels = [(main, self.programs)]
        if config.factor == "totals":
            weigh = kernel(triton_rows.weigh, config, *inputs, 8, self.device)
            self.kernels.insert(0, (weigh, WEIGHERS.value))
        if not config.single:
            self.kernels.append((kernel(triton_rows.finish, config, *inputs, 8, self.device), 1))
        self.sizes = Sizes(self.count, self.programs, *self.strides)
        return self.kernels

    def run(
        self, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Compute the loss, the sums of the terms, the gradient if needed, and its factor.

        The backward pass multiplies the gradient by the factor, unless that is None.
        """
        config = self.config
        if self.copied:
            values = values.contiguous()
        if self.target_copied:
            target = target.contiguous()
        sums = torch.empty_like(weights, dtype=torch.float32)
        loss = sums.new_empty(self.shape)
        gradient = scale = partial = totals = None
        if self.needs_grad:
            gradient = torch.empty_like(values, memory_format=self.format)
        if config.factor in ("late", "rows"):
            scale = sums.new_empty(())
        if not config.single:
            partial = sums.new_empty((self.programs, len(config.forms) + 1))
        if config.factor == "totals":
            totals = sums.new_empty((WEIGHERS.value,))
        tensors = (
            values, target, class_weight, weights, loss, sums, gradient, scale, partial, totals,
            None,
        )  # fmt: skip
        for launch, programs in self.kernels or self._build(tensors):
            launch(programs, tensors, self.sizes)
        return loss, sums, gradient, scale


def _gradient_format(values: Tensor) -> torch.memory_format:
    """Give the gradient the strides of the values where these are dense."""
    same = torch.empty_like(values, device="meta").stride() == values.stride()
    copied = layout(values.shape, values.stride()).copied
    return torch.preserve_format if same and not copied else torch.contiguous_format


def applies(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> bool:
    """Return whether the kernels support these tensors, whatever their values."""
    soft = target.is_floating_point()
    if not is_supported(spec, soft) or values.dtype not in FLOATS or values.ndim == 0:
        return False
    shape, device = values.shape, values.device
    if shape[-1] < 2 or not 0 < values.numel() // shape[-1] < MOST_ROWS:
        return False
    if target.dtype not in (FLOATS if soft else _INTEGERS):
        return False
    if target.shape != (shape if soft else shape[:-1]) or weights.shape != (len(spec.forms),):
        return False
    constants = [target, weights]
    if class_weight is not None:
        constants.append(class_weight)
        if class_weight.shape != shape[-1:]:
            return False
    for vector in constants[1:]:
        if vector.dtype not in (*FLOATS, torch.float64) or not vector.is_contiguous():
            return False
    return all(tensor.device == device and not tensor.requires_grad for tensor in constants)


#: descriptions of a loss and its tensors -> plan, or None where the kernels do not apply
_plans: dict[tuple[object, ...], Plan | None] = {}


def _description(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _plan(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None,
    needs_grad: bool,
) -> Plan | None:  # fmt: skip
    # everything that `applies` and `Plan` look at
    key = (
        spec, needs_grad, values.data_ptr() % 16, target.data_ptr() % 16, _description(values),
        _description(target), _description(weights),
        class_weight is None or _description(class_weight),
    )  # fmt: skip
    try:
        return _plans[key]
    except KeyError:
        plan = None
        if applies(spec, values, target, weights, class_weight):
            plan = Plan(spec, values, target, class_weight, needs_grad)
        if len(_plans) > 4096:  # batch sizes that come once
            _plans.clear()
        _plans[key] = plan
        return plan


# --- eager ---------------------------------------------------------------------------------------


def fused_loss(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The loss and the sums of its terms by the kernels, or None where they do not apply."""
    needs_grad = values.requires_grad and torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        if not applies(spec, values, target, weights, class_weight):
            return None
        loss, sums, _, _ = torch.ops.dubito.weighted_sums(
            values, target, weights, class_weight, _encode(spec), needs_grad
        )
        return loss, sums
    plan = _plan(spec, values, target, weights, class_weight, needs_grad)
    if plan is None:
        return None
    if needs_grad:
        return _Loss.apply(plan, values, target, weights, class_weight)  # type: ignore[no-untyped-call]
    return plan.run(values, target, weights, class_weight)[:2]


class _Loss(torch.autograd.Function):
    """The kernel's loss with the kernel's gradient."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, values: Tensor, target: Tensor, weights: Tensor,
        class_weight: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        loss, sums, ctx.gradient, ctx.scale = plan.run(values, target, weights, class_weight)
        ctx.save_for_backward(values, target, weights, class_weight)
        ctx.plan = plan
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        return loss, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        if torch.is_grad_enabled():  # second derivatives: through the torch forms
            loss = reference_loss(ctx.plan.spec, *ctx.saved_tensors)[0]
            (slopes,) = torch.autograd.grad(loss, ctx.saved_tensors[0], grad, create_graph=True)
            return None, slopes, None, None, None
        # not a saved tensor: the first backward pass changes it in place
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a later backward pass through a retained graph
            gradient, ctx.scale = ctx.plan.run(*ctx.saved_tensors)[2:]
        return None, _multiply(gradient, grad, ctx.scale), None, None, None


def _multiply(gradient: Tensor, grad: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply a gradient in place by that of the loss, a scalar or one per row."""
    if grad.ndim:
        return gradient.mul_(grad.unsqueeze(-1))
    launch = _rescale(gradient.dtype, grad.dtype, scale is not None, gradient.device)
    count = gradient.numel()
    sizes = Sizes(0, 0, 0, 0, count, 0, 0, 0, 0, 0)
    tensors = (*(None,) * 6, gradient, scale, None, None, grad)
    launch(min(launch.resident, -(-count // RESCALED.value)), tensors, sizes)
    return gradient


@cache
def _rescale(
    gradient: torch.dtype, grad: torch.dtype, scaled: bool, device: torch.device
) -> Kernel:
    types = (*(torch.float32,) * 6, gradient, *(torch.float32,) * 3, grad)
    return Kernel(triton_rows.rescale, scaled, types, (6,), 4, device)


# --- torch.compile -------------------------------------------------------------------------------


def _encode(spec: LossSpec) -> str:
    return json.dumps(spec)


# torch.compile calls this while it traces, and treats the result as a constant
_encode.__dict__["_dynamo_marked_constant"] = True


@torch.library.custom_op("dubito::weighted_sums", mutates_args=())
def operator(
    values: Tensor,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None,
    spec: str,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, the sums of its terms, the gradient and its factor; `spec` is JSON."""
    forms, *constants = json.loads(spec)
    plan = Plan(LossSpec(tuple(forms), *constants), values, target, class_weight, needs_grad)
    loss, sums, gradient, scale = plan.run(values, target, weights, class_weight)
    scale = sums.new_ones(()) if scale is None else scale
    return loss, sums, values.new_empty(0) if gradient is None else gradient, scale


@operator.register_fake
def _(
    values: Tensor,
    target: Tensor,
    weights: Tensor,
    class_weight: Tensor | None,
    spec: str,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = values.shape[:-1] if LossSpec(*json.loads(spec)).reduction == "none" else ()
    loss = values.new_empty(shape, dtype=torch.float32)
    sums = values.new_empty(weights.shape, dtype=torch.float32)
    gradient = values.new_empty(0)
    if needs_grad:
        gradient = torch.empty_like(values, memory_format=_gradient_format(values))
    return loss, sums, gradient, values.new_empty((), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    gradient, scale = ctx.saved_tensors
    factor = grad.unsqueeze(-1) if grad.ndim else grad * scale
    return (gradient.float() * factor).to(gradient.dtype), *(None,) * 5


operator.register_autograd(_backward, setup_context=_save)
