"""Fixed points of the ODE: points or manifolds, their eigenvalues, stability, symmetries and basins."""

from sgdlimits.analysis.fixed_points.find import fixed_points
from sgdlimits.analysis.fixed_points.result import FixedPoint, FixedPoints, SearchInterrupted
