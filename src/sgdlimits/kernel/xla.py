"""The kernel `xla`: a process as it is written, compiled by XLA. It takes any process, and the others are compared with it."""

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
    """Blocks of steps of all runs at once, or of each group of runs in turn."""

    name = "xla"

    def __init__(self, process: ProcessLike, until: StopCondition | None, single: bool = False) -> None:
        self.call = jit_bound(_grouped, process, until, single, fast_compile=process.fast_compile)
        self.recompiles = process.group_size is None

    def advance(self, carry: Carry, seed: Any, runs: Any, span: StepRange) -> Carry:
        return jax.block_until_ready(self.call(carry, seed, runs, span, np.array(len(runs))))


def _grouped(
    process: ProcessLike, until: StopCondition | None, single: bool, carry: Carry, seed, runs, span: StepRange, wanted
) -> Carry:
    """Make steps of all runs, or of each group in turn whose runs are not all ended."""

    def group(part: tuple[Carry, Array]) -> Carry:
        some, numbers = part
        steps = span.steps if process.group_size is None else jnp.where(some.moving.any(), span.steps, 0)
        return _steps(process, until, single, some, seed, numbers, span._replace(steps=steps))

    return map_groups(group, process.group_size, wanted, (carry, runs))


def _steps(process: ProcessLike, until: StopCondition | None, single: bool, carry: Carry, seed, runs, span: StepRange) -> Carry:
    """Blocks of steps: draw the numbers of a block, make its steps, and look for divergence at least once."""

    def step(carry: Carry, numbers, number) -> Carry:
        now = StepTime(span.t + (number - span.first) * span.size, span.size)
        state = process.step(carry.state, numbers, now)
        if until is None:
            return eqx.tree_at(lambda c: c.state, carry, state)
        state = _select(process, carry.moving, state, carry.state)
        after = jnp.broadcast_to(now.t + now.size, carry.moving.shape)
        hit = carry.moving & until.stop_runs(process.problem, process.statistics(state), carry.memory, after)
        end = jnp.where(hit, number + 1, carry.end)
        return Carry(state, carry.moving & ~hit, carry.stopped | hit, end, carry.memory)

    every = jnp.maximum(1, jnp.minimum(process.block, process.check_interval)).astype(int)

    def draw(first, count) -> PyTree:
        t = span.t + (first - span.first + jnp.arange(count)) * span.size
        return process.draw(Stream(seed, runs, first.astype(jnp.uint64), count, single=single, t=t))

    each = process.group_size is not None  # so few runs that their numbers are drawn step by step, and no more than are needed

    def drawn(first, steps, before: PyTree) -> PyTree:
        put = lambda j, kept: jax.tree.map(lambda old, new: old.at[j].set(new[0]), kept, draw(first + j, 1))
        return lax.fori_loop(0, steps, put, before) if each else draw(first, process.block)

    def block(index, both: tuple[Carry, PyTree]) -> tuple[Carry, PyTree]:
        begin = index * process.block
        steps = jnp.minimum(process.block, span.steps - begin)
        numbers = drawn(span.first + begin, steps, both[1])
        one = lambda j, c: step(c, jax.tree.map(lambda leaf: leaf[j], numbers), span.first + begin + j)

        def part(i, carry: Carry) -> Carry:
            after = lax.fori_loop(i * every, jnp.minimum((i + 1) * every, steps), one, carry)
            bounded = _bounded(process, after.state)
            broken = carry.moving & ~bounded
            return Carry(
                state=_select(process, carry.moving & bounded, after.state, carry.state),
                moving=after.moving & bounded,
                stopped=after.stopped & ~broken,
                end=jnp.where(broken, span.first + begin + i * every, after.end),
                memory=carry.memory,
            )

        return lax.fori_loop(0, -(-steps // every), part, both[0]), numbers if each else ()

    shapes = jax.eval_shape(lambda: draw(span.first, process.block)) if each else ()
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.fori_loop(0, -(-span.steps // process.block), block, (carry, blank))[0]


def _bounded(process: ProcessLike, state: PyTree) -> Bool[Array, " runs"]:
    def inside(leaf):
        rows = jnp.moveaxis(leaf, process.runs_axis, 0).reshape(leaf.shape[process.runs_axis], -1)
        return (jnp.abs(rows) <= MAX_COORDINATE).all(1)

    return jnp.stack([inside(leaf) for leaf in jax.tree.leaves(state)]).all(0)


def _select(process: ProcessLike, choose: Any, yes: PyTree, no: PyTree) -> PyTree:
    def pick(a, b):
        shape = [1] * a.ndim
        shape[process.runs_axis] = -1
        return jnp.where(choose.reshape(shape), a, b)

    return jax.tree.map(pick, yes, no)
