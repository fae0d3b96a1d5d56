"""What learns: a two-layer network."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float

from sgdlimits.errors import check_count
from sgdlimits.model.activation import Activation, as_activation


class TwoLayer(eqx.Module):
    r"""The network :math:`f = \frac1p\sum_j a_j\, s(\lambda_j)` with p units, or their sum.

    Parameters
    ----------
    width : p, the number of units
    activation : s, by name, as a JAX function or as an `Activation`
    mean : whether f is the mean over the units; their sum otherwise

    >>> import jax.numpy as jnp
    >>> float(TwoLayer(2, "square")(jnp.array([1.0, 2.0]), a=jnp.ones(2)))
    2.5
    """

    width: int = eqx.field(static=True)
    activation: Activation
    mean: bool = eqx.field(static=True)

    def __init__(self, width: int, activation: str | Callable | Activation = "square", mean: bool = True) -> None:
        self.width = check_count("width", width)
        self.activation = as_activation(activation)
        self.mean = bool(mean)

    @property
    def factor(self) -> float:
        """What stands before the sum over units: 1/p or 1."""
        return 1 / self.width if self.mean else 1.0

    def __call__(self, fields: Float[Array, "p *batch"], a: Float[Array, "p *batch"]) -> Float[Array, "*batch"]:
        return self.factor * (a * self.activation(fields)).sum(0)
