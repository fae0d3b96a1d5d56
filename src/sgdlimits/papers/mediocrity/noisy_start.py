r"""The law of the exit time of any network as d grows: SGD's noise near the saddle added to the random start, then the ODE.

Random weights begin at M = 0 up to :math:`O(1/\sqrt d)`. On the path :math:`(a, Q)` that the ODE takes from there with M = 0,

.. math:: dM = A(t)\,M\,dt + d^{-1/2}\,\Sigma_M(t)^{1/2} dB, \qquad M(0) \sim N(0, V_0/d),

to first order, where A is the Jacobian of the drift of M and :math:`\Sigma_M` the covariance of its increments. With
:math:`\dot\Phi = A\Phi` the run is one of the ODE from a normal start of the covariance

.. math:: \frac1d\Big(V_0 + \int_0^\infty \Phi^{-1}\Sigma_M\Phi^{-\top}\,dt\Big),

which for phase retrieval on the sphere is :math:`(1+\kappa)/d`. From there on :math:`M = \Phi M_0` while it is small, at no
cost however large d is, and the full ODE is solved from where it is not. The error is of order 1/(T d) at the threshold T.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp
from scipy.special import ndtri

from sgdlimits.analysis.first_passage import Law, ode_exit_times
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, check_share
from sgdlimits.jaxtools import compiled
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import Overlaps

STARTS = 4096
TIMES, DOUBLINGS = 65, 8
SMALL = 0.03
"""Up to overlaps of this size, relative to the norms, M is followed by its linear equation."""
FADED = 5.0
"""Noise is added for so many times the inverse growth rate, after which what it adds has faded by exp(-10)."""
LATE = 60.0
"""A start that needs so many times the inverse growth rate beyond that never exits."""
STILL = 0.02
"""A rate that changes by no more than this share as time doubles has settled."""
TOLERANCE = 1e-6


class Path(NamedTuple):
    """The ODE with M = 0 at some times: its statistics, and of M the growth and the noise that it has met, times d."""

    t: np.ndarray
    stats: list[Overlaps]
    growth: np.ndarray
    noise: np.ndarray


@checked(threshold=check_share)
def exit_law(problem: ProjectionProblem, d: int, threshold: float) -> Law:
    """The law of the time in which a run from a random start loses the share `threshold` of its excess risk.

    Its error is of order 1/(threshold d): three units on the sphere leave 4 % later at threshold 0.1 and d = 300.

    For one-pass SGD of any width, on the sphere or not, with or without a trained second layer, where M = 0 is a saddle.
    """
    first = _saddle(problem)
    p, k = first.M.shape
    settled, rate = _settled(problem, first)
    weights = float(problem.initial.scale) ** 2 * np.kron(np.eye(p), np.asarray(problem.target.gram))
    way = max(FADED, np.log(SMALL * np.sqrt(d))) / rate
    path = _follow(problem, first, np.linspace(0, settled + way, TIMES))
    root = np.linalg.cholesky((weights + path.noise[-1]) / d)
    sizes = np.linalg.norm(path.growth @ root, 2, (1, 2)) / float(problem.initial.scale)
    at = max(0, int(np.argmax(sizes > SMALL)) - 1) if (sizes > SMALL).any() else TIMES - 1
    floor = float(problem.floor)
    risks = np.array([float(problem.risk(one)) for one in path.stats[: at + 1]]) - floor
    left = (1 - threshold) * risks[0]
    if risks.min() <= left:
        raise BadInput(
            f"the risk falls by the share {threshold:g} while the overlaps are still zero: no escape decides the time. "
            "Give a larger threshold, or simulate."
        )
    M = (_normal(p * k) @ root.T @ path.growth[at].T).reshape(-1, p, k)
    many = lambda leaf: np.broadcast_to(leaf, (len(M), *np.shape(leaf)))
    starts = Overlaps(many(path.stats[at].a), M, many(path.stats[at].Q))
    excess = np.asarray(jax.vmap(problem.risk)(starts)) - floor
    t = path.t[at] + ode_exit_times(problem, starts, 1 - left / excess, LATE / rate, TOLERANCE)
    if not np.isfinite(t).all():
        raise BadInput(
            f"{np.isinf(t).sum()} of {t.size} starts never lose the share {threshold:g} of their excess risk by the ODE. "
            "Give a smaller threshold or lr, or simulate."
        )
    return Law.from_samples(t)


def _saddle(problem: ProjectionProblem) -> Overlaps:
    """Where random weights start as d grows, or `BadInput` where that is no saddle of M."""
    if not isinstance(problem, ProjectionProblem) or not problem.network.plain or not problem.algorithm.linear:
        raise BadInput("the law of exit times is for two-layer networks and one-pass SGD. Simulate, and use exit_times.")
    law, (p, k) = problem.initial, (problem.network.width, problem.target.teachers)
    if law.second_spread:
        raise BadInput(
            "the second layer starts at random here, on a path of its own for each run. Simulate, and use exit_times."
        )
    first = Overlaps(np.full(p, law.second), np.zeros((p, k)), float(law.scale) ** 2 * np.eye(p))
    slope = np.abs(problem.drift(first).M).max()
    if slope > 1e-3 * float(problem.algorithm.lr_sample):
        raise BadInput(f"zero overlap is no saddle: the overlaps grow from it at the speed {slope:.3g}. Use ODE(), or trust.")
    return first


def _linear(problem: ProjectionProblem, stats: Overlaps) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Jacobian of the drift of M, and the covariance of its increments."""
    there = lambda M: Overlaps(stats.a, M.reshape(stats.M.shape), stats.Q)
    n = stats.M.size
    return jax.jacfwd(lambda M: problem.drift(there(M)).M.ravel())(jnp.ravel(stats.M)), problem.covariance(stats)[:n, :n]


def _settled(problem: ProjectionProblem, first: Overlaps) -> tuple[float, float]:
    """When norms and second layer have come to rest on the path with M = 0, and the rate at which M grows from there on."""
    linear = compiled(_linear, problem)
    rates = lambda stats: np.linalg.eigvals(linear(stats)[0]).real
    t, rate = 0.0, float(rates(first).max())
    step = 1 / max(np.abs(problem.drift(first).Q).max(), np.abs(rates(first)).max(), 1e-12)
    for _ in range(DOUBLINGS):
        later = float(rates(_follow(problem, first, np.array([0.0, t + step])).stats[-1]).max())
        if abs(later - rate) <= STILL * abs(later) or (rate > 0 and t + step > FADED / rate):
            break
        t, step, rate = t + step, 2 * step, later
    if not rate > 0:
        raise BadInput(f"the plateau at zero overlap is stable, at the rate {rate:.3g}. Give a smaller lr, or simulate.")
    return t, rate


def _follow(problem: ProjectionProblem, first: Overlaps, times: np.ndarray) -> Path:
    """The path from `first`, with the growth of M along it and the noise that it has met."""
    p, n = first.width, first.M.size
    sizes = np.cumsum([p, p * p, n * n, n * n])
    linear, drift_at = compiled(_linear, problem), compiled(ProjectionProblem.drift, problem)

    def split(y):
        a, Q, growth, back, noise = np.split(y, sizes)
        square = lambda part: part.reshape(n, n)
        return Overlaps(a, first.M, Q.reshape(p, p)), square(growth), square(back), square(noise)

    def slope(_, y):
        stats, growth, back, _ = split(y)
        (A, Sigma), drift = map(np.asarray, linear(stats)), drift_at(stats)
        parts = (drift.a, drift.Q, A @ growth, -back @ A, back @ Sigma @ back.T)
        return np.concatenate([np.ravel(part) for part in parts])

    y = np.concatenate([np.ravel(part) for part in (first.a, first.Q, np.eye(n), np.eye(n), np.zeros((n, n)))])
    rows = solve_ivp(slope, (0, times[-1]), y, "DOP853", times, rtol=TOLERANCE, atol=TOLERANCE / 100).y.T
    stats, growth, _, noise = zip(*map(split, rows), strict=True)
    return Path(times, list(stats), np.stack(growth), np.stack(noise))


def _normal(n: int) -> np.ndarray:
    """Points that stand for a standard normal vector: equally likely ones on a line, Sobol's in space."""
    if n == 1:
        return ndtri((np.arange(STARTS)[:, None] + 0.5) / STARTS)
    return ndtri(scipy.stats.qmc.Sobol(n, seed=0).random(STARTS))
