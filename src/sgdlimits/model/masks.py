r"""Dropout of units: inputs that come with a mask, drawn anew for each sample.

Each unit is kept with probability 1 - rate, independently, and then counts :math:`1/(1 - \text{rate})` times. The mask of a
sample is a number below :math:`2^p` whose bits say which units are kept. It travels with the class, as
:math:`c + C\,\text{mask}` for C classes, so that levels draw it, and averages go over it, as they do for classes.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.inputs.base import Inputs
from sgdlimits.kernel.random import Purpose, Stream

MAX_MASKED_WIDTH = 24
"""Units whose masks fit into a 32-bit integer beside the class."""


def kept_units(mask: Int[Array, "*batch"], width: int) -> Float[Array, "p *batch"]:
    """Return 1 for each unit that a mask keeps and 0 for the others."""
    return jnp.stack([(mask // (1 << j)) % 2 for j in range(width)]).astype(float)


def all_masks(width: int) -> Float[np.ndarray, "masks p"]:
    """Return every mask as a row of ones and zeros, in the order of their numbers."""
    return np.asarray((np.arange(1 << width)[:, None] >> np.arange(width)) & 1, float)


def mask_weights(rate: Any, width: int) -> Float[Array, " masks"]:
    """Return the probability of each mask."""
    kept = all_masks(width).sum(1)
    return (1 - rate) ** kept * rate ** (width - kept)


class MaskedInputs(Inputs):
    """Inputs of samples with masks of units: classes are numbered with the masks, and everything else is that of the base.

    Parameters
    ----------
    base : the inputs
    rate : probability that a unit is dropped
    width : p, the number of units
    """

    base: Inputs
    rate: Any
    width: int = eqx.field(static=True)

    @property
    def classes(self):
        return self.base.classes << self.width

    @property
    def centred(self):
        return self.base.centred

    @property
    def on_means(self):
        return self.base.on_means

    @property
    def squared_length(self):
        return self.base.squared_length

    @property
    def outcomes(self):
        return (mask_weights(self.rate, self.width)[:, None] * self.base.outcomes).ravel()

    def check(self, fixed):
        self.base.check(fixed)

    def law(self, stats, gram):
        return self.base.law(stats, gram)

    def law_of_factor(self, F, gram):
        return self.base.law_of_factor(F, gram)

    def draw_class(self, stream, samples):
        return self._with_mask(self.base.draw_class(stream, samples), stream)

    def from_normal(self, points, c, B):
        return self.base.from_normal(points, c % self.base.classes, B)

    def draw(self, stream, sizes, d):
        x = self.base.draw(stream, sizes, d)
        return x._replace(c=self._with_mask(x.c, stream))

    def place(self, numbers, B):
        return self.base.place(numbers._replace(c=numbers.c % self.base.classes), B)._replace(c=numbers.c)

    def vectors(self, stream, sizes, d, B, moved):
        x, z, c = self.base.vectors(stream, sizes, d, B, moved)
        return x, z, self._with_mask(c, stream)

    def _with_mask(self, c: Int[Array, "steps samples runs"], stream: Stream) -> Int[Array, "steps samples runs"]:
        """Draw a mask for each sample and number classes and masks together."""
        steps, samples, runs = c.shape
        u = stream.per_sample(samples).uniform(Purpose.MASK, self.width).reshape(steps, samples, self.width, runs)
        bits = (u > self.rate).astype(np.int32) * np.asarray(1 << np.arange(self.width), np.int32)[:, None]
        return c + self.base.classes * bits.sum(2, dtype=np.int32)
