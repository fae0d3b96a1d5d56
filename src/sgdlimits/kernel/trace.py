"""Trace the `draw` and `step` of a process, and its stop condition, into the flat program of one replica's step.

The process is traced for one run and one step. Its parameters (learning rates, noise, dimension) are inputs, so that other
values need no other program, except zeros and ones, which simplify it. Entries of the state that are zero in all runs, and that
a step keeps at zero, are constants: the empty half of a triangular matrix costs nothing.
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
from sgdlimits.kernel.compiler.flatten import estimate_operations, lower_elementary
from sgdlimits.kernel.compiler.program import ABSENT_PLACE, Program
from sgdlimits.kernel.compiler.replica import BoundCheck, Replica
from sgdlimits.kernel.compiler.walk import JaxprFlattener
from sgdlimits.kernel.known import pattern_of_equal_values
from sgdlimits.kernel.random import Stream
from sgdlimits.kernel.stopping import DOUBLE_SCALAR, flatten_check

MAX_OPERATIONS = 50_000
"""Maximum number of operations of a flat program; larger ones take longer to compile than they save."""
MAX_ARRAY_SIZE = 4096
"""Maximum size of a parameter array whose entries become inputs of a flat program; programs that read larger arrays are
given up."""


class ParameterArrays(NamedTuple):
    """Arrays and constants of a process and its stop condition, split into parameters (arrays of doubles) and all others.

    `arrays` are the parameters, which are inputs of a program; `others` has all other values of the pytree `tree`, with None in
    the places of `arrays`.
    """

    tree: Any
    others: tuple
    arrays: list[np.ndarray]

    @classmethod
    def from_tree(cls, fixed: PyTree) -> ParameterArrays:
        """Split the values in a process and its stop condition into parameters and all others."""
        leaves, tree = jax.tree.flatten(fixed)
        real = [isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and leaf.dtype == np.float64 for leaf in leaves]
        arrays = [np.asarray(leaf) for leaf, is_real in zip(leaves, real, strict=True) if is_real]
        others = tuple(None if is_real else _wrap_hashable(leaf) for leaf, is_real in zip(leaves, real, strict=True))
        return cls(tree, others, arrays)

    def rebuild(self, arrays: Sequence[Any]) -> PyTree:
        """Rebuild the process and its stop condition with `arrays`, which may be traced, in place of their own parameters."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if leaf is None else _unwrap(leaf) for leaf in self.others])

    @property
    def process(self) -> ParameterArrays:
        """Parameters and constants of the process alone, without its stop condition."""
        tree = self.tree.children()[0]
        others = self.others[: tree.num_leaves]
        return ParameterArrays(tree, others, self.arrays[: others.count(None)])

    @property
    def concatenated(self) -> np.ndarray:
        """Vector of the parameters of the process and of its stop condition, one after another."""
        return np.concatenate([np.zeros(0), *(array.ravel() for array in self.arrays)])

    @property
    def program_key(self) -> tuple:
        """Key of everything that a program depends on: structure, shapes, and which parameters are 0 or 1."""
        plain = tuple(pattern_of_equal_values(array).tobytes() for array in self.arrays)
        return self.tree, self.others, tuple(array.shape for array in self.arrays), plain


def trace_replica(
    parameters: ParameterArrays,
    state: PyTree,
    memory: PyTree,
    zero: np.ndarray,
    single: bool = False,
    can_call_host: bool = True,
) -> Replica:
    """Trace the flat program of one run's step, including the check whether the run stops.

    Parameters
    ----------
    parameters : parameters and other values of the process and its condition
    state, memory : shapes of one run's state and of the memory of the stop condition, without an axis of runs
    zero : mask of the state's coordinates that are zero in all runs
    single : whether normal variates are computed in single precision
    can_call_host : whether the code can call the host, so that a bound may replace the condition
    """
    step, stops, like = _trace_process(parameters, state, memory, single)
    Program(MAX_OPERATIONS).check_size(estimate_operations(step))
    # Coordinates are assumed to stay zero until a step is found to change them. Each attempt has a program of its own, so that
    # nodes written under a wrong assumption leave nothing behind.
    while True:
        program = Program(MAX_OPERATIONS)
        walk = JaxprFlattener(program)
        arrays = _add_parameter_inputs(program, parameters)
        before, remembered = (
            _add_inputs(program, name, jax.tree.leaves(tree)) for name, tree in (("state", state), ("memory", memory))
        )
        names = np.concatenate([leaf.ravel() for leaf in before])
        none = program.const(0.0, "f64")
        now = np.where(zero, none, names)
        cuts = np.cumsum([leaf.size for leaf in before])[:-1]
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(np.split(now, cuts), before, strict=True)]
        after = walk.call(step, [*arrays[: len(parameters.process.arrays)], *shaped, *_add_stream_inputs(program)])
        flat = np.concatenate([leaf.ravel() for leaf in after])
        # A result is zero if simplification made it the one constant zero, so comparing places suffices.
        if not (wrong := zero & (flat != none)).any():
            break
        zero = zero & ~wrong
    check: Any = None
    # The check is traced into the same program, in which it shares the values of the step.
    if stops is not None:
        check = flatten_check(
            walk, parameters, stops, like, [arrays, shaped, remembered], [arrays, after, remembered], can_call_host
        )
    checked = () if check is None else check.coefficient_indices if isinstance(check, BoundCheck) else check
    kept = [int(place) for leaf in remembered for place in leaf.ravel()]
    lowered, place_of = lower_elementary(program, [*now.tolist(), *flat.tolist(), *kept, *checked])
    relocate = lambda places: tuple(place_of[place] for place in places)
    if check is not None:
        check = BoundCheck(relocate(checked)) if isinstance(check, BoundCheck) else type(check)(*relocate(check))
    return Replica(lowered, relocate(now.tolist()), relocate(flat.tolist()), relocate(kept), check)


def _add_stream_inputs(program: Program) -> list[np.ndarray]:
    """Add inputs for seed, run, step, time and length of the step to a program, and return their node indices."""
    word = lambda *names: np.array([program.input(name, "u32") for name in names])
    single = (("step", "u64"), ("t", "f64"), ("size", "f64"))
    return [word("seed", "seed_high"), word("run"), *(np.array(program.input(name, kind)) for name, kind in single)]


def _add_parameter_inputs(program: Program, parameters: ParameterArrays) -> list[np.ndarray]:
    """Add an input for each parameter, or a constant where it is 0 or 1, and return arrays of their node indices.

    Entries of arrays that are too large have the index `ABSENT_PLACE`.
    """
    places = _add_inputs(program, "number", parameters.arrays)
    for at, array in zip(places, parameters.arrays, strict=True):
        for value in (0.0, 1.0):
            at[array == value] = program.const(value, "f64")
    return places


def _add_inputs(program: Program, name: str, like: Sequence[Any]) -> list[np.ndarray]:
    """Add inputs named (name, i) to a program, and return arrays of their node indices with the shapes of `like`."""
    places, first = [], 0
    for leaf in like:
        count = int(np.prod(leaf.shape, dtype=int))
        small = count <= MAX_ARRAY_SIZE
        row = [program.input((name, i)) for i in range(first, first + count)] if small else [ABSENT_PLACE] * count
        places.append(np.array(row, int).reshape(leaf.shape))
        first += count
    return places


def _trace_process(
    parameters: ParameterArrays, state: PyTree, memory: PyTree, single: bool
) -> tuple[Any, Callable | None, tuple]:
    """Return the jaxpr of a step, the stop condition as a function of (parameters, state, memory, time), and their shapes.

    The function is None without a condition.
    """

    def stops(arrays, state, memory, t):
        """Return whether one run stops, by its stop condition."""
        process, until = parameters.rebuild(arrays)
        stats = process.statistics(jax.tree.map(lambda leaf: leaf[..., None], state))  # a batch of one run
        return until.stop_runs(process.problem, stats, jax.tree.map(lambda leaf: leaf[None], memory), jnp.asarray(t)[None])[0]

    leaves, tree = jax.tree.flatten(_shapes_of(state))
    alone = parameters.process
    step = _step_jaxpr(alone.tree, alone.others, tuple(_shapes_of(alone.arrays)), tuple(leaves), tree, single)
    watched = parameters.rebuild(parameters.arrays)[1] is not None
    return step, stops if watched else None, (_shapes_of(parameters.arrays), _shapes_of(state), _shapes_of(memory))


@lru_cache(maxsize=64)
def _step_jaxpr(tree: Any, others: tuple, arrays: tuple, leaves: tuple, state: Any, single: bool) -> Any:
    """Return the jaxpr of a process's step, cached independently of the stop condition."""
    parameters = ParameterArrays(tree, others, [])

    def step(arrays, state, seed, run, number, t, size):
        """Draw the random variates of one step of one run, and make the step."""
        process = parameters.rebuild(arrays)
        drawn = process.draw(Stream(seed, run, number, 1, single=single, t=t[None]))
        state = jax.tree.map(lambda leaf: leaf[..., None], state)
        after = process.step(state, jax.tree.map(lambda leaf: leaf[0], drawn), StepTime(t, size))
        return jax.tree.map(lambda leaf: leaf[..., 0], after)

    word = lambda *shape: jax.ShapeDtypeStruct(shape, np.uint32)
    given = (word(2), word(1), jax.ShapeDtypeStruct((), np.uint64), DOUBLE_SCALAR, DOUBLE_SCALAR)
    return jax.make_jaxpr(step)(list(arrays), jax.tree.unflatten(state, leaves), *given)


def _shapes_of(tree: PyTree) -> PyTree:
    """Return a pytree with the shape and type of each array of `tree` in the array's place."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


class _HashableArray:
    """Array of integers or bools that compares and hashes by its values, so that it can be part of a cache key."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.key = (np.asarray(array).dtype.str, np.shape(array), np.asarray(array).tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HashableArray) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _wrap_hashable(leaf: Any) -> Any:
    """Wrap an array so that it can be part of a cache key; return other values unchanged."""
    return _HashableArray(leaf) if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) else leaf


def _unwrap(leaf: Any) -> Any:
    """Return the value that `_wrap_hashable` wrapped."""
    return leaf.array if isinstance(leaf, _HashableArray) else leaf
