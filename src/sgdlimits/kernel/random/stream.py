"""Random numbers drawn by saying what they are for: (seed, run, step, purpose)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32, UInt64

from sgdlimits.kernel.random.philox import Words, philox
from sgdlimits.kernel.random.transform import marsaglia_tsang, normal_pair, array_module, uniform

MAX_NORMALS = 4 * 2**24
"""A purpose has 2^24 blocks of four numbers for each run and step."""


class Purpose(IntEnum):
    """What a number is for. One value, one independent stream."""

    START = 0
    START_CHI = 1
    STEP = 2
    CHI = 3
    CLASS = 4
    NOISE = 5
    INPUT = 6
    START_SECOND = 7
    MASK = 8


class Stream(eqx.Module):
    """The random numbers of consecutive steps of several runs.

    Arrays come with the steps first and the runs last. Their values depend on the seed, the run's own number and the step's
    own number alone, whatever runs and steps are drawn beside them.

    >>> import numpy as np
    >>> both = Stream.of(seed=1, runs=[4, 9]).normal(Purpose.STEP, 3)
    >>> alone = Stream.of(seed=1, runs=[9]).normal(Purpose.STEP, 3)
    >>> both.shape, bool(np.all(both[:, :, 1] == alone[:, :, 0]))
    ((1, 3, 2), True)
    """

    seed: UInt32[Array, "2"]
    runs: UInt32[Array, " runs"]
    first: UInt64[Array, ""]
    steps: int = eqx.field(static=True)
    rolled: bool = eqx.field(static=True, default=False)
    single: bool = eqx.field(static=True, default=False)
    """Whether normal numbers are made from the same words in single precision."""
    cycle: int | None = eqx.field(static=True, default=None)
    """After so many steps, or samples of `each`, the same numbers come again."""
    t: Float[Array, " steps"] | None = None
    """The time of each step, or of each that samples of `each` belong to."""

    @classmethod
    def of(cls, seed: int, runs, first: int = 0, steps: int = 1) -> Stream:
        """The stream of a 64-bit `seed`, the numbers of its `runs`, and `steps` steps from `first` on, for a single use."""
        words = np.asarray([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
        host = (words, np.asarray(runs, np.uint32), np.asarray(first, np.uint64))
        return cls(*host, steps, rolled=True)  # type: ignore[arg-type]  # on the host, where its numbers are drawn

    def each(self, count: int) -> Stream:
        """The numbers of `count` samples for each step: sample i of step n is number n count + i."""
        first, steps = self.first * np.uint64(count), self.steps * count
        return Stream(self.seed, self.runs, first, steps, self.rolled, self.single, self.cycle, self.t)

    def cycled(self, count: int | None) -> Stream:
        """The same numbers again and again, those of the first `count` steps."""
        return Stream(self.seed, self.runs, self.first, self.steps, self.rolled, self.single, count, self.t)

    def step(self, i: Array | int) -> Stream:
        """The numbers of one of the steps."""
        t = None if self.t is None else self.t[i][None]
        return Stream(
            self.seed, self.runs, self.first + jnp.asarray(i).astype(np.uint64), 1, self.rolled, self.single, self.cycle, t
        )

    def words(self, purpose: Purpose, blocks: int, skip: Array | int = 0, rows: bool = False) -> Words:
        """Four words for each step, block and run, each of shape (steps, blocks, runs), or (steps, runs, blocks) as `rows`.

        Computed as one flat array: that is what compilers vectorise.
        """
        runs, xp = self.runs.size, array_module(self.runs)
        index = xp.arange(self.steps * blocks * runs, dtype=np.uint32)
        step = self.first + (index // np.uint32(blocks * runs)).astype(np.uint64)
        step = step if self.cycle is None else step % np.uint64(self.cycle)
        if rows:
            shape, block, run = (self.steps, runs, blocks), index % np.uint32(blocks), xp.repeat(self.runs, blocks)
        else:
            shape, block, run = (self.steps, blocks, runs), index // np.uint32(runs) % np.uint32(blocks), self.runs
        run = xp.tile(run, index.size // run.size)
        label = np.uint32(int(purpose) << 24) | (block + xp.asarray(skip, np.uint32))
        high = (step >> np.uint64(32)).astype(np.uint32)
        key = (xp.full_like(run, self.seed[0]), xp.full_like(run, self.seed[1]))
        words = philox((step.astype(np.uint32), high, run, label), key, rolled=self.rolled and xp is jnp)
        w0, w1, w2, w3 = (word.reshape(shape) for word in words)
        return w0, w1, w2, w3

    def normal(self, purpose: Purpose, count: int) -> Float[Array, "steps count runs"]:
        """Standard normal numbers, four from a block."""
        return self._normal(purpose, count, rows=False)[:, :count]

    def normal_rows(self, purpose: Purpose, count: int) -> Float[Array, "steps runs count"]:
        """The numbers of `normal`, each run's in one row."""
        return self._normal(purpose, count, rows=True)[:, :, :count]

    def _normal(self, purpose: Purpose, count: int, rows: bool) -> Float[Array, "..."]:
        """All words are joined before they are transformed, so that the compiler draws them twice, not four times."""
        w0, w1, w2, w3 = self.words(purpose, -(-count // 4), rows=rows)
        join = lambda *parts: array_module(w0).concatenate(parts, axis=2 if rows else 1)
        return join(*normal_pair(join(w0, w2), join(w1, w3), single=self.single))

    def uniform(self, purpose: Purpose, count: int) -> Float[Array, "steps count runs"]:
        """Uniform numbers in (0, 1], two from a block."""
        w0, w1, w2, w3 = self.words(purpose, -(-count // 2))
        return array_module(w0).concatenate([uniform(w0, w1), uniform(w2, w3)], axis=1)[:, :count]

    def chi_square(self, purpose: Purpose, dof: Float[Array, " count"]) -> Float[Array, "steps count runs"]:
        """Exact chi-square numbers for each whole number of degrees of freedom in `dof`, from 0 to any size.

        Two degrees and more by `marsaglia_tsang`. The few proposals that its bound leaves unsettled are tested exactly, and
        made again, one by one. Attempt n of a number always uses the same words: no value depends on the runs beside it.
        """
        count, runs, xp = dof.shape[0], self.runs.size, array_module(self.runs)
        dof = xp.asarray(dof, float)[:, None]
        enough = xp.maximum(dof, 2.0)
        z, u = self._attempt(purpose, count, 0)
        value, sure, _ = marsaglia_tsang(z, enough)
        value = xp.where(dof >= 2, value, xp.where(dof == 1, z * z, 0.0))
        unsettled = (dof >= 2) & (u >= sure)
        if xp is np:
            return self._settled(purpose, value, unsettled, enough)

        def settle_one(carry):
            value, unsettled, rows = carry
            row = jnp.argmax(rows)
            run = jnp.argmax(unsettled[row])
            exact = self._one_chi_square(purpose, row // count, row % count, run, enough[row % count, 0], count)
            unsettled = unsettled.at[row, run].set(False)
            return value.at[row, run].set(exact), unsettled, rows.at[row].set(unsettled[row].any())

        value, unsettled = value.reshape(-1, runs), unsettled.reshape(-1, runs)
        settled, _, _ = lax.while_loop(lambda carry: carry[2].any(), settle_one, (value, unsettled, unsettled.any(1)))
        return settled.reshape(self.steps, count, runs)

    def _settled(self, purpose: Purpose, value: Any, unsettled: Any, dof: Any) -> Any:
        """On the host: rounds of exact tests for all, until none is left."""
        attempt = 0
        while unsettled.any():
            z, u = self._attempt(purpose, dof.shape[0], attempt)
            candidate, _, h = marsaglia_tsang(z, dof)
            accepted = unsettled & (np.log(u) < h)
            value, unsettled, attempt = np.where(accepted, candidate, value), unsettled & ~accepted, attempt + 1
        return value

    def _attempt(self, purpose: Purpose, count: int, attempt: Array | int) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """The normal and the uniform number of an attempt at chi-square numbers."""
        w0, w1, w2, w3 = self.words(purpose, count, skip=attempt * count)
        return normal_pair(w0, w1, single=self.single)[0], uniform(w2, w3)

    def _one_chi_square(self, purpose: Purpose, step, index, run, dof, count: int) -> Float[Array, ""]:
        """The first accepted proposal of one number; attempt n uses the blocks from n `count` on."""
        number = self.first + step.astype(jnp.uint64)
        alone = Stream(self.seed, jnp.asarray(self.runs)[run][None], number, 1, rolled=True, single=self.single)

        def attempt(carry):
            _, _, block = carry
            z, u = (number.ravel()[0] for number in alone._attempt(purpose, 1, block))
            value, _, h = marsaglia_tsang(z, dof)
            return value, jnp.log(u) < h, block + jnp.uint32(count)

        first = (jnp.zeros(()), jnp.zeros((), bool), index.astype(jnp.uint32))
        return lax.while_loop(lambda carry: ~carry[1], attempt, first)[0]
