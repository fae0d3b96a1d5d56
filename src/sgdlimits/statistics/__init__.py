"""What is followed: the summary statistics of weights, and their coordinates in a frame."""

import sgdlimits._x64
from sgdlimits.statistics.overlaps import Overlaps, weights
from sgdlimits.statistics.particles import Particles
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.values import Values
