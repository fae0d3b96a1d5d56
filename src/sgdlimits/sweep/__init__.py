"""Sweeps: a problem at many points, in one process or many, safe against every interruption."""

from sgdlimits.sweep.collect import collect, export
from sgdlimits.sweep.design import grid, random_points
from sgdlimits.sweep.refine import Refine
from sgdlimits.sweep.store import SweepWarning
from sgdlimits.sweep.sweep import SweepFailed, SweepStopped, sweep
