"""Sums over d in an order that the batch of runs does not change.

A plain sum is compiled into vectors as it suits the whole batch. Products of matrices are computed run by run, in one
way wherever there is more than one, and those with a vector in one way as long as their rows come in groups of eight.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

PARTS = 8


def row_products(a: Float[Array, "... d"], b: Float[Array, "... d"]) -> Float[Array, "..."]:
    """The product of each row with the same one of the other array: that of a matrix of eight parts with ones, and the rest.

    >>> row_products(jnp.ones(20), jnp.arange(20.0))
    Array(190., dtype=float64)
    """
    terms, long = a * b, a.shape[-1] // PARTS
    parts = terms[..., : PARTS * long].reshape(*terms.shape[:-1], PARTS, long) @ jnp.ones(long)
    total = parts[..., 0]
    for term in [*(parts[..., i] for i in range(1, PARTS)), *(terms[..., i] for i in range(PARTS * long, a.shape[-1]))]:
        total = total + term
    return total


def products(a: Float[Array, "runs n d"], b: Float[Array, "runs m d"]) -> Float[Array, "runs n m"]:
    """The products of all rows of each run, as of matrices; that of two rows alone would be compiled as a sum."""
    return row_products(a, b)[..., None] if a.shape[1] * b.shape[1] == 1 else a @ jnp.swapaxes(b, 1, 2)
