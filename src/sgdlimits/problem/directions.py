"""Trained and fixed directions of a problem, and the law of initial weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.domain import NotNegative, checked
from sgdlimits.errors import BadInput
from sgdlimits.part import Part


@checked
class InitialWeights(Part):
    """The law of the initial weights of a problem, from which `RandomInit` draws.

    Parameters
    ----------
    scale : standard deviation of sqrt(d) times a weight; if `unit` is true, the norm of each direction
    unit : whether each direction is scaled to the norm `scale`
    second : mean of each entry of the second layer
    second_spread : standard deviation of each entry of the second layer

    The second layer consists of the scalars `a`. Other scalars start at the values that the network defines.
    """

    scale: NotNegative = 1.0
    unit: bool = eqx.field(static=True, default=False)
    second: float = eqx.field(static=True, default=1.0)
    second_spread: NotNegative = eqx.field(static=True, default=0.0)


class Directions(NamedTuple):
    """Numbers of trained and fixed directions of a problem, the Gram matrix of the fixed ones, and the law of initial weights.

    Parameters
    ----------
    width : number of trained directions, p
    gram : Gram matrix of the fixed directions
    initial : law of the trained directions at the start
    scalars : initial values of named scalars, for networks with more scalars than a second layer; otherwise None
    trained : names of the scalars that are trained
    sizes : function from d to the number of dimensions of each block of variances, whose axis is the first of `gram`; None for
        inputs without blocks
    """

    width: int
    gram: Float[Array, "*blocks k k"] | Float[np.ndarray, "*blocks k k"]
    initial: InitialWeights
    scalars: dict[str, Any] | None = None
    trained: tuple[str, ...] = ()
    sizes: Callable[[int], tuple[int, ...]] | None = None

    @property
    def fixed(self) -> int:
        """Number of fixed directions of the problem, k."""
        return self.gram.shape[-1]


def check_no_blocks(problem: Any, what: str, remedy: str = "Use ODE(), SDE(d), Chain(d) or SGD(d), or linearise.") -> None:
    """Raise `BadInput` if the inputs of a problem have blocks of variances, which the method named `what` does not support."""
    if problem.directions.sizes is not None:
        raise BadInput(f"{what} does not support inputs with blocks of variances. {remedy}")
