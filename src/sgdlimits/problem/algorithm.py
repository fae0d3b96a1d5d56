"""How weights move: one-pass SGD and its parameters."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.errors import check_count, check_number
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import number_array


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
        self.lr = number_array(lr)
        self.lr_second = None if lr_second is None else number_array(lr_second)
        self.ridge = number_array(ridge)
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

    def changes(
        self, sigma: Float[Array, ""], stats: Overlaps, sums: Moments, total: Float[Array, "*batch"] | float = 1.0
    ) -> tuple[Overlaps, Overlaps]:
        """(population, corrector): what weighted sums of one-sample products do to the statistics, off the sphere.

        One sample's products give d times its increment, expectations the drift, and random combinations the noise of the
        SDE. `total` is the sum of the weights; trailing axes broadcast.
        """
        lr, lr_second, decay, cross = self.lr_sample, self.lr_second_sample, self.ridge * total, sums.gradient_field
        M = -lr * (sums.gradient_fixed + decay * stats.M)
        Q = -lr * (cross + jnp.swapaxes(cross, 0, 1) + 2 * decay * stats.Q)
        still = jnp.zeros_like(stats.a)
        a = still if lr_second is None else -lr_second * (sums.gradient_second + decay * stats.a)
        spread = (lr * sigma) ** 2 * sums.gradient_gradient
        return Overlaps(a, M, Q), Overlaps(still, jnp.zeros_like(M), spread)

    def hold(self, stats: Overlaps, change: Overlaps) -> Overlaps:
        """A change of the statistics without what it does to the norms, on the sphere; the change itself otherwise."""
        if not self.sphere:
            return change
        norm = jnp.einsum("jj...->j...", change.Q) / 2
        M = change.M - stats.M * norm[:, None]
        return Overlaps(change.a, M, change.Q - stats.Q * (norm[:, None] + norm[None]))
