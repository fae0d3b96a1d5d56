r"""Lower bounds on the risk around a state, which prove that a run of the exact chain has not yet reached its exit risk.

`sgdlimits.kernel.stopping` uses them to skip evaluations of `exits` where the risk is an integral without a cheap closed form.

*Convexity.* Units have coordinates :math:`S_i` in an orthonormal frame, in which an input of class c is
:math:`u \sim N(b_c, \sigma^2I)`; the network is :math:`f = \sum_i a_is(S_i\cdot u)`, and the loss l is convex in f. For any
other state, with changes :math:`\Delta` and the same inputs,

.. math:: R' \ge R + E[l'(f)(f' - f)] = R + \nabla R\cdot\Delta + \sum_i\big( a_iE[l'e_i] + \Delta a_iE[l'(s_i' - s_i)]\big) ,

where :math:`e_i = s_i' - s_i - \dot s_i\,\Delta S_i\cdot u` is the nonlinear part of the change of unit i. The sum is at most
quadratic in :math:`\Delta`. With :math:`v_c^2 = \sigma^2 + |b_c|^2` its second term is at most
:math:`\sqrt{E l'^2\,E v_c^2}\,\max|\dot s|\,|\Delta a_i||\Delta S_i|`. For the cross-entropy :math:`E l'^2 \le R/2`, by
Pinsker's inequality, and for squares of weight w it is 4wR. The first term of smooth units is at most
:math:`\frac12\max|\ddot s|\sqrt{3\,E l'^2\,E v_c^4}\,|\Delta S_i|^2`.

*Kinks.* With slopes :math:`\alpha` below zero and :math:`\beta` above, :math:`|e_i|/|\beta - \alpha|` is the size of the new
field where the field changed its sign, and zero elsewhere. In a class let :math:`S_i` have length 1 and :math:`\sigma = 1`, and
the field :math:`\lambda` the mean m. A change along :math:`S_i` and one of length q across it make the new field
:math:`t\lambda + w`, where w does not depend on :math:`\lambda`, and :math:`E w^2 \le V^2q^2` with
:math:`V^2 = 1 + |b_c|^2 - m^2`. For t > 0 the mean of :math:`|e_i|` is at most :math:`Aq^2/t`, since the density of
:math:`\lambda` is at most :math:`1/\sqrt{2\pi}`, and at most Cq; for t < 0 it is at most :math:`U|t| + Cq`:

.. math:: A = \frac{V^2}{2\sqrt{2\pi}}, \qquad C = V\,\Phi(|m|), \qquad U = \sqrt{1 + m^2} .

The largest ratio of these bounds to :math:`(t - 1)^2 + q^2` is :math:`\frac12(A + \sqrt{A^2 + C^2})` for t > 0. For t < 0 it is
not larger, or it is :math:`(U^2 + C^2)/4U`. In general the ratio has the factor :math:`\sigma/|S_i|`. The cross-entropy of a
class with the label y has :math:`-y \le l' \le 1 - y`, of which one side lowers the risk: that of the sign of
:math:`a_i(\beta - \alpha)`.

*No noise.* For :math:`\sigma = 0` a field :math:`\lambda` that changes its sign by :math:`\Delta` ends at a size of at most
:math:`|\Delta| - |\lambda| \le \Delta^2/4|\lambda|`, and changes outside the span of the means have no effect.

*A cheap bound.* By Jensen's inequality a mean loss is at least the loss of the mean output :math:`\bar f_c` of each class,
:math:`R \ge \sum_cw_cl(\bar f_c)`, and :math:`\bar f_c` has a closed form for piecewise linear units. The bounds above hold for
this sum too, with :math:`l'(\bar f_c)` for l'.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, PyTree

from sgdlimits.expectation.additive import FieldIntegrals
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.kernel.stopping import QuadraticBound, register_bound
from sgdlimits.level.condition import Exits, RiskBelow
from sgdlimits.model.loss import CrossEntropy
from sgdlimits.model.sample import Model
from sgdlimits.model.target import ClassLabels
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.frame import Frame, overlaps_from_coordinates
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import STUDENT, rows_of

MIN_FIELD = 1e-8
"""Minimum size of noiseless fields in a bound; smaller ones change within the margin that bounds leave for rounding."""
MAX_ACCURATE_WIDTH = 2
"""Maximum network width at which the risk by quadrature and its derivatives are accurate in all states."""
MAX_GRID_ERROR = 1e-5
"""Maximum amount by which quadrature on a grid underestimates the risk of wider networks; reached where units coincide."""


@register_bound(Exits, ProjectionProblem)
@register_bound(RiskBelow, ProjectionProblem)
def exit_bound(process: Any, state: Any, memory: Any, cheap: bool) -> QuadraticBound | None:
    """Return a quadratic lower bound, around a state of the exact chain, on the excess of the risk over the exit risk."""
    if not isinstance(state, Frame) or state.m.ndim != 2:  # other levels; inputs of several blocks
        return None
    problem, k = process.problem, process.frame.shape[0]
    rows = rows_of(state.names, STUDENT, problem.network.width)
    S = jnp.concatenate([state.m[rows], state.T[:, rows].T], axis=1)
    bound = risk_bound(problem.expectation, problem.model, state.a, S, cheap)
    if bound is None:
        return None

    def to_frame(a, S) -> Frame:
        m = jnp.zeros_like(state.m).at[rows].set(S[:, :k])
        T = jnp.zeros_like(state.T).at[:, rows].set(S[:, k:].T)
        return Frame(a, m, T, jax.tree.map(jnp.zeros_like, state.kept), state.names)

    return QuadraticBound(bound.value - memory, to_frame(*bound.slope), to_frame(*bound.curvature))


@singledispatch
def risk_bound(
    expectation: Expectation, model: Model, a: Float[Array, " p"], S: Float[Array, "p n"], cheap: bool
) -> QuadraticBound | None:
    """Return a quadratic lower bound on the risk as a function of the weights, around given ones; None if none is known.

    Register a function for a new kind of expectation.

    Parameters
    ----------
    expectation, model : method by which the risk is computed, and the model
    a : second layer
    S : coordinates of the units in an orthonormal frame, those along the fixed directions first
    cheap : whether the bound must consist of few operations; its value may then be below the risk
    """
    return None


@risk_bound.register(FieldIntegrals)
def _(expectation, model, a, S, cheap):
    return None if cheap else network_bound(expectation, model, a, S)


@risk_bound.register(ClassIntegrals)
def _(expectation, model, a, S, cheap):
    accurate = model.network.width <= MAX_ACCURATE_WIDTH
    if not model.network.activation.kinked:
        return None
    if cheap:
        below = mean_bound(model, a, S)
        return below if accurate else below._replace(value=below.value - MAX_GRID_ERROR)
    return network_bound(expectation, model, a, S) if accurate else None


@risk_bound.register(AtMeans)
def _(expectation, model, a, S, cheap):
    return network_bound(expectation, model, a, S)  # without noise the risk itself is cheap


def network_bound(expectation: Any, model: Model, a: Float[Array, " p"], S: Float[Array, "p n"]) -> QuadraticBound | None:
    """Return a quadratic lower bound on the risk of a two-layer network from its value and gradient at given weights.

    The result is None if no such bound is known.
    """
    network, loss, readout = cast(Any, model.network), cast(Any, model.loss), cast(Any, model.target.readout)
    classes = isinstance(loss, CrossEntropy) and isinstance(readout, ClassLabels)
    derivative_bounds = network.activation.derivative_bounds if network.plain and (classes or loss.quadratic) else None
    if derivative_bounds is None or (network.activation.kinked and not classes):
        return None
    risk = lambda a, S: expectation.risk(model, a, model.law(overlaps_from_coordinates(a, S, model.frame)))
    value, slope = jax.value_and_grad(risk, argnums=(0, 1))(a, S)
    law = model.coordinates
    max_slope, max_curvature = derivative_bounds
    weights, squares = law.weights, _input_mean_squares(law)
    typical = jnp.sqrt(value / 2 if classes else 4 * loss.weight * value)  # bound on the root mean square of l'
    if network.activation.kinked:
        rows = jnp.abs(a) * (
            weights * _max_lowering_slope(model, a, jnp.asarray(readout.labels)) * _max_curvature(model, S)
        ).sum(1)
    else:
        rows = typical * max_curvature / 2 * jnp.sqrt(3 * (weights @ squares**2)) * jnp.abs(a)
    return _assemble_bound(model, value, slope, typical * max_slope * jnp.sqrt(weights @ squares) / 2, rows)


def mean_bound(model: Model, a: Float[Array, " p"], S: Float[Array, "p n"]) -> QuadraticBound:
    """Return a lower bound on the cross-entropy of a piecewise-linear network from the loss of its mean output per class."""
    network, law = cast(Any, model.network), model.coordinates
    labels = jnp.asarray(cast(Any, model.target.readout).labels)
    # E[max(x, 0)] of a Gaussian x is mean Phi(mean / length) + length phi(mean / length)
    unit, weights, centres, sigma = network.activation, law.weights, law.means.fixed, jnp.sqrt(law.variance)

    def mean_loss(a, S):
        length = sigma * jnp.linalg.norm(S, axis=1)[:, None]
        mean = S[:, : len(centres)] @ centres
        positive = mean * ndtr(mean / length) + length * jax.scipy.stats.norm.pdf(mean / length)
        output = network.factor * a @ (unit.left * mean + (unit.right - unit.left) * positive)
        return weights @ model.loss(output, labels), jax.nn.sigmoid(output) - labels

    (value, tilt), slope = jax.value_and_grad(mean_loss, argnums=(0, 1), has_aux=True)(a, S)
    both = weights @ (jnp.abs(tilt) * jnp.sqrt(_input_mean_squares(law))) * unit.derivative_bounds[0] / 2
    rows = jnp.abs(a) * (weights * jnp.abs(tilt) * _max_lowering_slope(model, a, tilt < 0) * _max_curvature(model, S)).sum(1)
    return _assemble_bound(model, value, slope, both, rows)


def _assemble_bound(model: Model, value: Array, slope: PyTree, both: Array, rows: Float[Array, " p"]) -> QuadraticBound:
    """Assemble a quadratic bound from the risk, its gradient and two curvatures, for all parameters and for single units.

    `both` is the curvature for all parameters; `rows` is added to `both` for each row of S, the coordinates of one unit.

    For inputs without variance, coordinates outside the span of the means have no effect, and a curvature of exactly zero.
    """
    acts = np.arange(slope[1].shape[1]) < model.teachers if model.has_inputs_at_means else True
    bend = jnp.full_like(slope[0], both), jnp.broadcast_to(jnp.where(acts, (both + rows)[:, None], 0.0), slope[1].shape)
    return QuadraticBound(value, slope, jax.tree.map(lambda leaf: abs(cast(Any, model.network).factor) * leaf, bend))


def _input_mean_squares(law: FieldLaw) -> Float[Array, " classes"]:
    """Return the largest mean square of an input along any direction, sigma^2 + |b_c|^2, for each class c."""
    return law.variance + (law.means.fixed**2).sum(0)


def _max_lowering_slope(model: Model, a: Float[Array, " p"], below: Float[Array, " classes"]) -> Float[Array, "p classes"]:
    """Return the maximum slope of the loss, by unit and class, in the direction in which the kink of a unit lowers the risk.

    The slope is between -`below` and 1 - `below`. The direction is the sign of a times the change of slope at the kink.
    """
    unit = cast(Any, model.network).activation
    return jnp.where((a * (unit.right - unit.left) > 0)[:, None], below, 1 - below)


def _max_curvature(model: Model, S: Float[Array, "p n"]) -> Float[Array, "p classes"]:
    """Return, by unit and class, a bound on the mean nonlinear part of a unit's change per squared change of its weights.

    The result bounds E|e_i|, for the change e_i of unit i beyond first order, over the squared change of its weights S_i.
    """
    unit, law = cast(Any, model.network).activation, model.coordinates
    centres = law.means.fixed
    if model.has_inputs_at_means:
        fields = jnp.maximum(jnp.abs(S[:, : len(centres)] @ centres), MIN_FIELD)
        return abs(unit.right - unit.left) * (centres**2).sum(0) / (4 * fields)
    sigma = jnp.sqrt(law.variance)
    length = sigma * jnp.linalg.norm(S, axis=1)[:, None]
    m = S[:, : len(centres)] @ centres / length
    across = 1 + ((centres / sigma) ** 2).sum(0) - m**2
    # letters of the module's docstring, with `across` for V^2
    A, C, U = across / np.sqrt(8 * np.pi), jnp.sqrt(across) * ndtr(jnp.abs(m)), jnp.sqrt(1 + m**2)
    ahead, back = (A + jnp.hypot(A, C)) / 2, (U**2 + C**2) / (4 * U)
    # `ahead` and `back` are the cases t > 0 and t < 0 of the module's docstring
    largest = jnp.where(2 * ahead < U, jnp.maximum(ahead, back), ahead)
    return abs(unit.right - unit.left) * law.variance / length * largest
