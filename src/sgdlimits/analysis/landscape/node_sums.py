"""Gradient and Hessian of the population risk as sums over nodes, for any smooth activation and loss."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput
from sgdlimits.gaussian import GaussHermite
from sgdlimits.problem.activation import looks_smooth
from sgdlimits.problem.class_integrals import ORDERS, ClassIntegrals
from sgdlimits.problem.loss import FunctionLoss
from sgdlimits.problem.moments import ByRule
from sgdlimits.problem.projection import ProjectionProblem

LABELS = (-1.0, 0.0, 1.0)


class Nodes(eqx.Module):
    """Units in a frame, the orthonormal directions of it that have nodes, the nodes, their label noise and their weights."""

    a: Float[Array, " p"]
    units: Float[Array, "p n"]
    directions: Float[Array, "n m"]
    points: Float[Array, "m nodes"]
    z: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]

    def place(self, problem: ProjectionProblem, c: Array) -> tuple[Array, Array, Array]:
        """Inputs of a class in the frame, their fields, and the fixed fields."""
        k = problem.target.teachers
        x = (problem.data.sigma * self.directions @ self.points).at[:k].add(problem.data.centre(problem.frame, c)[:, None])
        return x, self.units @ x, problem.frame @ x[:k]


def nodes_of(problem: ProjectionProblem, a: np.ndarray, units: Float[np.ndarray, "p n"]) -> Nodes:
    """The nodes of the problem's rule. Labels of classes depend on no field, so that only the span of the units has nodes."""
    rule, p, n = problem.rule, *units.shape
    at = jnp.asarray(a), jnp.asarray(units)
    if isinstance(rule, ClassIntegrals):
        order = (ORDERS[p] if rule.orders is None else rule.orders)[-1]
        points, weights = GaussHermite(2 * order).nodes(p)
        return Nodes(*at, jnp.asarray(np.linalg.svd(units, full_matrices=False)[2].T), points, 0 * weights, weights)
    assert isinstance(rule, ByRule), "checked by the caller"
    points, weights = rule.rule.nodes(n + 1)
    return Nodes(*at, jnp.eye(n), points[:-1], points[-1], weights)


def refuse_kinks(problem: ProjectionProblem) -> None:
    """Raise `BadInput` where second derivatives at nodes would miss what is concentrated at a kink."""
    smooth, loss = problem.network.activation.smooth, problem.loss
    if isinstance(loss, FunctionLoss):
        smooth = smooth and all(looks_smooth(lambda f, y=y: loss(f, jnp.full_like(f, y))) for y in LABELS)
    if not smooth:
        raise BadInput(
            f"the Hessian of {problem.name} cannot be computed at nodes: its activation or loss has a kink, where the second "
            "derivative is infinite. Use a smooth activation and loss; with a squared loss, a CommitteeReadout and centred "
            "data, the activations relu, abs and PiecewiseLinear work as well."
        )


@eqx.filter_jit
def gradient_over_nodes(problem: ProjectionProblem, nodes: Nodes) -> Float[Array, "p n"]:
    """E[G x]."""

    def of_class(c):
        x, fields, fixed = nodes.place(problem, c)
        return (nodes.weights * _gradient(problem, nodes, fields, fixed, c)) @ x.T

    return _over_classes(problem, of_class)


@eqx.filter_jit
def slopes_over_nodes(problem: ProjectionProblem, nodes: Nodes) -> tuple[Array, Array, Array]:
    """E[G x], E[l_jl x x^T] and, along each direction outside, the variance times E[l_jl]."""
    variance = problem.data.sigma**2
    rest = variance * (jnp.eye(nodes.units.shape[1]) - nodes.directions @ nodes.directions.T)

    def of_class(c):
        x, fields, fixed = nodes.place(problem, c)
        loss = lambda fields, fixed, z: problem.sample_loss(fields, fixed, nodes.a, z, c)  # noqa: E731
        second = nodes.weights * jax.vmap(jax.hessian(loss), in_axes=(1, 1, 0), out_axes=2)(fields, fixed, nodes.z)
        mean = second.sum(-1)
        span = jnp.einsum("jln,sn,tn->jslt", second, x, x) + mean[:, None, :, None] * rest[:, None]
        return (nodes.weights * _gradient(problem, nodes, fields, fixed, c)) @ x.T, span, variance * mean

    return _over_classes(problem, of_class)


def _gradient(problem, nodes, fields, fixed, c) -> Float[Array, "p nodes"]:
    return problem.gradient(fields, fixed, jnp.broadcast_to(nodes.a[:, None], fields.shape), nodes.z, c)[0]


def _over_classes(problem, f):
    parts = [f(jnp.asarray(c)) for c in range(problem.data.classes)]
    return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(problem.data.weights, leaves, strict=True)), *parts)
