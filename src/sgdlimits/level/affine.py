r"""The affine recursion of the expected Gram matrices of linear directions, block by block.

A step maps the directions D in block b to :math:`AD + \frac1{n\,d}\, c \sum_i \epsilon_i x_i^\top`, for a batch of n inputs
with variance :math:`\lambda_b` in :math:`d_b` dimensions, and residuals :math:`\epsilon_i = v^\top D x_i + \sqrt\Delta z_i`. By
Wick's theorem the expectation of the Gram matrix :math:`S_b = E[DD^\top]` follows, exactly at finite d,

.. math::
    S_b \leftarrow K_b S_b K_b^\top + \frac{cc^\top}{n\,d^2}\Big(\lambda_b^2\, v^\top S_b v
    + \lambda_b d_b \big(\textstyle\sum_a \lambda_a v^\top S_a v + \Delta\big)\Big),
    \qquad K_b = A + \frac{\lambda_b}d\, c v^\top ,

and products with fixed directions E follow :math:`E[DE^\top] \leftarrow K_b E[DE^\top]`. Blocks are coupled by one number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

ABSORB_BELOW = -0.5
"""Diagonal entry of a power minus the identity below which the identity is added to it: the mode has decayed by half."""


Array = Any
"""Arrays of NumPy or JAX: powers are computed by NumPy and single steps by JAX."""


class RecursionCoefficients(NamedTuple):
    """Coefficients of the affine recursion of expected Gram matrices, at one time or with an axis of times in front.

    Parameters
    ----------
    old_coefficients, gradient, point : A, c and v, of the n directions
    variance : variance of the inputs in each block
    noise : variance of the label noise
    """

    old_coefficients: Float[Array, "*t n n"]
    gradient: Float[Array, "*t n"]
    point: Float[Array, "*t n"]
    variance: Float[Array, "*t blocks"]
    noise: Float[Array, "*t"]


class RecursionSizes(NamedTuple):
    """Sizes in the affine recursion: the dimension, the batch size, and the number of dimensions of each block, not rounded."""

    d: int
    batch: int
    dimensions: Float[np.ndarray, " blocks"]


class GramMoments(NamedTuple):
    """Expected products within each block: of all directions, and of directions and fixed directions; runs are last."""

    gram: Float[Array, "n n blocks runs"]
    fixed: Float[Array, "n k blocks runs"]


def scan_steps(sizes: RecursionSizes, state: GramMoments, each: RecursionCoefficients, count: Any) -> GramMoments:
    """Make `count` steps of the affine recursion, one for each of the first `count` rows of the coefficients."""
    n, d, batch = state.gram.shape[0], sizes.d, sizes.batch
    dimensions = jnp.asarray(sizes.dimensions)[:, None]
    pairs = [(i, j) for i in range(n) for j in range(i, n)]
    row = np.array([[pairs.index((min(i, j), max(i, j))) for j in range(n)] for i in range(n)])

    def step(i, state):
        upper, fixed = state
        A, c, v, variance, noise = (leaf[i] for leaf in each)
        rate = (variance / d)[:, None]
        S = [[upper[row[i, j]] for j in range(n)] for i in range(n)]
        square = sum(v[i] * v[j] * S[i][j] for i in range(n) for j in range(n))
        spread = variance[:, None] * square
        spread = (variance[:, None] * spread + variance[:, None] * dimensions * (spread.sum(0) + noise)) / (batch * d**2)
        K = [[A[i, j] + c[i] * v[j] * rate for j in range(n)] for i in range(n)]
        KS = [[sum(K[i][j] * S[j][k] for j in range(n)) for k in range(n)] for i in range(n)]
        new = [sum(KS[i][k] * K[j][k] for k in range(n)) + c[i] * c[j] * spread for i, j in pairs]
        moved = jnp.stack([sum(K[i][j] * fixed[j] for j in range(n)) for i in range(n)])
        return jnp.stack(new), moved

    upper = jnp.stack([state.gram[pair] for pair in pairs])
    upper, fixed = lax.fori_loop(0, count, step, (upper, state.fixed))
    return GramMoments(upper[row], fixed)


class AffinePower:
    r"""Powers of the affine map of one step, by squaring, for coefficients that stay the same.

    A power is stored as :math:`I_s + Q`, where the diagonal matrix :math:`I_s` is 1 for modes that have hardly decayed and 0
    for the others. Thus rates of decay far below the precision of 1 are kept, and so are values far below the initial ones.
    """

    def __init__(self, sizes: RecursionSizes, one: RecursionCoefficients) -> None:
        A, c, v, variance, noise = (np.asarray(leaf, float) for leaf in one)
        n, B, d, batch = c.size, variance.size, sizes.d, sizes.batch
        pairs = np.array([(i, j) for i in range(n) for j in range(i, n)])
        self.rows, self.columns = pairs.T
        m = len(pairs)
        basis = np.zeros((m, n, n))
        basis[np.arange(m), self.rows, self.columns] = basis[np.arange(m), self.columns, self.rows] = 1.0
        E = (A - np.eye(n)) + (variance / d)[:, None, None] * np.outer(c, v)  # K - 1, without cancellation
        EF = np.einsum("bij,pjk->bpik", E, basis)
        change = EF + np.swapaxes(EF, 2, 3) + np.einsum("bpij,bkj->bpik", EF, E)
        square = np.einsum("i,pij,j->p", v, basis, v)
        spread = np.outer(c, c) / (batch * d**2)
        change = change + variance[:, None, None, None] ** 2 * square[:, None, None] * spread
        local = change[:, :, self.rows, self.columns]  # block, old entry, new entry
        Q = np.zeros((B, m, B, m))
        Q[np.arange(B), :, np.arange(B), :] = np.swapaxes(local, 1, 2)
        pushed = (variance * sizes.dimensions)[:, None] * spread[self.rows, self.columns]
        Q += pushed[:, :, None, None] * (variance[:, None] * square)
        full = np.zeros((B * m + 1, B * m + 1))
        full[:-1, :-1], full[:-1, -1] = Q.reshape(B * m, B * m), pushed.ravel() * noise
        self.squares = [_absorb(np.ones(B * m + 1), full)]
        self.fixed_squares = [E]

    def apply(self, state: GramMoments, count: int) -> GramMoments:
        """Apply the affine map of one step `count` times to the moments."""
        with np.errstate(over="ignore", invalid="ignore"):  # the stepper reports runs that diverge
            return self._apply(state, int(count))

    def _apply(self, state: GramMoments, bits: int) -> GramMoments:
        """Apply the affine map as many times as the binary number `bits` says, by one stored power for each bit."""
        n, _, B, runs = state.gram.shape
        y = np.moveaxis(np.asarray(state.gram)[self.rows, self.columns], 0, 1).reshape(-1, runs)
        y = np.concatenate([y, np.ones((1, runs))])
        fixed = np.moveaxis(np.asarray(state.fixed), 2, 0).reshape(B, n, -1)
        for i in range(bits.bit_length()):
            if i == len(self.squares):
                self._square()
            if bits >> i & 1:
                kept, Q = self.squares[i]
                y = kept[:, None] * y + Q @ y
                fixed = fixed + self.fixed_squares[i] @ fixed
        upper = np.moveaxis(y[:-1].reshape(B, -1, runs), 1, 0)
        gram = np.zeros((n, n, B, runs))
        gram[self.rows, self.columns] = gram[self.columns, self.rows] = upper
        return GramMoments(gram, np.moveaxis(fixed.reshape(B, n, -1, runs), 0, 2))

    def _square(self) -> None:
        """Append the square of the highest stored power of the affine map."""
        kept, Q = self.squares[-1]
        self.squares.append(_absorb(kept, (kept[:, None] + kept) * Q + Q @ Q))
        E = self.fixed_squares[-1]
        self.fixed_squares.append(2 * E + E @ E)


def _absorb(kept: np.ndarray, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add the identity to Q where the diagonal shows that a mode has decayed, and remove it from `kept`."""
    gone = (kept > 0) & (np.diagonal(Q) < ABSORB_BELOW)
    Q[gone, gone] += 1.0
    return np.where(gone, 0.0, kept), Q
