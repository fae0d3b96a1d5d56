"""What is followed: the summary statistics of weights, and their coordinates in a frame."""

import sgdlimits._x64  # noqa: F401  (first: arrays are double precision)
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.particles import Particles
from sgdlimits.statistics.spike import Spike

__all__ = ["Overlaps", "Particles", "Spike"]
