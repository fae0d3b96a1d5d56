"""The expectations that SGD's drift and noise are made of, in closed form or by a rule."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.gaussian import Estimate, GaussHermite, QuadraticSeries, Rule, Sobol
from sgdlimits.problem.activation import is_square
from sgdlimits.problem.frame import Loading, loading
from sgdlimits.problem.loss import SquaredLoss
from sgdlimits.problem.overlaps import Overlaps, add, to_vector

if TYPE_CHECKING:
    from sgdlimits.problem.projection import ProjectionProblem

MOST_GRID_DIMENSIONS = 3


class Moments(NamedTuple):
    r"""Expectations over one sample, with G = dl/d lambda and loss l."""

    loss: Float[Array, ""]
    gradient_fixed: Float[Array, "p k"]
    gradient_field: Float[Array, "p p"]
    gradient_gradient: Float[Array, "p p"]
    gradient_second: Float[Array, " p"]


class MomentRule(eqx.Module):
    """How a projection problem's expectations are computed."""

    @property
    @abc.abstractmethod
    def tolerance(self) -> float:
        """A relative tolerance worth asking of a solver of the drift."""

    @abc.abstractmethod
    def moments(self, problem: ProjectionProblem, stats: Overlaps) -> Moments:
        """The moments of the drift at statistics without a batch axis."""

    @abc.abstractmethod
    def covariance(self, problem: ProjectionProblem, stats: Overlaps) -> Float[Array, "n n"]:
        """The covariance of the one-sample increments, before the sphere's projection."""

    def loss(self, problem: ProjectionProblem, stats: Overlaps) -> Float[Array, ""]:
        """The mean loss at statistics without a batch axis."""
        return self.moments(problem, stats).loss

    @abc.abstractmethod
    def risk(self, problem: ProjectionProblem, a: Float[Array, " p"], F: Loading) -> Float[Array, ""]:
        """The population risk from a factor of Omega, exact to the last digits where the risk is tiny."""


class ClosedForm(MomentRule):
    """Squared activations, quadratic readout, squared loss: matrix formulas at any width, for any second layer.

    The residual is the quadratic form of K = diag(a/p, -R) in the fields (see `sgdlimits.gaussian.closed_form`).
    """

    tolerance = 1e-9

    def moments(self, problem, stats):
        series = self._series(problem, stats, order=2)
        p = stats.a.shape[0]
        slope, second = self._slopes(problem, stats.a)
        once, twice = series.second(1), series.second(2)[:p, :p]
        return Moments(
            loss=problem.loss.weight * series.moment(2),
            gradient_fixed=slope[:, None] * once[:p, p:],
            gradient_field=slope[:, None] * once[:p, :p],
            gradient_gradient=slope[:, None] * twice * slope,
            gradient_second=second * jnp.diagonal(once)[:p],
        )

    def loss(self, problem, stats):
        """E[D^2] = tr(KC)^2 + 2 tr(KCKC) + noise, written out in sums that cost little at every step of many runs."""
        b, R, P = stats.a / stats.a.shape[0], problem.target.readout.quadratic(problem.target.teachers), problem.target.gram
        trace = (b * jnp.diagonal(stats.Q)).sum() - (R * P).sum()
        students = (b[:, None] * b * stats.Q**2).sum()
        both = (b[:, None, None] * stats.M[:, :, None] * R * stats.M[:, None, :]).sum()
        square = students - 2 * both + ((R @ P) * (R @ P).T).sum()
        return problem.loss.weight * (problem.data.sigma**4 * (trace**2 + 2 * square) + problem.target.noise)

    def covariance(self, problem, stats):
        """Each increment is c1 D v_i v_j + c2 D^2 v_i v_j for one pair (i, j): all moments are of order 2, 3, 4 in D."""
        p, k = stats.M.shape
        slope, second = self._slopes(problem, stats.a)
        lr, variance = problem.algorithm.lr, problem.data.sigma**2
        row, column = np.triu_indices(p)
        unit, teacher = np.divmod(np.arange(p * k), k)
        i, j = [unit, row], [p + teacher, column]
        linear = [-lr * slope[unit], -lr * (slope[row] + slope[column])]
        square = [jnp.zeros(p * k), lr**2 * variance * slope[row] * slope[column]]
        if problem.algorithm.trains_second:
            i, j = [*i, np.arange(p)], [*j, np.arange(p)]
            linear, square = [*linear, jnp.full(p, -problem.algorithm.lr_second * second)], [*square, jnp.zeros(p)]
        pairs = np.concatenate(i), np.concatenate(j)
        c1, c2 = jnp.concatenate(linear), jnp.concatenate(square)
        series = self._series(problem, stats, order=4)
        mixed = c1[:, None] * c2
        raw = (
            c1[:, None] * c1 * series.fourth(2, *pairs)
            + (mixed + mixed.T) * series.fourth(3, *pairs)
            + c2[:, None] * c2 * series.fourth(4, *pairs)
        )
        mean = c1 * series.second(1)[pairs] + c2 * series.second(2)[pairs]
        return raw - mean[:, None] * mean

    def risk(self, problem, a, F):
        rows = jnp.concatenate([F.student, F.fixed])
        K = rows.T @ self._form(problem, a) @ rows
        series = QuadraticSeries.of(K, problem.data.sigma**2 * jnp.eye(rows.shape[1]), problem.target.noise, order=2)
        return problem.loss.weight * series.moment(2)

    @staticmethod
    def _form(problem, a):
        p, k = problem.network.width, problem.target.teachers
        K = jnp.zeros((p + k, p + k)).at[:p, :p].set(jnp.diag(a) / p)
        return K.at[p:, p:].set(-problem.target.readout.quadratic(k))

    def _series(self, problem, stats, order):
        omega = jnp.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
        C = problem.data.sigma**2 * omega
        return QuadraticSeries.of(self._form(problem, stats.a), C, problem.target.noise, order)

    @staticmethod
    def _slopes(problem, a):
        """G_j = slope_j D lambda_j and dl/da_j = second D lambda_j^2."""
        p = problem.network.width
        return 4 * problem.loss.weight * a / p, 2 * problem.loss.weight / p


class ByRule(MomentRule):
    """Any activation, readout and loss: averages of the one-sample quantities over the nodes of a `Rule`."""

    rule: Rule

    @property
    def tolerance(self):
        return self.rule.tolerance

    def moments(self, problem, stats):
        F = loading(stats, problem.frame)
        return self._over_classes(problem, lambda c: self.rule.average(self._sample(problem, stats, F, c), self._dim(problem)))

    def estimate(self, problem, stats) -> Estimate:
        """The moments and their error estimates, class by class."""
        F, dim = loading(stats, problem.frame), self._dim(problem)
        error = self._over_classes(problem, lambda c: self.rule.error(self._sample(problem, stats, F, c), dim))
        return Estimate(self.moments(problem, stats), error)

    def covariance(self, problem, stats):
        F, trained = loading(stats, problem.frame), problem.algorithm.trains_second
        column = jax.tree.map(lambda leaf: leaf[..., None], stats)

        def outer(points, c):
            fields, fixed, z = problem.place(F, points, c)
            products = problem.outer(fields, fixed, jnp.broadcast_to(column.a, fields.shape), z, c)
            change = to_vector(add(*problem.changes(column, products)), trained)
            return change, change[:, None] * change[None]

        dim = self._dim(problem)
        mean, raw = self._over_classes(problem, lambda c: self.rule.average(lambda points: outer(points, c), dim))
        return raw - mean[:, None] * mean

    def risk(self, problem, a, F):
        def sample(c):
            def loss(points):
                fields, fixed, z = problem.place(F, points, c)
                return problem.sample_loss(fields, fixed, a[:, None], z, c)

            return loss

        return self._over_classes(problem, lambda c: self.rule.average(sample(c), self._dim(problem)))

    def floor(self, problem) -> Float[Array, ""]:
        """The mean loss of a prediction that is the label without its noise."""

        def sample(c):
            def loss(points):
                _, fixed, z = problem.place(Loading(problem.frame, problem.frame), points, c)
                return problem.loss(problem.target.label(fixed, jnp.zeros_like(z), c), problem.target.label(fixed, z, c))

            return loss

        return self._over_classes(problem, lambda c: self.rule.average(sample(c), problem.target.teachers + 1))

    @staticmethod
    def _dim(problem) -> int:
        return problem.network.width + problem.target.teachers + 1

    @staticmethod
    def _over_classes(problem, f):
        parts = [f(jnp.asarray(c)) for c in range(problem.data.classes)]
        return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(problem.data.weights, leaves, strict=True)), *parts)

    @staticmethod
    def _sample(problem, stats, F, c):
        def sample(points):
            fields, fixed, z = problem.place(F, points, c)
            return problem.outer(fields, fixed, jnp.broadcast_to(stats.a[:, None], fields.shape), z, c)

        return sample


def choose_rule(problem: ProjectionProblem) -> MomentRule:
    """Closed form where there is one; a grid for few, smooth fields; Sobol points otherwise."""
    if has_closed_form(problem):
        return ClosedForm()
    smooth = problem.network.activation.smooth and problem.target.readout.smooth and isinstance(problem.loss, SquaredLoss)
    if smooth and problem.network.width + problem.target.teachers + 1 <= MOST_GRID_DIMENSIONS:
        return ByRule(GaussHermite())
    return ByRule(Sobol())


def has_closed_form(problem: ProjectionProblem) -> bool:
    return (
        is_square(problem.network.activation)
        and isinstance(problem.loss, SquaredLoss)
        and problem.target.readout.quadratic(problem.target.teachers) is not None
        and problem.data.centred
    )
