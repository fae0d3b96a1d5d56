"""Phases of learning, read off trajectories."""

from sgdlimits.papers.quadratic.phases.find import phases
from sgdlimits.papers.quadratic.phases.result import PHASES, Phases
