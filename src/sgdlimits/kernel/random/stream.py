"""Streams of random variates that are identified by (seed, run, step, purpose)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32, UInt64

from sgdlimits.kernel.random.philox import Words, philox
from sgdlimits.kernel.random.transform import array_module, marsaglia_tsang, normal_pair, uniform

MAX_NORMALS = 4 * 2**24
"""Maximum number of normal variates for one purpose, run and step: the counter has 2^24 blocks of four."""


class Purpose(IntEnum):
    """Purpose of a random variate; the streams of different purposes are independent."""

    START = 0
    START_CHI = 1
    STEP = 2
    CHI = 3
    CLASS = 4
    NOISE = 5
    INPUT = 6
    START_SECOND = 7
    MASK = 8
    ORDER = 9
    INPUT_NOISE = 10


class Stream(eqx.Module):
    """Source of the random variates of several runs in consecutive steps.

    Arrays have the steps first and the runs last. Each value depends only on the seed, the index of its run, the number of its
    step and the purpose, not on the other runs and steps of the stream.

    >>> import numpy as np
    >>> both = Stream.from_seed(seed=1, runs=[4, 9]).normal(Purpose.STEP, 3)
    >>> alone = Stream.from_seed(seed=1, runs=[9]).normal(Purpose.STEP, 3)
    >>> both.shape, bool(np.all(both[:, :, 1] == alone[:, :, 0]))
    ((1, 3, 2), True)
    """

    seed: UInt32[Array, "2"]
    runs: UInt32[Array, " runs"]
    first: UInt64[Array, ""]
    steps: int = eqx.field(static=True)
    rolled: bool = eqx.field(static=True, default=False)
    single: bool = eqx.field(static=True, default=False)
    """Whether normal variates are computed in single precision, from the same words."""
    t: Float[Array, " steps"] | None = None
    """Time of each step of the stream, in samples per dimension."""

    @classmethod
    def from_seed(cls, seed: int, runs, first: int = 0, steps: int = 1) -> Stream:
        """Return the stream of a 64-bit seed for runs with given indices and `steps` steps from `first` on, drawn by NumPy."""
        words = np.asarray([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
        host = (words, np.asarray(runs, np.uint32), np.asarray(first, np.uint64))
        return cls(*host, steps, rolled=True)  # type: ignore[arg-type]  # NumPy arrays: a stream for a single use is not compiled

    def split_into_samples(self, count: int) -> Stream:
        """Return the stream whose steps are the `count` samples of each step: sample i of step n is its step n count + i."""
        first, steps = self.first * np.uint64(count), self.steps * count
        return Stream(self.seed, self.runs, first, steps, self.rolled, self.single, self.t)

    def select_runs(self, runs: Any) -> Stream:
        """Return the stream of the same steps, for the runs with the indices `runs`."""
        return Stream(self.seed, runs, self.first, self.steps, self.rolled, self.single, self.t)

    def with_steps(self, steps: int) -> Stream:
        """Return the stream of `steps` steps, from the first step of this stream on."""
        return Stream(self.seed, self.runs, self.first, steps, self.rolled, self.single)

    def step(self, i: Array | int) -> Stream:
        """Return the stream of one step, the `i`-th of this stream."""
        t = None if self.t is None else self.t[i][None]
        return Stream(self.seed, self.runs, self.first + jnp.asarray(i).astype(np.uint64), 1, self.rolled, self.single, t)

    def draw_words(self, purpose: Purpose, blocks: int, skip: Array | int = 0, rows: bool = False) -> Words:
        """Draw four arrays of random 32-bit words, with an entry for each step, block and run.

        Each array has shape (steps, blocks, runs), or (steps, runs, blocks) with `rows`; `skip` is the number of the first
        block.
        """
        runs, xp = self.runs.size, array_module(self.runs)
        # One flat array for all of them: compilers vectorise it whatever the sizes of the axes.
        index = xp.arange(self.steps * blocks * runs, dtype=np.uint32)
        step = self.first + (index // np.uint32(blocks * runs)).astype(np.uint64)
        if rows:
            shape, block, run = (self.steps, runs, blocks), index % np.uint32(blocks), xp.repeat(self.runs, blocks)
        else:
            shape, block, run = (self.steps, blocks, runs), index // np.uint32(runs) % np.uint32(blocks), self.runs
        run = xp.tile(run, index.size // run.size)
        # Eight bits for the purpose and 24 for the block.
        label = np.uint32(int(purpose) << 24) | (block + xp.asarray(skip, np.uint32))
        high = (step >> np.uint64(32)).astype(np.uint32)
        key = (xp.full_like(run, self.seed[0]), xp.full_like(run, self.seed[1]))
        words = philox((step.astype(np.uint32), high, run, label), key, rolled=self.rolled and xp is jnp)
        w0, w1, w2, w3 = (word.reshape(shape) for word in words)
        return w0, w1, w2, w3

    def normal(self, purpose: Purpose, count: int) -> Float[Array, "steps count runs"]:
        """Draw standard normal variates, four from each block of random words."""
        return self._draw_normal(purpose, count, rows=False)[:, :count]

    def normal_rows(self, purpose: Purpose, count: int) -> Float[Array, "steps runs count"]:
        """Draw the same variates as `normal`, with the axes of the result in the order steps, runs, variates."""
        return self._draw_normal(purpose, count, rows=True)[:, :, :count]

    def _draw_normal(self, purpose: Purpose, count: int, rows: bool) -> Float[Array, "..."]:
        """Draw normal variates by two Box-Muller transformations per block of four random words."""
        # All words are joined before they are transformed: otherwise the compiler would draw them four times, not twice.
        w0, w1, w2, w3 = self.draw_words(purpose, -(-count // 4), rows=rows)
        join = lambda *parts: array_module(w0).concatenate(parts, axis=2 if rows else 1)
        return join(*normal_pair(join(w0, w2), join(w1, w3), single=self.single))

    def uniform(self, purpose: Purpose, count: int) -> Float[Array, "steps count runs"]:
        """Draw uniform variates in (0, 1], two from each block of random words."""
        w0, w1, w2, w3 = self.draw_words(purpose, -(-count // 2))
        return array_module(w0).concatenate([uniform(w0, w1), uniform(w2, w3)], axis=1)[:, :count]

    def chi_square(self, purpose: Purpose, dof: Float[Array, " count"]) -> Float[Array, "steps count runs"]:
        """Draw exact chi-square variates, one for each entry of `dof`, the degrees of freedom, which are integers from 0 on.

        Two and more degrees of freedom use `marsaglia_tsang`. The few proposals that its bound does not accept are tested
        exactly, and drawn again if they are rejected, one by one. Attempt n at a variate always uses the same words, so that
        no value depends on other runs.
        """
        count, runs, xp = dof.shape[0], self.runs.size, array_module(self.runs)
        dof = xp.asarray(dof, float)[:, None]
        enough = xp.maximum(dof, 2.0)
        z, u = self._draw_attempt(purpose, count, 0)
        value, sure, _ = marsaglia_tsang(z, enough)
        value = xp.where(dof >= 2, value, xp.where(dof == 1, z * z, 0.0))  # one degree of freedom is a square, none is zero
        unsettled = (dof >= 2) & (u >= sure)
        if xp is np:
            return self._settle_on_host(purpose, value, unsettled, enough)

        # On a device the few proposals left are settled one by one in a loop, which is rarely entered: another round for all
        # variates would cost as much as the first.
        def settle_one(carry):
            """Replace the first chi-square proposal that is not yet accepted by an exact variate."""
            value, unsettled, rows = carry
            row = jnp.argmax(rows)
            run = jnp.argmax(unsettled[row])
            exact = self._draw_one_chi_square(purpose, row // count, row % count, run, enough[row % count, 0], count)
            unsettled = unsettled.at[row, run].set(False)
            return value.at[row, run].set(exact), unsettled, rows.at[row].set(unsettled[row].any())

        value, unsettled = value.reshape(-1, runs), unsettled.reshape(-1, runs)
        settled, _, _ = lax.while_loop(lambda carry: carry[2].any(), settle_one, (value, unsettled, unsettled.any(1)))
        return settled.reshape(self.steps, count, runs)

    def _settle_on_host(self, purpose: Purpose, value: Any, unsettled: Any, dof: Any) -> Any:
        """Test the remaining chi-square proposals exactly with NumPy, and redraw the rejected ones until all are accepted."""
        attempt = 0
        while unsettled.any():
            z, u = self._draw_attempt(purpose, dof.shape[0], attempt)
            candidate, _, h = marsaglia_tsang(z, dof)
            accepted = unsettled & (np.log(u) < h)
            value, unsettled, attempt = np.where(accepted, candidate, value), unsettled & ~accepted, attempt + 1
        return value

    def _draw_attempt(
        self, purpose: Purpose, count: int, attempt: Array | int
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Draw the normal and the uniform variate for one attempt at each of several chi-square variates."""
        w0, w1, w2, w3 = self.draw_words(purpose, count, skip=attempt * count)
        return normal_pair(w0, w1, single=self.single)[0], uniform(w2, w3)

    def _draw_one_chi_square(self, purpose: Purpose, step, index, run, dof, count: int) -> Float[Array, ""]:
        """Draw one chi-square variate by rejection; attempt n uses the blocks of random words from n · `count` on."""
        number = self.first + step.astype(jnp.uint64)
        alone = Stream(self.seed, jnp.asarray(self.runs)[run][None], number, 1, rolled=True, single=self.single)

        def attempt(carry):
            _, _, block = carry
            z, u = (number.ravel()[0] for number in alone._draw_attempt(purpose, 1, block))
            value, _, h = marsaglia_tsang(z, dof)
            return value, jnp.log(u) < h, block + jnp.uint32(count)

        first = (jnp.zeros(()), jnp.zeros((), bool), index.astype(jnp.uint32))
        return lax.while_loop(lambda carry: ~carry[1], attempt, first)[0]
