"""The drift as a function of the free coordinates, and the progress and time limit of a search."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import jit_bound
from sgdlimits.level.local import ZERO_COORDINATE
from sgdlimits.level.solver import vector_field
from sgdlimits.problem.base import Problem
from sgdlimits.progress import bar
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import select_run, to_batch

MIN_CHUNK, MAX_CHUNK = 16, 64
"""Bounds on the number of points that one call of compiled code evaluates."""
COSTLY_FLOPS = 1e5
"""Number of floating-point operations above which a drift is costly, and evaluated one point at a time. A batch of points is no
faster then, and waits for the slowest."""
DEFAULT_STARTS, MIN_STARTS = 256, 16
"""Number of starts of a search by default, and the smallest number to which costly drifts reduce it."""
MIN_EIGENVALUE_SHARE = 1e-6
r"""Fraction of tr Q below which an eigenvalue of :math:`Q - MP^{-1}M^\top` counts as rounding of the roots."""


class OutOfTime(Exception):
    """Exception for a search that exceeds its time limit."""


class SearchMonitor:
    """Progress line and time limit of a search for fixed points, checked between calls of compiled code.

    Parameters
    ----------
    name : name of the problem, shown in the line
    seconds : time limit, after which `tick` raises `OutOfTime`; None for no limit
    progress : whether to show the line

    All watches compare equal, so that code compiled for a `DriftSystem` with one watch is reused for a system with another.
    """

    def __init__(self, name: str, seconds: float | None, progress: bool) -> None:
        self.name, self.begin, self.end = name, time.monotonic(), math.inf
        self.seconds = math.inf if seconds is None else seconds
        line = "{desc}; {n} points treated{postfix} [{elapsed}]"
        self.bar = bar(mininterval=0.2, miniters=0, disable=not progress, bar_format=line)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchMonitor)

    def __hash__(self) -> int:
        return 0

    def show_stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Show the name of the current stage of the search and, if a total is given, its progress: `done` of `total` points."""
        now = f"{name}, {done} of {total}" if total else name
        self.bar.set_description_str(f"fixed points of {self.name}: {now}", refresh=False)
        self.tick(0)

    def tick(self, points: int = 1) -> None:
        """Add `points` to the number of evaluated points; raise `OutOfTime` after the time limit."""
        self.bar.update(points)
        if time.monotonic() > self.end:
            raise OutOfTime

    def start_limit(self) -> None:
        """Start to enforce the time limit, and set the count of evaluated points to zero."""
        # points of preparations do not count
        self.bar.n = self.bar.last_print_n = 0
        self.end = self.begin + self.seconds

    def stop(self) -> None:
        """Close the progress line and lift the time limit."""
        self.end = math.inf
        self.bar.close()


class DriftSystem(eqx.Module):
    """Drift of a problem as a function of the free coordinates x of its statistics; the other coordinates are fixed.

    Points are evaluated in chunks of one shape, compiled once; where a drift is costly, one at a time. Kinks of piecewise
    linear units are not smoothed, unlike in the drift that solvers integrate, so that fixed points at a kink are exact.

    Parameters
    ----------
    problem : the problem, with unsmoothed kinks
    like : statistics of one run, for their structure
    fixed : all coordinates of `example_statistics` as a vector; the free ones are overwritten
    free : indices of the free coordinates in that vector
    corrector : whether the drift contains the effect of the step size
    chunk : number of points in one compiled call
    watch : progress and time limit
    """

    problem: Problem
    example_statistics: PyTree
    fixed: PyTree
    free_indices: tuple[int, ...] = eqx.field(static=True)
    corrector: bool = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    watch: SearchMonitor = eqx.field(static=True)

    @classmethod
    def from_batch(cls, problem: Problem, batch: PyTree, corrector: bool, watch: SearchMonitor) -> DriftSystem:
        """Return the `DriftSystem` of a problem for a batch of statistics (runs first), whose fixed coordinates must agree."""
        problem.coordinates.check(batch)
        batch = jax.tree.map(np.asarray, batch)
        one = select_run(batch)
        count = len(jax.tree.leaves(batch)[0])
        # a power of two, so that few shapes are compiled
        chunk = min(max(2 ** math.ceil(math.log2(2 * count)), MIN_CHUNK), MAX_CHUNK)
        watch.show_stage("counting the operations of a drift")
        free = tuple(np.flatnonzero(problem.coordinates.moves(one)).tolist())
        fixed = np.asarray(problem.vector(one))
        system = cls(problem.numerics.without_smoothing(), one, fixed, free, corrector, 1, watch)
        if system.count_operations() < COSTLY_FLOPS:
            system = dataclasses.replace(system, chunk=chunk)
        rows = system.flatten_batch(batch)
        # statistics that differ in a fixed coordinate do not survive the round trip
        again = system.unflatten_rows(rows)
        if any(np.abs(a - b).max() > 1e-9 for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(batch), strict=True)):
            raise BadInput(
                "starts must agree in all statistics that are not trained, such as a fixed second layer; got different ones. "
                "Call fixed_points once for each value."
            )
        return system

    @property
    def size(self) -> int:
        """Number n of free coordinates, the unknowns of a search for fixed points."""
        return len(self.free_indices)

    @property
    def costly(self) -> bool:
        """Whether one evaluation of the drift takes more than `COSTLY_FLOPS` operations."""
        return self.chunk == 1

    def count_operations(self) -> float:
        """Estimate the floating-point operations of one evaluation of the drift, as XLA counts them."""
        drift: Any = self.compile(DriftSystem.drift)
        # `compiled` returns a partial of a jitted function; only lowering it gives the estimate without compiling
        cost = drift.func.lower(*drift.args, np.asarray(self.fixed)[list(self.free_indices)]).cost_analysis()
        return (cost or {}).get("flops", 0.0)

    def default_count(self) -> int:
        """Return the default number of starts of a search: fewer where a drift is costly."""
        if not self.costly:
            return DEFAULT_STARTS
        return max(MIN_STARTS, int(DEFAULT_STARTS * min(1, math.sqrt(COSTLY_FLOPS / self.count_operations()))))

    def measure_time(self, x: Float[np.ndarray, " n"]) -> None:
        """Measure the time of one evaluation of the drift at x, and show it in the progress line."""
        self.watch.show_stage("compiling")
        drift = self.compile(DriftSystem.drift)
        np.asarray(drift(x))
        begin = time.perf_counter()
        np.asarray(drift(x))
        self.watch.bar.set_postfix_str(f"{1e3 * (time.perf_counter() - begin):.3g} ms a drift", refresh=False)

    def compile(self, f: Callable) -> Callable:
        """Compile a function f(system, ...) for this system, as a function of its other arguments."""
        return jit_bound(f, self, fast_compile=True)

    def stats(self, x: Float[Array, " n"]) -> PyTree:
        """Return the statistics whose free coordinates are x."""
        return self.problem.from_vector(jnp.asarray(self.fixed).at[np.array(self.free_indices)].set(x), self.example_statistics)

    def coordinates(self, stats: PyTree) -> Float[Array, " n"]:
        """Return the free coordinates of given statistics, as a vector."""
        return self.problem.vector(stats)[np.array(self.free_indices)]

    def drift(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the drift of the free coordinates at one point x."""
        # tiny coordinates count as zero, so that relu fields are exactly at their kink; derivatives see x as it is
        flushed = x - lax.stop_gradient(jnp.where(jnp.abs(x) < ZERO_COORDINATE, x, 0.0))
        return self.coordinates(vector_field(self.problem, self.corrector)(self.stats(flushed)))

    def drifts(self, x: np.ndarray) -> np.ndarray:
        """Return the drift of the free coordinates at each point, shape (points, n)."""
        return map_in_chunks(DriftSystem.drift, self)(x) if len(x) else x

    def jacobian(self, x: Float[Array, " n"]) -> Float[Array, "n n"]:
        """Return the Jacobian of the drift at one point x."""
        return jax.jacfwd(self.drift)(x)

    def unflatten_rows(self, x: np.ndarray) -> PyTree:
        """Return the statistics, runs first, with given free coordinates, shape (runs, n)."""
        return map_in_chunks(DriftSystem.stats, self)(x)

    def flatten_batch(self, batch: PyTree) -> np.ndarray:
        """Return the free coordinates of statistics with runs first, shape (runs, n)."""
        return map_in_chunks(DriftSystem.coordinates, self)(batch)

    def midpoints_of_weights(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the coordinates of the midpoints between weights with statistics x and weights with statistics y.

        The components of the weights outside the frame of fixed directions are first rotated towards each other. Units that are
        parallel at both ends are parallel at the midpoint of the weights, but not at that of the statistics. The norm is the
        root mean square of the norms at both ends, as on a ring. Rows are NaN if the weights are linearly independent at either
        end; all are NaN on the sphere, for inputs with blocks, and for statistics that are not overlaps.
        """
        one, other = self.unflatten_rows(x), self.unflatten_rows(y)
        if not isinstance(one, Overlaps) or one.has_blocks or len(one.names) > 1 or self.problem.sphere:
            return np.full_like(x, np.nan)
        B = np.linalg.cholesky(np.asarray(self.problem.directions.gram))
        inside, outside, rank = _factor_weights(one, B)
        other_inside, other_outside, other_rank = _factor_weights(other, B)
        # orthogonal Procrustes: the rotation that brings one factor closest to the other
        left, _, right = np.linalg.svd(other_outside.swapaxes(-1, -2) @ outside)
        # mean of the weights, in the frame and outside of it
        U = _mean_with_norm(
            np.concatenate([inside, outside], -1), np.concatenate([other_inside, other_outside @ left @ right], -1)
        )
        a, kept = jax.tree.map(_mean_with_norm, (one.a, one.kept), (other.a, other.kept))
        halfway = self.flatten_batch(Overlaps(a, U[..., : len(B)] @ B.T, U @ U.swapaxes(-1, -2), kept, one.names))
        return np.where((np.maximum(rank, other_rank) < one.width)[:, None], halfway, np.nan)

    def select_admissible(self, x: np.ndarray) -> np.ndarray:
        """Test which points are coordinates of statistics that the problem allows; return a mask."""
        return self._pass_check(self.unflatten_rows(x), len(x)) if len(x) else np.zeros(0, bool)

    def _pass_check(self, batch: PyTree, count: int) -> np.ndarray:
        """Return a mask of the statistics that pass the problem's check, found by bisection if a check of all fails."""
        try:
            self.problem.coordinates.check(batch)
        except BadInput:
            if count == 1:
                return np.zeros(1, bool)
            # log2(count) checks for each statistics that fails
            halves = np.array_split(np.arange(count), 2)
            return np.concatenate([self._pass_check(select_run(batch, half), half.size) for half in halves])
        return np.ones(count, bool)


def _factor_weights(stats: Overlaps, B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights with given overlaps, as components along and orthogonal to the fixed directions, and the orthogonal rank.

    `inside` : components in the frame of the fixed directions, whose Gram matrix is B B^T, shape (runs, p, k)
    `outside` : components orthogonal to the frame, shape (runs, p, p)
    `rank` : rank of `outside`, shape (runs,)
    """
    m = np.linalg.solve(B, np.asarray(stats.M).swapaxes(-1, -2)).swapaxes(-1, -2)
    values, vectors = np.linalg.eigh(np.asarray(stats.Q) - m @ m.swapaxes(-1, -2))
    nonzero = values > MIN_EIGENVALUE_SHARE * np.trace(stats.Q, axis1=-2, axis2=-1)[..., None]
    roots = np.sqrt(np.where(nonzero, np.maximum(values, 0.0), 0.0))
    return m, (vectors * roots[..., None, :]) @ vectors.swapaxes(-1, -2), nonzero.sum(-1)


def _mean_with_norm(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the mean of two arrays (runs first), rescaled in each run to the mean of the squared norms of both."""
    mean, axes = (one + other) / 2, tuple(range(1, one.ndim))
    squared_norm = lambda array: (array**2).sum(axes, keepdims=True)
    before = (squared_norm(one) + squared_norm(other)) / 2
    after = squared_norm(mean)
    return mean * np.sqrt(np.divide(before, after, out=np.ones_like(after), where=after > MIN_EIGENVALUE_SHARE * before))


def map_in_chunks(f: Callable, system: DriftSystem) -> Callable[[PyTree], PyTree]:
    """Return a function that applies f(system, row) to many rows, in calls of compiled code for `system.chunk` rows each.

    The returned function takes and returns NumPy arrays, rows first.
    """
    each = system.compile(f) if system.costly else jit_bound(_apply_to_rows, system, f, fast_compile=True)

    def many(x: PyTree) -> PyTree:
        """Apply f to all rows of x, one chunk of rows after another."""
        x, parts = jax.tree.map(np.asarray, x), []
        count = len(jax.tree.leaves(x)[0])
        for begin in range(0, count, system.chunk):
            # the last chunk repeats its last row, so that all calls have one shape
            rows = begin if system.costly else np.minimum(np.arange(begin, begin + system.chunk), count - 1)
            part = jax.tree.map(np.asarray, each(select_run(x, rows)))
            parts.append(to_batch(part) if system.costly else select_run(part, np.s_[: count - begin]))
            system.watch.tick(min(system.chunk, count - begin))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    return many


def _apply_to_rows(system: DriftSystem, f: Callable, rows: PyTree) -> PyTree:
    """Apply f(system, row) to each row of a pytree of arrays, by vmap or in a loop."""
    return system.problem.numerics.over_runs(lambda row: f(system, row), rows)
