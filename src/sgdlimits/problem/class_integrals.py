r"""Classification of Gaussian mixtures: expectations over the student fields only, with their kinks treated exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput, check_count, check_number, is_traced
from sgdlimits.gaussian import both_positive, positive_means
from sgdlimits.problem.activation import PiecewiseLinear
from sgdlimits.problem.class_inputs import Inputs, at_means, on_grid, student_root
from sgdlimits.problem.loss import CrossEntropy
from sgdlimits.problem.moments import NUMBERS_AT_ONCE, MomentRule, Moments
from sgdlimits.problem.overlaps import Overlaps, add, to_vector
from sgdlimits.problem.target import ClassLabels

if TYPE_CHECKING:
    pass

ORDERS = {1: (16, 24), 2: (12, 20), 3: (4, 6, 9), 4: (3, 4, 6), 5: (2, 3, 4)}
"""Nodes on each side of a kink, by width: later ones are used where earlier ones disagree."""

WIDE = 4
NUMBERS_A_NODE = 32
MOST_ORDER = 32
AT_KINK = 1e-9


class ClassRule(MomentRule):
    """Labels of classes: the risk comes from the overlaps, since it is nowhere so small that it needs their factor."""

    def applies(self, problem):
        unit, noise = problem.network.activation, problem.target.noise
        return (
            isinstance(problem.target.readout, ClassLabels)
            and isinstance(problem.loss, CrossEntropy)
            and (isinstance(unit, PiecewiseLinear) or unit.smooth)
            and (is_traced(noise) or not noise)
        )

    def risk(self, problem, a, F):
        return self.loss(problem, Overlaps(a, F.student @ F.fixed.T, F.student @ F.student.T))


class ClassIntegrals(ClassRule):
    r"""Labels of classes, cross-entropy, piecewise linear or smooth units: a grid over the student fields, split at the kinks.

    The grid has 2 order points a unit (see `sgdlimits.problem.class_inputs`). Its order climbs a ladder until two rungs agree.
    The fixed fields enter the drift linearly and the covariance quadratically, so that their mean given the students' is exact.
    Where two piecewise linear units almost coincide, the second kink is a steep step in the variable of the first. So the steps
    are integrated in closed form, times dl/df at the mean of the class, and the grid has the rest. That is done for the drift
    only: there the covariance of the increments is accurate to a few per cent of its largest entry.

    Parameters
    ----------
    relative_error : how far two rungs may differ, relative to the largest moment, before the next one is computed
    orders : the ladder, two or more growing orders; None takes one that suits the width
    """

    needs: ClassVar[str] = (
        f"ClassLabels without noise, CrossEntropy, activations that are smooth or piecewise linear, and orders for more than "
        f"{max(ORDERS)} units"
    )
    relative_error: float = eqx.field(static=True)
    orders: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(self, relative_error: float = 1e-6, orders: Sequence[int] | None = None) -> None:
        check_number("relative_error", relative_error, above=0)
        self.relative_error = float(relative_error)
        self.orders = None if orders is None else _check_orders(orders)

    def applies(self, problem):
        return super().applies(problem) and (problem.network.width <= max(ORDERS) or self.orders is not None)

    def tolerance(self, problem):
        return 1e-6

    def accuracy(self, problem):
        return 1e-4

    @property
    def remedy(self):
        return "Give the problem rule=ClassIntegrals(orders=...), with (20, 30) for two units or (4, 6, 9) for four, say."

    def moments(self, problem, stats):
        return self.estimate(problem, stats)[0]

    def error(self, problem, stats):
        return self.estimate(problem, stats)[1]

    def loss(self, problem, stats):
        """The mean loss on one rung: the last for few units, the one before it from four units on."""
        inputs = on_grid(problem, stats, self._one_order(problem))
        return (inputs.weights * inputs.loss(problem, stats.a)).sum()

    def covariance(self, problem, stats):
        """On one rung too. What the students' fields leave open of the fixed ones adds the second term."""
        inputs = on_grid(problem, stats, self._one_order(problem))
        G, second = inputs.gradient(problem, stats.a)
        covariance, size = _increments(problem, stats, inputs, G, second), stats.M.size
        W = student_root(problem, stats)[stats.M.shape[0] :]
        scale = (problem.algorithm.lr_sample * problem.data.sigma) ** 2
        return covariance.at[:size, :size].add(scale * jnp.kron(inputs.mean(G, G), problem.target.gram - W @ W.T))

    def runs_at_once(self, problem):
        """One by one where the ladder's last rung costs much more than the others, so that runs can do without it."""
        p = problem.network.width
        nodes = (2 * self._ladder(problem)[-1]) ** p * problem.data.classes
        return 1 if p > 2 else max(1, NUMBERS_AT_ONCE // (NUMBERS_A_NODE * nodes))

    def estimate(self, problem, stats) -> tuple[Moments, Moments]:
        """The moments, and how far they are from those of the rung below."""
        at, steps = _rung(problem, stats)

        def climb(before, orders):
            here = at(orders[0])
            gap = jax.tree.map(lambda a, b: jnp.abs(a - b), here, before)
            if len(orders) == 1:
                return here, gap
            agree = _largest(gap) <= self.relative_error * _largest(add(here, steps))
            return lax.cond(agree, lambda: (here, gap), lambda: climb(here, orders[1:]))

        first, *others = self._ladder(problem)
        rest, gap = climb(at(first), others)
        return add(rest, steps), gap

    def _ladder(self, problem) -> tuple[int, ...]:
        return ORDERS[problem.network.width] if self.orders is None else self.orders

    def _one_order(self, problem) -> int:
        return self._ladder(problem)[-2 if problem.network.width >= WIDE else -1]


class AtMeans(ClassRule):
    r"""Inputs that are the means of their classes, sigma = 0: one input a class.

    Piecewise linear units then push a field towards zero from both sides with finite speed. Trajectories slide along the kink;
    they are the limit of those of small sigma, and those of a slope that goes from left to right within a width of `smoothing`:
    :math:`s'(x) = \text{left} + (\text{right} - \text{left})\,\Phi(x/\text{smoothing})`. Away from kinks nothing is smoothed.

    Parameters
    ----------
    smoothing : the width of the kink, for the drift of piecewise linear units
    """

    needs: ClassVar[str] = (
        "inputs without variance, ClassLabels without noise, CrossEntropy, and units with a known kink or none"
    )
    smoothing: float = eqx.field(static=True, default=1e-3)

    def __check_init__(self) -> None:
        check_number("smoothing", self.smoothing, above=0)

    def applies(self, problem):
        return super().applies(problem) and not is_traced(problem.data.sigma) and not problem.data.sigma

    def moments(self, problem, stats):
        inputs, unit = at_means(problem, stats.M), problem.network.activation
        G, second = inputs.gradient(problem, stats.a)
        if isinstance(unit, PiecewiseLinear):
            smooth = unit.left + (unit.right - unit.left) * ndtr(inputs.fields / self.smoothing)
            G = problem.network.factor * inputs.slope(problem, stats.a) * stats.a[:, None] * smooth
        return Moments(
            self.loss(problem, stats),
            inputs.mean(G, inputs.fixed),
            inputs.mean(G, inputs.fields),
            inputs.mean(G, G),
            second @ inputs.weights,
        )

    def covariance(self, problem, stats):
        """Exact slopes. A field at the kink brings no noise: what pushes it back is stronger than fluctuations in d."""
        inputs = at_means(problem, stats.M)
        G, second = inputs.gradient(problem, stats.a)
        if isinstance(problem.network.activation, PiecewiseLinear):
            G = jnp.where(jnp.abs(inputs.fields) < AT_KINK, 0.0, G)
        return _increments(problem, stats, inputs, G, second)

    def loss(self, problem, stats):
        inputs = at_means(problem, stats.M)
        return (inputs.weights * inputs.loss(problem, stats.a)).sum()


def _rung(problem, stats):
    """The moments on a grid of any order, less those of the steps there, and those of the steps in closed form."""
    unit, stepped = problem.network.activation, isinstance(problem.network.activation, PiecewiseLinear)
    mean = at_means(problem, stats.M)
    frozen = problem.network.factor * stats.a[:, None] * mean.slope(problem, stats.a)

    def at(order: int) -> Moments:
        inputs = on_grid(problem, stats, order)
        G, second = inputs.gradient(problem, stats.a)
        each = jnp.tile(frozen, inputs.c.size // problem.data.classes)
        step = each * jnp.where(inputs.fields > 0, unit.right, unit.left) if stepped else jnp.zeros_like(G)
        return Moments(
            (inputs.weights * inputs.loss(problem, stats.a)).sum(),
            inputs.mean(G - step, inputs.fixed),
            inputs.mean(G - step, inputs.fields),
            inputs.mean(G, G) - inputs.mean(step, step),
            second @ inputs.weights,
        )

    steps = _steps(problem, stats, frozen, mean) if stepped else jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: at(1)))
    return at, steps


def _steps(problem, stats, frozen: Float[Array, "p classes"], mean: Inputs) -> Moments:
    """The moments of the steps of piecewise linear units, with dl/df frozen at the mean of each class."""
    unit, variance = problem.network.activation, problem.data.sigma**2
    left, step = unit.left, unit.right - unit.left
    Q, M = variance * stats.Q, variance * stats.M

    def of_class(weight, factor, fields, fixed):
        both, spread = both_positive(fields, Q), jnp.diagonal(Q)
        single = jnp.diagonal(both)
        first = lambda others, cross: left * others + step * positive_means(fields, spread, others, cross)  # noqa: E731
        pair = left**2 + left * step * (single[:, None] + single) + step**2 * both
        rows = weight * factor[:, None]
        none = jnp.zeros(())
        return Moments(none, rows * first(fixed, M), rows * first(fields, Q), rows * factor * pair, jnp.zeros_like(factor))

    parts = jax.vmap(of_class, in_axes=(0, 1, 1, 1))(mean.weights, frozen, mean.fields, mean.fixed)
    return jax.tree.map(lambda leaf: leaf.sum(0), parts)


def _increments(problem, stats, inputs: Inputs, G, second) -> Float[Array, "n n"]:
    """The covariance of the one-sample increments over the inputs."""
    products = Moments(jnp.zeros(()), G[:, None] * inputs.fixed, G[:, None] * inputs.fields, G[:, None] * G, second)
    column = jax.tree.map(lambda leaf: leaf[..., None], stats)
    change = to_vector(add(*problem.changes(column, products)), problem.algorithm.trains_second)
    centred = change - (change @ inputs.weights)[:, None]
    return inputs.mean(centred, centred)


def _largest(moments: Moments) -> Float[Array, ""]:
    return jnp.stack([jnp.abs(leaf).max() for leaf in moments]).max()


def _check_orders(orders: Sequence[int]) -> tuple[int, ...]:
    whole = tuple(check_count("orders", order) for order in orders)
    if len(whole) < 2 or sorted(set(whole)) != list(whole) or whole[-1] > MOST_ORDER:
        raise BadInput(f"orders must be two or more growing numbers up to {MOST_ORDER}; got {whole}. Give, say, (8, 12, 18).")
    return whole
