"""Quadratic networks: the landscape."""

from sgdlimits.theory.quadratic.counting import degrees_of_freedom, solution_dimension
from sgdlimits.theory.quadratic.critical import CriticalPoints, critical_points
from sgdlimits.theory.quadratic.family import CriticalFamily, Null

__all__ = ["CriticalFamily", "CriticalPoints", "Null", "critical_points", "degrees_of_freedom", "solution_dimension"]
