r"""The first correction to the ODE in 1/d: the mean of the statistics, their covariance, and how far to trust the ODE at d.

A step of SGD changes the statistics by 1/d times an increment of mean :math:`b + b_1/d` and covariance :math:`\Sigma`. To first
order in 1/d their law at time t is then that of

.. math:: X = x + \frac{x_1}{d} + \frac{\xi}{\sqrt d}, \qquad \xi \sim N(0, C),

.. math:: \dot x = b(x), \qquad \dot C = JC + CJ^\top + \Sigma, \qquad
          \dot x_1 = Jx_1 + \tfrac12\, b''\!:\!C + b_1 - \tfrac n2\, Jb,

where J is the Jacobian of b and n the batch. The last term is there because steps are no flow (the modified equation of Euler's
method), the one before because the mean of a product of gradients is not its limit.
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
from sgdlimits.jaxtools import jit_bound
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.run.record import to_json
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import as_batch

TOLERANCE = 1e-5
FAILS = 0.25
"""Where a standard deviation, or the correction of the mean, is this share of a statistic's size, the expansion is none."""


@checked
def expansion(
    problem: Problem, start: Start | PyTree, t_max: Positive, *, save: Annotated[int, integer(at_least=2)] = 100, seed: Seed = 0
) -> xr.Dataset:
    r"""The mean of the statistics with its first correction in 1/d, and their covariance, along the path of the ODE.

    Parameters
    ----------
    problem : a projection problem with one-pass SGD, of any batch
    start : as for `simulate`; of a random start one is drawn, and the expansion is that of runs which start there
    t_max : time in samples per dimension
    save : number of equally spaced times from 0 to `t_max`
    seed : of the start that is drawn

    Returns
    -------
    A Dataset over `t` and `statistic` (those that move, by name). At dimension d the mean of a statistic is
    ``ode + first / d`` and the covariance ``covariance / d``, with errors of order :math:`d^{-2}`; the same for the risk, with
    ``risk``, ``risk_first`` and ``risk_variance``. ``size`` is what a statistic is compared with: of an overlap the product of
    the largest lengths of its two directions on the way, of scalars the largest. NaN where the ODE has gone off.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1, noise=0.5)
    >>> path = sl.expansion(problem, sl.FixedInit(0.5), t_max=10, save=3)
    >>> print((path.ode + path["first"] / 100).sel(statistic="M[0,0]").round(3).values)
    [0.5   0.733 0.885]

    See Also
    --------
    sgdlimits.trust : what it says about the ODE at a dimension
    sgdlimits.Chain : the exact law
    """
    if not isinstance(problem, ProjectionProblem) or type(problem.algorithm) is not OnePassSGD:
        name = type(problem.algorithm).__name__ if isinstance(problem, ProjectionProblem) else type(problem).__name__
        raise BadInput(f"the expansion in 1/d is for one-pass SGD on projections; got {name}. Use Chain(d).")
    point = as_start(start).one(problem, seed=seed)
    problem.coordinates.check(as_batch(jax.tree.map(np.asarray, point)))
    problem = problem.numerics.refined(point)
    free = np.flatnonzero(problem.coordinates.moves(point))
    n, times = free.size, np.linspace(0, t_max, save)
    slopes = jit_bound(_slopes, problem, point, jnp.asarray(free), fast_compile=True)
    begin = np.concatenate([np.asarray(problem.vector(point))[free], np.zeros(n + n * n)])
    solved = solve_ivp(
        lambda _, y: np.asarray(slopes(y)), (0, t_max), begin, "DOP853", times, rtol=TOLERANCE, atol=TOLERANCE / 100
    )
    y = np.full((times.size, begin.size), np.nan)
    y[: solved.t.size] = solved.y.T
    risks = jit_bound(_risks, problem, point, jnp.asarray(free), fast_compile=True)
    risk, first, variance = np.array([risks(row) for row in y]).T
    names = np.array(problem.coordinates.names(point))[free]
    pair = ("t", "statistic")
    variables = {
        "size": ("statistic", _sizes(problem, point, y[:, :n])),
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
    """How far the chain at `d` is from the ODE up to `t_max`, found without a run: `trust` makes it.

    Parameters
    ----------
    d, t_max : the dimension and the time asked about
    mean : the largest distance of the chain's mean from the ODE
    spread : the largest standard deviation of the chain
    where : of what `mean` is, a statistic or "risk", and when
    where_spread : the same of `spread`
    fails : the time from which the expansion in 1/d holds no more, as in an escape from a saddle; None where it always holds

    Distances are relative: of overlaps to the lengths along the path of the two directions, of scalars to the largest, of the
    risk to the ODE's risk at the same time.
    """

    d: int
    t_max: float
    mean: float
    spread: float
    where: tuple[str, float]
    where_spread: tuple[str, float]
    fails: float | None

    def within(self, share: float = 0.01) -> bool:
        """Whether the mean of the chain is within a share of the ODE up to `t_max`."""
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
    """How far mean and spread of the chain at `d` are from the ODE, from the first correction in 1/d.

    Parameters
    ----------
    problem, start, seed : as for `expansion`
    d : dimension; its size costs nothing
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
    theirs = getattr(start, "d", None)
    if theirs is not None and theirs != d:
        raise BadInput(f"the start has d = {theirs}, and d is {d}. Give both the same d.")
    path = expansion(problem, start, t_max, seed=seed)
    names = [*path.statistic.values.tolist(), "risk"]
    with np.errstate(all="ignore"):
        size = np.column_stack([np.broadcast_to(path["size"], path.ode.shape), np.abs(path.risk)])
        mean = np.abs(np.column_stack([path["first"], path.risk_first])) / (d * size)
        variance = np.column_stack([np.diagonal(path.covariance.values, axis1=1, axis2=2), path.risk_variance])
        spread = np.sqrt(np.maximum(variance, 0) / d) / size
    wild = ~((mean <= FAILS).all(1) & (spread[:, :-1] <= FAILS).all(1))
    end = int(wild.argmax()) + 1 if wild.any() else wild.size
    times = path.t.values

    def largest(values: np.ndarray) -> tuple[float, tuple[str, float]]:
        seen = np.where(np.isnan(values[:end]), np.inf, values[:end])
        i, j = np.unravel_index(seen.argmax(), seen.shape)
        return float(seen[i, j]), (names[j], float(times[i]))

    (off, where), (wide, where_spread) = largest(mean), largest(spread)
    return Trust(d, t_max, off, wide, where, where_spread, float(times[end - 1]) if wild.any() else None)


def _sizes(problem: ProjectionProblem, point: Overlaps, x: np.ndarray) -> np.ndarray:
    """The natural size of each statistic along a path x."""
    rows = np.tile(np.asarray(problem.vector(point)), (len(x), 1))
    rows[:, np.flatnonzero(problem.coordinates.moves(point))] = x
    rows = rows[np.isfinite(rows).all(1)]
    p, k = point.M.shape
    row, column = np.triu_indices(p)
    norms = np.sqrt(np.maximum(rows[:, p * k :][:, : row.size][:, row == column], 0).max(0))
    fixed = np.sqrt(np.diagonal(np.asarray(problem.directions.gram)))
    scalars = np.abs(rows[:, p * k + row.size :])
    sizes = [np.outer(norms, fixed).ravel(), norms[row] * norms[column], np.full(scalars.shape[1], scalars.max(initial=0))]
    return np.concatenate(sizes)[problem.coordinates.moves(point)]


def _along(f, x: Float[Array, " n"], C: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    """(f, its Jacobian, f'' contracted with C): for each axis a derivative along it, and of that one along C's column."""

    def one(axis, column):
        slope, second, value = jax.jvp(lambda x: jax.jvp(f, (x,), (axis,))[::-1], (x,), (column,), has_aux=True)
        return value, slope, second

    value, slopes, second = jax.vmap(one, out_axes=(None, 0, 0))(jnp.eye(x.size), C)
    return value, slopes.T, second.sum(0)


def _slopes(problem: ProjectionProblem, like: Overlaps, free: Array, y: Any) -> Float[Array, " m"]:
    n = free.size
    x, first, C = y[:n], y[n : 2 * n], y[2 * n :].reshape(n, n)
    stats = lambda x: problem.from_vector(problem.vector(like).at[free].set(x), like)
    drift = lambda x: problem.vector(problem.drift(stats(x)))[free]
    b, J, bent = _along(drift, x, C)
    b1 = drift_correction(problem, stats(x))[free]
    noise = problem.covariance(stats(x))[free][:, free]
    euler = problem.numerics.samples_per_step / 2 * J @ b
    return jnp.concatenate([b, J @ first + bent / 2 + b1 - euler, (J @ C + C @ J.T + noise).ravel()])


def _risks(problem: ProjectionProblem, like: Overlaps, free: Array, y: Any) -> tuple[Array, Array, Array]:
    n = free.size
    x, first, C = y[:n], y[n : 2 * n], y[2 * n :].reshape(n, n)
    risk = lambda x: problem.risk(problem.from_vector(problem.vector(like).at[free].set(x), like))[None]
    value, J, bent = _along(risk, x, C)
    return value[0], (J @ first + bent / 2)[0], J[0] @ C @ J[0]


def drift_correction(problem: ProjectionProblem, stats: Overlaps) -> Float[Array, " n"]:
    r""":math:`b_1`: d/n times the mean increment of a step of n samples is :math:`b + b_1/d`, exactly up to :math:`d^{-2}`.

    Off the sphere only Q has one. With :math:`r = \text{lr ridge}` it is

    .. math:: \frac{\text{lr}^2}{n^2}\Big(E\big[GG^\top(|x_\parallel|^2 - \sigma^2(p+k))\big] + (n-1)\,VV^\top\Big)
              + \frac{r^2}{n} Q + \frac{r\,\text{lr}}{n}\,E[G\lambda^\top + \lambda G^\top], \qquad V = E[Gx_\parallel^\top],

    where :math:`x_\parallel` is the part of the input in the span of all p + k directions. On the sphere the step is followed
    by the map h to norm 1, and :math:`b_1` becomes :math:`h'b_1 + \frac12 h'':(\Sigma + n\,bb^\top)`, of increments before it.
    """
    sgd = problem.algorithm
    assert isinstance(sgd, OnePassSGD)
    if sgd.sphere:
        loose = OnePassSGD(sgd.lr, sgd.lr_second, sgd.ridge, False, sgd.batch)
        free = eqx.tree_at(lambda problem: problem.algorithm, problem, loose)
        x = free.vector(stats)
        held = lambda x: free.vector(_unit(free.from_vector(x, stats)))
        b = free.vector(free.drift(stats))
        _, J, bent = _along(held, x, free.covariance(stats) + sgd.batch * b[:, None] * b)
        return J @ drift_correction(free, stats) + bent / 2
    n, lr, ridge = sgd.batch, sgd.lr, sgd.lr * sgd.ridge
    moments, long = _with_length(problem, stats)
    omega = problem.model.omega(stats)
    field = jnp.concatenate([moments.gradient_field, moments.gradient_fixed], axis=1)
    both = field @ jnp.linalg.pinv(omega, hermitian=True) @ field.T
    push = moments.gradient_field + moments.gradient_field.T
    Q = (lr / n) ** 2 * (long + (n - 1) * both) + ridge**2 / n * stats.Q + ridge * lr / n * push
    still = jax.tree.map(jnp.zeros_like, stats)
    return problem.vector(Overlaps(still.a, still.M, Q, still.kept, stats.names))


def _unit(stats: Overlaps) -> Overlaps:
    length = jnp.sqrt(jnp.diagonal(stats.Q))
    return Overlaps(stats.a, stats.M / length[:, None], stats.Q / (length[:, None] * length), stats.kept, stats.names)


def _with_length(problem: ProjectionProblem, stats: Overlaps) -> tuple[Any, Float[Array, "p p"]]:
    r"""The moments, and :math:`E[GG^\top(|x_\parallel|^2 - \sigma^2(p+k))]` as a derivative of theirs.

    For an input :math:`\mu_c + \sigma\xi` of class c, Gaussian integration by parts makes of a factor
    :math:`\sigma^2(|\xi|^2 - p - k)` the derivative by the covariance C of the fields along :math:`2\sigma^2C`, and of
    :math:`2\sigma\,\mu_c\cdot\xi` that by their mean along :math:`2\sigma^2` times it; a factor :math:`|\mu_c|^2` is one of the
    weight.
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
