"""Trees of arrays: arithmetic leaf by leaf, and the axis of runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import is_traced
from sgdlimits.kernel.random.transform import array_module


def as_floats(value: Any) -> Any:
    """Floating point, whatever numbers were given, on the host until something is computed with them.

    Arrays of JAX stay where they are; what JAX puts into pytrees in between passes through.
    """
    if isinstance(value, jax.Array):
        return value.astype(float) if not jnp.issubdtype(value.dtype, jnp.floating) else value
    numbers = isinstance(value, (list, tuple, int, float, np.generic, np.ndarray)) or hasattr(value, "to_numpy")
    return np.asarray(value, float) if numbers else value


def repeat_for_samples(scalars: PyTree, count: int, axis: int = -1) -> PyTree:
    """The same scalars for each of so many samples, on a new axis."""
    at = lambda shape: (*shape[: len(shape) + axis + 1], count, *shape[len(shape) + axis + 1 :])
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.expand_dims(leaf, axis), at(jnp.shape(leaf))), scalars)


def add(state: PyTree, change: PyTree, factor: Float[Array, ""] | float = 1.0) -> PyTree:
    """Add factor times change to a state, leaf by leaf."""
    return jax.tree.map(lambda value, more: value + factor * more, state, change)


def runs_last(tree: PyTree) -> PyTree:
    """Move the axis of runs from the front to the back."""
    return jax.tree.map(lambda leaf: array_module(leaf).moveaxis(leaf, 0, -1), tree)


def runs_first(tree: PyTree) -> PyTree:
    """Move the axis of runs from the back to the front."""
    return jax.tree.map(lambda leaf: array_module(leaf).moveaxis(leaf, -1, 0), tree)


def take_run(batch: PyTree, index=0) -> PyTree:
    """One run of a batch, runs first; or the runs of an array of indices."""
    return jax.tree.map(lambda leaf: leaf[index], batch)


def as_batch(one: PyTree) -> PyTree:
    """A batch of one run."""
    return jax.tree.map(lambda leaf: leaf[None], one)


def count_runs(stats: PyTree) -> int | None:
    """How many runs statistics are of, runs first; None for those of one run, without an axis."""
    name = type(stats).overlap
    value = getattr(stats, name)
    return None if np.ndim(value) == len(type(stats).dims[name]) else value.shape[0]


def repeated(one: PyTree, runs: int) -> PyTree:
    """The statistics of one run for each of several, as arrays of the host unless they are traced."""
    return jax.tree.map(lambda leaf: (jnp if is_traced(leaf) else np).tile(leaf, (runs, *[1] * np.ndim(leaf))), one)
