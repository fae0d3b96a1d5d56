"""Drift, noise covariance and accuracy of projection problems whose inputs have variances by block or class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm.blocks import BlockMoments, block_increments, with_block_axis, without_block_axis
from sgdlimits.errors import BadInput
from sgdlimits.expectation import Expectation
from sgdlimits.expectation.base import freeze_zero_units
from sgdlimits.expectation.class_sums import ClassSums, class_models
from sgdlimits.expectation.gaussian import Estimate, Rule
from sgdlimits.expectation.right_class import compute_accuracy
from sgdlimits.inputs import Blocks
from sgdlimits.model.sample import Model
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, Scalars
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import add
from sgdlimits.text import format_count


def block_drift_parts(problem: Any, expectation: Expectation, stats: Overlaps) -> tuple[Overlaps, Overlaps]:
    """Compute the gradient-flow part of the drift and its part quadratic in the learning rate, from moments by class."""
    model, students, full = problem.model, stats.of(STUDENT), with_block_axis(stats)
    sums: Any = None
    for weight, (block, moments, mean) in _parts_by_class(model, expectation, students, full):
        frozen = freeze_zero_units(model, jnp.einsum("bjj->j", with_block_axis(students).Q), moments)
        each = jax.tree.map(lambda leaf, weight=weight: weight * leaf, block.split_by_block(frozen, mean))
        sums = each if sums is None else add(sums, each)
    parts = block_increments(problem.algorithm, problem.t, full, sums)
    return parts if stats.has_blocks else (without_block_axis(parts[0]), without_block_axis(parts[1]))


def block_covariance(problem: Any, expectation: Expectation, stats: Overlaps, vector: Callable) -> Float[Array, "n n"]:
    """Compute the covariance of the increments: that of the increments' means given the total fields, plus the mean remainder.

    The total fields are the sums of the fields over blocks; `vector` converts statistics to vectors.
    """
    model, students, full = problem.model, stats.of(STUDENT), with_block_axis(stats)
    if not model.data.centred or model.network.mask_rate is not None:
        raise BadInput("the noise covariance for variances by block or class needs mean zero and no dropout. Use Chain(d).")
    column, law = jax.tree.map(lambda leaf: leaf[..., None], full), model.law(students)
    assert isinstance(expectation, ClassSums)

    def change(sums):
        both = add(*block_increments(problem.algorithm, problem.t, column, sums))
        return vector(both if stats.has_blocks else without_block_axis(both))

    mean = square = jnp.zeros(())
    pairs = expectation.pair_with_expectations(class_models(model))
    for (weight, (block, moments, _)), (part, own) in zip(
        _parts_by_class(model, expectation, students, full), pairs, strict=True
    ):
        increment = lambda products, block=block, part=part: change(block.split_by_block(part.undo_turn(products), None))
        samples = jax.tree.map(lambda leaf: leaf[..., None], moments)
        one = change(block.split_by_block(samples, None))[:, 0]
        from_fields = lambda fields, zero: change(_add_fields(zero, fields))[:, 0]
        zeros = jnp.zeros((*block.coefficients.shape[:2], model.width))
        slope = jax.jacfwd(from_fields)(zeros, jax.tree.map(jnp.zeros_like, samples))
        around = jnp.einsum("xbij,jl,bicm,ycml->xy", slope, moments.gradient_gradient, block.rest, slope)
        given = own.covariance(part.model, students.a, part.law(law), increment)
        mean = mean + weight * one
        square = square + weight * (given + around + one[:, None] * one)
    return square - mean[:, None] * mean


def _add_fields(zero: Moments, fields: Float[Array, "blocks n+k p"]) -> Moments:
    """Return `Moments` of zero, except for the given products of gradients and fields of all directions in each block."""
    each = jnp.swapaxes(fields, 1, 2)[..., None]
    n = each.shape[2] - zero.gradient_fixed.shape[1]
    both = jnp.zeros((len(each), *zero.gradient_gradient.shape))
    return zero._replace(gradient_field=each[:, :, :n], gradient_fixed=each[:, :, n:], gradient_gradient=both)


def _parts_by_class(model: Model, expectation: Expectation, students: Overlaps, full: Overlaps) -> list:
    """Return, by class, its probability and its coefficients, moments and mean gradient; one entry if all classes are alike."""
    inputs = model.data
    assert isinstance(inputs, Blocks)
    assert isinstance(expectation, ClassSums)
    gram = jnp.reshape(model.gram, (len(inputs.shares), model.teachers, model.teachers))
    parts = []
    for part, moments, mean in expectation.moments_by_class(model, students.a, model.law(students)):
        weight = 1.0 if part.i is None else inputs.weights[part.i]
        parts.append((weight, (BlockMoments.for_class(inputs, full, gram, part.i), moments, mean)))
    return parts


def class_parts(model: Model, expectation: Expectation, students: Overlaps) -> list:
    """Return, by class, its probability and its coefficients, moments and mean gradient, at overlaps of the students alone."""
    return _parts_by_class(model, expectation, students, with_block_axis(students))


def models_by_class(model: Model) -> list[Model]:
    """Return the models to average for the accuracy: one for each class if variances differ, else the model itself."""
    return [part.model for part in class_models(model)] if isinstance(model.data, Blocks) else [model]


def accuracy_over_classes(model: Model, a: Scalars, law: FieldLaw, rule: Rule) -> Estimate:
    """Compute the probability that the predicted class is right, for each class separately if their variances differ."""
    if not isinstance(model.data, Blocks):
        return compute_accuracy(model, a, law, rule)
    if model.network.head_count > 1:
        raise BadInput(
            "the accuracy of several heads is not available for inputs with variances by block or class. Give heads=1."
        )
    value = error = 0.0
    for part in class_models(model):
        weight = 1.0 if part.i is None else model.data.class_probabilities[part.i]
        one = compute_accuracy(part.model, a, part.law(law), rule)
        value, error = value + weight * one.value, error + weight * one.error
    return Estimate(value, error)


def check_block_sizes(problem: Any, d: int) -> tuple[int, ...]:
    """Return the number of dimensions of each block in R^d, or raise `BadInput` if the fixed directions do not fit."""
    sizes, k = problem.data.block_sizes(d), problem.target.teachers
    if min(sizes) < k:
        raise BadInput(
            f"d = {d} leaves {min(sizes)} dimensions for a block, and {format_count(k, 'fixed direction')} need {k}. "
            "Use a larger d."
        )
    return sizes
