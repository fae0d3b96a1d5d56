"""First-passage times: of one-dimensional diffusions, and of the ODE of a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from numpy.polynomial.chebyshev import chebfit, chebpts1, chebval
from scipy.integrate import DOP853, quad_vec
from scipy.interpolate import BarycentricInterpolator
from scipy.optimize import brentq
from scipy.special import hyp1f1

from sgdlimits.jaxtools import jit_bound
from sgdlimits.problem.base import Problem
from sgdlimits.statistics.trees import select_run

# never reached unless a law is extremely narrow for its interval
MAX_TERMS = 4096
"""Maximum number of terms in the cosine series of a law."""
NEGLIGIBLE_TRANSFORM = 1e-9
"""Size of a law's Laplace transform at which its cosine series is cut, after some 200 terms for an escape from a saddle."""
INTERPOLATION_DEGREE = 16
"""Degree in time of the interpolant of the risk over a solver's step: more than twice the order of the solver, so that the
interpolant is exact for risks quadratic in the state."""
MAX_COORDINATE = 1e6
"""Size of a coordinate of the state beyond which a run has diverged."""


class FirstPassage:
    r"""Time at which a symmetric diffusion :math:`dm = b(m)\,dt + \sqrt{a(m)}\,dB_t` first leaves :math:`(-\ell, \ell)`.

    With :math:`L = \tfrac12 a\,\partial_m^2 + b\,\partial_m`, the backward operator, and :math:`\tau` the time from m,

    .. math:: L\,E\tau = -1, \qquad L\,E\tau^2 = -2 E\tau, \qquad L\,E e^{-s\tau} = s\,E e^{-s\tau},

    with the values 0, 0 and 1 at :math:`\pm\ell`. The equations are solved by Chebyshev collocation in x,
    :math:`m = \epsilon \sinh cx`, where c maps x = 1 to :math:`\ell` and
    :math:`\epsilon^2 = a(0)/2|b'(0)|` is the squared width of the layer in which noise dominates the drift: the solutions are
    smooth in x however small the noise is. As paths are continuous, the time from m to :math:`\ell` is the sum of the time to
    any value between the two and an independent time from that value on, so that the methods also take other ends than
    :math:`\ell`.

    Parameters
    ----------
    drift : b, an odd function of an array
    variance : a, an even and positive function of an array
    end : half-width :math:`\ell` of the interval
    growth : derivative :math:`b'(0)` of the drift
    nodes : number of collocation nodes on :math:`(0, \ell)`

    Examples
    --------
    Brownian motion leaves (-1, 1) after a mean time of 1:

    >>> passage = FirstPassage(lambda m: 0 * m, lambda m: 1 + 0 * m, end=1.0, growth=0.0)
    >>> round(float(passage.mean(0.0)), 9)
    1.0
    """

    def __init__(self, drift: Callable, variance: Callable, end: float, growth: float, nodes: int = 128) -> None:
        # without drift there is no layer; the bound avoids a division by zero
        layer = np.sqrt(float(variance(np.zeros(1))[0]) / (2 * max(abs(growth), 1e-300)))
        self.end, self.layer = float(end), float(min(layer, end))
        self.stretch = np.arcsinh(self.end / self.layer)
        self.x, first, second = _evaluate_even_chebyshev(nodes)
        m, slope = self.layer * np.sinh(self.stretch * self.x), self.layer * self.stretch * np.cosh(self.stretch * self.x)
        self.half, self.first = variance(m) / 2, first / slope[:, None]
        second = (second - (self.stretch**2 * m / slope)[:, None] * first) / slope[:, None] ** 2
        self.operator = self.half[:, None] * second + drift(m)[:, None] * self.first
        # interpolation uses the even continuation; its barycentric weights are computed once
        self.nodes = np.concatenate([self.x, -self.x[::-1]])
        self.weights = BarycentricInterpolator(self.nodes).wi

    def mean(self, start, end=None) -> np.ndarray:
        r"""Return the mean time to reach the absolute value `end` from each start; by default the interval's end."""
        return self._difference_at(self._mean_at_nodes, start, end)

    def variance(self, start, end=None) -> np.ndarray:
        r"""Return the variance of the time to reach the absolute value `end` from each start; by default the interval's end."""
        return self._difference_at(self._variance_at_nodes, start, end)

    def transform(self, s: complex, start, end=None) -> np.ndarray:
        r"""Return the Laplace transform :math:`E e^{-s\tau}`, for complex s, of the time to reach the absolute value `end`.

        By default `end` is the interval's end. Where the drift b dominates the noise variance a, the transform oscillates as a
        function of the start m. The equation is then solved for
        :math:`w = E e^{-s(\tau - E\tau)}`, which does not oscillate:
        :math:`\tfrac12 a\,w'' + (b - s a\,\theta')\,w' + \tfrac12 s^2 a\,\theta'^2 w = 0` with :math:`\theta = E\tau`.
        """
        # without a thin layer the plain transform does not oscillate, and needs no tilt
        mean = self._mean_at_nodes if self.layer < self.end / 8 else 0 * self._mean_at_nodes
        slope, left = self.first @ mean, 0.0 if mean.any() else s
        tilted = self.operator - (2 * s * self.half * slope)[:, None] * self.first + np.diag(s**2 * self.half * slope**2 - left)
        values = self._interpolate(np.concatenate([[1.0], np.linalg.solve(tilted[1:, 1:], -tilted[1:, 0])]))
        centred = values(start) / (1.0 if end is None else values(end))
        return np.exp(-s * self._difference_at(mean, start, end)) * centred

    def law(self, start, end=None, weights=None) -> PassageTimeLaw:
        """Return the law of the time to reach the absolute value `end`, by default the interval's end.

        `start` is one value, or the possible values of a random start, with the probabilities `weights`.
        """
        start = np.atleast_1d(np.asarray(start, float))
        weights = np.full(start.size, 1 / start.size) if weights is None else np.asarray(weights)
        means = self.mean(start, end)
        mean = float(weights @ means)
        # law of total variance over the starts
        variance = float(weights @ (self.variance(start, end) + (means - mean) ** 2))
        return PassageTimeLaw.from_transform(lambda s: weights @ self.transform(s, start, end), mean, variance)

    @cached_property
    def _mean_at_nodes(self) -> np.ndarray:
        """Mean exit time from each Chebyshev node."""
        return self._solve_backward_equation(np.full(self.x.size, -1.0))

    @cached_property
    def _variance_at_nodes(self) -> np.ndarray:
        """Variance of the exit time from each Chebyshev node."""
        return self._solve_backward_equation(-2 * self._mean_at_nodes) - self._mean_at_nodes**2

    def _solve_backward_equation(self, right: np.ndarray) -> np.ndarray:
        """Solve L u = right at the Chebyshev nodes, for the class's backward operator L and u = 0 at the interval's end."""
        return np.concatenate([[0.0], np.linalg.solve(self.operator[1:, 1:], right[1:])])

    def _difference_at(self, values: np.ndarray, start, end) -> np.ndarray:
        """Interpolate values from the nodes to each start; if `end` is given, subtract the interpolated values there."""
        at = self._interpolate(values)
        return at(start) if end is None else at(start) - at(end)

    def _interpolate(self, values: np.ndarray) -> Callable:
        """Return the even function of m that interpolates values at the Chebyshev nodes."""
        smooth = BarycentricInterpolator(self.nodes, np.concatenate([values, values[::-1]]), wi=self.weights)
        return lambda m: smooth(np.arcsinh(np.abs(m) / self.layer) / self.stretch)


@dataclass(frozen=True)
class PassageTimeLaw:
    """Probability law of a random time, as a cosine series on an interval with all but 1e-8 of the probability.

    >>> law = PassageTimeLaw.from_transform(lambda s: np.exp(-3 * s + s**2 / 2), mean=3.0, variance=1.0)     # normal
    >>> round(float(law.cdf(4.0)), 6), round(float(law.quantile(0.5)), 6)
    (0.841345, 3.0)
    """

    mean: float
    variance: float
    low: float
    high: float
    coefficients: np.ndarray

    @classmethod
    def from_samples(cls, times: np.ndarray) -> PassageTimeLaw:
        """Return the law estimated from sampled times; the cosine series is cut at the sampling noise of its coefficients."""
        transform = lambda s: np.exp(-s * times).mean()
        return cls.from_transform(transform, float(times.mean()), float(times.var()), negligible=times.size**-0.5)

    @classmethod
    def from_transform(
        cls, transform: Callable[[complex], complex], mean: float, variance: float, negligible: float = NEGLIGIBLE_TRANSFORM
    ) -> PassageTimeLaw:
        r"""Return the law of a random time :math:`\tau` from its Laplace transform :math:`E e^{-s\tau}` at imaginary s [10]_.

        .. [10] Fang, Oosterlee, *A novel pricing method for European options based on Fourier-cosine series expansions*.
        """
        spread = np.sqrt(variance)
        # exponential tails on the right are longer than those on the left
        low, high = max(0.0, mean - 10 * spread), mean + 20 * spread
        values = []
        for w in np.arange(MAX_TERMS) * np.pi / (high - low):
            values.append(complex(transform(-1j * w)) * np.exp(-1j * w * low))
            if abs(values[-1]) < negligible:
                break
        coefficients = 2 / (high - low) * np.real(values)
        # the cosine series counts its constant term half
        coefficients[0] /= 2
        return cls(mean, variance, low, high, coefficients)

    def cdf(self, t) -> np.ndarray:
        """Return the probability that the random time is at most t."""
        x = np.clip((np.asarray(t, float) - self.low) / (self.high - self.low), 0.0, 1.0)
        k = np.arange(1, self.coefficients.size)
        waves = np.sin(np.pi * x[..., None] * k) @ (self.coefficients[1:] / (np.pi * k))
        return np.clip((self.high - self.low) * (self.coefficients[0] * x + waves), 0.0, 1.0)

    def pdf(self, t) -> np.ndarray:
        """Return the probability density of the random time at t."""
        t = np.asarray(t, float)
        x = (t - self.low) / (self.high - self.low)
        density = np.cos(np.pi * x[..., None] * np.arange(self.coefficients.size)) @ self.coefficients
        return np.where((x < 0) | (x > 1), 0.0, np.maximum(density, 0.0))

    def quantile(self, q):
        """Return the time that is exceeded with probability 1 - q."""
        find = lambda share: brentq(lambda t: self.cdf(t) - share, self.low, self.high)
        return np.vectorize(find, otypes=[float])(q)


def _evaluate_even_chebyshev(nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the Chebyshev points in (0, 1] and the matrices of first and second derivatives of even functions on [-1, 1]."""
    count = 2 * nodes
    x = np.cos(np.pi * np.arange(count) / (count - 1))
    # alternating signs, with a factor 2 at both ends: the standard differentiation matrix
    ends = np.where(np.isin(np.arange(count), (0, count - 1)), 2.0, 1.0) * (-1.0) ** np.arange(count)
    half = np.pi * np.arange(count) / 2 / (count - 1)
    # differences of nodes as products of sines, and a diagonal by zero row sums: both avoid cancellation
    apart = 2 * np.sin(np.add.outer(half, half)) * np.sin(np.subtract.outer(half, half))
    D = np.outer(ends, 1 / ends) / (-apart + np.eye(count))
    np.fill_diagonal(D, 0.0)
    np.fill_diagonal(D, -D.sum(1))
    # act on even functions by their values at positive nodes only
    fold = lambda matrix: matrix[:nodes, :nodes] + matrix[:nodes, nodes:][:, ::-1]
    return x[:nodes], fold(D), fold(D @ D)


def ode_exit_times(problem: Problem, starts: PyTree, threshold, t_max: float, rtol: float | None = None) -> np.ndarray:
    """Return the time at which the ODE from each start has lost a share `threshold` of its excess risk.

    The time is infinite if the share is not lost before `t_max`.

    Parameters
    ----------
    problem : any problem
    starts : statistics, runs first
    threshold : share of the excess risk, for all runs or one per run
    t_max : end of the integration
    rtol : relative tolerance of the solver; None takes the accuracy of the problem's expectations
    """
    one, y = select_run(starts), np.asarray(jax.vmap(lambda run: ravel_pytree(run)[0])(starts))
    risks, slopes = (jit_bound(_map_over_runs, problem, method, one) for method in ("risk", "drift"))
    risk = lambda y: np.asarray(risks(y))[:, 0]
    slope = lambda y: np.asarray(slopes(y))
    level = (1 - threshold) * risk(y) + threshold * float(problem.floor)
    return passage_times(slope, risk, y, level, t_max, rtol or problem.numerics.tolerance)


def passage_times(
    slope: Callable, risk: Callable, y: Float[np.ndarray, "runs n"], level: np.ndarray, t_max: float, rtol: float
) -> Float[np.ndarray, " runs"]:
    """Return the time at which the risk of each run along an ODE falls to the run's threshold, its entry in `level`.

    The time is infinite for runs that diverge or do not fall so far before `t_max`. The runs are integrated as one system, in
    which runs that have reached their threshold are frozen. `slope` returns the derivatives and `risk` the risks for the states
    of all runs, shape (runs, n); y has the initial states.
    """
    rows = lambda flat: flat.reshape(y.shape)
    moving = risk(y) > level
    flow = lambda t, flat: (slope(rows(flat)) * moving[:, None]).ravel()
    # runs that start below their level exit at once
    times = np.where(moving, np.inf, 0.0)
    solver = DOP853(flow, 0.0, y.ravel(), t_max, rtol=rtol, atol=rtol / 100)
    while solver.status == "running" and moving.any():
        with np.errstate(all="ignore"):
            solver.step()
        passed = moving & (risk(rows(solver.y)) <= level)
        if passed.any():
            path, nodes = solver.dense_output(), chebpts1(INTERPOLATION_DEGREE + 1)
            middle, half = (solver.t + solver.t_old) / 2, (solver.t - solver.t_old) / 2
            above = np.stack([risk(rows(path(t))) - level for t in middle + half * nodes])[:, passed]
            times[passed] = middle + half * _falling_roots(chebfit(nodes, above, INTERPOLATION_DEGREE))
        moving &= ~passed & (np.abs(rows(solver.y)) <= MAX_COORDINATE).all(1)
        solver.f = flow(solver.t, solver.y)  # the solver reuses the last slope, in which frozen runs still moved
    return times


def _falling_roots(series: Float[np.ndarray, "terms runs"]) -> Float[np.ndarray, " runs"]:
    """Return the point in [-1, 1] at which each Chebyshev series changes from positive to negative, by bisection.

    If rounding hides the change of sign, an end of the interval is returned.
    """
    left, right = np.full(series.shape[1], -1.0), np.ones(series.shape[1])
    right = np.where(chebval(left, series, tensor=False) <= 0, left, right)
    for _ in range(53):  # bits of a float
        middle = (left + right) / 2
        below = chebval(middle, series, tensor=False) <= 0
        left, right = np.where(below, left, middle), np.where(below, middle, right)
    return right


def _map_over_runs(problem: Problem, method: str, like: PyTree, rows: Float[np.ndarray, "runs n"]) -> Float[Array, "runs m"]:
    """Evaluate a problem's method named `method`, such as "drift", at flattened statistics, and flatten the results.

    `like` has the structure of the statistics of one run, `rows` the flattened statistics of each run.
    """
    stats = ravel_pytree(like)[1]
    return problem.numerics.over_runs(lambda row: ravel_pytree(getattr(problem, method)(stats(row)))[0], rows)


def mean_exit_time(start, end, growth: float, variance: float, dimension: int = 1) -> np.ndarray:
    r"""Return the mean time in which :math:`dm = \mu m\,dt + \sigma\,dB` in p dimensions goes from norm |m| to :math:`\ell`.

    .. math:: E\tau = \frac2\mu\int_{y(m)}^{y(\ell)} D(u)\,du, \quad y(m) = |m|\sqrt\mu/\sigma, \qquad
              \int_0^y D(u)\,du = \frac{y^2}{2p}\,{}_2F_2(1, 1; 1+\tfrac p2, 2; -y^2),

    where :math:`D(u) = u^{1-p}e^{-u^2}\int_0^u v^{p-1}e^{v^2}dv = \frac up\,{}_1F_1(1; 1+\frac p2; -u^2)`, Dawson's function
    at p = 1: the norm has the drift :math:`\mu|m| + (p-1)\sigma^2/2|m|`, and the derivative of :math:`E\tau` satisfies a
    first-order equation, which integrates to D. For :math:`\mu < 0`, D is replaced by its value at imaginary argument; for
    :math:`\mu = 0` the time is :math:`(\ell^2-|m|^2)/p\sigma^2`.

    Parameters
    ----------
    start, end : initial norm :math:`|m|` and final norm :math:`\ell \ge |m|`; broadcast against each other
    growth, variance : growth rate :math:`\mu` and noise variance :math:`\sigma^2`
    dimension : number of components p of m

    >>> [float(mean_exit_time(0.0, 1.0, growth=0.0, variance=1.0, dimension=p)) for p in (1, 2)]
    [1.0, 0.5]
    """
    p = dimension
    start, end = np.broadcast_arrays(np.abs(start), np.abs(end))
    if growth == 0:
        return (end**2 - start**2) / (p * variance)
    scale = np.sqrt(abs(growth) / variance)
    sign = -np.sign(growth)
    D = lambda u: u / p * hyp1f1(1, 1 + p / 2, sign * u**2)
    # share: position between start and end, so that starts and ends broadcast
    along = lambda share: D(scale * (start + share * (end - start)))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = quad_vec(along, 0, 1, epsabs=0, epsrel=1e-12, norm="max")[0]
        return 2 / abs(growth) * scale * (end - start) * np.where(np.isnan(mean), np.inf, mean)
