"""Linearisation of the drift at a point and, at fixed points, the diffusive limit with its noise and covariance."""

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
from sgdlimits.problem.over_time import fix_time
from sgdlimits.statistics.trees import as_batch
from sgdlimits.text import table

NEUTRAL_TOLERANCE = 1e-6
"""Rates below this fraction of the largest count as zero: their real part comes from rounding or from quadrature."""
RANK_TOLERANCE = 1e-8
"""Eigenvalues of the noise below this fraction of the largest count as zero."""


@dataclass(frozen=True)
class Linearisation:
    r"""The drift to first order around a point, :math:`\dot y = b + J (y - y_0)`, in samples per dimension.

    Attributes
    ----------
    names : names of the n free coordinates, such as "M[0,0]", "Q[0,1]" or "a[0]"
    drift : b, which is zero at a fixed point, shape (n,)
    matrix : J, shape (n, n)
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
        """Whether every small perturbation decays."""
        return bool(self.rates[0].real < 0)


@checked
def linearise(problem: Problem, point: Statistics, *, corrector: bool = True, t: NotNegative | None = None) -> Linearisation:
    """Linearise a problem's ODE at a point.

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
    problem = fix_time(problem, t)
    problem, point = problem.limit, problem.coordinates.in_limit(point)
    problem.coordinates.check_one(point)
    # only free coordinates: fixed ones would add zero eigenvalues
    free = np.flatnonzero(problem.coordinates.moves(point))
    drift, matrix = (np.asarray(part)[free] for part in _jacobian(problem, point, corrector))
    rates, modes = np.linalg.eig(matrix[:, free])
    # stable sort keeps conjugate pairs together
    order = np.argsort(-rates.real, kind="stable")
    names = tuple(np.array(problem.coordinates.names(point))[free].tolist())
    return Linearisation(names, drift, matrix[:, free], rates[order], modes[:, order])


@eqx.filter_jit
def _jacobian(problem: Problem, point: PyTree, corrector: bool):
    """Return the drift and its Jacobian in all coordinates, also fixed ones."""
    slope = vector_field(problem, corrector)
    along = lambda vector: problem.vector(slope(problem.from_vector(vector, point)))
    vector = problem.vector(point)
    return along(vector), jax.jacfwd(along)(vector)


@dataclass(frozen=True, repr=False)
class LocalLimit:
    r"""The linear diffusion :math:`dy = Jy\,dt + \Sigma^{1/2}dB` of :math:`y = \sqrt d\,(u - u^*)`, in samples per dimension.

    Parameters
    ----------
    point : the fixed point :math:`u^*`, statistics of one run
    names : names of the n free coordinates, such as "M[0,0]", "Q[0,1]" or "a[0]"
    drift_matrix : J, shape (n, n)
    noise_matrix : :math:`\Sigma`, shape (n, n)
    rates : eigenvalues of J, the largest real part first, shape (n,)
    rank : rank of :math:`\Sigma`
    stable, neutral, unstable : number of rates with negative, zero and positive real part
    stationary : limiting covariance of the stable part of y, shape (n, n); None without a stable direction
    is_stationary : whether noise drives stable directions only, so that `stationary` is the limit for all of y started at 0
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
        return f"LocalLimit: {counts}; {noise}\nrates {printed}\n{table(rows, '>', indent='  ')}"


@checked
def local_limit(
    problem: Problem, point: Statistics, *, tolerance: Positive | None = None, t: NotNegative | None = None
) -> LocalLimit:
    r"""Compute the diffusive limit of a problem's SGD near a fixed point of its ODE [2]_.

    With :math:`y = \sqrt d\,(u - u^*)` the limit is :math:`dy = Jy\,dt + \Sigma^{1/2} dB`. Its projection onto the stable
    subspace of J, along the complementary invariant subspace, converges in law to a Gaussian with the covariance C of

    .. math:: JC + CJ^\top + \Pi\Sigma\Pi^\top = 0,

    where :math:`\Pi` is the spectral projection. `Local` is the same diffusion as a level; `linearise` has the drift at any
    point.

    :math:`\Sigma` is `problem.covariance`: it contains the fluctuations of the second-order term of a step, which count on
    this scale for a statistic with a Hessian, such as Q, and which (2.2) of Ben Arous, Gheissari and Jagannath leaves out.

    Parameters
    ----------
    problem : any problem
    point : statistics of one run, without a batch axis, at which the drift vanishes
    tolerance : largest drift, relative to J times the size of the statistics, and largest rate, relative to the largest, that
        count as zero; None takes 1e-6, or ten times the accuracy of the problem's expectations if that is larger
    t : time at which schedules are evaluated, for problems with schedules

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> saddle = sl.Overlaps(a=[1.0], M=[[0.0]], Q=[[1.0]])
    >>> limit = sl.local_limit(problem, saddle)
    >>> limit.unstable, limit.rank, limit.stationary is None
    (1, 1, True)
    """
    problem = fix_time(problem, t)
    problem, point = problem.limit, problem.coordinates.in_limit(point)
    problem.coordinates.check(as_batch(jax.tree.map(np.asarray, point)))
    # quadrature leaves a drift of its own accuracy at fixed points
    tolerance = max(NEUTRAL_TOLERANCE, 10 * problem.numerics.tolerance) if tolerance is None else tolerance
    drift, J, Sigma = linearise_at(problem, point)
    _check_fixed(problem, point, drift, J, tolerance)
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
    r"""Return the stationary covariance of the part of :math:`dy = Jy\,dt + \Sigma^{1/2}dB` with rates below -`zero`.

    The ordered Schur form :math:`JZ = ZT` has the stable block first; with the solution X of
    :math:`T_{11}X - XT_{22} = -T_{12}` the stable coordinates are :math:`w = (1, -X)Z^\top y`, and they obey
    :math:`dw = T_{11}w\,dt` plus noise. The second value tells whether no noise reaches the other directions; the first is
    None if no direction is stable.

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


def _check_fixed(problem: Problem, point: PyTree, drift: np.ndarray, J: np.ndarray, tolerance: float) -> None:
    """Raise `BadInput` unless the drift at a point vanishes within the tolerance."""
    size = max(1.0, float(np.abs(problem.vector(point)).max()))
    # relative to the linear drift of displacements as large as the statistics
    relative = float(np.abs(drift).max()) / max(np.abs(J).sum(1).max() * size, np.finfo(float).tiny)
    if not relative <= tolerance:
        raise BadInput(
            f"the point is not fixed: its drift, relative to J times the statistics, is {relative:.2g}, above {tolerance:.2g}. "
            "Take one from fixed_points."
        )
