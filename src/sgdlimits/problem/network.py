"""What learns: a two-layer network."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float

from sgdlimits.errors import check_count
from sgdlimits.problem.activation import Activation, as_activation


class TwoLayer(eqx.Module):
    r"""The network :math:`f = \frac1p\sum_j a_j\, s(\lambda_j)` with p units.

    >>> import jax.numpy as jnp
    >>> float(TwoLayer(2, "square")(jnp.array([1.0, 2.0]), a=jnp.ones(2)))
    2.5
    """

    width: int = eqx.field(static=True)
    activation: Activation

    def __init__(self, width: int, activation: str | Callable | Activation = "square") -> None:
        self.width = check_count("width", width)
        self.activation = as_activation(activation)

    def __call__(self, fields: Float[Array, "p *batch"], a: Float[Array, "p *batch"]) -> Float[Array, "*batch"]:
        return (a * self.activation(fields)).mean(0)
