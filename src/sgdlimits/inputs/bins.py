r"""Bins of long spectra: the eigenvalues of a range of ranks are replaced by a few Gauss nodes.

The eigenvalues whose ranks lie in one bin are a measure. Its n Gauss nodes have the same moments up to order 2n - 1, so that
sums of a smooth function over the eigenvalues become sums over nodes. The ends of the bins grow geometrically, and ranks at the
top that fill no bin are kept exactly. Sums over many ranks are integrals over the logarithm of the rank, so that no eigenvalues
are listed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

NODES_PER_BIN = (2, 3, 4)
"""Numbers of nodes in a bin that are tried; that with the smallest error is taken."""
MAX_LISTED_RANKS = 2048
"""Maximum number of ranks of a bin that are summed one by one; a longer sum is an integral, whose relative error is 1e-8."""
INTEGRAL_POINTS = 64
"""Number of Gauss-Legendre points of the integral over the logarithm of the rank, per bin."""
REFERENCE_BLOCKS = 320
"""Number of blocks of the binning with which errors are measured."""
TIMES_OF_ERROR = 300
"""Number of times, logarithmically spaced, at which the error of a binning is measured."""

Eigenvalues = Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]
"""Function from ranks 1, ..., d to eigenvalues, largest first."""


class Bin(NamedTuple):
    """Ranks of one bin with their weights, the Gauss nodes of its eigenvalues, and how sums over ranks become sums over nodes.

    Parameters
    ----------
    ranks, weights : points and weights of sums over the ranks of the bin
    nodes, counts : Gauss nodes, and the number of eigenvalues for which each stands
    projection : matrix from values at the ranks to values at the nodes with the same moments
    """

    ranks: Float[np.ndarray, " points"]
    weights: Float[np.ndarray, " points"]
    nodes: Float[np.ndarray, " n"]
    counts: Float[np.ndarray, " n"]
    projection: Float[np.ndarray, "n points"]


def gauss_nodes(x: Float[np.ndarray, " points"], w: Float[np.ndarray, " points"], n: int) -> tuple[np.ndarray, ...]:
    """Return n Gauss nodes of the measure with weights w at the points x, their weights, and the projection onto them.

    The projection maps a function at the points to weights at the nodes with the same moments up to order n - 1.

    >>> x, w, _ = gauss_nodes(np.arange(1.0, 10.0), np.ones(9), 2)
    >>> x.round(3).tolist(), w.round(3).tolist(), round(float((w * x**3).sum()))
    ([2.418, 7.582], [4.5, 4.5], 2025)
    """
    total, centre = w.sum(), (w * x).sum() / w.sum()
    spread = np.sqrt((w * (x - centre) ** 2).sum() / total)
    z = (x - centre) / spread
    rows, diagonal, beside = [np.full(z.size, total**-0.5)], [], []
    for _ in range(n):  # orthonormal polynomials at the points, by the Lanczos recursion
        next_row = z * rows[-1]
        diagonal.append((w * next_row * rows[-1]).sum())
        for _ in range(2):  # twice, which removes the rounding errors of the first time
            for row in rows:
                next_row = next_row - (w * next_row * row).sum() * row
        beside.append(np.sqrt((w * next_row**2).sum()))
        rows.append(next_row / beside[-1])
    jacobi = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    values, vectors = np.linalg.eigh(jacobi)
    # column i of vectors has the orthonormal polynomials at node i, times the root of its weight
    projection = (vectors * vectors[0] * np.sqrt(total)).T @ np.stack(rows[:-1])
    return centre + spread * values, total * vectors[0] ** 2, projection * w


def sum_over_ranks(first: int, end: int) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Return points and weights of sums of smooth functions over the ranks from `first` to `end` - 1."""
    if end - first <= MAX_LISTED_RANKS:
        return np.arange(first, end, dtype=float), np.ones(end - first)
    low, high = np.log(first - 0.5), np.log(end - 0.5)  # the midpoint rule, in reverse
    points, weights = np.polynomial.legendre.leggauss(INTEGRAL_POINTS)
    ranks = np.exp((low + high) / 2 + (high - low) / 2 * points)
    return ranks, weights * (high - low) / 2 * ranks


def geometric_bins(d: int, blocks: int, n: int) -> list[tuple[int, int]]:
    """Return the first rank and the end of each bin, whose ends grow geometrically, for at most `blocks` nodes, n in a bin.

    >>> geometric_bins(100, 8, 2)
    [(1, 3), (3, 10), (10, 33), (33, 101)]
    """

    def bins(ratio: float) -> list[tuple[int, int]]:
        ends = [1]
        while ends[-1] <= d:
            ends.append(min(max(int(ends[-1] * ratio), ends[-1] + 1), d + 1))
        return list(pairwise(ends))

    low, high = 1.0, float(d + 1)
    for _ in range(60):  # bisection in the ratio
        ratio = np.sqrt(low * high)
        enough = sum(min(n, end - first) for first, end in bins(ratio)) <= blocks
        low, high = (low, ratio) if enough else (ratio, high)
    return bins(high)


def bin_ranks(eigenvalues: Eigenvalues, d: int, blocks: int, n: int) -> list[Bin]:
    """Bin the eigenvalues of d ranks into at most `blocks` nodes, n in a bin; a bin of at most n ranks keeps these."""
    found = []
    for first, end in geometric_bins(d, blocks, n):
        ranks, weights = sum_over_ranks(first, end)
        values = eigenvalues(ranks)
        distinct = np.unique(values).size
        if end - first <= n:
            nodes, counts, projection = values, weights, np.eye(ranks.size)
        elif distinct == 1:
            nodes, counts, projection = values[:1], weights.sum(keepdims=True), weights[None]
        else:
            nodes, counts, projection = gauss_nodes(values, weights, min(n, distinct))
        found.append(Bin(ranks, weights, nodes, counts, projection))
    return found


def kernel_error(found: list[Bin], reference: list[Bin]) -> float:
    r"""Return the largest relative error over s of the sums over eigenvalues of :math:`\lambda^p e^{-2\lambda s}`, p = 1 and 2.

    These sums are the risk of gradient flow with a teacher of equal coefficients and the kernel of SGD's noise. They are
    compared with the sums over a finer binning.
    """
    x, w = (np.concatenate([getattr(each, name) for each in found]) for name in ("nodes", "counts"))
    y, v = (np.concatenate([getattr(each, name) for each in reference]) for name in ("nodes", "counts"))
    positive = y[y > 0]
    times = np.concatenate([[0.0], np.geomspace(0.1 / positive.max(), 1 / positive.min(), TIMES_OF_ERROR)])
    worst = 0.0
    for p in (1, 2):
        sums = [np.exp(-2 * np.outer(times, each)) @ (weight * each**p) for each, weight in ((x, w), (y, v))]
        worst = max(worst, float(np.abs(sums[0] / sums[1] - 1).max()))
    return worst


def best_bins(eigenvalues: Eigenvalues, d: int, blocks: int) -> tuple[list[Bin], float]:
    """Bin the eigenvalues of d ranks into at most `blocks` nodes, and return the bins and their error by `kernel_error`."""
    if d <= blocks:
        return bin_ranks(eigenvalues, d, blocks, 2), 0.0
    reference = bin_ranks(eigenvalues, d, max(REFERENCE_BLOCKS, 4 * blocks), NODES_PER_BIN[-1])
    tried = [bin_ranks(eigenvalues, d, blocks, n) for n in NODES_PER_BIN if n < blocks]
    errors = [kernel_error(each, reference) for each in tried]
    best = int(np.argmin(errors))
    return tried[best], errors[best]


@lru_cache(maxsize=64)
def power_law_bins(d: int, exponent: float, blocks: int) -> tuple[list[Bin], float]:
    """Return the bins of the eigenvalues j^-exponent for j = 1, ..., d, and their error."""
    return best_bins(lambda ranks: ranks**-exponent, d, blocks)


def project_onto_nodes(found: list[Bin], squares: Callable[[Float[np.ndarray, " points"]], np.ndarray]) -> np.ndarray:
    """Return weights at the nodes of all bins with the sum of `squares`, a function of the rank, over each bin."""
    parts = []
    for each in found:
        values = squares(each.ranks)
        part = np.maximum(each.projection @ values, 0.0)  # a steep weight may leave a node without any
        parts.append(part * (each.weights * values).sum() / part.sum() if part.any() else part)
    return np.concatenate(parts)
