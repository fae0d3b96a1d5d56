"""Evaluation of statistics, risk and observables at saved states, several of them in one compiled call."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from sgdlimits.jaxtools import jit_bound, map_groups
from sgdlimits.level.base import STATES_PER_CALL
from sgdlimits.level.observe import Observables
from sgdlimits.level.process import Process

MAX_WAITING_FLOATS = 2**22
"""Maximum number of floats in the states that wait to be observed together."""


class SavedState(NamedTuple):
    """State of the runs that are still computed at a saved time, and the time of each run: earlier if it has ended."""

    state: PyTree
    t: np.ndarray


class StateObserver:
    """Compiled evaluation of statistics, risk and observables in the states of a batch of runs.

    Parameters
    ----------
    process : the process whose states are observed
    observe : further observables
    runs : number of requested runs; the others of the batch are padding
    like : a state of the batch, for its size
    """

    def __init__(self, process: Process, observe: Observables, runs: int, like: PyTree) -> None:
        floats = sum(leaf.size for leaf in jax.tree.leaves(like))
        self.states_per_call = max(1, min(STATES_PER_CALL, MAX_WAITING_FLOATS // max(1, floats)))
        self.runs = np.array(runs)
        self.call = jit_bound(_observe_states, process, observe, fast_compile=True)

    def observe(self, saved: list[SavedState]) -> list[tuple[PyTree, dict]]:
        """Return statistics and observables of each state, as NumPy arrays."""
        size = self.states_per_call
        return [each for first in range(0, len(saved), size) for each in self._observe_group(saved[first : first + size])]

    def _observe_group(self, saved: list[SavedState]) -> list[tuple[PyTree, dict]]:
        """Return statistics and observables of at most `states_per_call` states."""
        # padded to one size, so that the observables are compiled once
        padded = [*saved, *[saved[-1]] * (self.states_per_call - len(saved))]
        seen = self.call(np.array(len(saved)), *jax.tree.map(_stack_states, *padded), self.runs)
        leaves, tree = jax.tree.flatten(seen)
        return [jax.tree.unflatten(tree, each) for each in zip(*map(np.asarray, leaves), strict=True)][: len(saved)]


def _stack_states(*states: Any) -> Any:
    """Stack one array of several states: on the host if it is a NumPy array, otherwise on its device."""
    return np.stack(states) if isinstance(states[0], np.ndarray) else jnp.stack(states)


def _observe_states(
    process: Process, observe: Observables, count: Array, states: PyTree, t: Array, wanted: Array
) -> tuple[PyTree, dict[str, Array]]:
    """Return statistics, risk and observables of the first `count` of several states of all runs."""
    observe_state = jax.jit(partial(_observe_runs, process, observe), inline=True)  # traced once, for shapes and loop
    state_at = lambda i: jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, 0, keepdims=False), (states, t))
    empty = lambda like: jnp.zeros((t.shape[0], *like.shape), like.dtype)
    zeros = jax.tree.map(empty, jax.eval_shape(lambda: observe_state(*state_at(0), wanted)))

    def store_observed(i, seen):
        return jax.tree.map(lambda leaf, one: leaf.at[i].set(one), seen, observe_state(*state_at(i), wanted))

    # the loop has a traced length: padding states are not computed, and their number compiles nothing
    return lax.fori_loop(0, count, store_observed, zeros)


def _observe_runs(
    process: Process, observe: Observables, state: PyTree, t: Array, wanted: Array
) -> tuple[PyTree, dict[str, Array]]:
    """Return statistics, risk and observables of the states of all runs, each at its own time."""

    def observe_group(both: tuple[PyTree, Array]):
        state, t = both
        stats, problem = process.statistics(state), process.problem
        more = problem.numerics.over_runs(lambda one: problem.at(one[1]).observables(one[0]), (stats, t))
        return stats, {"risk": process.risk(state, stats, t), **more, **observe.evaluate_runs(stats)}

    return map_groups(observe_group, process.group_size, wanted, (state, t))
