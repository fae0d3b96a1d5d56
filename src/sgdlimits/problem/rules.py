"""Which rule computes a problem's expectations, unless one is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgdlimits.gaussian import GaussHermite, Sobol
from sgdlimits.problem.class_integrals import AtMeans, ClassIntegrals
from sgdlimits.problem.loss import SquaredLoss
from sgdlimits.problem.moments import ByRule, ClosedForm, FieldIntegrals, MomentRule

if TYPE_CHECKING:
    from sgdlimits.problem.projection import ProjectionProblem

MOST_GRID_DIMENSIONS = 3
EXACT = (ClosedForm(), FieldIntegrals(), AtMeans(), ClassIntegrals())
"""Rules for kinds of problems, the first that applies is taken."""


def choose_rule(problem: ProjectionProblem) -> MomentRule:
    """A rule made for the kind of problem where there is one; a grid for few, smooth fields; Sobol points otherwise."""
    for rule in EXACT:
        if rule.applies(problem):
            return rule
    smooth = problem.network.activation.smooth and problem.target.readout.smooth and isinstance(problem.loss, SquaredLoss)
    if smooth and problem.network.width + problem.target.teachers + 1 <= MOST_GRID_DIMENSIONS:
        return ByRule(GaussHermite())
    return ByRule(Sobol())
