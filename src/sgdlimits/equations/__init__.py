"""The ODE of a problem as LaTeX."""

import sgdlimits._x64
from sgdlimits.equations.base import Equations, Row
from sgdlimits.equations.choose import equations_of
