"""Trace a process: its own `draw` and `step`, and the condition that ends a run, as the flat program of one replica's step.

The process is traced for one run and one step. Its numbers (learning rates, noise, dimension) are inputs, so that another
value needs no other program, but for zeros and ones, which simplify it. Entries of the state that are zero in all runs, and
that a step keeps at zero, are constants: the empty half of a triangular matrix costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sgdlimits.kernel.base import StepTime
from sgdlimits.kernel.compiler.flatten import about, lowered
from sgdlimits.kernel.compiler.program import ABSENT, Program
from sgdlimits.kernel.compiler.replica import ByBound, Replica
from sgdlimits.kernel.compiler.walk import Flattening
from sgdlimits.kernel.known import pattern
from sgdlimits.kernel.random import Stream
from sgdlimits.kernel.stopping import REAL, flatten_check

MOST_NODES = 50_000
"""Programs of more operations take longer to compile than they save."""
MOST_NUMBERS = 4096
"""Larger arrays of a problem are no numbers of a step."""


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

    def values(self, arrays: Sequence[Any]) -> PyTree:
        """The process and its condition, with these arrays in place of their own."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if leaf is None else _value(leaf) for leaf in self.others])

    @property
    def process(self) -> Numbers:
        """Those of the process alone."""
        tree = self.tree.children()[0]
        others = self.others[: tree.num_leaves]
        return Numbers(tree, others, self.arrays[: others.count(None)])

    @property
    def flat(self) -> np.ndarray:
        """All doubles in a row."""
        return np.concatenate([np.zeros(0), *(array.ravel() for array in self.arrays)])

    @property
    def form(self) -> tuple:
        """All that a program depends on: shapes, and the values that simplify it."""
        plain = tuple(pattern(array).tobytes() for array in self.arrays)
        return self.tree, self.others, tuple(array.shape for array in self.arrays), plain


def replica_of(
    numbers: Numbers, state: PyTree, memory: PyTree, zero: np.ndarray, single: bool = False, asks: bool = True
) -> Replica:
    """The program of a process and its condition, for states and memories like these of one run (shapes without runs).

    Code that `asks` the host may have a bound in place of a condition.
    """
    step, stops, like = _traced(numbers, state, memory, single)
    Program(MOST_NODES).check_size(about(step))
    while True:  # each time a program of its own, so that what was assumed in vain leaves nothing behind
        program = Program(MOST_NODES)
        walk, arrays = Flattening(program), _given(program, numbers)
        before, remembered = (
            _inputs(program, name, jax.tree.leaves(tree)) for name, tree in (("state", state), ("memory", memory))
        )
        names, none = np.concatenate([leaf.ravel() for leaf in before]), program.const(0.0, "f64")
        now, cuts = np.where(zero, none, names), np.cumsum([leaf.size for leaf in before])[:-1]
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(np.split(now, cuts), before, strict=True)]
        after = walk.call(step, [*arrays[: len(numbers.process.arrays)], *shaped, *_keys(program)])
        flat = np.concatenate([leaf.ravel() for leaf in after])
        if not (wrong := zero & (flat != none)).any():
            break
        zero = zero & ~wrong
    check: Any = None
    if stops is not None:
        check = flatten_check(walk, numbers, stops, like, [arrays, shaped, remembered], [arrays, after, remembered], asks)
    checked = () if check is None else check.row if isinstance(check, ByBound) else check
    kept = [int(place) for leaf in remembered for place in leaf.ravel()]
    written, moved = lowered(program, [*now.tolist(), *flat.tolist(), *kept, *checked])
    move = lambda places: tuple(moved[place] for place in places)
    if check is not None:
        check = ByBound(move(checked)) if isinstance(check, ByBound) else type(check)(*move(check))
    return Replica(written, move(now.tolist()), move(flat.tolist()), move(kept), check)


def _keys(program: Program) -> list[np.ndarray]:
    """What else a step is given: the seed, the run, the number of the step, when it is made and how long it is."""
    word = lambda *names: np.array([program.input(name, "u32") for name in names])
    single = (("step", "u64"), ("t", "f64"), ("size", "f64"))
    return [word("seed", "seed_high"), word("run"), *(np.array(program.input(name, kind)) for name, kind in single)]


def _given(program: Program, numbers: Numbers) -> list[np.ndarray]:
    """Inputs for the numbers of a problem, and constants for zeros and ones. Large arrays have no places."""
    places = _inputs(program, "number", numbers.arrays)
    for at, array in zip(places, numbers.arrays, strict=True):
        for value in (0.0, 1.0):
            at[array == value] = program.const(value, "f64")
    return places


def _inputs(program: Program, name: str, like: Sequence[Any]) -> list[np.ndarray]:
    """Arrays of inputs, numbered through."""
    places, first = [], 0
    for leaf in like:
        count = int(np.prod(leaf.shape, dtype=int))
        small = count <= MOST_NUMBERS
        row = [program.input((name, i)) for i in range(first, first + count)] if small else [ABSENT] * count
        places.append(np.array(row, int).reshape(leaf.shape))
        first += count
    return places


def _traced(numbers: Numbers, state: PyTree, memory: PyTree, single: bool) -> tuple[Any, Callable | None, tuple]:
    """The jaxpr of a step; whether a run stops, as a function of numbers, state, memory and time; and what these are like."""

    def stops(arrays, state, memory, t):
        process, until = numbers.values(arrays)
        stats = process.statistics(jax.tree.map(lambda leaf: leaf[..., None], state))
        return until.stop_runs(process.problem, stats, jax.tree.map(lambda leaf: leaf[None], memory), jnp.asarray(t)[None])[0]

    leaves, tree = jax.tree.flatten(_like(state))
    alone = numbers.process
    step = _step(alone.tree, alone.others, tuple(_like(alone.arrays)), tuple(leaves), tree, single)
    watched = numbers.values(numbers.arrays)[1] is not None
    return step, stops if watched else None, (_like(numbers.arrays), _like(state), _like(memory))


@lru_cache(maxsize=64)
def _step(tree: Any, others: tuple, arrays: tuple, leaves: tuple, state: Any, single: bool) -> Any:
    """The jaxpr of a step: the same whatever ends the runs, whose conditions are many where processes are few."""
    numbers = Numbers(tree, others, [])

    def step(arrays, state, seed, run, number, t, size):
        process = numbers.values(arrays)
        drawn = process.draw(Stream(seed, run, number, 1, single=single, t=t[None]))
        state = jax.tree.map(lambda leaf: leaf[..., None], state)
        after = process.step(state, jax.tree.map(lambda leaf: leaf[0], drawn), StepTime(t, size))
        return jax.tree.map(lambda leaf: leaf[..., 0], after)

    word = lambda *shape: jax.ShapeDtypeStruct(shape, np.uint32)
    given = (word(2), word(1), jax.ShapeDtypeStruct((), np.uint64), REAL, REAL)
    return jax.make_jaxpr(step)(list(arrays), jax.tree.unflatten(state, leaves), *given)


def _like(tree: PyTree) -> PyTree:
    """The shapes of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


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
