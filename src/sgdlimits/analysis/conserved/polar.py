"""The orthogonal polar factor of the overlaps, which quadratic networks conserve, and the zero-risk solution it selects."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from sgdlimits.analysis.origin import build_dataset_over_times
from sgdlimits.checks import either, instance, statistics as a_statistics
from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.expectation import Squares
from sgdlimits.inputs import Mixture
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.run.record import from_json
from sgdlimits.run.schema import check_form, statistics
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import to_batch

MAX_COMMUTATOR = 1e-10
"""Largest norm of a commutator of two matrices, relative to their norms, at which the matrices count as commuting."""
# the check of the argument `point`; by name, as the class is defined below
POINT_CHECK = either(
    "Overlaps, or what end_point returns",
    "Give, for instance, end_point(...).",
    a_statistics,
    instance(__name__, "EndPoint", "", ""),
)
MIN_SINGULAR_VALUE = 1e-13
"""Fraction of the largest singular value below which a singular value of the overlaps M counts as zero."""


@checked
def phase(stats: Overlaps) -> Float[Array, "p k"]:
    r"""Return the orthogonal polar factor S of one run's overlaps, :math:`M = S\,(M^\top M)^{1/2}`: (22) of Bocchi et al. [3]_.

    M are the overlaps of p students with k teachers; for p < k S is :math:`(MM^\top)^{-1/2} M`. With the singular value
    decomposition :math:`M = A\Sigma B^\top`, :math:`S = AB^\top`, which is as exact for small M as for large, and
    differentiable also where singular values are equal.

    >>> import sgdlimits as sl
    >>> phase(sl.Overlaps([1.0, 1.0], [[2e-9], [0.0]], [[1.0, 0.0], [0.0, 1.0]])).ravel().tolist()
    [1.0, 0.0]
    """
    if not hasattr(stats, "M"):
        raise BadInput(f"stats must have overlaps M; got {type(stats).__name__}. Give Overlaps(a, M, Q).")
    return _differentiable_orthogonal_part(stats.M)


# the derivatives of singular vectors diverge where singular values are equal; that of their product does not
@jax.custom_jvp
def _differentiable_orthogonal_part(M: Float[Array, "p k"]) -> Float[Array, "p k"]:
    """Return the orthogonal polar factor of a matrix M, with a derivative that is defined for equal singular values too."""
    A, _, B = jnp.linalg.svd(M, full_matrices=False)
    return A @ B


@_differentiable_orthogonal_part.defjvp
def _orthogonal_part_jvp(primals, tangents):
    """Return the orthogonal polar factor of M and its directional derivative along dM."""
    (M,), (dM,) = primals, tangents
    A, values, B = jnp.linalg.svd(M, full_matrices=False)
    X = A.T @ dM @ B.T
    # sums of singular values, never differences: finite also where they are equal
    inside = A @ ((X - X.T) / (values[:, None] + values)) @ B
    left, right = dM - A @ (A.T @ dM), dM - (dM @ B.T) @ B
    return A @ B, inside + left @ (B.T / values) @ B + A @ (A / values).T @ right


@checked
def polar(dataset: xr.Dataset, *, tolerance: Positive = 1e-6) -> xr.Dataset:
    r"""Return the orthogonal polar factor S of the overlaps M along the runs of a dataset, and test whether S is conserved.

    M, Q and P are the overlaps of students with teachers, of students, and of teachers. For squared units with a fixed second
    layer of equal entries, off the sphere, and orthonormal teachers, S is constant under the ODE if and only if Q commutes with
    :math:`MM^\top`. If the two commute at the start, as from `OrthogonalInit`, they commute at all times, at any learning rate
    (docs/implicit_bias.md). For other teachers it is sufficient that Q also commutes with :math:`MPM^\top`, and P with
    :math:`M^\top M`. At finite d the changes of S are of order :math:`d^{-1/2}`.

    The dataset has `S` over run, t, student and teacher; over run and t `drift`, the largest change of an entry since the first
    saved time, `frobenius`, the Frobenius norm of the change, and `least`, the smallest singular value of M, which sets the
    scale for errors in M; per run `commutator`, the largest norm of the three commutators at the first saved time, relative to
    the norms of the matrices, `commutes`, whether `commutator` is below 1e-10, and `conserved`.

    Parameters
    ----------
    dataset : a dataset of `simulate`, with overlaps M of full rank at all times
    tolerance : largest change of an entry of S that counts as conserved

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
    >>> runs = sl.simulate(problem, sl.ODE(), sl.OrthogonalInit(0.1), t_max=100, save=5)
    >>> found = polar(runs)
    >>> bool(found.commutes[0]), bool(found.drift.max() < 1e-12)
    (True, True)
    """
    stats = overlaps_in(dataset)
    S, least = orthogonal_part(stats.M)
    change = S - S[:, :1]
    drift = np.abs(change).max((-2, -1))
    P = np.asarray(from_json(dataset.attrs["problem"]).directions.gram)
    commutator = _commutator(np.asarray(stats.M)[:, 0], np.asarray(stats.Q)[:, 0], P)
    variables = {
        "S": (("run", "t", "student", "teacher"), S, {"long_name": "orthogonal part of M"}),
        "drift": (("run", "t"), drift, {"long_name": "largest change of an entry of S"}),
        "frobenius": (("run", "t"), np.linalg.norm(change, axis=(-2, -1)), {"long_name": "norm of the change of S"}),
        "least": (("run", "t"), least, {"long_name": "smallest singular value of M"}),
        "commutator": ("run", commutator, {"long_name": "largest commutator at the start, relative"}),
        "commutes": ("run", commutator <= MAX_COMMUTATOR),
        "conserved": ("run", drift.max(1) <= tolerance),
    }
    return build_dataset_over_times(dataset, variables, tolerance=tolerance)


def orthogonal_part(M) -> tuple[np.ndarray, np.ndarray]:
    """Return the orthogonal polar factors of a batch of matrices and their smallest singular values.

    Raise `BadInput` if one of the matrices does not have full rank.
    """
    A, values, B = np.linalg.svd(np.asarray(M), full_matrices=False)
    if not (values[..., -1] > MIN_SINGULAR_VALUE * values[..., 0]).all():
        worst = min(values.reshape(-1, values.shape[-1]).tolist(), key=lambda row: row[-1])
        raise BadInput(
            f"M must have full rank, or the orthogonal factor of its polar decomposition is not unique; got the "
            f"singular values {worst}. "
            "Start from independent overlaps, such as those of OrthogonalInit(0.01)."
        )
    return A @ B, values[..., -1]


def _commutator(M: np.ndarray, Q: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Return the largest commutator of overlaps Q, M, P, relative to its factors: [Q, M Mᵀ], [Q, M P Mᵀ] or [P, Mᵀ M]."""
    norm = lambda X: np.linalg.norm(X, axis=(-2, -1))
    apart = lambda X, Y: norm(X @ Y - Y @ X) / (norm(X) * norm(Y))
    Mt = M.swapaxes(-1, -2)
    return np.max([apart(Q, M @ Mt), apart(Q, M @ P @ Mt), apart(P, Mt @ M)], axis=0)


def overlaps_in(dataset: xr.Dataset) -> Overlaps:
    """Return the overlaps in a dataset, runs and times first, or raise `BadInput` if the dataset has other statistics."""
    stats = statistics(check_form(dataset))
    if not isinstance(stats, Overlaps):
        raise BadInput(
            f"dataset= must have overlaps M and Q; got {type(stats).__name__}. Give a dataset of a quadratic network."
        )
    if stats.has_blocks:
        raise BadInput(
            "the polar factor of the overlaps does not support inputs with blocks of variances. "
            "Simulate inputs of a single variance."
        )
    return stats


class EndPoint(NamedTuple):
    """Statistics of the zero-risk weights closest to a start, and the distance of these weights from the start.

    Parameters
    ----------
    stats : statistics of the solution
    S : orthogonal polar factor of the start's overlaps M, which determines the solution, shape (p, k)
    distance : Euclidean distance from the start in the space of weights
    """

    stats: Overlaps
    S: Float[np.ndarray, "*runs p k"]
    distance: Float[np.ndarray, "*runs"]


@checked
def end_point(problem: Problem, start: Overlaps) -> EndPoint:
    r"""Return the zero-risk solution of a quadratic network that is closest to a start: (17) to (21) of Bocchi et al. [3]_.

    For p students and k teachers, the rows of E, the weights of zero risk are :math:`\bar U = g S E` with
    :math:`S^\top S = 1` and :math:`g = \sqrt{p/k}`. With the Gram matrix P of the teachers and the overlaps :math:`M_0` and
    :math:`Q_0` of the start :math:`U_0`, the distance of these weights from the start is

    .. math:: |\bar U - U_0|^2 = \mathrm{tr}\,Q_0 + g^2\,\mathrm{tr}\,P - 2g\,\mathrm{tr}(S^\top M_0),

    and is least where S is the orthogonal polar factor of :math:`M_0` (Procrustes). There :math:`M = gSP`,
    :math:`Q = g^2SPS^\top`.

    The ODE ends at this solution if S is conserved (`polar`), as from `OrthogonalInit`. From other starts, such as orthogonal
    students of different norms, the ODE ends at another solution (docs/implicit_bias.md). Label noise keeps the ODE away from
    the solution by an amount that vanishes with the learning rate. For p < k no solution has zero risk; the least risk has
    :math:`SS^\top = 1` and, for orthonormal teachers, :math:`g^2 = \frac pk\frac{k+2}{p+2}`, and gradient flow ends there.

    Parameters
    ----------
    problem : squared units that learn a sum of squares, off the sphere, such as `presets.quadratic_network`
    start : overlaps of one run, or of several, runs first

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=4, teachers=2)
    >>> end = end_point(problem, sl.OrthogonalInit(0.1).one(problem))
    >>> end.S.shape, round(float(end.stats.Q.trace()), 12)
    ((4, 2), 4.0)
    """
    if not isinstance(start, Overlaps):
        raise BadInput(f"start must be Overlaps; got {type(start).__name__}. Give, say, OrthogonalInit(0.1).one(problem).")
    gain, P = _solution_gain(problem, start), np.asarray(problem.directions.gram)
    problem.coordinates.check(start if np.ndim(start.M) == 3 else to_batch(start))
    S, _ = orthogonal_part(start.M)
    M = gain * S @ P
    Q = gain**2 * S @ P @ S.swapaxes(-1, -2)
    # |W - W'|^2 = tr Q + tr Q' - 2 tr W W'^T
    square = np.linalg.trace(np.asarray(start.Q)) + np.linalg.trace(Q) - 2 * gain * (S * np.asarray(start.M)).sum((-2, -1))
    return EndPoint(Overlaps(start.a, M, Q), S, np.sqrt(np.maximum(square, 0.0)))


def _solution_gain(problem: Problem, start: Overlaps) -> float:
    """Return the factor g for which the weights g S E have the least risk, with the teachers E and an orthogonal matrix S.

    Raise `BadInput` if the problem has no solution of this form.
    """
    if not (isinstance(problem, ProjectionProblem) and isinstance(problem.data, Mixture) and Squares().supports(problem.model)):
        raise BadInput("end_point needs squared units and a quadratic target. Take presets.quadratic_network.")
    if problem.algorithm.sphere or problem.algorithm.trains_second or float(problem.algorithm.ridge):
        raise BadInput(
            "end_point needs a problem with sphere=False, ridge=0 and a fixed second layer. Take presets.quadratic_network."
        )
    a, P = np.asarray(start.a), np.asarray(problem.target.gram)
    p, k = problem.network.width, problem.target.teachers
    R = np.asarray(problem.target.readout.quadratic(k))
    if not (np.allclose(R, R[0, 0] * np.eye(k), rtol=1e-12) and R[0, 0] > 0 and np.ptp(a) == 0 and a.flat[0] > 0):
        raise BadInput(
            "end_point needs teachers of equal positive weight and a second layer of equal positive weights; "
            f"got {np.diagonal(R).tolist()} and {np.unique(a).tolist()}. Take presets.quadratic_network."
        )
    if p < k and not np.allclose(P, np.eye(k)):
        raise BadInput(
            f"a width of {p}, below the {k} teachers, needs orthonormal teachers; got P = {P.tolist()}. Give width={k}."
        )
    network: Any = problem.network
    return float(np.sqrt(R[0, 0] / (network.factor * a.flat[0]) * (k + 2) / (min(p, k) + 2)))


@checked
def distance(dataset: xr.Dataset, point: Annotated[Overlaps | EndPoint, POINT_CHECK]) -> xr.Dataset:
    r"""Return the distance of the runs of a dataset from a given solution, in statistics and in weights.

    The dataset over run and t has `M` and `Q`, the Frobenius norms of the differences between the overlaps M and Q of a run
    and those of the solution, :math:`\bar M` and :math:`\bar Q`, and `weights`, the Euclidean distance of the weights,
    :math:`\sqrt{\mathrm{tr}\,Q + \mathrm{tr}\,\bar Q - 2\,\mathrm{tr}(MP^{-1}\bar M^\top)}` for the teachers' Gram matrix P.

    Parameters
    ----------
    dataset : a dataset of `simulate`
    point : an `EndPoint`, or the overlaps of a solution in the span of the teachers, :math:`Q = MP^{-1}M^\top`: one solution
        for all runs, or one per run

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
    >>> start = sl.OrthogonalInit(0.1).one(problem)
    >>> runs = sl.simulate(problem, sl.ODE(), start, t_max=100, save=5)
    >>> apart = distance(runs, end_point(problem, start))
    >>> bool(apart.M[0, -1] < 1e-6), bool(abs(apart.weights[0, 0] - end_point(problem, start).distance) < 1e-12)
    (True, True)
    """
    stats, target = overlaps_in(dataset), point.stats if isinstance(point, EndPoint) else point
    P = np.asarray(from_json(dataset.attrs["problem"]).directions.gram)
    M, Q = (np.asarray(leaf) if np.ndim(leaf) == 2 else np.asarray(leaf)[:, None] for leaf in (target.M, target.Q))
    if M.shape[-2:] != stats.M.shape[-2:]:
        wanted = stats.M.shape[-2:]
        raise BadInput(
            f"point= must have M of shape {wanted}, as in the dataset; got {M.shape[-2:]}. Take point= from end_point "
            f"for the same problem."
        )
    # M P^-1: coordinates of the weights along the teachers
    dual = np.linalg.solve(P, M.swapaxes(-1, -2)).swapaxes(-1, -2)
    if not np.allclose(Q, dual @ M.swapaxes(-1, -2), atol=1e-9):
        raise BadInput("point must have weights in the span of the teachers, Q = M P^-1 M^T. Take point= from end_point.")
    square = np.linalg.trace(stats.Q) + np.linalg.trace(Q) - 2 * (np.asarray(stats.M) * dual).sum((-2, -1))
    variables = {
        "M": (("run", "t"), np.linalg.norm(stats.M - M, axis=(-2, -1)), {"long_name": "distance of M"}),
        "Q": (("run", "t"), np.linalg.norm(stats.Q - Q, axis=(-2, -1)), {"long_name": "distance of Q"}),
        "weights": (("run", "t"), np.sqrt(np.maximum(square, 0.0)), {"long_name": "distance of the weights"}),
    }
    return build_dataset_over_times(dataset, variables)
