r"""Philox 4x32-10, the random number generator of the package [9]_.

A counter-based generator is a function without a state: 128 bits of counter and 64 bits of key in, 128 random bits out. Here
the key is the seed and the counter is (step, run, purpose, block), so that a variate is identified by its use.
Results cannot depend on batches, chunks or restarts, and two kernels that draw by the same counters agree path by path.

.. [9] Salmon, Moraes, Dror, Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

import numpy as np
from jax import lax
from jaxtyping import Array, UInt32

from sgdlimits.kernel.random.transform import jit_unless_host

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

Words = tuple[UInt32[Array, "..."], UInt32[Array, "..."], UInt32[Array, "..."], UInt32[Array, "..."]]


@jit_unless_host
def philox(counter: Words, key: tuple[UInt32[Array, "..."], UInt32[Array, "..."]], *, rolled: bool = False) -> Words:
    """Return four random 32-bit words for each entry of the counters and keys, which all have one shape.

    NumPy arrays are computed by NumPy. `rolled` compiles the ten rounds as a loop: faster to compile, for single variates.

    >>> import numpy as np
    >>> zero = np.zeros(1, np.uint32)
    >>> [hex(int(word[0])) for word in philox((zero, zero, zero, zero), (zero, zero))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    if rolled:
        return lax.fori_loop(0, ROUNDS, lambda _, words: _round(words), (*counter, *key))[:4]
    words = (*counter, *key)
    for _ in range(ROUNDS):
        words = _round(words)
    return words[:4]


def _round(words):
    """Make one round of Philox: mix the counter, and advance the key by the Weyl constants."""
    c0, c1, c2, c3, k0, k1 = words
    high0, low0 = _multiply(c0, MULTIPLIERS[0])
    high1, low1 = _multiply(c2, MULTIPLIERS[1])
    return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0, k0 + np.uint32(WEYL[0]), k1 + np.uint32(WEYL[1])


def _multiply(word: UInt32[Array, "..."], constant: int) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Return the high and low 32-bit words of a product."""
    # 32-bit words in 64-bit arithmetic: the high word of a product has no instruction of its own in JAX.
    product = word.astype(np.uint64) * np.uint64(constant)
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)
