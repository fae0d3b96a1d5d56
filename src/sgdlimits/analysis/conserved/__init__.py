"""Quantities that learning does not change, and the solution that they select among all those of zero risk."""

from sgdlimits.analysis.conserved.end_point import EndPoint, distance, end_point
from sgdlimits.analysis.conserved.functions import along, check
from sgdlimits.analysis.conserved.polar import phase, polar

__all__ = ["EndPoint", "along", "check", "distance", "end_point", "phase", "polar"]
