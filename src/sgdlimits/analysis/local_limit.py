"""Linearisation of the drift at a point, and the diffusive limit of SGD at fixed points with its stationary covariance."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import PyTree

from sgdlimits.domain import NotNegative, Positive, Statistics, checked
from sgdlimits.errors import BadInput
from sgdlimits.level.local import linearise_at
from sgdlimits.level.solver import vector_field
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.statistics.trees import to_batch
from sgdlimits.text import format_table

NEUTRAL_TOLERANCE = 1e-6
"""Fraction of the largest rate below which a rate's real part counts as zero, because of rounding or quadrature."""
RANK_TOLERANCE = 1e-8
"""Fraction of the largest eigenvalue of the noise matrix below which an eigenvalue counts as zero."""


@dataclass(frozen=True)
class Linearisation:
    r"""Linear approximation :math:`\dot y = b + J (y - y_0)` of the ODE around a point :math:`y_0`.

    Attributes
    ----------
    names : names of the n free coordinates, such as "M[0,0]", "Q[0,1]" or "a[0]"
    drift : drift b at the point, which is zero at a fixed point, shape (n,)
    matrix : Jacobian J of the drift, shape (n, n)
    rates : eigenvalues of J, the largest real part first, shape (n,)
    modes : right eigenvectors, one a column, in the order of `rates`, shape (n, n)
    """

    names: tuple[str, ...]
    drift: np.ndarray
    matrix: np.ndarray
    rates: np.ndarray
    modes: np.ndarray

    @property
    def stable(self) -> bool:
        """Whether every small perturbation of the point decays."""
        return bool(self.rates[0].real < 0)


@checked
def linearise(problem: Problem, point: Statistics, *, corrector: bool = True, t: NotNegative | None = None) -> Linearisation:
    """Return the linear approximation of a problem's ODE around a point.

    The coordinates are those of `problem.covariance`: for projection problems M row by row, the upper triangle of Q row by
    row, then `a` if it is trained. On the sphere the norms Q_jj are constant and left out.

    Parameters
    ----------
    problem : any problem
    point : statistics of one run, without a batch axis; any point, fixed or not
    corrector : whether the drift contains the effect of the step size, as in `ODE`
    t : time at which schedules are evaluated, for problems with schedules

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> saddle = sl.Overlaps(a=[1.0], M=[[0.0]], Q=[[1.0]])
    >>> rate = sl.linearise(problem, saddle).rates[0].real / problem.rate         # (50): 4 (1 - 6 lr) - 2 lr noise
    >>> round(float(rate), 10)
    1.5
    """
    problem = evaluate_at_time_if_needed(problem, t)
    problem, point = problem.limit, problem.coordinates.in_limit(point)
    problem.coordinates.check_one(point)
    # only free coordinates: fixed ones would add zero eigenvalues
    free = np.flatnonzero(problem.coordinates.moves(point))
    drift, matrix = (np.asarray(part)[free] for part in _drift_and_jacobian(problem, point, corrector))
    rates, modes = np.linalg.eig(matrix[:, free])
    # stable sort keeps conjugate pairs together
    order = np.argsort(-rates.real, kind="stable")
    names = tuple(np.array(problem.coordinates.names(point))[free].tolist())
    return Linearisation(names, drift, matrix[:, free], rates[order], modes[:, order])


@eqx.filter_jit
def _drift_and_jacobian(problem: Problem, point: PyTree, corrector: bool):
    """Return the drift at a point and the drift's Jacobian, in all coordinates, also those that the drift cannot change."""
    slope = vector_field(problem, corrector)
    along = lambda vector: problem.vector(slope(problem.from_vector(vector, point)))
    vector = problem.vector(point)
    return along(vector), jax.jacfwd(along)(vector)


@dataclass(frozen=True, repr=False)
class LocalLimit:
    r"""Linear diffusion :math:`dy = Jy\,dt + \Sigma^{1/2}dB` of :math:`y = \sqrt d\,(u - u^*)` near a fixed point :math:`u^*`.

    Parameters
    ----------
    point : the fixed point :math:`u^*`, statistics of one run
    names : names of the n free coordinates, such as "M[0,0]", "Q[0,1]" or "a[0]"
    drift_matrix : Jacobian J of the drift at the fixed point, shape (n, n)
    noise_matrix : diffusion matrix :math:`\Sigma`, shape (n, n)
    rates : eigenvalues of J, the largest real part first, shape (n,)
    rank : rank of :math:`\Sigma`
    stable, neutral, unstable : number of rates with negative, zero and positive real part
    stationary : limiting covariance of the stable part of y, shape (n, n); None without a stable direction
    is_stationary : whether noise drives stable directions only, so that `stationary` is the limit of the covariance of y if y
        starts at 0
    """

    point: PyTree
    names: tuple[str, ...]
    drift_matrix: np.ndarray
    noise_matrix: np.ndarray
    rates: np.ndarray
    rank: int
    stable: int
    neutral: int
    unstable: int
    stationary: np.ndarray | None
    is_stationary: bool

    def __repr__(self) -> str:
        where = "in stable directions only" if self.is_stationary else "also in directions that are not stable"
        noise = f"noise of rank {self.rank}, {where}" if self.rank else "no noise"
        counts = f"{self.stable} stable, {self.neutral} neutral, {self.unstable} unstable"
        variances = np.full(len(self.names), np.nan) if self.stationary is None else np.diagonal(self.stationary)
        # print neutral rates as 0, and real ones without imaginary parts
        rates = np.real_if_close(np.where(np.abs(self.rates) <= NEUTRAL_TOLERANCE * np.abs(self.rates).max(), 0, self.rates))
        values = zip(self.names, np.diagonal(self.noise_matrix), variances, strict=True)
        rows = [("statistic", "noise", "stationary"), *((name, f"{kick:.4g}", f"{var:.4g}") for name, kick, var in values)]
        printed = ", ".join(f"{rate:.4g}" for rate in rates)
        return f"LocalLimit: {counts}; {noise}\nrates {printed}\n{format_table(rows, '>', indent='  ')}"


@checked
def local_limit(
    problem: Problem, point: Statistics, *, tolerance: Positive | None = None, t: NotNegative | None = None
) -> LocalLimit:
    r"""Compute the diffusive limit of SGD near a fixed point of a problem's ODE [2]_.

    For statistics u near the fixed point u*, :math:`y = \sqrt d\,(u - u^*)` has the limit
    :math:`dy = Jy\,dt + \Sigma^{1/2} dB`, with the Jacobian J of the drift. The projection of y onto the stable subspace of J,
    along the complementary invariant subspace, converges in law to a Gaussian with the covariance C that solves

    .. math:: JC + CJ^\top + \Pi\Sigma\Pi^\top = 0,

    where :math:`\Pi` is this projection. `Local` simulates the same diffusion; `linearise` returns the linear drift at any
    point.

    The diffusion matrix :math:`\Sigma` is `problem.covariance`. It contains the fluctuations of the second-order term of a
    step, which contribute on this scale for a statistic with nonzero Hessian, such as Q, and which (2.2) of Ben Arous,
    Gheissari and Jagannath leaves out.

    Parameters
    ----------
    problem : any problem
    point : statistics of one run, without a batch axis, at which the drift vanishes
    tolerance : value up to which a drift, relative to J times the statistics, and a rate, relative to the largest rate, count
        as zero; None takes 1e-6, or ten times the accuracy of the problem's expectations if that is larger
    t : time at which schedules are evaluated, for problems with schedules

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> saddle = sl.Overlaps(a=[1.0], M=[[0.0]], Q=[[1.0]])
    >>> limit = sl.local_limit(problem, saddle)
    >>> limit.unstable, limit.rank, limit.stationary is None
    (1, 1, True)
    """
    problem = evaluate_at_time_if_needed(problem, t)
    problem, point = problem.limit, problem.coordinates.in_limit(point)
    problem.coordinates.check(to_batch(jax.tree.map(np.asarray, point)))
    # quadrature leaves a drift of its own accuracy at fixed points
    tolerance = max(NEUTRAL_TOLERANCE, 10 * problem.numerics.tolerance) if tolerance is None else tolerance
    drift, J, Sigma = linearise_at(problem, point)
    _check_fixed_point(problem, point, drift, J, tolerance)
    rates = np.linalg.eigvals(J)
    rates = rates[np.argsort(-rates.real, kind="stable")]
    zero = tolerance * np.abs(rates).max()
    stationary, quiet = stable_covariance(J, Sigma, zero)
    names = problem.coordinates.names(point)
    return LocalLimit(
        point=point,
        names=tuple(names[i] for i in np.flatnonzero(problem.coordinates.moves(point))),
        drift_matrix=J,
        noise_matrix=Sigma,
        rates=rates,
        rank=int((np.linalg.eigvalsh(Sigma) > RANK_TOLERANCE * np.abs(Sigma).max()).sum()),
        stable=int((rates.real < -zero).sum()),
        neutral=int((np.abs(rates.real) <= zero).sum()),
        unstable=int((rates.real > zero).sum()),
        stationary=stationary,
        is_stationary=quiet,
    )


def stable_covariance(J: np.ndarray, Sigma: np.ndarray, zero: float) -> tuple[np.ndarray | None, bool]:
    r"""Return the stationary covariance of the decaying part of the diffusion :math:`dy = Jy\,dt + \Sigma^{1/2}dB`.

    The decaying part belongs to the eigenvalues of J with real part below -`zero`; without one the covariance is None. The
    second return value says whether noise drives this part only.

    >>> stable_covariance(np.diag([-1.0, 0.0]), np.diag([2.0, 0.0]), 1e-9)[0].tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    T, Z, stable = scipy.linalg.schur(J, sort=lambda real, imaginary: real < -zero)
    rest = Z[:, stable:]
    # noise along the directions that are not stable, in an orthonormal basis
    quiet = bool(np.abs(rest.T @ Sigma @ rest).max(initial=0.0) <= RANK_TOLERANCE * np.abs(Sigma).max())
    if stable == 0:
        return None, quiet
    X = scipy.linalg.solve_sylvester(T[:stable, :stable], -T[stable:, stable:], -T[:stable, stable:])
    L = Z[:, :stable].T - X @ rest.T
    C = scipy.linalg.solve_continuous_lyapunov(T[:stable, :stable], -L @ Sigma @ L.T)
    covariance = Z[:, :stable] @ C @ Z[:, :stable].T
    # the solver's result is symmetric up to rounding only
    return (covariance + covariance.T) / 2, quiet


def _check_fixed_point(problem: Problem, point: PyTree, drift: np.ndarray, J: np.ndarray, tolerance: float) -> None:
    """Raise `BadInput` unless the drift at a point is zero within a tolerance."""
    size = max(1.0, float(np.abs(problem.vector(point)).max()))
    # relative to the linear drift of displacements as large as the statistics
    relative = float(np.abs(drift).max()) / max(np.abs(J).sum(1).max() * size, np.finfo(float).tiny)
    if not relative <= tolerance:
        raise BadInput(
            f"the point is not fixed: its drift, relative to J times the statistics, is {relative:.2g}, above {tolerance:.2g}. "
            "Give a point that fixed_points returns."
        )
