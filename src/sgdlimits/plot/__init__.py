"""Plots: datasets in, matplotlib Axes out. They never simulate and never choose a path."""

from sgdlimits.plot.animate import animate
from sgdlimits.plot.overlaps import overlaps
from sgdlimits.plot.overview import overview
from sgdlimits.plot.phase_diagram import phase_diagram
from sgdlimits.plot.risk import risk
from sgdlimits.plot.style import PAPER, samples_axis
from sgdlimits.plot.survival import survival
