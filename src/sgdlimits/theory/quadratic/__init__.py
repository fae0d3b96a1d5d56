"""Quadratic networks: the plateau, the escape from it, the last decay, and the landscape."""

from sgdlimits.theory.quadratic.counting import degrees_of_freedom, solution_dimension
from sgdlimits.theory.quadratic.critical import CriticalPoints, critical_points
from sgdlimits.theory.quadratic.escape import escape_time, norm_gain, risk_on_plateau
from sgdlimits.theory.quadratic.family import CriticalFamily, Null
from sgdlimits.theory.quadratic.learning_rate import halving_time, optimal_lr
from sgdlimits.theory.quadratic.plateau import (
    LargestRates,
    PlateauRates,
    fastest_escape_lr,
    largest_lr,
    plateau_norm,
    plateau_rates,
    plateau_risk,
)
from sgdlimits.theory.quadratic.terminal import TerminalDecay, stationary_norms, stationary_risk, terminal_decay

__all__ = [
    "CriticalFamily",
    "CriticalPoints",
    "LargestRates",
    "Null",
    "PlateauRates",
    "TerminalDecay",
    "critical_points",
    "degrees_of_freedom",
    "escape_time",
    "fastest_escape_lr",
    "halving_time",
    "largest_lr",
    "norm_gain",
    "optimal_lr",
    "plateau_norm",
    "plateau_rates",
    "plateau_risk",
    "risk_on_plateau",
    "solution_dimension",
    "stationary_norms",
    "stationary_risk",
    "terminal_decay",
]
