"""What is learnt: problems and the parts they are made of."""

import sgdlimits._x64  # noqa: F401  (first: arrays are double precision)
from sgdlimits.problem import presets
from sgdlimits.problem.algorithm import OnePassSGD
from sgdlimits.problem.base import Problem
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.spiked import SpikedTensor

__all__ = [
    "Directions",
    "InitialWeights",
    "OnePassSGD",
    "Problem",
    "ProjectionProblem",
    "SpikedTensor",
    "presets",
]
