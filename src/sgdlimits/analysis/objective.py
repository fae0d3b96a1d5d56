"""Objectives of optimal control, evaluated on a path of the ODE (differentiably) and on each run of a dataset."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from sgdlimits.analysis.control_path import STAGE_TIMES, Path, reduce_below_jump, runge_kutta
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level.condition import Exits, exits
from sgdlimits.problem.base import Problem
from sgdlimits.run.schema import statistics

MAX_ROOT_ITERATIONS = 12
"""Iterations of regula falsi for the time of exit inside a step, over which the margin is nearly a straight line."""


class Objective(eqx.Module):
    """Quantity that `optimise` minimises, a function of a path of the ODE."""

    title: ClassVar[str]
    until: ClassVar[Any] = None

    @abc.abstractmethod
    def __call__(self, path: Path) -> Array:
        """Return the objective's value for a path of the ODE."""

    @abc.abstractmethod
    def evaluate_runs(self, problem: Problem, dataset: xr.Dataset) -> np.ndarray:
        """Return the objective for each run of a dataset that was saved at the ends of the pieces and stopped by `until`."""


class FinalRisk(Objective):
    """Population risk at the end of a path, as an objective."""

    title = "final risk"

    def __call__(self, path: Path) -> Array:
        return path.problem.at(path.t[-1]).risk(path.unflatten(path.state_vectors[-1]))

    def evaluate_runs(self, problem, dataset):
        return dataset.risk.values[:, -1]


class StatisticsObjective(Objective):
    """User's JAX function of the problem and the statistics at the end of a path, as an objective."""

    fn: Callable = eqx.field(static=True)
    title = "objective"

    def __call__(self, path: Path) -> Array:
        return _check_scalar(self.fn(path.problem.at(path.t[-1]), path.unflatten(path.state_vectors[-1])))

    def evaluate_runs(self, problem, dataset):
        now = problem.at(float(dataset.t[-1]))
        return np.asarray(jax.vmap(partial(self.fn, now))(jax.tree.map(lambda leaf: leaf[:, -1], statistics(dataset))))


class PathObjective(Objective):
    """User's JAX function of the problem, the statistics at the ends of the schedule's pieces (times first), and the times."""

    fn: Callable = eqx.field(static=True)
    title = "objective"

    def __call__(self, path: Path) -> Array:
        return _check_scalar(self.fn(path.problem, *path.states_at_interval_ends()))

    def evaluate_runs(self, problem, dataset):
        return np.asarray(jax.vmap(lambda stats: self.fn(problem, stats, dataset.t.values))(statistics(dataset)))


class ExitTime(Objective):
    """First time at which the condition `Exits` is true, as an objective.

    Without an exit the value is t_max times one plus the missing share of the risk's descent to the exit.
    """

    exits: Exits
    title = "exit time"

    @property
    def until(self):
        """Stop condition with which simulations end at the exit whose time is minimised."""
        return self.exits

    def evaluate_runs(self, problem, dataset):
        return dataset.t_end.values

    def __call__(self, path: Path) -> Array:
        problem, unravel = path.problem, path.unflatten
        memory = self.exits.begin(problem.at(0.0), unravel(path.state_vectors[0]))
        margin = lambda t, y: self.exits.margin(problem.at(t), unravel(y), memory)
        margins = jax.vmap(margin)(path.t, path.state_vectors)
        reached = margins >= 0
        last = jnp.maximum(reached.argmax(), 1)
        t, end, y = path.t[last - 1], path.t[last], path.state_vectors[last - 1]
        before = reduce_below_jump(end)
        slope = lambda y, t: ravel_pytree(problem.drift(unravel(y), jnp.minimum(t, before)))[0]
        advance = lambda h: runge_kutta(slope, y, h, t + h * jnp.asarray(STAGE_TIMES))
        left = lambda h: margin(jnp.minimum(t + h, before), advance(h))
        h = lax.stop_gradient(_find_crossing(lambda h: lax.stop_gradient(left(h)), end - t, margins[last - 1], margins[last]))
        # without an exit there is no root, and a step of any length could overflow in the branch that is not taken
        h = jnp.where(reached.any(), h, 0.0)
        y_exit, t_exit = advance(h), jnp.minimum(t + h, before)
        _, rate = jax.jvp(partial(margin, t_exit), (y_exit,), (slope(y_exit, t_exit),))
        rate = lax.stop_gradient(jnp.where(reached.any(), rate, 1.0))
        # a step of Newton's method with a fixed slope has the value of the root and its derivative
        exit_time = t + h - margin(t_exit, y_exit) / rate
        share = jnp.where(reached.any(), 0.0, margins[-1] / lax.stop_gradient(margins[0]))
        return jnp.where(reached.any(), jnp.where(reached[0], 0.0, exit_time), path.t[-1] * (1 + share))


def _find_crossing(f: Callable, width: Array, low: Array, high: Array) -> Array:
    """Return the zero of f on [0, width] by regula falsi (Illinois), from its values `low` below 0 and `high` above."""

    def narrow(_, state):
        a, b, fa, fb = state
        x = jnp.where(fb - fa > 0, a - fa * (b - a) / jnp.where(fb - fa > 0, fb - fa, 1.0), (a + b) / 2)
        fx = f(x)
        above = fx >= 0
        # the value at an end that stays is halved, which keeps the other end from creeping
        return jnp.where(above, a, x), jnp.where(above, x, b), jnp.where(above, fa / 2, fx), jnp.where(above, fx, fb / 2)

    low, high = lax.stop_gradient((low, high))
    a, b, _, _ = lax.fori_loop(0, MAX_ROOT_ITERATIONS, narrow, (jnp.zeros_like(width), width, low, high))
    return (a + b) / 2


def _check_scalar(value: Any) -> Array:
    """Return the value of a user's function, or raise `BadInput` unless it is one number."""
    number = jnp.asarray(value, float)
    if number.ndim:
        raise BadInput(f"objective must return one number; got an array of shape {number.shape}. Return, say, its mean.")
    return number


def as_objective(name: str, value: Any) -> Objective:
    """Convert None, "exit", a condition `exits(T)` or a JAX function to an objective; `name` is the argument in errors."""
    if value is None or isinstance(value, Objective):
        return FinalRisk() if value is None else value
    if isinstance(value, Exits):
        return ExitTime(value)
    if isinstance(value, str) and value in ("risk", "exit"):
        return FinalRisk() if value == "risk" else ExitTime(exits(0.5))
    needed = _count_required(value)
    if needed in (2, 3):
        return StatisticsObjective(value) if needed == 2 else PathObjective(value)
    raise BadInput(
        f"{name} must be None, 'exit', exits(T) or a function; got {shorten(value)}. "
        "Give, for instance, lambda problem, stats: problem.risk(stats), or a function of (problem, path, t)."
    )


def _count_required(function: Any) -> int:
    """Return the number of positional arguments that a function requires; 0 for an object that is not a function."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)
