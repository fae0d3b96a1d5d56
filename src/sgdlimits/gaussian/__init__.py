"""Expectations over Gaussian local fields."""

import sgdlimits._x64
from sgdlimits.gaussian.base import Estimate, Nodes, Rule
from sgdlimits.gaussian.erf import ErfIntegrals
from sgdlimits.gaussian.piecewise_linear import PiecewiseLinearIntegrals
from sgdlimits.gaussian.qmc import Sobol
from sgdlimits.gaussian.quadratic_forms import QuadraticSeries
from sgdlimits.gaussian.quadrature import GaussHermite, gauss_hermite
from sgdlimits.gaussian.smooth import Orders, SmoothIntegrals, polynomial_orders
from sgdlimits.gaussian.truncated import both_positive, positive_means, split_line, split_twice
from sgdlimits.gaussian.units import Pairs, UnitIntegrals
