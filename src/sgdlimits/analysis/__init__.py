"""What is read off trajectories, flows and landscapes."""

from sgdlimits.analysis import conserved as conserved, landscape as landscape
from sgdlimits.analysis.effective import EffectiveDynamics as EffectiveDynamics, effective_dynamics as effective_dynamics
from sgdlimits.analysis.exit_table import ExitTable as ExitTable, exit_table as exit_table
from sgdlimits.analysis.exit_times import exit_times as exit_times
from sgdlimits.analysis.fixed_points import FixedPoint as FixedPoint, FixedPoints as FixedPoints, fixed_points as fixed_points
from sgdlimits.analysis.landscape import Spectrum as Spectrum, hessian_spectrum as hessian_spectrum
from sgdlimits.analysis.linearise import Linearisation as Linearisation, linearise as linearise
from sgdlimits.analysis.local_limit import LocalLimit as LocalLimit, local_limit as local_limit
from sgdlimits.analysis.localizability import Localizability as Localizability
from sgdlimits.analysis.phases import Phases as Phases, phases as phases
from sgdlimits.analysis.summary import CensoredWarning as CensoredWarning, Summary as Summary, summarise as summarise
