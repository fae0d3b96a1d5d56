r"""The landscape of the population risk: its gradient and its Hessian, in R^d or in an orthonormal frame of all directions.

The function is the one that gradient flow descends,

.. math:: R(u_1, \dots, u_p) = E[\text{loss}] + \frac{\text{ridge}}2\sum_j|u_j|^2,

as a function of the weights :math:`u_1, \dots, u_p` of the first layer only: the second layer `a` is held fixed, also if it is
trained. On the sphere the gradient is projected on the tangent space of the product of p spheres, and the Hessian is the
Riemannian one, :math:`\Pi\,(H - \mathrm{diag}(u_j\cdot\nabla_jR))\,\Pi`, for the Hessian H in R^d and this projection
:math:`\Pi`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Float

from sgdlimits.analysis.landscape_blocks import BlockHessian, block_hessian
from sgdlimits.analysis.spectrum import EIGENVALUE_TOLERANCE, HessianSpectrum as HessianSpectrum, make_spectrum
from sgdlimits.checks import array, finite_scalars, point_or_weights
from sgdlimits.domain import Count, NotNegative, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.slopes import pad_units, refuse_zero_weights
from sgdlimits.inputs import Blocks
from sgdlimits.inputs.base import refuse_noise
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.frame import RANK_TOLERANCE, FieldFactor, pad_frame
from sgdlimits.statistics.overlaps import Overlaps, Scalars, as_scalars
from sgdlimits.statistics.trees import to_batch

MAX_HESSIAN_ENTRIES = 2**26
"""Maximum number of entries of a Hessian that is returned as an array: 512 MiB."""
MAX_EIGENVALUES = 2**62
"""Maximum number of eigenvalues of a Hessian; multiplicities must fit into 64-bit integers."""


@checked
@dataclass(frozen=True)
class Weights:
    """Point of the landscape in R^d: the weights of the students, the fixed directions, and the second layer.

    Parameters
    ----------
    u : the trained directions, shape (p, d)
    fixed : the fixed directions, shape (k, d); in the span of the first k axes by default, as in `SGD`
    a : the second layer, shape (p,), or the scalars by name; by default those of the problem's start

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(sphere=False)
    >>> sl.landscape.gradient(problem, sl.landscape.Weights([[0.0, 1.0, 0.0]])).tolist()          # (65) at m = 0: 4 w
    [[0.0, 4.0, 0.0]]
    """

    u: Annotated[Float[np.ndarray, "p d"], array(ndim=2)]
    fixed: Annotated[Float[np.ndarray, "k d"], array(ndim=2)] | None = None
    a: Annotated[Scalars, finite_scalars] | None = None


def locate_point(
    problem: ProjectionProblem, at: Overlaps | Weights | np.ndarray
) -> tuple[Scalars, np.ndarray, np.ndarray | None]:
    """Convert overlaps or weights to a triple (a, units, axes); raise `BadInput` if they do not fit the problem's shapes.

    `a` : second layer, or the scalars by name; `units` : coordinates of the units in an orthonormal frame, shape (p, n);
    `axes` : the frame in R^d, shape (n, d), or None if the point is given by statistics.
    """
    if isinstance(at, (list, np.ndarray, jax.Array)):
        at = Weights(np.asarray(at))
    _check_problem(problem)
    if not isinstance(at, (Weights, Overlaps)):
        raise BadInput(f"at must be Overlaps of one run, or weights; got {type(at).__name__}. Give Overlaps(a, M, Q).")
    if not isinstance(at, Weights):
        return jax.tree.map(lambda leaf: np.asarray(leaf, float), at.a), coordinates(problem, at), None
    u, fixed, a = _check_weights(problem, at)
    first = np.linalg.solve(np.linalg.cholesky(np.asarray(problem.target.gram)), fixed)
    orthogonal = u - u @ first.T @ first
    # right singular vectors span the orthogonal components
    values, rows = np.linalg.svd(orthogonal, full_matrices=False)[1:]
    # directions below rounding are not part of the frame
    axes = np.concatenate([first, rows[values**2 > len(u) * RANK_TOLERANCE * max(1.0, (u**2).sum(1).max())]])
    return a, u @ axes.T, axes


def coordinates(problem: ProjectionProblem, statistics: Overlaps) -> Float[np.ndarray, "p n"]:
    r"""Return the coordinates of the p trained units in an orthonormal frame of the span of units and fixed directions.

    M, Q and P are the overlaps of the units with the k fixed directions, of the units, and of the fixed directions, and
    n = k + rank(Q - M P^-1 M^T). The first k axes of the frame span the fixed directions, whose coordinates are the rows of the
    Cholesky factor B of P; the other axes are the principal directions of the units' orthogonal components, the largest first.

    >>> import sgdlimits as sl
    >>> coordinates(sl.presets.phase_retrieval(), sl.Overlaps([1.0], [[0.6]], [[1.0]])).round(12).tolist()
    [[0.6, 0.8]]
    """
    _check_problem(problem)
    if not isinstance(statistics, Overlaps):
        raise BadInput(f"statistics must be Overlaps of one run; got {type(statistics).__name__}. Give Overlaps(a, M, Q).")
    problem.coordinates.check(to_batch(statistics))
    M, Q, B = (np.asarray(leaf, float) for leaf in (statistics.M, statistics.Q, np.linalg.cholesky(problem.target.gram)))
    m = np.linalg.solve(B, M.T).T
    return np.concatenate([m, _matrix_root(Q - m @ m.T, max(1.0, np.abs(Q).max()))], axis=1)


def _uses_sphere(problem: ProjectionProblem, S: np.ndarray, sphere: bool | None) -> bool:
    """Return whether to use the geometry of the sphere: the argument `sphere`, or the problem's own choice if it is None.

    The rows of `S` are the coordinates of the units. Raise `BadInput` if the result is true and the norm of a unit is not 1.
    """
    if not (problem.algorithm.sphere if sphere is None else sphere):
        return False
    norms = (S**2).sum(1)
    if not np.allclose(norms, 1.0, atol=1e-9):
        worst = norms[np.argmax(abs(norms - 1))]
        raise BadInput(f"on the sphere every norm is 1, but here |u_j|^2 = {worst:.6g}. Give units of norm 1, or sphere=False.")
    return True


@dataclass(frozen=True)
class Hessian:
    """Hessian of the risk at given statistics, in an orthonormal frame of all directions; it does not depend on d.

    Parameters
    ----------
    span : block of the p units within the frame of n axes, shape (p n, p n), unit by unit
    outside : block of the p units along each of the d - n directions outside the frame, shape (p, p)
    units : coordinates of the units in the frame, shape (p, n)
    sphere : whether the Hessian is the Riemannian one, which vanishes along each unit
    """

    span: Float[np.ndarray, "pn pn"]
    outside: Float[np.ndarray, "p p"]
    units: Float[np.ndarray, "p n"]
    sphere: bool

    def spectrum(self, d: int, tolerance: float = EIGENVALUE_TOLERANCE) -> HessianSpectrum:
        """Return the eigenvalues in dimension `d` with multiplicities, on the sphere those of the tangent space.

        Eigenvalues that differ by less than `tolerance`, relative to the largest, count as one. The cost does not depend on d.
        """
        p, n = self.units.shape
        d = check_count("d", d, at_least=n, remedy=f"These directions span {n} dimensions: give d of at least {n}.")
        if p * d > MAX_EIGENVALUES:
            raise BadInput(f"the Hessian at d = {d} has {p * d} eigenvalues, more than {MAX_EIGENVALUES}. Give a smaller d.")
        # an orthonormal basis of the tangent space, unit by unit
        tangent = np.eye(p * n)
        if self.sphere:  # changes of each unit that keep its norm
            tangent = scipy.linalg.block_diag(*(np.linalg.svd(unit[None])[2][1:].T for unit in self.units))
        inside, outside = np.linalg.eigvalsh(tangent.T @ self.span @ tangent), np.linalg.eigvalsh(self.outside)
        # each direction outside the frame has the same block
        counts = np.repeat([1, d - n], [inside.size, p])
        return make_spectrum(np.concatenate([inside, outside]), counts, tolerance)


@checked
def risk(
    problem: ProjectionProblem, at: Annotated[Overlaps | Weights | np.ndarray, point_or_weights], t: NotNegative | None = None
) -> float:
    """Return the height of the landscape at a point: population risk plus ridge penalty of the first layer.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(sphere=False)
    >>> round(sl.landscape.risk(problem, sl.Overlaps([1.0], [[0.0]], [[1 / 3]])), 12)             # (71), corrected: 4/3
    1.333333333333
    """
    problem = evaluate_at_time_if_needed(problem, t)
    a, S, _ = locate_point(problem, at)
    # the largest frame, so that states of any rank share compiled code
    units = pad_units(problem.model, S)
    F = FieldFactor(jnp.asarray(units), jnp.asarray(pad_frame(problem.frame, units.shape[1])))
    law = problem.model.law_of_factor(F)
    loss = eqx.filter_jit(problem.expectation.risk_of_factor)(problem.model, jax.tree.map(jnp.asarray, a), law)
    return float(loss) + float(problem.algorithm.ridge) / 2 * float((S**2).sum())


@checked
def gradient(
    problem: ProjectionProblem,
    at: Annotated[Overlaps | Weights | np.ndarray, point_or_weights],
    sphere: bool | None = None,
    t: NotNegative | None = None,
) -> Float[np.ndarray, "p n"]:
    r"""Return the gradient of the landscape with respect to each unit; :math:`-\text{lr}` times it is the population drift.

    The shape is (p, d) at weights of p units. At statistics it is (p, n), in the frame of n axes that `coordinates` describes;
    the components outside the frame are zero.

    Parameters
    ----------
    problem : a projection problem
    at : statistics of one run, `Weights`, or an array of shape (p, d): weights with the fixed directions along the first axes
    sphere : whether the weights are constrained to the sphere; by default as in the problem
    t : time at which schedules are evaluated, for problems with schedules

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval()
    >>> m = 0.6
    >>> slope = sl.landscape.gradient(problem, sl.Overlaps([1.0], [[m]], [[1.0]]))                 # (82): 4 m (m w - w*)
    >>> round(float(slope[0, 0]), 12), round(4 * m * (m**2 - 1), 12)
    (-1.536, -1.536)
    """
    problem = evaluate_at_time_if_needed(problem, t)
    a, S, axes = locate_point(problem, at)
    slope = problem.expectation.gradient(problem.model, a, S) + float(problem.algorithm.ridge) * S
    if _uses_sphere(problem, S, sphere):
        slope = slope - (S * slope).sum(1, keepdims=True) * S
    return slope if axes is None else slope @ axes


@checked
def hessian(
    problem: ProjectionProblem,
    at: Annotated[Overlaps | Weights | np.ndarray, point_or_weights],
    sphere: bool | None = None,
    t: NotNegative | None = None,
) -> Hessian | BlockHessian | Float[np.ndarray, "p d p d"]:
    r"""Return the Hessian of the landscape with respect to the weights of the first layer.

    The result is a `Hessian` at statistics, and an array of shape (p, d, p, d) at weights of p units, if that fits into memory.
    For quadratic networks it is (25) of Bocchi et al. [3]_; for one squared unit it is (67) of Arnaboldi et al. [1]_, corrected
    (docs/errata.md). `BadInput` is raised if a unit with a kink has zero weights, or if the problem's expectation does not
    provide second derivatives.

    Parameters
    ----------
    problem, at, sphere, t : as in `gradient`

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(sphere=False)
    >>> saddle = sl.landscape.Weights([[0.0, 3**-0.5, 0.0]])
    >>> sl.landscape.hessian(problem, saddle)[0, :2, 0, :2].round(9).diagonal().tolist()          # towards w*, and along w
    [-4.0, 4.0]
    """
    problem = evaluate_at_time_if_needed(problem, t)
    if isinstance(problem, ProjectionProblem) and isinstance(problem.data, Blocks):
        refuse_noise(problem.data, "the Hessian")
        return block_hessian(problem, at, lambda units: _uses_sphere(problem, units, sphere))
    a, S, axes = locate_point(problem, at)
    (p, n), d = S.shape, 0 if axes is None else axes.shape[1]
    # refuse before the expectation is computed
    if max(p * n, p * d) ** 2 > MAX_HESSIAN_ENTRIES:
        statistics = "Give statistics instead of weights: hessian_spectrum costs the same at every d."
        remedy = statistics if d > n else "Take fewer units."
        raise BadInput(f"the Hessian has {max(p * n, p * d)} rows and columns, which does not fit into memory. {remedy}")
    refuse_zero_weights(problem.model, S)
    slopes, ridge, one = problem.expectation.slopes(problem.model, a, S), float(problem.algorithm.ridge), np.eye(p)
    span, outside = slopes.span_block + ridge * np.eye(p * n).reshape(p, n, p, n), slopes.outside_block + ridge * one
    curved = _uses_sphere(problem, S, sphere)
    if curved:
        # the radial derivative, which the Riemannian Hessian subtracts
        pull = np.diag((S * (slopes.gradient + ridge * S)).sum(1))
        tangent = np.einsum("jl,jst->jslt", one, np.eye(n) - S[:, :, None] * S[:, None]).reshape(p * n, p * n)
        # projected from both sides, so that it vanishes along the units
        raw = (span - np.einsum("jl,st->jslt", pull, np.eye(n))).reshape(p * n, p * n)
        span, outside = (tangent @ raw @ tangent).reshape(p, n, p, n), outside - pull
    if axes is None:
        flat = span.reshape(p * n, p * n)
        return Hessian((flat + flat.T) / 2, (outside + outside.T) / 2, S, curved)
    # projection onto the directions outside the frame
    beyond = np.eye(d) - axes.T @ axes
    return np.einsum("jslt,sx,ty->jxly", span, axes, axes, optimize=True) + np.einsum("jl,xy->jxly", outside, beyond)


@checked
def hessian_spectrum(
    problem: ProjectionProblem,
    statistics: Overlaps,
    d: Count,
    sphere: bool | None = None,
    tolerance: NotNegative = EIGENVALUE_TOLERANCE,
    t: NotNegative | None = None,
) -> HessianSpectrum:
    r"""Return the eigenvalues of the landscape's Hessian in dimension `d`, with exact multiplicities.

    For p units and an orthonormal frame of the n-dimensional span of all directions, the block within the frame has p n
    eigenvalues; the p-by-p block outside has p eigenvalues, each d - n times. For inputs with blocks of variances there are p
    such eigenvalues for each block, as many times as dimensions of the block are left. The cost does not depend on d.

    Parameters
    ----------
    problem : a projection problem
    statistics : statistics of one run
    d : dimension
    sphere : whether the weights are constrained to the sphere, where the tangent space has p (d - 1) dimensions; by default
        as in the problem
    tolerance : eigenvalues that differ by less, relative to the largest, count as one
    t : time at which schedules are evaluated, for problems with schedules

    Examples
    --------
    A random start of phase retrieval in high dimension is almost orthogonal to the signal, along which the risk falls.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval()
    >>> sl.hessian_spectrum(problem, sl.Overlaps([1.0], [[0.0]], [[1.0]]), d=10**9)
    Spectrum of 999999999 eigenvalues: 1 negative, 999999998 null, 0 positive
      eigenvalue  multiplicity
              -4             1
               0     999999998
    """
    at = hessian(problem, statistics, sphere, t)
    if not isinstance(at, (Hessian, BlockHessian)):
        raise BadInput("hessian_spectrum needs statistics; got Weights. Give Overlaps(a, u @ fixed.T, u @ u.T).")
    return at.spectrum(d, tolerance)


def _matrix_root(left: np.ndarray, scale: float) -> np.ndarray:
    """Return a p-by-r matrix R with R R^T equal to a positive semi-definite matrix of rank r, columns in order of size."""
    values, vectors = np.linalg.eigh(left)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > len(left) * RANK_TOLERANCE * scale
    return vectors[:, kept] * np.sqrt(values[kept])


def _check_weights(problem: ProjectionProblem, at: Weights) -> tuple[np.ndarray, np.ndarray, Scalars]:
    """Return weights, fixed directions and second layer as arrays; raise `BadInput` if they do not fit the problem."""
    p, k, u = problem.network.width, problem.target.teachers, np.asarray(at.u, float)
    if u.ndim != 2 or len(u) != p or u.shape[1] < k or not np.isfinite(u).all():
        raise BadInput(
            f"u must be finite, of shape ({p}, d) with d of at least {k}; got shape {u.shape}. Give one row per unit."
        )
    P, d = np.asarray(problem.target.gram), u.shape[1]
    fixed = pad_frame(problem.frame, d) if at.fixed is None else np.asarray(at.fixed, float)
    if fixed.shape != (k, d) or not np.allclose(fixed @ fixed.T, P, atol=1e-9):
        raise BadInput(f"fixed must have shape ({k}, {d}) and the Gram matrix {P.tolist()} of the target. Leave fixed= out.")
    if at.a is None and problem.initial.second_spread:
        raise BadInput(f"{problem.name} starts from a random second layer. Give Weights a second layer a= of {p} numbers.")
    a = as_scalars(problem.network.initial(problem.initial.second) if at.a is None else at.a)
    if problem.network.has_array_scalars and (a.shape != (p,) or not np.isfinite(a).all()):
        raise BadInput(f"a must be {p} finite numbers; got {a.tolist()}. Give one number for each unit.")
    if not problem.network.has_array_scalars:
        problem.coordinates.check(to_batch(Overlaps(a, u @ fixed.T, u @ u.T)))
    return u, fixed, a


def _check_problem(problem: Problem) -> None:
    """Raise `BadInput` unless the problem is a projection problem whose inputs have one variance."""
    if not isinstance(problem, ProjectionProblem):
        raise BadInput(
            f"the landscape needs a projection problem; got {type(problem).__name__}. Give, say, presets.phase_retrieval()."
        )
    refuse_noise(problem.data, "the Hessian")
    if isinstance(problem.data, Blocks):
        raise BadInput(
            "the risk, its gradient, and the Hessian at weights do not support variances by block or class. Use "
            "hessian(problem, statistics), or linearise for the rates of the ODE."
        )
