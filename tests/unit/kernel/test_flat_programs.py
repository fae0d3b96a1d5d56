"""Flat programs are what JAX computes: operation by operation, with the errors that docs/kernels.md states."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax

from sgdlimits.expectation.gaussian.units import arcsine
from sgdlimits.kernel.base import Carry, StepRange
from sgdlimits.kernel.choose import choose_kernel
from sgdlimits.kernel.compiler import walk
from sgdlimits.kernel.compiler.bounds import with_change_bound
from sgdlimits.kernel.compiler.elementary import ELEMENTARY
from sgdlimits.kernel.compiler.program import Program, TranslationError
from sgdlimits.kernel.lanes import Lanes

RUNS = 37
"""No multiple of any vector's length."""
PAGE = Path(__file__).parents[3] / "docs" / "kernels.md"


class Applied(eqx.Module):
    """A process whose step is a function of the state, of shape (numbers, runs)."""

    function: Callable = eqx.field(static=True)
    runs_axis = -1
    problem = None
    block = 4
    check_interval = 4
    fast_compile = True

    def draw(self, stream):
        return jnp.zeros((stream.steps, 1))

    def step(self, state, numbers, now):
        return self.function(state)


def through(kernel, function, x):
    carry = Carry(jnp.asarray(x), np.ones(x.shape[-1], bool), np.zeros(x.shape[-1], bool), np.full(x.shape[-1], -1), ())
    runs = np.arange(x.shape[-1], dtype=np.uint32)
    after = kernel(Applied(function), None, carry).advance(carry, np.zeros(2, np.uint32), runs, StepRange(0, 1, 0.0, 1.0))
    return np.asarray(after.state)


def through_lanes(function, x):
    return through(Lanes, function, x)


A = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
words = lambda x: (jnp.abs(x) * 1e9).astype(jnp.uint32)
back = lambda x: x.astype(float) / 1e10
OPERATIONS = {
    "sums": lambda x: x + x[::-1] - 2 * x * x / (1 + x**2),
    "powers": lambda x: x**3 + (1 + x * x) ** -2 + jnp.sqrt(jnp.abs(x)) + (1 + x * x) ** 1.5,
    "inverse roots": lambda x: lax.rsqrt(1 + x * x) + 1 / jnp.sqrt(2 + x) + jnp.sqrt(2 + x),
    "rounding": lambda x: jnp.floor(7 * x) + jnp.ceil(3 * x) + jnp.round(5 * x) + jnp.sign(x),
    "choices": lambda x: jnp.where(x > 0, x, -2 * x) + jnp.maximum(x, 0.3) - jnp.minimum(x, -0.1) + jnp.clip(x, -0.5, 0.5),
    "comparisons": lambda x: ((x > 0.1) & ~(x < 0.4) | (x == x[::-1])).astype(float) + (x != 0) + (x >= 0) * (x <= 0.5),
    "matrices": lambda x: jnp.concatenate([A @ x[:3], (A.T @ x[3:5])[:2], jnp.einsum("ir,jr->ijr", x, x).sum(0)[:2]]),
    "places": lambda x: jnp.roll(x.reshape(2, 3, -1).transpose(1, 0, 2).reshape(6, -1), 2, 0)[jnp.array([5, 0, 3, 3, 1, 2])],
    "put": lambda x: x.at[2].set(7 * x[0]).at[jnp.array([0, 4])].add(x[1]),
    "reductions": lambda x: x + x.max(0) - x.min(0) + x[:2].prod(0) + jnp.cumsum(x, 0) + (x > 0).any(0) - (x > -1).all(0),
    "largest": lambda x: x + jnp.argmax(x, 0) - jnp.argmin(x, 0),
    "index by lane": lambda x: x + jnp.take_along_axis(x, jnp.argmax(x, 0)[None], 0),
    "words": lambda x: back(words(x) ^ (words(x) >> 3) + (words(x) << 5) * np.uint32(0x9E3779B1)),
    "long words": lambda x: ((words(x).astype(jnp.uint64) * np.uint64(0xD2511F53)) >> np.uint64(32)).astype(float) / 1e10,
    "signed words": lambda x: back((x * 1e8).astype(jnp.int32) % 1000 - (x * 1e8).astype(jnp.int32) // 7),
    "bits": lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint64) & ~np.uint64(1), jnp.float64),
    "single precision": lambda x: (x.astype(jnp.float32) * np.float32(1.1)).astype(float),
    "scan": lambda x: lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(x.shape[1:]), x)[1],
    "while": lambda x: lax.while_loop(lambda c: (c[0] < 5).any(), lambda c: (c[0] + jnp.abs(c[1]) + 0.3, c[1]), (x, x))[0],
    "cond": lambda x: x + lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, x[0]),
    "empty": lambda x: x + x[:0].sum(0) + x[:0].prod(0) + (x[:0] > 0).all(0) - (x[:0].T @ x[:0])[0, 0],
    "sums of nothing": lambda x: x + jnp.cumsum(x[:0], 0).sum() + (x[:0] ** jnp.ones((0, 1))).sum(0),
    "slope": lambda x: jax.grad(lambda y: jnp.sum(jnp.tanh(y) ** 2 * jax.nn.relu(y)))(x),
}  # fmt: skip


def one_by_one(function, x):
    """What JAX makes of each run by itself, as kernels do."""
    alone = jax.jit(function)
    return np.concatenate([np.asarray(alone(x[:, i : i + 1])) for i in range(x.shape[1])], axis=1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_jax(name):
    function, x = OPERATIONS[name], np.random.default_rng(0).uniform(-1, 1, (6, RUNS))
    np.testing.assert_allclose(through_lanes(function, x), one_by_one(function, x), rtol=1e-14, atol=1e-15)


DOMAIN = {
    "exp": (-700, 13), "exp2": (-1000, 19), "expm1": (-30, 13), "log": (1e-300, 1e300), "log1p": (-0.999, 50),
    "tanh": (-25, 25), "logistic": (-30, 30), "sinh": (-13, 13), "cosh": (-13, 13), "erf": (-6, 6), "erfc": (-6, 26),
    "sin": (-1e4, 1e4), "cos": (-1e4, 1e4), "tan": (-1.5, 1.5), "asin": (-1, 1), "acos": (-1, 1), "atan": (-50, 50),
}  # fmt: skip
EXACT = {"logistic": lambda x: 1 / (1 + mpmath.exp(-x)), "exp2": lambda x: mpmath.mpf(2) ** x}


def stated(name):
    """(relative, absolute) errors in units of 2^-53 on the page."""
    row = re.search(rf"^\| `{name}` \| ([0-9]+|) \| ([0-9]+|) \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert row, f"docs/kernels.md has no row for {name}"
    return tuple(float(cell or 0) * 2.0**-53 for cell in row.groups())


@pytest.mark.parametrize("name", [name for name in ELEMENTARY if name != "pow"])
def test_elementary_functions_have_the_errors_of_the_page(name):
    low, high = DOMAIN[name]
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(low, high, 1500), np.clip(rng.normal(size=500), low, high), [1e-9, 0.25, 0.5, 0.75]])
    if name == "log":
        x = np.exp(rng.uniform(np.log(low), np.log(high), 2000))
    function = {"logistic": jax.nn.sigmoid, "erf": lax.erf, "erfc": lax.erfc}.get(name) or getattr(jnp, name, None)
    function = function or {"asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan}[name]
    found = through_lanes(function, x[None])[0]
    with mpmath.workdps(30):
        exact = np.array([float(EXACT.get(name, getattr(mpmath, name, None))(mpmath.mpf(float(value)))) for value in x])
    relative, absolute = stated(name)
    assert (np.abs(found - exact) <= relative * np.abs(exact) + absolute).all()


def test_equal_numbers_are_computed_once_and_constants_beforehand():
    program = Program()
    x, two, three = program.input("x"), program.const(2.0, "f64"), program.const(3.0, "f64")
    assert program.op("mul", x, two) == program.op("mul", two, x)
    assert program.constant_value(program.op("mul", two, three)) == 6.0
    assert program.op("mul", x, program.const(0.0, "f64")) == program.const(-0.0, "f64")
    assert program.op("add", x, program.const(0.0, "f64")) == x
    assert program.op("select", program.const(True, "b1"), x, two) == x


KEY = jax.random.key(0)
LARGE = np.random.default_rng(5).normal(size=5000)
REFUSED = {
    "eigh": lambda x: x + jnp.linalg.eigvalsh(jnp.eye(9) + x @ x.T)[:, None],
    "lu": lambda x: jnp.linalg.solve(jnp.eye(9) + x @ x.T, x),
    "svd": lambda x: x + jnp.linalg.svd(x)[1][0],
    "sort": lambda x: jnp.sort(x, 0),
    "complex128": lambda x: jnp.abs(x + 1j),
    "bfloat16": lambda x: x.astype(jnp.bfloat16).astype(float),
    "key<fry>": lambda x: x + jax.random.normal(KEY),
    "random_seed": lambda x: x + jax.random.normal(jax.random.key(jnp.sum(x).astype(int))),
    "pure_callback": lambda x: jax.pure_callback(np.tanh, x, x),
    "debug_callback|debug_print": lambda x: (jax.debug.print("{}", x), x)[1],
    "lgamma": lambda x: lax.lgamma(x),
    "scatter.mul": lambda x: x.at[0].mul(2.0),
    "more than 50000 operations": lambda x: x + jnp.tanh(jnp.outer(LARGE, x)).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_named(name):
    with pytest.raises(TranslationError, match=name):
        through_lanes(REFUSED[name], np.zeros((9, 3)))


class Weighted(Applied):
    """With an array of its own."""

    weights: jnp.ndarray | None = None

    def step(self, state, numbers, now):
        return self.function(state, self.weights)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x + w.sum(),
        lambda x, w: x * w[3],
        lambda x, w: w[:9, None],
    ],
    ids=["sum", "entry", "itself"],
)
def test_large_arrays_are_named(function):
    x = jnp.zeros((9, 3))
    carry = Carry(x, np.ones(3, bool), np.zeros(3, bool), np.full(3, -1), ())
    process = Weighted(function, LARGE)
    with pytest.raises(TranslationError, match="a large array"):
        Lanes(process, None, carry)


def test_an_error_of_the_compiler_is_no_slower_run(monkeypatch):
    def wrong(walk, equation, args):
        raise KeyError("a bug")

    monkeypatch.setitem(walk.PRIMITIVE_RULES, "dot_general", wrong)
    carry = Carry(jnp.zeros((2, 3)), np.ones(3, bool), np.zeros(3, bool), np.full(3, -1), ())
    with pytest.raises(KeyError, match="a bug") as caught:
        choose_kernel(Applied(lambda x: np.ones((2, 2)) @ x), None, carry)
    assert "kernel='xla'" in caught.value.__notes__[0]


def of_matrices(function, n):
    """A function of matrices as one of a state, its numbers in a row and the runs last."""
    return lambda x: jnp.moveaxis(jax.vmap(function)(jnp.moveaxis(x.reshape(n, n, -1), -1, 0)), 0, -1).reshape(x.shape)


def some_matrices(n):
    return np.random.default_rng(3).uniform(-1, 1, (n * n, RUNS))


SOLVES = [(left, lower, transposed, unit) for left in (0, 1) for lower in (0, 1) for transposed in (0, 1) for unit in (0, 1)]


def test_triangular_solves_are_those_of_jax():
    def all_ways(X):
        """What must not be read, beside the triangle and on a diagonal of ones, is there."""
        solve = lambda left, lower, transposed, unit: lax.linalg.triangular_solve(
            X + 2 * jnp.eye(3), X.T, left_side=left, lower=lower, transpose_a=transposed, unit_diagonal=unit
        )
        return sum((i + 1) * solve(*map(bool, way)) for i, way in enumerate(SOLVES))

    function, x = of_matrices(all_ways, 3), some_matrices(3)
    np.testing.assert_allclose(through_lanes(function, x), one_by_one(function, x), rtol=1e-12, atol=1e-12)


def test_cholesky_factors_are_those_of_jax_and_no_numbers_where_there_are_none():
    x = some_matrices(4)
    function = of_matrices(lambda X: jnp.linalg.cholesky(X @ X.T + 0.1 * jnp.eye(4)), 4)
    np.testing.assert_allclose(through_lanes(function, x), one_by_one(function, x), rtol=1e-12, atol=1e-13)
    function = of_matrices(lambda X: jnp.nan_to_num(jnp.linalg.cholesky(X @ X.T - 0.02 * jnp.eye(4)), nan=7.0), 4)
    found = through_lanes(function, x)
    assert 0 < (found[0] == 7.0).sum() < RUNS
    np.testing.assert_allclose(found, one_by_one(function, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_eigenvectors_are_orthonormal_and_values_ascend(n):
    """Also of matrices with equal eigenvalues, of diagonal ones, of those of rank one, and of zero."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (RUNS, n, n))
    turn = np.linalg.qr(X[0])[0]
    X[1], X[2], X[3], X[4] = 0, np.eye(n), np.diag(np.arange(n, 0, -1)), np.ones((n, n))
    X[5:8] = [(turn * values) @ turn.T for values in (np.arange(n) // 2, 10.0 ** (-3 * np.arange(n)), 1 + 1e-12 * np.arange(n))]
    X = X + X.swapaxes(1, 2)
    X[8] *= 1e-150
    x, scale = np.moveaxis(X, 0, -1).reshape(n * n, -1), np.abs(X).max((1, 2)) + 1e-300
    values = lambda X: jnp.broadcast_to(jnp.linalg.eigvalsh(X), X.shape)
    found = through_lanes(of_matrices(values, n), x).reshape(n, n, -1)[0]
    np.testing.assert_allclose(found / scale, np.linalg.eigvalsh(X).T / scale, atol=1e-14)
    unit = lambda X: (lambda vectors: vectors.T @ vectors)(jnp.linalg.eigh(X)[1])
    np.testing.assert_allclose(through_lanes(of_matrices(unit, n), x), np.tile(np.eye(n).reshape(-1, 1), RUNS), atol=1e-14)
    again = lambda X: (lambda values, vectors: (vectors * values) @ vectors.T)(*jnp.linalg.eigh(X))
    np.testing.assert_allclose(through_lanes(of_matrices(again, n), x) / scale, x / scale, atol=1e-14)


BOUNDED = {
    "sums": lambda x: jnp.sum(x**3 - x * x[::-1]) / (3 + x[0] ** 2),
    "angles": lambda x: jnp.arcsin(x[0] * x[1]) * jnp.sqrt(2 + x[2]) + lax.erf(x[3]) * jnp.exp(x[4]),
    "signs": lambda x: jnp.sign(x[0]) + arcsine(x[1] * x[2]) + jnp.sign(x[3] + 5) * x[4],
    "choices": lambda x: jnp.where(x[0] > x[1], x[2], x[3] + 1) + jnp.abs(x[4]) + jnp.maximum(x[5], 0.1),
    "matrices": lambda x: jnp.sum((A @ x[:3].reshape(3, 1)) ** 2) + lax.rsqrt(1.5 + x[0]),
    "scan": lambda x: lax.scan(lambda c, row: (0.5 * c * row + 1, None), 1.0, x)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_values_nearby_are_within_their_bound(name):
    function, rng = BOUNDED[name], np.random.default_rng(2)
    both, many = jax.jit(with_change_bound(function)), jax.jit(jax.vmap(function))
    for radius in (1e-6, 1e-2, 0.2):
        for _ in range(10):
            x = rng.uniform(-1, 1, 6)
            value, reach = both(np.full(6, radius), x)
            here, others = np.split(np.asarray(many(x + radius * np.vstack([np.zeros(6), rng.uniform(-1, 1, (20, 6))]))), [1])
            assert value == pytest.approx(here[0], rel=1e-12)
            assert np.abs(others - value).max() <= reach * (1 + 1e-9)
