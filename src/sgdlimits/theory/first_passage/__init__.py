"""When a process first comes to a level: one-dimensional diffusions, and the ODE of a problem."""

from sgdlimits.theory.first_passage.backward import FirstPassage as FirstPassage, Law as Law
from sgdlimits.theory.first_passage.ode import ode_exit_times as ode_exit_times, passage_times as passage_times
from sgdlimits.theory.first_passage.ornstein_uhlenbeck import mean_exit_time as mean_exit_time
