r"""Hermite coefficients of a function of a standard normal variate, and the information exponent that they define.

He_m is the Hermite polynomial of the standard normal law with leading coefficient 1: :math:`E[He_m He_n] = m!\,\delta_{mn}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float
from numpy.polynomial import hermite_e, legendre

from sgdlimits.checks import memory_bounded_count, target_or_name
from sgdlimits.domain import Fraction, checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Inputs, gaussian
from sgdlimits.model.activation import Activation, FunctionActivation, Polynomial, as_activation
from sgdlimits.model.leaps import leaps
from sgdlimits.model.target import CommitteeReadout, Target

MAX_COEFFICIENTS = 2**14
MAX_HERMITE_ORDER = 64
"""Highest order of the Hermite coefficients that `information_exponent` examines."""
PANEL_TOLERANCE = 1e-13
"""Quadrature error in a panel (an interval of integration) below which it is not halved, relative to E|fn| of the integrated
function fn under N(0, 1)."""
TOTAL_TOLERANCE = 1e-11
"""Total quadrature error of the panels that were not halved further, above which the integral counts as divergent; relative to
E|fn| of the integrated function fn under N(0, 1)."""
MAX_PANELS, MAX_HALVINGS = 4096, 64
INTEGRATION_PANEL_EDGES = np.concatenate([np.arange(0, 8, 0.5), [8, 10, 12, 16, 24, 38]])
"""Edges of the initial panels (intervals of integration) on each side of zero, up to where the normal density underflows."""
GAUSS_NODES, GAUSS_WEIGHTS = legendre.leggauss(16)
# Functions are evaluated on arrays of one length, so that they are compiled once.
POINTS_PER_CALL = 2048


@checked
def hermite_coefficients(
    fn: str | Callable | Activation, n: Annotated[int, memory_bounded_count(at_least=0)]
) -> Float[np.ndarray, "n+1"]:
    r"""Compute the Hermite coefficients :math:`c_m = E[fn(z)\, He_m(z)]`, m = 0, ..., n, for z standard normal.

    They expand the function in the Hermite polynomials :math:`He_m`, which have leading coefficient 1:

    .. math:: fn = \sum_m \frac{c_m}{m!}\, He_m, \qquad E[fn^2] = \sum_m \frac{c_m^2}{m!}.

    Polynomials are expanded exactly. Other functions are integrated by Gauss-Legendre rules on panels that are halved where two
    rules differ, so that kinks and jumps do not matter; the error of :math:`c_m/\sqrt{m!}` is then about 1e-11 of E|fn|.
    Raises `BadInput` if the integral does not converge, as for exp(x^2).

    Parameters
    ----------
    fn : the name of an activation, an `Activation`, or a JAX function that acts on each entry of an array
    n : the highest order

    >>> hermite_coefficients("relu", 4).round(9) + 0.0
    array([ 0.39894228,  0.5       ,  0.39894228,  0.        , -0.39894228])
    >>> hermite_coefficients("square", 3)
    array([1., 0., 2., 0.])
    """
    if n > MAX_COEFFICIENTS:
        raise BadInput(f"n, the highest order, must be at most {MAX_COEFFICIENTS}; got {n}. Give a smaller n.")
    orders = np.arange(n + 1)
    strengths, _ = expand_in_hermite(as_activation(fn), orders.size - 1)
    # sqrt(m!) by the log-gamma function, since m! overflows beyond m = 170
    return strengths * np.exp(scipy.special.gammaln(orders + 1) / 2)


@checked
def information_exponent(
    target: Annotated[str | Callable | Activation | Any, target_or_name], tolerance: Fraction = 1e-8
) -> int:
    r"""Compute the information exponent of a target g: the smallest :math:`m \ge 1` with :math:`E[g(z)\, He_m(z)] \ne 0`.

    Here z is standard normal, and :math:`He_m` is the Hermite polynomial with leading coefficient 1. In d dimensions one-pass
    SGD on a target of exponent n needs of the order of d samples for n = 1, d log d for n = 2 and :math:`d^{n-1}` for
    :math:`n \ge 3` (Ben Arous, Gheissari and Jagannath [15]_).

    Parameters
    ----------
    target : g, as the name of an activation, an `Activation`, a JAX function, or a problem with that target; a `Target` or a
        problem of several teachers has the smallest order whose Hermite tensor is not zero, its first leap (`leaps`)
    tolerance : a coefficient :math:`c_m = E[g(z)\, He_m(z)]` counts as zero if :math:`|c_m|/\sqrt{m!}` is at most this fraction
        of E|g|; raises `BadInput` if all coefficients of order 1 to 64 count as zero, as for a constant

    >>> [information_exponent(name) for name in ("erf", "square", "he3")]
    [1, 2, 3]
    >>> information_exponent(lambda x: x**4 - 6 * x**2)
    4
    >>> from sgdlimits.model.target import Target
    >>> information_exponent(Target(lambda x: x[0] * x[1] * x[2], teachers=3))
    3
    """
    model = getattr(target, "model", None)
    if isinstance(target, Target) or model is not None:
        own: Any = target if model is None else model.target
        data: Inputs = gaussian() if model is None else model.data
        if own.teachers > 1 and data.centred:
            return leaps(Target(own.readout, gram=np.asarray(data.squared_length) * np.asarray(own.gram)), tolerance)[0].order
        activation = target_function(own, data)
    else:
        activation = as_activation(target)
    strengths, size = expand_in_hermite(activation, MAX_HERMITE_ORDER)
    nonzero = np.flatnonzero(np.abs(strengths[1:]) > tolerance * size)
    if not nonzero.size:
        raise BadInput(
            f"the target has no Hermite coefficient of order 1 to {MAX_HERMITE_ORDER} above {tolerance:g} of its size "
            f"E|g| = {size:g}. Give a function that is not constant where the normal law has its mass."
        )
    return int(nonzero[0]) + 1


def target_function(target: Target, data: Inputs) -> Activation:
    """Return the target of a single teacher as an `Activation`, a function of a standard normal variate.

    Raises `BadInput` for several teachers, or for data with classes.
    """
    centred, classes = data.centred, data.classes
    if target.teachers != 1 or not centred:
        raise BadInput(
            f"an information exponent needs one teacher and centred data; got {target.teachers} teachers and "
            f"{classes} classes. Give the function of one variable instead of the problem."
        )
    norm = (float(data.squared_length) * float(target.gram[0, 0])) ** 0.5
    readout = target.readout
    if isinstance(readout, CommitteeReadout) and readout.second is None and norm == 1:
        return readout.activation
    return FunctionActivation(lambda field: readout(norm * jnp.asarray(field)[None]), smooth=False)


def expand_in_hermite(activation: Activation, n: int) -> tuple[Float[np.ndarray, "n+1"], float]:
    r"""Compute the normalised Hermite coefficients of an activation s up to order n, and a norm of s.

    For z standard normal these are :math:`E[s(z)\, He_m(z)]/\sqrt{m!}`, and the norm is E|s(z)|, or for a polynomial the square
    root of :math:`E[s(z)^2]`.
    """
    if isinstance(activation, Polynomial):
        series = hermite_e.poly2herme(activation.coefficients)
        strengths = series * np.sqrt(scipy.special.factorial(np.arange(series.size)))
        return np.concatenate([strengths, np.zeros(n + 1)])[: n + 1], float(np.linalg.norm(strengths))
    return _integrate(activation, n)


@np.errstate(all="ignore")
def _integrate(activation: Activation, n: int) -> tuple[Float[np.ndarray, "n+1"], float]:
    """Compute normalised Hermite coefficients up to order n and E|s| of an activation s, on panels halved until convergence."""
    edges = np.concatenate([-INTEGRATION_PANEL_EDGES[:0:-1], INTEGRATION_PANEL_EDGES])
    low, high = edges[:-1], edges[1:]
    coarse = _integrate_panels(activation, n, low, high)
    size = coarse[-1].sum()
    total = np.zeros(n + 2)
    for _ in range(MAX_HALVINGS):
        middle = (low + high) / 2
        left, right = np.split(
            _integrate_panels(activation, n, np.concatenate([low, middle]), np.concatenate([middle, high])), 2, axis=1
        )
        error = np.abs(left + right - coarse).max(0)
        bad = ~(error <= PANEL_TOLERANCE * size)
        total += (left + right)[:, ~bad].sum(1)
        low, high = np.concatenate([low[bad], middle[bad]]), np.concatenate([middle[bad], high[bad]])
        # The halves were integrated for the error estimate; they are the coarse rules of the next round.
        coarse = np.concatenate([left[:, bad], right[:, bad]], axis=1)
        if not low.size or low.size > MAX_PANELS or not np.isfinite(size):
            break
    beyond = np.abs(_evaluate_integrand(activation, n, edges[[0, -1]])).max() * edges[-1]
    value, rest = total + coarse.sum(1), error[bad].sum() + beyond
    if not (np.isfinite(rest) and rest <= TOTAL_TOLERANCE * size):
        raise BadInput(
            f"the Hermite coefficients do not converge: the estimate of E[fn] is {value[0]:.6g} with an error of about "
            f"{np.nan_to_num(rest, nan=np.inf):.2g}. Give a function that grows slower than exp(x^2/4) and has few jumps."
        )
    return value[:-1], float(value[-1])


def _integrate_panels(activation: Activation, n: int, low: np.ndarray, high: np.ndarray) -> Float[np.ndarray, "n+2 panels"]:
    """Integrate an activation s, times each normalised Hermite polynomial and the normal density, over intervals (panels).

    The panels are the intervals from `low` to `high`. The last row has the integral of |s| times the density.
    """
    half = (high - low) / 2
    x = (low + high)[:, None] / 2 + half[:, None] * GAUSS_NODES
    return (_evaluate_integrand(activation, n, x.ravel()).reshape(n + 2, *x.shape) * GAUSS_WEIGHTS).sum(-1) * half


def _evaluate_integrand(activation: Activation, n: int, x: Float[np.ndarray, " points"]) -> Float[np.ndarray, "n+2 points"]:
    """Evaluate an activation s at points x, times each normalised Hermite polynomial up to order n and the normal density.

    The last row is |s| times the density.
    """
    padded = np.concatenate([x, np.full(-x.size % POINTS_PER_CALL, x[-1])]).reshape(-1, POINTS_PER_CALL)
    values = np.concatenate([np.asarray(_evaluate_activation(activation, jnp.asarray(row))) for row in padded])[: x.size]
    # Beyond 8 an infinite value may be an overflow that the density makes harmless.
    infinite = ~np.isfinite(values) & (np.abs(x) < 8)
    if infinite.any():
        raise BadInput(f"fn({x[infinite][0]:.4g}) is {values[infinite][0]}. Give a function that is finite on all numbers.")
    rows = np.empty((n + 2, x.size))
    rows[0] = values * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    # The density is included before the recurrence, since the polynomials alone overflow far out.
    for m in range(n):
        rows[m + 1] = (x * rows[m] - np.sqrt(m) * rows[m - 1]) / np.sqrt(m + 1) if m else x * rows[0]
    rows[n + 1] = np.abs(rows[0])
    return rows


@eqx.filter_jit
def _evaluate_activation(activation: Activation, x: Array) -> Array:
    """Evaluate an activation on an array, in compiled code."""
    return activation(x)
