"""Scalar products of vectors in R^d, with an order of summation that does not depend on the batch of runs.

XLA vectorises a plain sum in an order that depends on the shape of the whole batch. Products of matrices are computed run by
run, always in the same order if there are several rows. The same holds for a product with a vector if the rows come in groups
of eight.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

# Eight rows: the order of summation in a matrix-vector product is then the same for every batch.
ROWS_PER_PRODUCT = 8


def row_products(a: Float[Array, "... d"], b: Float[Array, "... d"]) -> Float[Array, "..."]:
    """Compute the scalar product of each row of `a` with the same row of `b`, in an order of summation that is fixed.

    Each row is split into eight parts of equal length, which a product with a vector of ones sums; the remainder is added.

    >>> row_products(jnp.ones(20), jnp.arange(20.0))
    Array(190., dtype=float64)
    """
    terms, long = a * b, a.shape[-1] // ROWS_PER_PRODUCT
    parts = terms[..., : ROWS_PER_PRODUCT * long].reshape(*terms.shape[:-1], ROWS_PER_PRODUCT, long) @ jnp.ones(long)
    remainder = [terms[..., i] for i in range(ROWS_PER_PRODUCT * long, a.shape[-1])]
    total = parts[..., 0]
    # Added one by one, since XLA may reorder a reduction but not a chain of additions.
    for term in [*(parts[..., i] for i in range(1, ROWS_PER_PRODUCT)), *remainder]:
        total = total + term
    return total


def products(a: Float[Array, "runs n d"], b: Float[Array, "runs m d"]) -> Float[Array, "runs n m"]:
    """Compute the scalar products of all rows of `a` with all rows of `b`, separately for each run.

    A product of two single rows would be compiled as a plain sum, and goes through `row_products` instead.
    """
    return row_products(a, b)[..., None] if a.shape[1] * b.shape[1] == 1 else a @ jnp.swapaxes(b, 1, 2)
