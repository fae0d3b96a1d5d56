"""One replica's step as a flat program: the process's own `draw` and `step`, and the condition that ends a run.

The process is traced for one run and one step. Its numbers (learning rates, noise, dimension) are inputs, so that another value
needs no other program, but for zeros and ones, which simplify it. Entries of the state that are zero in all runs, and that a step
keeps at zero, are constants: the empty half of a triangular matrix costs nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from sgdlimits.kernel.base import Ending, Moment, Steps
from sgdlimits.kernel.flatten import Flattening, lowered
from sgdlimits.kernel.program import Program
from sgdlimits.random import Stream

MOST_NODES = 60_000
"""Programs of more operations take longer to compile than they save."""
MOST_NUMBERS = 4096
"""Larger arrays of a problem are no numbers of a step."""
ABSENT = 10**12


class Replica(NamedTuple):
    """A flat program of one step, and which of its numbers are what.

    `state` are the numbers before the step and `after` those behind it; `memory` is what the condition remembers, and `stops`
    whether the run ends. Inputs have names: ("number", i), ("state", i), ("memory", i), "run", "seed", "seed_high", "step", "t",
    "size".
    """

    program: Program
    inputs: frozenset[int]
    state: tuple[int, ...]
    after: tuple[int, ...]
    memory: tuple[int, ...]
    stops: int | None

    @property
    def run(self) -> int | None:
        return next((place for place in self.inputs if self.program.nodes[place].what == "run"), None)


class Numbers(NamedTuple):
    """The leaves of a process and its condition: arrays of doubles, which a program takes as inputs, and all else."""

    tree: Any
    others: tuple
    arrays: list[np.ndarray]

    @classmethod
    def of(cls, fixed: PyTree) -> Numbers:
        leaves, tree = jax.tree.flatten(fixed)
        number = [isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and leaf.dtype == np.float64 for leaf in leaves]
        arrays = [np.asarray(leaf) for leaf, is_number in zip(leaves, number, strict=True) if is_number]
        others = tuple(None if is_number else _hashable(leaf) for leaf, is_number in zip(leaves, number, strict=True))
        return cls(tree, others, arrays)

    @property
    def flat(self) -> np.ndarray:
        """All doubles in a row."""
        return np.concatenate([np.zeros(0), *(array.ravel() for array in self.arrays)])

    @property
    def form(self) -> tuple:
        """All that a program depends on: shapes, and the values that simplify it."""
        plain = tuple(
            array.tobytes() for array in (np.where(np.isin(x, (0.0, 1.0)), x, 2.0).astype(np.int8) for x in self.arrays)
        )
        return self.tree, self.others, tuple(array.shape for array in self.arrays), plain


def replica_of(numbers: Numbers, state: PyTree, memory: PyTree, zero: np.ndarray) -> Replica:
    """The program of a process and its condition, for states and memories like these of one run (shapes without runs)."""
    places, stops = _traced(numbers, state, memory)

    program = Program(MOST_NODES)
    walk, arrays, at = Flattening(program), [], 0
    for array in numbers.arrays:
        known = np.isin(array, (0.0, 1.0)).ravel()
        rows = (
            [
                program.const(value, "f64") if special else program.input(("number", at + i))  # type: ignore[arg-type]
                for i, (value, special) in enumerate(zip(array.ravel().tolist(), known.tolist(), strict=True))
            ]
            if array.size <= MOST_NUMBERS
            else np.full(array.size, ABSENT)
        )
        arrays.append(np.array(rows, int).reshape(array.shape))
        at += array.size
    inputs = (
        lambda name, like: [
            np.array([program.input((name, i + first)) for i in range(leaf.size)], int).reshape(leaf.shape)  # type: ignore[arg-type]
            for leaf, first in zip(like, np.cumsum([0, *(leaf.size for leaf in like)])[:-1].tolist(), strict=True)
        ]
    )
    before, remembered = inputs("state", jax.tree.leaves(state)), inputs("memory", jax.tree.leaves(memory))
    keys = [
        np.array([program.input("seed", "u32"), program.input("seed_high", "u32")]),
        np.array([program.input("run", "u32")]),
        *(np.array(program.input(name, kind)) for name, kind in (("step", "u64"), ("t", "f64"), ("size", "f64"))),
    ]
    names = np.concatenate([leaf.ravel() for leaf in before])
    cuts, none = np.cumsum([leaf.size for leaf in before])[:-1], program.const(0.0, "f64")
    while True:
        now = np.where(zero, none, names)
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(np.split(now, cuts), before, strict=True)]
        after = walk.call(places, [*arrays, *shaped, *keys])
        flat = np.concatenate([leaf.ravel() for leaf in after])
        if not (wrong := zero & (flat != none)).any():
            break
        zero = zero & ~wrong
    stop = None if stops is None else int(walk.call(stops, [*arrays, *after, *remembered])[0])
    results = [
        *now.tolist(),
        *flat.tolist(),
        *(int(p) for leaf in remembered for p in leaf.ravel()),
        *([] if stop is None else [stop]),
    ]
    written, moved = lowered(program, results)
    move = lambda array: tuple(moved[place] for place in array)
    given = frozenset(place for place, node in enumerate(written.nodes) if node.op == "input")
    kept = move([int(p) for leaf in remembered for p in leaf.ravel()])
    return Replica(written, given, move(now.tolist()), move(flat.tolist()), kept, None if stop is None else moved[stop])


def _traced(numbers: Numbers, state: PyTree, memory: PyTree) -> tuple[Any, Any]:
    """The jaxprs of a step, and of whether the run stops after it."""

    def fixed(arrays) -> tuple[Steps, Ending]:
        rest = iter(arrays)
        return jax.tree.unflatten(numbers.tree, [next(rest) if leaf is None else _value(leaf) for leaf in numbers.others])

    def step(arrays, state, seed, run, number, t, size):
        process, _ = fixed(arrays)
        drawn = process.draw(Stream(seed, run, number, 1))
        state = jax.tree.map(lambda leaf: leaf[..., None], state)
        after = process.step(state, jax.tree.map(lambda leaf: leaf[0], drawn), Moment(t, size))
        return jax.tree.map(lambda leaf: leaf[..., 0], after)

    def stops(arrays, state, memory):
        process, until = fixed(arrays)
        stats = process.statistics(jax.tree.map(lambda leaf: leaf[..., None], state))
        return until.stop_runs(process.problem, stats, jax.tree.map(lambda leaf: leaf[None], memory))[0]

    like = lambda tree: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    word = lambda *shape: jax.ShapeDtypeStruct(shape, np.uint32)
    real = jax.ShapeDtypeStruct((), np.float64)
    arrays, state = like(numbers.arrays), like(state)
    moved = jax.make_jaxpr(step)(arrays, state, word(2), word(1), jax.ShapeDtypeStruct((), np.uint64), real, real)
    if fixed(numbers.arrays)[1] is None:
        return moved, None
    return moved, jax.make_jaxpr(stops)(arrays, state, like(memory))


class _Frozen:
    """An array of whole numbers as part of a key."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.key = (np.asarray(array).dtype.str, np.shape(array), np.asarray(array).tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _hashable(leaf: Any) -> Any:
    return _Frozen(leaf) if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) else leaf


def _value(leaf: Any) -> Any:
    return leaf.array if isinstance(leaf, _Frozen) else leaf
