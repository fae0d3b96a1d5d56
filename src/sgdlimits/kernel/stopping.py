r"""Stop conditions in compiled code, without evaluating an expensive condition after each step.

There are three ways, in the order in which `flatten_check` tries them:

1. *By a bound.* A `StopBound` registered for the condition and the problem is a quadratic function of the state, valid in every
   state, which is positive only if the run continues. Compiled code evaluates it after each step. Where it is not positive, the
   code computes the cheap bound anew, and calls the host (`HostBounds`) if that does not suffice either.
2. *After each step*, if the condition itself translates into few operations.
3. *Within a ball.* A condition of more operations is evaluated together with a radius within which it cannot change
   (`sgdlimits.kernel.compiler.bounds`), and again only once the state has left that ball.

A run stops at exactly the step at which it would stop if the condition were evaluated after each step. Code that cannot call
the host, such as a GPU's, uses the last two ways. A condition that depends on the time itself is evaluated after each step.

A bound is stored as a row of coefficients for each run. Around the state :math:`x_0` in which it was made it reads

.. math:: v + \sum_i \big(s_i - b_i(x_i - x_{0,i})\big)(x_i - x_{0,i}) = c + \sum_i (l_i - b_ix_i)\,x_i ,

and the row is :math:`(c, l_1, \dots, b_1, \dots)` over the coordinates that move. It does not refer to :math:`x_0`, and
stays valid from one call to the next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, Bool, Float, PyTree

from sgdlimits.jaxtools import TreeLayout, jit_bound
from sgdlimits.kernel.base import Carry, ProcessLike, StopCondition
from sgdlimits.kernel.compiler.bounds import with_change_bound
from sgdlimits.kernel.compiler.flatten import estimate_operations
from sgdlimits.kernel.compiler.program import TranslationError
from sgdlimits.kernel.compiler.replica import CONTINUES, STOPS, BallCheck, BoundCheck, EveryStepCheck
from sgdlimits.kernel.compiler.walk import JaxprFlattener

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 3)
"""C type of the Python function that compiled code calls. Its arguments are the index of a vector, and pointers to its
states, to the marks of its lanes, and to their bounds."""
# at this value erf 2/1 breaks even
MIN_BOUNDED_COST_RATIO = 0.15
"""Cost of a stop condition, as a fraction of the cost of a step, above which it is skipped while a ball proves it false."""
MAX_VALUE_ERROR = 1e-6
"""Quadrature error in a risk for which stop bounds allow a margin."""
MAX_CURVATURE_ERROR = 1e-3
"""Increase of every quadratic coefficient (`curvature`) of a bound. It allows for an error of a slope up to twice the root of
its
product with `MAX_VALUE_ERROR`."""
SIGN_MARGIN = 1e-9
"""Size of a bound's value, far above rounding, beyond which its sign decides whether the run stops, without the condition
itself."""
DOUBLE_SCALAR = jax.ShapeDtypeStruct((), np.float64)


class QuadraticBound(NamedTuple):
    """Quadratic lower bound, in the change of a run's state, on the margin by which the run continues.

    The margin is at least `value` plus the sum of (slope - bend * change) * change over the coordinates; `slope` and
    `curvature` are states. If the bound is not a cheap one, the run continues if `value` is positive and stops if it is
    negative.
    """

    value: Float[Array, ""]
    slope: PyTree
    curvature: PyTree


class StopBound(Protocol):
    """Interface of functions that return a lower bound for one kind of stop condition on one kind of problem."""

    def __call__(self, process: Any, state: PyTree, memory: PyTree, cheap: bool) -> QuadraticBound | None:
        """Return a quadratic lower bound around the state of one run, or None if none is known.

        Parameters
        ----------
        process : the process, whose `problem` is of the registered kind
        state : state of one run, without a batch axis
        memory : values that the condition stored at the start of that run
        cheap : whether to return a bound of few operations, which may be weaker than the usual one but depends on at least the
            same coordinates
        """


_BOUNDS: dict[tuple[type, type], StopBound] = {}


def register_bound(condition: type, problem: type) -> Callable[[StopBound], StopBound]:
    """Decorate a `StopBound` to register it for a stop condition (not its subclasses) and for a class of problems."""

    def register(bound: StopBound) -> StopBound:
        _BOUNDS[condition, problem] = bound
        return bound

    return register


def find_bound(process: ProcessLike, until: StopCondition | None) -> StopBound | None:
    """Return the bound registered for a stop condition and a process's problem, or None if there is none."""
    classes = type(process.problem).__mro__
    return next((_BOUNDS[type(until), each] for each in classes if (type(until), each) in _BOUNDS), None)


def flatten_check(
    walk: JaxprFlattener, parameters: Any, stops: Callable, like: tuple, before: list, after: list, can_call_host: bool
) -> EveryStepCheck | BallCheck | BoundCheck:
    """Add the check of a stop condition to the flat program of a step.

    Parameters
    ----------
    walk : the walk over jaxprs, whose program has the step already
    parameters : the `sgdlimits.kernel.trace.ParameterArrays` of the process and the condition
    stops : function of parameters, state, memory and time that returns whether a run stops
    like : shapes of parameters, state and memory
    before, after : node indices of parameters, state and memory before and after the step
    can_call_host : whether the code can call the host
    """
    program, flat = walk.program, lambda places: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(places)])
    old, new = flat(before[1]), flat(after[1])  # a coordinate whose place does not change is never moved by a step
    timed = _depends_on_time(parameters, stops, like)
    can_call_host = can_call_host and not timed
    row = _flatten_bound(walk, parameters, like, before, np.flatnonzero(old != new)) if can_call_host else None
    if row is not None:
        return BoundCheck(row)
    try:
        end = np.array(program.op("add", program.input("t"), program.input("size")))
        stop = _flatten_condition(walk, stops, like, [*jax.tree.leaves(after), end])
    except TranslationError:
        if not can_call_host or jax.eval_shape(lambda *like: _evaluate_bound(parameters, False, *like), *like) is None:
            raise
        return BoundCheck(())
    # The cost of the condition is what it needs beyond the values of the step.
    needed = program.order(new.tolist())
    cheap = timed or len(program.order([stop], set(needed))) <= MIN_BOUNDED_COST_RATIO * len(needed)
    ball = None if cheap else _flatten_ball(walk, stops, like, before, old != new)
    return EveryStepCheck(stop) if ball is None else ball


def _flatten_condition(walk: JaxprFlattener, stops: Callable, like: tuple, places: list[np.ndarray]) -> int:
    """Add a stop condition to a flat program, and return the node index of its value."""
    jaxpr = jax.make_jaxpr(stops)(*like, DOUBLE_SCALAR)
    walk.program.check_size(estimate_operations(jaxpr))
    return int(walk.call(jaxpr, places)[0])


def _depends_on_time(parameters: Any, stops: Callable, like: tuple) -> bool:
    """Return whether a stop condition depends explicitly on time, so that bounds around a state prove nothing about it."""
    problem = parameters.rebuild(parameters.arrays)[0].problem
    if problem.at(jnp.zeros(())) is problem:
        return False
    return dce_jaxpr(jax.make_jaxpr(stops)(*like, DOUBLE_SCALAR).jaxpr, [True])[1][-1]


def _evaluate_bound(parameters: Any, cheap: bool, arrays: list, state: PyTree, memory: PyTree) -> QuadraticBound | None:
    """Return the registered bound around a state, for a process with parameters `arrays`; None if no bound is registered."""
    process, until = parameters.rebuild(arrays)
    bound = find_bound(process, until)
    return None if bound is None else bound(process, state, memory, cheap)


def _flatten_bound(walk: JaxprFlattener, parameters: Any, like: tuple, places: list, moved: np.ndarray) -> tuple | None:
    """Add the coefficients of a cheap bound to a flat program and return their node indices; None if that is not possible."""

    def bound_coefficients(*arguments):
        """Return the value of the cheap bound and its coefficients."""
        bound = _evaluate_bound(parameters, True, *arguments)
        return bound and evaluate_coefficients(bound, arguments[1], moved.tolist())

    try:
        return (
            tuple(int(place) for place in walk.call(jax.make_jaxpr(bound_coefficients)(*like), jax.tree.leaves(places))) or None
        )
    except TranslationError:
        return None


def _flatten_ball(walk: JaxprFlattener, stops: Callable, like: tuple, places: list, moves: np.ndarray) -> BallCheck | None:
    """Add a stop condition and a bound on its change within a radius to a flat program; None if that is not possible."""
    radius, none = walk.program.input("radius"), walk.program.const(0.0, "f64")
    leaves, state = jax.tree.leaves(like[1]), like[1]
    cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]
    radii = [part.reshape(leaf.shape) for part, leaf in zip(np.split(np.where(moves, radius, none), cuts), leaves, strict=True)]

    def stops_with_radius(radii, arrays, state, memory):
        """Return whether the run stops, and whether that may change within the radii."""
        return with_change_bound(lambda state, memory: stops(arrays, state, memory, 0.0))(radii, state, memory)

    try:
        found = walk.call(jax.make_jaxpr(stops_with_radius)(state, *like), [*radii, *jax.tree.leaves(places)])
    except TranslationError:
        return None
    return BallCheck(*(int(place) for place in found))


class HostBounds:
    """Store of the stop bounds of a kernel's runs, and the callback by which compiled code asks Python for new ones.

    A row of coefficients stays valid while the memory of the condition is the same, so rows are kept between calls of the
    kernel.
    """

    def __init__(self, process: ProcessLike, until: StopCondition, carry: Carry, moved: list[int]) -> None:
        """Compile the evaluation of bounds, for runs like those of `carry` whose coordinates `moved` change in a step."""
        one = jax.tree.map(lambda leaf: np.asarray(leaf)[..., 0], carry.state)
        own = jax.tree.map(lambda leaf: np.asarray(leaf)[0], carry.memory)
        self.ask = jit_bound(
            _answer_call, process, until, tuple(moved), TreeLayout.from_tree(one), TreeLayout.from_tree(own), fast_compile=True
        )
        self.columns, self.coordinates = 1 + 2 * len(moved), TreeLayout.from_tree(one).size
        self.known = np.zeros((0, 1 + TreeLayout.from_tree(own).size + self.columns))

    def stored_coefficients(self, runs: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Return the stored bound coefficients of runs, shape (vectors, coefficients, lanes); zeros if unknown."""
        rows, keys = np.zeros((runs.size, self.columns)), _run_keys(runs, memory)
        _, new, old = np.intersect1d(keys[:, 0], self.known[:, 0], return_indices=True)
        same = (keys[new] == self.known[old, : keys.shape[1]]).all(1)
        rows[new[same]] = self.known[old[same], keys.shape[1] :]
        return np.ascontiguousarray(rows.reshape(*runs.shape, -1).swapaxes(1, 2))

    def store(self, runs: np.ndarray, memory: np.ndarray, rows: np.ndarray) -> None:
        """Store the bound coefficients of runs for later calls of the kernel."""
        self.known = np.concatenate([_run_keys(runs, memory), rows.swapaxes(1, 2).reshape(runs.size, -1)], axis=1)

    @contextmanager
    def host_callback(self, memory: np.ndarray) -> Iterator[Any]:
        """Provide the callback for compiled code as a C pointer, and raise its first error afterwards.

        The function receives the index of a vector, its states, and the lanes to look at. It replaces each of these lanes by
        `CONTINUES` or `STOPS`, and writes their new rows.
        """
        width, errors = memory.shape[-1], []

        @cache  # a call passes few distinct addresses, and wrapping one costs more than the lookup
        def array_at(address: int, count: int) -> np.ndarray:
            """View the doubles at a memory address as an array of shape (count, lanes)."""
            return np.frombuffer((ctypes.c_double * (count * width)).from_address(address)).reshape(count, width)

        def answer_lanes(index: int, state: int, lanes: int, rows: int) -> None:
            """Decide for the marked lanes of a vector whether they stop, and write their new bounds."""
            try:
                states, which, new = array_at(state, self.coordinates), array_at(lanes, 1)[0], array_at(rows, self.columns)
                for lane in np.flatnonzero(which):
                    said = np.asarray(self.ask(states[:, lane], memory[index, :, lane]))
                    which[lane], new[:, lane] = said[0], said[1:]
            except BaseException as error:  # an exception, Ctrl-C included, cannot pass through compiled code
                errors.append(error)
                array_at(rows, self.columns)[0] = np.inf  # an infinite bound: the lanes run to the end without another call

        function = HOST_FUNCTION(answer_lanes)
        yield ctypes.cast(function, ctypes.c_void_p)
        if errors:
            raise errors[0]


def _answer_call(
    process: ProcessLike,
    until: StopCondition,
    moved: tuple[int, ...],
    state: TreeLayout,
    memory: TreeLayout,
    row: Array,
    own: Array,
) -> Array:
    """Return whether one run stops, and its new bound; evaluate the stop condition only where the bound is near zero."""
    one, remembered = state.values(row), memory.values(own)
    register = find_bound(process, until)
    bound = None if register is None else register(process, one, remembered, False)
    value, line = jnp.zeros(()), [jnp.zeros(())] * (1 + 2 * len(moved))
    if bound is not None:
        value, (_, *line) = bound.value, evaluate_coefficients(bound, one, moved)

    def stops() -> Bool[Array, ""]:
        """Evaluate the stop condition of the run."""
        stats = process.statistics(jax.tree.map(lambda leaf: leaf[..., None], one))
        memory_row = jax.tree.map(lambda leaf: leaf[None], remembered)
        no_time = jnp.zeros(1)  # conditions that depend on time have no bound
        return until.stop_runs(process.problem, stats, memory_row, no_time)[0]

    said = jnp.where(lax.cond(jnp.abs(value) > SIGN_MARGIN, lambda: value < 0, stops), STOPS, CONTINUES)
    return jnp.stack([said, *line])


def evaluate_coefficients(bound: QuadraticBound, state: PyTree, moved: Sequence[int]) -> list[Array]:
    """Return the value of a bound at a state and its coefficients, lowered by the quadrature error that is allowed for."""
    flat = lambda tree: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])[np.array(moved)]
    x, slope, bend = map(flat, (state, bound.slope, bound.curvature))
    value = bound.value - MAX_VALUE_ERROR
    # A bend of exactly zero belongs to a coordinate on which the bound does not depend; it stays zero, and is left out.
    bend = jnp.where(bend > 0, bend + MAX_CURVATURE_ERROR, 0.0)
    return [value, value - ((slope + bend * x) * x).sum(), *(slope + 2 * bend * x), *bend]


def _run_keys(runs: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return an array with a row for each run: its index, and the values that its stop condition stored at the start."""
    return np.concatenate([runs.reshape(-1, 1), memory.swapaxes(1, 2).reshape(runs.size, -1)], axis=1, dtype=float)
