r"""The Hessian of the population risk for inputs with variances by block or class, and mean zero.

With the inputs :math:`x = D_c^{1/2}g` of class c, where g is standard normal and :math:`D_c` has the variances, the risk of the
class is that of standard normal inputs at the weights :math:`D_c^{1/2}u`. Hence the Hessian is :math:`\sum_c\pi_c
D_c^{1/2}H_cD_c^{1/2}`, with the Hessian :math:`H_c` for standard normal inputs. Outside the directions it is
:math:`\sum_c\pi_cv_{cb}E_c[l_{jl}]` along each of the remaining dimensions of block b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy
from jaxtyping import Float

from sgdlimits.analysis.spectrum import EIGENVALUE_TOLERANCE, HessianSpectrum, make_spectrum
from sgdlimits.errors import BadInput, check_count
from sgdlimits.expectation.class_sums import ClassSums, class_models
from sgdlimits.expectation.slopes import RiskDerivatives, refuse_zero_weights
from sgdlimits.inputs import Blocks
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.statistics.blocks import frame_by_block
from sgdlimits.statistics.frame import RANK_TOLERANCE
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import to_batch


@dataclass(frozen=True)
class BlockHessian:
    """Hessian of the risk at given statistics, for inputs in blocks, in an orthonormal frame of all directions in each block.

    Parameters
    ----------
    span : block of the p units within the frame of n axes, shape (p n, p n), unit by unit
    outside : for each block of inputs, the Hessian of the p units along each direction outside the frame, shape (B, p, p)
    units : coordinates of the units in the frame, shape (p, n)
    axes : number of axes of the frame in each block of inputs
    data : the inputs
    sphere : whether the Hessian is the Riemannian one, which vanishes along each unit
    """

    span: Float[np.ndarray, "pn pn"]
    outside: Float[np.ndarray, "blocks p p"]
    units: Float[np.ndarray, "p n"]
    axes: tuple[int, ...]
    data: Blocks
    sphere: bool

    def spectrum(self, d: int, tolerance: float = EIGENVALUE_TOLERANCE) -> HessianSpectrum:
        """Return the eigenvalues in dimension `d` with multiplicities, on the sphere those of the tangent space.

        Eigenvalues that differ by less than `tolerance`, relative to the largest, count as one. The cost does not depend on d.
        """
        (p, n), d = self.units.shape, check_count("d", d)
        rest = np.array(self.data.block_sizes(d)) - np.array(self.axes)
        if rest.min() < 0:
            raise BadInput(f"d = {d} leaves a block with fewer dimensions than its directions span. Give a larger d.")
        tangent = np.eye(p * n)
        if self.sphere:  # changes of each unit that keep its norm
            tangent = scipy.linalg.block_diag(*(np.linalg.svd(unit[None])[2][1:].T for unit in self.units))
        inside = np.linalg.eigvalsh(tangent.T @ self.span @ tangent)
        outside = np.linalg.eigvalsh(self.outside)
        counts = np.concatenate([np.ones(inside.size, int), np.repeat(rest, p)])
        return make_spectrum(np.concatenate([inside, outside.ravel()]), counts, tolerance)


def block_hessian(problem: ProjectionProblem, at: Any, uses_sphere: Any) -> BlockHessian:
    """Return the Hessian of the landscape with respect to the first layer, at statistics of one run.

    `uses_sphere(units)` returns whether the weights are constrained to the sphere.
    """
    data, network = problem.data, problem.network
    assert isinstance(data, Blocks)
    if not isinstance(at, Overlaps):
        raise BadInput("the Hessian for variances by block or class needs statistics, not weights. Give Overlaps(a, M, Q).")
    if not data.centred or network.mask_rate is not None or not network.has_array_scalars:
        raise BadInput(
            "the Hessian for variances by block or class needs mean zero, one second layer and no dropout. "
            "Use linearise for the rates of the ODE."
        )
    problem.coordinates.check(to_batch(at))
    units, fixed, axes = _frame_coordinates(problem, at)
    refuse_zero_weights(problem.model, units)
    root = np.repeat(np.sqrt(np.asarray(data.variance)), axes, axis=1)
    a = np.asarray(at.a, float)
    p, n = units.shape
    gradient, span = np.zeros((p, n)), np.zeros((p, n, p, n))
    outside = np.zeros((len(axes), p, p))
    expectation = problem.expectation
    assert isinstance(expectation, ClassSums)
    for part, own in expectation.pair_with_expectations(class_models(problem.model)):
        if part.turn is not None:
            raise BadInput("the Hessian for variances by block or class does not support readouts with turns. Leave turns out.")
        i = 0 if part.i is None or not data.variance_by_class else part.i
        weight = 1.0 if part.i is None else float(np.asarray(data.class_probabilities)[part.i])
        slopes, basis = _scaled_slopes(own, part.model, a, units * root[i], fixed * root[i])
        gradient += weight * (slopes.gradient @ basis.T) * root[i]
        beyond = np.eye(n) - basis @ basis.T
        inside = np.einsum("jslt,xs,yt->jxly", slopes.span_block, basis, basis, optimize=True)
        inside = inside + np.einsum("jl,xy->jxly", slopes.outside_block, beyond)
        span += weight * root[i][:, None, None] * inside * root[i]
        outside += weight * np.asarray(data.variance)[i][:, None, None] * slopes.outside_block
    ridge, one = float(problem.algorithm.ridge), np.eye(p)
    span = span + ridge * np.eye(p * n).reshape(p, n, p, n)
    outside, curved = outside + ridge * one, uses_sphere(units)
    if curved:
        # the radial derivative, which the Riemannian Hessian subtracts
        pull = np.diag((units * (gradient + ridge * units)).sum(1))
        tangent = np.einsum("jl,jst->jslt", one, np.eye(n) - units[:, :, None] * units[:, None]).reshape(p * n, p * n)
        raw = (span - np.einsum("jl,st->jslt", pull, np.eye(n))).reshape(p * n, p * n)
        span, outside = (tangent @ raw @ tangent).reshape(p, n, p, n), outside - pull
    flat = span.reshape(p * n, p * n)
    symmetric = lambda each: (each + np.swapaxes(each, -1, -2)) / 2
    return BlockHessian(symmetric(flat), symmetric(outside), units, axes, data, curved)


def _frame_coordinates(
    problem: ProjectionProblem, at: Overlaps
) -> tuple[Float[np.ndarray, "p n"], Float[np.ndarray, "k n"], tuple[int, ...]]:
    """Return the coordinates of units and fixed directions in a frame of each block, and its number of axes in each block."""
    k, p = problem.target.teachers, problem.network.width
    full = at if at.has_blocks else Overlaps(at.a, np.asarray(at.M)[None], np.asarray(at.Q)[None])
    B: Any = np.asarray(problem.frames).reshape(-1, k, k)
    frame = frame_by_block(to_batch(jax.tree.map(np.asarray, full)), B, np.full(len(B), p))
    units, fixed, axes = [], [], []
    for m, T, own in zip(np.asarray(frame.m)[..., 0], np.asarray(frame.T)[..., 0], B, strict=True):
        both = np.concatenate([np.concatenate([m, T.T], axis=1), np.pad(own, ((0, 0), (0, p)))])
        used = (both**2).sum(0) > (p + k) * RANK_TOLERANCE * max(1.0, (both**2).sum(1).max())
        units.append(both[:p, used])
        fixed.append(both[p:, used])
        axes.append(int(used.sum()))
    return np.concatenate(units, axis=1), np.concatenate(fixed, axis=1), tuple(axes)


def _scaled_slopes(
    expectation: Any, model: Any, a: np.ndarray, units: Float[np.ndarray, "p n"], fixed: Float[np.ndarray, "k n"]
) -> tuple[RiskDerivatives, Float[np.ndarray, "n r"]]:
    """Return the derivatives of the risk for standard normal inputs, and the orthonormal basis in which they are given.

    The first k columns of the basis span the fixed directions, whose coordinates in it are the Cholesky factor of their Gram
    matrix.
    """
    B = np.linalg.cholesky(np.asarray(model.target.gram))
    first = np.linalg.solve(B, fixed)
    rest = units - units @ first.T @ first
    values, rows = np.linalg.svd(rest, full_matrices=False)[1:]
    more = rows[values**2 > len(units) * RANK_TOLERANCE * max(1.0, (units**2).sum(1).max())]
    basis = np.concatenate([first, more]).T
    return expectation.slopes(model, a, units @ basis), basis
