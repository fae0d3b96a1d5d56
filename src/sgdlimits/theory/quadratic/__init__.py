"""Quadratic networks: the plateau, the escape from it, the last decay, and the landscape [3]_.

.. [3] Bocchi, Regimbeau, Lucibello, Saglietti, Cammarota, *Escape dynamics and implicit bias of one-pass SGD in
   overparameterized quadratic networks*.
"""

from sgdlimits.theory.quadratic.critical import (
    CriticalPoints as CriticalPoints,
    critical_points as critical_points,
    degrees_of_freedom as degrees_of_freedom,
    solution_dimension as solution_dimension,
)
from sgdlimits.theory.quadratic.escape import (
    escape_time as escape_time,
    norm_gain as norm_gain,
    risk_on_plateau as risk_on_plateau,
)
from sgdlimits.theory.quadratic.family import CriticalFamily as CriticalFamily, Null as Null
from sgdlimits.theory.quadratic.learning_rate import halving_time as halving_time, optimal_lr as optimal_lr
from sgdlimits.theory.quadratic.norms import norm_learning as norm_learning, student_overlaps as student_overlaps
from sgdlimits.theory.quadratic.plateau import (
    LargestRates as LargestRates,
    PlateauRates as PlateauRates,
    fastest_escape_lr as fastest_escape_lr,
    largest_lr as largest_lr,
    plateau_norm as plateau_norm,
    plateau_rates as plateau_rates,
    plateau_risk as plateau_risk,
)
from sgdlimits.theory.quadratic.terminal import (
    TerminalDecay as TerminalDecay,
    stationary_norms as stationary_norms,
    stationary_risk as stationary_risk,
    terminal_decay as terminal_decay,
)
from sgdlimits.theory.quadratic.uneven import (
    UnevenFamily as UnevenFamily,
    uneven_critical_points as uneven_critical_points,
)
