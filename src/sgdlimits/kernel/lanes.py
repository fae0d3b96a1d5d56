"""The kernel `lanes`: a process as a flat program, compiled for vectors of replicas, on all cores."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.kernel import cache
from sgdlimits.kernel.base import Carry, Ending, Kernel, Span, Steps
from sgdlimits.kernel.program import Untranslated
from sgdlimits.kernel.replica import Numbers, Replica, replica_of

MOST_STATE = 2048
"""States of more numbers are not unrolled."""
PIECES = 4
"""Into how many pieces the vectors are cut for each core, so that cores are done together."""


class Code(NamedTuple):
    """A compiled program: its function, what owns it, how many lanes it has, and what it was compiled from."""

    call: Any
    owner: Any
    width: int
    replica: Replica


class Lanes(Kernel):
    """One process, whose runs have the last axis. Any number of runs is made with the same code; ended ones cost nothing."""

    name = "lanes"
    costly = False

    def __init__(self, process: Steps, until: Ending | None, carry: Carry) -> None:
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
        self.code = _code(
            _Form(self.numbers, *trees, (self.numbers.form, self.state, like, self.memory, remembered, zero.tobytes()))
        )
        self.block = int(process.block)
        self.every = int(max(1, min(process.block, float(process.patience))))
        self.row = self.numbers.flat

    def advance(self, carry: Carry, seed: Any, runs: Any, span: Span) -> Carry:
        moving = np.flatnonzero(np.asarray(carry.moving))
        if not moving.size:
            return carry
        width, vectors = self.code.width, -(-moving.size // self.code.width)
        which = moving[np.minimum(np.arange(vectors * width), moving.size - 1)]
        leaves = [np.array(leaf) for leaf in jax.tree.leaves(carry.state)]
        packed = lambda rows: np.ascontiguousarray(rows.reshape(-1, vectors, width).swapaxes(0, 1))
        state = packed(np.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves])[:, which])
        remembered = [np.asarray(leaf, float).reshape(len(leaf), -1).T for leaf in jax.tree.leaves(carry.memory)]
        memory = packed(np.concatenate([*remembered, np.zeros((0, np.size(carry.moving)))])[:, which])
        numbers = np.asarray(runs)[which].astype(np.int64)
        end, how = np.full(which.size, -1, np.int64), np.zeros(which.size, np.int64)
        end[moving.size :] = 0  # lanes that are there to fill up a vector
        self._run(vectors, state, memory, numbers, end, how, seed, span)
        rows = state.swapaxes(0, 1).reshape(-1, vectors * width)[:, : moving.size]
        for leaf, part in zip(leaves, np.split(rows, np.cumsum([leaf[..., 0].size for leaf in leaves])[:-1]), strict=True):
            leaf[..., moving] = part.reshape(*leaf.shape[:-1], -1)
        on, stopped, ends = (np.array(part) for part in (carry.moving, carry.stopped, carry.end))
        end, how = end[: moving.size], how[: moving.size]
        on[moving], stopped[moving], ends[moving] = end < 0, how == 1, end
        return Carry(jax.tree.unflatten(self.state, leaves), on, stopped, ends, carry.memory)

    def _run(self, vectors: int, state, memory, runs, end, how, seed, span: Span) -> None:
        """The vectors in pieces, which the cores take one after the other."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        real, width = np.array([span.t, span.size], float), self.code.width
        pieces = min(vectors, 1 if cores == 1 else PIECES * cores)
        cuts = np.linspace(0, vectors, pieces + 1).astype(int)

        def piece(low: int, high: int) -> None:
            rows = slice(low * width, high * width)
            parts = (state[low:high], memory[low:high], runs[rows], end[rows], how[rows], self.row)
            whole = np.array([span.first, span.steps, self.block, self.every, seed[0], seed[1], high - low], np.int64)
            self.code.call(*(part.ctypes.data for part in parts), whole.ctypes.data, real.ctypes.data)

        if pieces == 1:
            return piece(0, vectors)
        for done in [_pool(cores).submit(piece, *ends) for ends in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]:
            done.result()


class _Form:
    """What a program is made from; two that need the same program are equal."""

    def __init__(self, numbers: Numbers, state: PyTree, memory: PyTree, zero: np.ndarray, key: tuple) -> None:
        self.numbers, self.state, self.memory, self.zero, self.key = numbers, state, memory, zero, key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=64)
def _code(form: _Form) -> Code:
    try:
        replica = replica_of(form.numbers, form.state, form.memory, form.zero)
    except IndexError:
        raise Untranslated("a large array") from None
    except (AttributeError, KeyError, TypeError, ValueError) as reason:  # a form of a primitive that no rule has met
        raise Untranslated(f"how to read this step ({type(reason).__name__}: {reason})") from reason
    from sgdlimits.kernel import llvm

    machine = _machine()
    text = llvm.text_of(replica, machine)
    owner, address = cache.loaded((text, machine.key), lambda: machine.object_code(text), machine.load)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 8)(address)
    return Code(call, owner, llvm.width_of(replica, machine), replica)


@lru_cache(maxsize=1)
def _machine():
    from sgdlimits.kernel.llvm import Machine

    return Machine()


@lru_cache(maxsize=1)
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="sgdlimits")
