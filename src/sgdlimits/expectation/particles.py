r"""The expectations behind the mean-field drift, linear or quadratic in the number of units.

Units' directions outside the span of the fixed ones are independent, and each unit stands for infinitely many: given the fixed
fields the network is a deterministic function of them,

.. math:: f(\lambda^*) = \frac1p\sum_l a_l\, S(m_l^\top P^{-1}\lambda^*,\; q_l - m_l^\top P^{-1} m_l), \qquad
          S(\mu, v) = E\,s(\mu + \sqrt v\,\xi).

The averages over :math:`\xi` of s(x), s'(x) and s'(x) x, with :math:`x = \mu + \sqrt v\,\xi`, are closed for erf, exact for
polynomials, and by the trapezoidal rule for other smooth functions.

`GridExpectation` lays the fixed fields out on a grid and computes f there, then what each unit feels: p times the number of nodes.
`PairwiseExpectation` writes the same for a squared loss and a committee as sums over pairs of units, every pair (also a unit with itself)
with the covariance :math:`m_i^\top P^{-1} m_l`: p times p, in blocks of rows.
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
from sgdlimits.expectation.additive import additive_integrals
from sgdlimits.expectation.gaussian.quadrature import Line, gauss_hermite, overlap_rule, radius_rule, trapezoid
from sgdlimits.expectation.gaussian.units import UnitIntegrals, safe_root
from sgdlimits.model.activation import Activation, Erf, Polynomial
from sgdlimits.model.sample import Model
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.particles import Particles

NUMBERS_AT_ONCE = 2**16
"""About so many numbers a block of units may need at a time."""
SMOOTH_LINES = {1: trapezoid(96, 9.0), 2: trapezoid(40, 8.0)}
"""Points a dimension of the grid, for k = 1 and k = 2, where all functions are smooth."""
PANELS = {1: (24, 12, 12.0), 2: (8, 8, 8.0)}
"""Panels, points in each, and reach, where a function may have a kink or a jump: exact for one at zero."""
LABEL_LINES = {True: Line(np.array([-1.0, 1.0]), np.array([0.5, 0.5])), False: trapezoid(256, 9.0)}
"""Points of the label noise: two are exact for a squared loss."""
NODES, REACH = 64, 9.0
DIRECTIONS, LENGTHS = 40, 16
"""Points of a coordinate of a unit's direction, and of an input's length, where few dimensions are outside."""


class ParticleMoments(NamedTuple):
    r"""Expectations over one sample, with G = dl/d lambda and loss l."""

    loss: Float[Array, ""]
    gradient_fixed: Float[Array, "p k"]
    gradient_field: Float[Array, " p"]
    gradient_second: Float[Array, " p"]


class ParticleExpectation(eqx.Module):
    """How the mean-field expectations of a projection model are computed."""

    @property
    @abc.abstractmethod
    def tolerance(self) -> float:
        """A relative tolerance worth asking of a solver of the drift."""

    @abc.abstractmethod
    def moments(self, model: Model, stats: Particles) -> ParticleMoments:
        """The moments at the particles of one run."""

    @abc.abstractmethod
    def loss(self, model: Model, stats: Particles) -> Float[Array, ""]:
        """The mean loss at the particles of one run."""

    def accuracy(self, model: Model, stats: Particles) -> Float[Array, ""]:
        """The probability of predicting the right class, for losses that know classes: closed forms are for squared losses."""
        raise NotImplementedError  # unreachable: squared losses know no classes


class Units(NamedTuple):
    """The units as the expectations see them: second layer, and fields Ax + rest with their mean in each class.

    Here x is standard normal, as in `Conditional`, and `outside` is the variance of the rest.
    """

    a: Float[Array, " p"]
    A: Float[Array, "p k"]
    outside: Float[Array, " p"]
    mean: Float[Array, "p classes"]

    def given(self, grid: Grid) -> Float[Array, "p n"]:
        """The mean of each field at the nodes."""
        return self.A @ grid.x + self.mean[:, grid.c]


class Grid(NamedTuple):
    """Nodes of standard normal x and of the fixed fields, with their classes and weights."""

    x: Float[Array, "k n"]
    fixed: Float[Array, "k n"]
    c: Int[Array, " n"]
    weights: Float[Array, " n"]
    length: Float[Array, " n"] | float = 1.0
    """Of the input outside the frame, over its root mean square."""


class GridExpectation(ParticleExpectation):
    """A grid over the fixed fields: any loss, any readout, smooth activations, k = 1 or 2."""

    smooth: bool = eqx.field(static=True)

    @property
    def tolerance(self):
        return 1e-9 if self.smooth else 1e-6

    def moments(self, model, stats):
        units, grid, p = units_of(model, stats), self._grid(model), stats.width
        loss, slope = self._loss(model, grid, self._network(model, units, grid))
        weights = slope * grid.weights / p

        def forces(block: Units):
            means = self._means(model.network.activation, block, grid)
            return (means.slope * weights) @ grid.fixed.T, means.product @ weights, means.value @ weights

        fixed, field, second = map_blocks(forces, units, self._block(model, grid))
        return ParticleMoments(loss, stats.a[:, None] * fixed, stats.a * field, second)

    def loss(self, model, stats):
        grid = self._grid(model)
        return self._loss(model, grid, self._network(model, units_of(model, stats), grid))[0]

    def accuracy(self, model, stats):
        grid = self._grid(model)
        right = model.loss.probability_correct(self._network(model, units_of(model, stats), grid), model.target.readout(grid.fixed, grid.c))
        return grid.weights @ right

    def _network(self, model, units: Units, grid: Grid) -> Float[Array, " n"]:
        """Evaluate f at the nodes."""

        def part(total, block: Units):
            means = self._means(model.network.activation, block, grid)
            return total + block.a @ means.value, None

        total = jax.lax.scan(part, jnp.zeros_like(grid.weights), blocks_of(units, self._block(model, grid)))[0]
        return total / units.a.shape[0]

    @staticmethod
    def _loss(model, grid: Grid, f: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, " n"]]:
        """The mean loss, and dl/df at each node averaged over the label noise."""
        z, weights = LABEL_LINES[model.loss.quadratic]
        every = lambda values: jnp.broadcast_to(values[..., None], (*values.shape, z.size))
        label = model.target.label(every(grid.fixed), jnp.broadcast_to(z, (grid.c.size, z.size)), every(grid.c))
        mean = lambda f: model.loss(every(f), label) @ weights
        return grid.weights @ mean(f), jax.grad(lambda f: mean(f).sum())(f)

    def _grid(self, model) -> Grid:
        law, k = model.coordinates, model.target.teachers
        line = SMOOTH_LINES[k] if self.smooth else panels(*PANELS[k])
        points, product = line.grid(k)
        c = jnp.repeat(jnp.arange(law.classes), product.size)
        x = jnp.tile(points, law.classes)
        inside = jnp.sqrt(law.variance) * x + law.means.fixed[:, c]
        return Grid(x, model.frame @ inside, c, jnp.asarray(law.weights)[c] * jnp.tile(product, law.classes))

    def _means(self, activation: Activation, units: Units, grid: Grid) -> Smoothed:
        """Over the directions of units outside the frame, at the nodes."""
        return smoothed(activation, units.given(grid), units.outside[:, None])

    def _block(self, model, grid: Grid) -> int:
        return max(1, NUMBERS_AT_ONCE // (grid.weights.size * inner_line(model.network.activation).points.size))


class SphereExpectation(GridExpectation):
    r"""The grid where n dimensions are outside the fixed directions, not infinitely many.

    The directions of units out there are uniform on the sphere in n dimensions, and stay so: the network is a function of the
    fixed fields and of the input's length outside, :math:`\chi_n`, and each unit is moved along its own direction. Given that
    length a field is :math:`\mu + \sqrt v\,\chi_n\,\omega` with a coordinate :math:`\omega` of a uniform direction.
    """

    n: int = eqx.field(static=True)

    @property
    def tolerance(self):
        return 1e-6

    def _means(self, activation, units, grid):
        omega, weights = overlap_rule(self.n, DIRECTIONS)
        spread = safe_root(units.outside)[:, None] * grid.length * np.sqrt(self.n)
        return averaged(activation, units.given(grid), spread, Line(omega, weights))

    def _grid(self, model):
        grid = super()._grid(model)
        chi, weights = radius_rule(self.n, LENGTHS)
        many = lambda leaf: jnp.repeat(leaf, LENGTHS, axis=-1)
        product = (grid.weights[:, None] * weights).ravel()
        length = jnp.tile(chi / np.sqrt(self.n), grid.weights.size)
        return Grid(many(grid.x), many(grid.fixed), many(grid.c), product, length)

    def _block(self, model, grid):
        return max(1, NUMBERS_AT_ONCE // (grid.weights.size * DIRECTIONS))


class PairwiseExpectation(ParticleExpectation):
    r"""Sums over pairs of units for a squared loss and a committee.

    With c = a/p for students and minus the readout's weights for teachers, D the residual and H, B, N the integrals of pairs
    (curvature, slope, value), Stein's lemma gives for any field y

    .. math:: E[s'(x_i)\, y\, D] = \mathrm{Cov}(y, x_i)\, (Hc)_i + \sum_l B_{il}\, c_l\, \mathrm{Cov}(y, x_l),

    where :math:`y = \lambda^*` or :math:`y = \lambda_i`, whose variance is q_i but whose covariance with every student's field
    :math:`x_l` is :math:`m_i^\top P^{-1} m_l`.
    """

    @property
    def tolerance(self):
        return 1e-9

    def moments(self, model, stats):
        p = stats.width
        rows, sums = self._rows(model, stats), self._sums(model, stats)
        value, curvature, fixed, field = map_blocks(sums, rows, self._block(rows))
        law = each_law(model, stats)
        scale = 2 * model.loss.weight / p
        slope = scale * stats.a
        return ParticleMoments(
            loss=self._risk(model, stats, value),
            gradient_fixed=slope[:, None] * (law.cross * curvature[:p, None] + fixed[:p]),
            gradient_field=slope * (law.variance * curvature[:p] + field[:p]),
            gradient_second=scale * value[:p],
        )

    def loss(self, model, stats):
        rows, sums = self._rows(model, stats), self._sums(model, stats)
        return self._risk(model, stats, map_blocks(lambda block: sums(block)[0], rows, self._block(rows)))

    def _risk(self, model, stats, value):
        return model.loss.weight * (self._weights(model, stats) @ value + model.target.noise)

    @staticmethod
    def _weights(model, stats) -> Float[Array, " n"]:
        return jnp.concatenate([stats.a / stats.width, -model.target.readout.weights(model.target.teachers)])

    def _rows(self, model, stats) -> tuple[Float[Array, "n k"], PyTree]:
        """Return the coefficients of all fields in x, and their features, the students first."""
        law = each_law(model, stats)
        variances = jnp.concatenate([law.variance, jnp.diagonal(law.fixed)])
        return jnp.concatenate([law.A, jnp.asarray(law.L)]), self._integrals(model).features(variances)

    def _sums(self, model, stats):
        """(N c, H c, B c Cov(lambda*, x), B c Cov(x_i, x)) of a block of rows, as sums over all fields."""
        (m, columns), c = self._rows(model, stats), self._weights(model, stats)
        fixed, integrals = m @ each_law(model, stats).L.T, self._integrals(model)

        def sums(block):
            here, features = block
            C = here @ m.T
            pairs = integrals.pairs(features, columns, C)
            return pairs.value @ c, pairs.curvature @ c, pairs.slope @ (c[:, None] * fixed), (pairs.slope * C) @ c

        return sums

    @staticmethod
    def _integrals(model) -> UnitIntegrals:
        integrals = additive_integrals(model)
        assert integrals is not None, "pairs are chosen for sums of units only"
        return integrals

    @staticmethod
    def _block(rows) -> int:
        return max(1, NUMBERS_AT_ONCE // rows[0].shape[0])


class EachLaw(NamedTuple):
    """The law of each unit's field beside the fixed ones: see `Conditional` and `Covariance`."""

    mean: Float[Array, "p classes"]
    A: Float[Array, "p k"]
    outside: Float[Array, " p"]
    variance: Float[Array, " p"]
    cross: Float[Array, "p k"]
    L: Float[Array, "k k"]
    fixed: Float[Array, "k k"]


def each_law(model: Model, stats: Particles) -> EachLaw:
    """The laws of units one by one, since nothing is known of pairs of them."""

    def one(a, M, q):
        law = model.law(Overlaps(a[None], M[None], q[None, None]))
        (A, rest, L), C = law.conditional(), law.blocks
        return EachLaw(law.means.student[0], A[0], jnp.maximum(rest[0, 0], 0.0), C.students[0, 0], C.cross[0], L, C.fixed)

    axes: Any = EachLaw._make([0, 0, 0, 0, 0, None, None])
    return jax.vmap(one, out_axes=axes)(stats.a, stats.M, stats.q)


def units_of(model: Model, stats: Particles) -> Units:
    law = each_law(model, stats)
    return Units(stats.a, law.A, law.outside, law.mean)


def panels(count: int, order: int, reach: float) -> Line:
    """Gauss-Legendre points in an even number of panels, for functions with a kink or a jump where two panels meet."""
    nodes, weights = leggauss(order)
    edges = np.linspace(-reach, reach, count + 1)
    points = ((edges[1:] + edges[:-1])[:, None] + np.diff(edges)[:, None] * nodes).ravel() / 2
    density = np.tile(weights, count) * np.exp(-(points**2) / 2)
    return Line(points, density / density.sum())


def blocks_of(units: PyTree, size: int, mode: str = "constant") -> PyTree:
    """Rows in blocks of one length, at most `size`, the last one filled up with zeros or, in the mode "edge", its last row."""
    rows = jax.tree.leaves(units)[0].shape[0]
    count = -(-rows // size)
    length = -(-rows // count)

    def split(leaf):
        filled = jnp.pad(leaf, [(0, count * length - rows), *((0, 0) for _ in leaf.shape[1:])], mode=mode)
        return filled.reshape(count, length, *leaf.shape[1:])

    return jax.tree.map(split, units)


def map_blocks(f, units: PyTree, size: int) -> PyTree:
    """Apply f to each block of rows, and concatenate the results."""
    rows = jax.tree.leaves(units)[0].shape[0]
    done = jax.lax.map(f, blocks_of(units, size, mode="edge"))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:rows], done)


def choose_particle_expectation(model: Model, outside: int | None = None) -> ParticleExpectation:
    """A grid where all is smooth and one direction is fixed; else pairs where they have integrals; else a grid up to k = 2.

    With a number of dimensions outside the fixed directions always a grid.
    """
    k, activation, readout = model.target.teachers, model.network.activation, model.target.readout
    smooth = activation.smooth and readout.smooth and model.loss.quadratic
    if outside is not None:
        if activation.smooth and k <= max(PANELS):
            return SphereExpectation(smooth, outside)
        raise BadInput(
            f"MeanField(outside=...) needs a smooth activation and at most {max(PANELS)} fixed directions; got {k} and "
            f"{'a smooth' if activation.smooth else 'another'} activation. Leave it out, or use ODE()."
        )
    integrals = additive_integrals(model)
    many = model.network.width > SMOOTH_LINES[2].points.size ** 2
    if smooth and (k == 1 or (k == 2 and (many or integrals is None))):
        return GridExpectation(True)
    if integrals is not None:
        return PairwiseExpectation()
    if activation.smooth and k <= max(PANELS):
        return GridExpectation(False)
    raise BadInput(
        "MeanField needs a squared loss and a teacher with units of the student's kind, or a smooth activation and at most "
        f"{max(PANELS)} fixed directions; got {k} and {'a smooth' if activation.smooth else 'another'} activation. "
        "Use ODE(), at the problem's own width."
    )


class Smoothed(NamedTuple):
    """E s(x), E s'(x) and E[s'(x) x]."""

    value: Float[Array, "..."]
    slope: Float[Array, "..."]
    product: Float[Array, "..."]


def inner_line(activation: Activation) -> Line:
    """The points over which an activation is averaged; a single one where the average is in closed form."""
    if isinstance(activation, Erf):
        return Line(np.zeros(1), np.ones(1))
    if isinstance(activation, Polynomial):
        return gauss_hermite(activation.degree // 2 + 1)
    return trapezoid(NODES, REACH)


@singledispatch
def smoothed(activation: Activation, mean: Float[Array, "..."], variance: Float[Array, "..."]) -> Smoothed:
    """The averages for fields of this mean and variance, by a rule on a line."""
    return averaged(activation, mean, safe_root(variance), inner_line(activation))


def averaged(activation: Activation, mean: Float[Array, "..."], spread: Float[Array, "..."], line: Line) -> Smoothed:
    """The averages for fields that are `mean` and `spread` times the points of a line."""
    points, weights = line
    x = mean[..., None] + spread[..., None] * points
    value, slope = jax.jvp(activation, (x,), (jnp.ones_like(x),))
    return Smoothed(value @ weights, slope @ weights, (slope * x) @ weights)


@smoothed.register
def _(activation: Erf, mean, variance) -> Smoothed:
    """The average of erf(c x) is erf(c mu / sqrt(1 + 2 c^2 v))."""
    c = activation.scale
    inverse = jax.lax.rsqrt(1 + 2 * c**2 * variance)
    y = c * mean * inverse
    slope = 2 * c / np.sqrt(np.pi) * inverse * jnp.exp(-y * y)
    return Smoothed(jax.scipy.special.erf(y), slope, mean * inverse**2 * slope)
