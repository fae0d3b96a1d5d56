"""Sweeps: simulations of a problem at many parameter values, in one process or many, safe against interruption."""

from sgdlimits.run.sweeps.collect import collect, export
from sgdlimits.run.sweeps.design import grid, random_points
from sgdlimits.run.sweeps.job import SweepFailed, SweepStopped, sweep
from sgdlimits.run.sweeps.refine import Refine
from sgdlimits.run.sweeps.store import SweepWarning
