"""The ODE of a problem as LaTeX."""

import sgdlimits._x64
from sgdlimits.analysis.equations.base import Equations, Row
from sgdlimits.analysis.equations.of_problem import equations_of_problem, latex
