"""Points of the landscape: statistics or weights, as units in an orthonormal frame."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from sgdlimits.errors import BadInput
from sgdlimits.problem.base import Problem
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.frame import ZERO, frame_rows
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import batch_of


@dataclass(frozen=True)
class Weights:
    """A point of the landscape in R^d.

    Parameters
    ----------
    u : the trained directions, shape (p, d)
    fixed : the fixed directions, shape (k, d); along the first k axes unless given, as `SGD` has them
    a : the second layer, shape (p,); that of the problem's start unless given

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(sphere=False)
    >>> sl.landscape.gradient(problem, sl.landscape.Weights([[0.0, 1.0, 0.0]])).tolist()          # (65) at m = 0: 4 w
    [[0.0, 4.0, 0.0]]
    """

    u: Float[np.ndarray, "p d"]
    fixed: Float[np.ndarray, "k d"] | None = None
    a: Float[np.ndarray, " p"] | None = None


def locate(problem: ProjectionProblem, at: Overlaps | Weights | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(second layer, units in the frame, at weights the axes of the frame in R^d), or `BadInput` if not of the problem."""
    if isinstance(at, (list, np.ndarray, jax.Array)):
        at = Weights(np.asarray(at))
    if not isinstance(at, Weights):
        return np.asarray(at.a, float), coordinates(problem, at), None
    _check_problem(problem)
    u, fixed, a = _checked(problem, at)
    first = np.linalg.solve(np.linalg.cholesky(np.asarray(problem.target.gram)), fixed)
    rest = u - u @ first.T @ first
    values, rows = np.linalg.svd(rest, full_matrices=False)[1:]
    axes = np.concatenate([first, rows[values**2 > len(u) * ZERO * max(1.0, (u**2).sum(1).max())]])
    return a, u @ axes.T, axes


def coordinates(problem: ProjectionProblem, statistics: Overlaps) -> Float[np.ndarray, "p n"]:
    r"""The units in the orthonormal frame that fixed and trained directions span, of n = k + rank(Q - M P^-1 M^T) directions.

    The first k coordinates are along the frame of the fixed directions, which are the rows of the Cholesky factor B of P there;
    the others along the principal directions of what is left, the largest first.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> coordinates(sl.presets.phase_retrieval(), sl.Overlaps([1.0], [[0.6]], [[1.0]])).round(12).tolist()
    [[0.6, 0.8]]
    """
    _check_problem(problem)
    if not isinstance(statistics, Overlaps):
        raise BadInput(f"statistics must be Overlaps of one run; got {type(statistics).__name__}. Give Overlaps(a, M, Q).")
    problem.check(batch_of(statistics))
    M, Q, B = (np.asarray(leaf, float) for leaf in (statistics.M, statistics.Q, np.linalg.cholesky(problem.target.gram)))
    m = np.linalg.solve(B, M.T).T
    return np.concatenate([m, _root(Q - m @ m.T, max(1.0, np.abs(Q).max()))], axis=1)


def on_sphere(problem: ProjectionProblem, S: np.ndarray, sphere: bool | None) -> bool:
    """Whether the weights stay on the sphere, as asked or as the problem has it; `BadInput` where they are not on it."""
    if not (problem.algorithm.sphere if sphere is None else sphere):
        return False
    norms = (S**2).sum(1)
    if not np.allclose(norms, 1.0, atol=1e-9):
        worst = norms[np.argmax(abs(norms - 1))]
        raise BadInput(f"on the sphere every norm is 1, but here |u_j|^2 = {worst:.6g}. Give such statistics, or sphere=False.")
    return True


def _root(left: np.ndarray, scale: float) -> np.ndarray:
    """The p-by-r root of a positive semi-definite matrix of rank r, with columns in order of size."""
    values, vectors = np.linalg.eigh(left)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > len(left) * ZERO * scale
    return vectors[:, kept] * np.sqrt(values[kept])


def _checked(problem: ProjectionProblem, at: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, fixed directions and second layer as arrays of the right shapes."""
    p, k, u = problem.network.width, problem.target.teachers, np.asarray(at.u, float)
    if u.ndim != 2 or len(u) != p or u.shape[1] < k or not np.isfinite(u).all():
        raise BadInput(f"u must be finite, of shape ({p}, d) with d of at least {k}; got shape {u.shape}. Give one row a unit.")
    P, d = np.asarray(problem.target.gram), u.shape[1]
    fixed = frame_rows(problem.frame, d) if at.fixed is None else np.asarray(at.fixed, float)
    if fixed.shape != (k, d) or not np.allclose(fixed @ fixed.T, P, atol=1e-9):
        raise BadInput(
            f"fixed must have shape ({k}, {d}) and the Gram matrix {P.tolist()} of the target. Leave it out, or rotate it."
        )
    if at.a is None and problem.initial.second_spread:
        raise BadInput(f"{problem.name} starts from a random second layer. Give a, {p} numbers.")
    a = np.full(p, problem.initial.second) if at.a is None else np.asarray(at.a, float)
    if a.shape != (p,) or not np.isfinite(a).all():
        raise BadInput(f"a must be {p} finite numbers; got {a.tolist()}. Give one a unit.")
    return u, fixed, a


def _check_problem(problem: Problem) -> None:
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(f"the landscape is written for projection problems; got {type(problem).__name__}. Give one of those.")
