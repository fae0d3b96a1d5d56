r"""The 1/d correction to the ODE: mean and covariance of the statistics, and the error of the ODE at finite d.

A step of SGD changes the statistics X by 1/d times an increment of mean :math:`b + b_1/d` and covariance :math:`\Sigma`. To
first order in 1/d the law of X at time t is then that of

.. math:: X = x + \frac{x_1}{d} + \frac{\xi}{\sqrt d}, \qquad \xi \sim N(0, C),

.. math:: \dot x = b(x), \qquad \dot C = JC + CJ^\top + \Sigma, \qquad
          \dot x_1 = Jx_1 + \tfrac12\, b''\!:\!C + b_1 - \tfrac n2\, Jb,

where J is the Jacobian of b and n the number of samples in a batch. The last term of :math:`\dot x_1` is the discretisation
error of Euler's method (its modified equation); :math:`b_1` arises because the mean of a product of gradients differs from its
limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PyTree
from scipy.integrate import solve_ivp

from sgdlimits.algorithm import OnePassSGD
from sgdlimits.checks import integer
from sgdlimits.domain import Count, Positive, Seed, checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Blocks
from sgdlimits.jaxtools import jit_bound
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.run.record import to_json
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import to_batch

ODE_TOLERANCE = 1e-5
"""Relative tolerance of the ODE solver; corrections to the mean are needed to few digits only."""
MAX_RELATIVE_CORRECTION = 0.25
"""Largest standard deviation and correction of the mean, relative to a statistic's size, at which the expansion holds."""


@checked
def expansion(
    problem: Problem, start: Start | PyTree, t_max: Positive, *, save: Annotated[int, integer(at_least=2)] = 100, seed: Seed = 0
) -> xr.Dataset:
    r"""Compute the mean of the statistics with its first correction in 1/d, and their covariance, along the path of the ODE.

    Parameters
    ----------
    problem : a projection problem with one-pass SGD, of any batch size
    start : as for `simulate`; a random start is drawn once, and the expansion describes runs from that draw
    t_max : time in samples per dimension
    save : number of equally spaced times from 0 to `t_max`
    seed : seed of the draw

    Returns
    -------
    A Dataset over `t` and `statistic` (the free statistics, by name). At dimension d the mean of a statistic is
    ``ode + first / d`` and the covariance ``covariance / d``, with errors of order :math:`d^{-2}`; mean and variance of the
    risk follow from ``risk``, ``risk_first`` and ``risk_variance`` in the same way. ``size`` is the scale of a statistic: for
    an overlap the product of the largest norms of its two directions along the path, for a scalar its largest absolute value.
    Values are NaN after the ODE has diverged.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> path = sl.expansion(problem, sl.FixedInit(0.5), t_max=10, save=3)
    >>> print((path.ode + path["first"] / 100).sel(statistic="M[0,0]").round(3).values)
    [0.5   0.733 0.885]

    See Also
    --------
    sgdlimits.trust : the resulting error of the ODE at a dimension
    sgdlimits.Chain : the exact law
    """
    if not isinstance(problem, ProjectionProblem) or type(problem.algorithm) is not OnePassSGD:
        name = type(problem.algorithm).__name__ if isinstance(problem, ProjectionProblem) else type(problem).__name__
        raise BadInput(f"the expansion in 1/d needs one-pass SGD on a projection problem; got {name}. Simulate with Chain(d).")
    evaluate_at_time_if_needed(problem, None, "Compare ODE() with Chain(d).")
    if isinstance(problem.data, Blocks):
        raise BadInput("the expansion in 1/d does not support variances by block or class. Simulate with Chain(d).")
    point = as_start(start).one(problem, seed=seed)
    problem.coordinates.check(to_batch(jax.tree.map(np.asarray, point)))
    problem = problem.numerics.refined(point)
    free = np.flatnonzero(problem.coordinates.moves(point))
    n, times = free.size, np.linspace(0, t_max, save)
    slopes = jit_bound(_moment_equations, problem, point, jnp.asarray(free), fast_compile=True)
    # the state is (x, x_1, C), flattened; correction and covariance begin at zero
    begin = np.concatenate([np.asarray(problem.vector(point))[free], np.zeros(n + n * n)])
    solved = solve_ivp(
        lambda _, y: np.asarray(slopes(y)), (0, t_max), begin, "DOP853", times, rtol=ODE_TOLERANCE, atol=ODE_TOLERANCE / 100
    )
    # the solver may stop early, where the ODE diverges
    y = np.full((times.size, begin.size), np.nan)
    y[: solved.t.size] = solved.y.T
    risks = jit_bound(_risk_moments, problem, point, jnp.asarray(free), fast_compile=True)
    risk, first, variance = np.array([risks(row) for row in y]).T
    names = np.array(problem.coordinates.names(point))[free]
    pair = ("t", "statistic")
    variables = {
        "size": ("statistic", _statistic_scales(problem, point, y[:, :n])),
        "ode": (pair, y[:, :n]),
        "first": (pair, y[:, n : 2 * n]),
        "covariance": ((*pair, "statistic_other"), y[:, 2 * n :].reshape(-1, n, n)),
        "risk": ("t", risk),
        "risk_first": ("t", first),
        "risk_variance": ("t", variance),
    }
    coords = {"t": times, "statistic": names, "statistic_other": names}
    return xr.Dataset(variables, coords, {"problem": to_json(problem), "seed": seed})


@dataclass(frozen=True, repr=False)
class Trust:
    """Estimate of the error of the ODE as a description of SGD at dimension `d` up to `t_max`, which `trust` returns.

    Parameters
    ----------
    d, t_max : dimension, and end time in samples per dimension
    mean : largest distance from the ODE of the mean of the chain, the exact law of SGD's statistics at dimension d
    spread : largest standard deviation of the chain
    where : statistic (or "risk") and time at which `mean` is reached
    where_spread : statistic (or "risk") and time at which `spread` is reached
    fails : time from which the expansion in 1/d is invalid, as in an escape from a saddle; None if valid up to `t_max`

    Distances are relative: of overlaps to the largest norms of the two directions along the path, of scalars to the largest
    value, of the risk to the ODE's risk at the same time.
    """

    d: int
    t_max: float
    mean: float
    spread: float
    where: tuple[str, float]
    where_spread: tuple[str, float]
    fails: float | None

    def within(self, share: float = 0.01) -> bool:
        """Return whether the mean of the chain stays within a relative distance `share` of the ODE up to time `t_max`."""
        return self.fails is None and self.mean <= share

    def __repr__(self) -> str:
        place = lambda where: f"{where[0]}, t = {where[1]:.4g}"
        head = f"Trust: the ODE at d = {self.d} up to t = {self.t_max:.4g}"
        if self.fails is not None:
            return (
                f"{head}\n  no law near the ODE from t = {self.fails:.4g} on: runs leave it at times of their own, "
                f"as in an escape ({place(self.where_spread)})\n  Use Chain(d={self.d})."
            )
        verdict = "The mean of runs is within 1% of the ODE." if self.within() else f"Use expansion(...), or Chain(d={self.d})."
        return (
            f"{head}\n  mean of the chain off by {self.mean:.2%} ({place(self.where)})\n"
            f"  standard deviation of a run {self.spread:.2%} ({place(self.where_spread)})\n  {verdict}"
        )


@checked
def trust(problem: Problem, start: Start | PyTree, d: Count, t_max: Positive, *, seed: Seed = 0) -> Trust:
    """Estimate how far the mean and the runs of `Chain(d)` are from the ODE, by the 1/d correction and without simulation.

    Parameters
    ----------
    problem, start, seed : as for `expansion`
    d : dimension; the cost does not depend on it
    t_max : time in samples per dimension

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1)
    >>> print(sl.trust(problem, sl.FixedInit(0.5), d=3000, t_max=5))
    Trust: the ODE at d = 3000 up to t = 5
      mean of the chain off by 0.31% (risk, t = 5)
      standard deviation of a run 7.06% (risk, t = 5)
      The mean of runs is within 1% of the ODE.
    >>> sl.trust(problem, sl.RandomInit(d=3000), d=3000, t_max=40).within()
    False
    """
    start_d = getattr(start, "d", None)
    if start_d is not None and start_d != d:
        raise BadInput(f"start= has d = {start_d}, but d= is {d}. Give both the same d.")
    path = expansion(problem, start, t_max, seed=seed)
    names = [*path.statistic.values.tolist(), "risk"]
    with np.errstate(all="ignore"):
        # the risk is compared with its own value at each time
        size = np.column_stack([np.broadcast_to(path["size"], path.ode.shape), np.abs(path.risk)])
        mean = np.abs(np.column_stack([path["first"], path.risk_first])) / (d * size)
        variance = np.column_stack([np.diagonal(path.covariance.values, axis1=1, axis2=2), path.risk_variance])
        spread = np.sqrt(np.maximum(variance, 0) / d) / size
    # the risk's own deviation does not end the expansion: near zero risk it may be large while all statistics are exact
    wild = ~((mean <= MAX_RELATIVE_CORRECTION).all(1) & (spread[:, :-1] <= MAX_RELATIVE_CORRECTION).all(1))
    # up to and including the first time at which the expansion fails
    end = int(wild.argmax()) + 1 if wild.any() else wild.size
    times = path.t.values

    def largest(values: np.ndarray) -> tuple[float, tuple[str, float]]:
        """Return the largest of the values relative to the statistics' scales, with its time and statistic."""
        # a NaN, where the ODE diverged, is the worst error
        seen = np.where(np.isnan(values[:end]), np.inf, values[:end])
        i, j = np.unravel_index(seen.argmax(), seen.shape)
        return float(seen[i, j]), (names[j], float(times[i]))

    (off, where), (wide, where_spread) = largest(mean), largest(spread)
    return Trust(d, t_max, off, wide, where, where_spread, float(times[end - 1]) if wild.any() else None)


def _statistic_scales(problem: ProjectionProblem, point: Overlaps, x: np.ndarray) -> np.ndarray:
    """Return the scale of each free statistic along a path, shape (times, n).

    The scale of an overlap is the product of the norms of its two directions, that of a scalar its largest absolute value.
    """
    rows = np.tile(np.asarray(problem.vector(point)), (len(x), 1))
    rows[:, np.flatnonzero(problem.coordinates.moves(point))] = x
    rows = rows[np.isfinite(rows).all(1)]
    p, k = point.M.shape
    row, column = np.triu_indices(p)
    # diagonal entries of the upper triangle of Q, row by row
    norms = np.sqrt(np.maximum(rows[:, p * k :][:, : row.size][:, row == column], 0).max(0))
    fixed = np.sqrt(np.diagonal(np.asarray(problem.directions.gram)))
    scalars = np.abs(rows[:, p * k + row.size :])
    sizes = [np.outer(norms, fixed).ravel(), norms[row] * norms[column], np.full(scalars.shape[1], scalars.max(initial=0))]
    return np.concatenate(sizes)[problem.coordinates.moves(point)]


def _derivatives_and_contraction(f, x: Float[Array, " n"], C: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    """Return the vector f(x), its Jacobian at x, and its Hessian contracted with the matrix C.

    For each axis f is differentiated along the axis and then along the axis's column of C, so that no Hessian is formed.
    """

    def along_axis(axis, column):
        # forward over forward: no tape of the expectations is stored
        slope, second, value = jax.jvp(lambda x: jax.jvp(f, (x,), (axis,))[::-1], (x,), (column,), has_aux=True)
        return value, slope, second

    value, slopes, second = jax.vmap(along_axis, out_axes=(None, 0, 0))(jnp.eye(x.size), C)
    return value, slopes.T, second.sum(0)


def _moment_equations(problem: ProjectionProblem, like: Overlaps, free: Array, y: Any) -> Float[Array, " m"]:
    """Return the time derivatives of the ODE's solution x, its correction x_1 in 1/d, and the covariance C, as one vector."""
    n = free.size
    x, first, C = y[:n], y[n : 2 * n], y[2 * n :].reshape(n, n)
    stats = lambda x: problem.from_vector(problem.vector(like).at[free].set(x), like)
    drift = lambda x: problem.vector(problem.drift(stats(x)))[free]
    b, J, bent = _derivatives_and_contraction(drift, x, C)
    b1 = drift_correction(problem, stats(x))[free]
    noise = problem.covariance(stats(x))[free][:, free]
    euler = problem.numerics.samples_per_step / 2 * J @ b
    return jnp.concatenate([b, J @ first + bent / 2 + b1 - euler, (J @ C + C @ J.T + noise).ravel()])


def _risk_moments(problem: ProjectionProblem, like: Overlaps, free: Array, y: Any) -> tuple[Array, Array, Array]:
    """Return the risk at the ODE's solution, its correction in 1/d, and its variance times d.

    `y` has the solution x, the correction x_1 of the mean and the covariance C, flattened to one vector; `like` has the fixed
    statistics, and `free` selects the trained ones.
    """
    n = free.size
    x, first, C = y[:n], y[n : 2 * n], y[2 * n :].reshape(n, n)
    risk = lambda x: problem.risk(problem.from_vector(problem.vector(like).at[free].set(x), like))[None]
    value, J, bent = _derivatives_and_contraction(risk, x, C)
    return value[0], (J @ first + bent / 2)[0], J[0] @ C @ J[0]


def drift_correction(problem: ProjectionProblem, stats: Overlaps) -> Float[Array, " n"]:
    r"""Return the 1/d correction :math:`b_1` to the drift b of the ODE.

    The mean change of the statistics in a step with n samples is :math:`(n/d)(b + b_1/d + O(d^{-2}))`.
    """
    sgd = problem.algorithm
    assert isinstance(sgd, OnePassSGD)
    if sgd.sphere:
        unconstrained = OnePassSGD(sgd.lr, sgd.lr_second, sgd.ridge, False, sgd.batch)
        free = eqx.tree_at(lambda problem: problem.algorithm, problem, unconstrained)
        x = free.vector(stats)
        normalised = lambda x: free.vector(_normalise_directions(free.from_vector(x, stats)))
        b = free.vector(free.drift(stats))
        # second moments of an increment: its covariance plus the squared mean of a batch
        _, J, bent = _derivatives_and_contraction(normalised, x, free.covariance(stats) + sgd.batch * b[:, None] * b)
        return J @ drift_correction(free, stats) + bent / 2
    n, lr, ridge = sgd.batch, sgd.lr, sgd.lr * sgd.ridge
    moments, with_length = _moments_with_length(problem, stats)
    omega = problem.model.omega(stats)
    field = jnp.concatenate([moments.gradient_field, moments.gradient_fixed], axis=1)
    # a pseudo-inverse: Omega is singular where directions are dependent, and `field` is then in its range
    both = field @ jnp.linalg.pinv(omega, hermitian=True) @ field.T
    push = moments.gradient_field + moments.gradient_field.T
    # gradient noise beyond its limit, decay squared, and decay times gradient
    Q = (lr / n) ** 2 * (with_length + (n - 1) * both) + ridge**2 / n * stats.Q + ridge * lr / n * push
    zeros = jax.tree.map(jnp.zeros_like, stats)
    return problem.vector(Overlaps(zeros.a, zeros.M, Q, zeros.kept, stats.names))


def _normalise_directions(stats: Overlaps) -> Overlaps:
    """Rescale the trained directions of statistics to norm 1."""
    length = jnp.sqrt(jnp.diagonal(stats.Q))
    return Overlaps(stats.a, stats.M / length[:, None], stats.Q / (length[:, None] * length), stats.kept, stats.names)


def _moments_with_length(problem: ProjectionProblem, stats: Overlaps) -> tuple[Any, Float[Array, "p p"]]:
    r"""Return the moments of one sample, and the gradients' second moment weighted by the excess squared length of the inputs.

    The second is :math:`E[GG^\top(|x_\parallel|^2 - \sigma^2(p+k))]`, computed as a derivative of the moments.
    """
    model, law = problem.model, problem.model.law(stats)
    square, scale = (model.coordinates.means.fixed**2).sum(0), lambda leaf: 2 * law.variance * leaf
    towards = FieldLaw(
        weights=law.weights * square,
        mean=jax.tree.map(scale, law.mean),
        unit=jax.tree.map(jnp.zeros_like, law.unit),
        covariance=jax.tree.map(scale, law.covariance),
        factor=None,
        shape=law.shape,
    )
    value, slope = jax.jvp(lambda law: problem.expectation.moments(model, stats.a, law), (law,), (towards,))
    return value, slope.gradient_gradient
