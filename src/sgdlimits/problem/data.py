"""Where inputs come from."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Data(eqx.Module):
    r"""Isotropic Gaussian classes, :math:`x = \sum_r b_r^{(c)} e_r + \sigma g` with class c of probability :math:`\pi_c`.

    Parameters
    ----------
    weights : the probabilities, shape (classes,)
    means : the coefficients b of each class's mean along the fixed directions, shape (classes, k)
    sigma : standard deviation of every coordinate around the mean
    centred : whether there is one class only, with mean zero
    """

    weights: Float[Array, " classes"]
    means: Float[Array, "classes k"]
    sigma: Float[Array, ""]
    centred: bool = eqx.field(static=True, default=False)

    @property
    def classes(self) -> int:
        return self.weights.shape[0]

    def centre(self, B: Float[Array, "k k"], c: Array) -> Float[Array, "k *batch"]:
        """Frame coordinates of the mean of class `c`."""
        return jnp.moveaxis((self.means @ B)[c], -1, 0)


def gaussian(teachers: int) -> Data:
    """Standard normal inputs: one class, no mean, sigma = 1."""
    return Data(jnp.ones(1), jnp.zeros((1, teachers)), jnp.ones(()), centred=True)
