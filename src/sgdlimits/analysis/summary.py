r"""Statistics of exit times: mean, median and quantiles with confidence intervals, and survival curves.

With exits at the times :math:`t_1 < t_2 < \dots`, :math:`d_i` exits at :math:`t_i` and :math:`n_i` runs under observation just
before :math:`t_i`, the Kaplan-Meier estimate of the survival function is

.. math:: S(t) = \prod_{t_i \le t} \Big(1 - \frac{d_i}{n_i}\Big).

It is consistent if censoring is independent of the exit, as with a common `t_max`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri

from sgdlimits.checks import check_each, memory_bounded_count
from sgdlimits.domain import Fraction, Seed, checked
from sgdlimits.errors import BadInput, CensoredWarning, check_number, check_share
from sgdlimits.text import format_table

MAX_FLOATS_AT_ONCE = 2**20
"""Maximum number of floats in the arrays of bootstrap resamples: 8 MiB."""


def check_exits(exits: Any) -> xr.Dataset:
    """Return the argument if it is a dataset of `exit_times`; raise `BadInput` for anything else."""
    if not isinstance(exits, xr.Dataset) or not {"t", "censored"} <= set(exits.data_vars):
        raise BadInput(
            f"exits must be a dataset of exit times; got a {type(exits).__name__}. Make one with sgdlimits.exit_times."
        )
    return exits


class OrderedExitTimes(NamedTuple):
    """Exit and censoring times of runs in ascending order, and a mask that is true for exits.

    Among equal times exits come first.
    """

    t: np.ndarray
    exited: np.ndarray

    @classmethod
    def from_exits(cls, exits: Any) -> OrderedExitTimes:
        """Return the ordered times of a dataset of `exit_times`, or of an array of exit times without censored runs."""
        if isinstance(exits, xr.Dataset):
            t, censored = check_exits(exits).t.values, exits.censored.values.astype(bool)
        else:
            try:
                t = np.asarray(exits, float)
            except (TypeError, ValueError):
                what = type(exits).__name__
                raise BadInput(
                    f"exit times must be a dataset or an array; got a {what}. Compute them with exit_times."
                ) from None
            censored = np.zeros(t.shape, bool)
        if t.ndim != 1 or not t.size or not np.isfinite(t).all() or (t < 0).any():
            raise BadInput(
                f"exit times must be a row of finite numbers of at least 0; got shape {t.shape}. Compute them with exit_times."
            )
        # by time, and exits before censored runs among equal times
        order = np.lexsort((censored, t))
        return cls(t[order], ~censored[order])


class SurvivalCurve(NamedTuple):
    """Survival curve of exit times: the share of runs that have not exited, with a pointwise confidence band."""

    t: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ended: np.ndarray


def evaluate_survival(exited: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the Kaplan-Meier survival function after each ordered time; `counts` says how often each time occurs."""
    # runs at risk just before each time
    left = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    return np.cumprod(1 - np.where(exited, counts, 0) / np.maximum(left, 1), axis=-1)


def survival_curve(times: OrderedExitTimes, confidence: float = 0.95) -> SurvivalCurve:
    """Return the Kaplan-Meier curve S(t), S(0) = 1, with a band from Greenwood's variance on the scale of log(-log S)."""
    n = np.arange(times.t.size, 0, -1)
    share = evaluate_survival(times.exited, np.ones(times.t.size))
    # keep the value after all events at equal times
    last = np.append(np.diff(times.t) > 0, True)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(np.where(times.exited, 1 / (n * (n - 1.0)), 0.0))
        spread = np.exp(ndtri((1 + confidence) / 2) * np.sqrt(variance) / np.log(share))
        low, high = share ** (1 / spread), share**spread
    inside = (share > 0) & (share < 1)
    # the band has no width where S is 0 or 1
    low, high = np.where(inside, low, share), np.where(inside, high, share)
    ended = ~times.exited  # at equal times these come last
    columns = zip((0.0, 1.0, 1.0, 1.0, False), (times.t, share, low, high, ended), strict=True)
    return SurvivalCurve(*(np.concatenate([[first], values[last]]) for first, values in columns))


@dataclass(frozen=True, repr=False)
class IntervalEstimate:
    """Estimate with its confidence interval; an end of a quantile's interval is infinite if too few runs exited."""

    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def scaled(self, factor: float) -> IntervalEstimate:
        """Return the estimate and its interval multiplied by a factor."""
        return IntervalEstimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, repr=False)
class Summary:
    """Mean, median and quantiles of the exit times of many runs; with censored runs `mean` is a lower bound.

    `quantiles` is a dict from the share of runs to the time by which that share has exited.
    """

    runs: int
    censored: int
    mean: IntervalEstimate
    median: IntervalEstimate
    quantiles: dict[float, IntervalEstimate]
    confidence: float

    def scaled(self, factor: float) -> Summary:
        """Return the summary with times multiplied by `factor`: d for samples, `problem.rate` for the time of the paper."""
        check_number("factor", factor, above=0)
        quantiles = {share: each.scaled(factor) for share, each in self.quantiles.items()}
        return replace(self, mean=self.mean.scaled(factor), median=self.median.scaled(factor), quantiles=quantiles)

    def __repr__(self) -> str:
        rows = {"mean": f"at least {self.mean}" if self.censored else str(self.mean)}
        rows["median"] = str(self.median) if math.isfinite(self.median.value) else f"more than half censored, {self.median}"
        for share, each in self.quantiles.items():
            rows[f"{100 * share:g} %"] = str(each) if math.isfinite(each.value) else f"not reached, {each}"
        head = f"{self.runs} runs, {self.censored} censored; intervals of {100 * self.confidence:g} %"
        return f"{head}\n{format_table(rows.items(), indent='  ')}"


@checked
def summarise(
    exits: xr.Dataset | np.ndarray,
    quantiles: Annotated[Sequence[float], check_each(check_share)] = (0.1, 0.9),
    confidence: Fraction = 0.95,
    resamples: Annotated[int, memory_bounded_count(8)] = 1000,
    seed: Seed = 0,
) -> Summary:
    r"""Estimate mean, median and quantiles of exit times with confidence intervals, accounting for censored runs.

    The survival function S is estimated by the method of Kaplan and Meier. The quantile of the share q is the first t with
    :math:`S(t) \le 1 - q`, and infinite if S stays above :math:`1 - q`. The mean is estimated by :math:`\int_0^\tau S\,dt`,
    where :math:`\tau` is the last time at which a run was observed: the sample mean if no run is censored, and a lower bound
    otherwise. Intervals are percentiles over resampled runs (bootstrap).

    Censoring is assumed to be independent of the exit, which is true for a common `t_max`, but not for runs that diverged.
    A `CensoredWarning` is issued if any run is censored.

    Parameters
    ----------
    exits : a dataset of `exit_times`, or an array of exit times without censored runs
    quantiles : shares of runs, between 0 and 1
    confidence : coverage probability of the intervals
    resamples : number of bootstrap samples
    seed : seed of the bootstrap

    >>> import numpy as np
    >>> times = np.random.default_rng(0).exponential(10.0, size=1000)
    >>> summarise(times, quantiles=[0.9])
    1000 runs, 0 censored; intervals of 95 %
      mean    10.22 [9.632, 10.86]
      median  7.433 [6.735, 7.981]
      90 %    23.14 [21.48, 25.22]
    """
    times = OrderedExitTimes.from_exits(exits)
    shares = [0.5, *quantiles]
    value = _mean_and_quantiles(times, np.ones((1, times.t.size)), shares)[0]
    repeated = _bootstrap_mean_and_quantiles(times, shares, resamples, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    # order statistics rather than interpolation: quantiles may be infinite
    low, high = np.quantile(repeated, tail, axis=0, method="lower"), np.quantile(repeated, 1 - tail, axis=0, method="higher")
    mean, median, *others = (IntervalEstimate(*map(float, each)) for each in zip(value, low, high, strict=True))
    censored = int((~times.exited).sum())
    if censored:
        warnings.warn(
            f"{censored} of {times.t.size} runs are censored, so that the mean is a lower bound; "
            "simulate with a larger t_max, or use the median.",
            CensoredWarning,
            stacklevel=3,
        )
    return Summary(times.t.size, censored, mean, median, dict(zip(shares[1:], others, strict=True)), confidence)


def _mean_and_quantiles(times: OrderedExitTimes, counts: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Return mean and quantiles of the exit times of resampled runs, shape (rows, 1 + shares).

    Each row of `counts` says how often each of the ordered times occurs.
    """
    left = evaluate_survival(times.exited, counts)
    # the integral of a step function, which is 1 up to the first time
    columns = [times.t[0] + left[:, :-1] @ np.diff(times.t)]
    for share in shares:
        below = left <= 1 - share + 1e-12  # S is a product of rounded factors
        columns.append(np.where(below.any(1), times.t[below.argmax(1)], np.inf))
    return np.stack(columns, axis=1)


def _bootstrap_mean_and_quantiles(
    times: OrderedExitTimes, shares: Sequence[float], resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """Return mean and quantiles of exit times in bootstrap resamples of the runs, shape (resamples, 1 + shares).

    A few resamples at a time are computed.
    """
    n, parts = times.t.size, []
    for begin in range(0, resamples, max(1, MAX_FLOATS_AT_ONCE // n)):
        rows = min(resamples - begin, max(1, MAX_FLOATS_AT_ONCE // n))
        # rows are offset by n, so that one bincount serves all
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        parts.append(_mean_and_quantiles(times, np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n), shares))
    return np.concatenate(parts)
