"""What is learnt: problems and the parts they are made of."""

import sgdlimits._x64  # noqa: F401  (first: arrays are double precision)
from sgdlimits.problem import presets
from sgdlimits.problem.activation import Activation, Erf, PiecewiseLinear, Polynomial, hermite
from sgdlimits.problem.algorithm import OnePassSGD
from sgdlimits.problem.base import Problem
from sgdlimits.problem.class_integrals import AtMeans, ClassIntegrals
from sgdlimits.problem.data import Data, mixture
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.expansion import hermite_coefficients, information_exponent
from sgdlimits.problem.loss import CrossEntropy, SquaredLoss
from sgdlimits.problem.moments import ClosedForm, FieldIntegrals
from sgdlimits.problem.network import TwoLayer
from sgdlimits.problem.overlaps import Overlaps
from sgdlimits.problem.particles import Particles
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.spiked import Spike, SpikedTensor
from sgdlimits.problem.target import ClassLabels, CommitteeReadout, QuadraticReadout, Target

__all__ = [
    "Activation",
    "AtMeans",
    "ClassIntegrals",
    "ClassLabels",
    "ClosedForm",
    "CommitteeReadout",
    "CrossEntropy",
    "Data",
    "Directions",
    "Erf",
    "FieldIntegrals",
    "InitialWeights",
    "OnePassSGD",
    "Overlaps",
    "Particles",
    "PiecewiseLinear",
    "Polynomial",
    "Problem",
    "ProjectionProblem",
    "QuadraticReadout",
    "Spike",
    "SpikedTensor",
    "SquaredLoss",
    "Target",
    "TwoLayer",
    "hermite",
    "hermite_coefficients",
    "information_exponent",
    "mixture",
    "presets",
]
