"""The directions behind the statistics, which starts are drawn for."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.domain import NotNegative, Positive, checked
from sgdlimits.part import Part


@checked
class InitialWeights(Part):
    """The law of the weights a paper starts from: `RandomInit` follows it.

    Parameters
    ----------
    scale : standard deviation of sqrt(d) times a weight, or the norm where `unit` holds
    unit : whether every direction is scaled to that norm
    second : value of each entry of the second layer, or its mean where `second_spread` is not zero
    second_spread : standard deviation of each entry of the second layer

    The second layer are the scalars `a`. Other scalars start from the values that the network has for them.
    """

    scale: Positive = 1.0
    unit: bool = eqx.field(static=True, default=False)
    second: float = eqx.field(static=True, default=1.0)
    second_spread: NotNegative = eqx.field(static=True, default=0.0)


class Directions(NamedTuple):
    """How many directions are trained, the Gram matrix of the fixed ones, and the law of the trained ones at the start.

    `scalars` are the values that the scalars start from, by name, where they are more than a second layer, and `trained` the
    names of those that are trained.
    """

    width: int
    gram: Float[Array, "k k"] | Float[np.ndarray, "k k"]
    initial: InitialWeights
    scalars: dict[str, Any] | None = None
    trained: tuple[str, ...] = ()

    @property
    def fixed(self) -> int:
        """k, the number of fixed directions."""
        return self.gram.shape[0]
