r"""The exact law of the random start: overlaps of independent uniform directions in :math:`\mathbb R^d`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sgdlimits.problem.presets import phase_retrieval
from sgdlimits.start import RandomInit

LOG_STEP = 0.1
"""Spacing in log s of `LOG_GRID`, small enough that the trapezoidal rule is exact to rounding."""
LOG_GRID = np.exp(np.arange(-40.0, 80.0, LOG_STEP))
"""Arguments s of the Laplace transform of a positive variable, from which the mean of its logarithm is summed."""
START_DRAWS = 8192
"""Number of random starts drawn for the part of a quenched time beyond second order at p > 1, which has no quadrature."""


@lru_cache(maxsize=256)
def mean_log_overlap(width: int, d: int) -> float:
    r"""Mean logarithm of :math:`\mu_0 = d\sum_j m_j^2`, (43), over the exact law of random starts at finite d.

    Here :math:`m_j` are the overlaps of p students with the teacher in d dimensions.

    .. math:: E\log\mu_0 = \int_0^\infty \frac{e^{-s} - \phi(s)^p}{s}\,ds, \qquad \phi(s) = E e^{-s d m^2},

    since the overlaps of independent directions with a fixed one are independent.

    >>> from scipy.special import digamma
    >>> exact = digamma(1 / 2) - digamma(30 / 2) + np.log(30)
    >>> bool(abs(mean_log_overlap(1, 30) - exact) < 1e-11)
    True
    """
    if d == 1:  # every overlap is 1 or -1
        return float(np.log(width))
    s = LOG_GRID
    nodes, weights = np.polynomial.legendre.leggauss(200)
    # the density is below exp(-98) beyond this angle; the first row normalises it, the second has the factor exp(-s d m**2)
    reach = np.minimum(np.pi / 2, 14 / np.sqrt(d * np.array([1.0 + 0 * s, 1 + 2 * s])))
    angle = reach[..., None] * (nodes + 1) / 2
    square = np.sin(angle) ** 2
    log_cosine = np.log1p(-np.minimum(square, 1 - 1e-16)) / 2  # finite at a right angle too
    bulk = np.exp((d - 2) * log_cosine - d * np.stack([0 * s, s])[..., None] * square)
    whole, part = reach * (bulk @ weights)
    return float(LOG_STEP * (np.exp(-s) - (part / whole) ** width).sum())


class StartSums(NamedTuple):
    r"""Draws of the sums of squared overlaps at random starts, with their exact means and variances.

    The sums are :math:`\mu_0` over overlaps with the teacher and :math:`\tau_0` over overlaps between students, (43).
    """

    mu: np.ndarray
    tau: np.ndarray
    mean: tuple[float, float]
    variance: tuple[float, float]


@lru_cache(maxsize=64)
def draw_start_sums(width: int, d: int) -> StartSums:
    r"""Draw the sums :math:`\mu_0 = d\sum_j m_j^2` and :math:`\tau_0 = d\sum_{j\ne l} Q_{jl}^2` of random starts.

    Here :math:`m_j` and :math:`Q_{jl}` are the overlaps of p students with the teacher and with each other.

    Their means are :math:`E\mu_0 = p` and :math:`E\tau_0 = p(p-1)`. The squares of distinct overlaps are uncorrelated, and each
    has the variance :math:`3/(d(d+2)) - 1/d^2`.

    >>> draw_start_sums(3, 50).mean
    (3.0, 6.0)
    """
    # a fixed seed: times by these formulas are functions of their arguments
    drawn = RandomInit(d).sample(phase_retrieval(width), runs=START_DRAWS, seed=0)
    M, Q = np.asarray(drawn.M), np.asarray(drawn.Q)
    off = ~np.eye(width, dtype=bool)
    one = 3 * d / (d + 2) - 1  # the variance of d m**2
    return StartSums(
        d * (M**2).sum((1, 2)),
        d * (Q[:, off] ** 2).sum(1),
        (float(width), float(width * (width - 1))),
        (width * one, 2 * width * (width - 1) * one),
    )
