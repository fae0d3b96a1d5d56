"""Conditions that are dear, or too large for a flat program: the host is asked where no bound rules out that a run stops.

A bound is a sum of quadratic functions of the numbers of a state, one row a run: a constant, then for each number x that moves
the coefficient of x, then that of -x^2. It holds in every state, so that rows stay good from one call to the next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, PyTree

from sgdlimits.jaxtools import Layout, compiled
from sgdlimits.kernel.base import Carry, ProcessLike, StopCondition

ASK = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 3)
GOES_ON, STOPS = 1.0, 2.0
"""What compiled code is told of a lane that it asked for."""
DOUBT, BENT = 1e-6, 1e-3
"""What bounds around a state leave to quadrature: an error up to the first, of a slope up to twice the root of the product of
both."""
SURE = 1e-9
"""Numbers that are larger than this have the sign that they seem to have."""


class Guards:
    """The bounds of a process with a condition, for the runs of one kernel."""

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, moved: list[int]) -> None:
        one = jax.tree.map(lambda leaf: np.asarray(leaf)[..., 0], carry.state)
        own = jax.tree.map(lambda leaf: np.asarray(leaf)[0], carry.memory)
        self.ask = compiled(_ask, process, until, tuple(moved), Layout.of(one), Layout.of(own), fast_compile=True)
        self.rows, self.numbers = 1 + 2 * len(moved), Layout.of(one).size
        self.kept = np.zeros((0, 1 + Layout.of(own).size + self.rows))

    def of(self, runs: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Rows of runs, vectors and lanes first and last; those that are not known yet rule nothing out."""
        rows, here = np.zeros((runs.size, self.rows)), _about(runs, memory)
        _, new, old = np.intersect1d(here[:, 0], self.kept[:, 0], return_indices=True)
        same = (here[new] == self.kept[old, : here.shape[1]]).all(1)
        rows[new[same]] = self.kept[old[same], here.shape[1] :]
        return np.ascontiguousarray(rows.reshape(*runs.shape, -1).swapaxes(1, 2))

    def keep(self, runs: np.ndarray, memory: np.ndarray, guards: np.ndarray) -> None:
        """Take note of rows."""
        self.kept = np.concatenate([_about(runs, memory), guards.swapaxes(1, 2).reshape(runs.size, -1)], axis=1)

    @contextmanager
    def asked(self, memory: np.ndarray) -> Iterator[Any]:
        """A function for compiled code: of the vector, its states, which lanes are asked for, and rows that it gives new."""
        width, wrong = memory.shape[-1], []

        @cache  # there are few places of these
        def shaped(address: int, count: int) -> np.ndarray:
            return np.frombuffer((ctypes.c_double * (count * width)).from_address(address)).reshape(count, width)

        def answer(index: int, state: int, lanes: int, rows: int) -> None:
            try:
                states, which, new = shaped(state, self.numbers), shaped(lanes, 1)[0], shaped(rows, self.rows)
                for lane in np.flatnonzero(which):
                    said = np.asarray(self.ask(states[:, lane], memory[index, :, lane]))
                    which[lane], new[:, lane] = said[0], said[1:]
            except BaseException as reason:  # it cannot pass through compiled code
                wrong.append(reason)
                shaped(rows, self.rows)[0] = np.inf

        function = ASK(answer)
        yield ctypes.cast(function, ctypes.c_void_p)
        if wrong:
            raise wrong[0]


def _ask(
    process: ProcessLike, until: StopCondition, moved: tuple[int, ...], state: Layout, memory: Layout, row: Array, own: Array
) -> Array:
    """Whether a run stops, and the row of its bound. Where that number is not zero, the condition itself is not asked."""
    one, kept = state.values(row), memory.values(own)
    bound = until.guard(process, one, kept)
    value, line = jnp.zeros(()), [jnp.zeros(())] * (1 + 2 * len(moved))
    if bound is not None:
        value, (_, *line) = bound.value, row_of(bound, one, moved)

    def asked() -> Bool[Array, ""]:
        stats = process.statistics(jax.tree.map(lambda leaf: leaf[..., None], one))
        kept_here = jax.tree.map(lambda leaf: leaf[None], kept)
        return until.stop_runs(process.problem, stats, kept_here, jnp.zeros(1))[0]  # no state is guarded if time matters

    said = jnp.where(lax.cond(jnp.abs(value) > SURE, lambda: value < 0, asked), STOPS, GOES_ON)
    return jnp.stack([said, *line])


def row_of(support: Any, state: PyTree, moved: Sequence[int]) -> list[Array]:
    """The value of a bound in a state, and its row."""
    flat = lambda tree: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])[np.array(moved)]
    x, slope, bend = map(flat, (state, support.slope, support.bend))
    value, bend = support.value - DOUBT, jnp.where(bend > 0, bend + BENT, 0.0)
    return [value, value - ((slope + bend * x) * x).sum(), *(slope + 2 * bend * x), *bend]


def _about(runs: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Each run by its number, and what its condition remembers."""
    return np.concatenate([runs.reshape(-1, 1), memory.swapaxes(1, 2).reshape(runs.size, -1)], axis=1, dtype=float)
