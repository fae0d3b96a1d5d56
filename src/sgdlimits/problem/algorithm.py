"""How weights move: one-pass SGD and its parameters."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.errors import check_number


class OnePassSGD(eqx.Module):
    r"""One step for each fresh sample, with G = dl/d lambda:

    .. math:: u_j \leftarrow (1 - \text{lr}\,\text{ridge}/d)\, u_j - (\text{lr}/d)\, G_j x, \qquad
              a \leftarrow a - (\text{lr}_2/d)(\partial_a l + \text{ridge}\, a),

    then, on the sphere, :math:`u_j \leftarrow u_j/|u_j|`.

    Parameters
    ----------
    lr : learning rate of the first layer
    lr_second : learning rate of the second layer; None keeps it fixed
    ridge : strength of the ridge penalty on both layers
    sphere : whether each u_j is held at norm 1
    """

    lr: Float[Array, ""]
    lr_second: Float[Array, ""] | None
    ridge: Float[Array, ""]
    sphere: bool = eqx.field(static=True)

    def __init__(self, lr: float, lr_second: float | None = None, ridge: float = 0.0, sphere: bool = False) -> None:
        check_number("lr", lr, above=0)
        if lr_second is not None:
            check_number("lr_second", lr_second, above=0)
        check_number("ridge", ridge, at_least=0)
        self.lr = jnp.asarray(lr, float)
        self.lr_second = None if lr_second is None else jnp.asarray(lr_second, float)
        self.ridge = jnp.asarray(ridge, float)
        self.sphere = bool(sphere)

    @property
    def trains_second(self) -> bool:
        return self.lr_second is not None
