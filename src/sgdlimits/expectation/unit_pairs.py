r"""Moments of pairs of units and the input, from which gradients and Hessians are assembled for a squared loss.

Two fields :math:`x_j = Az_1` and :math:`x_m = Bz_1 + Cz_2`, with coefficients A, B and C, depend on the normal input y through
its coordinates :math:`z_a = e_a\cdot y` along two orthonormal directions :math:`e_1, e_2`. The remaining components of y are
independent of both fields, so for any functions g of :math:`x_j` and h of :math:`x_m`

.. math:: E[g(x_j)h(x_m)\,yy^\top] = w\,1 + \sum_{ab}K_{ab}\,e_ae_b^\top, \qquad
          w = E[gh], \quad K_{ab} = E[gh\,z_az_b] - \delta_{ab}w.

No covariance is inverted and only the activation is differentiated, so fields may vanish or coincide.
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

from sgdlimits.expectation.gaussian.quadrature import LineRule, gauss_hermite, trapezoid
from sgdlimits.model.activation import Activation, PiecewiseLinear, Polynomial

# The normal density beyond 9 standard deviations is 1e-18: below rounding for functions that grow slowly.
FIELD_RANGE = 9.0


class UnitPlane(NamedTuple):
    """Orthonormal directions that span the weights of each student and each unit, and the coordinates of their fields.

    The fields of student j and unit m are x_j = A z_1 and x_m = B z_1 + C z_2, with coordinates z of the input along the
    directions e_1 and e_2; `student_norms`, `first_components` and `second_components` are A, B and C. The third axis of
    `directions` holds e_1 and e_2, which are zero where a field vanishes or both fields are parallel.
    """

    student_norms: Float[np.ndarray, " p"]
    first_components: Float[np.ndarray, "p m"]
    second_components: Float[np.ndarray, "p m"]
    directions: Float[np.ndarray, "p m 2 n"]


class PairSecondMoments(NamedTuple):
    """Second moments of the input, weighted with functions of two fields: an isotropic coefficient and a 2-by-2 tensor.

    For functions g and h of the fields of two units, which depend on the input y along the directions e_1 and e_2, `mean` is w
    and `tensor` is K in E[g h y y^T] = w 1 + sum_ab K_ab e_a e_b^T.
    """

    mean: Float[np.ndarray, "p m"]
    tensor: Float[np.ndarray, "p m 2 2"]


class PairMoments(NamedTuple):
    """Expectations for pairs of units, student j and unit m, from which gradient and Hessian of the risk are assembled.

    With activations s and coordinates z of the input in the plane of both units, `first_moments` is E[s_j' s_m z]; `slopes` and
    `curvature` are the `PairSecondMoments` of s_j' s_m' (students only) and of s_j'' s_m.
    """

    first_moments: Float[np.ndarray, "p m 2"]
    slopes: PairSecondMoments
    curvature: PairSecondMoments


def compute_unit_planes(rows: Float[np.ndarray, "m n"], students: int) -> UnitPlane:
    """Return the plane that each student spans with each unit; `rows` has the coefficients of the fields in the input."""
    own = np.linalg.norm(rows[:students], axis=1)
    first = _normalise_rows(rows[:students], own)
    along = first @ rows.T
    rest = rows - along[:, :, None] * first[:, None]
    across = np.linalg.norm(rest, axis=2)
    both = np.stack([np.broadcast_to(first[:, None], rest.shape), _normalise_rows(rest, across)], axis=2)
    return UnitPlane(own, along, across, both)


def compute_pair_moments(student: Activation, teacher: Activation, plane: UnitPlane, count: int) -> PairMoments:
    """Compute the `PairMoments` of all students and units, in closed form for piecewise linear ones, else by quadrature.

    The quadrature has `count` nodes per dimension; polynomials have as many as make it exact.
    """
    if isinstance(student, PiecewiseLinear) and isinstance(teacher, PiecewiseLinear):
        return compute_kinked_pair_moments(student, teacher, plane)
    if isinstance(student, Polynomial) and isinstance(teacher, Polynomial):
        return compute_smooth_pair_moments(student, teacher, plane, gauss_hermite(max(student.degree, teacher.degree) + 2))
    return compute_smooth_pair_moments(student, teacher, plane, trapezoid(count, FIELD_RANGE))


def compute_smooth_pair_moments(student: Activation, teacher: Activation, plane: UnitPlane, line: LineRule) -> PairMoments:
    """Compute the `PairMoments` of smooth units on the product grid of a one-dimensional quadrature rule."""
    p = plane.student_norms.size
    z, weights = line
    powers = weights[:, None] * z[:, None] ** np.arange(3)
    firsts, slopes, curvatures = [], [], []
    # One student at a time bounds the memory to a grid for each unit.
    for j in range(p):
        x = plane.first_components[j][:, None, None] * z[:, None] + plane.second_components[j][:, None, None] * z
        here = evaluate_derivatives(student, x[:p])
        value = np.concatenate([here[0], evaluate_derivatives(teacher, x[p:])[0]]) @ powers
        _, slope, curvature = (powers.T * each for each in evaluate_derivatives(student, plane.student_norms[j] * z))
        firsts.append(np.stack([slope[1] @ value[..., 0].T, slope[0] @ value[..., 1].T], axis=-1))
        slopes.append(np.einsum("an,lnb->lab", slope, here[1] @ powers))
        curvatures.append(np.einsum("an,mnb->mab", curvature, value))
    return PairMoments(np.stack(firsts), _pair_spread(np.stack(slopes)), _pair_spread(np.stack(curvatures)))


def compute_kinked_pair_moments(student: PiecewiseLinear, teacher: PiecewiseLinear, plane: UnitPlane) -> PairMoments:
    r"""Compute the `PairMoments` of piecewise linear units in closed form.

    For units :math:`s = \alpha x + \beta|x|` with :math:`s'' = 2\beta\delta(x)`: with :math:`\phi` the angle between two
    fields, their signs differ in two wedges of that angle. A unit of norm zero has no curvature; the caller must refuse it.
    """
    p, count = plane.first_components.shape
    odd, even = (student.right + student.left) / 2, (student.right - student.left) / 2
    teacher_odd, teacher_even = (teacher.right + teacher.left) / 2, (teacher.right - teacher.left) / 2
    odds, evens = (np.r_[np.full(p, s), np.full(count - p, t)] for s, t in ((odd, teacher_odd), (even, teacher_even)))
    nonzero = (plane.student_norms[:, None] > 0) & (np.hypot(plane.first_components, plane.second_components) > 0)
    # arctan2, since the arccosine of the correlation would lose half of the digits of a small angle.
    angle = np.where(nonzero, np.arctan2(plane.second_components, plane.first_components), np.pi / 2)
    twice, square = np.sin(2 * angle) / np.pi, 2 * np.sin(angle) ** 2 / np.pi
    signs = PairSecondMoments(1 - 2 * angle / np.pi, _stack_symmetric(twice, square, -twice))
    field = np.stack([plane.first_components, plane.second_components], axis=-1)
    along = np.einsum("jmab,jmb->jma", signs.tensor, field) + signs.mean[..., None] * field
    first = odd * odds[:, None] * field + even * evens[:, None] * along
    slopes = PairSecondMoments(odd**2 + even**2 * signs.mean[:, :p], even**2 * signs.tensor[:, :p])
    delta = 2 * even * evens * plane.second_components / np.pi * _reciprocal(plane.student_norms)[:, None]
    return PairMoments(first, slopes, PairSecondMoments(delta, _stack_symmetric(-delta, 0 * delta, delta)))


def evaluate_derivatives(activation: Activation, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evaluate an activation and its first two derivatives at each entry, as NumPy arrays."""
    if isinstance(activation, Polynomial):
        series = Series(activation.coefficients)
        return series(x), series.deriv(1)(x), series.deriv(2)(x)
    value, slope, curvature = _differentiate_twice(activation, jnp.asarray(x))
    return np.asarray(value), np.asarray(slope), np.asarray(curvature)


@eqx.filter_jit
def _differentiate_twice(activation: Activation, x: Array) -> tuple[Array, Array, Array]:
    """Evaluate an activation and its first two derivatives at each entry, by forward-mode differentiation."""

    def derivative(f: Callable) -> Callable:
        return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]

    first = derivative(activation)
    return activation(x), first(x), derivative(first)(x)


def _pair_spread(moments: Float[np.ndarray, "p m 3 3"]) -> PairSecondMoments:
    """Convert moments in the two coordinates of each pair's plane to an isotropic coefficient and a tensor.

    The moments are E[g h z_1^a z_2^b], with a, b = 0, 1, 2 on the last axes, for functions g and h of the fields of two units
    and the coordinates z_1 and z_2 of the input in their plane.
    """
    mean = moments[..., 0, 0]
    return PairSecondMoments(mean, _stack_symmetric(moments[..., 2, 0] - mean, moments[..., 1, 1], moments[..., 0, 2] - mean))


def _stack_symmetric(first: np.ndarray, mixed: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Stack the entries (1, 1), (1, 2) and (2, 2) into symmetric 2-by-2 matrices on the last two axes."""
    return np.stack([np.stack([first, mixed], axis=-1), np.stack([mixed, second], axis=-1)], axis=-2)


def _reciprocal(norms: np.ndarray) -> np.ndarray:
    """Return the reciprocal of each norm, zero where the norm is zero."""
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def _normalise_rows(rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Divide rows by their norms; rows of norm zero stay zero."""
    return rows * _reciprocal(norms)[..., None]
