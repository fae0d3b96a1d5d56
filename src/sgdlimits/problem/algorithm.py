"""How weights move: one-pass SGD and its parameters."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.errors import check_count, check_number


class OnePassSGD(eqx.Module):
    r"""One step for each batch of b fresh samples, one by default, with G = dl/d lambda:

    .. math:: u_j \leftarrow (1 - \text{lr}\,\text{ridge}/d)\, u_j - \frac{\text{lr}}{d}\,\frac1b\sum_i G_{ij} x_i, \qquad
              a \leftarrow a - \frac{\text{lr}_2}{d}\Big(\frac1b\sum_i \partial_a l_i + \text{ridge}\, a\Big),

    then, on the sphere, :math:`u_j \leftarrow u_j/|u_j|`. A step takes b/d of the time t, which counts samples.

    Parameters
    ----------
    lr : learning rate of the first layer
    lr_second : learning rate of the second layer; None keeps it fixed
    ridge : strength of the ridge penalty on both layers
    sphere : whether each u_j is held at norm 1
    batch : b, the samples of a step, over which the gradient is averaged

    Notes
    -----
    As d grows, batches are steps of one sample at the rates lr/b and lr_second/b: those of `lr_sample` and `lr_second_sample`,
    which drift, covariance and `rate` are made of.
    """

    lr: Float[Array, ""]
    lr_second: Float[Array, ""] | None
    ridge: Float[Array, ""]
    sphere: bool = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=1)

    def __init__(
        self, lr: float, lr_second: float | None = None, ridge: float = 0.0, sphere: bool = False, batch: int = 1
    ) -> None:
        check_number("lr", lr, above=0)
        if lr_second is not None:
            check_number("lr_second", lr_second, above=0)
        check_number("ridge", ridge, at_least=0)
        self.lr = jnp.asarray(lr, float)
        self.lr_second = None if lr_second is None else jnp.asarray(lr_second, float)
        self.ridge = jnp.asarray(ridge, float)
        self.sphere = bool(sphere)
        self.batch = check_count("batch", batch)

    @property
    def trains_second(self) -> bool:
        return self.lr_second is not None

    @property
    def lr_sample(self) -> Float[Array, ""]:
        """The learning rate of the first layer for one sample."""
        return self.lr / self.batch

    @property
    def lr_second_sample(self) -> Float[Array, ""] | None:
        """The learning rate of the second layer for one sample, or None where it is fixed."""
        return None if self.lr_second is None else self.lr_second / self.batch
