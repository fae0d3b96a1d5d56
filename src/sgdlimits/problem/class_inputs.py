r"""Inputs of Gaussian classes on a grid over the student fields, with the kinks of the units between the points.

Given the class c the fields have means :math:`Mb^{(c)}, Pb^{(c)}` and covariance :math:`\sigma^2\Omega`. With a triangular
factor of :math:`\Omega` whose first rows are the students',

.. math:: \lambda_i = \bar\lambda_i + \sigma\sum_{l\le i} L_{il} z_l, \qquad \lambda^* = \bar\lambda^* + \sigma(Wz + C\zeta).

Where labels are a matter of the class, the loss depends on z alone. Unit i has its kink where its field is zero, at
:math:`z_i = -(\bar\lambda_i + \sigma\sum_{l<i}L_{il}z_l)/(\sigma L_{ii})`. The line of :math:`z_i` is split there, one unit
after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sgdlimits.gaussian import gauss_hermite, split_line
from sgdlimits.problem.activation import PiecewiseLinear
from sgdlimits.problem.frame import cholesky_columns
from sgdlimits.problem.overlaps import Overlaps

if TYPE_CHECKING:
    from sgdlimits.problem.projection import ProjectionProblem

FAR = 1e3


class Inputs(NamedTuple):
    """Inputs with their probabilities, which sum to 1, and their classes `c`, which take turns."""

    fields: Float[Array, "p n"]
    fixed: Float[Array, "k n"]
    weights: Float[Array, " n"]
    c: Int[Array, " n"]

    def loss(self, problem: ProjectionProblem, a: Float[Array, " p"]) -> Float[Array, " n"]:
        """The loss of each input."""
        return problem.sample_loss(self.fields, self.fixed, a[:, None], 0.0, self.c)

    def slope(self, problem: ProjectionProblem, a: Float[Array, " p"]) -> Float[Array, " n"]:
        """dl/df of each input."""
        label = problem.target.label(self.fixed, jnp.zeros_like(self.weights), self.c)
        return jax.grad(lambda f: problem.loss(f, label).sum())(problem.network(self.fields, a[:, None]))

    def gradient(self, problem: ProjectionProblem, a: Float[Array, " p"]) -> tuple[Float[Array, "p n"], ...]:
        """(G, dl/da) of each input."""
        a = jnp.broadcast_to(a[:, None], self.fields.shape)
        return problem.gradient(self.fields, self.fixed, a, 0.0, self.c)

    def mean(self, rows: Float[Array, "i n"], columns: Float[Array, "j n"]) -> Float[Array, "i j"]:
        """The mean over the inputs of each product."""
        return (self.weights * rows) @ columns.T


def at_means(problem: ProjectionProblem, M: Float[Array, "p k"]) -> Inputs:
    """One input a class, its mean."""
    data = problem.data
    return Inputs(M @ data.means.T, problem.target.gram @ data.means.T, data.weights, jnp.arange(data.classes))


def on_grid(problem: ProjectionProblem, stats: Overlaps, order: int) -> Inputs:
    """Twice `order` points a unit. The fixed fields are means given those of the students.

    Where a unit is flat on the left, its last line needs two points there, since everything is at most quadratic.
    """
    p, unit, centre = problem.network.width, problem.network.activation, at_means(problem, stats.M)
    root = problem.data.sigma * student_root(problem, stats)
    rows, weights = jnp.concatenate([centre.fields, centre.fixed]), centre.weights
    for i in range(p):
        if isinstance(unit, PiecewiseLinear):
            below = min(order, 2) if unit.left == 0 and i == p - 1 else order
            points, more = split_line(_kink(rows[i], root[i, i]), order, below)
        else:
            points, more = (jnp.asarray(column)[:, None] for column in gauss_hermite(2 * order))
        rows = (rows[:, None] + root[:, i, None, None] * points).reshape(len(rows), -1)
        weights = (more * weights).ravel()
    return Inputs(rows[:p], rows[p:], weights, jnp.tile(centre.c, weights.size // centre.c.size))


def student_root(problem: ProjectionProblem, stats: Overlaps) -> Float[Array, "p+k p"]:
    """Rows L of the students and W of the fixed directions, safe where Omega is singular."""
    omega = jnp.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
    return cholesky_columns(omega[..., None])[: stats.M.shape[0], :, 0].T


def _kink(here: Float[Array, " n"], scale: Float[Array, ""]) -> Float[Array, " n"]:
    """Where here + scale z crosses zero; far from all z where the field does not move."""
    moves = scale > 0
    return jnp.where(moves, -here / jnp.where(moves, scale, 1.0), jnp.where(here > 0, -FAR, FAR))
