"""Phases of learning, read off trajectories."""

from sgdlimits.analysis.phases.find import phases as phases
from sgdlimits.analysis.phases.result import PHASES as PHASES, Phases as Phases
