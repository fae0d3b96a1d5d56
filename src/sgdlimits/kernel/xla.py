"""Kernel `xla`: the steps of any process, compiled by XLA. It is the reference against which the other kernels are tested."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, PyTree

from sgdlimits.jaxtools import jit_bound, map_groups
from sgdlimits.kernel.base import MAX_COORDINATE, Carry, Kernel, ProcessLike, StepRange, StepTime, StopCondition
from sgdlimits.kernel.random import Stream


class XLA(Kernel):
    """Kernel that makes steps with XLA in blocks, for all runs at once or for one group of runs after another."""

    name = "xla"

    def __init__(self, process: ProcessLike, until: StopCondition | None, single: bool = False) -> None:
        self.call = jit_bound(_advance_groups, process, until, single, fast_compile=process.fast_compile)
        self.recompiles = process.group_size is None

    def advance(self, carry: Carry, seed: Any, runs: Any, span: StepRange) -> Carry:
        return jax.block_until_ready(self.call(carry, seed, runs, span, np.array(len(runs))))


def _advance_groups(
    process: ProcessLike, until: StopCondition | None, single: bool, carry: Carry, seed, runs, span: StepRange, wanted
) -> Carry:
    """Advance all runs at once, or one group of runs after another; groups whose runs have all ended are skipped."""

    def advance_group(part: tuple[Carry, Array]) -> Carry:
        """Advance one group of runs."""
        some, indices = part
        # The number of steps is a traced value: a group that has ended makes none, without another compilation.
        steps = span.steps if process.group_size is None else jnp.where(some.moving.any(), span.steps, 0)
        return _advance_runs(process, until, single, some, seed, indices, span._replace(steps=steps))

    return map_groups(advance_group, process.group_size, wanted, (carry, runs))


def _advance_runs(
    process: ProcessLike, until: StopCondition | None, single: bool, carry: Carry, seed, runs, span: StepRange
) -> Carry:
    """Advance runs in blocks of steps: draw the random variates of a block, make its steps, and check for divergence."""

    def step(carry: Carry, variates, number) -> Carry:
        """Make one step of all runs, and check the stop condition."""
        # Times are multiples of the step and not sums of steps, whose rounding errors would add up.
        now = StepTime(span.t + (number - span.first_step) * span.size, span.size)
        state = process.step(carry.state, variates, now)
        if until is None:
            return eqx.tree_at(lambda c: c.state, carry, state)
        state = _select_runs(process, carry.moving, state, carry.state)
        after = jnp.broadcast_to(now.t + now.size, carry.moving.shape)
        hit = carry.moving & until.stop_runs(process.problem, process.statistics(state), carry.memory, after)
        end = jnp.where(hit, number + 1, carry.end)
        return Carry(state, carry.moving & ~hit, carry.stopped | hit, end, carry.memory)

    every = jnp.maximum(1, jnp.minimum(process.block, process.check_interval)).astype(int)

    def draw(first, count) -> PyTree:
        """Draw the random variates of `count` steps from step `first_step` on."""
        t = span.t + (first - span.first_step + jnp.arange(count)) * span.size
        return process.draw(Stream(seed, runs, first.astype(jnp.uint64), count, single=single, t=t))

    # Groups have few runs: their variates are drawn step by step, and only for the steps that are left.
    each = process.group_size is not None

    def draw_block(first, steps, before: PyTree) -> PyTree:
        """Return the random variates of a block of steps; those of the previous block, `before`, may be overwritten."""
        put = lambda j, kept: jax.tree.map(lambda old, new: old.at[j].set(new[0]), kept, draw(first + j, 1))
        return lax.fori_loop(0, steps, put, before) if each else draw(first, process.block)

    def advance_block(index, both: tuple[Carry, PyTree]) -> tuple[Carry, PyTree]:
        """Make the steps of one block."""
        begin = index * process.block
        steps = jnp.minimum(process.block, span.steps - begin)
        variates = draw_block(span.first_step + begin, steps, both[1])
        one = lambda j, c: step(c, jax.tree.map(lambda leaf: leaf[j], variates), span.first_step + begin + j)

        def advance_part(i, carry: Carry) -> Carry:
            """Make the steps between two checks for divergence."""
            after = lax.fori_loop(i * every, jnp.minimum((i + 1) * every, steps), one, carry)
            bounded = _is_bounded(process, after.state)
            # A run that diverges keeps its state at the beginning of this part, the last one known to be finite.
            broken = carry.moving & ~bounded
            return Carry(
                state=_select_runs(process, carry.moving & bounded, after.state, carry.state),
                moving=after.moving & bounded,
                stopped=after.stopped & ~broken,
                end=jnp.where(broken, span.first_step + begin + i * every, after.end),
                memory=carry.memory,
            )

        # The array of variates is carried from block to block, where it is overwritten.
        return lax.fori_loop(0, -(-steps // every), advance_part, both[0]), variates if each else ()

    shapes = jax.eval_shape(lambda: draw(span.first_step, process.block)) if each else ()
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.fori_loop(0, -(-span.steps // process.block), advance_block, (carry, blank))[0]


def _is_bounded(process: ProcessLike, state: PyTree) -> Bool[Array, " runs"]:
    """Return for each run whether all its coordinates are finite and at most `MAX_COORDINATE` in size."""

    def is_within_bound(leaf):
        """Return for each run whether the entries of one array of the state are bounded."""
        rows = jnp.moveaxis(leaf, process.runs_axis, 0).reshape(leaf.shape[process.runs_axis], -1)
        return (jnp.abs(rows) <= MAX_COORDINATE).all(1)  # false for NaN

    return jnp.stack([is_within_bound(leaf) for leaf in jax.tree.leaves(state)]).all(0)


def _select_runs(process: ProcessLike, choose: Any, yes: PyTree, no: PyTree) -> PyTree:
    """Select for each run the state in `yes` where `choose` is true, else the state in `no`."""

    def pick(a, b):
        shape = [1] * a.ndim
        shape[process.runs_axis] = -1
        return jnp.where(choose.reshape(shape), a, b)

    return jax.tree.map(pick, yes, no)
