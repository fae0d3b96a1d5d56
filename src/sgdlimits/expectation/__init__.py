"""Averages over one sample: how each kind of model's expectations are computed, and which rule suits it."""

import sgdlimits._x64  # noqa: F401  (first: arrays are double precision)
from sgdlimits.expectation.additive import FieldIntegrals
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.choose import as_expectation, choose
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.expectation.nodes import ByRule, NodeSums
from sgdlimits.expectation.squares import ClosedForm, Squares

__all__ = [
    "AtMeans",
    "ByRule",
    "ClassIntegrals",
    "ClosedForm",
    "Expectation",
    "FieldIntegrals",
    "NodeSums",
    "Squares",
    "as_expectation",
    "choose",
]
