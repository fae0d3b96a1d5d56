"""Trajectories: simulate, the dataset, files."""

from sgdlimits.trajectory.io import load, problem_of, rerun, save
from sgdlimits.trajectory.record import register
from sgdlimits.trajectory.schema import check, join
from sgdlimits.trajectory.simulate import DivergedWarning, simulate, stream
