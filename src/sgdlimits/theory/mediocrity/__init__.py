"""Escaping mediocrity: how long one-pass SGD stays on the plateau of phase retrieval, and at which learning rates it learns."""

from sgdlimits.theory.mediocrity.asymptotic import EndState, free_end, free_max_lr, plateau_series, trained_end
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
from sgdlimits.theory.mediocrity.second_layer import EndRates, end_rates, second_only_risk, terminal_risk
from sgdlimits.theory.mediocrity.times import AVERAGES, exit_law, exit_time, ode_exit_time

__all__ = [
    "AVERAGES",
    "EndRates",
    "EndState",
    "LearntState",
    "LinearRates",
    "asymptotic_excess_risk",
    "end_rates",
    "exit_law",
    "exit_time",
    "free_end",
    "free_max_lr",
    "learnt_state",
    "linear_rates",
    "lr_for_risk",
    "max_lr",
    "minimal_samples",
    "noise_gain",
    "ode_exit_time",
    "optimal_lr",
    "overparametrisation_gain",
    "plateau_series",
    "second_only_risk",
    "terminal_risk",
    "trained_end",
    "usable_gain",
    "usable_lr",
    "usable_optimal_lr",
]
