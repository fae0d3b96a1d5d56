"""How often a network predicts the right class."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from sgdlimits.expectation.class_inputs import at_means, kink
from sgdlimits.expectation.gaussian import Estimate, Rule, split_line
from sgdlimits.expectation.gaussian.base import no_turns
from sgdlimits.expectation.particles import map_blocks
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Scalars
from sgdlimits.statistics.rows import row_products
from sgdlimits.statistics.trees import repeat_for_samples

MAX_NODES_AT_ONCE = 1024
ON_A_LINE, ORDER = 2, 32


@eqx.filter_jit
def accuracy(model: Model, a: Scalars, law: FieldLaw, rule: Rule) -> Estimate:
    """The probability that the prediction of one input is its class, for labels without their noise, and its error estimate.

    Nodes are taken a block at a time, so that many runs at once need little memory, and all points of the rule count: one
    number needs no symmetric ones. The field of the last of piecewise linear units is integrated in closed form. One or two
    such units, and classes without variance, need no nodes.
    """
    if is_closed(model):
        return Estimate(
            _on_a_line(model, a, law) if _piecewise(model) else _at_inputs(model, a, law, jnp.zeros((_dim(model), 1)))[0], 0.0
        )
    dim = model.width - 1 if _piecewise(model) else _dim(model)
    at = _given_all_but_last if _piecewise(model) else _at_inputs
    right = lambda points: map_blocks(lambda rows: at(model, a, law, rows.T), points.T, MAX_NODES_AT_ONCE)
    return rule.estimate(right, dim, no_turns(dim))


def is_closed(model: Model) -> bool:
    """Whether the accuracy has no error."""
    return model.on_means or (_piecewise(model) and model.network.width <= ON_A_LINE)


def _dim(model: Model) -> int:
    return model.width + model.teachers + 1


def _piecewise(model: Model) -> bool:
    network, loss, readout = model.network, model.loss, model.target.readout
    if not network.plain or not isinstance(loss, CrossEntropy) or not isinstance(readout, ClassLabels) or model.on_means:
        return False
    return network.activation.kinked


def _at_inputs(model: Model, a: Scalars, law: FieldLaw, points: Float[Array, "dim n"]) -> Float[Array, " n"]:
    """Whether the prediction is right at each node, averaged over classes."""
    F, each = law.triangular_factor(), repeat_for_samples(a, points.shape[1])

    def of_class(c):
        fields, fixed, _ = law.fields_at(F, points, c)
        label = jnp.broadcast_to(model.target.readout(fixed, c), points.shape[1:])
        return model.loss.probability_correct(model.network.output(fields, each, c, None), label)

    return law.over_classes(of_class)


def _given_all_but_last(model: Model, a: Scalars, law: FieldLaw, points: Float[Array, "p-1 n"]) -> Float[Array, " n"]:
    """The probability of a right prediction given all fields but the last, averaged over classes."""
    centre, root = at_means(law), law.triangular()
    fields = centre.fields[:, None] + (root[: model.width, :-1] @ points)[..., None]
    return _right(model, a, law, fields[:-1], fields[-1], root) @ centre.weights


def _on_a_line(model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
    """On a line for the first of two units, split at its kink."""
    centre, root = at_means(law), law.triangular()
    others, mean, weights = centre.fields[:0], centre.fields[-1], centre.weights
    if model.width == ON_A_LINE:
        points, more = split_line(kink(centre.fields[0], root[0, 0]), ORDER)
        others, mean, weights = (centre.fields[0] + root[0, 0] * points)[None], mean + root[1, 0] * points, more * weights
    right = _right(model, a, law, others, mean, root)
    return row_products(jnp.ravel(jnp.broadcast_to(weights, right.shape)), jnp.ravel(right))


def _right(
    model: Model,
    a: Scalars,
    law: FieldLaw,
    others: Float[Array, "p-1 *n classes"],
    mean: Float[Array, "*n classes"],
    root: Array,
) -> Float[Array, "*n classes"]:
    """The probability of a right prediction given the other fields, and the mean of the last."""
    network: Any = model.network
    unit, centre, outer = network.activation, at_means(law), network.factor * a
    rest = jnp.tensordot(outer[:-1], unit(others), 1)
    sides = jnp.array([unit.right, -unit.left]), jnp.array([1.0, -1.0])
    each = jax.vmap(lambda slope, sign: _positive(rest, slope, sign * mean, root[model.width - 1, -1]))
    one = each(outer[-1] * sides[0], sides[1]).sum(0)
    label = model.target.readout(centre.fixed, centre.c)
    return label * one + (1 - label) * (1 - one)


def _positive(rest: Array, slope: Array, mean: Array, deviation: Array) -> Array:
    """The probability that x > 0 and rest + slope x > 0, or half of that where it is zero, for a normal number x."""
    flat = slope == 0
    change = jnp.maximum(-rest / jnp.where(flat, 1.0, slope), 0.0) * jnp.ones_like(mean)
    x = jnp.stack([jnp.zeros_like(change), change]) - mean
    first, until = jnp.where(deviation > 0, ndtr(x / jnp.where(deviation > 0, deviation, 1.0)), jnp.heaviside(x, 0.5))
    return jnp.where(flat, jnp.heaviside(rest, 0.5) * (1 - first), jnp.where(slope > 0, 1 - until, until - first))
