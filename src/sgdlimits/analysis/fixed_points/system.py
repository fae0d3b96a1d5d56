"""The drift as a function of the coordinates that are free, and how far a search on it has come."""

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
from sgdlimits.statistics.trees import as_batch, take_run

LEAST_CHUNK, MOST_CHUNK = 16, 64
COSTLY = 1e5
"""Drifts of more floating-point operations are evaluated row by row: at once they are no faster, and wait for the slowest."""
STARTS, FEWEST_STARTS = 256, 16

FLAT = 1e-6
"""Directions with less than this share of the largest square are rounding: roots are no better than its root."""


class OutOfTime(Exception):
    """The seconds that a search was given are over."""


class Watch:
    """A line of progress, shown after a second, and a clock that raises `OutOfTime`, between two calls of compiled code.

    All watches are equal: what is compiled for a system that carries one serves the next.
    """

    def __init__(self, name: str, seconds: float | None, progress: bool) -> None:
        self.name, self.begin, self.end = name, time.monotonic(), math.inf
        self.seconds = math.inf if seconds is None else seconds
        line = "{desc}; {n} points treated{postfix} [{elapsed}]"
        self.bar = bar(mininterval=0.2, miniters=0, disable=not progress, bar_format=line)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watch)

    def __hash__(self) -> int:
        return 0

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """What is done now, and how far it has come."""
        now = f"{name}, {done} of {total}" if total else name
        self.bar.set_description_str(f"fixed points of {self.name}: {now}", refresh=False)
        self.tick(0)

    def tick(self, points: int = 1) -> None:
        """So many points were treated; raises `OutOfTime` where the time is over."""
        self.bar.update(points)
        if time.monotonic() > self.end:
            raise OutOfTime

    def arm(self) -> None:
        """From now on points count, and there is something to return when the time is over."""
        self.bar.n = self.bar.last_print_n = 0
        self.end = self.begin + self.seconds

    def stop(self) -> None:
        """No more progress, and no more limit."""
        self.end = math.inf
        self.bar.close()


class System(eqx.Module):
    """The drift of a problem along its free coordinates x; what does not move is held as in `like`.

    Points are treated `chunk` at a time: one shape, compiled once; where a drift is costly, one by one. Kinks of piecewise
    linear units are kept as they are, where the problem's own drift smooths them for solvers: a field at the kink is then fixed
    exactly.
    """

    problem: Problem
    like: PyTree
    held: PyTree
    free: tuple[int, ...] = eqx.field(static=True)
    corrector: bool = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    watch: Watch = eqx.field(static=True)

    @classmethod
    def of(cls, problem: Problem, batch: PyTree, corrector: bool, watch: Watch) -> System:
        """The system of statistics (runs first) that agree in all that does not move."""
        problem.coordinates.check(batch)
        batch = jax.tree.map(np.asarray, batch)
        one = take_run(batch)
        count = len(jax.tree.leaves(batch)[0])
        chunk = min(max(2 ** math.ceil(math.log2(2 * count)), LEAST_CHUNK), MOST_CHUNK)
        watch.stage("counting the operations of a drift")
        free, held = tuple(np.flatnonzero(problem.coordinates.moves(one)).tolist()), np.asarray(problem.vector(one))
        system = cls(problem.numerics.without_smoothing(), one, held, free, corrector, 1, watch)
        if system.operations() < COSTLY:
            system = dataclasses.replace(system, chunk=chunk)
        rows = system.rows(batch)
        again = system.batch(rows)
        if any(np.abs(a - b).max() > 1e-9 for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(batch), strict=True)):
            raise BadInput(
                "starts must agree in what is not trained, such as a second layer that is fixed; they differ. "
                "Call fixed_points once for each value."
            )
        return system

    @property
    def size(self) -> int:
        return len(self.free)

    @property
    def costly(self) -> bool:
        return self.chunk == 1

    def operations(self) -> float:
        """About how many floating-point operations a drift takes."""
        drift: Any = self.at_once(System.drift)
        cost = drift.func.lower(*drift.args, np.asarray(self.held)[list(self.free)]).cost_analysis()
        return (cost or {}).get("flops", 0.0)

    def starts(self) -> int:
        """How many starts of searches are worth their time: fewer where a drift is costly."""
        return max(FEWEST_STARTS, int(STARTS * min(1, math.sqrt(COSTLY / self.operations())))) if self.costly else STARTS

    def time(self, x: Float[np.ndarray, " n"]) -> None:
        """Measure what a drift costs, for the line of progress."""
        self.watch.stage("compiling")
        drift = self.at_once(System.drift)
        np.asarray(drift(x))
        begin = time.perf_counter()
        np.asarray(drift(x))
        self.watch.bar.set_postfix_str(f"{1e3 * (time.perf_counter() - begin):.3g} ms a drift", refresh=False)

    def at_once(self, f: Callable) -> Callable:
        """f(system, ...) as compiled code, of arrays."""
        return jit_bound(f, self, fast_compile=True)

    def stats(self, x: Float[Array, " n"]) -> PyTree:
        return self.problem.from_vector(jnp.asarray(self.held).at[np.array(self.free)].set(x), self.like)

    def coordinates(self, stats: PyTree) -> Float[Array, " n"]:
        return self.problem.vector(stats)[np.array(self.free)]

    def drift(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        flushed = x - lax.stop_gradient(jnp.where(jnp.abs(x) < ZERO_COORDINATE, x, 0.0))
        return self.coordinates(vector_field(self.problem, self.corrector)(self.stats(flushed)))

    def drifts(self, x: np.ndarray) -> np.ndarray:
        """The drift at each row of coordinates."""
        return in_chunks(System.drift, self)(x) if len(x) else x

    def jacobian(self, x: Float[Array, " n"]) -> Float[Array, "n n"]:
        return jax.jacfwd(self.drift)(x)

    def batch(self, x: np.ndarray) -> PyTree:
        """The statistics of rows of coordinates, runs first."""
        return in_chunks(System.stats, self)(x)

    def rows(self, batch: PyTree) -> np.ndarray:
        """The coordinates of statistics, runs first."""
        return in_chunks(System.coordinates, self)(batch)

    def between(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Rows halfway between weights of two rows of coordinates, turned towards each other; NaN where they are independent.

        Halfway between statistics, units that are parallel at both ends are not. Halfway between weights they are. The size is
        the mean of both ends' sizes, as on a ring.
        """
        one, other = self.batch(x), self.batch(y)
        if not isinstance(one, Overlaps) or len(one.names) > 1 or self.problem.sphere:
            return np.full_like(x, np.nan)
        B = np.linalg.cholesky(np.asarray(self.problem.directions.gram))
        (inside, outside, rank), (there, across, same) = (_weights(stats, B) for stats in (one, other))
        left, _, right = np.linalg.svd(across.swapaxes(-1, -2) @ outside)
        U = _middle(np.concatenate([inside, outside], -1), np.concatenate([there, across @ left @ right], -1))
        a, kept = jax.tree.map(_middle, (one.a, one.kept), (other.a, other.kept))
        halfway = self.rows(Overlaps(a, U[..., : len(B)] @ B.T, U @ U.swapaxes(-1, -2), kept, one.names))
        return np.where((np.maximum(rank, same) < one.width)[:, None], halfway, np.nan)

    def exists(self, x: np.ndarray) -> np.ndarray:
        """Which rows are statistics that the problem allows."""
        return self._allowed(self.batch(x), len(x)) if len(x) else np.zeros(0, bool)

    def _allowed(self, batch: PyTree, count: int) -> np.ndarray:
        """All at once; where some are not allowed, each half for itself."""
        try:
            self.problem.coordinates.check(batch)
        except BadInput:
            if count == 1:
                return np.zeros(1, bool)
            halves = np.array_split(np.arange(count), 2)
            return np.concatenate([self._allowed(take_run(batch, half), half.size) for half in halves])
        return np.ones(count, bool)


def _weights(stats: Overlaps, B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights with overlaps of runs: in the frame of the fixed directions, outside of it, and how many of these are free."""
    m = np.linalg.solve(B, np.asarray(stats.M).swapaxes(-1, -2)).swapaxes(-1, -2)
    values, vectors = np.linalg.eigh(np.asarray(stats.Q) - m @ m.swapaxes(-1, -2))
    there = values > FLAT * np.trace(stats.Q, axis1=-2, axis2=-1)[..., None]
    roots = np.sqrt(np.where(there, np.maximum(values, 0.0), 0.0))
    return m, (vectors * roots[..., None, :]) @ vectors.swapaxes(-1, -2), there.sum(-1)


def _middle(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The mean of two arrays of runs, with the mean of their squared sizes."""
    mean, axes = (one + other) / 2, tuple(range(1, one.ndim))
    size = lambda array: (array**2).sum(axes, keepdims=True)
    before, after = (size(one) + size(other)) / 2, size(mean)
    return mean * np.sqrt(np.divide(before, after, out=np.ones_like(after), where=after > FLAT * before))


def in_chunks(f: Callable, system: System) -> Callable[[PyTree], PyTree]:
    """f(system, row) as a function of many rows, as NumPy arrays: a chunk of rows at a time, the last one padded."""
    each = system.at_once(f) if system.costly else jit_bound(_each, system, f, fast_compile=True)

    def many(x: PyTree) -> PyTree:
        x, parts = jax.tree.map(np.asarray, x), []
        count = len(jax.tree.leaves(x)[0])
        for begin in range(0, count, system.chunk):
            rows = begin if system.costly else np.minimum(np.arange(begin, begin + system.chunk), count - 1)
            part = jax.tree.map(np.asarray, each(take_run(x, rows)))
            parts.append(as_batch(part) if system.costly else take_run(part, np.s_[: count - begin]))
            system.watch.tick(min(system.chunk, count - begin))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    return many


def _each(system: System, f: Callable, rows: PyTree) -> PyTree:
    return system.problem.numerics.over_runs(lambda row: f(system, row), rows)
