r"""The share of runs that have not exited, when some were not followed to their exit.

With exits at times :math:`t_1 < t_2 < \dots`, :math:`d_i` of them at :math:`t_i` and :math:`n_i` runs under observation just
before, the Kaplan-Meier estimate of the survival function is

.. math:: S(t) = \prod_{t_i \le t} \Big(1 - \frac{d_i}{n_i}\Big).

It is right where the end of the observation tells nothing about the exit, such as a common `t_max`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri

from sgdlimits.errors import BadInput


def check_exits(exits: Any) -> xr.Dataset:
    """The dataset itself, or `BadInput` where it is not one of `exit_times`."""
    if not isinstance(exits, xr.Dataset) or not {"t", "censored"} <= set(exits.data_vars):
        raise BadInput(f"this is not a dataset of exit times but a {type(exits).__name__}. Make one with sgdlimits.exit_times.")
    return exits


class Times(NamedTuple):
    """Times in increasing order, exits before ends of observation where they are equal, and which of them are exits."""

    t: np.ndarray
    exited: np.ndarray

    @classmethod
    def of(cls, exits: Any) -> Times:
        """From the dataset of `exit_times`, or from an array of exit times."""
        if isinstance(exits, xr.Dataset):
            t, censored = check_exits(exits).t.values, exits.censored.values.astype(bool)
        else:
            try:
                t = np.asarray(exits, float)
            except (TypeError, ValueError):
                what = type(exits).__name__
                raise BadInput(f"exit times must be a dataset or an array; got a {what}. Use exit_times.") from None
            censored = np.zeros(t.shape, bool)
        if t.ndim != 1 or not t.size or not np.isfinite(t).all() or (t < 0).any():
            raise BadInput(
                f"exit times must be a row of finite numbers of at least 0; got shape {t.shape}. Censor runs with exit_times."
            )
        order = np.lexsort((censored, t))
        return cls(t[order], ~censored[order])


class Curve(NamedTuple):
    """A survival curve after each of its times, a band of pointwise confidence intervals, and where censored runs ended."""

    t: np.ndarray
    share: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ended: np.ndarray


def survival(exited: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """S after each of the ordered times, of which the last axis of `counts` says how often each occurs."""
    left = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    return np.cumprod(1 - np.where(exited, counts, 0) / np.maximum(left, 1), axis=-1)


def curve(times: Times, confidence: float = 0.95) -> Curve:
    """The survival curve with the band of Greenwood's variance on the scale of log(-log S), from S = 1 at t = 0 on."""
    n = np.arange(times.t.size, 0, -1)
    share = survival(times.exited, np.ones(times.t.size))
    last = np.append(np.diff(times.t) > 0, True)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(np.where(times.exited, 1 / (n * (n - 1.0)), 0.0))
        spread = np.exp(ndtri((1 + confidence) / 2) * np.sqrt(variance) / np.log(share))
        low, high = share ** (1 / spread), share**spread
    inside = (share > 0) & (share < 1)
    low, high = np.where(inside, low, share), np.where(inside, high, share)
    ended = ~times.exited  # at equal times these come last
    columns = zip((0.0, 1.0, 1.0, 1.0, False), (times.t, share, low, high, ended), strict=True)
    return Curve(*(np.concatenate([[first], values[last]]) for first, values in columns))
