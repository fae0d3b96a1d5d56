"""Points of one standard normal number, with weights."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy


class Line(NamedTuple):
    """Points of a standard normal number and their weights, which sum to 1."""

    points: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> Line:
    """Exact for polynomials of degree 2 count - 1."""
    points, weights = scipy.special.roots_hermitenorm(count)
    return Line(points, weights / weights.sum())


@lru_cache(maxsize=64)
def trapezoid(count: int, reach: float) -> Line:
    """Equally spaced points from -reach to reach: with a Gaussian weight the error is exponentially small in their number.

    The rate is the distance to the nearest pole of the function, which makes it better than Gauss-Hermite for tanh.
    """
    points = np.linspace(-reach, reach, count)
    weights = np.exp(-(points**2) / 2)
    return Line(points, weights / weights.sum())
