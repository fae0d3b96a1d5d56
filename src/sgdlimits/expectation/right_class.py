"""The accuracy of a network: the probability that it predicts the right class."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from sgdlimits.expectation.class_inputs import class_mean_inputs, find_kink
from sgdlimits.expectation.gaussian import Estimate, Rule, split_line
from sgdlimits.expectation.gaussian.base import trivial_group
from sgdlimits.expectation.particles import map_blocks
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Scalars
from sgdlimits.statistics.rows import row_products
from sgdlimits.statistics.trees import repeat_for_samples

# Blocks of this length keep the memory of many runs small; the sum over them does not depend on it but for rounding.
MAX_NODES_PER_BLOCK = 1024
MAX_CLOSED_WIDTH = 2
LINE_ORDER = 32
"""Nodes on each side of the kink of the first of two units."""


@eqx.filter_jit
def compute_accuracy(model: Model, a: Scalars, law: FieldLaw, rule: Rule) -> Estimate:
    """Compute the probability that the predicted class is the label without its noise, with an error estimate.

    Nodes are processed in blocks, so that many runs need little memory. All points of the rule are used, without
    symmetrisation, since the result is a scalar. For piecewise linear units the last field is integrated in closed form. One or
    two piecewise linear units, and classes without variance, need no nodes of the rule.
    """
    piecewise = _has_closed_last_field(model)
    if has_closed_accuracy(model):
        # Without variance every node has the same inputs, the means of the classes.
        one = (
            _closed_accuracy(model, a, law)
            if piecewise
            else _accuracy_at(model, a, law, jnp.zeros((_variable_count(model), 1)))[0]
        )
        return Estimate(one, 0.0)
    dim = model.width - 1 if piecewise else _variable_count(model)
    at = _accuracy_given_all_but_last if piecewise else _accuracy_at
    over_blocks = lambda points: map_blocks(lambda rows: at(model, a, law, rows.T), points.T, MAX_NODES_PER_BLOCK)
    return rule.estimate(over_blocks, dim, trivial_group(dim))


def has_closed_accuracy(model: Model) -> bool:
    """Return whether the classification accuracy of a model is computed without a quadrature rule over its fields."""
    return model.has_inputs_at_means or (_has_closed_last_field(model) and model.network.width <= MAX_CLOSED_WIDTH)


def _variable_count(model: Model) -> int:
    """Return the number of variables of the quadrature: student fields, fixed fields and label noise."""
    return model.width + model.teachers + 1


def _has_closed_last_field(model: Model) -> bool:
    """Return whether units are piecewise linear and labels are classes, so that one field is integrated in closed form."""
    network, loss, readout = model.network, model.loss, model.target.readout
    if (
        not network.plain
        or not isinstance(loss, CrossEntropy)
        or not isinstance(readout, ClassLabels)
        or model.has_inputs_at_means
    ):
        return False
    return network.activation.kinked


def _accuracy_at(model: Model, a: Scalars, law: FieldLaw, points: Float[Array, "dim n"]) -> Float[Array, " n"]:
    """Compute the accuracy at each quadrature node, averaged over classes."""
    F, each = law.triangular_factor(), repeat_for_samples(a, points.shape[1])

    def accuracy_in_class(c):
        fields, fixed, _ = law.fields_at(F, points, c)
        label = jnp.broadcast_to(model.target.readout(fixed, c), points.shape[1:])
        return model.loss.probability_correct(model.network.output(fields, each, c, None), label)

    return law.average_over_classes(accuracy_in_class)


def _accuracy_given_all_but_last(model: Model, a: Scalars, law: FieldLaw, points: Float[Array, "p-1 n"]) -> Float[Array, " n"]:
    """Compute the accuracy given all student fields but the last, averaged over classes."""
    centre, root = class_mean_inputs(law), law.student_columns()
    fields = centre.fields[:, None] + (root[: model.width, :-1] @ points)[..., None]
    return _conditional_accuracy(model, a, law, fields[:-1], fields[-1], root) @ centre.weights


def _closed_accuracy(model: Model, a: Scalars, law: FieldLaw) -> Float[Array, ""]:
    """Compute the accuracy of one piecewise linear unit in closed form, or of two by nodes for the field of the first."""
    centre, root = class_mean_inputs(law), law.student_columns()
    others, mean, weights = centre.fields[:0], centre.fields[-1], centre.weights
    if model.width == MAX_CLOSED_WIDTH:
        points, more = split_line(find_kink(centre.fields[0], root[0, 0]), LINE_ORDER)
        others = (centre.fields[0] + root[0, 0] * points)[None]
        mean = mean + root[1, 0] * points
        weights = more * weights
    right = _conditional_accuracy(model, a, law, others, mean, root)
    return row_products(jnp.ravel(jnp.broadcast_to(weights, right.shape)), jnp.ravel(right))


def _conditional_accuracy(
    model: Model,
    a: Scalars,
    law: FieldLaw,
    others: Float[Array, "p-1 *n classes"],
    mean: Float[Array, "*n classes"],
    root: Array,
) -> Float[Array, "*n classes"]:
    """Compute the accuracy in each class given the fields of all units but the last, and the mean of the last.

    Parameters
    ----------
    others : fields of the other units
    mean : conditional mean of the last field; `root[p - 1, -1]` is its standard deviation
    root : the students' columns of the triangular factor, from `FieldLaw.student_columns`
    """
    network: Any = model.network
    unit, centre, outer = network.activation, class_mean_inputs(law), network.factor * a
    rest = jnp.tensordot(outer[:-1], unit(others), 1)
    # The half-line x < 0 is the half-line x > 0 of the mirrored field, with the slope and the mean negated.
    slopes, signs = jnp.array([unit.right, -unit.left]), jnp.array([1.0, -1.0])
    each = jax.vmap(lambda slope, sign: _probability_both_positive(rest, slope, sign * mean, root[model.width - 1, -1]))
    one = each(outer[-1] * slopes, signs).sum(0)
    label = model.target.readout(centre.fixed, centre.c)
    return label * one + (1 - label) * (1 - one)


def _probability_both_positive(rest: Array, slope: Array, mean: Array, deviation: Array) -> Array:
    """Compute P(x > 0, rest + slope x > 0) for a normal variate x, counting half where rest + slope x is zero."""
    flat = slope == 0
    # `where` twice: a quotient by zero in the unused branch would make its derivative NaN.
    change = jnp.maximum(-rest / jnp.where(flat, 1.0, slope), 0.0) * jnp.ones_like(mean)
    x = jnp.stack([jnp.zeros_like(change), change]) - mean
    first, until = jnp.where(deviation > 0, ndtr(x / jnp.where(deviation > 0, deviation, 1.0)), jnp.heaviside(x, 0.5))
    return jnp.where(flat, jnp.heaviside(rest, 0.5) * (1 - first), jnp.where(slope > 0, 1 - until, until - first))
