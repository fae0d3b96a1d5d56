r"""Law of the exit time of two-layer networks for large d: SGD's noise near the saddle, added to the random start of the ODE.

Random weights begin at M = 0 up to :math:`O(1/\sqrt d)`. Along the solution :math:`(a, Q)` of the ODE from there with M = 0,

.. math:: dM = A(t)\,M\,dt + d^{-1/2}\,\Sigma_M(t)^{1/2} dB, \qquad M(0) \sim N(0, V_0/d),

to first order, where A is the Jacobian of the drift of M and :math:`\Sigma_M` the covariance of its increments. With
:math:`\dot\Phi = A\Phi` the run equals a solution of the ODE from a normal start of covariance

.. math:: \frac1d\Big(V_0 + \int_0^\infty \Phi^{-1}\Sigma_M\Phi^{-\top}\,dt\Big),

which for phase retrieval on the sphere is :math:`(1+\kappa)/d`. While M is small it equals :math:`\Phi M_0`, at a cost
independent of d; the full ODE is solved from the time when it no longer is. The error is of order 1/(T d) at the threshold T.
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

from sgdlimits.algorithm.needs import is_linear
from sgdlimits.analysis.first_passage import PassageTimeLaw, ode_exit_times
from sgdlimits.domain import Count, Fraction, checked
from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import jit_bound
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import Overlaps

START_POINTS = 4096
"""Number of starts that represent the normal law."""
PATH_TIMES = 65
"""Number of times at which the linear equation of M is evaluated."""
MAX_DOUBLINGS = 8
"""Number of times that the relaxation time may double in the search for the settled growth rate."""
MAX_LINEAR_OVERLAP = 0.03
"""Largest overlap, relative to the norms, up to which M follows its linear equation."""
NOISE_TIME = 5.0
"""Time over which noise is added, in inverse growth rates: later noise is smaller by exp(-10)."""
MAX_EXIT_TIME = 60.0
"""Time beyond the linear part, in inverse growth rates, after which a start counts as never exiting."""
MAX_RATE_CHANGE = 0.02
"""Relative change of the growth rate, as time doubles, below which the rate has settled."""
ODE_TOLERANCE = 1e-6
"""Relative tolerance of the ODE solver, far below the error of order 1/(T d) of the method."""


class LinearPath(NamedTuple):
    """Solution of the ODE at given times while the overlaps M with the teachers are zero.

    The fields are the overlaps, the fundamental matrix of the linear equation of M, and the accumulated noise times d.
    """

    t: np.ndarray
    stats: list[Overlaps]
    growth: np.ndarray
    noise: np.ndarray


@checked
def exit_law(problem: ProjectionProblem, d: Count, threshold: Fraction) -> PassageTimeLaw:
    """Distribution of the time in which a run from a random start loses a share `threshold` of its excess risk, for large d.

    The dimension is d.

    Its error is of order 1/(threshold d): three units on the sphere leave 4 % later at threshold 0.1 and d = 300.

    The problem must be one-pass SGD of a two-layer network for which M = 0 is a saddle: of any width, on or off the sphere, and
    with a trained or fixed second layer.
    """
    first = _find_saddle(problem)
    p, k = first.M.shape
    relaxation, rate = _find_relaxation(problem, first)
    # covariance of the random start of M, times d
    weights = float(problem.initial.scale) ** 2 * np.kron(np.eye(p), np.asarray(problem.target.gram))
    way = max(NOISE_TIME, np.log(MAX_LINEAR_OVERLAP * np.sqrt(d))) / rate
    path = _solve_linear(problem, first, np.linspace(0, relaxation + way, PATH_TIMES))
    # start and noise are Gaussian, and so is their sum
    root = np.linalg.cholesky((weights + path.noise[-1]) / d)
    sizes = np.linalg.norm(path.growth @ root, 2, (1, 2)) / float(problem.initial.scale)
    large = sizes > MAX_LINEAR_OVERLAP
    # the last time before overlaps leave the linear regime
    at = max(0, int(np.argmax(large)) - 1) if large.any() else PATH_TIMES - 1
    floor = float(problem.floor)
    risks = np.array([float(problem.risk(one)) for one in path.stats[: at + 1]]) - floor
    # the excess risk that remains at the exit
    left = (1 - threshold) * risks[0]
    if risks.min() <= left:
        raise BadInput(
            f"the excess risk falls by the share {threshold:g} while the overlaps are still zero, so no escape is needed. "
            "Give a larger threshold, or simulate."
        )
    # the accumulated start, carried to that time by the linear flow
    M = (_normal_points(p * k) @ root.T @ path.growth[at].T).reshape(-1, p, k)
    many = lambda leaf: np.broadcast_to(leaf, (len(M), *np.shape(leaf)))
    starts = Overlaps(many(path.stats[at].a), M, many(path.stats[at].Q))
    excess = np.asarray(jax.vmap(problem.risk)(starts)) - floor
    t = path.t[at] + ode_exit_times(problem, starts, 1 - left / excess, MAX_EXIT_TIME / rate, ODE_TOLERANCE)
    if not np.isfinite(t).all():
        raise BadInput(
            f"{np.isinf(t).sum()} of {t.size} starts of the ODE never lose the share {threshold:g} of their excess risk. "
            "Give a smaller threshold or lr, or simulate."
        )
    return PassageTimeLaw.from_samples(t)


def _find_saddle(problem: ProjectionProblem) -> Overlaps:
    """Return the saddle with zero teacher overlaps M to which random starts tend for large d.

    Raise `BadInput` if there is no saddle.
    """
    plain = isinstance(problem, ProjectionProblem) and problem.network.plain
    if not plain or not is_linear(problem.algorithm, problem.network.width):
        raise BadInput("exit_law needs a two-layer network and one-pass SGD. Simulate, and use exit_times.")
    law, (p, k) = problem.initial, (problem.network.width, problem.target.teachers)
    if law.second_spread:
        raise BadInput(
            "exit_law needs a second layer that starts at fixed values; the problem's is random. Simulate, and use exit_times."
        )
    first = Overlaps(np.full(p, law.second), np.zeros((p, k)), float(law.scale) ** 2 * np.eye(p))
    slope = np.abs(problem.drift(first).M).max()
    if slope > 1e-3 * float(problem.algorithm.lr_sample):
        raise BadInput(f"zero overlap is not a saddle: the drift of M there is {slope:.3g}. Simulate, and use exit_times.")
    return first


def _linearise_overlaps(problem: ProjectionProblem, stats: Overlaps) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Return the Jacobian of the drift of the teacher overlaps M, and the covariance of their increments."""
    there = lambda M: Overlaps(stats.a, M.reshape(stats.M.shape), stats.Q)
    n = stats.M.size
    return jax.jacfwd(lambda M: problem.drift(there(M)).M.ravel())(jnp.ravel(stats.M)), problem.covariance(stats)[:n, :n]


def _find_relaxation(problem: ProjectionProblem, first: Overlaps) -> tuple[float, float]:
    """Return the time at which norms and second layer have relaxed, and the later growth rate of M.

    Here M has the overlaps with the teachers, which are zero on the path.
    """
    linear = jit_bound(_linearise_overlaps, problem)
    rates = lambda stats: np.linalg.eigvals(linear(stats)[0]).real
    t, rate = 0.0, float(rates(first).max())
    # the fastest of norms and overlaps sets the first step
    step = 1 / max(np.abs(problem.drift(first).Q).max(), np.abs(rates(first)).max(), 1e-12)
    for _ in range(MAX_DOUBLINGS):
        later = float(rates(_solve_linear(problem, first, np.array([0.0, t + step])).stats[-1]).max())
        if abs(later - rate) <= MAX_RATE_CHANGE * abs(later) or (rate > 0 and t + step > NOISE_TIME / rate):
            break
        t, step, rate = t + step, 2 * step, later
    if not rate > 0:
        raise BadInput(
            f"the plateau at zero overlap is stable: its largest growth rate is {rate:.3g}. Give a smaller lr, or simulate."
        )
    return t, rate


def _solve_linear(problem: ProjectionProblem, first: Overlaps, times: np.ndarray) -> LinearPath:
    """Solve the ODE from `first` at the given times, with the linear equation of M and its accumulated noise.

    Here M has the overlaps with the teachers, which are zero on the path.
    """
    p, n = first.width, first.M.size
    sizes = np.cumsum([p, p * p, n * n, n * n])
    linear, drift_at = jit_bound(_linearise_overlaps, problem), jit_bound(ProjectionProblem.drift, problem)

    def split(y):
        """Split the flat state into overlaps, fundamental matrix, its inverse, and accumulated noise."""
        a, Q, growth, back, noise = np.split(y, sizes)
        square = lambda part: part.reshape(n, n)
        return Overlaps(a, first.M, Q.reshape(p, p)), square(growth), square(back), square(noise)

    def slope(_, y):  # the inverse of the fundamental matrix has its own equation, which avoids inverting a growing matrix
        """Return the time derivative of the flat state."""
        stats, growth, back, _ = split(y)
        (A, Sigma), drift = map(np.asarray, linear(stats)), drift_at(stats)
        parts = (drift.a, drift.Q, A @ growth, -back @ A, back @ Sigma @ back.T)
        return np.concatenate([np.ravel(part) for part in parts])

    y = np.concatenate([np.ravel(part) for part in (first.a, first.Q, np.eye(n), np.eye(n), np.zeros((n, n)))])
    rows = solve_ivp(slope, (0, times[-1]), y, "DOP853", times, rtol=ODE_TOLERANCE, atol=ODE_TOLERANCE / 100).y.T
    stats, growth, _, noise = zip(*map(split, rows), strict=True)
    return LinearPath(times, list(stats), np.stack(growth), np.stack(noise))


def _normal_points(n: int) -> np.ndarray:
    """Return points that represent a standard normal vector in R^n: quantiles for n = 1, Sobol points otherwise."""
    if n == 1:
        # midpoints of equally likely intervals
        return ndtri((np.arange(START_POINTS)[:, None] + 0.5) / START_POINTS)
    return ndtri(scipy.stats.qmc.Sobol(n, seed=0).random(START_POINTS))
