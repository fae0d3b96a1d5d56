"""Which rule computes a model's expectations, unless one is given."""

from __future__ import annotations

from sgdlimits.errors import BadInput
from sgdlimits.expectation.additive import FieldIntegrals
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.expectation.gaussian import GaussHermite, Rule, Sobol
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.squares import Squares
from sgdlimits.model.sample import Model

MOST_GRID_DIMENSIONS = 3
EXACT = (Squares(), FieldIntegrals(), AtMeans(), ClassIntegrals())
"""Rules for kinds of models, the first that suits is taken."""


def choose(model: Model) -> Expectation:
    """A rule made for the kind of model where there is one; a grid for few, smooth fields; Sobol points otherwise."""
    for rule in EXACT:
        if rule.suits(model):
            return rule
    smooth = model.network.smooth and model.target.readout.smooth and model.loss.quadratic
    if smooth and model.width + model.teachers + 1 <= MOST_GRID_DIMENSIONS:
        return NodeSums(GaussHermite())
    return NodeSums(Sobol())


def as_expectation(rule: Rule | Expectation | None, model: Model) -> Expectation | None:
    """A user's rule, or `BadInput` where it does not suit the model; None stays None."""
    if rule is None:
        return None
    asked = NodeSums(rule) if isinstance(rule, Rule) else rule
    if not isinstance(asked, Expectation) or not asked.suits(model):
        needs = asked.needs if isinstance(asked, Expectation) else "to be a rule"
        raise BadInput(f"{type(rule).__name__} needs {needs}. Leave out rule, or give Sobol().")
    return asked
