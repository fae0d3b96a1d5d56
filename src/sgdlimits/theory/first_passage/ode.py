"""When the flow of a problem's drift has lost a share of its excess risk."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree
from numpy.polynomial import Chebyshev
from scipy.integrate import DOP853
from scipy.optimize import brentq

from sgdlimits.problem.base import Problem
from sgdlimits.statistics.trees import one_of

DEGREE = 16
"""Of the risk along a step: more than twice that of the solver's own polynomial, so exact for risks of second degree."""
FAR = 1e6
"""A run with a larger number has diverged."""


def ode_exit_times(problem: Problem, starts: PyTree, threshold: float, t_max: float) -> np.ndarray:
    """When each run (runs first) has lost the share `threshold` of its excess risk; infinite where not before `t_max`.

    The runs are one system, in which those that are through rest.
    """
    rebuild = ravel_pytree(one_of(starts))[1]
    y = np.asarray(jax.vmap(lambda one: ravel_pytree(one)[0])(starts))
    rows = lambda flat: jax.vmap(rebuild)(flat.reshape(y.shape))
    risk = lambda flat: np.asarray(_risks(problem, rows(flat)))
    level = (1 - threshold) * risk(y) + threshold * float(problem.floor)
    moving = risk(y) > level
    slope = lambda t, flat: (np.asarray(_slopes(problem, rows(flat))) * moving[:, None]).ravel()
    times = np.where(moving, np.inf, 0.0)
    solver = DOP853(slope, 0.0, y.ravel(), t_max, rtol=problem.tolerance, atol=problem.tolerance / 100)
    while solver.status == "running" and moving.any():
        with np.errstate(all="ignore"):
            solver.step()
        through = moving & (risk(solver.y) <= level)
        if through.any():
            times[through] = _crossings(solver, risk, level, through)
        moving &= ~through & (np.abs(solver.y.reshape(y.shape)) <= FAR).all(1)
        solver.f = slope(solver.t, solver.y)
    return times


def _crossings(solver: DOP853, risk: Callable, level: np.ndarray, which: np.ndarray) -> list[float]:
    """When within the last step the risk of these runs comes down to their levels."""
    path, domain = solver.dense_output(), [solver.t_old, solver.t]
    nodes = Chebyshev.basis(DEGREE + 1, domain).roots()
    above = np.stack([risk(path(t)) - level for t in nodes])[:, which]
    return [_root(Chebyshev.fit(nodes, values, DEGREE, domain), *domain) for values in above.T]


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Where a function falls through zero, or the end at which rounding hides it."""
    return low if f(low) <= 0 else high if f(high) > 0 else brentq(f, low, high)


@eqx.filter_jit
def _slopes(problem: Problem, stats: PyTree) -> jax.Array:
    return problem.over_runs(lambda one: ravel_pytree(problem.drift(one))[0], stats)


@eqx.filter_jit
def _risks(problem: Problem, stats: PyTree) -> jax.Array:
    return problem.over_runs(problem.risk, stats)
