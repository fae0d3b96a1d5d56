"""What is read off trajectories, flows and landscapes."""

from sgdlimits.analysis import conserved, landscape
from sgdlimits.analysis.correction import Trust, expansion, trust
from sgdlimits.analysis.effective import EffectiveDynamics, effective_dynamics
from sgdlimits.analysis.exit_table import ExitTable, exit_table
from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.fixed_points import FixedPoint, FixedPoints, fixed_points
from sgdlimits.analysis.landscape import Spectrum, hessian_spectrum
from sgdlimits.analysis.local_limit import Linearisation, LocalLimit, linearise, local_limit
from sgdlimits.analysis.localizability import Localizability
from sgdlimits.analysis.phases import Phases, phases
from sgdlimits.analysis.summary import Summary, summarise
