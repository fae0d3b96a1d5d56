"""The kernel `xla`: a process as it is written, compiled by XLA. It takes any process, and the others are compared with it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, PyTree

from sgdlimits.kernel.base import LIMIT, Carry, Ending, Kernel, Moment, Span, Steps
from sgdlimits.kernel.compiled import compiled
from sgdlimits.random import Stream


class XLA(Kernel):
    """Blocks of steps of all runs at once."""

    name = "xla"
    costly = True

    def __init__(self, process: Steps, until: Ending | None, single: bool = False) -> None:
        self.call = compiled(_steps, process, until, single, quick=process.small)

    def advance(self, carry: Carry, seed: Any, runs: Any, span: Span) -> Carry:
        return jax.block_until_ready(self.call(carry, seed, runs, span))


def _steps(process: Steps, until: Ending | None, single: bool, carry: Carry, seed, runs, span: Span) -> Carry:
    """Blocks of steps: draw the numbers of a block, make its steps, and look for divergence at least once."""

    def step(carry: Carry, numbers, number) -> Carry:
        now = Moment(span.t + (number - span.first) * span.size, span.size)
        state = process.step(carry.state, numbers, now)
        if until is None:
            return eqx.tree_at(lambda c: c.state, carry, state)
        state = _select(process, carry.moving, state, carry.state)
        hit = carry.moving & until.stop_runs(process.problem, process.statistics(state), carry.memory)
        end = jnp.where(hit, number + 1, carry.end)
        return Carry(state, carry.moving & ~hit, carry.stopped | hit, end, carry.memory)

    every = jnp.maximum(1, jnp.minimum(process.block, process.patience)).astype(int)

    def block(index, carry: Carry) -> Carry:
        begin = index * process.block
        numbers = process.draw(Stream(seed, runs, (span.first + begin).astype(jnp.uint64), process.block, single=single))
        steps = jnp.minimum(process.block, span.steps - begin)
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

        return lax.fori_loop(0, -(-steps // every), part, carry)

    return lax.fori_loop(0, -(-span.steps // process.block), block, carry)


def _bounded(process: Steps, state: PyTree) -> Bool[Array, " runs"]:
    def inside(leaf):
        rows = jnp.moveaxis(leaf, process.runs_axis, 0).reshape(leaf.shape[process.runs_axis], -1)
        return (jnp.abs(rows) <= LIMIT).all(1)

    return jnp.stack([inside(leaf) for leaf in jax.tree.leaves(state)]).all(0)


def _select(process: Steps, choose: Any, yes: PyTree, no: PyTree) -> PyTree:
    def pick(a, b):
        shape = [1] * a.ndim
        shape[process.runs_axis] = -1
        return jnp.where(choose.reshape(shape), a, b)

    return jax.tree.map(pick, yes, no)
