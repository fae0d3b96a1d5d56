"""Path of the ODE under piecewise constant controls, as a differentiable function of the values of the pieces.

The pieces of the controls, and the knots of other schedules, divide [0, t_max] into intervals on which the drift is smooth in
time. Each interval is integrated with a fixed number of steps of the Runge-Kutta method of order 8 by Dormand and Prince. The
whole path is one compiled loop, and reverse-mode differentiation of the loop gives the exact gradient of the discretised path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.integrate import DOP853

from sgdlimits.part import is_schedule
from sgdlimits.problem.base import Problem
from sgdlimits.schedule import Schedule, knots_of, subtract_rounding
from sgdlimits.schedule_forms import Steps

STAGE_COUNT = DOP853.n_stages
STAGE_MATRIX, STAGE_WEIGHTS, STAGE_TIMES = DOP853.A[:STAGE_COUNT, :STAGE_COUNT], DOP853.B, DOP853.C[:STAGE_COUNT]
"""Matrix, weights and nodes of the Runge-Kutta method of order 8 by Dormand and Prince."""
END_ROUNDING = 2.0**-42
"""Relative distance of an interval's last stage from the interval's end; larger than the rounding of a schedule's knots."""


class ControlSchedule(Steps):
    """Piecewise constant schedule of a control, with a `name` by which the control is found in a problem."""

    name: str = eqx.field(static=True)

    def __init__(self, name: str, times: Any, values: Any) -> None:
        self.name, self.times, self.values = name, times, values

    def __call__(self, t):
        # an index, where `Steps` has a comparison for each piece, which would take long to compile twice
        return jnp.asarray(self.values)[(t >= subtract_rounding(self.times, jnp)).sum()]


class FrozenSchedule(Schedule):
    """Schedule replaced by its value at one time."""

    value: Float[Array, "..."]

    def __call__(self, t):
        return self.value


class Discretisation(NamedTuple):
    """Discretised control problem: a problem, its initial statistics, the ends of intervals, and the layout of piece values."""

    problem: Problem
    start: PyTree
    interval_ends: Float[np.ndarray, " intervals+1"]
    slices: tuple[tuple[str, int, int], ...]


class Path(NamedTuple):
    """Path of the ODE of a problem: times and statistics (as vectors) at the end of each step, and steps per interval."""

    problem: Problem
    t: Float[Array, " steps+1"]
    state_vectors: Float[Array, "steps+1 n"]
    unflatten: Callable
    steps_per_interval: int

    def states_at_interval_ends(self) -> tuple[PyTree, Array]:
        """Return the statistics at the ends of the intervals, with the time axis first, and the ends of the intervals."""
        return jax.vmap(self.unflatten)(self.state_vectors[:: self.steps_per_interval]), self.t[:: self.steps_per_interval]


def interval_ends(problem: Problem, t_max: float) -> np.ndarray:
    """Return the ends of the intervals: 0, the knots of all schedules before `t_max`, and `t_max`."""
    knots = np.asarray(knots_of(problem), float)
    return np.concatenate([[0.0], knots[knots < t_max * (1 - 1e-12)], [t_max]])


def find_control_schedules(problem: Problem) -> set[str]:
    """Return the names of the controls in a problem, including those nested inside other schedules."""
    is_knob = lambda node: isinstance(node, ControlSchedule)
    return {leaf.name for leaf in jax.tree.leaves(problem, is_leaf=is_knob) if is_knob(leaf)}


def with_values(problem: Problem, values: Mapping[str, Any]) -> Problem:
    """Return a copy of a problem in which each control has the piece values that `values` gives for its name."""
    is_knob = lambda node: isinstance(node, ControlSchedule)
    swap = lambda leaf: ControlSchedule(leaf.name, leaf.times, values[leaf.name]) if is_knob(leaf) else leaf
    return jax.tree.map(swap, problem, is_leaf=is_knob)


def split_by_control(slices: tuple[tuple[str, int, int], ...], vector: Any) -> dict[str, Any]:
    """Split the vector of all piece values into one vector per control; return a dict from names of controls to vectors.

    Each entry of `slices` has the name of a control, and the beginning and the end of its values in the vector.
    """
    return {name: vector[first:last] for name, first, last in slices}


def solve_path(discretisation: Discretisation, vector: Array, kicks: Array, steps_per_interval: int) -> Path:
    """Integrate the drift from the start, with `steps_per_interval` steps on each interval.

    `vector` has the piece values of all controls. `kicks` has a row for each interval, which is added to the statistics at the
    interval's beginning; the derivative of an objective with respect to `kicks` is the costate.
    """
    problem = with_values(discretisation.problem, split_by_control(discretisation.slices, vector))
    y, unravel = ravel_pytree(jax.tree.map(jnp.asarray, discretisation.start))
    ends = jnp.asarray(discretisation.interval_ends)
    first, last = ends[:-1, None], ends[1:, None]
    grid = first + (last - first) * np.arange(steps_per_interval + 1) / steps_per_interval
    begin, size = grid[:, :-1].reshape(-1), jnp.diff(grid).reshape(-1)
    # schedules are continuous from the right, so that the last stage must stay before the next piece
    times = jnp.minimum(
        begin[:, None] + size[:, None] * STAGE_TIMES, jnp.repeat(reduce_below_jump(ends[1:]), steps_per_interval)[:, None]
    )
    leaves, tree = jax.tree.flatten(problem, is_leaf=is_schedule)
    places = [i for i, leaf in enumerate(leaves) if is_schedule(leaf)]
    # all values of schedules are computed before the loop, where they take one operation for all times
    values = [jax.vmap(jax.vmap(leaves[i]))(times) for i in places]

    @jax.checkpoint  # stores the state of each stage, and not the fields of all nodes
    def slope(y, stage):
        t, now = stage
        held = list(leaves)
        for i, value in zip(places, now, strict=True):
            held[i] = FrozenSchedule(value)
        return ravel_pytree(jax.tree.unflatten(tree, held).drift(unravel(y), t))[0]

    def step(y, inputs):
        h, kick, stages = inputs
        y = runge_kutta(slope, y + kick, h, stages)
        return y, y

    spread_kicks = jnp.zeros((len(begin), y.size)).at[::steps_per_interval].set(kicks)
    _, rows = lax.scan(step, y, (size, spread_kicks, (times, values)))
    t = jnp.concatenate([ends[:1], grid[:, 1:].reshape(-1)])
    return Path(problem, t, jnp.concatenate([y[None], rows]), unravel, steps_per_interval)


def reduce_below_jump(t: Array) -> Array:
    """Return the times `t` reduced by more than a rounding error, so that a schedule that jumps at t has not yet jumped."""
    return t - END_ROUNDING * jnp.maximum(t, 1.0)


def runge_kutta(slope: Callable, y: Array, h: Any, stages: PyTree) -> Array:
    """Return the state after one Runge-Kutta step of size h from the state y, for the derivative slope(y, input).

    `stages` has the input of `slope` at each stage, stages first.
    """

    def stage(slopes, inputs):
        i, row, point = inputs
        return slopes.at[i].set(slope(y + h * (row @ slopes), point)), None

    slopes, _ = lax.scan(stage, jnp.zeros((STAGE_COUNT, y.size)), (jnp.arange(STAGE_COUNT), jnp.asarray(STAGE_MATRIX), stages))
    return y + h * (jnp.asarray(STAGE_WEIGHTS) @ slopes)


def value_and_gradient(discretisation: Discretisation, objective: Any, steps_per_interval: int, vector: Array, kicks: Array):
    """Return the objective, and its gradients with respect to the piece values `vector` and the displacements `kicks`.

    `kicks` has a row for each interval, which is added to the statistics at the interval's beginning.
    """
    value = lambda vector, kicks: objective(solve_path(discretisation, vector, kicks, steps_per_interval))
    return jax.value_and_grad(value, argnums=(0, 1))(vector, kicks)


def compute_states_at_ends(discretisation: Discretisation, vector: Array, steps_per_interval: Any) -> Array:
    """Return the statistics at the ends of the intervals as rows.

    The number of steps per interval is traced, so that one compiled program serves all numbers of steps.
    """
    problem = with_values(discretisation.problem, split_by_control(discretisation.slices, vector))
    y, unravel = ravel_pytree(jax.tree.map(jnp.asarray, discretisation.start))

    def interval(y, ends):
        first, last = ends
        h, before = (last - first) / steps_per_interval, reduce_below_jump(last)
        slope = lambda y, t: ravel_pytree(problem.drift(unravel(y), jnp.minimum(t, before)))[0]
        y = lax.fori_loop(
            0, steps_per_interval, lambda i, y: runge_kutta(slope, y, h, first + h * (i + jnp.asarray(STAGE_TIMES))), y
        )
        return y, y

    ends = jnp.asarray(discretisation.interval_ends)
    _, rows = lax.scan(interval, y, (ends[:-1], ends[1:]))
    return jnp.concatenate([y[None], rows])
