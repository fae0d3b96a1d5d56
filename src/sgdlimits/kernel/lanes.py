"""The kernel `lanes`: a process as a flat program, compiled for vectors of replicas, on all cores."""

from __future__ import annotations

import abc
import ctypes
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.kernel import cache, known
from sgdlimits.kernel.base import MAX_COORDINATE, Carry, Kernel, ProcessLike, RunBatch, StepRange, StopCondition
from sgdlimits.kernel.compiler.program import Untranslated
from sgdlimits.kernel.compiler.replica import ByBound, Replica
from sgdlimits.kernel.stopping import HostBounds, find_bound
from sgdlimits.kernel.trace import Numbers, replica_of

MOST_STATE = 2048
"""States of more numbers are not unrolled."""
PIECES = 4
"""Into how many pieces the vectors are cut for each core, so that cores are done together."""
SMALL = 2**25
"""Calls of fewer operations, which take some 0.4 milliseconds, are not worth other threads."""


class Code(NamedTuple):
    """A compiled program: its function, what owns it, the replicas of a vector, which numbers it takes, and its length.

    If the host supplies bounds on the stop condition, `bounded` are the indices of the coordinates that move.
    """

    call: Any
    owner: Any
    width: int
    numbers: list[int]
    length: int
    bounded: list[int] | None = None


class Unrolled(Kernel):
    """One process, whose runs have the last axis, as a flat program. Any number of runs is made with the same code.

    Runs that move are packed into vectors, so that ended ones cost nothing: numbers of the state first, then replicas.
    """

    recompiles = False
    xp: Any = np
    """Where arrays are: NumPy, or a module like it."""

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool = False) -> None:
        if process.runs_axis != -1:
            raise Untranslated("a state with the runs first")
        self.numbers = Numbers.of((process, until))
        self.state, self.memory = jax.tree.structure(carry.state), jax.tree.structure(carry.memory)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(carry.state)]
        self.shapes = [leaf.shape[:-1] for leaf in leaves]
        if sum(leaf[..., 0].size for leaf in leaves) > MOST_STATE or any(leaf.dtype != np.float64 for leaf in leaves):
            raise Untranslated("a large state")
        zero = np.concatenate([(leaf == 0).all(-1).ravel() for leaf in leaves])
        remembered = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(carry.memory))
        like = tuple(jax.ShapeDtypeStruct(shape, np.float64) for shape in self.shapes)
        trees = jax.tree.unflatten(self.state, like), jax.tree.unflatten(self.memory, remembered), zero
        bound = find_bound(process, until)  # of the key too, since a user may register another one
        key = (self.numbers.form, self.state, like, self.memory, remembered, zero.tobytes(), bound)
        self.form = Form(self.numbers, *trees, single, key)
        self.code = self.compiled(self.form)
        self.block = int(process.block)
        self.every = int(max(1, min(process.block, float(process.check_interval))))
        self.row = self.numbers.flat[self.code.numbers]

    @property
    def key(self) -> Any:
        return id(self.code), self.block, self.every

    @staticmethod
    @abc.abstractmethod
    def compiled(form: Form) -> Code:
        """The code of a program."""

    @abc.abstractmethod
    def run(self, arrays: Arrays, span: StepRange) -> None:
        """Make the steps of packed runs, in place."""

    def here(self, leaf: Any) -> Any:
        """An array of a carry, where this kernel computes: another one that may be changed."""
        return np.array(leaf)

    def back(self, array: Any) -> Any:
        """An array for a carry."""
        return array

    def host(self, array: Any) -> np.ndarray:
        """An array where NumPy computes."""
        return array

    def advance(self, carry: Carry, seed: Any, runs: Any, span: StepRange) -> Carry:
        return self.advance_many([RunBatch(self, carry, seed, runs)], span)[0]

    def advance_many(self, lots: Sequence[RunBatch], span: StepRange) -> list[Carry]:
        xp, width = self.xp, self.code.width
        open_ = [Opened(lot) for lot in lots]
        ends = np.cumsum([each.moving.size for each in open_])
        if not ends[-1]:
            return [lot.carry for lot in lots]
        vectors = -(-int(ends[-1]) // width)
        filled = xp.minimum(xp.arange(vectors * width), int(ends[-1]) - 1)
        joined = lambda parts: xp.concatenate(parts, axis=1)[:, filled].reshape(-1, vectors, width).swapaxes(0, 1)
        arrays = (joined(parts) for parts in zip(*(each.rows() for each in open_), strict=True))
        state, memory, keys, numbers = map(xp.ascontiguousarray, arrays)
        end, how = xp.full(vectors * width, -1, np.int64), xp.zeros(vectors * width, np.int64)
        end[int(ends[-1]) :] = 0  # lanes that are there to fill up a vector
        self.run(Arrays(state, memory, keys, end, how, numbers), span)
        state = state.swapaxes(0, 1).reshape(-1, vectors * width)
        cuts = [slice(int(last) - each.moving.size, int(last)) for last, each in zip(ends, open_, strict=True)]
        return [each.closed(state[:, cut], end[cut], how[cut]) for each, cut in zip(open_, cuts, strict=True)]


class Arrays(NamedTuple):
    """The arguments of compiled code, vectors first.

    These are states, what conditions remember, the run and the two words of its seed, when and how each run ended, and the
    numbers of its problem.
    """

    state: Any
    memory: Any
    keys: Any
    end: Any
    how: Any
    numbers: Any


class Opened:
    """The runs of a lot that move: copies of the arrays of its carry, into which results are put."""

    def __init__(self, lot: RunBatch) -> None:
        here = lot.kernel.here
        self.lot, self.kernel, self.xp = lot, lot.kernel, lot.kernel.xp
        self.on, self.stopped, self.ends = (here(part) for part in (lot.carry.moving, lot.carry.stopped, lot.carry.end))
        self.moving = self.xp.flatnonzero(self.on)
        self.leaves = [here(leaf) for leaf in jax.tree.leaves(lot.carry.state)]

    def rows(self) -> tuple[Any, ...]:
        """States, memories, keys and numbers of the runs that move, which have the last axis."""
        xp, some, row = self.xp, self.moving, self.kernel.row
        state = xp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in self.leaves])[:, some]
        memory = [self.kernel.here(leaf) for leaf in jax.tree.leaves(self.lot.carry.memory)]
        flat = [leaf.reshape(leaf.shape[0], -1).T.astype(float) for leaf in memory]
        words = xp.broadcast_to(xp.asarray(np.asarray(self.lot.seed).astype(np.int64)[:, None]), (2, some.size))
        keys = xp.concatenate([self.kernel.here(self.lot.runs)[some].astype(np.int64)[None], words])
        numbers = xp.broadcast_to(row[:, None], (row.size, some.size))
        return state, xp.concatenate([*flat, xp.zeros((0, self.on.size))])[:, some], keys, numbers

    def closed(self, state: Any, end: Any, how: Any) -> Carry:
        """The carry after steps, from the states of the runs that moved, and when and how they ended."""
        cuts = np.cumsum([leaf[..., 0].size for leaf in self.leaves])[:-1]
        for leaf, part in zip(self.leaves, self.xp.split(state, cuts), strict=True):
            leaf[..., self.moving] = part.reshape(*leaf.shape[:-1], -1)
        self.on[self.moving], self.stopped[self.moving], self.ends[self.moving] = end < 0, how == 1, end
        after = jax.tree.unflatten(self.kernel.state, [self.kernel.back(leaf) for leaf in self.leaves])
        on, stopped, ends = map(self.kernel.host, (self.on, self.stopped, self.ends))
        return Carry(after, on, stopped, ends, self.lot.carry.memory)


class Lanes(Unrolled):
    """Vectors of the processor, on all cores."""

    name = "lanes"

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool = False) -> None:
        super().__init__(process, until, carry, single)
        moved = self.code.bounded
        self.bounds = None if moved is None or until is None else HostBounds(process, until, carry, moved)

    @property
    def key(self) -> Any:
        return super().key if self.bounds is None else id(self)

    @staticmethod
    def compiled(form: Form) -> Code:
        return _code(form, _machine().key)

    def run(self, arrays: Arrays, span: StepRange) -> None:
        """The vectors in pieces, which the cores take one after the other."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        real, vectors, width = np.array([span.t, span.size], float), len(arrays.state), self.code.width
        small = vectors * width * int(span.steps) * self.code.length < SMALL
        pieces = min(vectors, 1 if small or cores == 1 else PIECES * cores)
        cuts = np.linspace(0, vectors, pieces + 1).astype(int)
        bounds, rows = self.bounds, None
        if bounds is not None:
            rows = bounds.rows_of(arrays.keys[:, 0], arrays.memory)

        def piece(low: int, high: int) -> None:
            parts = [part[low * len(part) // vectors : high * len(part) // vectors] for part in arrays]
            whole = np.array([span.first, span.steps, self.block, self.every, high - low], np.int64)
            call = partial(self.code.call, *(part.ctypes.data for part in parts), whole.ctypes.data, real.ctypes.data)
            if bounds is None or rows is None:
                return call()
            with bounds.serving(arrays.memory[low:high]) as host:
                call(rows[low:high].ctypes.data, host)

        if pieces == 1:
            piece(0, vectors)
        else:
            ends = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
            for done in [_pool(cores).submit(piece, *each) for each in ends]:
                done.result()
        if bounds is not None and rows is not None:
            bounds.store(arrays.keys[:, 0], arrays.memory, rows)


class Form:
    """What a program is made from; two that need the same program are equal."""

    def __init__(self, numbers: Numbers, state: PyTree, memory: PyTree, zero: np.ndarray, single: bool, key: tuple) -> None:
        self.numbers, self.state, self.memory, self.zero, self.single = numbers, state, memory, zero, single
        self.key = (*key, single)

    @property
    def fixed(self) -> PyTree:
        """The process and its condition."""
        return self.numbers.values(self.numbers.arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def replica(self, asks: bool) -> Replica:
        """The program, of code that asks the host or not."""
        return replica_of(self.numbers, self.state, self.memory, self.zero, self.single, asks)


@lru_cache(maxsize=64)
def _code(form: Form, key: tuple) -> Code:
    """Compiled code, from an entry with its name where it has one: then nothing is traced."""
    machine = _machine()
    name = known.name_of(key, form.fixed, find_bound(*form.fixed), form.state, form.memory, form.zero, form.single)
    make = lambda: _compiled(form)
    about, _, code = (make() if name is None else cache.kept(f"step-{name}", make)).partition(b"\n")
    owner, address = machine.load(code)
    width, numbers, length, bounded = json.loads(about)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (8 if bounded is None else 10))
    return Code(function(address), owner, width, numbers, length, bounded)


def _compiled(form: Form) -> bytes:
    """A line that says what there is to know of a program, and its code, which other forms may have as well."""
    from sgdlimits.kernel.compiler import llvm

    machine, replica = _machine(), form.replica(asks=True)
    text = llvm.text_of(replica, machine, MAX_COORDINATE)
    moved = replica.moved if isinstance(replica.check, ByBound) else None
    about = llvm.width_of(replica, machine), replica.numbers, replica.length, moved
    code = cache.load_or_compile((text, machine.key), lambda: machine.object_code(text), bytes)
    return json.dumps(about).encode() + b"\n" + code


@lru_cache(maxsize=1)
def _machine():
    from sgdlimits.kernel.compiler.llvm import Machine

    return Machine()


@lru_cache(maxsize=1)
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="sgdlimits")
