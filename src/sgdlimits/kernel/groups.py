"""Runs in groups of one size, one after another: the same code, bit by bit, however many runs there are.

XLA compiles a loop over runs as it suits their number, and may then round in other places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PyTree

VECTOR = 16
"""Twice as many doubles as the longest vectors have."""


def in_groups(function: Callable[[PyTree], PyTree], size: int | None, wanted: Any, runs: PyTree) -> PyTree:
    """The function of arrays that have the runs first, as its results have: group by group, or all at once for None.

    How many of the runs are `wanted` is unknown to the compiler, which therefore keeps the loops: the inner one, of one round,
    has nothing in it that depends on how many groups there are. Results of the others are zeros.
    """
    if size is None:
        return function(runs)
    function = jax.jit(function, inline=True)  # traced once, for its shapes and for the loop
    groups = jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, size, *leaf.shape[1:])), runs)
    one = jax.eval_shape(lambda tree: function(_at(tree, 0)), groups)
    count = jax.tree.leaves(groups)[0].shape[0]
    zeros = lambda *more: jax.tree.map(lambda leaf: jnp.zeros((*more, *leaf.shape), leaf.dtype), one)

    def put(index, found):
        group = _at(groups, index)
        now = lax.fori_loop(0, jnp.minimum(1, wanted), lambda _, before: function(group), zeros())
        return jax.tree.map(lambda leaf, new: lax.dynamic_update_index_in_dim(leaf, new, index, 0), found, now)

    found = lax.fori_loop(0, (wanted + size - 1) // size, put, zeros(count))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)


def _at(tree: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, 0, keepdims=False), tree)


def platform() -> str:
    """The kind of device that computations go to."""
    device = getattr(jax.config, "jax_default_device", None)
    return jax.default_backend() if device is None else getattr(device, "platform", str(device))
