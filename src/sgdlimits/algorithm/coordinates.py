r"""Algorithms that treat each coordinate by itself: sign SGD and Adam.

They single out the axes of R^d, so that overlaps alone do not determine what happens next: the same overlaps belong to weights
that are spread over all coordinates and to weights that sit on one. There is no exact chain. But for diffuse weights, all of
whose coordinates are of order :math:`1/\sqrt d`, the overlaps close as d grows: given the fields, the coordinates of the inputs
are independent normal numbers, and what a function of each coordinate does is what its linear part and a noise of the remaining
variance do. `limit` is that algorithm.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Annotated, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Algorithm, Descent
from sgdlimits.checks import OverTime, number
from sgdlimits.domain import Positive, checked
from sgdlimits.errors import BadInput
from sgdlimits.expectation.gaussian.base import square_root
from sgdlimits.statistics.trees import as_floats

Arrays = Mapping[str, Float[Array, "p d"]]


class Coordinatewise(Descent):
    """An algorithm on the coordinates of weights in R^d, with diffuse fixed directions. `SGD(d)` follows it, not the chain."""

    coordinates: ClassVar[Mapping[str, float]] = {}
    """What is remembered of each coordinate of each unit, and what it begins at."""

    def __check_init__(self) -> None:
        if self.sphere or self.trains_second:
            raise BadInput(f"{type(self).__name__} trains the first layer, off the sphere. Leave out sphere and lr_second.")

    def step(self, now):
        raise BadInput(
            f"{type(self).__name__} treats coordinates one by one, so the overlaps are no Markov chain: no Chain(d). "
            "Use SGD(d), or ODE() and SDE(d) for diffuse weights."
        )

    @abc.abstractmethod
    def move(self, kept: Arrays, slope: Float[Array, "p d"], per: float) -> tuple[Float[Array, "p d"], Arrays]:
        """The step from the mean gradient of the batch, to be added to the weights, and what is remembered next."""


@checked
class SignSGD(Coordinatewise):
    r"""Sign SGD: each coordinate moves by the sign of its gradient.

    :math:`u \leftarrow u - \frac{\text{lr}}d\,\text{sign}(g)`, with the mean gradient g of the batch.

    Parameters
    ----------
    lr : learning rate
    ridge, batch : as for `OnePassSGD`; the ridge is decoupled

    Notes
    -----
    As d grows, with :math:`\rho_{jl}` the correlation of the gradients of two units over the batch, a step is
    :math:`\sqrt{2/\pi}` times the gradient over its norm, and noise of covariance
    :math:`\frac2\pi(\arcsin\rho - \rho)`. Coordinates must be diffuse: random starts are.
    """

    def move(self, kept, slope, per):
        return -self.lr * inv_d * jnp.sign(slope), kept

    @property
    def limit(self) -> Algorithm:
        return DiffuseSign(self.lr, ridge=self.ridge, batch=self.batch)


class DiffuseSign(Descent):
    """What `SignSGD` becomes for diffuse weights."""

    uses_gram: ClassVar[bool] = True
    uses_noise: ClassVar[bool] = True

    def step(self, now):
        slope = now.gradient()
        gram = slope.spread()
        norm = jnp.sqrt(jnp.diagonal(gram))
        inverse = jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0)
        rho = jnp.clip(gram * inverse[:, None] * inverse, -1.0, 1.0)
        along = slope.times(np.sqrt(2 / np.pi) * inverse, 0.0)
        rest = now.noise().mixed(square_root(2 / np.pi * (_arcsine(rho) - rho)))
        return {"student": now.student * (1 - self.lr * self.ridge * now.inv_d) - self.lr * (along + rest)}


def _arcsine(rho: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """The arcsine, with the slope zero at 1 and -1, where correlations stay: those of one sample, or of a unit with itself."""
    inside = jnp.abs(rho) < 1 - 1e-12
    return jnp.where(inside, jnp.arcsin(jnp.where(inside, rho, 0.0)), jnp.sign(rho) * np.pi / 2)


@checked
class Adam(Coordinatewise):
    r"""Adam: each coordinate has its own scale, a mean of its squared gradients.

    .. math:: m \leftarrow \beta_1 m + (1-\beta_1)\, g, \qquad
              s \leftarrow s + \frac{\text{rate}\,b}d\,(g^2 - s), \qquad
              u \leftarrow u - \frac{\text{lr}}d\,\frac m{\sqrt s},

    coordinate by coordinate, with the mean gradient g of the batch of b samples: :math:`\beta_2 = 1 - \text{rate}\,b/d`. There
    is no correction of the bias and no :math:`\epsilon`, both of which optax and PyTorch have.

    Parameters
    ----------
    lr : learning rate
    beta : :math:`\beta_1`, from 0 to below 1
    rate : how fast s forgets, in the time t: a fixed :math:`\beta_2` remembers too few samples for d coordinates
    begin : what s begins at, in the place of a correction of its bias
    ridge, batch : as for `OnePassSGD`; the ridge is decoupled, as in AdamW

    Notes
    -----
    As d grows, s is one number for each unit, :math:`\dot s_j = \text{rate}\,(\sigma^2 E[G_j^2]/b - s_j)`, and the weights
    follow SGD at the rates :math:`\text{lr}/\sqrt{s_j}`.
    """

    beta: Annotated[Float[Array, ""] | float, OverTime(number(at_least=0, below=1))] = eqx.field(
        converter=as_floats, default=0.9
    )
    rate: Positive = eqx.field(converter=as_floats, default=1.0, kw_only=True)
    begin: Positive = eqx.field(static=True, converter=float, default=1.0, kw_only=True)

    @property
    def coordinates(self) -> Mapping[str, float]:  # type: ignore[override]
        """What is remembered of each coordinate, and what it begins at."""
        return {"mean": 0.0, "square": self.begin}

    def move(self, kept, slope, per):
        mean = self.beta * kept["mean"] + (1 - self.beta) * slope
        square = kept["square"] + self.rate * self.batch * inv_d * (slope**2 - kept["square"])
        return -self.lr * inv_d * mean / jnp.sqrt(square), {"mean": mean, "square": square}

    @property
    def limit(self) -> Algorithm:
        return DiffuseAdam(self.lr, self.rate, self.begin, ridge=self.ridge, batch=self.batch)


class DiffuseAdam(Descent):
    """What `Adam` becomes for diffuse weights: `square` is one number for each unit."""

    rate: Float[Array, ""] | float = eqx.field(converter=as_floats, default=1.0)
    begin: float = eqx.field(static=True, converter=float, default=1.0)

    uses_gram: ClassVar[bool] = True

    @property
    def numbers(self) -> Mapping[str, tuple[float]]:  # type: ignore[override]
        """Numbers that are remembered, and what they begin at."""
        return {"square": (self.begin,)}

    def step(self, now):
        slope, square = now.gradient(), now["square"]
        square = square + self.rate * self.batch * now.inv_d * (jnp.diagonal(slope.spread()) - square)
        return {
            "student": now.student * (1 - self.lr * self.ridge * now.inv_d) - slope.times(self.lr / jnp.sqrt(square), 0.0),
            "square": square,
        }
