"""The expectations that SGD's drift and noise are made of, in closed form or by a rule."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import check_count
from sgdlimits.gaussian import (
    ErfIntegrals,
    GaussHermite,
    Orders,
    PiecewiseLinearIntegrals,
    QuadraticSeries,
    Rule,
    SmoothIntegrals,
    Sobol,
    UnitIntegrals,
    polynomial_orders,
)
from sgdlimits.gaussian.units import PAIRS_AT_ONCE
from sgdlimits.problem.activation import Erf, PiecewiseLinear, Polynomial, is_square
from sgdlimits.problem.frame import Loading, loading
from sgdlimits.problem.loss import SquaredLoss
from sgdlimits.problem.overlaps import Overlaps, add, to_vector
from sgdlimits.problem.target import CommitteeReadout

if TYPE_CHECKING:
    from sgdlimits.problem.projection import ProjectionProblem

FINE_GRID = 14
MOST_COVARIANCE_NODES = 2**20
RUNS_BY_RULE = 64
NUMBERS_AT_ONCE = 2**23


class Moments(NamedTuple):
    r"""Expectations over one sample, with G = dl/d lambda and loss l."""

    loss: Float[Array, ""]
    gradient_fixed: Float[Array, "p k"]
    gradient_field: Float[Array, "p p"]
    gradient_gradient: Float[Array, "p p"]
    gradient_second: Float[Array, " p"]


class MomentRule(eqx.Module):
    """How a projection problem's expectations are computed. `needs` says of which problems."""

    needs: ClassVar[str] = ""

    def applies(self, problem: ProjectionProblem) -> bool:
        """Whether the problem is of the kind that this rule is made for."""
        return True

    def tolerance(self, problem: ProjectionProblem) -> float:
        """A relative tolerance worth asking of a solver of the drift."""
        return 1e-9

    def accuracy(self, problem: ProjectionProblem) -> float | None:
        """The relative accuracy that the moments should have unless another is asked for; None in closed form."""
        return None

    @property
    def remedy(self) -> str:
        """What makes the moments more accurate."""
        return ""

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
        """The population risk from a factor of Omega, as exact as can be where the risk is tiny."""

    def error(self, problem: ProjectionProblem, stats: Overlaps) -> Moments:
        """Estimates of the errors of `moments`, zero in closed form."""
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: self.moments(problem, stats)))

    def estimate(self, problem: ProjectionProblem, stats: Overlaps) -> tuple[Moments, Moments]:
        """The moments and estimates of their errors."""
        return self.moments(problem, stats), self.error(problem, stats)

    def runs_at_once(self, problem: ProjectionProblem) -> int | None:
        """How many runs' moments to compute at once, where memory is a question."""
        return None


class ClosedForm(MomentRule):
    """Squared activations, quadratic readout, squared loss: matrix formulas at any width, for any second layer.

    The residual is the quadratic form of K = diag(factor a, -R) in the fields (see `sgdlimits.gaussian.closed_form`).
    """

    needs: ClassVar[str] = "squared activations, a quadratic readout, a squared loss and centred data"

    def applies(self, problem):
        return (
            is_square(problem.network.activation)
            and isinstance(problem.loss, SquaredLoss)
            and problem.target.readout.quadratic(problem.target.teachers) is not None
            and problem.data.centred
        )

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
        b, target = problem.network.factor * stats.a, problem.target
        R, P = target.readout.quadratic(target.teachers), target.gram
        trace = (b * jnp.diagonal(stats.Q)).sum() - (R * P).sum()
        students = (b[:, None] * b * stats.Q**2).sum()
        both = (b[:, None, None] * stats.M[:, :, None] * R * stats.M[:, None, :]).sum()
        square = students - 2 * both + ((R @ P) * (R @ P).T).sum()
        return problem.loss.weight * (problem.data.sigma**4 * (trace**2 + 2 * square) + target.noise)

    def covariance(self, problem, stats):
        """Each increment is c1 D v_i v_j + c2 D^2 v_i v_j for one pair (i, j): all moments are of order 2, 3, 4 in D."""
        p, k = stats.M.shape
        slope, second = self._slopes(problem, stats.a)
        lr, variance = problem.algorithm.lr_sample, problem.data.sigma**2
        row, column = np.triu_indices(p)
        unit, teacher = np.divmod(np.arange(p * k), k)
        i, j = [unit, row], [p + teacher, column]
        linear = [-lr * slope[unit], -lr * (slope[row] + slope[column])]
        square = [jnp.zeros(p * k), lr**2 * variance * slope[row] * slope[column]]
        if problem.algorithm.trains_second:
            i, j = [*i, np.arange(p)], [*j, np.arange(p)]
            linear, square = [*linear, jnp.full(p, -problem.algorithm.lr_second_sample * second)], [*square, jnp.zeros(p)]
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
        K = jnp.zeros((p + k, p + k)).at[:p, :p].set(problem.network.factor * jnp.diag(a))
        return K.at[p:, p:].set(-problem.target.readout.quadratic(k))

    def _series(self, problem, stats, order):
        omega = jnp.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
        C = problem.data.sigma**2 * omega
        return QuadraticSeries.of(self._form(problem, stats.a), C, problem.target.noise, order)

    @staticmethod
    def _slopes(problem, a):
        """G_j = slope_j D lambda_j and dl/da_j = second D lambda_j^2."""
        factor = problem.network.factor
        return 4 * problem.loss.weight * factor * a, 2 * problem.loss.weight * factor


class ByRule(MomentRule):
    """Any activation, readout and loss: averages of the one-sample quantities over the nodes of a `Rule`."""

    rule: Rule

    def tolerance(self, problem):
        return self.rule.tolerance

    def accuracy(self, problem):
        return self.rule.accuracy

    @property
    def remedy(self):
        return self.rule.remedy

    def moments(self, problem, stats):
        F = loading(stats, problem.frame)
        return self._over_classes(problem, lambda c: self.rule.average(self._sample(problem, stats, F, c), self._dim(problem)))

    def error(self, problem, stats):
        F, dim = loading(stats, problem.frame), self._dim(problem)
        return self._over_classes(problem, lambda c: self.rule.error(self._sample(problem, stats, F, c), dim))

    def runs_at_once(self, problem):
        return RUNS_BY_RULE

    def covariance(self, problem, stats):
        F, trained = loading(stats, problem.frame), problem.algorithm.trains_second
        column = jax.tree.map(lambda leaf: leaf[..., None], stats)

        nodes = self.rule.nodes(self._dim(problem))

        def moments(c):
            fields, fixed, z = problem.place(F, nodes.points, c)
            products = problem.outer(fields, fixed, jnp.broadcast_to(column.a, fields.shape), z, c)
            change = to_vector(add(*problem.changes(column, products)), trained)
            weighted = change * nodes.weights
            return weighted.sum(1), weighted @ change.T

        mean, raw = self._over_classes(problem, moments)
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


class FieldIntegrals(MomentRule):
    """Squared loss and a readout that is a sum over units: integrals over two and four fields, not over all of them.

    In closed form for erf units and for piecewise linear ones (one integral over an angle is left in the corrector), exactly
    for polynomials, and by quadrature for other smooth functions (see `sgdlimits.gaussian`).

    Parameters
    ----------
    order : nodes a dimension where there is no closed form; more nodes make smaller errors
    """

    needs: ClassVar[str] = (
        "a squared loss, a CommitteeReadout, centred data, and activations that are smooth or piecewise linear"
    )
    order: int = eqx.field(static=True, default=24)

    def __check_init__(self) -> None:
        check_count("order", self.order, at_least=4)

    def applies(self, problem):
        return additive_integrals(problem, self.order) is not None

    def tolerance(self, problem):
        return 1e-9 if self._integrals(problem).exact else 1e-7

    def accuracy(self, problem):
        return None if self._integrals(problem).exact else 1e-3

    @property
    def remedy(self):
        return f"Give the problem rule=FieldIntegrals(order={2 * self.order})."

    def moments(self, problem, stats):
        return self._moments(problem, stats, self._integrals(problem))

    def error(self, problem, stats):
        integrals = self._integrals(problem)
        fine, rough = (self._moments(problem, stats, units) for units in (integrals, integrals.coarser()))
        return jax.tree.map(lambda a, b: jnp.abs(a - b), fine, rough)

    def loss(self, problem, stats):
        return self._loss(problem, self._coefficients(problem, stats.a), self._fields(problem, stats))

    def risk(self, problem, a, F):
        rows = jnp.concatenate([F.student, F.fixed])
        noise = problem.loss.weight * problem.target.noise
        return jnp.maximum(self._loss(problem, self._coefficients(problem, a), problem.data.sigma**2 * rows @ rows.T), noise)

    def covariance(self, problem, stats):
        return ByRule(covariance_rule(problem)).covariance(problem, stats)

    def runs_at_once(self, problem):
        p, n = problem.network.width, problem.network.width + problem.target.teachers
        grid = self._integrals(problem).numbers_a_pair
        return max(1, NUMBERS_AT_ONCE // (min(p * (p + 1) // 2, PAIRS_AT_ONCE) * n * max(n, grid)))

    def _moments(self, problem, stats, integrals) -> Moments:
        p, weight, factor = problem.network.width, problem.loss.weight, problem.network.factor
        C, c = self._fields(problem, stats), self._coefficients(problem, stats.a)
        value, slope, curvature = integrals.all_pairs(C)
        residual = value @ c
        cross = (curvature[:p] @ c)[:, None] * C[:p] + (slope[:p] * c) @ C
        spread = integrals.corrector(C, c) + problem.target.noise * slope[:p, :p]
        first = 2 * weight * factor * stats.a[:, None]
        return Moments(
            loss=weight * (c @ residual + problem.target.noise),
            gradient_fixed=first * cross[:, p:],
            gradient_field=first * cross[:, :p],
            gradient_gradient=first * first.T * spread,
            gradient_second=2 * weight * factor * residual[:p],
        )

    def _loss(self, problem, c, C) -> Float[Array, ""]:
        return problem.loss.weight * (c @ self._integrals(problem).all_pairs(C).value @ c + problem.target.noise)

    @staticmethod
    def _fields(problem, stats) -> Float[Array, "n n"]:
        return problem.data.sigma**2 * jnp.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])

    @staticmethod
    def _coefficients(problem, a) -> Float[Array, " n"]:
        teachers = problem.target.readout.weights(problem.target.teachers)
        return jnp.concatenate([problem.network.factor * a, -teachers])

    def _integrals(self, problem) -> UnitIntegrals:
        integrals = additive_integrals(problem, self.order)
        assert integrals is not None, "checked when the rule was chosen"
        return integrals


def additive_integrals(problem: ProjectionProblem, order: int = 24) -> UnitIntegrals | None:
    """The integrals of a problem whose residual is a sum of units with squared loss; None for other problems."""
    if not (
        isinstance(problem.loss, SquaredLoss) and isinstance(problem.target.readout, CommitteeReadout) and problem.data.centred
    ):
        return None
    student, teacher = problem.network.activation, problem.target.readout.activation
    p, k = problem.network.width, problem.target.teachers
    each = lambda of: jnp.concatenate([jnp.full(p, of(student)), jnp.full(k, of(teacher))])  # noqa: E731
    if isinstance(student, Erf) and isinstance(teacher, Erf):
        return ErfIntegrals(students=p, gains=each(lambda unit: np.sqrt(2) * unit.scale))
    if isinstance(student, PiecewiseLinear) and isinstance(teacher, PiecewiseLinear):
        odd, even = each(lambda unit: (unit.right + unit.left) / 2), each(lambda unit: (unit.right - unit.left) / 2)
        return PiecewiseLinearIntegrals(students=p, odd=odd, even=even)
    if isinstance(student, Polynomial) and isinstance(teacher, Polynomial):
        orders = polynomial_orders(student.degree, teacher.degree)
        return SmoothIntegrals(p, student, teacher, orders, polynomials=True)
    return SmoothIntegrals(p, student, teacher, Orders.of(order)) if student.smooth and teacher.smooth else None


def covariance_rule(problem: ProjectionProblem) -> Rule:
    """A rule over all fields for the covariance of the increments: a grid where it is fine enough, Sobol points otherwise."""
    assert isinstance(problem.target.readout, CommitteeReadout), "checked when the rule was chosen"
    student, teacher = problem.network.activation, problem.target.readout.activation
    dim = problem.network.width + problem.target.teachers + 1
    finest = int(MOST_COVARIANCE_NODES ** (1 / dim))
    enough = FINE_GRID
    if isinstance(student, Polynomial) and isinstance(teacher, Polynomial):
        enough = 2 * max(student.degree, teacher.degree) + 2 * student.degree - 1
    if student.smooth and teacher.smooth and finest >= enough:
        return GaussHermite(min(finest, max(enough, 32)))
    return Sobol(log2_points=14)
