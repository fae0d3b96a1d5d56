"""How often a network predicts the right class."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.expectation.particles import blocks_of
from sgdlimits.expectation.symmetries import symmetries
from sgdlimits.gaussian import Rule
from sgdlimits.model.sample import Model
from sgdlimits.statistics.frame import loading
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import for_samples

NODES_AT_ONCE = 1024


@eqx.filter_jit
def accuracy(model: Model, stats: Overlaps, rule: Rule) -> Float[Array, ""]:
    """The probability that the prediction of one input is its class, for labels without their noise, at the nodes of a rule.

    Nodes are taken a block at a time, so that many runs at once need little memory; where all inputs of a class are alike, one
    is enough.
    """
    F, dim = loading(stats, model.frame), model.width + model.teachers + 1
    points, weights = (jnp.zeros((dim, 1)), jnp.ones(1)) if model.data.on_means else rule.nodes(dim, symmetries(model))

    def part(block):
        points, weights = block
        a = for_samples(stats.a, weights.size)

        def of_class(c):
            fields, fixed, _ = model.place(F, points.T, c)
            label = jnp.broadcast_to(model.target.readout(fixed, c), weights.shape)
            return model.loss.right(model.network(fields, a), label) @ weights

        return model.over_classes(of_class)

    return jax.lax.map(part, blocks_of((points.T, weights), NODES_AT_ONCE)).sum()
