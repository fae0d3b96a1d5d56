"""Short forms used by the claims: statistics from lists, simulations without a progress bar, means with errors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl


def overlaps(a: Any, M: Any, Q: Any) -> sl.Overlaps:
    """Build `Overlaps` from lists or NumPy arrays."""
    return sl.Overlaps(jnp.asarray(a, float), jnp.asarray(M, float), jnp.asarray(Q, float))


def spike(m: Any, r2: Any) -> sl.Spike:
    """Build the statistics of a spiked tensor from numbers."""
    return sl.Spike(jnp.asarray(m, float), jnp.asarray(r2, float))


def start_at(overlap: Any) -> sl.FixedInit:
    """Build a start at a fixed overlap."""
    return sl.FixedInit(jnp.asarray(overlap, float))


def simulate(problem: sl.Problem, level: sl.Level, start: Any, t_max: float, **how: Any) -> xr.Dataset:
    """Simulate without a progress bar."""
    return sl.simulate(problem, level, start, t_max=t_max, progress=False, **how)


def simulate_chain(problem: sl.Problem, d: int, t_max: float, start: Any = None, **how: Any) -> xr.Dataset:
    """Simulate the exact chain, from random starts unless another start is given."""
    # the dimension of the start is that of the chain
    return simulate(problem, sl.Chain(d), sl.RandomInit(d) if start is None else start, t_max, **how)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of independent values and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


def log_slope(sizes: Any, ends: Any) -> tuple[float, float]:
    """Return the slope of a mean in the logarithm of a size, with its error, from means and errors at two sizes."""
    # independent errors add in quadrature
    (soon, e), (late, f) = ends
    step = np.log(sizes[1] / sizes[0])
    return (late - soon) / step, np.hypot(e, f) / step
