r"""Expectations over one sample that the mean-field drift needs, at a cost linear or quadratic in the number of units.

The components of units outside the span of the fixed directions are independent, and each unit represents infinitely many. Unit
l has second layer :math:`a_l`, overlaps :math:`m_l` with the fixed directions, and squared norm :math:`q_l`; P is the Gram
matrix of the fixed directions, s the activation and :math:`\xi` standard normal. The network is a deterministic function of the
fixed fields :math:`\lambda^*`,

.. math:: f(\lambda^*) = \frac1p\sum_l a_l\, S(m_l^\top P^{-1}\lambda^*,\; q_l - m_l^\top P^{-1} m_l), \qquad
          S(\mu, v) = E\,s(\mu + \sqrt v\,\xi).

The averages over :math:`\xi` of s(x), s'(x) and s'(x) x, with :math:`x = \mu + \sqrt v\,\xi`, have a closed form for erf,
are exact for polynomials, and are computed by the trapezoidal rule for other smooth functions.

`GridExpectation` evaluates f on a grid of the fixed fields and then averages the gradient of each unit: a cost of p times the
number of nodes. `PairwiseExpectation` computes the same for a squared loss and a committee as sums over pairs of units, where
every pair, also a unit with itself, has the covariance :math:`m_i^\top P^{-1} m_l`: a cost of p times p, in blocks of rows.
"""

from __future__ import annotations

import abc
from functools import singledispatch
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.polynomial.legendre import leggauss

from sgdlimits.errors import BadInput
from sgdlimits.expectation.additive import choose_additive_integrals
from sgdlimits.expectation.gaussian.quadrature import LineRule, gauss_hermite, overlap_rule, radius_rule, trapezoid
from sgdlimits.expectation.gaussian.units import UnitIntegrals, safe_root
from sgdlimits.model.activation import Activation, Erf, Polynomial
from sgdlimits.model.sample import Model
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.particles import Particles

MAX_FLOATS_AT_ONCE = 2**16
"""Approximate maximum number of floats for one block of units in mean-field expectations: half a megabyte."""
SMOOTH_LINE_RULES = {1: trapezoid(96, 9.0), 2: trapezoid(40, 8.0)}
"""Quadrature nodes along each fixed direction, by the number of these (1 or 2), if all functions are smooth."""
PANEL_RULE_SETTINGS = {1: (24, 12, 12.0), 2: (8, 8, 8.0)}
"""Number of panels, nodes per panel and range, by the number of fixed directions, if a function may jump or bend at 0."""
LABEL_NOISE_RULES = {True: LineRule(np.array([-1.0, 1.0]), np.array([0.5, 0.5])), False: trapezoid(256, 9.0)}
"""Quadrature nodes of the label noise, by whether the loss is quadratic: two nodes are exact for a quadratic loss."""
UNIT_NODES, UNIT_FIELD_RANGE = 64, 9.0
"""Number and range of the nodes that average a unit over the part of its field independent of the fixed fields."""
DIRECTION_NODES, LENGTH_NODES = 40, 16
"""Numbers of nodes for a coordinate of a unit's direction and for an input's length, both outside the fixed directions."""


class ParticleMoments(NamedTuple):
    r"""Expectations over one sample: loss, and for each unit the field gradient times the fields and the derivative in `a`.

    With the loss l, the student fields :math:`\lambda`, the fixed fields :math:`\lambda^*`, the second layer a and
    :math:`G = \partial l/\partial\lambda`, the expectations are :math:`E l`, :math:`E[G\lambda^*]`, :math:`E[G\lambda]` and
    :math:`E[\partial_a l]`.
    """

    loss: Float[Array, ""]
    gradient_fixed: Float[Array, "p k"]
    gradient_field: Float[Array, " p"]
    gradient_second: Float[Array, " p"]


class ParticleExpectation(eqx.Module):
    """A method to compute the expectations of a model in the mean-field limit, from the statistics of each unit."""

    @property
    @abc.abstractmethod
    def tolerance(self) -> float:
        """The default relative tolerance of the ODE solver, not below the quadrature error of the drift."""

    @abc.abstractmethod
    def moments(self, model: Model, stats: Particles) -> ParticleMoments:
        """Compute the expectations that give the drift of one run, whose units are the particles `stats`."""

    @abc.abstractmethod
    def loss(self, model: Model, stats: Particles) -> Float[Array, ""]:
        """Compute the population risk of one run, whose units are the particles `stats`."""

    def accuracy(self, model: Model, stats: Particles) -> Float[Array, ""]:
        """Compute the probability of predicting the right class, for losses on class labels."""
        raise NotImplementedError  # unreachable: closed forms are for squared losses, whose labels are not classes


class UnitBatch(NamedTuple):
    """Second layer of a batch of units, and the Gaussian law of the field of each given the fixed fields.

    A field is its class mean plus A x plus an independent part of variance `outside`, with standard normal x (see
    `ConditionalLaw`).
    """

    a: Float[Array, " p"]
    A: Float[Array, "p k"]
    outside: Float[Array, " p"]
    mean: Float[Array, "p classes"]

    def conditional_means(self, grid: FixedFieldGrid) -> Float[Array, "p n"]:
        """Compute the mean of each unit's field, given the fixed fields at each quadrature node."""
        return self.A @ grid.x + self.mean[:, grid.c]


class FixedFieldGrid(NamedTuple):
    """Quadrature nodes of the fixed fields, with their standard normal points x, classes and weights."""

    x: Float[Array, "k n"]
    fixed: Float[Array, "k n"]
    c: Int[Array, " n"]
    weights: Float[Array, " n"]
    length: Float[Array, " n"] | float = 1.0
    """Length of the input's part orthogonal to the fixed directions, in units of its root mean square."""


class GridExpectation(ParticleExpectation):
    """Mean-field expectations on a grid over the fields of one or two fixed directions, for smooth activations."""

    smooth: bool = eqx.field(static=True)

    @property
    def tolerance(self):
        return 1e-9 if self.smooth else 1e-6

    def moments(self, model, stats):
        units, grid, p = make_unit_batch(model, stats), self._grid(model), stats.width
        # Two passes over the units: the first sums the network at the nodes, the second needs dl/df there.
        loss, slope = self._loss_and_derivative(model, grid, self._network_output(model, units, grid))
        weights = slope * grid.weights / p

        def forces_on_block(block: UnitBatch):
            means = self._activation_means(model.network.activation, block, grid)
            return (means.slope * weights) @ grid.fixed.T, means.product @ weights, means.value @ weights

        fixed, field, second = map_blocks(forces_on_block, units, self._block_size(model, grid))
        return ParticleMoments(loss, stats.a[:, None] * fixed, stats.a * field, second)

    def loss(self, model, stats):
        grid = self._grid(model)
        return self._loss_and_derivative(model, grid, self._network_output(model, make_unit_batch(model, stats), grid))[0]

    def accuracy(self, model, stats):
        grid = self._grid(model)
        prediction = self._network_output(model, make_unit_batch(model, stats), grid)
        return grid.weights @ model.loss.probability_correct(prediction, model.target.readout(grid.fixed, grid.c))

    def _network_output(self, model, units: UnitBatch, grid: FixedFieldGrid) -> Float[Array, " n"]:
        """Compute the network's output at the nodes of the fixed fields, by sums over one block of units at a time."""

        def add_block(total, block: UnitBatch):
            means = self._activation_means(model.network.activation, block, grid)
            return total + block.a @ means.value, None

        # A scan over blocks, so that no array has all units and all nodes as axes.
        blocks = split_into_blocks(units, self._block_size(model, grid))
        total = jax.lax.scan(add_block, jnp.zeros_like(grid.weights), blocks)[0]
        return total / units.a.shape[0]

    @staticmethod
    def _loss_and_derivative(model, grid: FixedFieldGrid, f: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, " n"]]:
        """Compute the mean loss, and its derivative in the prediction at each node, averaged over the label noise."""
        # For a quadratic loss the noise enters as z and z^2, which z = +-1 integrate exactly.
        z, weights = LABEL_NOISE_RULES[model.loss.quadratic]
        with_noise = lambda values: jnp.broadcast_to(values[..., None], (*values.shape, z.size))
        label = model.target.label(with_noise(grid.fixed), jnp.broadcast_to(z, (grid.c.size, z.size)), with_noise(grid.c))
        mean = lambda f: model.loss(with_noise(f), label) @ weights
        return grid.weights @ mean(f), jax.grad(lambda f: mean(f).sum())(f)

    def _grid(self, model) -> FixedFieldGrid:
        """Return the grid over the fixed fields, with the same standard normal points in each class."""
        law, k = model.coordinates, model.target.teachers
        line = SMOOTH_LINE_RULES[k] if self.smooth else make_panel_rule(*PANEL_RULE_SETTINGS[k])
        points, product = line.grid(k)
        c = jnp.repeat(jnp.arange(law.classes), product.size)
        x = jnp.tile(points, law.classes)
        inside = jnp.sqrt(law.variance) * x + law.means.fixed[:, c]
        return FixedFieldGrid(x, model.frame @ inside, c, jnp.asarray(law.weights)[c] * jnp.tile(product, law.classes))

    def _activation_means(self, activation: Activation, units: UnitBatch, grid: FixedFieldGrid) -> ActivationMeans:
        """Average each unit's activation over the part of its field that is independent of the fixed fields, at each node."""
        return average_activation(activation, units.conditional_means(grid), units.outside[:, None])

    def _block_size(self, model, grid: FixedFieldGrid) -> int:
        """Return the number of units that are computed at a time, chosen so that their arrays fit into the memory limit."""
        return max(1, MAX_FLOATS_AT_ONCE // (grid.weights.size * choose_activation_rule(model.network.activation).points.size))


class SphereExpectation(GridExpectation):
    r"""Mean-field expectations on a grid, with a finite number n of dimensions outside the fixed directions.

    The components of units outside have uniform directions on the sphere in n dimensions, and keep this law: the network is a
    function of the fixed fields and of the input's length outside, :math:`\chi_n`, and each unit moves along its own direction.
    Given that length, a field of conditional mean :math:`\mu` and variance v outside is :math:`\mu + \sqrt v\,\chi_n\,\omega`,
    where :math:`\omega` is a coordinate of a uniformly random direction.
    """

    n: int = eqx.field(static=True)

    @property
    def tolerance(self):
        return 1e-6

    def _activation_means(self, activation, units, grid):
        # One coordinate of a uniform direction has the law of the overlap of two uniform directions.
        omega, weights = overlap_rule(self.n, DIRECTION_NODES)
        spread = safe_root(units.outside)[:, None] * grid.length * np.sqrt(self.n)
        return average_over_line(activation, units.conditional_means(grid), spread, LineRule(omega, weights))

    def _grid(self, model):
        grid = super()._grid(model)
        chi, weights = radius_rule(self.n, LENGTH_NODES)
        with_lengths = lambda leaf: jnp.repeat(leaf, LENGTH_NODES, axis=-1)
        product = (grid.weights[:, None] * weights).ravel()
        length = jnp.tile(chi / np.sqrt(self.n), grid.weights.size)
        return FixedFieldGrid(with_lengths(grid.x), with_lengths(grid.fixed), with_lengths(grid.c), product, length)

    def _block_size(self, model, grid):
        return max(1, MAX_FLOATS_AT_ONCE // (grid.weights.size * DIRECTION_NODES))


class PairwiseExpectation(ParticleExpectation):
    r"""Mean-field expectations as sums over pairs of units, for a squared loss and a committee teacher.

    The coefficients of the units in the residual D are c: a/p for the p students of second layer a, and minus the weights of
    the readout for teachers. With activation s, field :math:`x_i` of unit i, and the matrices :math:`H = E[s''(x_i)s(x_l)]`,
    :math:`B = E[s'(x_i)s'(x_l)]` and :math:`N = E[s(x_i)s(x_l)]`, Stein's lemma gives for any field y

    .. math:: E[s'(x_i)\, y\, D] = \mathrm{Cov}(y, x_i)\, (Hc)_i + \sum_l B_{il}\, c_l\, \mathrm{Cov}(y, x_l),

    where y is a fixed field :math:`\lambda^*`, or the field :math:`\lambda_i` of unit i, whose variance is its squared norm but
    whose covariance with the field :math:`x_l` of every student is :math:`m_i^\top P^{-1} m_l`, with the overlaps :math:`m_i`
    of the units with the fixed directions and the Gram matrix P of these.
    """

    @property
    def tolerance(self):
        return 1e-9

    def moments(self, model, stats):
        p = stats.width
        rows, sums = self._field_features(model, stats), self._pair_sums(model, stats)
        value, curvature, fixed, field = map_blocks(sums, rows, self._block_size(rows))
        law = compute_unit_laws(model, stats)
        scale = 2 * model.loss.weight / p
        slope = scale * stats.a
        return ParticleMoments(
            loss=self._risk(model, stats, value),
            gradient_fixed=slope[:, None] * (law.cross * curvature[:p, None] + fixed[:p]),
            gradient_field=slope * (law.variance * curvature[:p] + field[:p]),
            gradient_second=scale * value[:p],
        )

    def loss(self, model, stats):
        rows, sums = self._field_features(model, stats), self._pair_sums(model, stats)
        return self._risk(model, stats, map_blocks(lambda block: sums(block)[0], rows, self._block_size(rows)))

    def _risk(self, model, stats, value):
        """Compute the population risk from `value`, the mean of each unit's output times the residual."""
        return model.loss.weight * (self._residual_coefficients(model, stats) @ value + model.target.noise)

    @staticmethod
    def _residual_coefficients(model, stats) -> Float[Array, " n"]:
        """Return the coefficient of each unit in the residual, the students first."""
        return jnp.concatenate([stats.a / stats.width, -model.target.readout.weights(model.target.teachers)])

    def _field_features(self, model, stats) -> tuple[Float[Array, "n k"], PyTree]:
        """Return the coefficients of all fields in standard normal coordinates, and their `UnitIntegrals.features`."""
        law = compute_unit_laws(model, stats)
        variances = jnp.concatenate([law.variance, jnp.diagonal(law.fixed)])
        return jnp.concatenate([law.A, jnp.asarray(law.L)]), self._integrals(model).features(variances)

    def _pair_sums(self, model, stats):
        """Return a function that computes, for each unit of a block, its sums of Gaussian integrals over all other units.

        With the activation s, fields x and coefficients c of the units in the residual, unit i has the sums over l of c_l times
        E[s(x_i) s(x_l)], E[s''(x_i) s(x_l)], and E[s'(x_i) s'(x_l)] times the covariances of x_l with the fixed fields and x_i.
        """
        (m, columns), c = self._field_features(model, stats), self._residual_coefficients(model, stats)
        fixed, integrals = m @ compute_unit_laws(model, stats).L.T, self._integrals(model)

        def sums_of_block(block):
            here, features = block
            C = here @ m.T
            pairs = integrals.pairs(features, columns, C)
            return pairs.value @ c, pairs.curvature @ c, pairs.slope @ (c[:, None] * fixed), (pairs.slope * C) @ c

        return sums_of_block

    @staticmethod
    def _integrals(model) -> UnitIntegrals:
        """Return the Gaussian integrals over pairs of the model's units, students and teachers."""
        integrals = choose_additive_integrals(model)
        assert integrals is not None, "pairs are chosen for sums of units only"
        return integrals

    @staticmethod
    def _block_size(rows) -> int:
        """Return the number of units that are computed at a time, chosen so that their arrays fit into the memory limit."""
        return max(1, MAX_FLOATS_AT_ONCE // rows[0].shape[0])


class UnitLaws(NamedTuple):
    """Gaussian law of each unit's field, jointly with the fixed fields.

    The fields L and `fixed` are common to all units (see `ConditionalLaw` and `Covariance`).
    """

    mean: Float[Array, "p classes"]
    A: Float[Array, "p k"]
    outside: Float[Array, " p"]
    variance: Float[Array, " p"]
    cross: Float[Array, "p k"]
    L: Float[Array, "k k"]
    fixed: Float[Array, "k k"]


def compute_unit_laws(model: Model, stats: Particles) -> UnitLaws:
    """Compute the Gaussian law of each unit's field, jointly with the fixed fields but not with fields of other units."""

    def law_of_unit(a, M, q):
        law = model.law(Overlaps(a[None], M[None], q[None, None]))
        (A, rest, L), C = law.condition_on_fixed(), law.blocks
        return UnitLaws(law.means.student[0], A[0], jnp.maximum(rest[0, 0], 0.0), C.students[0, 0], C.cross[0], L, C.fixed)

    axes: Any = UnitLaws._make([0, 0, 0, 0, 0, None, None])  # L and the covariance of the fixed fields have no axis of units
    return jax.vmap(law_of_unit, out_axes=axes)(stats.a, stats.M, stats.q)


def make_unit_batch(model: Model, stats: Particles) -> UnitBatch:
    """Convert the particles of one run to a batch of units with the laws of their fields."""
    law = compute_unit_laws(model, stats)
    return UnitBatch(stats.a, law.A, law.outside, law.mean)


def make_panel_rule(count: int, order: int, reach: float) -> LineRule:
    """Return Gauss-Legendre nodes on equal panels of [-reach, reach], weighted with the normal density.

    With an even number of panels, functions with a kink or a jump at zero are integrated accurately.
    """
    nodes, weights = leggauss(order)
    edges = np.linspace(-reach, reach, count + 1)
    points = ((edges[1:] + edges[:-1])[:, None] + np.diff(edges)[:, None] * nodes).ravel() / 2
    # Normalised below, so the constant factors of the density and of the panel length are left out.
    density = np.tile(weights, count) * np.exp(-(points**2) / 2)
    return LineRule(points, density / density.sum())


def split_into_blocks(units: PyTree, size: int, mode: str = "constant") -> PyTree:
    """Split the first axis of each array in a pytree, that of the units, into equal blocks of at most `size` units.

    The last block is padded with zeros or, in the mode "edge", with its last unit.
    """
    rows = jax.tree.leaves(units)[0].shape[0]
    # Divisions rounded up; blocks as equal as possible need less padding than full blocks and a remainder.
    count = -(-rows // size)
    length = -(-rows // count)

    def split_leaf(leaf):
        filled = jnp.pad(leaf, [(0, count * length - rows), *((0, 0) for _ in leaf.shape[1:])], mode=mode)
        return filled.reshape(count, length, *leaf.shape[1:])

    return jax.tree.map(split_leaf, units)


def map_blocks(f, units: PyTree, size: int) -> PyTree:
    """Apply the function f to blocks of at most `size` units, one block after the other, and concatenate the results."""
    # Padding repeats a row rather than zeros, at which f need not be finite.
    rows = jax.tree.leaves(units)[0].shape[0]
    done = jax.lax.map(f, split_into_blocks(units, size, mode="edge"))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:rows], done)


def choose_particle_expectation(model: Model, outside: int | None = None) -> ParticleExpectation:
    """Choose the method for the mean-field expectations of a model, or raise `BadInput` if none supports it.

    The first choice is a grid for smooth models with one fixed direction, or with two and many units; the second, sums over
    pairs for units with closed integrals; the third, a grid for up to two directions. If `outside`, the number of dimensions
    orthogonal to the fixed directions, is given, the method is always a grid.
    """
    k, activation, readout = model.target.teachers, model.network.activation, model.target.readout
    smooth = activation.smooth and readout.smooth and model.loss.quadratic
    if outside is not None:
        if activation.smooth and k <= max(PANEL_RULE_SETTINGS):
            return SphereExpectation(smooth, outside)
        raise BadInput(
            f"MeanField(outside=...) needs a smooth activation and at most {max(PANEL_RULE_SETTINGS)} fixed directions; "
            f"got {k} and "
            f"{'a smooth' if activation.smooth else 'a non-smooth'} activation. Leave out outside=, or use ODE()."
        )
    integrals = choose_additive_integrals(model)
    many = model.network.width > SMOOTH_LINE_RULES[2].points.size ** 2  # then pairs cost more than the grid
    if smooth and (k == 1 or (k == 2 and (many or integrals is None))):
        return GridExpectation(True)
    if integrals is not None:
        return PairwiseExpectation()
    if activation.smooth and k <= max(PANEL_RULE_SETTINGS):
        return GridExpectation(False)
    raise BadInput(
        "MeanField needs a squared loss and teacher units of the same type as the students', or a smooth activation and "
        f"at most {max(PANEL_RULE_SETTINGS)} fixed directions; "
        f"got {k} and {'a smooth' if activation.smooth else 'a non-smooth'} activation. Use ODE(), at finite width."
    )


class ActivationMeans(NamedTuple):
    """Means of an activation s over a Gaussian field x: E s(x), E s'(x) and E[s'(x) x]."""

    value: Float[Array, "..."]
    slope: Float[Array, "..."]
    product: Float[Array, "..."]


def choose_activation_rule(activation: Activation) -> LineRule:
    """Return the quadrature nodes to average an activation over; a single node if the average has a closed form."""
    if isinstance(activation, Erf):
        return LineRule(np.zeros(1), np.ones(1))
    if isinstance(activation, Polynomial):
        return gauss_hermite(activation.degree // 2 + 1)
    return trapezoid(UNIT_NODES, UNIT_FIELD_RANGE)


@singledispatch
def average_activation(activation: Activation, mean: Float[Array, "..."], variance: Float[Array, "..."]) -> ActivationMeans:
    """Average an activation over Gaussian fields with the given mean and variance."""
    return average_over_line(activation, mean, safe_root(variance), choose_activation_rule(activation))


def average_over_line(
    activation: Activation, mean: Float[Array, "..."], spread: Float[Array, "..."], line: LineRule
) -> ActivationMeans:
    """Average an activation over the Gaussian field mean + spread z, with the quadrature rule `line` for z."""
    points, weights = line
    x = mean[..., None] + spread[..., None] * points
    # Forward mode with tangents of one gives the elementwise derivative along with the value.
    value, slope = jax.jvp(activation, (x,), (jnp.ones_like(x),))
    return ActivationMeans(value @ weights, slope @ weights, (slope * x) @ weights)


@average_activation.register
def _(activation: Erf, mean, variance) -> ActivationMeans:
    """Average erf(c x) over x ~ N(mu, v) in closed form, as erf(c mu / sqrt(1 + 2 c^2 v))."""
    c = activation.scale
    inverse = jax.lax.rsqrt(1 + 2 * c**2 * variance)
    y = c * mean * inverse
    slope = 2 * c / np.sqrt(np.pi) * inverse * jnp.exp(-y * y)
    return ActivationMeans(jax.scipy.special.erf(y), slope, mean * inverse**2 * slope)
