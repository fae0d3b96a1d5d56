r"""Integrals of any smooth units by one-dimensional quadrature and Mehler's formula; exact for polynomials.

With the coefficients :math:`f_q = E[f(\sigma z)\, h_q(z)]` of a function f of a field along the normalised Hermite polynomials
:math:`h_q`, for a field of standard deviation :math:`\sigma` and standard normal z, two fields of correlation :math:`\rho` have
:math:`E[f g] = \sum_q \rho^q f_q g_q`. For the integral over four fields, the two fields with slopes are placed on a grid.
Given their values the other fields are Gaussian, and Mehler's formula gives the mean of the squared residual at each node. No
rule in more than two dimensions is needed. Slopes that are bumps need no grid (see `sgdlimits.expectation.gaussian.bumps`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.expectation.gaussian.bumps import bump_corrector, fit_gaussian_slope
from sgdlimits.expectation.gaussian.quadrature import LineRule, gauss_hermite, trapezoid
from sgdlimits.expectation.gaussian.units import (
    UNIT_PAIRS_PER_CALL,
    PairIntegrals,
    UnitIntegrals,
    condition_on_pair,
    map_pairs,
    safe_inverse_root,
    safe_root,
)

# With n nodes on [-r, r], r = 2.16 n^(1/3), truncation and discretisation errors decrease at the same rate.
LINE_RANGE_FACTOR = 2.16


class IntegrationOrders(NamedTuple):
    """Numbers of quadrature nodes and of Hermite terms in the integrals of smooth units.

    Parameters
    ----------
    nodes, terms : quadrature nodes and Hermite terms of integrals over two fields
    grid : nodes per dimension for the two fields with slopes, in integrals over four fields
    inner_nodes, inner_terms : nodes and Hermite terms of the other two fields, in integrals over four fields
    """

    nodes: int
    terms: int
    grid: int
    inner_nodes: int
    inner_terms: int

    @classmethod
    def from_order(cls, order: int) -> IntegrationOrders:
        """Return numbers of nodes and terms in proportion to `order`, the number of nodes per dimension of the grid."""
        return cls(6 * order, 4 * order, order, order, order - order // 4)


class HermiteFeatures(NamedTuple):
    """Precomputed features of smooth units: Hermite coefficients of activation and derivatives, and the field's deviation."""

    value: Float[Array, "n terms"]
    slope: Float[Array, "n terms"]
    curvature: Float[Array, "n terms"]
    deviation: Float[Array, " n"]


class SmoothIntegrals(UnitIntegrals):
    """Gaussian integrals for smooth units: activation `student` for the first `students` fields, `teacher` for the others.

    Parameters
    ----------
    students : p, the number of trained units
    student, teacher : the activations, as JAX functions
    orders : numbers of nodes and terms
    polynomials : whether both activations are polynomials, for which the orders are exact

    >>> import jax.numpy as jnp
    >>> units = SmoothIntegrals(1, jnp.tanh, jnp.tanh)
    >>> round(float(units.all_pairs(jnp.eye(2)).value[0, 0]), 6)                      # E[tanh(z)^2]
    0.394294
    """

    students: int = eqx.field(static=True)
    student: Callable
    teacher: Callable
    orders: IntegrationOrders = eqx.field(static=True, default=IntegrationOrders.from_order(24))
    polynomials: bool = eqx.field(static=True, default=False)

    @property
    def is_exact(self):
        return self.polynomials

    def with_fewer_nodes(self):
        if self.is_exact:
            return self
        fewer = IntegrationOrders(*(max(2, 3 * order // 4) for order in self.orders))
        return SmoothIntegrals(self.students, self.student, self.teacher, fewer)

    @property
    def floats_at_once(self):
        return UNIT_PAIRS_PER_CALL * self.students * self.orders.grid**2 * self.orders.inner_nodes

    def features(self, variances):
        deviation = safe_root(variances)
        z, project = _hermite_projector(self.is_exact, self.orders.nodes, self.orders.terms)
        parts = [
            jax.vmap(_with_derivatives(fn), in_axes=0)(deviation[rows, None] * z) for fn, rows in self._activation_slices()
        ]
        expand_both = lambda *halves: jnp.concatenate(halves) @ project
        value, slope, curvature = map(expand_both, *parts)
        return HermiteFeatures(value, slope, curvature, deviation)

    def pairs(self, rows, columns, C):
        # A field without variance has correlation zero with all others: its unit is a constant, the term q = 0.
        inverse = safe_inverse_root(rows.deviation**2)[:, None] * safe_inverse_root(columns.deviation**2)
        cosine = _clip_cosine(C * inverse)

        def add_term(carry, coefficients):
            power, value, slope, curvature = carry
            f, f1, f2, g, g1 = coefficients
            # Mehler's formula, one power of the correlation after the other: no array has pairs and terms as axes.
            more = (value + power * f[:, None] * g, slope + power * f1[:, None] * g1, curvature + power * f2[:, None] * g)
            return (power * cosine, *more), None

        zero = jnp.zeros_like(cosine)
        series = (rows.value.T, rows.slope.T, rows.curvature.T, columns.value.T, columns.slope.T)
        return PairIntegrals(*jax.lax.scan(add_term, (jnp.ones_like(cosine), zero, zero, zero), series)[0][1:])

    def corrector(self, C, c):
        """Compute the matrix E[s_j' s_l' D^2] over students j and l, for units s and the residual D = sum_n c_n s_n.

        The covariance of the fields is C. If the slopes of both activations are bumps, the result is a sum over fitted
        Gaussians, otherwise a sum over a grid.
        """
        count = self.orders.grid // 4 - 1
        student, teacher = (None if self.is_exact else fit_gaussian_slope(fn, count) for fn in (self.student, self.teacher))
        if student is not None and teacher is not None:
            return bump_corrector(student, teacher, C, c, self.students, self.orders.grid // 2)
        return map_pairs(lambda j, l: self._corrector_entry(C, c, j, l), self.students)

    def _corrector_entry(self, C, c, j, l):
        """Compute E[s_j' s_l' D^2] for one pair of students on a grid over their fields, for the residual D = sum_n c_n s_n."""
        # x_j and x_l depend on two variates, on a grid; the other fields given these have covariance `rest`.
        v, w, rest = condition_on_pair(C, j, l)
        z, weights = (jnp.asarray(part) for part in _line_rule(self.is_exact, self.orders.grid))
        first, second = (axis.ravel() for axis in jnp.meshgrid(z, z, indexing="ij"))
        centre = v[:, None] * first + w[:, None] * second
        deviation = safe_root(jnp.diagonal(rest))
        inverse = safe_inverse_root(jnp.diagonal(rest))
        cosine = _clip_cosine(rest * inverse[:, None] * inverse)
        inner, project = _hermite_projector(self.is_exact, self.orders.inner_nodes, self.orders.inner_terms)
        fields = centre[:, :, None] + deviation[:, None, None] * inner
        series = c[:, None, None] * jnp.concatenate([fn(fields[rows]) for fn, rows in self._activation_slices()]) @ project

        def add_term(carry, coefficients):
            power, total = carry
            return (power * cosine, total + jnp.einsum("mg,mn,ng->g", coefficients, power, coefficients)), None

        start = (jnp.ones_like(cosine), jnp.zeros_like(first))
        square = jax.lax.scan(add_term, start, jnp.moveaxis(series, -1, 0))[0][1]
        slope = _differentiate(self.student)
        return (jnp.outer(weights, weights).ravel() * slope(centre[j]) * slope(centre[l]) * square).sum()

    def _activation_slices(self):
        """Return the activations of students and of teachers, each with the slice of fields to which it applies."""
        return (self.student, slice(None, self.students)), (self.teacher, slice(self.students, None))


def polynomial_orders(student: int, teacher: int) -> IntegrationOrders:
    """Return the numbers of nodes and terms that are exact for polynomial activations of the given degrees."""
    degree = max(student, teacher)
    return IntegrationOrders(degree + 1, degree + 1, student + degree, degree + 1, degree + 1)


def _clip_cosine(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Clip x to [-1, 1] with derivative 1 everywhere, so that series in x are differentiable where fields coincide."""
    # stop_gradient removes the derivative of the clip, which would be zero beyond rounding errors at the ends.
    return x + jax.lax.stop_gradient(jnp.clip(x, -1.0, 1.0) - x)


def _differentiate(fn: Callable) -> Callable:
    """Return the derivative of an elementwise function, as a function."""
    return lambda x: jax.jvp(fn, (x,), (jnp.ones_like(x),))[1]


def _with_derivatives(fn: Callable) -> Callable:
    """Return a function that evaluates `fn` and its first two derivatives."""
    return lambda x: (fn(x), _differentiate(fn)(x), _differentiate(_differentiate(fn))(x))


def _line_rule(exact: bool, nodes: int) -> LineRule:
    """Return Gauss-Hermite nodes if `is_exact` (for polynomials), else a trapezoidal rule whose range grows with `nodes`."""
    return gauss_hermite(nodes) if exact else trapezoid(nodes, LINE_RANGE_FACTOR * nodes ** (1 / 3))


def _hermite_projector(exact: bool, nodes: int, terms: int) -> tuple[Float[Array, " nodes"], Float[Array, "nodes terms"]]:
    """Return nodes, and the matrix that maps values at them to coefficients of normalised Hermite polynomials."""
    z, weights = _line_rule(exact, nodes)
    # The recurrence of normalised polynomials, since plain Hermite polynomials overflow at high order.
    table = np.zeros((nodes, terms))
    table[:, 0] = 1.0
    if terms > 1:
        table[:, 1] = z
    for q in range(1, terms - 1):
        table[:, q + 1] = (z * table[:, q] - np.sqrt(q) * table[:, q - 1]) / np.sqrt(q + 1)
    return jnp.asarray(z), jnp.asarray(weights[:, None] * table)
