"""Detection of the phases of learning in simulated runs, and of their rates."""

from sgdlimits.papers.quadratic.phases.find import phases
from sgdlimits.papers.quadratic.phases.result import PHASES, Phases
