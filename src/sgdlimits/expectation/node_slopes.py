"""Gradient and Hessian of the population risk as sums over nodes, for any smooth activation and loss."""

from __future__ import annotations

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput
from sgdlimits.expectation.slopes import Slopes, checked_by_stein
from sgdlimits.gaussian import Rule
from sgdlimits.model.activation import looks_smooth
from sgdlimits.model.loss import FunctionLoss, Loss
from sgdlimits.model.sample import Model

LABELS = (-1.0, 0.0, 1.0)


class FrameNodes(eqx.Module):
    """Units in a frame, the orthonormal directions of it that have nodes, the nodes, their label noise and their weights."""

    a: Float[Array, " p"]
    units: Float[Array, "p n"]
    directions: Float[Array, "n m"]
    points: Float[Array, "m nodes"]
    z: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]

    @classmethod
    def of_frame(cls, a: np.ndarray, units: Float[np.ndarray, "p n"], rule: Rule) -> FrameNodes:
        """Nodes of a rule in the whole frame and for the label noise."""
        n = units.shape[1]
        points, weights = rule.nodes(n + 1)
        return cls(jnp.asarray(a), jnp.asarray(units), jnp.eye(n), points[:-1], points[-1], weights)

    @classmethod
    def of_units(cls, a: np.ndarray, units: Float[np.ndarray, "p n"], rule: Rule) -> FrameNodes:
        """Nodes in the span of the units only: for labels of classes, which depend on no field."""
        points, weights = rule.nodes(len(units))
        span = jnp.asarray(np.linalg.svd(units, full_matrices=False)[2].T)
        return cls(jnp.asarray(a), jnp.asarray(units), span, points, 0 * weights, weights)

    def place(self, model: Model, c: Array) -> tuple[Array, Array, Array]:
        """Inputs of a class in the frame, their fields, and the fixed fields."""
        k = model.teachers
        x = (model.data.sigma * self.directions @ self.points).at[:k].add(model.data.centre(model.frame, c)[:, None])
        return x, self.units @ x, model.frame @ x[:k]

    def gradients(self, model: Model, fields: Array, fixed: Array, c: Array) -> Float[Array, "p nodes"]:
        """G at the nodes, times their weights."""
        a = jnp.broadcast_to(self.a[:, None], fields.shape)
        return self.weights * model.gradient(fields, fixed, a, self.z, c)[0]


def slopes_at_nodes(model: Model, S: np.ndarray, nodes: FrameNodes, accuracy: float, remedy: str) -> Slopes:
    """The sums, with a warning where they miss Stein's lemma; `BadInput` where a kink would be missed."""
    refuse_kinks(model)
    n = S.shape[1]
    gradient, span, outside = (np.asarray(leaf) for leaf in slopes_over_nodes(model, nodes))
    return checked_by_stein(model, S, Slopes(gradient[:, :n], span[:, :n, :, :n], outside), accuracy, remedy)


def is_smooth(model: Model) -> bool:
    """Whether products of one sample can be differentiated twice in the fields of the students."""
    return model.network.activation.smooth and _smooth_loss(model.loss)


@lru_cache(maxsize=64)
def _smooth_loss(loss: Loss) -> bool:
    if not isinstance(loss, FunctionLoss):
        return True
    with jax.ensure_compile_time_eval():
        return all(looks_smooth(lambda f, y=y: loss(f, jnp.full_like(f, y))) for y in LABELS)


def refuse_kinks(model: Model) -> None:
    """Raise `BadInput` where second derivatives at nodes would miss what is concentrated at a kink."""
    if not is_smooth(model):
        raise BadInput(
            "the Hessian of this problem cannot be computed at nodes: its activation or loss has a kink, where the second "
            "derivative is infinite. Use a smooth activation and loss; with a squared loss, a CommitteeReadout and centred "
            "data, the activations relu, abs and PiecewiseLinear work as well."
        )


@eqx.filter_jit
def gradient_over_nodes(model: Model, nodes: FrameNodes) -> Float[Array, "p n"]:
    """E[G x]."""

    def of_class(c):
        x, fields, fixed = nodes.place(model, c)
        return nodes.gradients(model, fields, fixed, c) @ x.T

    return model.over_classes(of_class)


@eqx.filter_jit
def slopes_over_nodes(model: Model, nodes: FrameNodes) -> tuple[Array, Array, Array]:
    """E[G x], E[l_jl x x^T] and, along each direction outside, the variance times E[l_jl]."""
    variance = model.data.sigma**2
    rest = variance * (jnp.eye(nodes.units.shape[1]) - nodes.directions @ nodes.directions.T)

    def of_class(c):
        x, fields, fixed = nodes.place(model, c)
        loss = lambda fields, fixed, z: model.sample_loss(fields, fixed, nodes.a, z, c)
        second = nodes.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(fields, fixed, nodes.z)
        mean = second.sum(-1)
        span = jnp.einsum("jln,sn,tn->jslt", second, x, x) + mean[:, None, :, None] * rest[:, None]
        return nodes.gradients(model, fields, fixed, c) @ x.T, span, variance * mean

    return model.over_classes(of_class)
