"""Statistics and starts from lists and NumPy's arrays, simulations without a bar, and means with their errors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl


def overlaps(a: Any, M: Any, Q: Any) -> sl.Overlaps:
    return sl.Overlaps(jnp.asarray(a, float), jnp.asarray(M, float), jnp.asarray(Q, float))


def spike(m: Any, r2: Any) -> sl.Spike:
    return sl.Spike(jnp.asarray(m, float), jnp.asarray(r2, float))


def start_at(overlap: Any) -> sl.FixedInit:
    return sl.FixedInit(jnp.asarray(overlap, float))


def run(problem: sl.Problem, level: sl.Level, start: Any, t_max: float, **how: Any) -> xr.Dataset:
    return sl.simulate(problem, level, start, t_max=t_max, progress=False, **how)


def chain(problem: sl.Problem, d: int, t_max: float, start: Any = None, **how: Any) -> xr.Dataset:
    """Runs of the exact chain, from random starts unless another start is given."""
    return run(problem, sl.Chain(d), sl.RandomInit(d) if start is None else start, t_max, **how)


def mean(values: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


def slope(sizes: Any, ends: Any) -> tuple[float, float]:
    """By how much a mean grows with the logarithm of a size, and its error, from means and errors at two sizes."""
    (soon, e), (late, f) = ends
    step = np.log(sizes[1] / sizes[0])
    return (late - soon) / step, np.hypot(e, f) / step
