r"""Norm learning in a quadratic network: relaxation of the norms before the students align with the teachers [3]_.

As long as the overlaps with the teachers are negligible, gradient flow is (9) of the paper,

.. math:: \dot Q = \frac{8}{p}\Big[\Big(1 - \frac{\mathrm{tr} Q}p\Big) Q - \frac2p\, Q^2\Big], \qquad
          \dot M = \frac4p\Big[1 + \frac2{p^*} - \frac{\mathrm{tr}Q}p - \frac2p\, Q\Big] M,

for any Q, overlaps between students included. Its solution is

.. math:: Q = a\, Q_0\,(1 + b Q_0)^{-1}, \qquad M = e^{8t/pp^*}\sqrt a\,(1 + b Q_0)^{-1/2} M_0, \qquad
          a = \frac{e^{8t/p}}{D(b)}, \qquad \int_0^b D = \frac2p\,\big(e^{8t/p} - 1\big), \qquad D(b) = \sqrt{\det(1 + b Q_0)} :

with :math:`\dot b = 16\,a/p^2` that of a is :math:`da/db = \frac p2 - \frac a2\,\mathrm{tr}\,Q_0(1+bQ_0)^{-1}`, which is
linear: :math:`aD = 1 + \frac p2\int_0^b D`. For orthogonal students of equal norm the solution is a logistic curve; at
any learning rate and noise the time is a sum of three logarithms of the norm.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from sgdlimits.domain import PositiveInTime, RealArray, Times, checked
from sgdlimits.errors import BadInput
from sgdlimits.papers.quadratic.theory.plateau import Coefficients, read_coefficients
from sgdlimits.problem.projection import ProjectionProblem

# Gauss-Legendre rule of each panel
LEGENDRE_NODES, LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(10)
QUADRATURE_PANELS = 120
"""Number of panels of the integral over log b."""
LOG_RANGE = 60.0
"""Range of the integral in log b; the remainder, a fraction exp(-60), is below rounding."""


@checked
def norm_learning(
    problem: ProjectionProblem, t: Times, norm: PositiveInTime = 1.0, *, corrector: bool = True
) -> np.ndarray | float:
    r"""Squared norm q over time of orthogonal students of equal norm, without overlaps with the teachers.

    The corrector is the part of the drift quadratic in the learning rate :math:`\eta`; p is the width, and :math:`q_0` the
    squared norm at the start.

    Without the corrector, :math:`\bar Q/q = 1 + (\bar Q/q_0 - 1)\,e^{-8\eta t/p}` with :math:`\bar Q = p/(p+2)`, (10). With
    it, q is :math:`s\,p/(p+2)` and with the roots :math:`s_1 < s_2` of h (see `plateau`)

    .. math:: \frac{8\eta t}p = \Big[\frac{\log s}{h(0)} - \frac{\log|s-s_1|}{s_1\sqrt\delta} +
              \frac{\log(s_2-s)}{s_2\sqrt\delta}\Big]_{s_0}^{s}.

    Parameters
    ----------
    problem : `presets.quadratic_network`
    t : samples per dimension; any shape
    norm : :math:`q_0`, the squared norm at the start, below the norm above which norms diverge
    corrector : whether terms of second order in the learning rate are included, as in `ODE`

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=3, teachers=2, lr=0.1)
    >>> norm_learning(problem, [0.0, 3.0, 300.0], norm=0.1).round(4)
    array([0.1   , 0.1995, 0.6597])
    """
    at, t = read_coefficients(problem, corrector), np.asarray(t, float)
    if not (t >= 0).all():
        raise BadInput(f"t must not be negative; got {t.min():g}. Use times since the start.")
    rate, unit = 8 * read_coefficients(problem).lr / at.p, at.p / (at.p + 2)
    if at.kappa == 0:
        s = 1 / (1 + (unit / norm - 1) * np.exp(-rate * t))
    else:
        s = np.vectorize(lambda time: _solve_norm(at, norm / unit, time), otypes=[float])(rate * t)
    return s * unit if t.ndim else float(s * unit)


@checked
def student_overlaps(problem: ProjectionProblem, t: Times, Q: RealArray) -> np.ndarray:
    r"""Overlaps Q(t) between students in gradient flow from any Q, while overlaps with teachers are negligible.

    Here p is the width, :math:`\eta` the learning rate and :math:`\bar Q = p/(p+2)`.

    A Q of full rank relaxes to :math:`\bar Q\,1`: first its trace, then the rest, at the rate :math:`16\eta/p(p+2)`. The result
    has the shape of t followed by (p, p).

    Parameters
    ----------
    problem : `presets.quadratic_network`
    t : samples per dimension; any shape
    Q : positive semidefinite matrix at the start

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.01)
    >>> student_overlaps(problem, 1e5, [[1.0, 0.5], [0.5, 0.3]]).round(6)
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    at, t = read_coefficients(problem), np.asarray(t, float)
    values, vectors = np.linalg.eigh(np.asarray(Q, float))
    if values.shape != (at.p,) or not np.allclose(Q, np.transpose(Q)) or values[0] < -1e-9 * abs(values[-1]):
        raise BadInput(
            f"Q must be a positive semidefinite matrix of {at.p} rows and columns. Use the overlaps between students."
        )
    # gradient flow keeps the null space of Q
    there = values > 1e-14 * values[-1]
    settled = np.zeros((t.size, at.p))
    if there.any():
        settled[:, there] = [_solve_eigenvalues(at.p, values[there], 8 * at.lr * time / at.p) for time in t.ravel()]
    return np.einsum("ij,tj,kj->tik", vectors, settled, vectors).reshape(*t.shape, at.p, at.p)


def _solve_norm(at: Coefficients, first: float, time: float) -> float:
    """Return the relative squared norm s after `time`, in units of p/(8 lr), from its value `first` at the start.

    Here p is the width and lr the learning rate. The norm is the root of a sum of three logarithms, with the unknown x =
    -log((s - s1)/(s0 - s1)), where s0 is the start and s1 the norm on the plateau.
    """
    low, high = at.s, at.larger_root(first)
    root = at.slope
    if first == low or time == 0:
        return first
    # a logarithmic unknown resolves norms close to the plateau
    place = lambda x: low + (first - low) * np.exp(-x)

    def time_excess(x: float) -> float:
        """Return the time at which the norm reaches x, less the requested time."""
        s = place(x)
        start = np.log(s / first) / (at.kappa * at.b * low * high)
        return start + x / (low * root) + np.log((high - s) / (high - first)) / (high * root) - time

    end = 1.0
    # bracket the root
    while time_excess(end) < 0:
        end *= 2
    return float(place(brentq(time_excess, 0, end, xtol=1e-14, rtol=1e-13)))


def _solve_eigenvalues(p: int, first: np.ndarray, time: float) -> np.ndarray:
    """Return the eigenvalues of the student overlaps Q after `time`, from the eigenvalues `first` at the start.

    The time is in units of p/(8 lr), with p the width and lr the learning rate. The unknown is x = log(1 + b q), where q is the
    largest eigenvalue at the start and b the variable of the solution in `norms`.
    """
    if time == 0:
        return first
    # eigenvalues relative to the largest, which may differ by many orders
    shares = first / first.max()
    with np.errstate(divide="ignore"):
        stay, grow = np.log1p(-shares), np.log(shares)

    def log_factors(x: np.ndarray | float) -> np.ndarray:
        """Return log(1 + b q) for each eigenvalue q at the start, given the value x of the largest."""
        return np.logaddexp(stay, grow + np.asarray(x)[..., None])

    def log_excess(x: float) -> float:
        """Return the logarithm of the integral at x less its requested value, which is zero at the solution."""
        # the integrand is negligible before that
        low = max(0.0, x - LOG_RANGE)
        edges = np.linspace(low, x, QUADRATURE_PANELS + 1)
        at = edges[:-1, None] + (edges[1] - edges[0]) * (LEGENDRE_NODES + 1) / 2
        # in logarithms, because 1 + b q overflows long before the norms have settled
        log_weights = np.log(LEGENDRE_WEIGHTS * (edges[1] - edges[0]) / 2) - np.log(first.max())
        return float(logsumexp(log_factors(at).sum(-1) / 2 + at + log_weights)) - (
            np.log(2 / p) + time + np.log(-np.expm1(-time))
        )

    x = brentq(log_excess, 1e-300, time + 1 + np.log1p(2 * first.max() / p), xtol=1e-13, rtol=1e-13)
    return first * np.exp(time - log_factors(x).sum() / 2 - log_factors(x))
