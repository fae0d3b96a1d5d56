"""Functions compiled once and called many times."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

QUICK = {"xla_cpu_prefer_vector_width": "512", "xla_cpu_use_fusion_emitters": "False"}
"""The older of XLA's two generators of CPU code takes half as long; what it makes is a little slower in large loops.

The newer one must not be asked for such vectors: its arctangent of eight numbers is wrong.
"""


def compiled(function: Callable, *fixed: Any, quick: bool = False) -> Callable:
    """The function of its other arguments, which are trees of arrays: what is fixed is taken apart here, not at every call.

    It is compiled once for all that is fixed but the values of arrays; `quick` where compiling takes longer than running.
    """
    leaves, tree = jax.tree.flatten(fixed)
    arrays = jax.device_put([leaf for leaf in leaves if _is_array(leaf)])
    return partial(_of_arrays(function, tree, tuple(None if _is_array(leaf) else leaf for leaf in leaves), quick), arrays)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


@lru_cache(maxsize=256)
def _of_arrays(function: Callable, tree: Any, others: tuple, quick: bool) -> Callable:
    def whole(arrays, *arguments):
        rest = iter(arrays)
        return function(*jax.tree.unflatten(tree, [next(rest) if leaf is None else leaf for leaf in others]), *arguments)

    whole.__name__ = function.__name__
    return jax.jit(whole, compiler_options=_known() if quick else None)


@lru_cache(maxsize=1)
def _known() -> dict[str, str] | None:
    """The quick options, where this version of XLA knows them."""
    try:
        jax.jit(lambda: 0, compiler_options=QUICK)()
    except jax.errors.JaxRuntimeError:  # no such option
        return None
    return QUICK
