"""Statistics and starts from lists and NumPy's arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import sgdlimits as sl


def overlaps(a: Any, M: Any, Q: Any) -> sl.Overlaps:
    return sl.Overlaps(jnp.asarray(a, float), jnp.asarray(M, float), jnp.asarray(Q, float))


def spike(m: Any, r2: Any) -> sl.Spike:
    return sl.Spike(jnp.asarray(m, float), jnp.asarray(r2, float))


def start_at(overlap: Any) -> sl.FixedInit:
    return sl.FixedInit(jnp.asarray(overlap, float))
