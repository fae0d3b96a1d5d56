"""Factorisations of small matrices as JAX functions of scalars, which are flattened in place of calls of LAPACK."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, Float

from sgdlimits.kernel.compiler.program import TranslationError
from sgdlimits.kernel.compiler.walk import JaxprFlattener, NodeIndices, primitive_rule

MAX_EIGH_ROWS = 8
"""Maximum number of rows of a symmetric matrix that `eigh` diagonalises; larger matrices take too many operations."""
MAX_JACOBI_SWEEPS = 16
"""Maximum number of Jacobi sweeps in `eigh`; convergence is quadratic, and matrices of eight rows need seven sweeps."""
OFF_DIAGONAL_TOLERANCE = 1e-32
"""Ratio of the squared entries off the diagonal to those on it at which a matrix counts as diagonal; at the level of
rounding."""


def cholesky(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the lower triangular Cholesky factor of A, with NaN in all entries if A is not positive definite."""
    n = len(A)
    L = [[jnp.zeros((), A.dtype)] * n for _ in range(n)]
    definite = jnp.array(True)
    for j in range(n):
        pivot = A[j, j] - sum(L[j][i] * L[j][i] for i in range(j))
        definite &= pivot > 0
        L[j][j] = jnp.sqrt(pivot)
        inverse = 1 / L[j][j]
        for row in range(j + 1, n):
            L[row][j] = (A[row, j] - sum(L[row][i] * L[j][i] for i in range(j))) * inverse
    return jnp.where(definite, _stack_rows(L), jnp.nan)


def solve_lower(L: Float[Array, "n n"], B: Float[Array, "n m"], unit: bool) -> Float[Array, "n m"]:
    """Solve LX = B for X, where L is lower triangular, with ones on its diagonal if `unit` is true."""
    rows: list[Array] = []
    for j in range(len(L)):
        rest = B[j] - sum(L[j, i] * row for i, row in enumerate(rows))
        rows.append(rest if unit else rest / L[j, j])
    return jnp.stack(rows)


def eigh(A: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Return the eigenvectors (as columns) and the ascending eigenvalues of a symmetric matrix.

    Only entries on and below the diagonal are read. Jacobi's method: sweeps of rotations over all pairs of rows, until the
    matrix is diagonal. Signs of eigenvectors are arbitrary.
    """
    n = len(A)
    below = {(i, j): A[i, j] for i in range(n) for j in range(i + 1)}
    columns = [[jnp.asarray(float(i == j), A.dtype) for i in range(n)] for j in range(n)]
    if n == 2:  # one rotation is exact
        below, columns = _jacobi_sweep(below, columns)
    elif n > 2:

        def continues(carry):
            return carry[0] & (carry[1] < MAX_JACOBI_SWEEPS)

        def sweep(carry):
            swept = _jacobi_sweep(*carry[2:])
            return (*_is_not_diagonal(swept[0]), carry[1] + 1, *swept)

        *_, below, columns = lax.while_loop(continues, sweep, (jnp.array(True), jnp.array(0), below, columns))
    pairs = [(below[i, i], columns[i]) for i in range(n)]
    for turn in range(n):  # odd-even transposition sort, whose comparisons do not depend on values
        for i in range(turn % 2, n - 1, 2):
            pairs[i : i + 2] = _sort_pair(*pairs[i : i + 2])
    return jnp.stack([jnp.stack(column) for _, column in pairs], axis=1), jnp.stack([value for value, _ in pairs])


def _jacobi_sweep(below: dict, columns: list) -> tuple[dict, list]:
    """Apply one Jacobi sweep to a symmetric matrix: for each pair i < j, a rotation that makes the entry (i, j) zero.

    `below` has the entries on and below the diagonal by (row, column), `columns` the eigenvectors so far.
    """
    n, below, columns = len(columns), dict(below), list(columns)
    for p in range(n):
        for q in range(p + 1, n):
            entry, apart = below[q, p], below[q, q] - below[p, p]
            # The tangent of the smaller angle, in a form that neither cancels nor divides by zero.
            far = jnp.abs(apart) + jnp.sqrt(apart * apart + 4 * entry * entry)
            tangent = jnp.where(far == 0, 0.0, 2 * entry * jnp.where(apart < 0, -1.0, 1.0) / jnp.where(far == 0, 1.0, far))
            c = 1 / jnp.sqrt(1 + tangent * tangent)
            s = tangent * c
            below[p, p], below[q, q] = below[p, p] - tangent * entry, below[q, q] + tangent * entry
            below[q, p] = jnp.zeros_like(entry)
            for r in range(n):
                if r not in (p, q):
                    at = [(max(r, end), min(r, end)) for end in (p, q)]
                    x, y = (below[place] for place in at)
                    below[at[0]], below[at[1]] = c * x - s * y, s * x + c * y
            pairs = list(zip(columns[p], columns[q], strict=True))
            columns[p], columns[q] = [c * x - s * y for x, y in pairs], [s * x + c * y for x, y in pairs]
    return below, columns


def _is_not_diagonal(below: dict) -> tuple[Array]:
    """Return whether off-diagonal entries of a matrix exceed rounding errors, in a 1-tuple for a loop's carry."""
    squares = lambda diagonal: sum(entry * entry for (i, j), entry in below.items() if (i == j) is diagonal)
    return (squares(False) > OFF_DIAGONAL_TOLERANCE * squares(True),)


def _sort_pair(one: tuple, other: tuple) -> list[tuple]:
    """Order two pairs (eigenvalue, eigenvector) by eigenvalue, without branches."""
    swap = one[0] > other[0]
    choose = lambda x, y: jnp.where(swap, y, x)
    pick = lambda x, y: (choose(x[0], y[0]), [choose(*pair) for pair in zip(x[1], y[1], strict=True)])
    return [pick(one, other), pick(other, one)]


def _stack_rows(rows: list[list[Array]]) -> Array:
    """Return the matrix whose rows are the given sequences of scalars."""
    return jnp.stack([jnp.stack(row) for row in rows])


# --- rules -------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _jaxpr_of_matrices(function: Callable, *shapes: tuple[int, ...]) -> ClosedJaxpr:
    """Return the jaxpr of a function of matrices with the given shapes."""
    return jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes])


def _map_matrices(walk: JaxprFlattener, function: Callable, *stacks: NodeIndices) -> list[NodeIndices]:
    """Apply a function of matrices to each matrix in stacks, which lie in the last two axes."""
    whole, closed = stacks[0].shape[:-2], _jaxpr_of_matrices(function, *(stack.shape[-2:] for stack in stacks))
    if any(walk.program.kind(int(place)) != "f64" for stack in stacks for place in stack.flat[:1]):
        raise TranslationError("matrices in single precision")
    results = [walk.call(closed, [stack[at] for stack in stacks]) for at in np.ndindex(whole)]
    return [np.array(parts).reshape(*whole, *parts[0].shape) for parts in zip(*results, strict=True)]


@primitive_rule("cholesky")
def _(walk, equation, args):
    return _map_matrices(walk, cholesky, args[0])


@primitive_rule("triangular_solve")
def _(walk, equation, args):
    """Translate a triangular solve to one with a lower triangular matrix on the left, by transposition and reversed axes."""
    p, (A, B) = equation.params, args
    A, B = (A, B) if p["left_side"] else (A.swapaxes(-1, -2), B.swapaxes(-1, -2))
    A = A.swapaxes(-1, -2) if p["transpose_a"] else A
    back = p["lower"] == (p["transpose_a"] == p["left_side"])
    A, B = (A[..., ::-1, ::-1], B[..., ::-1, :]) if back else (A, B)
    (X,) = _map_matrices(walk, _LOWER_SOLVERS[p["unit_diagonal"]], A, B)
    X = X[..., ::-1, :] if back else X
    return X if p["left_side"] else X.swapaxes(-1, -2)


_LOWER_SOLVERS = {unit: partial(solve_lower, unit=unit) for unit in (False, True)}


@primitive_rule("eigh")
def _(walk, equation, args):
    p, A = equation.params, args[0]
    if A.shape[-1] > MAX_EIGH_ROWS or p.get("subset_by_index") not in (None, (0, A.shape[-1])):
        raise TranslationError(f"eigh of more than {MAX_EIGH_ROWS} rows or of selected eigenvalues")
    return _map_matrices(walk, eigh, A if p["lower"] else A.swapaxes(-1, -2))
