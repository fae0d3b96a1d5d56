"""When a process first comes to a level: one-dimensional diffusions, and the ODE of a problem."""

from sgdlimits.theory.first_passage.backward import FirstPassage, Law
from sgdlimits.theory.first_passage.ode import ode_exit_times
from sgdlimits.theory.first_passage.ornstein_uhlenbeck import mean_exit_time

__all__ = ["FirstPassage", "Law", "mean_exit_time", "ode_exit_times"]
