"""Quadratic networks: the plateau, the escape from it, the last decay, and the landscape [3]_.

.. [3] Bocchi, Regimbeau, Lucibello, Saglietti, Cammarota, *Escape dynamics and implicit bias of one-pass SGD in
   overparameterized quadratic networks*.
"""

from sgdlimits.papers.quadratic.theory.critical import (
    CriticalPoints as CriticalPoints,
    critical_points as critical_points,
    degrees_of_freedom as degrees_of_freedom,
    solution_dimension as solution_dimension,
)
from sgdlimits.papers.quadratic.theory.escape import (
    escape_time as escape_time,
    norm_gain as norm_gain,
    risk_on_plateau as risk_on_plateau,
)
from sgdlimits.papers.quadratic.theory.family import CriticalFamily as CriticalFamily, NullDirections as NullDirections
from sgdlimits.papers.quadratic.theory.learning_rate import halving_time as halving_time, optimal_lr as optimal_lr
from sgdlimits.papers.quadratic.theory.norms import norm_learning as norm_learning, student_overlaps as student_overlaps
from sgdlimits.papers.quadratic.theory.plateau import (
    LargestRates as LargestRates,
    PlateauRates as PlateauRates,
    fastest_escape_lr as fastest_escape_lr,
    largest_lr as largest_lr,
    plateau_norm as plateau_norm,
    plateau_rates as plateau_rates,
    plateau_risk as plateau_risk,
)
from sgdlimits.papers.quadratic.theory.terminal import (
    TerminalDecay as TerminalDecay,
    stationary_norms as stationary_norms,
    stationary_risk as stationary_risk,
    terminal_decay as terminal_decay,
)
from sgdlimits.papers.quadratic.theory.uneven import (
    UnevenFamily as UnevenFamily,
    uneven_critical_points as uneven_critical_points,
)
from sgdlimits.renamed import names_of as _names_of

__getattr__ = _names_of("sgdlimits.theory.quadratic")
