"""The directions behind the statistics, which starts are drawn for."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float


class InitialWeights(eqx.Module):
    """The law of the weights a paper starts from: `RandomInit` follows it.

    Parameters
    ----------
    scale : standard deviation of sqrt(d) times a weight, or the norm where `unit` holds
    unit : whether every direction is scaled to that norm
    second : value of each entry of the second layer, or its mean where `second_spread` is not zero
    second_spread : standard deviation of each entry of the second layer
    """

    scale: Float[Array, ""] | float = 1.0
    unit: bool = eqx.field(static=True, default=False)
    second: float = eqx.field(static=True, default=1.0)
    second_spread: float = eqx.field(static=True, default=0.0)


class Directions(NamedTuple):
    """How many directions are trained, the Gram matrix of the fixed ones, and the law of the trained ones at the start."""

    width: int
    gram: Float[Array, "k k"] | Float[np.ndarray, "k k"]
    initial: InitialWeights

    @property
    def fixed(self) -> int:
        """k, the number of fixed directions."""
        return self.gram.shape[0]
