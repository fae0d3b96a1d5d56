"""Helpers for JAX: shared compiled functions, loops over groups of runs, pytrees stored as rows of floats, the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import PyTree

FAST_COMPILE_OPTIONS = {"xla_cpu_prefer_vector_width": "512", "xla_cpu_use_fusion_emitters": "False"}
"""XLA options with which CPU code compiles in half the time and is a little slower in large loops.

They select the older of XLA's two code generators. The newer one must not be combined with this vector width: its arctangent of
eight numbers is wrong.
"""
GROUP_SIZE_MULTIPLE = 16
"""Number of runs of which group sizes are multiples: twice the number of doubles in the longest SIMD registers."""


def jit_bound(function: Callable, *fixed: Any, fast_compile: bool = False) -> Callable:
    """Bind the first arguments of a function to `fixed`, and return a jitted function of the remaining ones.

    `fixed` is flattened once. Code is shared by all calls whose `fixed` differs in the values of arrays only. `fast_compile`
    trades speed of the code for speed of compilation.
    """
    leaves, tree = jax.tree.flatten(fixed)
    arrays = jax.device_put([leaf for leaf in leaves if _is_array(leaf)])
    static = tuple(None if _is_array(leaf) else leaf for leaf in leaves)
    return partial(_jit_with_static(function, tree, static, fast_compile), arrays)


def _is_array(leaf: Any) -> bool:
    """Return whether a leaf of a pytree is an array, which compiled code takes as an argument."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


@lru_cache(maxsize=256)
def _jit_with_static(function: Callable, tree: Any, static: tuple, fast_compile: bool) -> Callable:
    """Return a jitted function in which the bound arguments are constants, except for their arrays, which are arguments.

    The bound arguments have the structure `tree` and the leaves `static`, which are None for arrays. The cache makes bound
    arguments with equal constants share one jitted function, and so its compiled code.
    """

    def call_with_fixed(arrays, *arguments):
        rest = iter(arrays)
        fixed = jax.tree.unflatten(tree, [next(rest) if leaf is None else leaf for leaf in static])
        return function(*fixed, *arguments)

    call_with_fixed.__name__ = function.__name__  # so that profiles show the name
    return jax.jit(call_with_fixed, compiler_options=_supported_options() if fast_compile else None)


@lru_cache(maxsize=1)
def _supported_options() -> dict[str, str] | None:
    """Return the XLA options for fast compilation, or None if the installed XLA does not know them."""
    try:
        jax.jit(lambda: 0, compiler_options=FAST_COMPILE_OPTIONS)()
    except jax.errors.JaxRuntimeError:  # no such option
        return None
    return FAST_COMPILE_OPTIONS


def map_groups(function: Callable[[PyTree], PyTree], size: int | None, wanted: Any, runs: PyTree) -> PyTree:
    """Apply a function to a batch of runs in groups of `size` runs, one after another; without a size, to all at once.

    With groups, results are bit by bit the same for any number of runs, while XLA compiles a loop over all runs differently
    for each number of runs, and may round differently. Only the groups that contain one of the first `wanted` runs are
    computed; the results of all other groups are zeros.
    """
    if size is None:
        return function(runs)
    function = jax.jit(function, inline=True)  # traced once, for its shapes and for the loop
    groups = jax.tree.map(lambda leaf: jnp.reshape(leaf, (-1, size, *leaf.shape[1:])), runs)
    one = jax.eval_shape(lambda tree: function(_entry_at(tree, 0)), groups)
    count = jax.tree.leaves(groups)[0].shape[0]
    zeros = lambda *more: jax.tree.map(lambda leaf: jnp.zeros((*more, *leaf.shape), leaf.dtype), one)

    def store_group(index, results):
        group = _entry_at(groups, index)
        # A loop of at most one round, whose length XLA does not know: it cannot fuse the body with what surrounds it,
        # so that the code of a group does not depend on the number of groups.
        new = lax.fori_loop(0, jnp.minimum(1, wanted), lambda _, before: function(group), zeros())
        return jax.tree.map(lambda leaf, part: lax.dynamic_update_index_in_dim(leaf, part, index, 0), results, new)

    results = lax.fori_loop(0, (wanted + size - 1) // size, store_group, zeros(count))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)


def _entry_at(tree: PyTree, index: Any) -> PyTree:
    """Return the pytree of the entries at `index` along the first axis of each array of a pytree; `index` may be traced."""
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, 0, keepdims=False), tree)


@dataclass(frozen=True)
class TreeLayout:
    """Structure of a pytree and shapes of its arrays, by which pytrees of this form are stored as rows of floats."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_tree(cls, tree: PyTree) -> TreeLayout:
        """Return the layout of the arrays in a pytree."""
        return cls(jax.tree.structure(tree), tuple(leaf.shape for leaf in jax.tree.leaves(tree)))

    @property
    def size(self) -> int:
        """Number of floats in the row that stores one pytree."""
        return sum(map(math.prod, self.shapes))

    def values(self, rows: Any) -> PyTree:
        """Return the pytree stored in a row of floats; for an array of rows, all arrays of the pytree have its leading axes."""
        leaves, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            leaves.append(rows[..., first:last].reshape(*rows.shape[:-1], *shape))
            first = last
        return jax.tree.unflatten(self.tree, leaves)


def platform() -> str:
    """Return the kind of device on which JAX computes by default, such as "cpu" or "gpu"."""
    device = getattr(jax.config, "jax_default_device", None)
    return jax.default_backend() if device is None else getattr(device, "platform", str(device))
