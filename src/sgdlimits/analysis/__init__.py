"""What is read off trajectories and flows."""

from sgdlimits.analysis.effective import EffectiveDynamics, effective_dynamics
from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.fixed_points import FixedPoint, FixedPoints, fixed_points
from sgdlimits.analysis.linearise import Linearisation, linearise
from sgdlimits.analysis.local_limit import LocalLimit, local_limit
from sgdlimits.analysis.localizability import Localizability
from sgdlimits.analysis.summary import CensoredWarning, Summary, summarise

__all__ = [
    "CensoredWarning",
    "EffectiveDynamics",
    "FixedPoint",
    "FixedPoints",
    "Linearisation",
    "LocalLimit",
    "Localizability",
    "Summary",
    "effective_dynamics",
    "exit_times",
    "fixed_points",
    "linearise",
    "local_limit",
    "summarise",
]
