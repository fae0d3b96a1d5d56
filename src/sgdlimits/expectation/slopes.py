r"""The gradient and the Hessian of the population risk in the frame of the statistics.

With the loss l of one sample, :math:`G_j = \partial l/\partial\lambda_j` and :math:`l_{jl} = \partial G_j/\partial\lambda_l`,

.. math:: \nabla_j R = E[G_j x], \qquad \nabla_j\nabla_l R = E[l_{jl}\, xx^\top].

In the orthonormal frame of the fixed and the trained directions the first has n coordinates and the second an n-by-n block.
Along any direction outside the frame the input is a normal number of variance :math:`\sigma^2`, the `unit` of the law of the
fields, independent of all fields: there the gradient is zero, and the Hessian is :math:`\sigma^2E[l_{jl}]` along each
direction, with no mixed terms.

How they are computed is a matter of the `Expectation`. Squared activations have a formula, sums of other units are made of
pairs (`unit_pairs`), erf units and inputs without variance are differentiated in their closed form, classifiers with kinks have
a grid that is split there (`class_inputs`), and everything else is a sum over nodes that do not move with the weights.
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
from sgdlimits.model.activation import looks_smooth
from sgdlimits.model.loss import FunctionLoss, Loss
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import pad_frame, overlaps_from_coordinates
from sgdlimits.statistics.overlaps import Overlaps, Scalars
from sgdlimits.statistics.trees import repeat_for_samples

LABELS = (-1.0, 0.0, 1.0)


class Slopes(NamedTuple):
    """The gradient, the Hessian within the frame, and the block of the Hessian along each direction outside."""

    gradient: Float[np.ndarray, "p n"]
    span: Float[np.ndarray, "p n p n"]
    outside: Float[np.ndarray, "p p"]


def refuse_zero_weights(model: Model, S: Float[np.ndarray, "p n"]) -> None:
    """Raise `BadInput` where a unit with a kink has zero weights: there is no Hessian."""
    if getattr(model.network.activation, "kinked", False) and not np.linalg.norm(S, axis=1).all():
        raise BadInput("there is no Hessian where a unit with a kink has zero weights. Give statistics with Q_jj above zero.")


def differentiated(risk: Callable, model: Model, a: np.ndarray, S: np.ndarray) -> Slopes:
    """Automatic derivatives of risk(model, a, law), with one more coordinate for the directions outside."""
    n = S.shape[1]
    arrays = jnp.asarray(a), jnp.asarray(pad_units(model, S, more=1))
    gradient, hessian = (np.asarray(leaf) for leaf in _automatic(risk, model, *arrays))
    return Slopes(gradient[:, :n], hessian[:, :n, :, :n], hessian[:, -1, :, -1])


@eqx.filter_jit
def _automatic(risk: Callable, model: Model, a: Array, S: Array) -> tuple[Array, Array]:
    height = lambda S: risk(model, a, model.law(overlaps_from_coordinates(a, S, model.frame)))
    return jax.grad(height)(S), jax.hessian(height)(S)


def from_products(moments: Callable, model: Model, a: np.ndarray, S: np.ndarray) -> Float[np.ndarray, "p n"]:
    """The gradient from its products with all directions, which moments(model, a, law) are made of."""
    rows = np.concatenate([S, pad_frame(model.frame, S.shape[1])])
    products = _products(moments, model, Overlaps(jnp.asarray(a), jnp.asarray(S @ rows[len(S) :].T), jnp.asarray(S @ S.T)))
    return np.linalg.lstsq(rows, np.asarray(products).T, rcond=None)[0].T


@eqx.filter_jit
def _products(moments: Callable, model: Model, stats: Overlaps) -> Float[Array, "p p+k"]:
    found = moments(model, stats.a, model.law(stats))
    return jnp.concatenate([found.gradient_field, found.gradient_fixed], axis=1)


def pad_units(model: Model, S: np.ndarray, more: int = 0) -> np.ndarray:
    """Units in the largest frame, so that states of any rank share what is compiled."""
    return np.pad(S, ((0, 0), (0, model.width + model.teachers + more - S.shape[1])))


def checked_by_stein(model: Model, S: np.ndarray, slopes: Slopes, accuracy: float, remedy: str) -> Slopes:
    r"""The slopes, with a warning where they miss Stein's lemma.

    Off the fixed directions it is :math:`E[G_jx] = \sum_l\sigma^2E[l_{jl}]u_l`, between sums that are computed independently.
    """
    expected = slopes.outside @ S[:, model.teachers :]
    largest = np.abs(slopes.outside).max() * np.abs(S).max() * np.ones(1)
    warn_of(slopes.gradient[:, model.teachers :] - expected, largest, accuracy, remedy)
    return slopes


def warn_of(error: np.ndarray, value: np.ndarray, tolerance: float, remedy: str) -> None:
    """Warn where derivatives are less accurate than they should be."""
    reached = np.abs(error).max(initial=0.0) / max(np.abs(value).max(), np.finfo(float).tiny)
    if not reached <= tolerance:
        warnings.warn(
            f"the derivatives of the risk have a relative error of about {reached:.1e}, above {tolerance:.1e}. {remedy}",
            AccuracyWarning,
            stacklevel=5,
        )


class FrameNodes(eqx.Module):
    """Units in a frame, the orthonormal directions of it that have nodes, the nodes, their label noise and their weights."""

    a: Scalars
    units: Float[Array, "p n"]
    directions: Float[Array, "n m"]
    points: Float[Array, "m nodes"]
    z: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]

    @classmethod
    def of_frame(cls, a: Scalars, units: Float[np.ndarray, "p n"], rule: Rule) -> FrameNodes:
        """Nodes of a rule in the whole frame and for the label noise."""
        n = units.shape[1]
        points, weights = rule.nodes(n + 1)
        return cls(jax.tree.map(jnp.asarray, a), jnp.asarray(units), jnp.eye(n), points[:-1], points[-1], weights)

    @classmethod
    def of_units(cls, a: np.ndarray, units: Float[np.ndarray, "p n"], rule: Rule) -> FrameNodes:
        """Nodes in the span of the units only: for labels of classes, which depend on no field."""
        points, weights = rule.nodes(len(units))
        span = jnp.asarray(np.linalg.svd(units, full_matrices=False)[2].T)
        return cls(jnp.asarray(a), jnp.asarray(units), span, points, 0 * weights, weights)

    def place(self, model: Model, c: Array) -> tuple[Array, Array, Array]:
        """Inputs of a class in the frame, their fields, and the fixed fields."""
        k, law = model.teachers, model.coordinates
        x = (jnp.sqrt(law.variance) * self.directions @ self.points).at[:k].add(law.means.fixed[:, c][:, None])
        return x, self.units @ x, model.frame @ x[:k]

    def gradients(self, model: Model, fields: Array, fixed: Array, c: Array) -> Float[Array, "p nodes"]:
        """G at the nodes, times their weights."""
        return self.weights * model.gradient(fields, fixed, repeat_for_samples(self.a, fields.shape[1]), self.z, c)[0]


def slopes_at_nodes(model: Model, S: np.ndarray, nodes: FrameNodes, accuracy: float, remedy: str) -> Slopes:
    """The sums, with a warning where they miss Stein's lemma; `BadInput` where a kink would be missed."""
    if not is_smooth(model):
        raise BadInput(
            "there is no Hessian at nodes: its activation or loss has a kink, where the second derivative is infinite. "
            "Take smooth ones; with a squared loss, a CommitteeReadout and centred data relu, abs and PiecewiseLinear work too."
        )
    n = S.shape[1]
    gradient, span, outside = (np.asarray(leaf) for leaf in slopes_over_nodes(model, nodes))
    return checked_by_stein(model, S, Slopes(gradient[:, :n], span[:, :n, :, :n], outside), accuracy, remedy)


def is_smooth(model: Model) -> bool:
    """Whether products of one sample can be differentiated twice in the fields of the students."""
    return model.network.smooth and _smooth_loss(model.loss, model.network.shape)


@lru_cache(maxsize=64)
def _smooth_loss(loss: Loss, outputs: tuple[int, ...]) -> bool:
    """Along a line through the outputs."""
    if not isinstance(loss, FunctionLoss):
        return True
    line = np.random.default_rng(0).normal(size=(*outputs, 1)) if outputs else 1.0
    with jax.ensure_compile_time_eval():
        return all(looks_smooth(lambda f, y=y: loss(line * f, jnp.full_like(f, y))) for y in LABELS)


@eqx.filter_jit
def gradient_over_nodes(model: Model, nodes: FrameNodes) -> Float[Array, "p n"]:
    """E[G x]."""
    law = model.coordinates

    def of_class(c):
        x, fields, fixed = nodes.place(model, c)
        return nodes.gradients(model, fields, fixed, c) @ x.T

    return law.over_classes(of_class)


@eqx.filter_jit
def slopes_over_nodes(model: Model, nodes: FrameNodes) -> tuple[Array, Array, Array]:
    """E[G x], E[l_jl x x^T] and, along each direction outside, the variance times E[l_jl]."""
    law, variance = model.coordinates, model.coordinates.variance
    rest = variance * (jnp.eye(nodes.units.shape[1]) - nodes.directions @ nodes.directions.T)

    def of_class(c):
        x, fields, fixed = nodes.place(model, c)
        loss = lambda fields, fixed, z: model.sample_loss(fields, fixed, nodes.a, z, c)
        second = nodes.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(fields, fixed, nodes.z)
        mean = second.sum(-1)
        span = jnp.einsum("jln,sn,tn->jslt", second, x, x) + mean[:, None, :, None] * rest[:, None]
        return nodes.gradients(model, fields, fixed, c) @ x.T, span, variance * mean

    return law.over_classes(of_class)
