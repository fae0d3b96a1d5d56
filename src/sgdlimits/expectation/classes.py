r"""Classification of Gaussian mixtures: expectations over the student fields only, with their kinks treated exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from sgdlimits.checks import each_of
from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.base import Expectation, covariance_over, linearise_increment
from sgdlimits.expectation.class_inputs import ClassInputs, at_means, kinked_class_hessian, on_grid, smooth_moments
from sgdlimits.expectation.gaussian import GaussHermite, both_positive, positive_means
from sgdlimits.expectation.slopes import (
    FrameNodes,
    Slopes,
    checked_by_stein,
    differentiated,
    from_products,
    pad_units,
    slopes_at_nodes,
)
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add

ORDERS = {1: (16, 24), 2: (12, 20), 3: (4, 6, 9), 4: (3, 4, 6), 5: (2, 3, 4)}
"""Nodes on each side of a kink, by width: later ones are used where earlier ones disagree."""

IN_WEDGES = 2
"""Up to this width the grid has points of its own between any two kinks."""
WIDE = 4
KINK = 1e-6
NUMBERS_AT_ONCE = 2**23
NUMBERS_A_NODE = 32
MOST_ORDER = 32
AT_KINK = 1e-9


class ClassRule(Expectation):
    """Labels of classes: the risk comes from the overlaps, since it is nowhere so small that it needs their factor.

    Label noise enters the cross-entropy linearly, so that its part of every moment is a product of slopes of the network.
    """

    factored = False

    def supports(self, model):
        unit = model.network.activation
        labels, loss = isinstance(model.target.readout, ClassLabels), isinstance(model.loss, CrossEntropy)
        return model.network.plain and labels and loss and (unit.kinked or unit.smooth)

    def risk_of_factor(self, model, a, law):
        return self.risk(model, a, law)

    def gradient(self, model, a, S):
        """That of the drift, which smooths what a class without noise does at a kink."""
        kinked = model.network.activation.kinked
        return from_products(self.moments, model, a, S) if kinked else self.slopes(model, a, S).gradient


@checked
class ClassIntegrals(ClassRule):
    r"""Labels of classes, cross-entropy, piecewise linear or smooth units: a grid over the student fields, split at the kinks.

    The grid has 2 order points a unit (see `class_inputs`). Its order climbs a ladder until two rungs agree. Smooth units have
    one by the symmetric root of Q, and are differentiated as expectations (see `field_means`). With kinks, the fixed fields
    enter the drift linearly and the covariance quadratically, so that their mean given the students' is exact.
    Two piecewise linear units have points in each of the four wedges between their kinks, however thin these are. From three
    units on, where two almost coincide, the second kink is a steep step in the variable of the first. So the steps are
    integrated in closed form, times dl/df at the mean of the class, and the grid has the rest: differences between such units
    come out too small. That is done for the drift only: there the covariance of the increments is accurate to a few per cent
    of its largest entry.

    Parameters
    ----------
    relative_error : how far two rungs may differ, relative to the largest moment, before the next one is computed
    orders : the ladder, two or more growing orders; None takes one that suits the width
    """

    needs: ClassVar[str] = (
        f"ClassLabels, CrossEntropy, activations that are smooth or piecewise linear, and orders for more than "
        f"{max(ORDERS)} units"
    )
    relative_error: float = eqx.field(static=True)
    orders: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(self, relative_error: Positive = 1e-6, orders: Sequence[int] | None = None) -> None:
        self.relative_error = float(relative_error)
        self.orders = None if orders is None else _check_orders(orders)

    def supports(self, model):
        few = model.network.width <= max(ORDERS) or self.orders is not None
        return super().supports(model) and not model.on_means and few

    def tolerance(self, model):
        return 1e-6

    def accuracy(self, model):
        return 1e-4

    @property
    def remedy(self):
        return (
            "Give the problem expectation=ClassIntegrals(orders=...), with (20, 30) for two units or (4, 6, 9) for four, say."
        )

    def moments(self, model, a, law):
        return self.estimate(model, a, law)[0]

    def error(self, model, a, law):
        return self.estimate(model, a, law)[1]

    def risk(self, model, a, law):
        """The mean loss on one rung: the last for few units, the one before it from four units on."""
        if not model.network.activation.kinked:
            return smooth_moments(model, a, law, self._one_order(model)).loss
        inputs = on_grid(model, law, self._one_order(model))
        return (inputs.weights * inputs.loss(model, a)).sum()

    def covariance(self, model, a, law, increment):
        """On one rung too. What the students' fields leave open of the fixed ones adds the second term."""
        inputs = on_grid(model, law, self._one_order(model)).with_noise()
        products = inputs.products(*inputs.gradient(model, a))
        p, k = law.shape
        L = linearise_increment(increment, a, law.shape).gradient_fixed.reshape(-1, p * k)
        W = law.triangular()[p:]
        open_ = jnp.kron((products.gradient_gradient * inputs.weights).sum(-1), law.blocks.fixed - W @ W.T)
        return covariance_over(increment, products, inputs.weights) + L @ open_ @ L.T

    def slopes(self, model, a, S):
        n, accuracy = S.shape[1], self.accuracy(model)
        if not model.network.activation.kinked:
            nodes = FrameNodes.of_units(a, pad_units(model, S), GaussHermite(2 * self._ladder(model)[-1]))
            return slopes_at_nodes(model, S, nodes, accuracy, self.remedy)
        span, outside = kinked_class_hessian(model, a, pad_units(model, S), self._ladder(model)[-1])
        slopes = Slopes(self.gradient(model, a, S), span[:, :n, :, :n], outside)
        return checked_by_stein(model, S, slopes, accuracy, self.remedy)

    def runs_at_once(self, model):
        """One by one where the ladder's last rung costs much more than the others, so that runs can do without it."""
        p = model.network.width
        nodes = (2 * self._ladder(model)[-1]) ** p * model.coordinates.classes
        return 1 if p > 2 else max(1, NUMBERS_AT_ONCE // (NUMBERS_A_NODE * nodes))

    def estimate(self, model, a, law) -> tuple[Moments, Moments]:
        """The moments, and how far they are from those of the rung below."""
        kinked, few = model.network.activation.kinked, model.network.width <= IN_WEDGES
        if kinked and not few:
            at, steps = _rung(model, a, law)
        else:
            at = lambda order: (_on_pieces if kinked else smooth_moments)(model, a, law, order)
            steps = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: at(1)))

        def climb(before, orders):
            here = at(orders[0])
            gap = jax.tree.map(lambda a, b: jnp.abs(a - b), here, before)
            if len(orders) == 1:
                return here, gap
            agree = _largest(gap) <= self.relative_error * _largest(add(here, steps))
            return lax.cond(agree, lambda: (here, gap), lambda: climb(here, orders[1:]))

        first, *others = self._ladder(model)
        rest, gap = climb(at(first), others)
        return add(rest, steps), gap

    def _ladder(self, model) -> tuple[int, ...]:
        return ORDERS[model.network.width] if self.orders is None else self.orders

    def _one_order(self, model) -> int:
        return self._ladder(model)[-2 if model.network.width >= WIDE else -1]


@checked
class AtMeans(ClassRule):
    r"""Inputs that are the means of their classes, sigma = 0: one input a class.

    Piecewise linear units then push a field towards zero from both sides with finite speed. Trajectories slide along the kink;
    they are the limit of those of small sigma, and those of a slope that goes from left to right within a width of `smoothing`:
    :math:`s'(x) = \text{left} + (\text{right} - \text{left})\,\Phi(x/\text{smoothing})`. Away from kinks nothing is smoothed.

    Parameters
    ----------
    smoothing : the width of the kink, for the drift of piecewise linear units; None keeps it sharp
    """

    needs: ClassVar[str] = "inputs without variance, ClassLabels, CrossEntropy, and units with a known kink or none"
    smoothing: Positive | None = eqx.field(static=True, default=1e-3)

    def supports(self, model):
        return super().supports(model) and model.on_means

    def without_smoothing(self):
        return AtMeans(smoothing=None)

    def moments(self, model, a, law):
        inputs, unit = at_means(law), model.network.activation
        G, second = inputs.gradient(model, a)
        slopes = inputs.unit_slopes(model, a)
        if unit.kinked and self.smoothing is not None:
            smooth = unit.left + (unit.right - unit.left) * ndtr(inputs.fields / self.smoothing)
            slopes = model.network.factor * a[:, None] * smooth
            G = inputs.slope(model, a) * slopes
        return Moments(
            self.risk(model, a, law),
            inputs.mean(G, inputs.fixed),
            inputs.mean(G, inputs.fields),
            inputs.mean(G, G) + model.target.noise * inputs.mean(slopes, slopes),
            second @ inputs.weights,
        )

    def covariance(self, model, a, law, increment):
        """Exact slopes. A field at the kink brings no noise: what pushes it back is stronger than fluctuations in d."""
        inputs = at_means(law).with_noise()
        G, second = inputs.gradient(model, a)
        if model.network.activation.kinked:
            G = jnp.where(jnp.abs(inputs.fields) < AT_KINK, 0.0, G)
        return covariance_over(increment, inputs.products(G, second), inputs.weights)

    def slopes(self, model, a, S):
        if not model.network.activation.kinked:
            return differentiated(self.risk, model, a, S)
        fields = S[:, : model.teachers] @ np.asarray(model.coordinates.means.fixed)
        if (np.abs(fields) < KINK).any():
            raise BadInput("there is no Hessian where the mean of a class is at the kink of a unit. Give a finite snr.")
        return differentiated(self.risk, model, a, S)._replace(gradient=self.gradient(model, a, S))

    def risk(self, model, a, law):
        inputs = at_means(law)
        return (inputs.weights * inputs.loss(model, a)).sum()


def _on_pieces(model, a, law, order: int) -> Moments:
    """The moments of at most two units with a kink, on a grid that no kink crosses."""
    inputs = on_grid(model, law, order)
    G, second = inputs.gradient(model, a)
    slopes = inputs.unit_slopes(model, a)
    return Moments(
        (inputs.weights * inputs.loss(model, a)).sum(),
        inputs.mean(G, inputs.fixed),
        inputs.mean(G, inputs.fields),
        inputs.mean(G, G) + model.target.noise * inputs.mean(slopes, slopes),
        second @ inputs.weights,
    )


def _rung(model, a, law):
    """The moments of units with a kink on a grid of any order, less those of the steps there, and those of the steps."""
    unit, mean = model.network.activation, at_means(law)
    frozen = model.network.factor * a[:, None] * mean.slope(model, a)

    def at(order: int) -> Moments:
        inputs = on_grid(model, law, order)
        G, second = inputs.gradient(model, a)
        slopes = inputs.unit_slopes(model, a)
        each = jnp.tile(frozen, inputs.c.size // law.classes)
        step = each * jnp.where(inputs.fields > 0, unit.right, unit.left)
        return Moments(
            (inputs.weights * inputs.loss(model, a)).sum(),
            inputs.mean(G - step, inputs.fixed),
            inputs.mean(G - step, inputs.fields),
            inputs.mean(G, G) - inputs.mean(step, step) + model.target.noise * inputs.mean(slopes, slopes),
            second @ inputs.weights,
        )

    return at, _steps(model, law, frozen, mean)


def _steps(model, law, frozen: Float[Array, "p classes"], mean: ClassInputs) -> Moments:
    """The moments of the steps of piecewise linear units, with dl/df frozen at the mean of each class."""
    unit, C = model.network.activation, law.blocks
    left, step = unit.left, unit.right - unit.left

    def of_class(weight, factor, fields, fixed):
        both, spread = both_positive(fields, C.students), jnp.diagonal(C.students)
        single = jnp.diagonal(both)
        first = lambda others, cross: left * others + step * positive_means(fields, spread, others, cross)
        pair = left**2 + left * step * (single[:, None] + single) + step**2 * both
        rows = weight * factor[:, None]
        none = jnp.zeros(())
        return Moments(
            none, rows * first(fixed, C.cross), rows * first(fields, C.students), rows * factor * pair, jnp.zeros_like(factor)
        )

    parts = jax.vmap(of_class, in_axes=(0, 1, 1, 1))(mean.weights, frozen, mean.fields, mean.fixed)
    return jax.tree.map(lambda leaf: leaf.sum(0), parts)


def _largest(moments: Moments) -> Float[Array, ""]:
    return jnp.stack([jnp.abs(leaf).max() for leaf in moments]).max()


def _check_orders(orders: Sequence[int]) -> tuple[int, ...]:
    whole = each_of(check_count)("orders", orders)
    if len(whole) < 2 or sorted(set(whole)) != list(whole) or whole[-1] > MOST_ORDER:
        raise BadInput(f"orders must be two or more growing numbers up to {MOST_ORDER}; got {whole}. Give, say, (8, 12, 18).")
    return whole
