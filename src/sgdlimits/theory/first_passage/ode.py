"""When a flow has lost a share of its excess risk."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree
from numpy.polynomial import Chebyshev
from scipy.integrate import DOP853
from scipy.optimize import brentq

from sgdlimits.problem.base import Problem

DEGREE = 16
"""Of the risk along a step: more than twice that of the solver's own polynomial, so exact for risks of second degree."""
FAR = 1e6
"""A run with a larger number has diverged."""


def ode_exit_times(problem: Problem, starts: PyTree, threshold: float, t_max: float) -> np.ndarray:
    """When each run (runs first) has lost the share `threshold` of its excess risk; infinite where not before `t_max`."""
    leaves, tree = jax.tree.flatten(starts)
    cuts = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
    parts = lambda y: zip(np.split(y, cuts, axis=1), leaves, strict=True)
    stats = lambda y: jax.tree.unflatten(tree, [part.reshape(leaf.shape) for part, leaf in parts(y)])
    risk = lambda y: np.asarray(_over_runs(problem, "risk", stats(y)))
    slope = lambda y: _rows(_over_runs(problem, "drift", stats(y)))
    y = _rows(starts)
    level = (1 - threshold) * risk(y) + threshold * float(problem.floor)
    return passage_times(slope, risk, y, level, t_max, problem.tolerance)


def passage_times(
    slope: Callable, risk: Callable, y: Float[np.ndarray, "runs n"], level: np.ndarray, t_max: float, rtol: float
) -> Float[np.ndarray, " runs"]:
    """When the risk of each run has come down to its level; infinite where not before `t_max`, or where the run diverges.

    The runs are one system, in which those that are through rest. `slope` and `risk` take the states of all of them.
    """
    rows = lambda flat: flat.reshape(y.shape)
    moving = risk(y) > level
    flow = lambda t, flat: (slope(rows(flat)) * moving[:, None]).ravel()
    times = np.where(moving, np.inf, 0.0)
    solver = DOP853(flow, 0.0, y.ravel(), t_max, rtol=rtol, atol=rtol / 100)
    while solver.status == "running" and moving.any():
        with np.errstate(all="ignore"):
            solver.step()
        through = moving & (risk(rows(solver.y)) <= level)
        if through.any():
            path, domain = solver.dense_output(), [solver.t_old, solver.t]
            nodes = Chebyshev.basis(DEGREE + 1, domain).roots()
            above = np.stack([risk(rows(path(t))) - level for t in nodes])[:, through]
            times[through] = [_root(Chebyshev.fit(nodes, values, DEGREE, domain), *domain) for values in above.T]
        moving &= ~through & (np.abs(rows(solver.y)) <= FAR).all(1)
        solver.f = flow(solver.t, solver.y)
    return times


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """Where a function falls through zero, or the end at which rounding hides it."""
    return low if f(low) <= 0 else high if f(high) > 0 else brentq(f, low, high)


def _rows(stats: PyTree) -> np.ndarray:
    """The numbers of each run in a row."""
    return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(stats)], axis=1)


@eqx.filter_jit
def _over_runs(problem: Problem, method: str, stats: PyTree) -> PyTree:
    return problem.over_runs(getattr(problem, method), stats)
