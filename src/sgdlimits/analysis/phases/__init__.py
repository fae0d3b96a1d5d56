"""Phases of learning, read off trajectories."""

from sgdlimits.analysis.phases.find import phases
from sgdlimits.analysis.phases.result import PHASES, Phases
