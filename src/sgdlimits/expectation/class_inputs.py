r"""Quadrature nodes for inputs of Gaussian classes: a grid over the student fields that is split at the kinks of the units.

Given the class, the student fields :math:`\lambda` and the fixed fields :math:`\lambda^*` have the means
:math:`\bar\lambda, \bar\lambda^*`. With the blocks L, W and C of a triangular factor of their covariance, the rows of the
students first, and independent standard normal z and :math:`\zeta`,

.. math:: \lambda_i = \bar\lambda_i + \sum_{l\le i} L_{il} z_l, \qquad \lambda^* = \bar\lambda^* + Wz + C\zeta.

If labels depend on the class only, the loss depends on z alone. Unit i has its kink where its field is zero, at
:math:`z_i = -(\bar\lambda_i + \sum_{l<i}L_{il}z_l)/L_{ii}`. The line of :math:`z_i` is split there, one unit
after another.

The kinks of two units are lines in one plane. If they are split one after the other, the second kink becomes a step in the
first variable, which is steep for nearly parallel units. So z is rotated to :math:`(t, s)`, with s along the bisector of the
lines' normals (of the acute angle :math:`\theta`). Unit i then has its kink at :math:`s_i(t)`, of slope
:math:`\pm\tan(\theta/2)`, which is at most 1. The line of t is split where both kinks cross, and that of s at both kinks: each
of the four wedges has nodes of its own, however thin it is.

For the network output :math:`f = \sum_jb_js(\lambda_j)`, with second layer b and an activation of slope
:math:`s' = \alpha` below zero and :math:`\beta` above, and for the loss :math:`l(f)`, the Hessian of the risk in the fields is
the mean of

.. math:: l_{ji} = l''(f)\,b_jb_i\,s'(\lambda_j)s'(\lambda_i) + \delta_{ji}\,l'(f)\,b_j\,(\beta - \alpha)\,\delta(\lambda_j).

The first term jumps where the grid is split. The second is a mean over the inputs with :math:`\lambda_j = 0`, times the density
of that field at zero. Given the fields of the units, whose weights are the rows of S, an input of class mean :math:`\bar x` has
the mean :math:`\bar x + S^+(\lambda - S\bar x)` and, outside the span of the units, the variance of the field of a unit vector.
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

# A kink of a constant field is placed here, beyond all nodes; finite, so that derivatives stay finite.
KINK_AT_INFINITY = 1e3
RANK_TOLERANCE = 1e-7
"""Fraction of the largest singular value below which directions of units count as linearly dependent."""


class ClassInputs(NamedTuple):
    """Inputs at quadrature nodes: their student fields, fixed fields, classes and label noise, and weights that sum to 1."""

    fields: Float[Array, "p n"]
    fixed: Float[Array, "k n"]
    weights: Float[Array, " n"]
    c: Int[Array, " n"]
    z: Float[Array, " n"] | float = 0.0

    def with_noise(self) -> ClassInputs:
        """Combine each input with the three Gauss-Hermite nodes of its label noise, exact for polynomials of degree 5."""
        z, weights = gauss_hermite(3)
        thrice = lambda leaf: jnp.repeat(leaf, 3, axis=-1)
        product = jnp.tile(jnp.asarray(weights), self.weights.size) * thrice(self.weights)
        noise = jnp.tile(jnp.asarray(z), self.weights.size)
        return ClassInputs(thrice(self.fields), thrice(self.fixed), product, thrice(self.c), noise)

    def loss(self, model: Model, a: Float[Array, " p"]) -> Float[Array, " n"]:
        """Compute the loss of each input at the quadrature nodes."""
        return model.sample_loss(self.fields, self.fixed, a[:, None], self.z, self.c)

    def loss_derivative(self, model: Model, a: Float[Array, " p"]) -> Float[Array, " n"]:
        """Compute the derivative of the loss of each input with respect to the prediction, without label noise."""
        label = model.target.label(self.fixed, jnp.zeros_like(self.weights), self.c)
        return jax.grad(lambda f: model.loss(f, label).sum())(model.network(self.fields, a[:, None]))

    def gradient(self, model: Model, a: Float[Array, " p"]) -> tuple[Float[Array, "p n"], ...]:
        """Compute the gradients of the loss of each input with respect to its student fields and to the second layer."""
        a = jnp.broadcast_to(a[:, None], self.fields.shape)
        return model.gradient(self.fields, self.fixed, a, self.z, self.c)

    def unit_slopes(self, model: Model, a: Float[Array, " p"]) -> Float[Array, "p n"]:
        """Compute the derivative of the prediction of each input with respect to each student field."""
        return jax.grad(lambda fields: model.network(fields, a[:, None]).sum())(self.fields)

    def products(self, G: Float[Array, "p n"], second: Float[Array, "p n"]) -> Moments:
        """Compute the products of each input's gradients and fields, which are those that determine the drift.

        The loss is set to zero.
        """
        zero = jnp.zeros_like(self.weights)
        return Moments(zero, G[:, None] * self.fixed, G[:, None] * self.fields, G[:, None] * G, second)

    def average_products(self, rows: Float[Array, "i n"], columns: Float[Array, "j n"]) -> Float[Array, "i j"]:
        """Average over the inputs the product of each row of the array `rows` with each row of the array `columns`."""
        return (self.weights * rows) @ columns.T


def class_mean_inputs(law: FieldLaw) -> ClassInputs:
    """Return quadrature nodes with a single input for each class, the mean of the class."""
    return ClassInputs(*law.means, jnp.asarray(law.weights), jnp.arange(law.classes))


def grid_inputs(model: Model, law: FieldLaw, order: int) -> ClassInputs:
    """Return a quadrature grid over the student fields with 2 `order` nodes per unit, split at the kinks of the units.

    The fixed fields are conditional means given the student fields.
    """
    p, unit = model.network.width, model.network.activation
    centre, root = class_mean_inputs(law), law.student_columns()
    rows, weights = jnp.concatenate([centre.fields, centre.fixed]), centre.weights
    if p == 2 and isinstance(unit, PiecewiseLinear):
        rows, weights = _nodes_in_wedges(rows, weights, root, order)
        return ClassInputs(rows[:p], rows[p:], weights, jnp.tile(centre.c, weights.size // centre.c.size))
    for i in range(p):
        if isinstance(unit, PiecewiseLinear):
            # If the last unit is zero below its kink, everything is at most quadratic there: two nodes are exact.
            below = min(order, 2) if unit.left == 0 and i == p - 1 else order
            points, more = split_line(find_kink(rows[i], root[i, i]), order, below)
        else:
            points, more = (jnp.asarray(column).reshape(-1, *[1] * (i + 1)) for column in gauss_hermite(2 * order))
        rows = rows[:, None] + root[:, i].reshape(-1, *[1] * (i + 2)) * points
        weights = more * weights
    rows, weights = rows.reshape(len(rows), -1), weights.ravel()
    return ClassInputs(rows[:p], rows[p:], weights, jnp.tile(centre.c, weights.size // centre.c.size))


def _nodes_in_wedges(
    rows: Float[Array, "m classes"], weights: Float[Array, " classes"], root: Float[Array, "m 2"], order: int
) -> tuple[Float[Array, "m n"], Float[Array, " n"]]:
    """Place quadrature nodes in the plane of two units' fields, `order` or more in each wedge between the units' kinks.

    Returns the fields at the nodes, given their means `rows` in each class and their factor `root`, and the nodes' weights.
    """
    plane = rotate_plane(rows, root)
    points, more = split_line(plane.crossing, order)
    rows = plane.rows[:, None] + plane.root[:, 0, None, None] * points
    weights = more * weights
    points, more = split_twice(*plane.kinks(rows), order)
    rows = rows[:, None] + plane.root[:, 1, None, None, None] * points
    weights = more * weights
    return rows.reshape(len(rows), -1), weights.ravel()


class ClassPlane(NamedTuple):
    """Rotated coordinates (t, s) of the plane of the fields of two units, whose kinks are lines that each cross the s axis.

    Parameters
    ----------
    rows : means of the fields in each class
    root : coefficients of t and of s in each field
    crossing : the t at which both kinks cross, in each class
    """

    rows: Float[Array, "m classes"]
    root: Float[Array, "m 2"]
    crossing: Float[Array, " classes"]

    def kinks(self, rows: Float[Array, "m *shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        """Return the two values of s at which two units have their kinks, in increasing order, given their fields at s = 0."""
        first, second = (find_kink(rows[i], self.root[i, 1]) for i in range(2))
        return jnp.minimum(first, second), jnp.maximum(first, second)


def rotate_plane(rows: Float[Array, "m classes"], root: Float[Array, "m 2"]) -> ClassPlane:
    """Rotate the plane of the fields of two units so that one axis crosses both kinks, and find where the kinks intersect.

    The means of the fields in each class are `rows`, and `root` factors their covariance. The coordinate s crosses both kinks,
    and t runs along them. An integral over the plane depends on neither the rotation nor
    the split, so derivatives are taken with both fixed.
    """
    # stop_gradient: the rotation and the split are not differentiable where the units are parallel, and need not be.
    fixed = jax.lax.stop_gradient(root[:2])
    length = jnp.hypot(fixed[1, 0], fixed[1, 1])
    other = jnp.where(length > 0, fixed[1] / jnp.where(length > 0, length, 1.0), jnp.array([1.0, 0.0]))
    # The bisector of the acute angle: the sign of the second normal is chosen so that the sum has length sqrt(2) or more.
    s = jnp.array([1.0, 0.0]) + jnp.where(other[0] < 0, -other, other)
    s = s / jnp.hypot(s[0], s[1])
    rotated = root @ jnp.array([[-s[1], s[0]], [s[0], s[1]]])
    (one, two), (along, over) = jax.lax.stop_gradient((rows[:2], rotated[:2].T))
    numerator = two * over[0] - one * over[1]
    determinant = along[0] * over[1] - along[1] * over[0]
    crossing = jnp.where(determinant != 0, numerator / jnp.where(determinant != 0, determinant, 1.0), 0.0)
    return ClassPlane(rows, rotated, crossing)


def find_kink(offset: Float[Array, " n"], scale: Float[Array, ""]) -> Float[Array, " n"]:
    """Return the root z of offset + scale z; for scale zero, a value beyond all nodes, with the opposite sign of the offset."""
    varies = scale != 0
    constant = jnp.where(offset > 0, -KINK_AT_INFINITY, KINK_AT_INFINITY)
    return jnp.where(varies, -offset / jnp.where(varies, scale, 1.0), constant)


def smooth_class_moments(model: Model, a: Float[Array, " p"], law: FieldLaw, order: int) -> Moments:
    r"""Compute the expectations that the drift needs, for class labels and smooth units, on a grid over the student fields.

    There are 2 `order` nodes per field, mapped to the fields by the symmetric root of their covariance. With the derivative
    :math:`G_j` of the loss in the student field :math:`\lambda_j`, the fixed fields :math:`\lambda^*_r`, of mean
    :math:`\bar\lambda^*_r`, are eliminated by Stein's lemma, which also holds for a singular covariance:
    :math:`E[G_j\lambda^*_r] = E[G_j]\bar\lambda^*_r + \sum_l E[\partial_lG_j]\,\mathrm{Cov}(\lambda_l, \lambda^*_r)`.
    """
    points, weights = GaussHermite(2 * order).nodes(model.width)
    centre, C, none = class_mean_inputs(law), law.blocks, jnp.zeros((model.width, 0))
    nodes = FieldNodes(jnp.zeros((0, weights.size)), points, weights)

    def moments_of_class(c):
        # A Partial is a pytree: derivatives in its arguments pass through `field_mean`.
        products = Partial(_smooth_unit_products, model, a, C.cross, centre.fixed[:, c], c)
        return field_mean(products, centre.fields[:, c], none, C.students, nodes, smooth=True)

    parts = jax.vmap(moments_of_class)(centre.c)
    return jax.tree.map(lambda leaf: jnp.tensordot(centre.weights, leaf, 1), parts)


def _smooth_unit_products(model, a, cross, fixed, c, fields) -> Moments:
    """Compute the products of gradients and fields at the nodes of class c, including the term of Stein's lemma.

    `cross` is the covariance of student and fixed fields, and `fixed` the mean of the fixed fields.
    """
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


def compute_kinked_class_hessian(
    model: Model, a: np.ndarray, S: Float[np.ndarray, "p n"], order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the Hessian of the risk of piecewise linear units, within the span of all directions and orthogonal to it.

    Returns arrays of shapes (p, n, p, n) and (p, p), for second layer a and coordinates S of the units in an orthonormal frame.
    """
    inverse = np.linalg.pinv(S, rcond=RANK_TOLERANCE)
    span, outside = _kinked_hessian(model, jnp.asarray(a), jnp.asarray(S), jnp.asarray(inverse), order)
    return np.asarray(span), np.asarray(outside)


@eqx.filter_jit
def _kinked_hessian(model: Model, a: Array, S: Array, inverse: Array, order: int) -> tuple[Array, Array]:
    """Compute the Hessian of the risk as a smooth part, averaged on a grid, and delta functions at the units' kinks.

    `inverse` is the pseudo-inverse of S, the coordinates of the units.
    """
    network: Any = model.network
    unit = network.activation
    k, p = model.teachers, len(a)
    law = model.law(overlaps_from_coordinates(a, S, model.frame))
    frame = model.coordinates
    centres = jnp.zeros((S.shape[1], frame.classes)).at[:k].set(frame.means.fixed)
    variance = frame.variance
    rest = variance * (jnp.eye(S.shape[1]) - inverse @ S)

    def mean_outer_products(weights: Float[Array, "m n"], inputs: ClassInputs) -> Float[Array, "m s t"]:
        """Average the outer products x x^T of the inputs, once for each row of weights."""
        centre = centres[:, inputs.c]
        x = centre + inverse @ (inputs.fields - S @ centre)
        return jnp.einsum("mn,sn,tn->mst", weights, x, x) + weights.sum(1)[:, None, None] * rest

    def hessian_at_kink(j):
        inputs = _inputs_at_kink(model, law, order, j)
        weights = (inputs.weights * inputs.loss_derivative(model, a))[None]
        return mean_outer_products(weights, inputs)[0], weights.sum()

    inputs = grid_inputs(model, law, order)
    loss = lambda fields, fixed, c: model.sample_loss(fields, fixed, a, 0.0, c)
    second = inputs.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(inputs.fields, inputs.fixed, inputs.c)
    span = mean_outer_products(second.reshape(p * p, -1), inputs).reshape(p, p, *rest.shape)
    blocks, means = jax.lax.map(hessian_at_kink, jnp.arange(p))
    step, own = network.factor * a * (unit.right - unit.left), jnp.arange(p)
    span = span.at[own, own].add(step[:, None, None] * blocks)
    return jnp.swapaxes(span, 1, 2), variance * (second.sum(2) + jnp.diag(step * means))


def _inputs_at_kink(model: Model, law: FieldLaw, order: int, j: Int[Array, ""]) -> ClassInputs:
    """Return quadrature nodes over inputs for which unit j is at its kink, that is, its field is zero.

    The weights of the nodes sum to the density of that field at zero.
    """
    p, centre = model.width, class_mean_inputs(law)
    # Unit j first, so that its field is a multiple of the first variate, which the condition fixes.
    order_of_units = (jnp.arange(p) + j) % p
    root = law.student_factor(order_of_units)
    z = -centre.fields[j] / root[0, 0]
    rows = centre.fields[order_of_units] + root[:, :1] * z
    weights = centre.weights * jax.scipy.stats.norm.pdf(z) / root[0, 0]
    for i in range(1, p):
        points, more = split_line(find_kink(rows[i], root[i, i]), order)
        rows = (rows[:, None] + root[:, i, None, None] * points).reshape(p, -1)
        weights = (more * weights).ravel()
    fields = jnp.zeros_like(rows).at[order_of_units].set(rows)
    copies = weights.size // centre.c.size
    return ClassInputs(fields, jnp.tile(centre.fixed, copies), weights, jnp.tile(centre.c, copies))
