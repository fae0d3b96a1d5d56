r"""The gradient and the Hessian of the population risk in the frame of the statistics.

With the loss l of one sample, :math:`G_j = \partial l/\partial\lambda_j` and :math:`l_{jl} = \partial G_j/\partial\lambda_l`,

.. math:: \nabla_j R = E[G_j x], \qquad \nabla_j\nabla_l R = E[l_{jl}\, xx^\top].

In the orthonormal frame of the fixed and the trained directions the first has n coordinates and the second an n-by-n block.
Along any direction outside the frame the input is a normal number of variance :math:`\sigma^2`, independent of all fields:
there the gradient is zero, and the Hessian is :math:`\sigma^2E[l_{jl}]` along each direction, with no mixed terms.

How the expectations are computed is a matter of the problem's rule. Squared activations have a formula, sums of other units are
made of pairs (see `unit_pairs`), erf units and inputs without variance are differentiated in their closed form, classifiers
with kinks have a grid that is split there (see `kinked_classes`), and everything else is a sum over nodes that do not move
with the weights (see `node_sums`).
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.analysis.landscape.kinked_classes import kinked_class_hessian
from sgdlimits.analysis.landscape.node_sums import gradient_over_nodes, nodes_of, refuse_kinks, slopes_over_nodes
from sgdlimits.analysis.landscape.point import frame_rows
from sgdlimits.analysis.landscape.unit_pairs import PairMoments, Plane, kinked_moments, planes, smooth_moments
from sgdlimits.errors import AccuracyWarning, BadInput
from sgdlimits.gaussian import ErfIntegrals
from sgdlimits.gaussian.lines import gauss_hermite, trapezoid
from sgdlimits.problem.activation import PiecewiseLinear, Polynomial
from sgdlimits.problem.class_integrals import AtMeans, ClassIntegrals
from sgdlimits.problem.loss import SquaredLoss
from sgdlimits.problem.moments import ByRule, ClosedForm, FieldIntegrals, additive_integrals
from sgdlimits.problem.overlaps import Overlaps
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.target import CommitteeReadout

REACH = 9.0
NODES_A_NORM = 96
MOST_NODES = 480
ACCURACY = 1e-6
KINK = 1e-6


class Slopes(NamedTuple):
    """The gradient, the Hessian within the frame, and the block of the Hessian along each direction outside."""

    gradient: Float[np.ndarray, "p n"]
    span: Float[np.ndarray, "p n p n"]
    outside: Float[np.ndarray, "p p"]


def first_order(problem: ProjectionProblem, a: np.ndarray, S: Float[np.ndarray, "p n"]) -> Float[np.ndarray, "p n"]:
    """E[G x] in the frame, for units with coordinates S."""
    if _kinked_classes(problem):
        return _from_drift(problem, a, S)
    if _by_nodes(problem):
        return np.asarray(gradient_over_nodes(problem, nodes_of(problem, a, _padded(problem, S))))[:, : S.shape[1]]
    return _exact(problem, a, S).gradient


def second_order(problem: ProjectionProblem, a: np.ndarray, S: Float[np.ndarray, "p n"]) -> Slopes:
    """All of `Slopes`; `BadInput` where there is no Hessian, or no way to compute it with the problem's rule."""
    n, unit = S.shape[1], problem.network.activation
    if isinstance(unit, PiecewiseLinear) and not unit.smooth and not np.linalg.norm(S, axis=1).all():
        raise BadInput("there is no Hessian where a unit with a kink has zero weights. Give statistics with Q_jj above zero.")
    if not _by_nodes(problem):
        return _exact(problem, a, S)
    refuse_kinks(problem)
    nodes = nodes_of(problem, a, _padded(problem, S))
    gradient, span, outside = (np.asarray(leaf) for leaf in slopes_over_nodes(problem, nodes))
    return _by_stein(problem, S, Slopes(gradient[:, :n], span[:, :n, :, :n], outside))


def _exact(problem: ProjectionProblem, a: np.ndarray, S: np.ndarray) -> Slopes:
    if isinstance(problem.rule, ClosedForm):
        return _quadratic(problem, a, S)
    if isinstance(problem.rule, FieldIntegrals) and not isinstance(additive_integrals(problem), ErfIntegrals):
        return _additive(problem, a, S)
    if _kinked_classes(problem):
        return _kinked(problem, a, S)
    return _differentiated(problem, a, S)


def _kinked_classes(problem: ProjectionProblem) -> bool:
    unit = problem.network.activation
    return isinstance(problem.rule, (AtMeans, ClassIntegrals)) and isinstance(unit, PiecewiseLinear) and not unit.smooth


def _by_nodes(problem: ProjectionProblem) -> bool:
    return isinstance(problem.rule, ByRule) or (isinstance(problem.rule, ClassIntegrals) and not _kinked_classes(problem))


# --- squares ------------------------------------------------------------------------------------------------------------------


def _quadratic(problem: ProjectionProblem, a: np.ndarray, S: np.ndarray) -> Slopes:
    r"""Excess risk :math:`w\sigma^4[(\mathrm{tr}K)^2 + 2\mathrm{tr}K^2]` with :math:`K = \sum_jb_js_js_j^\top - B^\top RB`."""
    n, k = S.shape[1], problem.target.teachers
    B, R = frame_rows(problem, n), problem.target.readout.quadratic(k)
    assert R is not None, "checked when the rule was chosen"
    b, scale = problem.network.factor * a, 4 * _weight(problem) * float(problem.data.sigma) ** 4
    K = S.T @ (b[:, None] * S) - B.T @ np.asarray(R) @ B
    trace, one, bb = np.trace(K), np.eye(n), b[:, None] * b
    own = b[:, None, None] * (trace * one + 2 * K)
    span = np.einsum("jl,jst->jslt", np.eye(len(b)), own)
    span += 2 * np.einsum("jl,js,lt->jslt", bb, S, S) + 2 * np.einsum("jl,ls,jt->jslt", bb, S, S)
    span += 2 * np.einsum("jl,st->jslt", bb * (S @ S.T), one)
    outside = np.diag(b * trace) + 2 * bb * (S @ S.T)
    return Slopes(scale * np.einsum("jst,jt->js", own, S), scale * span, scale * outside)


# --- sums of units, squared loss ----------------------------------------------------------------------------------------------


def _additive(problem: ProjectionProblem, a: np.ndarray, S: np.ndarray) -> Slopes:
    """From pairs of units; where these are not exact, with a warning if fewer nodes say something else."""
    plane = planes(float(problem.data.sigma) * np.concatenate([S, frame_rows(problem, S.shape[1])]), len(S))
    assert isinstance(problem.target.readout, CommitteeReadout), "checked when the rule was chosen"
    student, teacher = problem.network.activation, problem.target.readout.activation
    if isinstance(student, PiecewiseLinear) and isinstance(teacher, PiecewiseLinear):
        return _from_pairs(problem, a, plane, kinked_moments(student, teacher, plane))
    if isinstance(student, Polynomial) and isinstance(teacher, Polynomial):
        line = gauss_hermite(max(student.degree, teacher.degree) + 2)
        return _from_pairs(problem, a, plane, smooth_moments(student, teacher, plane, line))
    largest = max(1.0, np.hypot(plane.along, plane.across).max())
    count = min(MOST_NODES, NODES_A_NORM * math.ceil(largest))
    fine, rough = (
        _from_pairs(problem, a, plane, smooth_moments(student, teacher, plane, trapezoid(nodes, REACH)))
        for nodes in (count, 3 * count // 4)
    )
    _warn_of(fine.span - rough.span, fine.span, ACCURACY, "Take units of smaller norm, or a smoother activation.")
    return fine


def _from_pairs(problem: ProjectionProblem, a: np.ndarray, plane: Plane, pairs: PairMoments) -> Slopes:
    r""":math:`G_j = 2wc_js_j'D`, :math:`l_{jl} = 2w(c_jc_ls_j's_l' + \delta_{jl}c_js_j''D)`, the residual D a sum of units."""
    p, n = len(a), plane.directions.shape[-1]
    assert isinstance(problem.target.readout, CommitteeReadout), "checked when the rule was chosen"
    teachers = np.asarray(problem.target.readout.weights(problem.target.teachers))
    c = np.concatenate([problem.network.factor * a, -teachers])
    first, sigma = 2 * _weight(problem) * c[:p], float(problem.data.sigma)
    e, between, own = plane.directions, c[:p, None] * c[:p], np.diag(c[:p])
    gradient = np.einsum("m,jma,jmas->js", c, pairs.first, e, optimize=True)
    slopes = np.einsum("jlab,jlas,jlbt->jslt", pairs.slopes.tensor, e[:, :p], e[:, :p], optimize=True)
    curvature = np.einsum("m,jmab,jmas,jmbt->jst", c, pairs.curvature.tensor, e, e, optimize=True)
    mean = 2 * _weight(problem) * (between * pairs.slopes.mean + own * (pairs.curvature.mean @ c)[:, None])
    span = 2 * _weight(problem) * (between[:, None, :, None] * slopes + np.einsum("jl,jst->jslt", own, curvature))
    span += np.einsum("jl,st->jslt", mean, np.eye(n))
    return Slopes(sigma * first[:, None] * gradient, sigma**2 * span, sigma**2 * mean)


# --- risks that are smooth functions of the overlaps --------------------------------------------------------------------------


def _differentiated(problem: ProjectionProblem, a: np.ndarray, S: np.ndarray) -> Slopes:
    """Automatic derivatives, with one more coordinate for the directions outside."""
    n = S.shape[1]
    arrays = jnp.asarray(a), jnp.asarray(_padded(problem, S, more=1))
    gradient, hessian = (np.asarray(leaf) for leaf in _automatic(problem, *arrays))
    return Slopes(gradient[:, :n], hessian[:, :n, :, :n], hessian[:, -1, :, -1])


@eqx.filter_jit
def _automatic(problem: ProjectionProblem, a: Array, S: Array) -> tuple[Array, Array]:
    B, k = problem.frame, problem.target.teachers
    risk = lambda S: problem.rule.loss(problem, Overlaps(a, S[:, :k] @ B.T, S @ S.T))  # noqa: E731
    return jax.grad(risk)(S), jax.hessian(risk)(S)


def _kinked(problem: ProjectionProblem, a: np.ndarray, S: np.ndarray) -> Slopes:
    """Classes and units with a kink. The gradient is that of the drift, which smooths what a class without noise does there."""
    n = S.shape[1]
    if isinstance(problem.rule, AtMeans):
        fields = S @ frame_rows(problem, n).T @ np.asarray(problem.data.means).T
        if (np.abs(fields) < KINK).any():
            raise BadInput("there is no Hessian where the mean of a class is at the kink of a unit. Give a finite snr.")
        return _differentiated(problem, a, S)._replace(gradient=_from_drift(problem, a, S))
    span, outside = kinked_class_hessian(problem, a, _padded(problem, S))
    return _by_stein(problem, S, Slopes(_from_drift(problem, a, S), span[:, :n, :, :n], outside))


def _from_drift(problem: ProjectionProblem, a: np.ndarray, S: np.ndarray) -> np.ndarray:
    """The gradient from its products with all directions, which the drift is made of."""
    rows = np.concatenate([S, frame_rows(problem, S.shape[1])])
    M, Q = S @ rows[len(S) :].T, S @ S.T
    products = _products(problem, Overlaps(jnp.asarray(a), jnp.asarray(M), jnp.asarray(Q)))
    return np.linalg.lstsq(rows, np.asarray(products).T, rcond=None)[0].T


@eqx.filter_jit
def _products(problem: ProjectionProblem, stats: Overlaps) -> Float[Array, "p p+k"]:
    moments = problem.rule.moments(problem, stats)
    return jnp.concatenate([moments.gradient_field, moments.gradient_fixed], axis=1)


# --- shared -------------------------------------------------------------------------------------------------------------------


def _weight(problem: ProjectionProblem) -> float:
    assert isinstance(problem.loss, SquaredLoss), "checked when the rule was chosen"
    return problem.loss.weight


def _padded(problem: ProjectionProblem, S: np.ndarray, more: int = 0) -> np.ndarray:
    """Units in the largest frame, so that states of any rank share what is compiled."""
    return np.pad(S, ((0, 0), (0, problem.network.width + problem.target.teachers + more - S.shape[1])))


def _by_stein(problem: ProjectionProblem, S: np.ndarray, slopes: Slopes) -> Slopes:
    r"""The slopes, with a warning where they miss Stein's lemma.

    Off the fixed directions it is :math:`E[G_jx] = \sum_l\sigma^2E[l_{jl}]u_l`, between sums that are computed independently.
    """
    k = problem.target.teachers
    expected = slopes.outside @ S[:, k:]
    largest = np.abs(slopes.outside).max() * np.abs(S).max() * np.ones(1)
    accuracy = problem.rule.accuracy(problem)
    assert accuracy is not None, "only closed forms have none"
    _warn_of(slopes.gradient[:, k:] - expected, largest, accuracy, problem.rule.remedy)
    return slopes


def _warn_of(error: np.ndarray, value: np.ndarray, tolerance: float, remedy: str) -> None:
    reached = np.abs(error).max(initial=0.0) / max(np.abs(value).max(), np.finfo(float).tiny)
    if not reached <= tolerance:
        warnings.warn(
            f"the derivatives of the risk have a relative error of about {reached:.1e}, above {tolerance:.1e}. {remedy}",
            AccuracyWarning,
            stacklevel=5,
        )
