"""Short forms used by the claims: statistics from lists, simulations without a progress bar, means with errors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl


def make_overlaps(a: Any, M: Any, Q: Any) -> sl.Overlaps:
    """Build `Overlaps` from lists or NumPy arrays of second layer a, teacher overlaps M and student overlaps Q."""
    return sl.Overlaps(jnp.asarray(a, float), jnp.asarray(M, float), jnp.asarray(Q, float))


def make_spike(m: Any, r2: Any) -> sl.Spike:
    """Build the statistics of a spiked tensor from overlap m and squared orthogonal norm r2, floats or arrays."""
    return sl.Spike(jnp.asarray(m, float), jnp.asarray(r2, float))


def start_at(overlap: Any) -> sl.FixedInit:
    """Build a start at given overlaps with the fixed directions, such as 0.3."""
    return sl.FixedInit(jnp.asarray(overlap, float))


def simulate(problem: sl.Problem, level: sl.Level, start: Any, t_max: float, **how: Any) -> xr.Dataset:
    """Simulate a problem at a level of description without a progress bar; `how` has further options of `simulate`."""
    return sl.simulate(problem, level, start, t_max=t_max, progress=False, **how)


def simulate_chain(problem: sl.Problem, d: int, t_max: float, start: Any = None, **how: Any) -> xr.Dataset:
    """Simulate the exact chain, from random starts unless another start is given."""
    # the dimension of the start is that of the chain
    return simulate(problem, sl.Chain(d), sl.RandomInit(d) if start is None else start, t_max, **how)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of independent values, and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


def log_slope(sizes: Any, ends: Any) -> tuple[float, float]:
    """Return the slope of a mean against the logarithm of a size, with its standard error.

    The slope is that between two sizes, with the pairs (mean, error) in `ends`.
    """
    # independent errors add in quadrature
    (soon, e), (late, f) = ends
    step = np.log(sizes[1] / sizes[0])
    return (late - soon) / step, np.hypot(e, f) / step
