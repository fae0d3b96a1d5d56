r"""Distances of the fields of data from Gaussian ones, by which theory for Gaussian inputs can be trusted or not.

Tested are fields along random directions, along the direction of a target, and the squared length of the inputs. Fields are
standardised within classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

RANDOM_DIRECTIONS = 64
MAX_DISTANCE, MAX_KURTOSIS, MAX_LENGTH_RATIO = 0.05, 1.0, 3.0
"""Largest Kolmogorov-Smirnov distance, excess kurtosis, and variance of the squared length relative to that of Gaussian inputs,
at which theory is trusted. Kurtosis and squared length enter the noise of gradients in proportion. Signs, uniform numbers and
the terrain of docs/your_data.md stay below, sparse rows and photographs are above."""


class FieldTest(NamedTuple):
    """Departure of standardised fields from a Gaussian law, averaged over directions of one kind.

    Parameters
    ----------
    direction : kind of the directions
    skewness : root mean square of the skewness, 0 for a Gaussian law
    kurtosis : mean excess kurtosis, 0 for a Gaussian law
    distance : mean Kolmogorov-Smirnov distance from the standard normal distribution
    samples : number of samples, which sets the sampling errors
    """

    direction: str
    skewness: float
    kurtosis: float
    distance: float
    samples: int

    @property
    def errors(self) -> tuple[float, float, float]:
        """Size of the three numbers that Gaussian samples have by chance: two standard errors, and 95% of the distances."""
        # Stephens' approximation of Lilliefors' quantile, where mean and variance are estimated
        root = math.sqrt(self.samples)
        return 2 * math.sqrt(6) / root, 2 * math.sqrt(24) / root, 0.895 / (root - 0.01 + 0.85 / root)

    @property
    def is_near(self) -> bool:
        """Whether distance and kurtosis are small or within sampling errors, so that Gaussian theory can be trusted."""
        _, kurtosis, distance = self.errors
        return self.distance <= max(MAX_DISTANCE, distance) and abs(self.kurtosis) <= max(MAX_KURTOSIS, kurtosis)


def measure_fields(direction: str, fields: Float[np.ndarray, "n m"]) -> FieldTest:
    """Return the departure from a Gaussian law of standardised fields along m directions."""
    n = len(fields)
    sorted_fields = np.sort(fields, axis=0)
    below, steps = scipy.special.ndtr(sorted_fields), np.arange(n + 1)[:, None] / n
    distance = np.maximum(steps[1:] - below, below - steps[:-1]).max(0)
    skewness, kurtosis = (fields**3).mean(0), (fields**4).mean(0) - 3
    return FieldTest(direction, float(np.sqrt((skewness**2).mean())), float(kurtosis.mean()), float(distance.mean()), n)


def standardise(fields: Float[np.ndarray, "n m"], c: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n m"]:
    """Return fields with mean 0 and variance 1 within each class; constant fields become 0."""
    result = np.empty_like(fields)
    for i in np.unique(c):
        own = fields[c == i] - fields[c == i].mean(0)
        spread = own.std(0)
        result[c == i] = own / np.where(spread > 0, spread, 1.0)
    return result


def field_tests(
    rows: Float[np.ndarray, "n d"], c: Int[np.ndarray, " n"], target: Float[np.ndarray, " d"] | None
) -> tuple[FieldTest, ...]:
    """Return the tests of fields along random directions, and along the target if there is one."""
    directions = np.random.default_rng(0).normal(size=(rows.shape[1], RANDOM_DIRECTIONS))
    tests = (measure_fields("random directions", standardise(rows @ directions, c)),)
    if target is None:
        return tests
    return (*tests, measure_fields("target", standardise(rows @ target[:, None], c)))


def length_ratio(rows: Float[np.ndarray, "n d"], c: Int[np.ndarray, " n"]) -> float:
    """Return the variance of the squared length of centred rows, relative to Gaussian rows of the same covariance."""
    measured = gaussian = 0.0
    for i in np.unique(c):
        own = rows[c == i] - rows[c == i].mean(0)
        covariance = own.T @ own / len(own)
        measured += len(own) * float(np.var((own**2).sum(1)))
        gaussian += len(own) * 2 * float((covariance**2).sum())
    return measured / gaussian
