"""Simulations: the run loop, the dataset that it returns, and files."""

from sgdlimits.run.io import load, problem_of, rerun, save
from sgdlimits.run.record import register
from sgdlimits.run.schema import check, join
from sgdlimits.run.simulate import DivergedWarning, simulate, stream
