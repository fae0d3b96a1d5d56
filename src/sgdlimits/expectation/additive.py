"""Expectations for a squared loss and a readout that is a sum over units: integrals over the fields of two and four units."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import integer
from sgdlimits.domain import checked
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.gaussian import (
    ErfIntegrals,
    GaussHermite,
    IntegrationOrders,
    PiecewiseLinearIntegrals,
    Rule,
    SmoothIntegrals,
    Sobol,
    UnitIntegrals,
    polynomial_orders,
)
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.slopes import RiskDerivatives, autodiff_slopes, warn_if_inaccurate
from sgdlimits.expectation.unit_pairs import PairMoments, UnitPlane, compute_pair_moments, compute_unit_planes
from sgdlimits.model.activation import Activation, Erf, PiecewiseLinear, Polynomial
from sgdlimits.model.sample import Model
from sgdlimits.model.target import CommitteeReadout
from sgdlimits.statistics.frame import pad_frame
from sgdlimits.statistics.products import Moments

# A grid of lower order counts as too coarse for the fourth powers in the covariance, and Sobol points replace it.
MIN_GRID_ORDER = 14
MAX_GRID_ORDER = 32
MAX_COVARIANCE_NODES = 2**20
MAX_FLOATS_AT_ONCE = 2**19
# A unit of norm r varies on the scale 1/r of its field's normal variate, so the line needs nodes in proportion to r.
NODES_PER_NORM = 96
MAX_NODES = 480
SLOPE_ACCURACY = 1e-6
"""Relative error of the gradient and the Hessian of the risk above which users are warned."""


@checked
class FieldIntegrals(Expectation):
    """Expectations from Gaussian integrals over two and four fields, for a squared loss and committees (sums of units).

    The integrals have closed forms for erf units and for piecewise linear units, except for one integral over an angle in the
    term quadratic in the learning rate (corrector). They are exact for polynomials, and computed by quadrature for other smooth
    functions (see `sgdlimits.expectation.gaussian`).

    Parameters
    ----------
    order : quadrature nodes per dimension where no closed form is known; more nodes make smaller errors
    """

    supported_models: ClassVar[str] = (
        "a squared loss, a CommitteeReadout, centred data, and activations that are smooth or piecewise linear"
    )
    order: Annotated[int, integer(at_least=4)] = eqx.field(static=True, default=24)

    def supports(self, model):
        return choose_additive_integrals(model, self.order) is not None

    def tolerance(self, model):
        return 1e-9 if self._integrals(model).is_exact else 1e-7

    def accuracy(self, model):
        return None if self._integrals(model).is_exact else 1e-3

    @property
    def remedy(self):
        return f"Give the problem expectation=FieldIntegrals(order={2 * self.order})."

    def moments(self, model, a, law):
        return self._moments(model, a, law, self._integrals(model))

    def error(self, model, a, law):
        return self.estimate(model, a, law)[1]

    def estimate(self, model, a, law):
        integrals = self._integrals(model)
        fine, rough = (self._moments(model, a, law, units) for units in (integrals, integrals.with_fewer_nodes()))
        return fine, jax.tree.map(lambda a, b: jnp.abs(a - b), fine, rough)

    def risk(self, model, a, law):
        return self._loss(model, self._coefficients(model, a), law.blocks.matrix)

    def risk_of_factor(self, model, a, law):
        rows = jnp.concatenate(law.factor)
        noise = model.loss.weight * model.target.noise
        # Rounding can make a risk near the noise floor smaller than the floor.
        return jnp.maximum(self._loss(model, self._coefficients(model, a), rows @ rows.T), noise)

    def covariance(self, model, a, law, increment):
        return NodeSums(choose_covariance_rule(model)).covariance(model, a, law, increment)

    def runs_at_once(self, model):
        return max(1, MAX_FLOATS_AT_ONCE // self._integrals(model).floats_at_once)

    def slopes(self, model, a, S):
        """Assemble the gradient and the Hessian of the risk, in the coordinates S of the units, from moments of pairs of units.

        If the moments have no closed form, a second quadrature rule with fewer nodes estimates their error, and users are
        warned of a large error.
        """
        student, teacher = model.network.activation, model.target.readout.activation
        if isinstance(student, Erf) and isinstance(teacher, Erf):
            return autodiff_slopes(self.risk, model, a, S)
        sigma = math.sqrt(model.coordinates.variance)
        plane = compute_unit_planes(sigma * np.concatenate([S, pad_frame(model.frame, S.shape[1])]), len(S))
        largest = max(1.0, np.hypot(plane.first_components, plane.second_components).max())
        count = min(MAX_NODES, NODES_PER_NORM * math.ceil(largest))
        fine = _slopes_from_pairs(model, a, sigma, plane, compute_pair_moments(student, teacher, plane, count))
        if not self._integrals(model).is_exact:
            rough = _slopes_from_pairs(model, a, sigma, plane, compute_pair_moments(student, teacher, plane, 3 * count // 4))
            remedy = "Take units of smaller norm, or a smoother activation."
            warn_if_inaccurate(fine.span_block - rough.span_block, fine.span_block, SLOPE_ACCURACY, remedy)
        return fine

    def _moments(self, model, a, law, integrals) -> Moments:
        """Compute the expectations that give the drift of one run, from Gaussian integrals over two and four fields."""
        p, weight, factor = model.width, model.loss.weight, model.network.factor
        C, c = law.blocks.matrix, self._coefficients(model, a)
        value, slope, curvature = integrals.all_pairs(C)
        residual = value @ c
        # Stein's lemma: E[s'(x_i) y D] = Cov(y, x_i) E[s_i'' D] + sum_n c_n Cov(y, x_n) E[s_i' s_n'], for every field y.
        cross = (curvature[:p] @ c)[:, None] * C[:p] + (slope[:p] * c) @ C
        spread = integrals.corrector(C, c) + model.target.noise * slope[:p, :p]
        first = 2 * weight * factor * a[:, None]
        return Moments(
            loss=weight * (c @ residual + model.target.noise),
            gradient_fixed=first * cross[:, p:],
            gradient_field=first * cross[:, :p],
            gradient_gradient=first * first.T * spread,
            gradient_second=2 * weight * factor * residual[:p],
        )

    def _loss(self, model, c, C) -> Float[Array, ""]:
        """Compute the mean squared loss for coefficients `c` of the units in the residual and covariance `C` of the fields."""
        return model.loss.weight * (c @ self._integrals(model).all_pairs(C).value @ c + model.target.noise)

    @staticmethod
    def _coefficients(model, a) -> Float[Array, " n"]:
        """Return the coefficient of each unit in the residual: students with a plus sign, teachers with a minus sign."""
        return jnp.concatenate([model.network.factor * a, -model.target.readout.weights(model.teachers)])

    def _integrals(self, model) -> UnitIntegrals:
        """Return the Gaussian integrals for the model's units, with `self.order` nodes where they have no closed form."""
        integrals = choose_additive_integrals(model, self.order)
        assert integrals is not None, self.supported_models
        return integrals


def choose_additive_integrals(model: Model, order: int = 24) -> UnitIntegrals | None:
    """Return the Gaussian integrals for a model with a squared loss whose residual is a sum of units; None for other models.

    `order` is the number of quadrature nodes per dimension where the integrals have no closed form.
    """
    readout = model.target.readout
    if not (model.network.plain and model.loss.quadratic and isinstance(readout, CommitteeReadout) and model.centred):
        return None
    student, teacher = model.network.activation, readout.activation
    kind = type(student) if isinstance(teacher, type(student)) else Activation
    return choose_unit_integrals.dispatch(kind)(student, teacher, model.width, model.teachers, order)


@singledispatch
def choose_unit_integrals(student: Activation, teacher: Activation, p: int, k: int, order: int) -> UnitIntegrals | None:
    """Return the Gaussian integrals for p students of one activation and k teachers of another, or None if there are none.

    A class of activations with closed integrals registers them here, for two activations of that class. `order` is the number
    of quadrature nodes per dimension for activations without closed integrals.
    """
    return (
        SmoothIntegrals(p, student, teacher, IntegrationOrders.from_order(order)) if student.smooth and teacher.smooth else None
    )


@choose_unit_integrals.register
def _(student: Erf, teacher: Erf, p, k, order):
    return ErfIntegrals(students=p, gains=np.sqrt(2) * np.repeat([student.scale, teacher.scale], [p, k]))


@choose_unit_integrals.register
def _(student: PiecewiseLinear, teacher: PiecewiseLinear, p, k, order):
    left = np.repeat([student.left, teacher.left], [p, k])
    right = np.repeat([student.right, teacher.right], [p, k])
    return PiecewiseLinearIntegrals(students=p, odd=(right + left) / 2, even=(right - left) / 2)


@choose_unit_integrals.register
def _(student: Polynomial, teacher: Polynomial, p, k, order):
    return SmoothIntegrals(p, student, teacher, polynomial_orders(student.degree, teacher.degree), polynomials=True)


def choose_covariance_rule(model: Any) -> Rule:
    """Choose a quadrature rule for the covariance of one sample's increments: a grid if fine enough, else Sobol points."""
    student, teacher = model.network.activation, model.target.readout.activation
    finest = int(MAX_COVARIANCE_NODES ** (1 / (model.width + model.teachers + 1)))
    sufficient = MIN_GRID_ORDER
    if isinstance(student, Polynomial) and isinstance(teacher, Polynomial):
        sufficient = 2 * max(student.degree, teacher.degree) + 2 * student.degree - 1  # exact for (D s')^4
    if student.smooth and teacher.smooth and finest >= sufficient:
        return GaussHermite(min(finest, max(sufficient, MAX_GRID_ORDER)))
    return Sobol(log2_points=14)


def _slopes_from_pairs(model: Any, a: np.ndarray, sigma: float, plane: UnitPlane, pairs: PairMoments) -> RiskDerivatives:
    r"""Assemble the gradient and the Hessian of the risk from moments of pairs of units, for a squared loss.

    With the residual :math:`D = \sum_jc_js_j`, units :math:`s_j` with coefficients :math:`c_j`, and the weight w of the loss,
    the gradient in field j is :math:`G_j = 2wc_js_j'D`, and its derivative in field l is :math:`l_{jl} = 2w(c_jc_ls_j's_l' +
    \delta_{jl}c_js_j''D)`. The inputs have the standard deviation `sigma` along each direction.
    """
    p, n, weight = len(a), plane.directions.shape[-1], model.loss.weight
    c = np.concatenate([model.network.factor * a, -np.asarray(model.target.readout.weights(model.teachers))])
    first, e = 2 * weight * c[:p], plane.directions
    between, own = c[:p, None] * c[:p], np.diag(c[:p])
    gradient = np.einsum("m,jma,jmas->js", c, pairs.first_moments, e, optimize=True)
    slopes = np.einsum("jlab,jlas,jlbt->jslt", pairs.slopes.tensor, e[:, :p], e[:, :p], optimize=True)
    curvature = np.einsum("m,jmab,jmas,jmbt->jst", c, pairs.curvature.tensor, e, e, optimize=True)
    mean = 2 * weight * (between * pairs.slopes.mean + own * (pairs.curvature.mean @ c)[:, None])
    span = 2 * weight * (between[:, None, :, None] * slopes + np.einsum("jl,jst->jslt", own, curvature))
    span += np.einsum("jl,st->jslt", mean, np.eye(n))
    return RiskDerivatives(sigma * first[:, None] * gradient, sigma**2 * span, sigma**2 * mean)
