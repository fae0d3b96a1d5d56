"""Expectations over Gaussian local fields."""

import sgdlimits._x64  # noqa: F401  (first: arrays are double precision)
from sgdlimits.gaussian.base import Estimate, Nodes, Rule
from sgdlimits.gaussian.closed_form import QuadraticSeries
from sgdlimits.gaussian.qmc import Sobol
from sgdlimits.gaussian.quadrature import GaussHermite

__all__ = ["Estimate", "GaussHermite", "Nodes", "QuadraticSeries", "Rule", "Sobol"]
