"""Rates of growth and decay by linear fits to logarithms, with standard errors from blocks."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sgdlimits.analysis.origin import name_of_overlap
from sgdlimits.errors import BadInput

ERROR_BLOCKS = 4
"""Number of blocks of a fitted stretch, whose slopes give the standard error."""
MIN_FIT_POINTS = 8
"""Smallest number of points of a fit."""
FIT_START = 0.2
"""Growth is fitted after this fraction of the plateau, when norms have settled."""
MAX_SIGNAL_FRACTION = 0.5
"""On a plateau that is left, growth is fitted up to this fraction of the final signal, before it saturates."""
MIN_SIGNAL_TO_NOISE = 3.0
"""At finite d growth is fitted above this multiple of d^(-1/2) per pair, the size of SGD's own noise."""
MIN_SIGNAL_TO_LEAST = 10.0
"""Decay is fitted above this multiple of the smallest value, near which other terms matter."""
MIN_DECAY_FACTOR = 2.0
"""A signal that falls by less than this factor has no decay rate."""
TAIL_FIT_START = 0.1
"""The tail is fitted below this fraction of its first value, if it falls so far."""
MIN_TAIL_FRACTION = 1e-8
"""The tail is fitted above this fraction, below which solvers lose accuracy."""


def compute_signals(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the norms of cosines whose growth and decay are fitted, each of shape (run, t).

    They are the norms of the cosines with fixed directions, of the differences between students in these cosines, and of the
    cosines between students.
    """
    if "m" in dataset and "r2" in dataset:
        return {"cosines": (np.abs(dataset.m) / np.sqrt(dataset.m**2 + dataset.r2)).values}
    if name_of_overlap(dataset) is None:
        variables = ", ".join(map(str, dataset.data_vars))
        raise BadInput(
            f"phases needs overlaps with fixed directions; got a dataset of {variables}. "
            "Simulate a problem with a teacher, a mixture or a spike."
        )
    M = dataset[name_of_overlap(dataset)].values
    if "Q" not in dataset:
        return _fixed_direction_norms(M / np.sqrt(dataset.q.values)[..., None])
    Q = dataset.Q.values
    norms = np.sqrt(np.maximum(np.diagonal(Q, axis1=-2, axis2=-1), np.finfo(float).tiny))
    kinds = _fixed_direction_norms(M / norms[..., None])
    if Q.shape[-1] > 1:
        # off-diagonal cosines only
        between = Q / (norms[..., None] * norms[..., None, :]) * (1 - np.eye(Q.shape[-1]))
        kinds["students"] = np.sqrt((between**2).sum((-1, -2)))
    return kinds


def compute_noise(dataset: xr.Dataset) -> tuple[float, float]:
    """Return the norms of the cosines of random directions in dimension d, zero for infinite d.

    The first norm is over cosines with fixed directions, the second over cosines between students.
    """
    shape = dataset[name_of_overlap(dataset)].shape[2:]
    d, students = dataset.attrs["d"] or np.inf, shape[0] if shape else 1
    return float(np.sqrt(np.prod(shape) / d)), float(np.sqrt(students * (students - 1) / d))


def _fixed_direction_norms(cosines: np.ndarray) -> dict[str, np.ndarray]:
    """Return the norms, over all pairs, of cosines with fixed directions and of their differences between students."""
    size = lambda values: np.sqrt((values**2).sum((-1, -2)))
    kinds = {"cosines": size(cosines)}
    if cosines.shape[-2] > 1:
        kinds["differences"] = size(cosines - cosines.mean(-2, keepdims=True))
    return kinds


def fit_growth(t: np.ndarray, signal: np.ndarray, *, left: bool, noise: float) -> dict[str, float]:
    """Fit the exponential growth rate of a signal on a plateau, where it is above the noise and not yet saturated.

    Here `left` is whether the run leaves the plateau, and `noise` the size of the signal from SGD's own noise.
    """
    fits = signal > 0
    places = np.arange(t.size)
    conditions = [t >= t[0] + FIT_START * (t[-1] - t[0])]
    if left:
        conditions.append(places < _first_index(signal > MAX_SIGNAL_FRACTION * signal[-1]))
        conditions.append(places >= _first_index(signal > MIN_SIGNAL_TO_NOISE * noise))
    # in the order of importance, each only if enough points remain
    for condition in conditions:
        fits = fits & condition if (fits & condition).sum() >= MIN_FIT_POINTS else fits
    rate, error = _fit_line(t[fits], np.log(signal[fits]))
    return {"growth": rate, "growth_error": error}


def fit_decay(t: np.ndarray, signal: np.ndarray, *, noise: float) -> dict[str, float]:
    """Fit the exponential decay rate of a signal on a plateau, where it is above `noise`.

    The dict is empty if the signal falls too little before noise dominates.
    """
    # skip the approach to the plateau
    late = t >= t[0] + FIT_START / 2 * (t[-1] - t[0])
    t, signal = t[late], signal[late]
    stop = _first_index(signal <= max(MIN_SIGNAL_TO_LEAST * signal.min(), MIN_SIGNAL_TO_NOISE * noise))
    if stop < MIN_FIT_POINTS or signal[0] < MIN_DECAY_FACTOR * signal[stop - 1]:
        return {}
    rate, error = _fit_line(t[:stop], np.log(signal[:stop]))
    return {"decay": -rate, "decay_error": error}


def fit_tail(t: np.ndarray, excess: np.ndarray, first: float, since: float) -> dict:
    """Fit the final decay of the excess risk by an exponential and by a power law, and return the better fit.

    The tail begins at the excess risk `first`, and `since` is the origin of time of the power law.
    """
    start, deep = (_first_index(excess <= share * first) for share in (1.0, TAIL_FIT_START))
    stop = _first_index(excess < MIN_TAIL_FRACTION * first)
    inside = slice(deep if stop - deep >= 2 * MIN_FIT_POINTS else start, stop)
    t, log = t[inside], np.log(excess[inside])
    t, log = t[t > since], log[t > since]
    if t.size < 2 * MIN_FIT_POINTS or log[0] - log[-1] < 1:
        return {}
    clocks = {"exponential": t, "algebraic": np.log(t - since)}
    law = min(clocks, key=lambda law: np.polyfit(clocks[law], log, 1, full=True)[1].sum())
    clock = clocks[law]
    last = clock >= (clock[0] + clock[-1]) / 2  # the asymptotic law is best seen in the second half
    last = last if last.sum() >= MIN_FIT_POINTS else np.ones(clock.size, bool)
    rate, error = _fit_line(clock[last], log[last])
    name = "tail_rate" if law == "exponential" else "tail_exponent"
    return {"tail_law": law, name: -rate, f"{name}_error": error}


def _first_index(holds: np.ndarray) -> int:
    """Return the first index at which a boolean array is true, or its length if it never is."""
    return int(holds.argmax()) if holds.any() else holds.size


def _fit_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Fit a line, and return its slope with the standard error over blocks of equal extent; NaN with too few points."""
    if x.size < MIN_FIT_POINTS:
        return np.nan, np.nan
    slope = np.polyfit(x - x.mean(), y, 1)[0]
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], ERROR_BLOCKS + 1)[1:-1])
    parts = [(a, b) for a, b in zip(np.split(x, edges), np.split(y, edges), strict=True) if a.size > 1]
    slopes = [np.polyfit(a - a.mean(), b, 1)[0] for a, b in parts]
    error = np.std(slopes, ddof=1) / np.sqrt(len(slopes)) if len(slopes) > 1 else np.nan
    return float(slope), float(error)
