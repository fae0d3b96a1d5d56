"""Sweeps: a problem at many points, in one process or many, safe against every interruption."""

from sgdlimits.sweeps.collect import collect, export
from sgdlimits.sweeps.design import grid, random_points
from sgdlimits.sweeps.job import SweepFailed, SweepStopped, sweep
from sgdlimits.sweeps.refine import Refine
from sgdlimits.sweeps.store import SweepWarning
