r"""Expectations for classification of Gaussian mixtures: integrals over the student fields only, with exact kinks."""

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

from sgdlimits.checks import check_each
from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.base import Expectation, increment_covariance, linearise_increment
from sgdlimits.expectation.class_inputs import (
    ClassInputs,
    class_mean_inputs,
    compute_kinked_class_hessian,
    grid_inputs,
    smooth_class_moments,
)
from sgdlimits.expectation.gaussian import GaussHermite, means_where_positive, probability_both_positive
from sgdlimits.expectation.slopes import (
    FrameNodes,
    RiskDerivatives,
    autodiff_slopes,
    check_stein,
    gradient_from_moments,
    pad_units,
    slopes_at_nodes,
)
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add

GRID_ORDERS = {1: (16, 24), 2: (12, 20), 3: (4, 6, 9), 4: (3, 4, 6), 5: (2, 3, 4)}
"""Numbers of nodes on each side of a kink, by width of the network; a later entry is used if the two before it disagree."""

MAX_WEDGE_WIDTH = 2
"""Largest width at which each wedge between two kinks has nodes of its own."""
# From this width on the last order costs several times the one before it, so risk and covariance use the latter.
MIN_COSTLY_WIDTH = 4
MIN_FIELD_FOR_HESSIAN = 1e-6
MAX_FLOATS_AT_ONCE = 2**23
FLOATS_PER_NODE = 32
MAX_ORDER = 32
KINK_TOLERANCE = 1e-9
"""Size up to which a field counts as being at the kink of its unit, for inputs without variance."""


class ClassExpectation(Expectation):
    """Base class of the methods to compute expectations for class labels with cross-entropy.

    The risk is computed from the overlaps, not from a factor of them, because it never becomes small. Label noise enters the
    cross-entropy linearly, so its contribution to every moment is a product of slopes of the network.
    """

    risk_uses_factor = False

    def supports(self, model):
        unit = model.network.activation
        classes = isinstance(model.target.readout, ClassLabels) and isinstance(model.loss, CrossEntropy)
        return model.network.plain and classes and (unit.kinked or unit.smooth)

    def risk_of_factor(self, model, a, law):
        return self.risk(model, a, law)

    def gradient(self, model, a, S):
        """Compute the gradient of the risk in the weights of the units, with any smoothing of kinks that the drift has.

        The drift has smoothed kinks if the inputs have no variance.
        """
        kinked = model.network.activation.kinked
        return gradient_from_moments(self.moments, model, a, S) if kinked else self.slopes(model, a, S).gradient


@checked
class ClassIntegrals(ClassExpectation):
    """Expectations for class labels and cross-entropy, on a grid over the student fields that is split at kinks.

    The grid has 2 order nodes per unit (see `class_inputs`). The order increases until two successive results agree. For smooth
    units the grid uses the symmetric root of the units' Gram matrix, and moments are differentiated as expectations (see
    `field_means`). With kinks, the fixed fields enter the drift linearly and the covariance quadratically, so their conditional
    mean is exact. Two piecewise linear units have nodes in each of the four wedges between their kinks, however thin these are.
    From three units on, if two almost coincide, the second kink is a steep step in the variable of the first. The steps are
    therefore integrated in closed form, times the derivative of the loss in the network output at the mean of the class, and
    the grid integrates the remainder: differences between such units come out too small. This is done for the drift only: the
    covariance of the increments is then accurate to a few per cent of its largest entry.

    Parameters
    ----------
    relative_error : largest difference of two successive orders, relative to the largest moment, that is accepted
    orders : two or more increasing orders; None for the default at the width of the network
    """

    supported_models: ClassVar[str] = (
        f"ClassLabels, CrossEntropy, activations that are smooth or piecewise linear, and orders for more than "
        f"{max(GRID_ORDERS)} units"
    )
    relative_error: float = eqx.field(static=True)
    orders: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(self, relative_error: Positive = 1e-6, orders: Sequence[int] | None = None) -> None:
        self.relative_error = float(relative_error)
        self.orders = None if orders is None else _check_grid_orders(orders)

    def supports(self, model):
        few = model.network.width <= max(GRID_ORDERS) or self.orders is not None
        return super().supports(model) and not model.has_inputs_at_means and few

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
        """Compute the mean loss on the grid of the largest order, or of the second largest for more than three units."""
        if not model.network.activation.kinked:
            return smooth_class_moments(model, a, law, self._risk_order(model)).loss
        inputs = grid_inputs(model, law, self._risk_order(model))
        return (inputs.weights * inputs.loss(model, a)).sum()

    def covariance(self, model, a, law, increment):
        """Compute the covariance of the changes of the statistics by one sample, on the same grid as the risk.

        The conditional variance of the fixed fields given the student fields adds the second term.
        """
        inputs = grid_inputs(model, law, self._risk_order(model)).with_noise()
        products = inputs.products(*inputs.gradient(model, a))
        p, k = law.shape
        L = linearise_increment(increment, a, law.shape).gradient_fixed.reshape(-1, p * k)
        W = law.student_columns()[p:]
        conditional = jnp.kron((products.gradient_gradient * inputs.weights).sum(-1), law.blocks.fixed - W @ W.T)
        return increment_covariance(increment, products, inputs.weights) + L @ conditional @ L.T

    def slopes(self, model, a, S):
        n, accuracy = S.shape[1], self.accuracy(model)
        if not model.network.activation.kinked:
            # The loss depends on the student fields only, so nodes in the span of the units suffice.
            nodes = FrameNodes.of_units(a, pad_units(model, S), GaussHermite(2 * self._grid_orders(model)[-1]))
            return slopes_at_nodes(model, S, nodes, accuracy, self.remedy)
        span, outside = compute_kinked_class_hessian(model, a, pad_units(model, S), self._grid_orders(model)[-1])
        slopes = RiskDerivatives(self.gradient(model, a, S), span[:, :n, :, :n], outside)
        return check_stein(model, S, slopes, accuracy, self.remedy)

    def runs_at_once(self, model):
        """Return the number of runs to process together: one for more than two units, otherwise as many as fit into memory.

        A batch of runs would compute the largest grid for every run, which `lax.cond` skips for single runs.
        """
        p = model.network.width
        nodes = (2 * self._grid_orders(model)[-1]) ** p * model.coordinates.classes
        # A batched `cond` computes both branches: every run would pay for the last order.
        return 1 if p > 2 else max(1, MAX_FLOATS_AT_ONCE // (FLOATS_PER_NODE * nodes))

    def estimate(self, model, a, law) -> tuple[Moments, Moments]:
        """Return the drift's expectations on the first grid that agrees with the coarser grid before it, and the difference."""
        kinked = model.network.activation.kinked
        if kinked and model.network.width > MAX_WEDGE_WIDTH:
            moments_at, steps = _split_off_steps(model, a, law)
        else:
            moments_at = lambda order: (_moments_in_wedges if kinked else smooth_class_moments)(model, a, law, order)
            steps = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: moments_at(1)))  # shapes only: nothing is computed

        def refine(before, orders):
            here = moments_at(orders[0])
            gap = jax.tree.map(lambda a, b: jnp.abs(a - b), here, before)
            if len(orders) == 1:
                return here, gap
            agree = _largest_entry(gap) <= self.relative_error * _largest_entry(add(here, steps))
            # `cond` rather than `where`: the next order is computed only if this one has not converged.
            return lax.cond(agree, lambda: (here, gap), lambda: refine(here, orders[1:]))

        first, *others = self._grid_orders(model)
        remainder, gap = refine(moments_at(first), others)
        return add(remainder, steps), gap

    def _grid_orders(self, model) -> tuple[int, ...]:
        """Return, by increasing cost, the grid orders to try at the network's width: nodes on each side of a kink."""
        return GRID_ORDERS[model.network.width] if self.orders is None else self.orders

    def _risk_order(self, model) -> int:
        """Return the order of the single grid on which risk and covariance are computed."""
        return self._grid_orders(model)[-2 if model.network.width >= MIN_COSTLY_WIDTH else -1]


@checked
class AtMeans(ClassExpectation):
    r"""Exact expectations for class labels and inputs without variance: every input is the mean of its class.

    Piecewise linear units then drive a field towards zero from both sides at finite speed. Trajectories slide along the kink;
    they are the limit of trajectories for inputs of small variance, and of those for a slope that changes from left to right
    over a width of `smoothing`: :math:`s'(x) = \text{left} + (\text{right} - \text{left})\,\Phi(x/\text{smoothing})` with the
    normal distribution function :math:`\Phi`. Away from kinks nothing is smoothed.

    Parameters
    ----------
    smoothing : width of the smoothed kink in the drift of piecewise linear units; None for the exact kink
    """

    supported_models: ClassVar[str] = "inputs without variance, ClassLabels, CrossEntropy, and units with a known kink or none"
    smoothing: Positive | None = eqx.field(static=True, default=1e-3)

    def supports(self, model):
        return super().supports(model) and model.has_inputs_at_means

    def without_smoothing(self):
        return AtMeans(smoothing=None)

    def moments(self, model, a, law):
        inputs, unit = class_mean_inputs(law), model.network.activation
        G, second = inputs.gradient(model, a)
        slopes = inputs.unit_slopes(model, a)
        if unit.kinked and self.smoothing is not None:
            # A jump of the drift would stall an adaptive solver where trajectories slide along the kink.
            smooth = unit.left + (unit.right - unit.left) * ndtr(inputs.fields / self.smoothing)
            slopes = model.network.factor * a[:, None] * smooth
            G = inputs.loss_derivative(model, a) * slopes
        return Moments(
            self.risk(model, a, law),
            inputs.average_products(G, inputs.fixed),
            inputs.average_products(G, inputs.fields),
            inputs.average_products(G, G) + model.target.noise * inputs.average_products(slopes, slopes),
            second @ inputs.weights,
        )

    def covariance(self, model, a, law, increment):
        """Compute the covariance of the statistics' changes by one sample; units with a field at the kink do not contribute.

        The drift that returns such a field to the kink is stronger than fluctuations at large d.
        """
        inputs = class_mean_inputs(law).with_noise()
        G, second = inputs.gradient(model, a)
        if model.network.activation.kinked:
            G = jnp.where(jnp.abs(inputs.fields) < KINK_TOLERANCE, 0.0, G)
        return increment_covariance(increment, inputs.products(G, second), inputs.weights)

    def slopes(self, model, a, S):
        if not model.network.activation.kinked:
            return autodiff_slopes(self.risk, model, a, S)
        fields = S[:, : model.teachers] @ np.asarray(model.coordinates.means.fixed)
        if (np.abs(fields) < MIN_FIELD_FOR_HESSIAN).any():
            raise BadInput("without input noise the risk has no Hessian where a class mean is at a kink. Give a finite snr.")
        return autodiff_slopes(self.risk, model, a, S)._replace(gradient=self.gradient(model, a, S))

    def risk(self, model, a, law):
        inputs = class_mean_inputs(law)
        return (inputs.weights * inputs.loss(model, a)).sum()


def _moments_in_wedges(model, a, law, order: int) -> Moments:
    """Compute the expectations in the drift for one or two piecewise linear units, on a grid that is split at the kinks."""
    inputs = grid_inputs(model, law, order)
    G, second = inputs.gradient(model, a)
    slopes = inputs.unit_slopes(model, a)
    return Moments(
        (inputs.weights * inputs.loss(model, a)).sum(),
        inputs.average_products(G, inputs.fixed),
        inputs.average_products(G, inputs.fields),
        inputs.average_products(G, G) + model.target.noise * inputs.average_products(slopes, slopes),
        second @ inputs.weights,
    )


def _split_off_steps(model, a, law):
    """Split the drift's expectations into those of step functions, in closed form, and a remainder for quadrature on a grid.

    Returns a function of the grid order that integrates the remainder, and the moments of the steps.
    """
    unit, mean = model.network.activation, class_mean_inputs(law)
    frozen = model.network.factor * a[:, None] * mean.loss_derivative(model, a)

    def moments_at(order: int) -> Moments:
        inputs = grid_inputs(model, law, order)
        G, second = inputs.gradient(model, a)
        slopes = inputs.unit_slopes(model, a)
        each = jnp.tile(frozen, inputs.c.size // law.classes)  # on a grid the classes cycle from node to node
        step = each * jnp.where(inputs.fields > 0, unit.right, unit.left)
        return Moments(
            (inputs.weights * inputs.loss(model, a)).sum(),
            inputs.average_products(G - step, inputs.fixed),
            inputs.average_products(G - step, inputs.fields),
            inputs.average_products(G, G)
            - inputs.average_products(step, step)
            + model.target.noise * inputs.average_products(slopes, slopes),
            second @ inputs.weights,
        )

    return moments_at, _step_moments(model, law, frozen, mean)


def _step_moments(model, law, frozen: Float[Array, "p classes"], mean: ClassInputs) -> Moments:
    """Compute the contribution of step functions to the drift's expectations in closed form, for a given loss slope.

    `frozen` is the loss slope at the class means, times the second layer, by unit and class; `mean` has the class means as
    inputs.

    `frozen` is that derivative, times the second layer, by unit and class, and `mean` has the class means as inputs.
    """
    unit, C = model.network.activation, law.blocks
    left, step = unit.left, unit.right - unit.left

    # Slopes are left + step 1[x > 0], so every moment is a combination of half-space and quadrant integrals.
    def moments_of_class(weight, factor, fields, fixed):
        both, spread = probability_both_positive(fields, C.students), jnp.diagonal(C.students)
        single = jnp.diagonal(both)
        first = lambda others, cross: left * others + step * means_where_positive(fields, spread, others, cross)
        pair = left**2 + left * step * (single[:, None] + single) + step**2 * both
        rows = weight * factor[:, None]
        none = jnp.zeros(())
        return Moments(
            none, rows * first(fixed, C.cross), rows * first(fields, C.students), rows * factor * pair, jnp.zeros_like(factor)
        )

    parts = jax.vmap(moments_of_class, in_axes=(0, 1, 1, 1))(mean.weights, frozen, mean.fields, mean.fixed)
    return jax.tree.map(lambda leaf: leaf.sum(0), parts)


def _largest_entry(moments: Moments) -> Float[Array, ""]:
    """Return the largest absolute entry of all arrays in `moments`."""
    return jnp.stack([jnp.abs(leaf).max() for leaf in moments]).max()


def _check_grid_orders(orders: Sequence[int]) -> tuple[int, ...]:
    """Return the orders as a tuple, or raise `BadInput` unless they are two or more increasing integers up to MAX_ORDER."""
    values = check_each(check_count)("orders", orders)
    if len(values) < 2 or sorted(set(values)) != list(values) or values[-1] > MAX_ORDER:
        raise BadInput(
            f"orders must be two or more increasing integers up to {MAX_ORDER}; got {values}. Give, say, (8, 12, 18)."
        )
    return values
