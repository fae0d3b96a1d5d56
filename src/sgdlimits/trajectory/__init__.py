"""Trajectories: simulate, the dataset, files."""

from sgdlimits.trajectory.io import load, rerun, save
from sgdlimits.trajectory.schema import check
from sgdlimits.trajectory.simulate import DivergedWarning, simulate

__all__ = ["DivergedWarning", "check", "load", "rerun", "save", "simulate"]
