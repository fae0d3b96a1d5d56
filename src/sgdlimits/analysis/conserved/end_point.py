"""Where a quadratic network ends: the solution closest to its start."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from sgdlimits.analysis.conserved.polar import orthogonal_part, overlaps_in
from sgdlimits.analysis.origin import origin
from sgdlimits.errors import BadInput
from sgdlimits.expectation import Squares
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.trajectory.record import from_json


class EndPoint(NamedTuple):
    """The solution closest to a start.

    Parameters
    ----------
    stats : its statistics
    S : the orthogonal part of the start's M, which the solution is made of, shape (p, k)
    distance : the Euclidean distance from the start in the space of weights
    """

    stats: Overlaps
    S: Float[np.ndarray, "*runs p k"]
    distance: Float[np.ndarray, "*runs"]


def end_point(problem: Problem, start: Overlaps) -> EndPoint:
    r"""The solution of a quadratic network that is closest to the start: equations (17) to (21) of [3]_.

    The weights of zero risk are :math:`\bar U = g S E` with :math:`S^\top S = 1`, where the rows of E are the teachers and
    :math:`g = \sqrt{p/k}`. Their distance from the start is

    .. math:: |\bar U - U_0|^2 = \mathrm{tr}\,Q_0 + g^2\,\mathrm{tr}\,P - 2g\,\mathrm{tr}(S^\top M_0),

    and is least where S is the orthogonal part of :math:`M_0` (Procrustes). There :math:`M = gSP`, :math:`Q = g^2SPS^\top`.

    Parameters
    ----------
    problem : squared units that learn a sum of squares, off the sphere, such as `presets.quadratic_network`
    start : overlaps of one run, or of several, runs first

    Notes
    -----
    The ODE ends there from starts of which S is conserved (`polar`), such as those of `OrthogonalInit`. From others, such as
    orthogonal students of different norms, it ends at another solution (docs/implicit_bias.md). Label noise keeps it away
    by an amount that vanishes with the learning rate. For p < k no solution has zero risk; the least risk has
    :math:`SS^\top = 1` and :math:`g^2 = \frac pk\frac{k+2}{p+2}` for orthonormal teachers, and gradient flow ends there.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=4, teachers=2)
    >>> end = end_point(problem, sl.OrthogonalInit(0.1).one(problem))
    >>> end.S.shape, round(float(end.stats.Q.trace()), 12)
    ((4, 2), 4.0)

    References
    ----------
    .. [3] Bocchi, Regimbeau, Lucibello, Saglietti, Cammarota, *Escape dynamics and implicit bias of one-pass SGD in
       overparameterized quadratic networks*.
    """
    if not isinstance(start, Overlaps):
        raise BadInput(f"start must be Overlaps; got {type(start).__name__}. Give, say, OrthogonalInit(0.1).one(problem).")
    gain, P = _gain(problem, start), np.asarray(problem.directions.gram)
    problem.check(start if np.ndim(start.M) == 3 else jax.tree.map(lambda leaf: leaf[None], start))
    S, _ = orthogonal_part(start.M)
    M = gain * S @ P
    Q = gain**2 * S @ P @ S.swapaxes(-1, -2)
    square = np.linalg.trace(np.asarray(start.Q)) + np.linalg.trace(Q) - 2 * gain * (S * np.asarray(start.M)).sum((-2, -1))
    return EndPoint(Overlaps(start.a, M, Q), S, np.sqrt(np.maximum(square, 0.0)))


def _gain(problem: Problem, start: Overlaps) -> float:
    """g, the factor of S E in the weights of least risk."""
    if not (isinstance(problem, ProjectionProblem) and Squares().suits(problem.model)):
        raise BadInput("end_point needs squared units and a quadratic target. Take presets.quadratic_network.")
    if problem.algorithm.sphere or problem.algorithm.trains_second or float(problem.algorithm.ridge):
        raise BadInput(
            "end_point needs free weights: no sphere, no ridge, no trained second layer. Take presets.quadratic_network."
        )
    a, P = np.asarray(start.a), np.asarray(problem.target.gram)
    p, k = problem.network.width, problem.target.teachers
    R = np.asarray(problem.target.readout.quadratic(k))
    if not (np.allclose(R, R[0, 0] * np.eye(k), rtol=1e-12) and R[0, 0] > 0 and np.ptp(a) == 0 and a.flat[0] > 0):
        raise BadInput(
            "end_point needs teachers of one positive weight and a second layer of one positive number; "
            f"got {np.diagonal(R).tolist()} and {np.unique(a).tolist()}. Take presets.quadratic_network."
        )
    if p < k and not np.allclose(P, np.eye(k)):
        raise BadInput(f"width {p} below {k} teachers needs orthonormal ones; got P = {P.tolist()}. Give a larger width.")
    return float(np.sqrt(R[0, 0] / (problem.network.factor * a.flat[0]) * (k + 2) / (min(p, k) + 2)))


def distance(dataset: xr.Dataset, point: Overlaps | EndPoint) -> xr.Dataset:
    r"""How far the runs of a dataset are from a solution, in statistics and in weights.

    Parameters
    ----------
    dataset : of `simulate`
    point : of `end_point`, or overlaps of weights in the span of the teachers, :math:`Q = MP^{-1}M^\top`; of one run, used for
        all, or of each

    Returns
    -------
    xarray.Dataset over run and t with the Frobenius norms `M` and `Q` of the distance of these statistics, and `weights`, the
    Euclidean distance :math:`\sqrt{\mathrm{tr}\,Q + \mathrm{tr}\,\bar Q - 2\,\mathrm{tr}(MP^{-1}\bar M^\top)}`.

    Examples
    --------
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
    dual = np.linalg.solve(P, M.swapaxes(-1, -2)).swapaxes(-1, -2)
    if not np.allclose(Q, dual @ M.swapaxes(-1, -2), atol=1e-9):
        raise BadInput("point must have weights in the span of the teachers, Q = M P^-1 M^T. Take one from end_point.")
    square = np.linalg.trace(stats.Q) + np.linalg.trace(Q) - 2 * (np.asarray(stats.M) * dual).sum((-2, -1))
    values = {
        "M": (np.linalg.norm(stats.M - M, axis=(-2, -1)), "distance of M"),
        "Q": (np.linalg.norm(stats.Q - Q, axis=(-2, -1)), "distance of Q"),
        "weights": (np.sqrt(np.maximum(square, 0.0)), "distance of the weights"),
    }
    return xr.Dataset(
        {name: (("run", "t"), value, {"long_name": text}) for name, (value, text) in values.items()},
        coords={"run": dataset.run.values, "t": dataset.t.values},
        attrs=origin(dataset),
    )
