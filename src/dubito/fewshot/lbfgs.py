"""L-BFGS for many small problems side by side: each with its own step length and its own end.

The rules are those of `torch.optim.LBFGS` with the strong Wolfe search, one optimiser for all
rounds: a round changes the weight of the KL term, and keeps the history. One call of `_tick`
evaluates every problem once, wherever it is in its own search, and moves it on. So no problem waits
for the search of another one, and the number of calls is that of the slowest problem's evaluations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from dubito.fewshot._memory import direction
from dubito.fewshot._search import searched, store
from dubito.fewshot._state import BRACKET, DONE, START, Solver, State, column
from dubito.fewshot.heads import Head

__all__ = ["Solver", "minimise"]

CHECK = 8  # calls between two looks at how many are done: a look waits for the device
LEAVE = 0.75  # the share of problems that are still at work below which the others leave


def minimise(
    head: Head, design: Tensor, y: Tensor, scale: Tensor, solver: Solver | None = None
) -> Tensor:
    """Weights B (E, R, K) that minimise the mean loss of logits = design B, from zero.

    Shapes: design (E, N, R); one-hot y (N, K); `scale` (E,), the sum of the first gradient's
    magnitudes, whose inverse is the first step, as it is in the space of the features.
    """
    rules = solver if solver is not None else Solver()
    with torch.no_grad():
        state = _begin(head, design, y, scale, rules)
        if design.is_cuda and head.capturable:
            result = _replayed(state, lambda z: _tick(z, head, y, rules))
        else:
            result = torch.empty_like(state.x)
            while len(state.x):
                for _ in range(CHECK):
                    _tick(state, head, y, rules)
                state = _without_done(state, result)
    return result.view(len(design), design.shape[-1], y.shape[-1])


def _replayed(state: State, tick: Callable[[State], None]) -> Tensor:
    """The same as one CUDA graph a call: a thousand small kernels are started at once."""

    def call() -> None:
        z = State(**vars(state))
        tick(z)
        for name, value in vars(z).items():
            held: Tensor = getattr(state, name)
            if value is not held:  # in place: the graph knows tensors by their addresses
                held.copy_(value)

    for _ in range(2):  # libraries set themselves up in the first calls, which a graph can't hold
        call()
    torch.cuda.synchronize()
    graph, again = torch.cuda.CUDAGraph(), call
    try:
        with torch.cuda.graph(graph):
            call()
        again = graph.replay
    except RuntimeError as error:
        warnings.warn(
            f"episodes are solved without a CUDA graph, which is slower: {error}",
            RuntimeWarning,
            stacklevel=4,
        )
    while not bool((state.phase == DONE).all()):
        for _ in range(CHECK):
            again()
    return state.x.clone()


def _begin(head: Head, design: Tensor, y: Tensor, scale: Tensor, rules: Solver) -> State:
    count, _, width = design.shape
    size, m = width * y.shape[-1], rules.history

    def zeros(*shape: int, dtype: torch.dtype = design.dtype) -> Tensor:
        return torch.zeros(count, *shape, dtype=dtype, device=design.device)

    def integers() -> Tensor:
        return zeros(dtype=torch.int32)

    vectors = {name: zeros(size) for name in ("x", "d", "g", "old_g", "low_g", "high_g")}
    numbers = {
        name: zeros()
        for name in ("t", "f", "s", "low_t", "low_f", "low_s", "high_t", "high_f", "high_s")
    }
    counters = {
        name: integers()
        for name in ("phase", "round", "iteration", "total", "evals", "search", "limit", "stored")
    }
    ramp = torch.tensor(head.ramp(rules.rounds), dtype=design.dtype, device=design.device)
    return State(
        **vectors,
        **numbers,
        **counters,
        ids=torch.arange(count, device=design.device),
        design=design,
        first=scale.to(design.dtype).reciprocal().clamp(max=1),
        last_t=zeros(),
        longest=zeros(),
        stuck=zeros(dtype=torch.bool),
        gamma=torch.ones_like(zeros()),
        pairs=zeros(2 * m, size),
        inverse=zeros(m, m),
        changes=zeros(m, m),
        diagonal=zeros(m),
        ramp=ramp.expand(count, -1),
    )


def _without_done(state: State, result: Tensor) -> State:
    """Hand out what is done; the others go on alone once they are few enough."""
    live = state.phase != DONE
    left = int(live.sum())
    if left > LEAVE * len(live):
        return state
    result[state.ids] = state.x
    index = live.nonzero().squeeze(-1)
    return State(**{name: value[index] for name, value in vars(state).items()})


# --- one evaluation of every problem -------------------------------------------------------------


def _tick(z: State, head: Head, y: Tensor, rules: Solver) -> None:
    """Evaluate at x + t d, and decide for each problem where to go from there."""
    f, g = _evaluate(z, head, y)
    s = (g * z.d).sum(-1)
    z.evals = (z.evals + 1).masked_fill(z.phase == START, 1)
    accepted = searched(z, f, g, s, rules)
    moved, t = column(accepted), z.low_t
    starting = z.phase == START
    z.x = torch.where(moved, z.x + column(t) * z.d, z.x)
    change = (z.low_f - z.f).abs()
    z.f = torch.where(starting, f, torch.where(accepted, z.low_f, z.f))
    z.g = torch.where(column(starting), g, torch.where(moved, z.low_g, z.g))
    z.last_t = torch.where(accepted, t, z.last_t)
    z.iteration = z.iteration.masked_fill(starting, 0)
    flat = z.g.square().sum(-1) <= rules.tolerance_grad**2
    spent = (z.iteration >= rules.iterations) | (z.evals >= rules.evaluations)
    still = z.longest * t.abs() <= rules.tolerance_change
    ended = accepted & (spent | flat | still | (change < rules.tolerance_change))
    ended = ended | (starting & flat)
    _turn(z, (starting | accepted) & ~ended, ended, rules)


def _evaluate(z: State, head: Head, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss (E,) and its gradient (E, R K) at x + t d."""
    point = torch.addcmul(z.x, column(z.t), z.d).unflatten(-1, (-1, y.shape[-1]))
    now = z.round.clamp(max=z.ramp.shape[-1] - 1).long().unsqueeze(-1)
    values, slopes = head.evaluate(z.design @ point, y, z.ramp.gather(-1, now))
    gradient = z.design.mT @ slopes / len(y)
    return values.mean(-1), gradient.flatten(-2)


def _turn(z: State, mask: Tensor, ended: Tensor, rules: Solver) -> None:
    """A new direction where the mask says so; rounds that ended give way to the next."""
    z.iteration, z.total = z.iteration + mask.int(), z.total + mask.int()
    first = z.total == 1
    d = direction(z, mask & ~first)
    z.d = torch.where(column(mask), d, z.d)
    z.old_g = torch.where(column(mask), z.g, z.old_g)
    z.s = torch.where(mask, (z.g * z.d).sum(-1), z.s)
    z.longest = torch.where(mask, z.d.abs().amax(-1), z.longest)
    t = torch.where(first, z.first, torch.ones_like(z.t))
    z.t = torch.where(mask, t, z.t)
    level = mask & (z.s > -rules.tolerance_change)
    z.last_t = torch.where(level, t, z.last_t)
    searching, ended = mask & ~level, ended | level
    store(z, "low", searching, (torch.zeros_like(t), z.f, z.s, z.g))
    z.search = z.search.masked_fill(searching, 0)
    z.limit = torch.where(searching, rules.evaluations - z.evals, z.limit)
    z.phase = z.phase.masked_fill(searching, BRACKET)
    z.round = z.round + ended.int()
    z.phase = z.phase.masked_fill(ended, START).masked_fill(z.round >= rules.rounds, DONE)
    z.t = z.t.masked_fill(ended, 0)
