"""Learning problems: statistics of SGD with their drift, covariance and risk."""

import sgdlimits._x64
from sgdlimits.problem import presets
from sgdlimits.problem.base import Problem
from sgdlimits.problem.basis import GridSplines, Polynomials
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.spiked import SpikedTensor
from sgdlimits.problem.surrogate import Surrogate
