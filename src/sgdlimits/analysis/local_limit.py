"""Near a point: the drift to first order and, where it is fixed, the diffusive limit with its noise and covariance."""

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

NEUTRAL = 1e-6
"""Rates below this fraction of the largest are zero: a real part from rounding, or from expectations by a rule."""
RANK = 1e-8
"""Eigenvalues of the noise below this fraction of the largest are zero."""


@dataclass(frozen=True)
class Linearisation:
    r"""The drift to first order around a point, :math:`\dot y = b + J (y - y_0)`, in samples per dimension.

    Attributes
    ----------
    names : of the n free coordinates, such as "M[0,0]", "Q[0,1]" or "a[0]"
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
        """Whether every small departure decays."""
        return bool(self.rates[0].real < 0)


@checked
def linearise(problem: Problem, point: Statistics, *, corrector: bool = True, t: NotNegative | None = None) -> Linearisation:
    """Linearise a problem's ODE at a point.

    The coordinates are those of `problem.covariance`: for projection problems M row by row, the upper triangle of Q row by
    row, then `a` if it is trained. On the sphere the norms Q_jj do not move and are left out.

    Parameters
    ----------
    problem : any problem
    point : statistics of one run, without a batch axis; any point, fixed or not
    corrector : whether the drift contains the effect of the step size, as in `ODE`
    t : the time, for a problem with schedules

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
    free = np.flatnonzero(problem.coordinates.moves(point))
    drift, matrix = (np.asarray(part)[free] for part in _jacobian(problem, point, corrector))
    rates, modes = np.linalg.eig(matrix[:, free])
    order = np.argsort(-rates.real, kind="stable")
    names = tuple(np.array(problem.coordinates.names(point))[free].tolist())
    return Linearisation(names, drift, matrix[:, free], rates[order], modes[:, order])


@eqx.filter_jit
def _jacobian(problem: Problem, point: PyTree, corrector: bool):
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
    names : of the n coordinates that move, such as "M[0,0]", "Q[0,1]" or "a[0]"
    drift_matrix : J, shape (n, n)
    noise_matrix : :math:`\Sigma`, shape (n, n)
    rates : eigenvalues of J, the largest real part first, shape (n,)
    rank : of :math:`\Sigma`
    stable, neutral, unstable : how many rates have a negative real part, one of zero, a positive one
    stationary : the covariance at which the stable part of y settles, shape (n, n); None without a stable direction
    is_stationary : whether noise drives stable directions only: then all of y, from the point, settles at `stationary`
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
        settled = np.full(len(self.names), np.nan) if self.stationary is None else np.diagonal(self.stationary)
        rates = np.real_if_close(np.where(np.abs(self.rates) <= NEUTRAL * np.abs(self.rates).max(), 0, self.rates))
        values = zip(self.names, np.diagonal(self.noise_matrix), settled, strict=True)
        rows = [("statistic", "noise", "stationary"), *((name, f"{kick:.4g}", f"{var:.4g}") for name, kick, var in values)]
        numbers = ", ".join(f"{rate:.4g}" for rate in rates)
        return f"LocalLimit: {counts}; {noise}\nrates {numbers}\n{table(rows, '>', indent='  ')}"


@checked
def local_limit(
    problem: Problem, point: Statistics, *, tolerance: Positive | None = None, t: NotNegative | None = None
) -> LocalLimit:
    r"""The diffusive limit of a problem's SGD near a fixed point of its ODE [2]_.

    With :math:`y = \sqrt d\,(u - u^*)` the limit is :math:`dy = Jy\,dt + \Sigma^{1/2} dB`. On the stable subspace of J, along
    the other one, it settles at the covariance C with

    .. math:: JC + CJ^\top + \Pi\Sigma\Pi^\top = 0,

    where :math:`\Pi` is the spectral projection. `Local` is the same diffusion as a level; `linearise` has the drift at any
    point.

    :math:`\Sigma` is `problem.covariance`: it contains the fluctuations of the second-order term of a step, which a statistic
    with a Hessian, such as Q, has at this magnification and which (2.2) of Ben Arous, Gheissari and Jagannath leaves out.

    Parameters
    ----------
    problem : any problem
    point : statistics of one run, without a batch axis, at which the drift vanishes
    tolerance : how large the drift may be, relative to J times the size of the statistics, and a rate relative to the largest,
        to count as zero; None takes 1e-6, or ten times what the problem's expectations are worth
    t : the time, for a problem with schedules

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
    tolerance = max(NEUTRAL, 10 * problem.numerics.tolerance) if tolerance is None else tolerance
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
        rank=int((np.linalg.eigvalsh(Sigma) > RANK * np.abs(Sigma).max()).sum()),
        stable=int((rates.real < -zero).sum()),
        neutral=int((np.abs(rates.real) <= zero).sum()),
        unstable=int((rates.real > zero).sum()),
        stationary=stationary,
        is_stationary=quiet,
    )


def stable_covariance(J: np.ndarray, Sigma: np.ndarray, zero: float) -> tuple[np.ndarray | None, bool]:
    r"""The stationary covariance of the part of :math:`dy = Jy\,dt + \Sigma^{1/2}dB` with rates below -`zero`.

    The ordered Schur form :math:`JZ = ZT` has the stable block first; with the solution X of
    :math:`T_{11}X - XT_{22} = -T_{12}` the stable coordinates are :math:`w = (1, -X)Z^\top y`, and they obey
    :math:`dw = T_{11}w\,dt` plus noise.

    Returns the covariance, None where nothing is stable, and whether no noise reaches the other directions.

    >>> stable_covariance(np.diag([-1.0, 0.0]), np.diag([2.0, 0.0]), 1e-9)[0].tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    T, Z, stable = scipy.linalg.schur(J, sort=lambda real, imaginary: real < -zero)
    rest = Z[:, stable:]
    quiet = bool(np.abs(rest.T @ Sigma @ rest).max(initial=0.0) <= RANK * np.abs(Sigma).max())
    if stable == 0:
        return None, quiet
    X = scipy.linalg.solve_sylvester(T[:stable, :stable], -T[stable:, stable:], -T[:stable, stable:])
    L = Z[:, :stable].T - X @ rest.T
    C = scipy.linalg.solve_continuous_lyapunov(T[:stable, :stable], -L @ Sigma @ L.T)
    covariance = Z[:, :stable] @ C @ Z[:, :stable].T
    return (covariance + covariance.T) / 2, quiet


def _check_fixed(problem: Problem, point: PyTree, drift: np.ndarray, J: np.ndarray, tolerance: float) -> None:
    size = max(1.0, float(np.abs(problem.vector(point)).max()))
    relative = float(np.abs(drift).max()) / max(np.abs(J).sum(1).max() * size, np.finfo(float).tiny)
    if not relative <= tolerance:
        raise BadInput(
            f"the point is not fixed: its drift is {relative:.2g} of what the linear drift makes of the statistics, above "
            f"{tolerance:.2g}. Take one from fixed_points."
        )
