"""Estimates of drift, corrector and noise of statistics at given weights, with standard errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.analysis.sampled.moments import SampleMoments
from sgdlimits.text import format_table

MAX_ROUNDING_SPREAD = 1e-12
"""Largest spread of values over samples, relative to 1 and to the size of the values, that counts as rounding."""


@dataclass(frozen=True, repr=False)
class SampleAverage:
    """Sample average with its standard error, each a number, an array or a dictionary of these.

    NumPy functions use the average without its error.
    """

    value: PyTree
    error: PyTree

    def __getitem__(self, key: Any) -> SampleAverage:
        return SampleAverage(self.value[key], self.error[key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype)

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        pairs = zip(*map(jax.tree.leaves, (self.value, self.error)), strict=True)
        return ", ".join(
            format_with_error(value, error) for pair in pairs for value, error in zip(*map(np.ravel, pair), strict=True)
        )


def format_with_error(value: float, error: float) -> str:
    """Format a number with its standard error.

    >>> format_with_error(1.23456, 0.0123)
    '1.235 ± 0.012'
    """
    return f"{value:.4g} ± {error:.2g}"


@dataclass(frozen=True)
class StepSizeFactors:
    """Factors that convert averages over samples to terms of the dynamics, with time in units of d^(s + slowed) samples.

    Parameters
    ----------
    lr, exponent : learning rate, and exponent s of the step size lr d^-s
    slowed : power of d by which time is slowed
    d : dimension
    """

    lr: float
    exponent: float
    slowed: float
    d: int

    @property
    def time(self) -> float:
        """Factor d^slowed by which slowed time multiplies rates."""
        return float(self.d) ** self.slowed

    @property
    def drift(self) -> float:
        """Factor of the population drift in the dynamics."""
        return self.lr * self.time

    @property
    def second_order_terms(self) -> float:
        """Factor of terms of second order in the gradient."""
        return self.lr**2 * float(self.d) ** (self.slowed - self.exponent)

    @property
    def noise(self) -> float:
        """Factor d^-s from `Sigma` to the diffusion matrix of the statistics."""
        return float(self.d) ** -self.exponent

    def increments(self, moments: SampleMoments) -> np.ndarray:
        """Return d^s times the increment of the statistics by each sample, to second order in the gradient.

        The second-order term omits the product of the gradient's mean and its noise, which vanishes as d grows.
        """
        return -self.lr * moments.first_derivatives + self.lr**2 * self.noise / 2 * moments.second_order_terms


@dataclass(frozen=True, repr=False)
class DynamicsEstimates:
    r"""Estimated dynamics of statistics at given weights, with standard errors.

    Parameters
    ----------
    names : names of the k statistics
    u : statistics of the weights
    f, g, h : population drift, corrector and their difference -f + g, in the form of `u`
    Sigma : covariance of d^s times the one-sample increments, shape (k, k), second-order term included
    volatility : Sigma without the second-order term, :math:`\text{lr}^2 JVJ^\top`, for the Jacobian J of the statistics and
        the covariance V of one sample's gradient
    diffusion : diffusion matrix of the statistics, Sigma times d^-s
    risk : mean loss
    samples : number of samples in the averages
    """

    names: tuple[str, ...]
    u: PyTree
    f: SampleAverage
    g: SampleAverage
    h: SampleAverage
    Sigma: SampleAverage
    volatility: SampleAverage
    diffusion: SampleAverage
    risk: SampleAverage
    samples: int

    def __repr__(self) -> str:
        flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        pairs = [(flat(part.value), flat(part.error)) for part in (self.f, self.g, self.h)]
        noise = np.diagonal(self.Sigma.value), np.diagonal(self.Sigma.error)
        rows: list[tuple[str, ...]] = [("statistic", "value", "f", "g", "h = -f + g", "Sigma")]
        for i, (name, u) in enumerate(zip(self.names, flat(self.u), strict=True)):
            rows.append((name, f"{u:.4g}", *(format_with_error(value[i], error[i]) for value, error in (*pairs, noise))))
        # a sampler that draws with NumPy gives one sample for all keys, and errors of rounding
        alike = (
            self.risk.error <= MAX_ROUNDING_SPREAD * abs(float(self.risk))
            and not (np.abs(noise[0]) > MAX_ROUNDING_SPREAD).any()
        )
        head = ", all of them the same: sample does not use its key" if alike else ""
        return f"{self.samples} samples{head}; averages ± standard errors\n{format_table(rows, '<>')}"


def estimates_at(
    user: UserLoss, scales: StepSizeFactors, moments: SampleMoments, point: int, u: np.ndarray
) -> DynamicsEstimates:
    """Return the estimates at the point of index `point` in `moments`, whose statistics are u."""
    first, bend = moments.first_derivatives[:, point], moments.second_order_terms[:, point]
    f, g = scales.drift * first, scales.second_order_terms / 2 * bend
    of = lambda rows: SampleAverage(*(user.unflatten_statistics(each) for each in mean_and_error(rows)))
    Sigma = scales.time * np.stack(covariance_and_error(scales.increments(moments)[:, point]))
    volatility = scales.time * scales.lr**2 * np.stack(covariance_and_error(first))
    return DynamicsEstimates(
        names=user.names,
        u=user.unflatten_statistics(np.asarray(u)),
        f=of(f),
        g=of(g),
        h=of(g - f),
        Sigma=SampleAverage(*Sigma),
        volatility=SampleAverage(*volatility),
        diffusion=SampleAverage(*(scales.noise * Sigma)),
        risk=SampleAverage(*map(float, mean_and_error(moments.loss[:, point]))),
        samples=moments.samples,
    )


def mean_and_error(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over samples, the first axis of `rows`, and the standard error of the mean."""
    return rows.mean(0), rows.std(0, ddof=1) / np.sqrt(len(rows))


def covariance_and_error(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariance matrix over samples, the first axis of `rows`, and the standard errors of its entries."""
    n = len(rows)
    centred = rows - rows.mean(0)
    products = centred[..., :, None] * centred[..., None, :]
    return products.sum(0) / (n - 1), products.std(0, ddof=1) / np.sqrt(n)
