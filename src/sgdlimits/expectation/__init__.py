"""Expectations over one sample: drift moments, covariance and risk, by the method that fits the model."""

import sgdlimits._x64
from sgdlimits.expectation.additive import FieldIntegrals
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.choose import as_expectation, choose_expectation
from sgdlimits.expectation.class_sums import ClassSums
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.squares import ClosedForm, Squares
