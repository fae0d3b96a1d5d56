"""Escaping mediocrity: how long one-pass SGD stays on the plateau of phase retrieval, and at which learning rates it learns.

Formulas are numbered as in [1]_.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
"""

from sgdlimits.papers.mediocrity.theory.asymptotic import (
    EndRates as EndRates,
    EndState as EndState,
    end_rates as end_rates,
    free_end as free_end,
    free_max_lr as free_max_lr,
    plateau_series as plateau_series,
    second_only_risk as second_only_risk,
    terminal_risk as terminal_risk,
    trained_end as trained_end,
)
from sgdlimits.papers.mediocrity.theory.delay import delayed_share as delayed_share, noise_delay as noise_delay
from sgdlimits.papers.mediocrity.theory.finite_d import (
    drift_correction as drift_correction,
    plateau_correction as plateau_correction,
)
from sgdlimits.papers.mediocrity.theory.rates import (
    LearntState as LearntState,
    LinearRates as LinearRates,
    asymptotic_excess_risk as asymptotic_excess_risk,
    learnt_state as learnt_state,
    linear_rates as linear_rates,
    lr_for_risk as lr_for_risk,
    max_lr as max_lr,
    minimal_samples as minimal_samples,
    noise_gain as noise_gain,
    optimal_lr as optimal_lr,
    overparametrisation_gain as overparametrisation_gain,
    pair_max_lr as pair_max_lr,
    usable_gain as usable_gain,
    usable_lr as usable_lr,
    usable_optimal_lr as usable_optimal_lr,
)
from sgdlimits.papers.mediocrity.theory.times import (
    AVERAGES as AVERAGES,
    exit_law as exit_law,
    exit_time as exit_time,
    ode_exit_time as ode_exit_time,
)
from sgdlimits.renamed import names_of as _names_of

__getattr__ = _names_of("sgdlimits.theory.mediocrity")
