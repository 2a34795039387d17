"""L-BFGS for many small problems at once, each with its own steps and its own end.

The rules are those of `torch.optim.LBFGS` with the strong Wolfe search and one optimizer for all
rounds. A tick evaluates every problem once, wherever it is in its line search, and advances it. So
no problem waits for the line search of another, and the slowest one determines the number of ticks.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

#: outputs (E, M, N) and rounds (E,) -> loss of each problem (E,) and its gradient (E, M, N)
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

#: ticks between two checks of how many problems are done, for which a GPU has to wait
CHECK_EVERY = 4
#: share of unfinished problems below which the finished ones are removed
REMOVE_BELOW = {"cpu": 0.8, "cuda": 0.25}

#: what a problem does next: start a round, bracket a minimum, narrow the bracket, nothing
START, BRACKET, ZOOM, DONE = range(4)
#: constants of the strong Wolfe conditions
ARMIJO, CURVATURE = 1e-4, 0.9
#: smallest product of a step and its change of gradient that is stored
LEAST_CURVATURE = 1e-10


class Solver(NamedTuple):
    """Protocol of the L-BFGS that fits the classifier of an episode.

    The defaults are those of the published code, except for `tolerance_grad`. There a round ends
    if no entry of the gradient exceeds 1e-5, among thousands of entries of a mean over ten
    episodes. The norm of the gradient of one episode does not depend on the coordinates.

    Attributes:
        rounds: Rounds; the loss weights change from one to the next, the history remains.
        iterations: Iterations per round.
        evaluations: Evaluations after which a round starts no further iteration.
        history: Steps that the approximation of the Hessian uses.
        tolerance_grad: Norm of the gradient that ends a round.
        tolerance_change: Change of the loss or of the weights that ends a round.
    """

    rounds: int = 10
    iterations: int = 10
    evaluations: int = 12
    history: int = 20
    tolerance_grad: float = 1e-3
    tolerance_change: float = 1e-9


class State(SimpleNamespace):
    """State of E problems with P coordinates each: vectors (E, P), numbers and counters (E,).

    Points of a line search are (E, 3): step, value and slope. Of H + 1 slots of stored pairs the
    last one takes the pairs that are not stored.

    | name | content |
    | --- | --- |
    | x, d, g | coordinates, direction, gradient |
    | old_g, low_g | gradients at the previous direction and at `low` |
    | t | step to evaluate |
    | f, s | value and slope at the start of the line search |
    | low, high | ends of the bracket by value; without a bracket `low` is the previous point |
    | first_t, last_t | first step of the next line search, step that led to x |
    | longest | largest entry of d |
    | stuck | whether the last step was close to an end of the bracket |
    | phase, round, iteration | progress; iterations of the round |
    | evals, search | evaluations of the round, and earlier ones of the line search |
    | stored, gamma | number of pairs stored so far, scale of the initial inverse Hessian |
    | pairs | steps, then changes of the gradient, (E, 2 (H + 1), P) |
    | inverse | of the triangle of products of steps and changes, (E, H + 1, H + 1) |
    | changes, diagonal | products of the changes; of each step and its own change |
    | ids, factor | positions in the batch, design matrices (E, N, R) |
    """

    def assign(self, mask: Tensor, **values: Tensor | float) -> None:
        """Set values of the problems in the mask, (E,)."""
        for name, value in values.items():
            old = getattr(self, name)
            setattr(self, name, torch.where(mask.view(-1, *[1] * (old.ndim - 1)), value, old))


def minimize(loss: Loss, factor: Tensor, outputs: int, scale: Tensor, solver: Solver) -> Tensor:
    """Minimize the loss of linear outputs, outputs = weights factor', from zero weights.

    Args:
        loss: Loss and gradient of the outputs.
        factor: Design matrices, (E, N, R).
        outputs: Number of outputs M.
        scale: Sum of the magnitudes of the first gradient, whose inverse is the first step, (E,).
        solver: Protocol.

    Returns:
        Weights (E, M, R).
    """
    with torch.no_grad():
        state = _start(factor, outputs, scale, solver)
        result = torch.empty_like(state.x)
        while len(state.x):
            tick, count = _compiled(state, loss, solver), len(state.x)
            while len(state.x) == count:
                for _ in range(CHECK_EVERY):
                    tick()
                state = _remove_done(state, result)
    return result.view(len(factor), outputs, -1)


def _start(factor: Tensor, outputs: int, scale: Tensor, solver: Solver) -> State:
    count, _, width = factor.shape
    size, slots = width * outputs, solver.history + 1

    def zeros(*shape: int, dtype: torch.dtype = factor.dtype) -> Tensor:
        return torch.zeros(count, *shape, dtype=dtype, device=factor.device)

    vectors = ("x", "d", "g", "old_g", "low_g")
    # In float64, as the loss: a line search compares values that are nearly equal.
    numbers = {"t": (), "f": (), "s": (), "last_t": (), "longest": (), "low": (3,), "high": (3,)}
    counters = ("phase", "round", "iteration", "evals", "search", "stored")
    return State(
        **{name: zeros(size) for name in vectors},
        **{name: zeros(*shape, dtype=torch.float64) for name, shape in numbers.items()},
        **{name: zeros(dtype=torch.int32) for name in counters},
        **{name: zeros(slots, slots) for name in ("inverse", "changes")},
        first_t=scale.double().reciprocal().clamp(max=1),
        stuck=zeros(dtype=torch.bool),
        gamma=zeros() + 1,
        pairs=zeros(2 * slots, size),
        diagonal=zeros(slots),
        ids=torch.arange(count, device=factor.device),
        factor=factor,
    )


def _compiled(state: State, loss: Loss, solver: Solver) -> Callable[[], None]:
    """Return a function that runs a tick; on a GPU a graph, because launches take the time."""

    def tick() -> None:
        _advance(state, *_evaluate(state, loss), solver)

    if state.x.device.type != "cuda":
        return tick
    tick()  # initializes what a graph cannot
    for name, value in vars(state).items():  # buffers of the graph, of which none share memory
        setattr(state, name, value.clone(memory_format=torch.contiguous_format))
    after, graph = State(**vars(state)), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _advance(after, *_evaluate(state, loss), solver)
        for name, value in vars(state).items():
            value.copy_(getattr(after, name))
    return graph.replay


def _remove_done(state: State, result: Tensor) -> State:
    """Move finished problems to the result once they are many."""
    live = state.phase != DONE
    if int(live.sum()) > REMOVE_BELOW[live.device.type] * len(live):
        return state
    result[state.ids] = state.x
    return State(**{name: value[live] for name, value in vars(state).items()})


def _evaluate(z: State, loss: Loss) -> tuple[Tensor, Tensor]:
    """Compute the loss (E,) at x + t d, and its gradient in the outputs (E, M, N)."""
    point = (z.x + _scaled(z.d, z.t)).unflatten(-1, (-1, z.factor.shape[-1]))
    return loss(point @ z.factor.mT, z.round)


def _advance(z: State, f: Tensor, slopes: Tensor, solver: Solver) -> None:
    """Decide for each problem how to continue."""
    g = (slopes @ z.factor).flatten(-2)
    starting = z.phase == START
    z.evals = torch.where(starting, 1, z.evals + 1)
    accepted = _search(z, f, g, (g * z.d).sum(-1).double(), solver)
    z.search = z.search + 1
    t, low_f, _ = z.low.unbind(-1)
    still = z.longest * t.abs() <= solver.tolerance_change
    still = still | ((low_f - z.f).abs() < solver.tolerance_change)
    z.x = z.x + _scaled(z.d, torch.where(accepted, t, 0))
    z.assign(accepted, f=low_f, last_t=t)
    z.assign(accepted & (t != 0), g=z.low_g)
    z.assign(starting, f=f, g=g, iteration=0)
    flat = z.g.square().sum(-1) <= solver.tolerance_grad**2
    spent = (z.iteration >= solver.iterations) | (z.evals >= solver.evaluations)
    ended = (accepted & (spent | flat | still)) | (starting & flat)
    _turn(z, (starting | accepted) & ~ended, ended, solver)


def _turn(z: State, mask: Tensor, ended: Tensor, solver: Solver) -> None:
    """Choose a new direction for the problems in the mask; start the next round of ended ones."""
    z.assign(mask, iteration=z.iteration + 1, d=_direction(z, mask), old_g=z.g)
    z.assign(mask, s=(z.g * z.d).sum(-1), longest=z.d.abs().amax(-1))
    z.assign(mask, phase=BRACKET, search=0, low=_origin(z), t=z.first_t)
    level = mask & (z.s > -solver.tolerance_change)
    z.assign(level, last_t=z.first_t)
    z.assign(mask, first_t=1)
    z.assign(ended | level, phase=START, round=z.round + 1, t=0)
    z.assign(z.round >= solver.rounds, phase=DONE)


# --- line search ---


def _search(z: State, f: Tensor, g: Tensor, s: Tensor, solver: Solver) -> Tensor:
    """Process the evaluations at the steps `z.t`.

    Args:
        z: State; a finished search leaves its point in `low` and the gradient there in `low_g`,
            unless the step is 0.
        f: Values.
        g: Gradients.
        s: Slopes.
        solver: Protocol.

    Returns:
        Problems whose search is finished, (E,).
    """
    bracketing, zooming = z.phase == BRACKET, z.phase == ZOOM
    spent = z.evals > solver.evaluations
    # Without evaluations left, the origin and the new point are the bracket.
    z.assign(bracketing & spent, low=_origin(z))
    low_t, low_f, _ = z.low.unbind(-1)
    above = ~(f <= z.f + ARMIJO * z.t * z.s)  # true if f is NaN: the step is too long
    flat = s.abs() <= -CURVATURE * z.s
    worse = above | ((zooming | (z.search > 1)) & (f >= low_f))
    extending = bracketing & ~spent & ~worse
    better = zooming & ~worse
    satisfied = (extending | better) & flat
    further = extending & ~flat & ~(s >= 0)
    closed = bracketing & ~satisfied & ~further
    turned = better & (s * (z.high[:, 0] - low_t) >= 0)
    shrunk = closed | (zooming & worse)
    lower = shrunk & (f < low_f)
    new = torch.stack([z.t, f, s], -1)
    longer = _within(_cubic(z.low, new), z.t + 0.01 * (z.t - low_t), 10 * z.t)
    # The previous lower end becomes the upper one if the slope turns or the new point is lower.
    upper = torch.where((lower | turned)[:, None], z.low, new)
    z.assign(shrunk | turned, high=upper)
    z.assign(further | satisfied | lower | better, low=new, low_g=g)
    z.assign(closed, phase=ZOOM, stuck=False)
    z.assign(further, t=longer)
    unfinished = closed | (zooming & ~satisfied)
    small = (z.high[:, 0] - z.low[:, 0]).abs() * z.longest < solver.tolerance_change
    finished = unfinished & (spent | small)
    _interpolate(z, unfinished & ~finished)
    over: Tensor = satisfied | finished
    return over


def _origin(z: State) -> Tensor:
    """Return the point at which the line search starts, (E, 3)."""
    return torch.stack([torch.zeros_like(z.f), z.f, z.s], -1)


def _interpolate(z: State, mask: Tensor) -> None:
    """Choose a step inside the bracket, away from an end that two guesses were close to."""
    least, most = torch.stack([z.low[:, 0], z.high[:, 0]]).aminmax(dim=0)
    t = _within(_cubic(z.low, z.high), least, most)
    margin = 0.1 * (most - least)
    close = torch.minimum(most - t, t - least) < margin
    push = close & (z.stuck | (t >= most) | (t <= least))
    inner = torch.where((t - most).abs() < (t - least).abs(), most - margin, least + margin)
    z.assign(mask, t=torch.where(push, inner, t), stuck=close & ~push)


def _cubic(a: Tensor, b: Tensor) -> Tensor:
    """Minimize the cubic through two points (E, 3); NaN if it has no minimum."""
    swap = a[:, :1] > b[:, :1]
    t1, f1, s1 = torch.where(swap, b, a).unbind(-1)
    t2, f2, s2 = torch.where(swap, a, b).unbind(-1)
    d1 = s1 + s2 - 3 * (f1 - f2) / (t1 - t2)
    d2 = (d1.square() - s1 * s2).sqrt()
    return t2 - (t2 - t1) * ((s2 + d2 - d1) / (s2 - s1 + 2 * d2))


def _within(t: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Limit a step to an interval; the middle if it is NaN."""
    return torch.where(t.isnan(), 0.5 * (low + high), t.clamp(low, high))


# --- direction ---


def _direction(z: State, mask: Tensor) -> Tensor:
    """Compute minus the gradient times the approximate inverse Hessian, in its compact form.

    With S, Y the stored steps and changes of the gradient as rows, R the upper triangle (in order
    of age) of S Y' and D its diagonal: a = -R^-1 S g, r = -gamma (g + Y' a),
    b = R^-T (D a - Y r), and the direction is r + S' b. The usual two loops compute the same.

    Args:
        z: State; the last step is stored in it.
        mask: Problems that have taken a step, (E,).
    """
    step, change = _scaled(z.d, z.last_t), z.g - z.old_g
    along = (step * change).sum(-1)
    keep = mask & (along > LEAST_CURVATURE)
    size = z.diagonal.shape[-1]
    # The newest pair replaces the oldest; a pair that is not stored goes to the last, unused slot.
    slot = torch.where(keep, z.stored % (size - 1), size - 1).long()
    rows = torch.arange(len(slot), device=slot.device)
    z.pairs[rows, slot] = step
    z.pairs[rows, slot + size] = change
    # Rows times matrices: several times faster on a CPU than matrices times columns.
    onto, products = (torch.stack([z.g, change], 1) @ z.pairs.mT).unbind(1)
    z.changes[rows, slot] = products[:, size:]
    z.changes.mT[rows, slot] = products[:, size:]
    # Border the inverse with the column of the newest pair. Rows and columns are in the order of
    # the slots, a permutation of both that changes no product.
    zeros = torch.zeros_like(z.diagonal)  # a number would be copied to the GPU
    z.inverse[rows, slot] = zeros
    z.inverse.mT[rows, slot] = zeros
    inverse = torch.where(keep, along, 1).reciprocal()[:, None]
    border = -_times(products[:, :size], z.inverse.mT) * inverse
    border.scatter_(-1, slot[:, None], inverse)
    z.inverse.mT[rows, slot] = torch.where(keep[:, None], border, 0)
    z.diagonal[rows, slot] = along
    z.assign(keep, gamma=along / change.square().sum(-1), stored=z.stored + 1)
    gamma = z.gamma[:, None]
    a = -_times(onto[:, :size], z.inverse.mT)
    along_changes = -gamma * (onto[:, size:] + _times(a, z.changes))
    b = _times(z.diagonal * a - along_changes, z.inverse)
    direction: Tensor = _times(torch.cat([b, -gamma * a], -1), z.pairs) - gamma * z.g
    return direction


def _times(vector: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows (E, P) by matrices (E, P, Q)."""
    return (vector[:, None] @ matrix)[:, 0]


def _scaled(vector: Tensor, number: Tensor) -> Tensor:
    """Multiply vectors (E, P) by numbers (E,)."""
    return vector * number.to(vector.dtype)[:, None]
