"""Trajectories: simulate, the dataset, files."""

from sgdlimits.trajectory.io import load, rerun, save
from sgdlimits.trajectory.schema import check, join
from sgdlimits.trajectory.simulate import DivergedWarning, simulate, stream

__all__ = ["DivergedWarning", "check", "join", "load", "rerun", "save", "simulate", "stream"]
