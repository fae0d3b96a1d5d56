"""Escaping mediocrity: how long one-pass SGD stays on the plateau of phase retrieval, and at which learning rates it learns."""

from sgdlimits.theory.mediocrity.learning import (
    LearntState,
    asymptotic_excess_risk,
    learnt_state,
    lr_for_risk,
    usable_gain,
    usable_lr,
    usable_optimal_lr,
)
from sgdlimits.theory.mediocrity.rates import (
    LinearRates,
    linear_rates,
    max_lr,
    minimal_samples,
    noise_gain,
    optimal_lr,
    overparametrisation_gain,
)
from sgdlimits.theory.mediocrity.table import compare
from sgdlimits.theory.mediocrity.times import AVERAGES, exit_law, exit_time, ode_exit_time

__all__ = [
    "AVERAGES",
    "LearntState",
    "LinearRates",
    "asymptotic_excess_risk",
    "compare",
    "exit_law",
    "exit_time",
    "learnt_state",
    "linear_rates",
    "lr_for_risk",
    "max_lr",
    "minimal_samples",
    "noise_gain",
    "ode_exit_time",
    "optimal_lr",
    "overparametrisation_gain",
    "usable_gain",
    "usable_lr",
    "usable_optimal_lr",
]
