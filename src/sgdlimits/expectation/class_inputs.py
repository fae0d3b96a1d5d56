r"""Inputs of Gaussian classes on a grid over the student fields, with the kinks of the units between the points.

Given the class the fields have means :math:`\bar\lambda, \bar\lambda^*`. With a triangular factor of their covariance whose
first rows are the students',

.. math:: \lambda_i = \bar\lambda_i + \sum_{l\le i} L_{il} z_l, \qquad \lambda^* = \bar\lambda^* + Wz + C\zeta.

Where labels are a matter of the class, the loss depends on z alone. Unit i has its kink where its field is zero, at
:math:`z_i = -(\bar\lambda_i + \sum_{l<i}L_{il}z_l)/L_{ii}`. The line of :math:`z_i` is split there, one unit
after another.

Two units have the lines of their kinks in one plane. Cut one after another, the second kink is a step in the first variable,
as steep as the units are parallel. So z is turned to :math:`(t, s)`, with s along the bisector of the lines' normals
(of the acute angle :math:`\theta`). Unit i then has its kink at :math:`s_i(t)`, of slope :math:`\pm\tan(\theta/2)`, which is at
most 1. The line of t is cut where both lines cross, and that of s at both kinks: each of the four wedges has points of its own,
however thin it is.

With :math:`f = \sum_jb_js(\lambda_j)` and slopes :math:`s' = \alpha` below zero and :math:`\beta` above, the Hessian of the
risk is made of

.. math:: l_{ji} = l''(f)\,b_jb_i\,s'(\lambda_j)s'(\lambda_i) + \delta_{ji}\,l'(f)\,b_j\,(\beta - \alpha)\,\delta(\lambda_j).

The first term has jumps, where the grid is split. The second is a mean over the inputs with :math:`\lambda_j = 0`, times the
density of that field there. Given the fields of the units, the input has the mean :math:`\bar x + S^+(\lambda - S\bar x)` and,
off the span of the units, the variance of the field of a unit vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from sgdlimits.expectation.field_means import FieldNodes, field_mean
from sgdlimits.expectation.gaussian import GaussHermite, gauss_hermite, split_line, split_twice
from sgdlimits.model.activation import PiecewiseLinear
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import overlaps_from_coordinates
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.products import Moments

FAR = 1e3
SAME_DIRECTION = 1e-7


class ClassInputs(NamedTuple):
    """Inputs with their probabilities, which sum to 1, and their classes `c`, which take turns."""

    fields: Float[Array, "p n"]
    fixed: Float[Array, "k n"]
    weights: Float[Array, " n"]
    c: Int[Array, " n"]
    z: Float[Array, " n"] | float = 0.0

    def with_noise(self) -> ClassInputs:
        """Each input with three values of the label noise: exact for polynomials of degree 5 in it."""
        z, weights = gauss_hermite(3)
        every = lambda leaf: jnp.repeat(leaf, 3, axis=-1)
        here = jnp.tile(jnp.asarray(weights), self.weights.size) * every(self.weights)
        return ClassInputs(
            every(self.fields), every(self.fixed), here, every(self.c), jnp.tile(jnp.asarray(z), self.weights.size)
        )

    def loss(self, model: Model, a: Float[Array, " p"]) -> Float[Array, " n"]:
        """The loss of each input."""
        return model.sample_loss(self.fields, self.fixed, a[:, None], self.z, self.c)

    def slope(self, model: Model, a: Float[Array, " p"]) -> Float[Array, " n"]:
        """dl/df of each input, without label noise."""
        label = model.target.label(self.fixed, jnp.zeros_like(self.weights), self.c)
        return jax.grad(lambda f: model.loss(f, label).sum())(model.network(self.fields, a[:, None]))

    def gradient(self, model: Model, a: Float[Array, " p"]) -> tuple[Float[Array, "p n"], ...]:
        """(G, dl/da) of each input."""
        a = jnp.broadcast_to(a[:, None], self.fields.shape)
        return model.gradient(self.fields, self.fixed, a, self.z, self.c)

    def unit_slopes(self, model: Model, a: Float[Array, " p"]) -> Float[Array, "p n"]:
        """df/d lambda of each input."""
        return jax.grad(lambda fields: model.network(fields, a[:, None]).sum())(self.fields)

    def products(self, G: Float[Array, "p n"], second: Float[Array, "p n"]) -> Moments:
        """The products of each input's gradients and fields; the loss is left out."""
        zero = jnp.zeros_like(self.weights)
        return Moments(zero, G[:, None] * self.fixed, G[:, None] * self.fields, G[:, None] * G, second)

    def mean(self, rows: Float[Array, "i n"], columns: Float[Array, "j n"]) -> Float[Array, "i j"]:
        """The mean over the inputs of each product."""
        return (self.weights * rows) @ columns.T


def at_means(law: FieldLaw) -> ClassInputs:
    """One input a class, its mean."""
    return ClassInputs(*law.means, jnp.asarray(law.weights), jnp.arange(law.classes))


def on_grid(model: Model, law: FieldLaw, order: int) -> ClassInputs:
    """Twice `order` points a unit. The fixed fields are means given those of the students.

    Where a unit is flat on the left, its last line needs two points there, since everything is at most quadratic.
    """
    p, unit, centre, root = model.network.width, model.network.activation, at_means(law), law.triangular()
    rows, weights = jnp.concatenate([centre.fields, centre.fixed]), centre.weights
    if p == 2 and isinstance(unit, PiecewiseLinear):
        rows, weights = _in_wedges(rows, weights, root, order)
        return ClassInputs(rows[:p], rows[p:], weights, jnp.tile(centre.c, weights.size // centre.c.size))
    for i in range(p):
        if isinstance(unit, PiecewiseLinear):
            below = min(order, 2) if unit.left == 0 and i == p - 1 else order
            points, more = split_line(kink(rows[i], root[i, i]), order, below)
        else:
            points, more = (jnp.asarray(column).reshape(-1, *[1] * (i + 1)) for column in gauss_hermite(2 * order))
        rows, weights = rows[:, None] + root[:, i].reshape(-1, *[1] * (i + 2)) * points, more * weights
    rows, weights = rows.reshape(len(rows), -1), weights.ravel()
    return ClassInputs(rows[:p], rows[p:], weights, jnp.tile(centre.c, weights.size // centre.c.size))


def _in_wedges(
    rows: Float[Array, "m classes"], weights: Float[Array, " classes"], root: Float[Array, "m 2"], order: int
) -> tuple[Float[Array, "m n"], Float[Array, " n"]]:
    """Fields at points of the plane of two units, whose means and factor these are, and the weights of the points."""
    plane = across_kinks(rows, root)
    points, more = split_line(plane.crossing, order)
    rows, weights = plane.rows[:, None] + plane.root[:, 0, None, None] * points, more * weights
    points, more = split_twice(*plane.kinks(rows), order)
    rows, weights = rows[:, None] + plane.root[:, 1, None, None, None] * points, more * weights
    return rows.reshape(len(rows), -1), weights.ravel()


class ClassPlane(NamedTuple):
    """Fields of which the first two are those of units, as functions of (t, s): `root` has the factors of t and of s."""

    rows: Float[Array, "m classes"]
    root: Float[Array, "m 2"]
    crossing: Float[Array, " classes"]

    def kinks(self, rows: Float[Array, "m *shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """The lower and the upper s at which a unit is at its kink, given the fields at s = 0."""
        first, second = (kink(rows[i], self.root[i, 1]) for i in range(2))
        return jnp.minimum(first, second), jnp.maximum(first, second)


def across_kinks(rows: Float[Array, "m classes"], root: Float[Array, "m 2"]) -> ClassPlane:
    """The plane of two units, turned so that s crosses both kinks and t goes along them, cut at t = `crossing`.

    An integral over the plane depends on neither the turn nor the cut, so derivatives are taken with both held.
    """
    fixed = jax.lax.stop_gradient(root[:2])
    length = jnp.hypot(fixed[1, 0], fixed[1, 1])
    other = jnp.where(length > 0, fixed[1] / jnp.where(length > 0, length, 1.0), jnp.array([1.0, 0.0]))
    s = jnp.array([1.0, 0.0]) + jnp.where(other[0] < 0, -other, other)
    s = s / jnp.hypot(s[0], s[1])
    turned = root @ jnp.array([[-s[1], s[0]], [s[0], s[1]]])
    (one, two), (along, over) = jax.lax.stop_gradient((rows[:2], turned[:2].T))
    ahead, parted = two * over[0] - one * over[1], along[0] * over[1] - along[1] * over[0]
    return ClassPlane(rows, turned, jnp.where(parted != 0, ahead / jnp.where(parted != 0, parted, 1.0), 0.0))


def kink(here: Float[Array, " n"], scale: Float[Array, ""]) -> Float[Array, " n"]:
    """Where here + scale z crosses zero; far from all z where the field does not move."""
    moves = scale != 0
    return jnp.where(moves, -here / jnp.where(moves, scale, 1.0), jnp.where(here > 0, -FAR, FAR))


def smooth_moments(model: Model, a: Float[Array, " p"], law: FieldLaw, order: int) -> Moments:
    r"""The moments of smooth units on a grid of twice `order` points a unit, by the symmetric root of their covariance.

    The fixed fields are taken out by Stein's lemma, which holds where that is singular too:
    :math:`E[G_j\lambda^*_r] = E[G_j]\bar\lambda^*_r + \sum_l E[\partial_lG_j]\,\mathrm{Cov}(\lambda_l, \lambda^*_r)`.
    """
    points, weights = GaussHermite(2 * order).nodes(model.width)
    centre, C, none = at_means(law), law.blocks, jnp.zeros((model.width, 0))
    nodes = FieldNodes(jnp.zeros((0, weights.size)), points, weights)

    def of_class(c):
        products = Partial(_smooth_products, model, a, C.cross, centre.fixed[:, c], c)
        return field_mean(products, centre.fields[:, c], none, C.students, nodes, smooth=True)

    parts = jax.vmap(of_class)(centre.c)
    return jax.tree.map(lambda leaf: jnp.tensordot(centre.weights, leaf, 1), parts)


def _smooth_products(model, a, cross, fixed, c, fields) -> Moments:
    inputs = ClassInputs(
        fields, jnp.tile(fixed[:, None], fields.shape[1]), jnp.ones(fields.shape[1]), c, jnp.zeros(fields.shape[1])
    )
    gradient = lambda fields: inputs._replace(fields=fields).gradient(model, a)[0]
    along = lambda e: jax.jvp(gradient, (fields,), (jnp.broadcast_to(e[:, None], fields.shape),))[1]
    curvature = jax.vmap(along)(jnp.eye(len(a)))
    (G, second), slopes = inputs.gradient(model, a), inputs.unit_slopes(model, a)
    products = inputs.products(G, second)
    return products._replace(
        loss=inputs.loss(model, a),
        gradient_fixed=products.gradient_fixed + jnp.einsum("ljn,lr->jrn", curvature, cross),
        gradient_gradient=products.gradient_gradient + model.target.noise * slopes[:, None] * slopes,
    )


def kinked_class_hessian(model: Model, a: np.ndarray, S: Float[np.ndarray, "p n"], order: int) -> tuple[np.ndarray, np.ndarray]:
    """The Hessian within the frame, shape (p, n, p, n), and along each direction outside, shape (p, p)."""
    inverse = np.linalg.pinv(S, rcond=SAME_DIRECTION)
    span, outside = _hessian(model, jnp.asarray(a), jnp.asarray(S), jnp.asarray(inverse), order)
    return np.asarray(span), np.asarray(outside)


@eqx.filter_jit
def _hessian(model: Model, a: Array, S: Array, inverse: Array, order: int) -> tuple[Array, Array]:
    network: Any = model.network
    unit = network.activation
    k, p, law, frame = model.teachers, len(a), model.law(overlaps_from_coordinates(a, S, model.frame)), model.coordinates
    centres = jnp.zeros((S.shape[1], frame.classes)).at[:k].set(frame.means.fixed)
    variance = frame.variance
    rest = variance * (jnp.eye(S.shape[1]) - inverse @ S)

    def spread(weights: Float[Array, "m n"], inputs: ClassInputs) -> Float[Array, "m s t"]:
        """The mean of x x^T with these weights."""
        centre = centres[:, inputs.c]
        x = centre + inverse @ (inputs.fields - S @ centre)
        return jnp.einsum("mn,sn,tn->mst", weights, x, x) + weights.sum(1)[:, None, None] * rest

    def at_kink(j):
        inputs = _on_kink(model, law, order, j)
        weights = (inputs.weights * inputs.slope(model, a))[None]
        return spread(weights, inputs)[0], weights.sum()

    inputs = on_grid(model, law, order)
    loss = lambda fields, fixed, c: model.sample_loss(fields, fixed, a, 0.0, c)
    second = inputs.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(inputs.fields, inputs.fixed, inputs.c)
    span = spread(second.reshape(p * p, -1), inputs).reshape(p, p, *rest.shape)
    blocks, means = jax.lax.map(at_kink, jnp.arange(p))
    step, own = network.factor * a * (unit.right - unit.left), jnp.arange(p)
    span = span.at[own, own].add(step[:, None, None] * blocks)
    return jnp.swapaxes(span, 1, 2), variance * (second.sum(2) + jnp.diag(step * means))


def _on_kink(model: Model, law: FieldLaw, order: int, j: Int[Array, ""]) -> ClassInputs:
    """Inputs with the field of unit j at zero. Their weights sum to the density of that field there."""
    p, centre = model.width, at_means(law)
    turn = (jnp.arange(p) + j) % p
    root = law.root_of_students(turn)
    z = -centre.fields[j] / root[0, 0]
    rows = centre.fields[turn] + root[:, :1] * z
    weights = centre.weights * jax.scipy.stats.norm.pdf(z) / root[0, 0]
    for i in range(1, p):
        points, more = split_line(kink(rows[i], root[i, i]), order)
        rows = (rows[:, None] + root[:, i, None, None] * points).reshape(p, -1)
        weights = (more * weights).ravel()
    fields = jnp.zeros_like(rows).at[turn].set(rows)
    copies = weights.size // centre.c.size
    return ClassInputs(fields, jnp.tile(centre.fixed, copies), weights, jnp.tile(centre.c, copies))
