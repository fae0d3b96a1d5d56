"""Summary statistics of the weights, their coordinates in a frame, and the law of the fields that follows from them."""

import sgdlimits._x64
from sgdlimits.statistics.overlaps import Overlaps, weights
from sgdlimits.statistics.particles import Particles
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.values import Values
