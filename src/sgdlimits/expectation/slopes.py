r"""Gradient and Hessian of the population risk in the weights, in an orthonormal basis of the span of all directions.

With the input x, the student fields :math:`\lambda_j`, the loss l of one sample, :math:`G_j = \partial l/\partial\lambda_j` and
:math:`l_{jl} = \partial G_j/\partial\lambda_l`, the derivatives of the risk R in the weights of units j and l are

.. math:: \nabla_j R = E[G_j x], \qquad \nabla_j\nabla_l R = E[l_{jl}\, xx^\top].

In the orthonormal frame of the fixed and the trained directions, the gradient has n coordinates and the Hessian an n-by-n
block. Along any direction outside the frame the input is a normal variate of variance :math:`\sigma^2`, the `unit` of the law
of the fields, independent of all fields: there the gradient is zero, and the Hessian is :math:`\sigma^2E[l_{jl}]` along each
direction, with no mixed terms.

The method depends on the `Expectation`. Squared activations have a formula, sums of other units are assembled from
pairs (`unit_pairs`), the closed forms of erf units and of inputs without variance are differentiated automatically, classifiers
with kinks have a grid that is split at the kinks (`class_inputs`), and all other models are sums over nodes that do not depend
on the weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import AccuracyWarning, BadInput
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.model.activation import is_probably_smooth
from sgdlimits.model.loss import FunctionLoss, Loss
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import overlaps_from_coordinates, pad_frame
from sgdlimits.statistics.overlaps import Overlaps, Scalars
from sgdlimits.statistics.trees import repeat_for_samples

# Targets at which the smoothness of a user's loss is tested.
TEST_LABELS = (-1.0, 0.0, 1.0)


class RiskDerivatives(NamedTuple):
    """Gradient and Hessian of the risk within the span of all directions, and the Hessian's block orthogonal to it."""

    gradient: Float[np.ndarray, "p n"]
    span_block: Float[np.ndarray, "p n p n"]
    outside_block: Float[np.ndarray, "p p"]


def refuse_zero_weights(model: Model, S: Float[np.ndarray, "p n"]) -> None:
    """Raise `BadInput` if a unit with a kink has zero weights, where the risk has no Hessian."""
    if getattr(model.network.activation, "kinked", False) and not np.linalg.norm(S, axis=1).all():
        raise BadInput(
            "the risk has no Hessian where a unit with a kink has zero weights. Give statistics with Q_jj above zero."
        )


def autodiff_slopes(risk: Callable, model: Model, a: np.ndarray, S: np.ndarray) -> RiskDerivatives:
    """Compute gradient and Hessian of a closed-form risk(model, a, law) by automatic differentiation.

    One more coordinate stands for the directions outside the frame.
    """
    n = S.shape[1]
    # All directions outside are equivalent, so one coordinate gives the block along each of them.
    arrays = jnp.asarray(a), jnp.asarray(pad_units(model, S, more=1))
    gradient, hessian = (np.asarray(leaf) for leaf in _grad_and_hessian(risk, model, *arrays))
    return RiskDerivatives(gradient[:, :n], hessian[:, :n, :, :n], hessian[:, -1, :, -1])


@eqx.filter_jit
def _grad_and_hessian(risk: Callable, model: Model, a: Array, S: Array) -> tuple[Array, Array]:
    """Compute the gradient and the Hessian of the risk in the units' coordinates S in an orthonormal basis."""
    risk_at = lambda S: risk(model, a, model.law(overlaps_from_coordinates(a, S, model.frame)))
    return jax.grad(risk_at)(S), jax.hessian(risk_at)(S)


def gradient_from_moments(moments: Callable, model: Model, a: np.ndarray, S: np.ndarray) -> Float[np.ndarray, "p n"]:
    """Solve for the gradient of the risk in the weights from its scalar products with all directions, found by `moments`."""
    rows = np.concatenate([S, pad_frame(model.frame, S.shape[1])])
    products = _gradient_products(
        moments, model, Overlaps(jnp.asarray(a), jnp.asarray(S @ rows[len(S) :].T), jnp.asarray(S @ S.T))
    )
    return np.linalg.lstsq(rows, np.asarray(products).T, rcond=None)[0].T


@eqx.filter_jit
def _gradient_products(moments: Callable, model: Model, stats: Overlaps) -> Float[Array, "p p+k"]:
    """Compute the scalar products of the risk gradient of each unit with all units and all fixed directions."""
    at_stats = moments(model, stats.a, model.law(stats))
    return jnp.concatenate([at_stats.gradient_field, at_stats.gradient_fixed], axis=1)


def pad_units(model: Model, S: np.ndarray, more: int = 0) -> np.ndarray:
    """Pad the units' coordinates with zeros to p + k + `more` columns, so that all ranks share one compiled function."""
    return np.pad(S, ((0, 0), (0, model.width + model.teachers + more - S.shape[1])))


def check_stein(model: Model, S: np.ndarray, slopes: RiskDerivatives, accuracy: float, remedy: str) -> RiskDerivatives:
    r"""Return gradient and Hessian of the risk unchanged, after a warning if they violate Stein's lemma beyond `accuracy`.

    Outside the fixed directions the lemma is :math:`E[G_jx] = \sum_l\sigma^2E[l_{jl}]u_l`, for inputs x of variance
    :math:`\sigma^2`, units of weights :math:`u_l`, and first and second derivatives :math:`G_j, l_{jl}` of the loss in the
    fields. Both sides are computed independently.
    """
    expected = slopes.outside_block @ S[:, model.teachers :]
    largest = np.abs(slopes.outside_block).max() * np.abs(S).max() * np.ones(1)
    warn_if_inaccurate(slopes.gradient[:, model.teachers :] - expected, largest, accuracy, remedy)
    return slopes


def warn_if_inaccurate(error: np.ndarray, value: np.ndarray, tolerance: float, remedy: str) -> None:
    """Warn if the error of derivatives exceeds `tolerance` times their largest entry; `remedy` completes the message."""
    reached = np.abs(error).max(initial=0.0) / max(np.abs(value).max(), np.finfo(float).tiny)
    if not reached <= tolerance:  # also for NaN
        warnings.warn(
            f"the derivatives of the risk have a relative error of about {reached:.1e}, above {tolerance:.1e}. {remedy}",
            AccuracyWarning,
            stacklevel=5,
        )


class FrameNodes(eqx.Module):
    """Quadrature nodes of inputs in an orthonormal basis of the directions' span, for mean gradients and Hessians of the loss.

    Parameters
    ----------
    a : network scalars
    units : coordinates of the units in the frame
    directions : orthonormal directions of the frame along which the inputs vary, in columns
    points, z, weights : standard normal coordinates along these directions, label noise, and quadrature weights
    """

    a: Scalars
    units: Float[Array, "p n"]
    directions: Float[Array, "n m"]
    points: Float[Array, "m nodes"]
    z: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]

    @classmethod
    def of_frame(cls, a: Scalars, units: Float[np.ndarray, "p n"], rule: Rule) -> FrameNodes:
        """Place the nodes of a quadrature rule in all coordinates of the inputs and in the label noise."""
        n = units.shape[1]
        points, weights = rule.nodes(n + 1)
        return cls(jax.tree.map(jnp.asarray, a), jnp.asarray(units), jnp.eye(n), points[:-1], points[-1], weights)

    @classmethod
    def of_units(cls, a: np.ndarray, units: Float[np.ndarray, "p n"], rule: Rule) -> FrameNodes:
        """Place the nodes of a quadrature rule in the span of the units only, for labels that depend on the class alone."""
        points, weights = rule.nodes(len(units))
        span = jnp.asarray(np.linalg.svd(units, full_matrices=False)[2].T)
        return cls(jnp.asarray(a), jnp.asarray(units), span, points, 0 * weights, weights)

    def inputs(self, model: Model, c: Array) -> tuple[Array, Array, Array]:
        """Return the inputs of class `c` at the nodes, with their student fields and fixed fields."""
        k, law = model.teachers, model.coordinates
        x = (jnp.sqrt(law.variance) * self.directions @ self.points).at[:k].add(law.means.fixed[:, c][:, None])
        return x, self.units @ x, model.frame @ x[:k]

    def gradients(self, model: Model, fields: Array, fixed: Array, c: Array) -> Float[Array, "p nodes"]:
        """Compute the derivative of the loss in each student field at the nodes, times the weights; `c` is the class."""
        return self.weights * model.gradient(fields, fixed, repeat_for_samples(self.a, fields.shape[1]), self.z, c)[0]


def slopes_at_nodes(model: Model, S: np.ndarray, nodes: FrameNodes, accuracy: float, remedy: str) -> RiskDerivatives:
    """Average gradient and Hessian of the loss over quadrature nodes, and warn if they violate Stein's lemma.

    Raises `BadInput` for an activation or a loss with a kink, where the second derivative is infinite and misses the nodes.
    """
    if not is_smooth(model):
        raise BadInput(
            "the Hessian of the risk cannot be averaged over nodes: the activation or the loss has a kink, where the second "
            "derivative is infinite. Use smooth functions. With a squared loss, a CommitteeReadout and centred data, relu, abs "
            "and PiecewiseLinear are supported, too."
        )
    n = S.shape[1]
    gradient, span, outside = (np.asarray(leaf) for leaf in slopes_over_nodes(model, nodes))
    return check_stein(model, S, RiskDerivatives(gradient[:, :n], span[:, :n, :, :n], outside), accuracy, remedy)


def is_smooth(model: Model) -> bool:
    """Return whether the loss of one sample is twice differentiable in the student fields."""
    return model.network.smooth and _is_smooth_loss(model.loss, model.network.shape)


@lru_cache(maxsize=64)
def _is_smooth_loss(loss: Loss, outputs: tuple[int, ...]) -> bool:
    """Return whether a loss is smooth: a user's loss is tested on a random line through the outputs; all others are smooth."""
    if not isinstance(loss, FunctionLoss):
        return True
    line = np.random.default_rng(0).normal(size=(*outputs, 1)) if outputs else 1.0
    # The answer is static, so the loss is evaluated now even while the caller is being traced.
    with jax.ensure_compile_time_eval():
        return all(is_probably_smooth(lambda f, y=y: loss(line * f, jnp.full_like(f, y))) for y in TEST_LABELS)


@eqx.filter_jit
def gradient_over_nodes(model: Model, nodes: FrameNodes) -> Float[Array, "p n"]:
    """Average the gradient of the loss in the units' weights over quadrature nodes, in an orthonormal basis."""
    law = model.coordinates

    def gradient_in_class(c):
        x, fields, fixed = nodes.inputs(model, c)
        return nodes.gradients(model, fields, fixed, c) @ x.T

    return law.average_over_classes(gradient_in_class)


@eqx.filter_jit
def slopes_over_nodes(model: Model, nodes: FrameNodes) -> tuple[Array, Array, Array]:
    """Average the gradient and the Hessian of the loss in the weights of the units over quadrature nodes.

    For inputs x and the derivatives G_j and l_jl of the loss in the student fields, the result is E[G_j x], E[l_jl x x^T] and,
    for directions outside the frame, the variance of a coordinate times E[l_jl].
    """
    law, variance = model.coordinates, model.coordinates.variance
    # Directions without nodes are integrated exactly: the inputs have this covariance along them, given the fields.
    rest = variance * (jnp.eye(nodes.units.shape[1]) - nodes.directions @ nodes.directions.T)

    def slopes_in_class(c):
        x, fields, fixed = nodes.inputs(model, c)
        loss = lambda fields, fixed, z: model.sample_loss(fields, fixed, nodes.a, z, c)
        second = nodes.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(fields, fixed, nodes.z)
        mean = second.sum(-1)
        span = jnp.einsum("jln,sn,tn->jslt", second, x, x) + mean[:, None, :, None] * rest[:, None]
        return nodes.gradients(model, fields, fixed, c) @ x.T, span, variance * mean

    return law.average_over_classes(slopes_in_class)
