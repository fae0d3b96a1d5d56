r"""Dropout of units: inputs with a random mask of the units, drawn independently for each sample.

Each unit is kept with probability 1 - rate, independently, and is then rescaled by :math:`1/(1 - \text{rate})`. The mask of a
sample is an integer below :math:`2^p`; bit j is 1 if unit j is kept. The integer :math:`c + C\,\text{mask}` encodes class c of
C and the mask together, so that masks are drawn and averaged over in the same way as classes.
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
"""Maximum number of units with dropout: a 32-bit integer encodes the mask and the class."""


def decode_masks(mask: Int[Array, "*batch"], width: int) -> Float[Array, "p *batch"]:
    """Decode integer masks to arrays with 1 for each unit that is kept and 0 for each dropped unit."""
    return jnp.stack([(mask // (1 << j)) % 2 for j in range(width)]).astype(float)


def enumerate_masks(width: int) -> Float[np.ndarray, "masks p"]:
    """Return the 2^p masks of p units as rows of ones (kept) and zeros; row m is the mask encoded by the integer m."""
    return np.asarray((np.arange(1 << width)[:, None] >> np.arange(width)) & 1, float)


def mask_probabilities(rate: Any, width: int) -> Float[Array, " masks"]:
    """Return the probability of each of the 2^p masks of p units, each of which is dropped with probability `rate`."""
    kept = enumerate_masks(width).sum(1)
    return (1 - rate) ** kept * rate ** (width - kept)


class MaskedInputs(Inputs):
    """Inputs with random masks of units, whose class numbers encode the class and the mask.

    Parameters
    ----------
    base : the inputs without masks
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
    def has_inputs_at_means(self):
        return self.base.has_inputs_at_means

    @property
    def blocks(self):
        return self.base.blocks

    @property
    def variance_by_class(self):
        return self.base.variance_by_class

    @property
    def has_classes_apart(self):
        return self.base.has_classes_apart

    def block_sizes(self, d):
        return self.base.block_sizes(d)

    @property
    def squared_length(self):
        return self.base.squared_length

    @property
    def class_probabilities(self):
        return (mask_probabilities(self.rate, self.width)[:, None] * self.base.class_probabilities).ravel()

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

    def to_frame_coordinates(self, numbers, B):
        return self.base.to_frame_coordinates(numbers._replace(c=numbers.c % self.base.classes), B)._replace(c=numbers.c)

    def draw_vectors(self, stream, sizes, d, B, moved):
        x, z, c = self.base.draw_vectors(stream, sizes, d, B, moved)
        return x, z, self._with_mask(c, stream)

    def _with_mask(self, c: Int[Array, "steps samples runs"], stream: Stream) -> Int[Array, "steps samples runs"]:
        """Draw a mask for each sample and encode it with the sample's class c."""
        steps, samples, runs = c.shape
        u = stream.split_into_samples(samples).uniform(Purpose.MASK, self.width).reshape(steps, samples, self.width, runs)
        bits = (u > self.rate).astype(np.int32) * np.asarray(1 << np.arange(self.width), np.int32)[:, None]
        return c + self.base.classes * bits.sum(2, dtype=np.int32)
