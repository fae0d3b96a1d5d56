"""Rates on stretches of trajectories: straight lines through logarithms, with errors from blocks."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdlimits.analysis.origin import overlap_name
from sgdlimits.errors import BadInput

BLOCKS, FEWEST = 4, 8
SETTLED = 0.2
"""Growth is fitted after this share of the plateau, when norms have settled,"""
SMALL = 0.5
"""and, where the plateau is left, up to this share of the signal at its end, before growth slows down."""
ABOVE_NOISE = 3.0
"""At finite d, only what is above this many times d^(-1/2) for each pair: SGD's own noise is of that size."""
ABOVE_LEAST = 10.0
"""Decay is fitted down to this many times the smallest value, where what remains is something else."""
LEAST_DECAY = 2.0
DEEP, DEEPEST = 0.1, 1e-8
"""The tail is fitted below a tenth of its first value if it gets there, and above where solvers stop to be accurate."""


def signals(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Norms over all pairs, of shape (run, t): cosines with fixed directions, their differences, cosines between students."""
    if "m" in dataset and "r2" in dataset:
        return {"cosines": (np.abs(dataset.m) / np.sqrt(dataset.m**2 + dataset.r2)).values}
    if overlap_name(dataset) is None:
        there = ", ".join(map(str, dataset.data_vars))
        raise BadInput(f"phases needs overlaps with fixed directions; got a dataset of {there}.")
    M = dataset[overlap_name(dataset)].values
    if "Q" not in dataset:
        return _with_fixed(M / np.sqrt(dataset.q.values)[..., None])
    Q = dataset.Q.values
    norms = np.sqrt(np.maximum(np.diagonal(Q, axis1=-2, axis2=-1), np.finfo(float).tiny))
    kinds = _with_fixed(M / norms[..., None])
    if Q.shape[-1] > 1:
        between = Q / (norms[..., None] * norms[..., None, :]) * (1 - np.eye(Q.shape[-1]))
        kinds["students"] = np.sqrt((between**2).sum((-1, -2)))
    return kinds


def noise_sizes(dataset: xr.Dataset) -> tuple[float, float]:
    """The size that random directions give to cosines with fixed directions and between students: zero without a d."""
    shape = dataset[overlap_name(dataset)].shape[2:]
    d, students = dataset.attrs["d"] or np.inf, shape[0] if shape else 1
    return float(np.sqrt(np.prod(shape) / d)), float(np.sqrt(students * (students - 1) / d))


def _with_fixed(cosines: np.ndarray) -> dict[str, np.ndarray]:
    size = lambda values: np.sqrt((values**2).sum((-1, -2)))
    kinds = {"cosines": size(cosines)}
    if cosines.shape[-2] > 1:
        kinds["differences"] = size(cosines - cosines.mean(-2, keepdims=True))
    return kinds


def growth_rate(t: np.ndarray, signal: np.ndarray, *, left: bool, noise: float) -> dict[str, float]:
    """The growth of a signal on a plateau; the conditions that leave too few points are given up."""
    fits = signal > 0
    places = np.arange(t.size)
    conditions = [t >= t[0] + SETTLED * (t[-1] - t[0])]
    if left:
        conditions.append(places < _first(signal > SMALL * signal[-1]))
        conditions.append(places >= _first(signal > ABOVE_NOISE * noise))
    for condition in conditions:
        fits = fits & condition if (fits & condition).sum() >= FEWEST else fits
    rate, error = _line(t[fits], np.log(signal[fits]))
    return {"growth": rate, "growth_error": error}


def decay_rate(t: np.ndarray, signal: np.ndarray, *, noise: float) -> dict[str, float]:
    """The decay of a signal on a plateau, if it falls enough before noise or something else carries it along."""
    late = t >= t[0] + SETTLED / 2 * (t[-1] - t[0])
    t, signal = t[late], signal[late]
    stop = _first(signal <= max(ABOVE_LEAST * signal.min(), ABOVE_NOISE * noise))
    if stop < FEWEST or signal[0] < LEAST_DECAY * signal[stop - 1]:
        return {}
    rate, error = _line(t[:stop], np.log(signal[:stop]))
    return {"decay": -rate, "decay_error": error}


def tail(t: np.ndarray, excess: np.ndarray, first: float, since: float) -> dict:
    """The law of the risk's last decay below a value: which of two lines is straighter, against t or against its logarithm."""
    start, deep = (_first(excess <= share * first) for share in (1.0, DEEP))
    stop = _first(excess < DEEPEST * first)
    inside = slice(deep if stop - deep >= 2 * FEWEST else start, stop)
    t, log = t[inside], np.log(excess[inside])
    t, log = t[t > since], log[t > since]
    if t.size < 2 * FEWEST or log[0] - log[-1] < 1:
        return {}
    clocks = {"exponential": t, "algebraic": np.log(t - since)}
    law = min(clocks, key=lambda law: np.polyfit(clocks[law], log, 1, full=True)[1].sum())
    clock = clocks[law]
    last = clock >= (clock[0] + clock[-1]) / 2
    last = last if last.sum() >= FEWEST else np.ones(clock.size, bool)
    rate, error = _line(clock[last], log[last])
    name = "tail_rate" if law == "exponential" else "tail_exponent"
    return {"tail_law": law, name: -rate, f"{name}_error": error}


def _first(holds: np.ndarray) -> int:
    """The first index at which something holds, or the size."""
    return int(holds.argmax()) if holds.any() else holds.size


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope, and its standard error from the slopes of blocks of equal extent; NaN where there are too few points."""
    if x.size < FEWEST:
        return np.nan, np.nan
    slope = np.polyfit(x - x.mean(), y, 1)[0]
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], BLOCKS + 1)[1:-1])
    parts = [(a, b) for a, b in zip(np.split(x, edges), np.split(y, edges), strict=True) if a.size > 1]
    slopes = [np.polyfit(a - a.mean(), b, 1)[0] for a, b in parts]
    error = np.std(slopes, ddof=1) / np.sqrt(len(slopes)) if len(slopes) > 1 else np.nan
    return float(slope), float(error)
