"""Kernel `lanes`: a process as a flat program, compiled for SIMD vectors of replicas, on all cores."""

from __future__ import annotations

import abc
import ctypes
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.kernel import cache, known
from sgdlimits.kernel.base import MAX_COORDINATE, Carry, Kernel, ProcessLike, RunBatch, RunStates, StepRange, StopCondition
from sgdlimits.kernel.compiler.program import TranslationError
from sgdlimits.kernel.compiler.replica import BoundCheck, Replica
from sgdlimits.kernel.stopping import HostBounds, find_bound
from sgdlimits.kernel.trace import ParameterArrays, trace_replica

MAX_STATE_SIZE = 2048
"""Maximum number of coordinates of a state that a flat program unrolls into scalar variables."""
PIECES_PER_CORE = 4
"""Number of pieces of work per processor core; with more than one, all cores finish at about the same time."""
MIN_THREADED_OPERATIONS = 2**25
"""Number of operations of a kernel call (about 0.4 ms) below which the call runs on a single thread."""


class CompiledCode(NamedTuple):
    """Compiled code of a flat program, with the properties that a caller needs.

    `function` is the compiled function and `loaded_code` the object that keeps its memory alive; `width` is the number of
    replicas in a vector, `parameter_indices` has the indices of the parameters that the code takes, and `operation_count` is
    the number of operations of a step. If the host supplies bounds on the stop condition, `bounded_indices` has the indices of
    the coordinates that a step changes, else None.
    """

    function: Any
    loaded_code: Any
    width: int
    parameter_indices: list[int]
    operation_count: int
    bounded_indices: list[int] | None = None


class FlatKernel(Kernel):
    """Base class of kernels that compile a step to a flat program of scalar operations, for any number of runs.

    Arrays of the process must have the runs last. Active runs are packed into vectors, with axes (vector, coordinate, lane), so
    that ended runs cost nothing.
    """

    recompiles = False
    xp: Any = np
    """Module with the array functions of this kernel: NumPy, or CuPy on a GPU."""

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool = False) -> None:
        if process.runs_axis != -1:
            raise TranslationError("a state with the runs first")
        self.parameters = ParameterArrays.from_tree((process, until))
        self.state = jax.tree.structure(carry.state)
        self.memory = jax.tree.structure(carry.memory)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(carry.state)]
        self.shapes = [leaf.shape[:-1] for leaf in leaves]
        if sum(leaf[..., 0].size for leaf in leaves) > MAX_STATE_SIZE or any(leaf.dtype != np.float64 for leaf in leaves):
            raise TranslationError("a large state")
        zero = np.concatenate([(leaf == 0).all(-1).ravel() for leaf in leaves])  # zero in every run
        # Memories of conditions have the runs first, states last.
        remembered = tuple(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(carry.memory))
        like = tuple(jax.ShapeDtypeStruct(shape, np.float64) for shape in self.shapes)
        trees = jax.tree.unflatten(self.state, like), jax.tree.unflatten(self.memory, remembered), zero
        bound = find_bound(process, until)  # part of the key, since a user may register another bound later
        key = (self.parameters.program_key, self.state, like, self.memory, remembered, zero.tobytes(), bound)
        self.spec = ProgramSpec(self.parameters, *trees, single, key)
        self.code = self.compile(self.spec)
        self.block = int(process.block)
        self.every = int(max(1, min(process.block, float(process.check_interval))))
        self.row = self.parameters.concatenated[self.code.parameter_indices]

    @property
    def key(self) -> Any:
        return id(self.code), self.block, self.every

    @staticmethod
    @abc.abstractmethod
    def compile(spec: ProgramSpec) -> CompiledCode:
        """Return the compiled code of a flat program, from the cache if possible."""

    @abc.abstractmethod
    def run(self, arrays: KernelArrays, span: StepRange) -> None:
        """Make the steps of `span` for runs packed into vectors, and write the results into `arrays`."""

    def to_kernel(self, leaf: Any) -> Any:
        """Copy an array of a carry to the device of this kernel, where it may be modified."""
        return np.array(leaf)

    def to_carry(self, array: Any) -> Any:
        """Convert an array of this kernel to one for a `Carry`."""
        return array

    def to_host(self, array: Any) -> np.ndarray:
        """Convert an array of this kernel to a NumPy array."""
        return array

    def advance(self, carry: Carry, seed: Any, runs: Any, span: StepRange) -> Carry:
        return self.advance_many([RunBatch(self, carry, seed, runs)], span)[0]

    def advance_many(self, batches: Sequence[RunBatch], span: StepRange) -> list[Carry]:
        packed = [PackedRunArrays(batch) for batch in batches]
        if not any(each.moving.size for each in packed):
            return [batch.carry for batch in batches]
        arrays = self._fill_vectors(packed)
        self.run(arrays, span)
        state, ends = _in_columns(arrays), np.cumsum([each.moving.size for each in packed])
        cuts = [slice(int(last) - each.moving.size, int(last)) for last, each in zip(ends, packed, strict=True)]
        return [
            each.unpack(state[:, cut], arrays.end[cut], arrays.outcome[cut]) for each, cut in zip(packed, cuts, strict=True)
        ]

    def advance_through(self, batch: RunBatch, spans: Sequence[StepRange]) -> tuple[Carry, list[RunStates]]:
        """Make the steps of several consecutive spans, with the runs packed once."""
        runs = PackedRunArrays(batch)
        if not runs.moving.size:
            return batch.carry, [RunStates(batch.carry.state, batch.carry.end)] * len(spans)
        arrays, count, passed = self._fill_vectors([runs]), runs.moving.size, []
        for span in spans:
            self.run(arrays, span)
            passed.append((_in_columns(arrays)[:, :count].copy(), arrays.end[:count].copy()))
        states = [runs.unpack_state(state, end) for state, end in passed]
        return runs.unpack(passed[-1][0], arrays.end[:count], arrays.outcome[:count]), states

    def _fill_vectors(self, packed: Sequence[PackedRunArrays]) -> KernelArrays:
        """Return the arrays of the active runs of several batches, one batch after another, in vectors of replicas."""
        xp, width, count = self.xp, self.code.width, sum(each.moving.size for each in packed)
        vectors = -(-count // width)
        filled = xp.minimum(xp.arange(vectors * width), count - 1)  # the last run fills the last vector
        to_vectors = lambda parts: xp.concatenate(parts, axis=1)[:, filled].reshape(-1, vectors, width).swapaxes(0, 1)
        arrays = (to_vectors(parts) for parts in zip(*(each.pack() for each in packed), strict=True))
        state, memory, keys, parameters = map(xp.ascontiguousarray, arrays)
        end = xp.full(vectors * width, -1, np.int64)
        end[count:] = 0  # lanes that only fill the last vector have ended
        return KernelArrays(state, memory, keys, end, xp.zeros(vectors * width, np.int64), parameters)


def _in_columns(arrays: KernelArrays) -> Any:
    """Return the states of all lanes as the columns of a matrix, with one row for each coordinate."""
    vectors, coordinates, width = arrays.state.shape
    return arrays.state.swapaxes(0, 1).reshape(coordinates, vectors * width)


class KernelArrays(NamedTuple):
    """Arguments of compiled code: arrays whose first axis runs over the vectors of replicas.

    These are states, memories of stop conditions, keys (index of the run and the two words of its seed), the step at which each
    run ended (-1 for none), its outcome (1 stopped, 2 diverged), and parameters.
    """

    state: Any
    memory: Any
    keys: Any
    end: Any
    outcome: Any
    parameters: Any


class PackedRunArrays:
    """Copies of a batch's arrays, from which active runs are packed into vectors, and into which new states are written."""

    def __init__(self, batch: RunBatch) -> None:
        here = batch.kernel.to_kernel
        self.batch, self.kernel, self.xp = batch, batch.kernel, batch.kernel.xp
        self.on, self.stopped, self.ends = (here(part) for part in (batch.carry.moving, batch.carry.stopped, batch.carry.end))
        self.moving = self.xp.flatnonzero(self.on)
        self.leaves = [here(leaf) for leaf in jax.tree.leaves(batch.carry.state)]

    def pack(self) -> tuple[Any, ...]:
        """Return states, stop-condition memories, keys and parameters of the active runs, each of shape (floats, runs)."""
        xp, some, row = self.xp, self.moving, self.kernel.row
        state = xp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in self.leaves])[:, some]
        memory = [self.kernel.to_kernel(leaf) for leaf in jax.tree.leaves(self.batch.carry.memory)]
        flat = [leaf.reshape(leaf.shape[0], -1).T.astype(float) for leaf in memory]
        words = xp.broadcast_to(xp.asarray(np.asarray(self.batch.seed).astype(np.int64)[:, None]), (2, some.size))
        keys = xp.concatenate([self.kernel.to_kernel(self.batch.runs)[some].astype(np.int64)[None], words])
        parameters = xp.broadcast_to(row[:, None], (row.size, some.size))
        return state, xp.concatenate([*flat, xp.zeros((0, self.on.size))])[:, some], keys, parameters

    def unpack_state(self, state: Any, end: Any) -> RunStates:
        """Return the states of all runs, given the new states of the active runs and the steps at which active runs ended."""
        everything, leaves, first, ends = self.moving.size == self.on.size, [], 0, self.ends.copy()
        for leaf in self.leaves:
            last = first + math.prod(leaf.shape[:-1])
            part = state[first:last].reshape(*leaf.shape[:-1], -1)
            whole = part if everything else leaf.copy()
            if not everything:
                whole[..., self.moving] = part
            leaves.append(self.kernel.to_carry(whole))
            first = last
        ends[self.moving] = end
        return RunStates(jax.tree.unflatten(self.kernel.state, leaves), self.kernel.to_host(ends))

    def unpack(self, state: Any, end: Any, outcome: Any) -> Carry:
        """Return the carry after the steps, given the new states of the active runs, their end steps and outcomes."""
        cuts = np.cumsum([leaf[..., 0].size for leaf in self.leaves])[:-1]
        for leaf, part in zip(self.leaves, self.xp.split(state, cuts), strict=True):
            leaf[..., self.moving] = part.reshape(*leaf.shape[:-1], -1)
        self.on[self.moving] = end < 0
        self.stopped[self.moving] = outcome == 1
        self.ends[self.moving] = end
        after = jax.tree.unflatten(self.kernel.state, [self.kernel.to_carry(leaf) for leaf in self.leaves])
        on, stopped, ends = map(self.kernel.to_host, (self.on, self.stopped, self.ends))
        return Carry(after, on, stopped, ends, self.batch.carry.memory)


class Lanes(FlatKernel):
    """Kernel that computes runs in the lanes of SIMD vectors, on all cores of the processor."""

    name = "lanes"

    def __init__(self, process: ProcessLike, until: StopCondition | None, carry: Carry, single: bool = False) -> None:
        super().__init__(process, until, carry, single)
        moved = self.code.bounded_indices
        self.bounds = None if moved is None or until is None else HostBounds(process, until, carry, moved)

    @property
    def key(self) -> Any:
        return super().key if self.bounds is None else id(self)  # bounds are those of one kernel's condition

    @staticmethod
    def compile(spec: ProgramSpec) -> CompiledCode:
        return _load_compiled_code(spec, _host_machine().key)

    def run(self, arrays: KernelArrays, span: StepRange) -> None:
        """Make the steps of `span` for all vectors of runs, in pieces that the cores take from a queue."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        real, vectors, width = np.array([span.t, span.size], float), len(arrays.state), self.code.width
        small = vectors * width * int(span.steps) * self.code.operation_count < MIN_THREADED_OPERATIONS
        pieces = min(vectors, 1 if small or cores == 1 else PIECES_PER_CORE * cores)
        cuts = np.linspace(0, vectors, pieces + 1).astype(int)
        bounds, rows = self.bounds, None
        if bounds is not None:
            rows = bounds.stored_coefficients(arrays.keys[:, 0], arrays.memory)

        def advance_vectors(low: int, high: int) -> None:
            """Make all steps of the vectors from `low` to `high` - 1."""
            # `end` and `outcome` have an entry for each lane, the other arrays a row for each vector.
            parts = [part[low * len(part) // vectors : high * len(part) // vectors] for part in arrays]
            integers = np.array([span.first_step, span.steps, self.block, self.every, high - low], np.int64)
            call = partial(self.code.function, *(part.ctypes.data for part in parts), integers.ctypes.data, real.ctypes.data)
            if bounds is None or rows is None:
                return call()
            # The call releases the interpreter's lock, which the host's function takes again when it is called.
            with bounds.host_callback(arrays.memory[low:high]) as host:
                call(rows[low:high].ctypes.data, host)

        if pieces == 1:
            advance_vectors(0, vectors)
        else:
            ends = zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
            for done in [_thread_pool(cores).submit(advance_vectors, *each) for each in ends]:
                done.result()
        if bounds is not None and rows is not None:
            bounds.store(arrays.keys[:, 0], arrays.memory, rows)


class ProgramSpec:
    """Specification of everything on which a flat program's code depends; equal specifications need the same program.

    Parameters are those of `sgdlimits.kernel.trace.trace_replica`, and a `key` for comparisons.
    """

    def __init__(
        self, parameters: ParameterArrays, state: PyTree, memory: PyTree, zero: np.ndarray, single: bool, key: tuple
    ) -> None:
        self.parameters = parameters
        self.state = state
        self.memory = memory
        self.zero = zero
        self.single = single
        self.key = (*key, single)

    @property
    def fixed(self) -> PyTree:
        """Pytree of the process and the stop condition, with their parameters."""
        return self.parameters.rebuild(self.parameters.arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramSpec) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def trace_replica(self, can_call_host: bool) -> Replica:
        """Trace the flat program of one run's step; `can_call_host` says whether the code can call Python."""
        return trace_replica(self.parameters, self.state, self.memory, self.zero, self.single, can_call_host)


@lru_cache(maxsize=64)
def _load_compiled_code(spec: ProgramSpec, key: tuple) -> CompiledCode:
    """Load the compiled code of a program, without tracing if the program has a persistent name and a cache entry."""
    machine = _host_machine()
    name = known.make_persistent_name(key, spec.fixed, find_bound(*spec.fixed), spec.state, spec.memory, spec.zero, spec.single)
    make = lambda: _compile_program(spec)
    # An entry is one line of JSON, then the object code.
    about, _, code = (make() if name is None else cache.read_or_make(f"step-{name}", make)).partition(b"\n")
    owner, address = machine.load(code)
    width, parameters, length, bounded = json.loads(about)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (8 if bounded is None else 10))
    return CompiledCode(function(address), owner, width, parameters, length, bounded)


def _compile_program(spec: ProgramSpec) -> bytes:
    """Trace and compile a program; return its properties as one line of JSON, followed by its object code.

    The code alone is cached by its text, since different processes may have the same program.
    """
    from sgdlimits.kernel.compiler import llvm

    machine, replica = _host_machine(), spec.trace_replica(can_call_host=True)
    text = llvm.write_llvm(replica, machine, MAX_COORDINATE)
    moved = replica.changed_indices if isinstance(replica.check, BoundCheck) else None
    about = llvm.choose_vector_width(replica, machine), replica.parameter_indices, replica.operation_count, moved
    code = cache.load_or_compile((text, machine.key), lambda: machine.compile_object(text), bytes)
    return json.dumps(about).encode() + b"\n" + code


@lru_cache(maxsize=1)
def _host_machine():
    """Return the description of this machine's processor, which is created once."""
    from sgdlimits.kernel.compiler.llvm import HostProcessor

    return HostProcessor()


@lru_cache(maxsize=1)
def _thread_pool(cores: int) -> ThreadPoolExecutor:
    """Return the pool of threads that is shared by all kernels."""
    return ThreadPoolExecutor(cores, thread_name_prefix="sgdlimits")
