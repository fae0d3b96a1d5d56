"""Operations on pytrees of arrays: conversion, arithmetic leaf by leaf, and the axis of runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import is_traced
from sgdlimits.kernel.random.transform import array_module


def as_floats(value: Any) -> Any:
    """Convert a number or an array to floating point, as a NumPy array unless it is a JAX array.

    Other objects, which JAX puts into pytrees in place of arrays, are returned unchanged.
    """
    # Everything else stays on the host, as NumPy arrays, until something is computed with it.
    if isinstance(value, jax.Array):
        return value.astype(float) if not jnp.issubdtype(value.dtype, jnp.floating) else value
    numbers = isinstance(value, (list, tuple, int, float, np.generic, np.ndarray)) or hasattr(value, "to_numpy")
    return np.asarray(value, float) if numbers else value


def repeat_for_samples(scalars: PyTree, count: int, axis: int = -1) -> PyTree:
    """Broadcast each leaf over `count` samples, on a new axis at position `axis`."""
    at = lambda shape: (*shape[: len(shape) + axis + 1], count, *shape[len(shape) + axis + 1 :])
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.expand_dims(leaf, axis), at(jnp.shape(leaf))), scalars)


def add(state: PyTree, change: PyTree, factor: Float[Array, ""] | float = 1.0) -> PyTree:
    """Add `factor` times `change` to `state`, leaf by leaf."""
    return jax.tree.map(lambda value, more: value + factor * more, state, change)


def move_runs_last(tree: PyTree) -> PyTree:
    """Move the axis of runs from the front to the back."""
    return jax.tree.map(lambda leaf: array_module(leaf).moveaxis(leaf, 0, -1), tree)


def move_runs_first(tree: PyTree) -> PyTree:
    """Move the axis of runs from the back to the front."""
    return jax.tree.map(lambda leaf: array_module(leaf).moveaxis(leaf, -1, 0), tree)


def select_run(batch: PyTree, index=0) -> PyTree:
    """Select one run of a batch with runs first, or several by an array of indices."""
    return jax.tree.map(lambda leaf: leaf[index], batch)


def to_batch(one: PyTree) -> PyTree:
    """Convert the statistics of one run to a batch of one run, runs first."""
    return jax.tree.map(lambda leaf: leaf[None], one)


def count_runs(stats: PyTree) -> int | None:
    """Return the number of runs of statistics with runs first, or None for statistics without an axis of runs."""
    # `overlap` names a leaf that all classes of statistics have; one axis more than `dims` is the axis of runs.
    name = type(stats).overlap
    value, blocks = getattr(stats, name), getattr(stats, "has_blocks", False)
    return None if np.ndim(value) == len(type(stats).dims[name]) + blocks else value.shape[0]


def repeat_run(one: PyTree, runs: int) -> PyTree:
    """Repeat the statistics of one run for a batch of runs, as NumPy arrays unless they are traced."""
    return jax.tree.map(lambda leaf: (jnp if is_traced(leaf) else np).tile(leaf, (runs, *[1] * np.ndim(leaf))), one)
