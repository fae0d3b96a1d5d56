"""Summary statistics of the weights, as overlaps or as coordinates in an orthonormal basis, and the law of the fields."""

import sgdlimits._x64
from sgdlimits.statistics.overlaps import Overlaps, weights
from sgdlimits.statistics.particles import Particles
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.values import Values
