r"""Hermite coefficients of a function of a standard normal number, and the information exponent that they define.

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

from sgdlimits.checks import sized, some_target
from sgdlimits.domain import Fraction, checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs import Inputs, gaussian
from sgdlimits.model.activation import Activation, FunctionActivation, Polynomial, as_activation
from sgdlimits.model.leaps import leaps
from sgdlimits.model.target import CommitteeReadout, Target

MOST_COEFFICIENTS = 2**14
MAX_HERMITE_ORDER = 64
"""Orders that `information_exponent` looks at."""
PANEL_ERROR, ERROR = 1e-13, 1e-11
"""By how much the rules on one panel, and on all that are left in the end, may differ, relative to E|fn|."""
MOST_PANELS, MOST_ROUNDS = 4096, 64
EDGES = np.concatenate([np.arange(0, 8, 0.5), [8, 10, 12, 16, 24, 38]])
"""Panels on each side of zero, up to where the normal density is the smallest of all numbers."""
NODES, WEIGHTS = legendre.leggauss(16)
AT_ONCE = 2048


@checked
def hermite_coefficients(fn: str | Callable | Activation, n: Annotated[int, sized(at_least=0)]) -> Float[np.ndarray, "n+1"]:
    r"""The coefficients :math:`c_m = E[fn(z)\, He_m(z)]`, m = 0, ..., n, for z standard normal.

    They expand the function in Hermite polynomials:

    .. math:: fn = \sum_m \frac{c_m}{m!}\, He_m, \qquad E[fn^2] = \sum_m \frac{c_m^2}{m!}.

    Polynomials are expanded exactly. Other functions are integrated by Gauss-Legendre rules on panels that are halved where two
    rules differ, so that kinks and jumps do not matter; the error of :math:`c_m/\sqrt{m!}` is then about 1e-11 of E|fn|.
    Where the integral does not converge, as for exp(x^2), `BadInput` says so.

    Parameters
    ----------
    fn : the name of an activation, an `Activation`, or a JAX function that acts on each entry of an array
    n : the highest order

    >>> hermite_coefficients("relu", 4).round(9) + 0.0
    array([ 0.39894228,  0.5       ,  0.39894228,  0.        , -0.39894228])
    >>> hermite_coefficients("square", 3)
    array([1., 0., 2., 0.])
    """
    if n > MOST_COEFFICIENTS:
        raise BadInput(f"n must be at most {MOST_COEFFICIENTS}; got {n}. Give a smaller number.")
    orders = np.arange(n + 1)
    strengths, _ = expand_in_hermite(as_activation(fn), orders.size - 1)
    return strengths * np.exp(scipy.special.gammaln(orders + 1) / 2)


@checked
def information_exponent(target: Annotated[str | Callable | Activation | Any, some_target], tolerance: Fraction = 1e-8) -> int:
    r"""The smallest order :math:`m \ge 1` whose Hermite coefficient :math:`c_m = E[g(z)\, He_m(z)]` is not zero.

    One-pass SGD on a target of the exponent n needs of the order of d samples for n = 1, d log d for n = 2 and
    :math:`d^{n-1}` for :math:`n \ge 3` (Ben Arous, Gheissari and Jagannath [15]_).

    Parameters
    ----------
    target : g: the name of an activation, an `Activation`, a JAX function, or a problem, whose target it is; a `Target` or a
        problem of several teachers has the smallest order whose Hermite tensor is not zero, its first leap (`leaps`)
    tolerance : a coefficient counts as zero where :math:`|c_m|/\sqrt{m!}` is at most this share of E|g|; `BadInput` where all
        up to order 64 do, as for a constant

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
        of: Any = target if model is None else model.target
        data: Inputs = gaussian() if model is None else model.data
        if of.teachers > 1 and data.centred:
            return leaps(Target(of.readout, gram=np.asarray(data.squared_length) * np.asarray(of.gram)), tolerance)[0].order
        activation = target_function(of, data)
    else:
        activation = as_activation(target)
    strengths, size = expand_in_hermite(activation, MAX_HERMITE_ORDER)
    seen = np.flatnonzero(np.abs(strengths[1:]) > tolerance * size)
    if not seen.size:
        raise BadInput(
            f"the target has no Hermite coefficient of order 1 to {MAX_HERMITE_ORDER} above {tolerance:g} of its size "
            f"E|g| = {size:g}. Give a function that is not constant where a normal number lies."
        )
    return int(seen[0]) + 1


def target_function(target: Target, data: Inputs) -> Activation:
    """The target of one teacher as a function of a standard normal number; `BadInput` for several, or for classes."""
    if target.teachers != 1 or not data.centred:
        raise BadInput(
            f"an information exponent needs one teacher and centred data; got {target.teachers} teachers and "
            f"{data.classes} classes. Give the target's function itself."
        )
    norm, readout = (float(data.squared_length) * float(target.gram[0, 0])) ** 0.5, target.readout
    if isinstance(readout, CommitteeReadout) and readout.second is None and norm == 1:
        return readout.activation
    return FunctionActivation(lambda field: readout(norm * jnp.asarray(field)[None]), smooth=False)


def expand_in_hermite(activation: Activation, n: int) -> tuple[Float[np.ndarray, "n+1"], float]:
    r""":math:`c_m/\sqrt{m!}` up to order n, and the size of the function: E|fn|, for a polynomial the root of E fn^2."""
    if isinstance(activation, Polynomial):
        series = hermite_e.poly2herme(activation.coefficients)
        strengths = series * np.sqrt(scipy.special.factorial(np.arange(series.size)))
        return np.concatenate([strengths, np.zeros(n + 1)])[: n + 1], float(np.linalg.norm(strengths))
    return _integrate(activation, n)


@np.errstate(all="ignore")
def _integrate(activation: Activation, n: int) -> tuple[Float[np.ndarray, "n+1"], float]:
    """Halve panels until the rule on a panel agrees with that on its halves, for all orders at once."""
    edges = np.concatenate([-EDGES[:0:-1], EDGES])
    low, high = edges[:-1], edges[1:]
    coarse = _panels(activation, n, low, high)
    size = coarse[-1].sum()
    total = np.zeros(n + 2)
    for _ in range(MOST_ROUNDS):
        middle = (low + high) / 2
        left, right = np.split(_panels(activation, n, np.concatenate([low, middle]), np.concatenate([middle, high])), 2, axis=1)
        error = np.abs(left + right - coarse).max(0)
        bad = ~(error <= PANEL_ERROR * size)
        total += (left + right)[:, ~bad].sum(1)
        low, high = np.concatenate([low[bad], middle[bad]]), np.concatenate([middle[bad], high[bad]])
        coarse = np.concatenate([left[:, bad], right[:, bad]], axis=1)
        if not low.size or low.size > MOST_PANELS or not np.isfinite(size):
            break
    beyond = np.abs(_integrand(activation, n, edges[[0, -1]])).max() * edges[-1]
    value, rest = total + coarse.sum(1), error[bad].sum() + beyond
    if not (np.isfinite(rest) and rest <= ERROR * size):
        raise BadInput(
            f"the Hermite coefficients do not converge: E[fn] came to {value[0]:.6g} with an error of about "
            f"{np.nan_to_num(rest, nan=np.inf):.2g}. Give a function that grows slower than exp(x^2/4) and has few jumps."
        )
    return value[:-1], float(value[-1])


def _panels(activation: Activation, n: int, low: np.ndarray, high: np.ndarray) -> Float[np.ndarray, "n+2 panels"]:
    """Integrals over panels of fn times each normalised Hermite polynomial and the density, and of |fn| in the last row."""
    half = (high - low) / 2
    x = (low + high)[:, None] / 2 + half[:, None] * NODES
    return (_integrand(activation, n, x.ravel()).reshape(n + 2, *x.shape) * WEIGHTS).sum(-1) * half


def _integrand(activation: Activation, n: int, x: Float[np.ndarray, " points"]) -> Float[np.ndarray, "n+2 points"]:
    padded = np.concatenate([x, np.full(-x.size % AT_ONCE, x[-1])]).reshape(-1, AT_ONCE)
    values = np.concatenate([np.asarray(_values(activation, jnp.asarray(row))) for row in padded])[: x.size]
    broken = ~np.isfinite(values) & (np.abs(x) < 8)
    if broken.any():
        raise BadInput(f"fn({x[broken][0]:.4g}) is {values[broken][0]}. Give a function that is finite on all numbers.")
    rows = np.empty((n + 2, x.size))
    rows[0] = values * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    for m in range(n):
        rows[m + 1] = (x * rows[m] - np.sqrt(m) * rows[m - 1]) / np.sqrt(m + 1) if m else x * rows[0]
    rows[n + 1] = np.abs(rows[0])
    return rows


@eqx.filter_jit
def _values(activation: Activation, x: Array) -> Array:
    return activation(x)
