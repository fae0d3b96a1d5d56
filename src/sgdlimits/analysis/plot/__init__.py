"""Plots: functions from datasets to matplotlib Axes, which neither simulate nor write files."""

from sgdlimits.analysis.plot.animate import animate
from sgdlimits.analysis.plot.overlaps import overlaps
from sgdlimits.analysis.plot.overview import overview
from sgdlimits.analysis.plot.phase_diagram import phase_diagram
from sgdlimits.analysis.plot.risk import risk
from sgdlimits.analysis.plot.style import PAPER, samples_axis
from sgdlimits.analysis.plot.survival import survival
