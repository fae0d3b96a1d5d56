r"""Units of any smooth function, by one-dimensional quadrature and Mehler's formula; polynomials exactly.

With :math:`f_q = E[f(\sigma z)\, h_q(z)]`, the coefficients along normalised Hermite polynomials, two fields of correlation
:math:`\rho` have :math:`E[f g] = \sum_q \rho^q f_q g_q`. For the integral over four fields the two with slopes are laid out on
a grid, and given their values the others are Gaussian again: Mehler's formula gives the mean of D squared at each node. No
rule in more than two dimensions is made. Slopes that are bumps need no grid (see `sgdlimits.expectation.gaussian.bumps`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.expectation.gaussian.bumps import bump_corrector, bumps_of
from sgdlimits.expectation.gaussian.quadrature import Line, gauss_hermite, trapezoid
from sgdlimits.expectation.gaussian.units import (
    PAIRS_AT_ONCE,
    Pairs,
    UnitIntegrals,
    condition_on,
    map_pairs,
    safe_inverse_root,
    safe_root,
)

RANGE = 2.16


class Orders(NamedTuple):
    """Nodes and terms for two fields; nodes a dimension of the grid, nodes and terms for the other fields, for four."""

    nodes: int
    terms: int
    grid: int
    inner_nodes: int
    inner_terms: int

    @classmethod
    def of(cls, order: int) -> Orders:
        """Orders that grow together, with `order` nodes a dimension of the grid."""
        return cls(6 * order, 4 * order, order, order, order - order // 4)


class Expanded(NamedTuple):
    """Hermite coefficients of a field's unit and of its first two derivatives, and the field's standard deviation."""

    value: Float[Array, "n terms"]
    slope: Float[Array, "n terms"]
    curvature: Float[Array, "n terms"]
    deviation: Float[Array, " n"]


class SmoothIntegrals(UnitIntegrals):
    """Units `student` for the first fields, `students` of them, and `teacher` for the others.

    >>> import jax.numpy as jnp
    >>> units = SmoothIntegrals(1, jnp.tanh, jnp.tanh)
    >>> round(float(units.all_pairs(jnp.eye(2)).value[0, 0]), 6)                      # E[tanh(z)^2]
    0.394294
    """

    students: int = eqx.field(static=True)
    student: Callable
    teacher: Callable
    orders: Orders = eqx.field(static=True, default=Orders.of(24))
    polynomials: bool = eqx.field(static=True, default=False)

    @property
    def exact(self):
        return self.polynomials

    def coarser(self):
        if self.exact:
            return self
        fewer = Orders(*(max(2, 3 * order // 4) for order in self.orders))
        return SmoothIntegrals(self.students, self.student, self.teacher, fewer)

    @property
    def numbers_at_once(self):
        return PAIRS_AT_ONCE * self.students * self.orders.grid**2 * self.orders.inner_nodes

    def features(self, variances):
        deviation = safe_root(variances)
        z, project = _projector(self.exact, self.orders.nodes, self.orders.terms)
        parts = [jax.vmap(_derivatives(fn), in_axes=0)(deviation[rows, None] * z) for fn, rows in self._halves()]
        expand = lambda *halves: jnp.concatenate(halves) @ project
        value, slope, curvature = map(expand, *parts)
        return Expanded(value, slope, curvature, deviation)

    def pairs(self, rows, columns, C):
        inverse = safe_inverse_root(rows.deviation**2)[:, None] * safe_inverse_root(columns.deviation**2)
        cosine = _cosine(C * inverse)

        def term(carry, coefficients):
            power, value, slope, curvature = carry
            f, f1, f2, g, g1 = coefficients
            more = (value + power * f[:, None] * g, slope + power * f1[:, None] * g1, curvature + power * f2[:, None] * g)
            return (power * cosine, *more), None

        zero = jnp.zeros_like(cosine)
        series = (rows.value.T, rows.slope.T, rows.curvature.T, columns.value.T, columns.slope.T)
        return Pairs(*jax.lax.scan(term, (jnp.ones_like(cosine), zero, zero, zero), series)[0][1:])

    def corrector(self, C, c):
        """By sums of Gaussians where the slopes are bumps, and on a grid otherwise."""
        count = self.orders.grid // 4 - 1
        student, teacher = (None if self.exact else bumps_of(fn, count) for fn in (self.student, self.teacher))
        if student is not None and teacher is not None:
            return bump_corrector(student, teacher, C, c, self.students, self.orders.grid // 2)
        return map_pairs(lambda j, l: self._four(C, c, j, l), self.students)

    def _four(self, C, c, j, l):
        v, w, rest = condition_on(C, j, l)
        z, weights = (jnp.asarray(numbers) for numbers in _line(self.exact, self.orders.grid))
        first, second = (axis.ravel() for axis in jnp.meshgrid(z, z, indexing="ij"))
        centre = v[:, None] * first + w[:, None] * second
        deviation = safe_root(jnp.diagonal(rest))
        inverse = safe_inverse_root(jnp.diagonal(rest))
        cosine = _cosine(rest * inverse[:, None] * inverse)
        inner, project = _projector(self.exact, self.orders.inner_nodes, self.orders.inner_terms)
        placed = centre[:, :, None] + deviation[:, None, None] * inner
        series = c[:, None, None] * jnp.concatenate([fn(placed[rows]) for fn, rows in self._halves()]) @ project

        def term(carry, coefficients):
            power, total = carry
            return (power * cosine, total + jnp.einsum("mg,mn,ng->g", coefficients, power, coefficients)), None

        start = (jnp.ones_like(cosine), jnp.zeros_like(first))
        square = jax.lax.scan(term, start, jnp.moveaxis(series, -1, 0))[0][1]
        slope = _slope(self.student)
        return (jnp.outer(weights, weights).ravel() * slope(centre[j]) * slope(centre[l]) * square).sum()

    def _halves(self):
        return (self.student, slice(None, self.students)), (self.teacher, slice(self.students, None))


def polynomial_orders(student: int, teacher: int) -> Orders:
    """Orders that are exact for polynomials of these degrees."""
    most = max(student, teacher)
    return Orders(most + 1, most + 1, student + most, most + 1, most + 1)


def _cosine(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Clip x to [-1, 1] with slope 1 everywhere, so that series in x have a slope where fields coincide."""
    return x + jax.lax.stop_gradient(jnp.clip(x, -1.0, 1.0) - x)


def _slope(fn: Callable) -> Callable:
    return lambda x: jax.jvp(fn, (x,), (jnp.ones_like(x),))[1]


def _derivatives(fn: Callable) -> Callable:
    """The function with its first two derivatives."""
    return lambda x: (fn(x), _slope(fn)(x), _slope(_slope(fn))(x))


def _line(exact: bool, nodes: int) -> Line:
    """Gauss-Hermite for polynomials; else the trapezoidal rule, with a range that makes both its errors fall together."""
    return gauss_hermite(nodes) if exact else trapezoid(nodes, RANGE * nodes ** (1 / 3))


def _projector(exact: bool, nodes: int, terms: int) -> tuple[Float[Array, " nodes"], Float[Array, "nodes terms"]]:
    """Nodes z, and the matrix that turns values at them into coefficients along normalised Hermite polynomials."""
    z, weights = _line(exact, nodes)
    table = np.zeros((nodes, terms))
    table[:, 0] = 1.0
    if terms > 1:
        table[:, 1] = z
    for q in range(1, terms - 1):
        table[:, q + 1] = (z * table[:, q] - np.sqrt(q) * table[:, q - 1]) / np.sqrt(q + 1)
    return jnp.asarray(z), jnp.asarray(weights[:, None] * table)
