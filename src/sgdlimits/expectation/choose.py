"""The default choice of the method that computes the expectations of a model."""

from __future__ import annotations

from sgdlimits.errors import BadInput
from sgdlimits.expectation.additive import FieldIntegrals
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.class_sums import ClassSums, class_models, is_split
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.expectation.gaussian import GaussHermite, Rule, Sobol
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.squares import Squares
from sgdlimits.model.sample import Model
from sgdlimits.part import at_start

# At the default order, 24^3 nodes are fewer than the 2^15 points of the default Sobol rule; 24^4 would be ten times as many.
MAX_GRID_DIMENSIONS = 3
SPECIALISED_EXPECTATIONS = (Squares(), FieldIntegrals(), AtMeans(), ClassIntegrals())
"""Closed forms and grids for particular kinds of models, in order of preference."""


def choose_expectation(model: Model) -> Expectation:
    """Choose how to compute a model's expectations: a specialised method, a grid for few smooth fields, else Sobol points."""
    if is_split(model):
        chosen = tuple(choose_expectation(part.model) for part in class_models(model))
        return ClassSums(chosen[:1] if all(expectation == chosen[0] for expectation in chosen) else chosen)
    for expectation in SPECIALISED_EXPECTATIONS:
        if expectation.supports(model):
            return expectation
    smooth = model.network.smooth and model.target.readout.smooth and model.loss.quadratic
    if smooth and model.width + model.teachers + 1 <= MAX_GRID_DIMENSIONS:
        return NodeSums(GaussHermite())
    return NodeSums(Sobol())


def as_expectation(given: Rule | Expectation | None, model: Model) -> Expectation | None:
    """Convert a quadrature rule or an `Expectation` to an `Expectation` that supports the model; None is returned unchanged.

    Raises `BadInput` if the model is not supported.
    """
    if given is None:
        return None
    expectation = NodeSums(given) if isinstance(given, Rule) else given
    if isinstance(expectation, Expectation) and not isinstance(expectation, ClassSums) and is_split(at_start(model)):
        expectation = ClassSums((expectation,))
    if not isinstance(expectation, Expectation) or not expectation.supports(at_start(model)):
        needs = given.supported_models if isinstance(given, Expectation) else "to be a rule or an Expectation"
        raise BadInput(f"{type(given).__name__} needs {needs}. Leave out expectation=, or give Sobol().")
    return expectation


def choose_without_dropout(given: Expectation | None, model: Model) -> Expectation:
    """Choose the expectation of a model without dropout: the one given for training if it supports the model.

    Otherwise, or if `given` is None, return `choose_expectation(model)`.
    """
    if given is None:
        return choose_expectation(model)
    if is_split(model):
        return given
    own = given.expectations[0] if isinstance(given, ClassSums) else given
    return own if own.supports(model) else choose_expectation(model)
