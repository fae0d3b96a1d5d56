r"""Plateau that random starts approach: its position, and to first order the noise with which runs leave the plateau.

As the dimension d grows, the statistics of random weights tend to a limit, the centre, from which the ODE approaches a fixed
point, the plateau. Deviations y from that path of the ODE obey
:math:`dy = J(t)\,y\,dt + d^{-1/2}\,\Sigma(t)^{1/2}dB`, with the Jacobian J of the drift and the covariance
:math:`\Sigma` of one sample's increments. Let the rows of L span the unstable left eigenspace of J at the plateau,
:math:`LJ = AL`, and let :math:`\ell(t)` solve

.. math:: \dot\ell = -\ell J(t) + A\ell, \qquad \ell(\infty) = L .

Then :math:`z = \lim_{t\to\infty} e^{-At}\ell(t)\,y(t)` is the amplitude with which a run leaves the plateau. It is Gaussian,

.. math:: z = \ell(0)\,y(0) + N(0, K/d), \qquad
          K = \int_0^\infty e^{-At}\,\ell\,\Sigma\,\ell^\top e^{-A^\top t}\,dt .

A run of SGD leaves the plateau like the ODE from a start to whose amplitude :math:`\ell(0)\,y(0)` this noise has been added.
For a start at the plateau :math:`AK + KA^\top = L\Sigma L^\top`. For phase retrieval on the sphere K is :math:`\kappa` times
the variance of the start, where :math:`\kappa` is `theory.mediocrity.noise_gain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import PyTree
from scipy.integrate import solve_ivp

from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import jit_bound
from sgdlimits.kernel.random import Stream
from sgdlimits.level.local import linearise_at
from sgdlimits.problem.base import Problem
from sgdlimits.problem.directions import check_no_blocks
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.start import OrthogonalInit, RandomInit, Start, as_start
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import select_run

ZERO_RATE = 1e-6
"""Fraction of the largest rate of the linearised ODE below which a rate counts as zero."""
MAX_DRIFT = 1e-9
"""Largest drift, relative to the fastest rate, at which the end of Newton's method counts as a fixed point."""
MAX_DISTANCE = 0.05
"""Largest distance of the plateau from the end of the ODE's path, relative to the norm of the plateau."""
MAX_DOUBLINGS = 12
"""Maximum number of times that the ODE's path is doubled in length in the search for the plateau."""
MAX_NEWTON_STEPS = 30
"""Largest number of Newton steps to a fixed point; convergence is quadratic."""
MAX_GROWTH = 12.0
"""Duration of the path, in inverse growth rates, after which a point that still moves slowly counts as the plateau."""
PATH_TOLERANCE = 1e-7
"""Relative tolerance of the ODEs for the path and for its adjoint, far below the method's error of order 1/sqrt(d)."""
NODE_COUNT = 4
"""Number of Gauss-Legendre nodes for the noise on each piece of the path; each piece is as long as all earlier ones."""


@dataclass(frozen=True)
class Departure:
    r"""Saddle of the ODE that a start approaches, with the noise of the linear departure from the saddle.

    The amplitude of the departure is the vector z of components along the u unstable directions of the saddle.

    Attributes
    ----------
    point : statistics at the saddle; if norms and second layer still change slowly there, statistics after a few escape times
    centre : limit of the statistics of the start as d grows
    risk : population risk at the saddle
    rates : growth rates along the unstable directions, shape (u,)
    projection : matrix from initial deviations from the centre, in the n free coordinates of `problem.vector`, to z,
        shape (u, n)
    noise : d times the covariance of the noise that SGD adds to z, shape (u, u)
    """

    point: PyTree
    centre: PyTree
    risk: float
    rates: np.ndarray
    projection: np.ndarray
    noise: np.ndarray


def find_plateau(problem: Problem, start: Start | PyTree, point: PyTree | None = None) -> Departure:
    """Find the plateau that a start approaches, and compute the noise of the departure from it.

    `point`, if given, has statistics near the plateau, which Newton's method then refines.

    >>> import sgdlimits as sl
    >>> plateau = find_plateau(sl.presets.phase_retrieval(lr=1 / 12), sl.RandomInit(d=1000))
    >>> round(float(plateau.noise[0, 0] / plateau.projection[0, 0] ** 2), 4)      # kappa = 1 at this learning rate
    1.0
    """
    problem = evaluate_at_time_if_needed(problem, None, "Give problem.at(t).").limit
    centre = problem.coordinates.in_limit(find_limit_of_start(problem, start))
    free = np.flatnonzero(problem.coordinates.moves(centre))
    base = np.asarray(problem.vector(centre))

    def stats(x: Any) -> PyTree:
        full = base.copy()
        full[free] = x
        return problem.from_vector(jnp.asarray(full), centre)

    sharp = problem.numerics.without_smoothing()
    drift_at, slopes_at = jit_bound(_drift, sharp), jit_bound(_drift_and_jacobian, sharp)
    drift = lambda t, x: np.asarray(drift_at(stats(x)))[free]

    def slopes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        b, J = map(np.asarray, slopes_at(stats(x)))
        return b[free], J[np.ix_(free, free)]

    b, J = slopes(base[free])
    fastest = np.abs(np.linalg.eigvals(J)).max() + np.abs(b).max()
    if not fastest > 0:
        raise BadInput(
            "at the centre of the start the linearised ODE has no growing mode, so that runs do not escape. Give a larger lr."
        )
    given = None if point is None else np.asarray(problem.vector(problem.coordinates.in_limit(point)))[free]
    pieces: list[Any] = []
    # follow the ODE, each piece as long as all before, until Newton's method finds a fixed point near its end
    t, x, span = 0.0, base[free], float(4 / fastest)
    found = None if given is None else _find_fixed_point(slopes, given, fastest)
    near = lambda found, x: np.linalg.norm(found - x) <= MAX_DISTANCE * max(1e-3, float(np.linalg.norm(found)))
    # a start at the given plateau needs no path, which errors of a fitted drift would carry away from it
    for _ in range(0 if found is not None and near(found, x) else MAX_DOUBLINGS):
        piece = solve_ivp(drift, (t, t + span), x, "DOP853", dense_output=True, rtol=PATH_TOLERANCE, atol=PATH_TOLERANCE / 100)
        if not piece.success:
            raise BadInput(
                f"the ODE's solution from the centre of the start reaches a drift that is not finite, at t = "
                f"{piece.t[-1]:.3g}. "
                "Give another start; with fitted functions, start=problem.state(...) within their region."
            )
        pieces.append(piece)
        t, x, span = t + span, piece.y[:, -1], t + span
        found = _find_fixed_point(slopes, x if given is None else given, fastest)
        if found is not None and near(found, x):
            break
        if given is None and float(np.linalg.eigvals(slopes(x)[1]).real.max()) * float(t) > MAX_GROWTH:
            found = x
            break
    if found is None or (pieces and not near(found, x)):
        raise BadInput(
            "the ODE from the mean of the start does not come to rest" + ("" if given is None else " near the given plateau")
            + ", so that there is no plateau. Use exit_times(simulate(...), 0.5)."
        )  # fmt: skip
    _, J, Sigma = linearise_at(problem, stats(found))
    # ordered Schur form of J^T: the first columns of Z span the unstable left eigenspace of J
    T, Z, unstable = scipy.linalg.schur(J.T, sort=lambda real, imaginary: real > ZERO_RATE * np.abs(J).sum(1).max())
    if not unstable:
        largest = float(np.linalg.eigvals(J).real.max())
        raise BadInput(
            f"the ODE from the centre of the start ends at a point without unstable directions (largest rate {largest:.3g}), "
            "so that runs do not leave it exponentially. Give a smaller lr or another start, or simulate and use exit_times."
        )
    L, A = Z[:, :unstable].T, T[:unstable, :unstable].T
    ell, noise = _integrate_back(problem, slopes, stats, pieces, free, L, A, Sigma)
    rates = np.linalg.eigvals(A)
    risk = float(problem.risk(stats(found)))
    return Departure(stats(found), centre, risk, rates[np.argsort(-rates.real)], ell, (noise + noise.T) / 2)


def find_limit_of_start(problem: Problem, start: Start | PyTree) -> PyTree:
    """Return the limit of the statistics of a start as d grows, where random overlaps vanish."""
    start = as_start(start)
    check_no_blocks(problem, "the departure from a plateau", "Use exit_times(simulate(...), 0.5).")
    if isinstance(start, RandomInit):
        law, (scale, _) = problem.directions.initial, start.scale_and_norm(problem)
        if start.positive is not None or (law.second_spread and start.second is None):
            raise BadInput(
                "the second layer of this start is random, so that runs follow different paths. "
                "Fix it, for instance with RandomInit(d, second=1.0)."
            )
        p, k = problem.directions.width, problem.directions.fixed
        first = select_run(start.overlaps(problem, Stream.from_seed(0, np.arange(1))))
        M, Q = np.zeros((1, p, k)), float(scale) ** 2 * np.eye(p)[None]
        second = jax.tree.map(lambda leaf: np.asarray(leaf)[None], first.a)
        return select_run(problem.coordinates.from_overlaps(Overlaps(second, M, Q)))
    return (OrthogonalInit(0.0, start.second) if isinstance(start, OrthogonalInit) else start).one(problem)


def noisy_starts(problem: Problem, plateau: Departure, start: Start | PyTree, d: int, runs: int, seed: int = 0) -> PyTree:
    """Draw random starts, runs first, to which the noise of SGD is added, so that the ODE from them has the exit times of SGD.

    The noise is that of the amplitude with which runs leave the plateau. It is added along the directions in which the start
    varies, or, for a start that does not vary, along the shortest vectors with the given amplitude.
    """
    problem = problem.limit
    free = np.flatnonzero(problem.coordinates.moves(plateau.centre))
    given = as_start(start).sample(problem, runs=runs, seed=seed)
    x = np.array(jax.vmap(problem.vector)(jax.vmap(problem.coordinates.in_limit)(given)))
    spread = np.cov(x[:, free], rowvar=False, bias=True).reshape(free.size, free.size)
    ell = plateau.projection
    along = spread @ ell.T
    if np.linalg.matrix_rank(ell @ along) < len(ell):
        along = ell.T
    lift = along @ np.linalg.inv(ell @ along)
    values, vectors = np.linalg.eigh(plateau.noise / d)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng([seed, 1]).standard_normal((runs, len(ell)))
    x[:, free] += normal @ root.T @ lift.T
    return jax.vmap(lambda one: problem.from_vector(one, plateau.centre))(x)


def _drift_and_jacobian(problem: Problem, stats: PyTree) -> Any:
    """Return the drift of a problem at given statistics as a vector, and the Jacobian of the drift."""
    along = lambda x: problem.vector(problem.drift(problem.from_vector(x, stats)))
    x = problem.vector(stats)
    return along(x), jax.jacfwd(along)(x)


def _drift(problem: Problem, stats: PyTree) -> Any:
    """Return the drift of a problem at statistics given as a vector, as a vector."""
    return problem.vector(problem.drift(stats))


def _covariance(problem: Problem, stats: PyTree) -> Any:
    """Return the covariance of a problem's one-sample increments, times d, at statistics given as a vector."""
    return problem.covariance(stats)


def _find_fixed_point(slopes: Any, x: np.ndarray, fastest: float) -> np.ndarray | None:
    """Return the fixed point of the ODE that Newton's method finds from x, or None if it does not converge."""
    for _ in range(MAX_NEWTON_STEPS):
        drift, J = slopes(x)
        if np.abs(drift).max() <= MAX_DRIFT * fastest:
            return x
        step = np.linalg.lstsq(J, drift, rcond=ZERO_RATE)[0]
        if not np.isfinite(step).all() or np.abs(step).max() > 1:
            return None
        x = x - step
    return None


def _integrate_back(
    problem: Problem, slopes: Any, stats: Any, pieces: list, free: np.ndarray, L: np.ndarray, A: np.ndarray, Sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    r"""Integrate the unstable modes :math:`\ell` back along the path; return :math:`\ell(0)` and their noise covariance K.

    The integral of :math:`L\Sigma L^\top` at the plateau is exact; the difference on the path is integrated by quadrature.
    """
    u, n = L.shape
    covariance = jit_bound(_covariance, problem)
    K, ell = scipy.linalg.solve_continuous_lyapunov(A, L @ Sigma @ L.T), L
    nodes, weights = np.polynomial.legendre.leggauss(NODE_COUNT)

    def derivative(t, y, piece):
        ell = y.reshape(u, n)
        return (-ell @ slopes(piece.sol(t))[1] + A @ ell).ravel()

    for piece in reversed(pieces):
        first, last = piece.t[0], piece.t[-1]
        times = (first + last) / 2 + (last - first) / 2 * nodes[::-1]
        how: dict = dict(rtol=PATH_TOLERANCE, atol=PATH_TOLERANCE / 100, args=(piece,))
        rows = solve_ivp(derivative, (last, first), ell.ravel(), "DOP853", np.append(times, first), **how).y.T.reshape(-1, u, n)
        for t, weight, row in zip(times, weights[::-1], rows, strict=False):
            here = np.asarray(covariance(stats(piece.sol(t))))[np.ix_(free, free)]
            decay = scipy.linalg.expm(-A * t)
            K = K + weight * (last - first) / 2 * decay @ (row @ here @ row.T - L @ Sigma @ L.T) @ decay.T
        ell = rows[-1]
    return ell, K
