"""Estimates with standard errors: of the statistics' drift, corrector and noise at given weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.analysis.sampled.moments import SampleMoments
from sgdlimits.text import table


ALIKE = 1e-12
"""A spread over samples, relative to their size and to 1, that is rounding."""


@dataclass(frozen=True, repr=False)
class SampleAverage:
    """A sample average and its standard error, both in the form of the quantity: a number, an array or a dictionary of them.

    NumPy takes it for its value.
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
        return ", ".join(with_error(value, error) for pair in pairs for value, error in zip(*map(np.ravel, pair), strict=True))


def with_error(value: float, error: float) -> str:
    """A number with its standard error.

    >>> with_error(1.23456, 0.0123)
    '1.235 ± 0.012'
    """
    return f"{value:.4g} ± {error:.2g}"


@dataclass(frozen=True)
class StepScales:
    """How averages at the step size lr d^-s turn into terms of the dynamics, with time in units of d^(s + slowed) samples.

    Parameters
    ----------
    lr, exponent, slowed, d : lr, s, the power by which time is slowed, and the dimension
    """

    lr: float
    exponent: float
    slowed: float
    d: int

    @property
    def time(self) -> float:
        """What slower time multiplies rates with."""
        return float(self.d) ** self.slowed

    @property
    def drift(self) -> float:
        """The factor of the population drift."""
        return self.lr * self.time

    @property
    def bend(self) -> float:
        """The factor of second-order terms."""
        return self.lr**2 * float(self.d) ** (self.slowed - self.exponent)

    @property
    def noise(self) -> float:
        """The factor that turns Sigma into the diffusion matrix of the statistics."""
        return float(self.d) ** -self.exponent

    def increments(self, moments: SampleMoments) -> np.ndarray:
        """One-sample increments of the statistics to second order, over the step size without lr.

        The product of the gradient's mean and its noise is left out of the second-order term: it vanishes as d grows.
        """
        return -self.lr * moments.first + self.lr**2 * self.noise / 2 * moments.bend


@dataclass(frozen=True, repr=False)
class DynamicsEstimates:
    r"""The dynamics of statistics at given weights, each an average with its standard error.

    Parameters
    ----------
    names : of the statistics
    u : the statistics of the weights
    f, g, h : population drift, corrector and their difference -f + g, in the form of `u`
    Sigma : covariance of the one-sample increments over the step size, shape (k, k), second-order term included
    volatility : the same without that term, :math:`\text{lr}^2 JVJ^\top`
    diffusion : the diffusion matrix of the statistics, Sigma times the step size
    risk : the mean loss
    samples : how many samples were averaged
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
            rows.append((name, f"{u:.4g}", *(with_error(value[i], error[i]) for value, error in (*pairs, noise))))
        # a sampler that draws with NumPy gives one sample for all keys, and errors of rounding
        alike = self.risk.error <= ALIKE * abs(float(self.risk)) and not (np.abs(noise[0]) > ALIKE).any()
        head = ", all of them the same: sample does not use its key" if alike else ""
        return f"{self.samples} samples{head}; averages ± standard errors\n{table(rows, '<>')}"


def estimates_at(user: UserLoss, scales: StepScales, moments: SampleMoments, point: int, u: np.ndarray) -> DynamicsEstimates:
    """The estimates at one of the points at which moments were measured, which has the statistics u."""
    first, bend = moments.first[:, point], moments.bend[:, point]
    f, g = scales.drift * first, scales.bend / 2 * bend
    of = lambda rows: SampleAverage(*(user.tree(each) for each in mean_and_error(rows)))
    Sigma = scales.time * np.stack(covariance_and_error(scales.increments(moments)[:, point]))
    volatility = scales.time * scales.lr**2 * np.stack(covariance_and_error(first))
    return DynamicsEstimates(
        names=user.names,
        u=user.tree(np.asarray(u)),
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
    """The mean over samples, which come first, and its standard error."""
    return rows.mean(0), rows.std(0, ddof=1) / np.sqrt(len(rows))


def covariance_and_error(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The covariance matrix of samples, which come first, and the standard errors of its entries."""
    n = len(rows)
    centred = rows - rows.mean(0)
    products = centred[..., :, None] * centred[..., None, :]
    return products.sum(0) / (n - 1), products.std(0, ddof=1) / np.sqrt(n)
