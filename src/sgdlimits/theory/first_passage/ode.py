"""When the flow of a problem's drift has lost a share of its excess risk."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree
from numpy.polynomial import Chebyshev
from scipy.integrate import DOP853
from scipy.optimize import brentq

from sgdlimits.problem.base import Problem

DEGREE = 16
"""Of the risk along a step: more than twice that of the solver's own polynomial, so exact for risks of second degree."""
FAR = 1e6
"""A run with a larger number has diverged."""


def ode_exit_times(problem: Problem, starts: PyTree, threshold: float, t_max: float) -> np.ndarray:
    """When each run (runs first) has lost the share `threshold` of its excess risk; infinite where not before `t_max`.

    The runs are one system, in which those that are through rest.
    """
    leaves, tree = jax.tree.flatten(starts)
    y = _rows(starts)
    cuts = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
    parts = lambda flat: zip(np.split(flat.reshape(y.shape), cuts, axis=1), leaves, strict=True)
    stats = lambda flat: jax.tree.unflatten(tree, [part.reshape(leaf.shape) for part, leaf in parts(flat)])
    risk = lambda flat: np.asarray(_risks(problem, stats(flat)))
    level = (1 - threshold) * risk(y) + threshold * float(problem.floor)
    moving = risk(y) > level
    slope = lambda t, flat: (_rows(_slopes(problem, stats(flat))) * moving[:, None]).ravel()
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


def _rows(stats: PyTree) -> np.ndarray:
    """The numbers of each run in a row."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(stats)], axis=1)


@eqx.filter_jit
def _slopes(problem: Problem, stats: PyTree) -> PyTree:
    return problem.over_runs(problem.drift, stats)


@eqx.filter_jit
def _risks(problem: Problem, stats: PyTree) -> jax.Array:
    return problem.over_runs(problem.risk, stats)
