"""How often a network predicts the right class."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from sgdlimits.expectation.class_inputs import at_means, kink, student_root
from sgdlimits.expectation.particles import blocks_of
from sgdlimits.expectation.symmetries import symmetries
from sgdlimits.gaussian import Rule, split_line
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.frame import loading
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.rows import row_products
from sgdlimits.statistics.trees import for_samples

NODES_AT_ONCE = 1024
FEW_UNITS, ORDER = 2, 32


@eqx.filter_jit
def accuracy(model: Model, stats: Overlaps, rule: Rule) -> Float[Array, ""]:
    """The probability that the prediction of one input is its class, for labels without their noise, at the nodes of a rule.

    Nodes are taken a block at a time, so that many runs at once need little memory; where all inputs of a class are alike, one
    is enough. One or two piecewise linear units need none (see `_of_few_units`).
    """
    if _few_units(model):
        return _of_few_units(model, stats)
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


def _few_units(model: Model) -> bool:
    network, loss, readout = model.network, model.loss, model.target.readout
    if not network.plain or not isinstance(loss, CrossEntropy) or not isinstance(readout, ClassLabels) or model.data.on_means:
        return False
    return network.activation.kinked and network.width <= FEW_UNITS


def _of_few_units(model: Model, stats: Overlaps) -> Float[Array, ""]:
    """On a line for the first of two piecewise linear units, split at its kink, and in closed form for the last."""
    network: Any = model.network
    unit, centre = network.activation, at_means(model, stats.M)
    root, outer = model.data.sigma * student_root(model, stats), network.factor * stats.a
    rest, mean, weights = jnp.zeros_like(centre.weights), centre.fields[-1], centre.weights
    if model.width == FEW_UNITS:
        points, more = split_line(kink(centre.fields[0], root[0, 0]), ORDER)
        rest, mean = outer[0] * unit(centre.fields[0] + root[0, 0] * points), mean + root[1, 0] * points
        weights = more * weights
    sides = jnp.array([unit.right, -unit.left]), jnp.array([1.0, -1.0])
    each = jax.vmap(lambda slope, sign: _positive(rest, slope, sign * mean, root[model.width - 1, -1]))
    one = each(outer[-1] * sides[0], sides[1]).sum(0)
    label = model.target.readout(centre.fixed, centre.c)
    right = label * one + (1 - label) * (1 - one)
    return row_products(jnp.ravel(jnp.broadcast_to(weights, right.shape)), jnp.ravel(right))


def _positive(rest: Array, slope: Array, mean: Array, deviation: Array) -> Array:
    """The probability that x > 0 and rest + slope x > 0, or half of that where it is zero, for a normal number x."""
    flat = slope == 0
    change = jnp.maximum(-rest / jnp.where(flat, 1.0, slope), 0.0) * jnp.ones_like(mean)
    x = jnp.stack([jnp.zeros_like(change), change]) - mean
    first, until = jnp.where(deviation > 0, ndtr(x / jnp.where(deviation > 0, deviation, 1.0)), jnp.heaviside(x, 0.5))
    return jnp.where(flat, jnp.heaviside(rest, 0.5) * (1 - first), jnp.where(slope > 0, 1 - until, until - first))
