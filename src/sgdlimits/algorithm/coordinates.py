r"""Algorithms that treat coordinates one by one: sign SGD and Adam.

Such algorithms single out the axes of R^d, so that overlaps alone do not determine the next step: the same overlaps belong to
weights spread over all coordinates and to weights concentrated on one. There is no exact chain. But for diffuse weights, all of
whose coordinates are of order :math:`1/\sqrt d`, the overlaps close as d grows: given the fields, the coordinates of the inputs
are independent Gaussians, and a function of each coordinate acts through its linear part and through noise of the remaining
variance. `limit` is the algorithm with this linear part and this noise.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Algorithm, Descent, StepRequirements
from sgdlimits.domain import MomentumInTime, Positive, PositiveInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.expectation.gaussian.base import square_root
from sgdlimits.statistics.trees import as_floats

CoordinateArrays = Mapping[str, Float[Array, "p d"]]


class CoordinatewiseAlgorithm(Descent):
    """Base class of algorithms that treat coordinates one by one: SGD(d) simulates these, but Chain(d) cannot."""

    coordinates: ClassVar[Mapping[str, float]] = {}
    """Initial values of the stored arrays with one number for each coordinate of each unit, by name."""
    needs: ClassVar[StepRequirements | None] = StepRequirements(gram=False, noise=False)

    def __check_init__(self) -> None:
        if self.sphere or self.trains_second:
            raise BadInput(
                f"{type(self).__name__} trains the first layer only, without normalisation. Leave out sphere and lr_second."
            )

    def step(self, now):
        raise BadInput(
            f"{type(self).__name__} treats coordinates one by one, so the overlaps are no Markov chain, as Chain(d) needs. "
            "Use SGD(d), or ODE() and SDE(d) for diffuse weights."
        )

    @abc.abstractmethod
    def update_coordinates(
        self, kept: CoordinateArrays, slope: Float[Array, "p d"], inv_d: float
    ) -> tuple[Float[Array, "p d"], CoordinateArrays]:
        """Return the change of the weights in one step, and the new values of the arrays stored for each coordinate.

        Parameters
        ----------
        kept : stored arrays with one number for each coordinate of each unit, by name
        slope : mean gradient of the batch
        inv_d : 1/d
        """


@checked
class SignSGD(CoordinatewiseAlgorithm):
    r"""Sign SGD: each coordinate changes by the sign of its gradient.

    :math:`u \leftarrow u - \frac{\text{lr}}d\,\text{sign}(g)`, with the mean gradient g of the batch.

    Parameters
    ----------
    lr : learning rate
    ridge, batch : as for `OnePassSGD`; the ridge is decoupled: it is a decay of the weights, not part of the gradient

    Notes
    -----
    As d grows, a step is :math:`\sqrt{2/\pi}` times the gradient over its norm, plus noise of covariance
    :math:`\frac2\pi(\arcsin\rho - \rho)`, where :math:`\rho_{jl}` is the correlation of the gradients of units j and l over the
    batch. This holds for diffuse weights, such as those of random starts.
    """

    def update_coordinates(self, kept, slope, inv_d):
        return -self.lr * inv_d * jnp.sign(slope), kept

    @property
    def limit(self) -> Algorithm:
        return SignSGDLimit(self.lr, ridge=self.ridge, batch=self.batch)


class SignSGDLimit(Descent):
    """Limit of `SignSGD` as d grows, for diffuse weights, of which no single coordinate is large."""

    def step(self, now):
        slope = now.gradient()
        gram = slope.scaled_gram()
        # a unit without gradient does not move
        norm = jnp.sqrt(jnp.diagonal(gram))
        inverse = jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0)
        rho = jnp.clip(gram * inverse[:, None] * inverse, -1.0, 1.0)
        along = slope.times(np.sqrt(2 / np.pi) * inverse, 0.0)
        rest = now.noise().left_multiply(square_root(2 / np.pi * (_arcsine(rho) - rho)))
        return {"student": now.student * (1 - self.lr * self.ridge * now.inv_d) - self.lr * (along + rest)}


def _arcsine(rho: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Return the arcsine of correlations, with derivative zero at correlations of 1 and -1.

    Correlations of one sample, or of a unit with itself, stay at 1 or -1, where the derivative of arcsin is infinite.
    """
    # the argument is replaced where it is not used, since the derivative of the unused branch would be NaN
    inside = jnp.abs(rho) < 1 - 1e-12
    return jnp.where(inside, jnp.arcsin(jnp.where(inside, rho, 0.0)), jnp.sign(rho) * np.pi / 2)


@checked
class Adam(CoordinatewiseAlgorithm):
    r"""Adam: each coordinate has its own scale, a mean of its squared gradients.

    .. math:: m \leftarrow \beta_1 m + (1-\beta_1)\, g, \qquad
              s \leftarrow s + \frac{\text{rate}\,b}d\,(g^2 - s), \qquad
              u \leftarrow u - \frac{\text{lr}}d\,\frac m{\sqrt s},

    coordinate by coordinate, with the mean gradient g of the batch of b samples and weights u. The usual :math:`\beta_2` is
    :math:`1 - \text{rate}\,b/d`. Unlike in optax and PyTorch, there is no bias correction and no :math:`\epsilon`.

    Parameters
    ----------
    lr : learning rate
    beta : :math:`\beta_1`, from 0 to below 1
    rate : decay rate of s per unit of t: a fixed :math:`\beta_2` would average over too few samples for d coordinates
    begin : initial value of s, instead of a bias correction
    ridge, batch : as for `OnePassSGD`; the ridge is decoupled, as in AdamW

    Notes
    -----
    As d grows, s is one number for each unit j, :math:`\dot s_j = \text{rate}\,(\sigma^2 E[G_j^2]/b - s_j)`, with the variance
    :math:`\sigma^2` of the inputs and the derivative :math:`G_j` of the loss in the unit's field. The weights follow SGD at the
    rates :math:`\text{lr}/\sqrt{s_j}`.
    """

    beta: MomentumInTime = eqx.field(converter=as_floats, default=0.9)
    rate: PositiveInTime = eqx.field(converter=as_floats, default=1.0, kw_only=True)
    begin: Positive = eqx.field(static=True, converter=float, default=1.0, kw_only=True)

    @property
    def coordinates(self) -> Mapping[str, float]:  # type: ignore[override]
        """Initial values of the stored arrays with one number for each coordinate of each unit, by name."""
        return {"mean": 0.0, "square": self.begin}

    def update_coordinates(self, kept, slope, inv_d):
        mean = self.beta * kept["mean"] + (1 - self.beta) * slope
        square = kept["square"] + self.rate * self.batch * inv_d * (slope**2 - kept["square"])
        return -self.lr * inv_d * mean / jnp.sqrt(square), {"mean": mean, "square": square}

    @property
    def limit(self) -> Algorithm:
        return AdamLimit(self.lr, self.rate, self.begin, ridge=self.ridge, batch=self.batch)


class AdamLimit(Descent):
    """Limit of `Adam` as d grows, for diffuse weights, with one mean squared gradient for each unit."""

    rate: Float[Array, ""] | float = eqx.field(converter=as_floats, default=1.0)
    begin: float = eqx.field(static=True, converter=float, default=1.0)

    @property
    def numbers(self) -> Mapping[str, tuple[float]]:  # type: ignore[override]
        """Initial values of the stored scalars, by name, in a tuple since there is one scalar for each unit."""
        return {"square": (self.begin,)}

    def step(self, now):
        slope, square = now.gradient(), now["square"]
        square = square + self.rate * self.batch * now.inv_d * (jnp.diagonal(slope.scaled_gram()) - square)
        return {
            "student": now.student * (1 - self.lr * self.ridge * now.inv_d) - slope.times(self.lr / jnp.sqrt(square), 0.0),
            "square": square,
        }
