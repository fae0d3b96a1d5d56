r"""Two units and the input along them: what gradients and Hessians of sums of units with a squared loss are made of.

Two fields :math:`x_j = Az_1` and :math:`x_m = Bz_1 + Cz_2` depend on the input y through two orthonormal directions
:math:`e_1, e_2`, with :math:`z_a = e_a\cdot y`. Nothing else of y knows of them, so that for any functions g and h

.. math:: E[g(x_j)h(x_m)\,yy^\top] = w\,1 + \sum_{ab}K_{ab}\,e_ae_b^\top, \qquad
          w = E[gh], \quad K_{ab} = E[gh\,z_az_b] - \delta_{ab}w.

No covariance is inverted and nothing is differentiated but the activation: fields may vanish or coincide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial import Polynomial as Series

from sgdlimits.expectation.gaussian.quadrature import Line, gauss_hermite, trapezoid
from sgdlimits.model.activation import Activation, PiecewiseLinear, Polynomial

REACH = 9.0


class UnitPlane(NamedTuple):
    """A, B, C and the two directions, for each student in rows and each unit in columns; directions that are missing are 0."""

    own: Float[np.ndarray, " p"]
    along: Float[np.ndarray, "p m"]
    across: Float[np.ndarray, "p m"]
    directions: Float[np.ndarray, "p m 2 n"]


class PairSpread(NamedTuple):
    """w and K of a product of two functions, for each pair."""

    mean: Float[np.ndarray, "p m"]
    tensor: Float[np.ndarray, "p m 2 2"]


class PairMoments(NamedTuple):
    """E[s_j' s_m z], and w and K of s_j' s_m' (students only) and of s_j'' s_m."""

    first: Float[np.ndarray, "p m 2"]
    slopes: PairSpread
    curvature: PairSpread


def planes(rows: Float[np.ndarray, "m n"], students: int) -> UnitPlane:
    """The planes of each of the first `students` units and each unit, where a row of `rows` is what a field is made of."""
    own = np.linalg.norm(rows[:students], axis=1)
    first = _unit(rows[:students], own)
    along = first @ rows.T
    rest = rows - along[:, :, None] * first[:, None]
    across = np.linalg.norm(rest, axis=2)
    both = np.stack([np.broadcast_to(first[:, None], rest.shape), _unit(rest, across)], axis=2)
    return UnitPlane(own, along, across, both)


def pair_moments(student: Activation, teacher: Activation, plane: UnitPlane, count: int) -> PairMoments:
    """The moments of two kinds of units: closed, exact, or with `count` nodes on a line."""
    if isinstance(student, PiecewiseLinear) and isinstance(teacher, PiecewiseLinear):
        return kinked_moments(student, teacher, plane)
    if isinstance(student, Polynomial) and isinstance(teacher, Polynomial):
        return smooth_moments(student, teacher, plane, gauss_hermite(max(student.degree, teacher.degree) + 2))
    return smooth_moments(student, teacher, plane, trapezoid(count, REACH))


def smooth_moments(student: Activation, teacher: Activation, plane: UnitPlane, line: Line) -> PairMoments:
    """The moments of smooth units on a grid of two lines of nodes."""
    p, (z, weights) = plane.own.size, line
    powers = weights[:, None] * z[:, None] ** np.arange(3)
    firsts, slopes, curvatures = [], [], []
    for j in range(p):
        x = plane.along[j][:, None, None] * z[:, None] + plane.across[j][:, None, None] * z
        here = derivatives(student, x[:p])
        value = np.concatenate([here[0], derivatives(teacher, x[p:])[0]]) @ powers
        _, slope, curvature = (powers.T * each for each in derivatives(student, plane.own[j] * z))
        firsts.append(np.stack([slope[1] @ value[..., 0].T, slope[0] @ value[..., 1].T], axis=-1))
        slopes.append(np.einsum("an,lnb->lab", slope, here[1] @ powers))
        curvatures.append(np.einsum("an,mnb->mab", curvature, value))
    return PairMoments(np.stack(firsts), _spread(np.stack(slopes)), _spread(np.stack(curvatures)))


def kinked_moments(student: PiecewiseLinear, teacher: PiecewiseLinear, plane: UnitPlane) -> PairMoments:
    r"""The moments of units with a kink at zero, :math:`s = \alpha x + \beta|x|` and :math:`s'' = 2\beta\delta(x)`, closed.

    With :math:`\phi` the angle between two fields, the signs differ in two wedges of that angle. A unit that vanishes has no
    curvature; that is for the caller to refuse.
    """
    p, count = plane.along.shape
    (odd, even), (teacher_odd, teacher_even) = (
        ((unit.right + unit.left) / 2, (unit.right - unit.left) / 2) for unit in (student, teacher)
    )
    odds, evens = (np.r_[np.full(p, s), np.full(count - p, t)] for s, t in ((odd, teacher_odd), (even, teacher_even)))
    seen = (plane.own[:, None] > 0) & (np.hypot(plane.along, plane.across) > 0)
    angle = np.where(seen, np.arctan2(plane.across, plane.along), np.pi / 2)
    twice, square = np.sin(2 * angle) / np.pi, 2 * np.sin(angle) ** 2 / np.pi
    signs = PairSpread(1 - 2 * angle / np.pi, _symmetric(twice, square, -twice))
    field = np.stack([plane.along, plane.across], axis=-1)
    along = np.einsum("jmab,jmb->jma", signs.tensor, field) + signs.mean[..., None] * field
    first = odd * odds[:, None] * field + even * evens[:, None] * along
    slopes = PairSpread(odd**2 + even**2 * signs.mean[:, :p], even**2 * signs.tensor[:, :p])
    delta = 2 * even * evens * plane.across / np.pi * _inverse(plane.own)[:, None]
    return PairMoments(first, slopes, PairSpread(delta, _symmetric(-delta, 0 * delta, delta)))


def derivatives(activation: Activation, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An activation with its first two derivatives, entry by entry."""
    if isinstance(activation, Polynomial):
        series = Series(activation.coefficients)
        return series(x), series.deriv(1)(x), series.deriv(2)(x)
    value, slope, curvature = _derivatives(activation, jnp.asarray(x))
    return np.asarray(value), np.asarray(slope), np.asarray(curvature)


@eqx.filter_jit
def _derivatives(activation: Activation, x: Array) -> tuple[Array, Array, Array]:
    slope = lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]
    first: Callable = slope(activation)
    return activation(x), first(x), slope(first)(x)


def _spread(moments: Float[np.ndarray, "p m 3 3"]) -> PairSpread:
    """From E[gh z_1^a z_2^b] for a, b up to 2."""
    mean = moments[..., 0, 0]
    return PairSpread(mean, _symmetric(moments[..., 2, 0] - mean, moments[..., 1, 1], moments[..., 0, 2] - mean))


def _symmetric(first: np.ndarray, mixed: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack([np.stack([first, mixed], axis=-1), np.stack([mixed, second], axis=-1)], axis=-2)


def _inverse(norms: np.ndarray) -> np.ndarray:
    """One over each, zero for zero."""
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def _unit(rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
    return rows * _inverse(norms)[..., None]
