"""How the expectations of a model are computed, unless the user says how."""

from __future__ import annotations

from sgdlimits.errors import BadInput
from sgdlimits.expectation.additive import FieldIntegrals
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.class_sums import ClassSums, is_split, parts
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.expectation.gaussian import GaussHermite, Rule, Sobol
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.squares import Squares
from sgdlimits.model.sample import Model
from sgdlimits.part import at_start

MOST_GRID_DIMENSIONS = 3
EXACT = (Squares(), FieldIntegrals(), AtMeans(), ClassIntegrals())
"""Closed forms and grids for particular kinds of models; the first that suits is taken."""


def choose(model: Model) -> Expectation:
    """Return the expectation made for the kind of model, if any; else a grid for few smooth fields; else Sobol points."""
    if is_split(model):
        found = tuple(choose(part.model) for part in parts(model))
        return ClassSums(found[:1] if all(each == found[0] for each in found) else found)
    for exact in EXACT:
        if exact.supports(model):
            return exact
    smooth = model.network.smooth and model.target.readout.smooth and model.loss.quadratic
    if smooth and model.width + model.teachers + 1 <= MOST_GRID_DIMENSIONS:
        return NodeSums(GaussHermite())
    return NodeSums(Sobol())


def as_expectation(given: Rule | Expectation | None, model: Model) -> Expectation | None:
    """Return what the user gave as an `Expectation`, or raise `BadInput` if it does not suit the model; None stays None."""
    if given is None:
        return None
    asked = NodeSums(given) if isinstance(given, Rule) else given
    if isinstance(asked, Expectation) and not isinstance(asked, ClassSums) and is_split(at_start(model)):
        asked = ClassSums((asked,))
    if not isinstance(asked, Expectation) or not asked.supports(at_start(model)):
        needs = given.needs if isinstance(given, Expectation) else "to be a rule or an Expectation"
        raise BadInput(f"{type(given).__name__} needs {needs}. Leave out expectation, or give Sobol().")
    return asked


def for_tests(asked: Expectation | None, tested: Model) -> Expectation:
    """Return the expectation of a model without dropout, from that of its training where it was given."""
    if asked is None or is_split(tested):
        return choose(tested) if asked is None else asked
    own = asked.of[0] if isinstance(asked, ClassSums) else asked
    return own if own.supports(tested) else choose(tested)
