"""Phases of learning in simulated runs."""

from sgdlimits.papers.quadratic.phases.find import phases
from sgdlimits.papers.quadratic.phases.result import PHASES, Phases
