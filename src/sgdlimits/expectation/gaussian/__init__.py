"""Expectations over Gaussian vectors: quadrature rules and closed integrals."""

import sgdlimits._x64
from sgdlimits.expectation.gaussian.base import Estimate, Nodes, Rule
from sgdlimits.expectation.gaussian.erf import ErfIntegrals
from sgdlimits.expectation.gaussian.piecewise_linear import PiecewiseLinearIntegrals
from sgdlimits.expectation.gaussian.qmc import Sobol
from sgdlimits.expectation.gaussian.quadratic_forms import QuadraticSeries
from sgdlimits.expectation.gaussian.quadrature import GaussHermite, gauss_hermite
from sgdlimits.expectation.gaussian.smooth import IntegrationOrders, SmoothIntegrals, polynomial_orders
from sgdlimits.expectation.gaussian.truncated import means_where_positive, probability_both_positive, split_line, split_twice
from sgdlimits.expectation.gaussian.units import PairIntegrals, UnitIntegrals
