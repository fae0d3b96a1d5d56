r"""Gauss quadrature for a normal variate split at a point, smooth in that point, and closed integrals over half-spaces.

The rule of n nodes for the normal law restricted to :math:`[c, \infty)` comes from the recurrence of its orthogonal polynomials
(Stieltjes' procedure on a fine grid, then the eigenvalues of Jacobi's matrix). Nodes and weights are analytic in c: they are
tabulated once as polynomials on short panels of c, and looked up in JAX. A function with a kink at c is then integrated as
accurately as a smooth one.
"""

from __future__ import annotations

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc, ndtr
from jaxtyping import Array, Float
from numpy.polynomial import chebyshev
from numpy.polynomial.legendre import leggauss

from sgdlimits.expectation.gaussian.units import safe_inverse_root

MAX_SPLIT_POINT = 8.0
"""Largest absolute value of a point at which the normal law is split; beyond it one side is empty in double precision."""
TABLE_PANELS = 32
POLYNOMIAL_DEGREE = 10
"""Number of panels of the split point, and degree of the polynomials in each panel, for tabulated nodes and weights."""
TABLE_UPPER_END = 14.0
"""Upper end of the half-lines on which Gauss rules are tabulated, in standard deviations."""
STIELTJES_POINTS = 240
ANGLE_NODES = 32
MAX_STANDARDISED_MEAN = 40.0
"""Largest mean in standard deviations: beyond it the normal distribution function is 0 or 1 in double precision."""
NEARLY_PARALLEL_CORRELATION = 0.95
"""Correlation above which Plackett's integral starts at 1; below it, the integrand from 0 on is smooth between the nodes."""


def split_line(c: Float[Array, "*shape"], above: int, below: int | None = None) -> tuple[Float[Array, "n *shape"], ...]:
    """Return quadrature nodes and weights for a standard normal variate, with separate nodes on both sides of c.

    Exact for functions that are polynomials of degree :math:`2n - 1` on each side of c, where n is the number of nodes on that
    side. The weights sum to 1. Beyond 8 standard deviations one side is empty in double precision, and c counts as 8.

    Parameters
    ----------
    c : split points of any shape, which are the last axes of the results
    above, below : numbers of nodes above and below c; `below` equals `above` unless given

    >>> import jax.numpy as jnp
    >>> points, weights = split_line(jnp.array(0.3), 2)
    >>> round(float((weights * jnp.maximum(points - 0.3, 0)).sum()), 10)                # E max(z - 0.3, 0)
    0.2667612421
    """
    c = jnp.clip(c, -MAX_SPLIT_POINT, MAX_SPLIT_POINT)
    both = jnp.stack([c, -c])
    if below in (None, above):
        # One lookup for both sides is cheaper than two.
        (over, under), (weights, others) = (jnp.moveaxis(leaf, 1, 0) for leaf in half_line_rule(both, above))
    else:
        (over, weights), (under, others) = half_line_rule(c, above), half_line_rule(-c, below)
    chance, other = erfc(both / np.sqrt(2)) / 2
    return jnp.concatenate([over, -under]), jnp.concatenate([chance * weights, other * others])


def split_twice(
    low: Float[Array, "*shape"], high: Float[Array, "*shape"], order: int
) -> tuple[Float[Array, "n *shape"], Float[Array, "n *shape"]]:
    """Return quadrature nodes and weights for a standard normal variate, with separate nodes below, between and above splits.

    There are `order` nodes above `high`, as many below `low`, and 1.5 times as many between. The two half-lines have the Gauss
    rules of `half_line_rule`. The interval has Gauss-Legendre nodes, weighted with the normal density, so that short intervals
    are integrated to the same relative accuracy as long ones. Both split points, low <= high, are clipped to [-8, 8].

    >>> import jax.numpy as jnp
    >>> points, weights = split_twice(jnp.array(0.3), jnp.array(0.301), 4)
    >>> chance = ((points > 0.3) & (points < 0.301)) @ weights                       # by erf, 0.00038133055
    >>> round(float(chance / 0.001), 8)
    0.38133055
    """
    low, high = jnp.clip(low, -MAX_SPLIT_POINT, MAX_SPLIT_POINT), jnp.clip(high, -MAX_SPLIT_POINT, MAX_SPLIT_POINT)
    (over, above), (under, below) = half_line_rule(high, order), half_line_rule(-low, order)
    nodes, lengths = (jnp.asarray(part).reshape(-1, *[1] * low.ndim) for part in leggauss(-(-3 * order // 2)))  # rounded up
    middle = (low + high) / 2 + (high - low) / 2 * nodes
    between = (high - low) / 2 * lengths * jnp.exp(-(middle**2) / 2) / np.sqrt(2 * np.pi)
    chance, other = erfc(jnp.stack([high, -low]) / np.sqrt(2)) / 2
    return jnp.concatenate([over, middle, -under]), jnp.concatenate([chance * above, between, other * below])


def half_line_rule(c: Float[Array, "*shape"], order: int) -> tuple[Float[Array, "order *shape"], Float[Array, "order *shape"]]:
    """Return Gauss nodes and weights, which sum to 1, of a standard normal variate conditioned to exceed c, |c| <= 8."""
    values = _evaluate_table(c, order)
    return c + values[:order], values[order:]


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _evaluate_table(c: Float[Array, "*shape"], order: int) -> Float[Array, "2*order *shape"]:
    """Interpolate the tabulated Gauss rule of the half-line above c: distances of its nodes from c, and weights."""
    x, (values, *lower) = _locate_panel(c, order)
    for coefficients in lower:
        values = values * x + coefficients
    return values


@_evaluate_table.defjvp
def _(order, primals, tangents):
    # Slopes are computed along with the values, so that reverse mode stores two arrays instead of one for each power.
    x, (values, *lower) = _locate_panel(primals[0], order)
    slopes = jnp.zeros_like(values)
    for coefficients in lower:
        slopes, values = slopes * x + values, values * x + coefficients
    return values, slopes * (TABLE_PANELS / MAX_SPLIT_POINT) * tangents[0]


def _locate_panel(
    c: Float[Array, "*shape"], order: int
) -> tuple[Float[Array, "*shape"], Float[Array, "powers 2*order *shape"]]:
    """Find the panel of the table that contains c; return the position of c in it and the panel's coefficients.

    The polynomial coefficients are in the order of decreasing powers.
    """
    place = (c + MAX_SPLIT_POINT) * (TABLE_PANELS / (2 * MAX_SPLIT_POINT))
    panel = jnp.minimum(place.astype(int), TABLE_PANELS - 1)
    # mode="clip": the index is in range anyway, and the default mode would test it.
    return 2 * (place - panel) - 1, jnp.take(_tabulate_rules(order)[::-1], panel, axis=-1, mode="clip")


@lru_cache(maxsize=32)
def _tabulate_rules(order: int) -> Float[np.ndarray, "powers 2*order panels"]:
    """Fit nodes and weights of the Gauss rules on half-lines [c, infinity) by polynomials in c, one for each panel."""
    x = chebyshev.chebpts1(POLYNOMIAL_DEGREE + 1)
    c = -MAX_SPLIT_POINT + (2 * MAX_SPLIT_POINT / TABLE_PANELS) * (np.arange(TABLE_PANELS)[:, None] + (x + 1) / 2)
    values = np.concatenate(_gauss_rules(c.ravel(), order), axis=1).reshape(TABLE_PANELS, POLYNOMIAL_DEGREE + 1, 2 * order)
    fitted = chebyshev.chebfit(x, np.moveaxis(values, 1, 0).reshape(POLYNOMIAL_DEGREE + 1, -1), POLYNOMIAL_DEGREE)
    # Chebyshev fits are well conditioned; powers are cheaper to evaluate, and stable at this degree on [-1, 1].
    as_powers = [
        np.pad(chebyshev.cheb2poly(row[: n + 1]), (0, POLYNOMIAL_DEGREE - n))
        for n, row in enumerate(np.eye(POLYNOMIAL_DEGREE + 1))
    ]
    powers = np.transpose(as_powers) @ fitted
    return np.moveaxis(powers.reshape(POLYNOMIAL_DEGREE + 1, TABLE_PANELS, 2 * order), 1, -1)


def _gauss_rules(c: Float[np.ndarray, " n"], order: int) -> tuple[Float[np.ndarray, "n order"], Float[np.ndarray, "n order"]]:
    """Compute Gauss rules of the normal law on [c, infinity), as distances of the nodes from c and weights.

    Stieltjes' procedure gives the recurrence of the orthogonal polynomials, and Golub-Welsch the nodes and weights from it.
    """
    nodes, lengths = leggauss(STIELTJES_POINTS)
    distance = (TABLE_UPPER_END - c[:, None]) / 2 * (nodes + 1)
    # phi(c + distance) without its constant factor phi(c), which would underflow
    density = lengths * np.exp(-(distance**2) / 2 - c[:, None] * distance)
    density /= density.sum(1, keepdims=True)
    centre, spread = np.zeros((2, c.size, order))
    before, polynomial = np.zeros_like(distance), np.ones_like(distance)
    for n in range(order):
        centre[:, n] = (density * distance * polynomial**2).sum(1)
        after = (distance - centre[:, n, None]) * polynomial - spread[:, n - 1, None] * before
        spread[:, n] = np.sqrt((density * after**2).sum(1))
        before, polynomial = polynomial, after / spread[:, n, None]
    jacobi = np.zeros((c.size, order, order))
    step = np.arange(order)
    jacobi[:, step, step] = centre
    jacobi[:, step[1:], step[:-1]] = jacobi[:, step[:-1], step[1:]] = spread[:, :-1]
    values, vectors = np.linalg.eigh(jacobi)
    return values, vectors[:, 0] ** 2


def means_where_positive(
    mean: Float[Array, " p"], variance: Float[Array, " p"], others: Float[Array, " n"], cross: Float[Array, "p n"]
) -> Float[Array, "p n"]:
    r"""Compute the means E[x_l 1(x_j > 0)] for all pairs of Gaussian fields x_j and x_l.

    For means :math:`\bar x_j`, standard deviations :math:`s_j` and covariances :math:`C_{jl}` the result is :math:`\bar
    x_l\Phi(h) + C_{jl}\,\varphi(h)/s_j` with :math:`h = \bar x_j/s_j`.

    Parameters
    ----------
    mean, variance : means and variances of the fields x_j
    others : means of the fields x_l
    cross : covariances of x_j and x_l
    """
    h = _standardise_means(mean, variance)
    density = jnp.exp(-(h**2) / 2) / jnp.sqrt(2 * jnp.pi) * safe_inverse_root(variance)
    return ndtr(h)[:, None] * others + density[:, None] * cross


def probability_both_positive(mean: Float[Array, " p"], C: Float[Array, "p p"]) -> Float[Array, "p p"]:
    r"""Compute P(x_i > 0, x_j > 0) for all pairs of fields with the given means and covariances C.

    The result is Plackett's integral over the correlation :math:`\rho`, from 0 or, for nearly parallel fields, from
    :math:`\pm1`. With means :math:`\bar x_i`, standard deviations :math:`s_i`, :math:`h = \bar x_i/s_i`, :math:`k = \bar
    x_j/s_j`, and for :math:`\rho > 0`,

    .. math:: \Phi(\min(h, k)) - \frac1{2\pi}\int_0^{\arccos\rho} \exp\Big(-\frac{(h - k)^2}{2\sin^2\psi}
              - \frac{hk}{1 + \cos\psi}\Big)d\psi = \Phi(h)\Phi(k) + \frac1{2\pi}\int_{\arccos\rho}^{\pi/2} \dots\,d\psi.

    A negative :math:`\rho` is reduced to a positive one by :math:`x_j \to -x_j`.
    """
    variance = jnp.diagonal(C)
    h, inverse = _standardise_means(mean, variance), safe_inverse_root(variance)
    same = jnp.eye(mean.size, dtype=bool)
    # Clipped short of +-1, where the derivative of the arccosine is infinite.
    rho = jnp.where(same, 0.0, jnp.clip(C * inverse[:, None] * inverse, -1 + 1e-12, 1 - 1e-12))
    sign = jnp.where(rho < 0, -1.0, 1.0)
    first, second = jnp.broadcast_to(h[:, None], rho.shape), sign * h
    angle, near = jnp.arccos(jnp.abs(rho)), jnp.abs(rho) > NEARLY_PARALLEL_CORRELATION
    nodes, lengths = leggauss(ANGLE_NODES)
    u = (nodes + 1) / 2  # cubed near 0, where exp(-(h - k)^2 / psi^2) falls to zero within any |h - k|
    psi = jnp.where(near[..., None], angle[..., None] * u**3, angle[..., None] + (jnp.pi / 2 - angle)[..., None] * u)
    measure = jnp.where(near[..., None], angle[..., None] * 3 * u**2, (jnp.pi / 2 - angle)[..., None])
    apart = ((first - second) ** 2)[..., None] / (2 * jnp.sin(psi) ** 2) + (first * second)[..., None] / (1 + jnp.cos(psi))
    swept = (jnp.exp(-apart) * measure) @ lengths / (4 * jnp.pi)
    closed = jnp.where(near, ndtr(jnp.minimum(first, second)) - swept, ndtr(first) * ndtr(second) + swept)
    return jnp.where(same, ndtr(h), jnp.where(rho < 0, ndtr(first) - closed, closed))


def _standardise_means(mean, variance):
    """Compute means in units of standard deviations, clipped to [-40, 40].

    For variance zero the result is -40, 0 or 40, by the sign of the mean.
    """
    inverse = safe_inverse_root(variance)
    height = jnp.where(inverse > 0, mean * inverse, MAX_STANDARDISED_MEAN * jnp.sign(mean))
    return jnp.clip(height, -MAX_STANDARDISED_MEAN, MAX_STANDARDISED_MEAN)
