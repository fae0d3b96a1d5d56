"""Spiked matrices and tensors: estimation of a direction from noisy samples of its tensor power."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import integer
from sgdlimits.domain import NotNegativeInTime, PositiveInTime, Rate, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import at_start
from sgdlimits.problem.base import Problem
from sgdlimits.problem.coordinates import Coordinates
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.trees import as_floats


@checked
class SpikedTensor(Problem):
    r"""Estimation of a unit vector v by an estimate x, from samples :math:`Y = \lambda v^{\otimes k} + W` by one-pass SGD.

    W is a k-tensor of independent standard normal entries, and the loss
    :math:`|Y - x^{\otimes k}|^2 + \frac{\text{ridge}}2|x|^2` has the gradient

    .. math:: (2kR^{2k-2} + \text{ridge})\,x - 2k\lambda m^{k-1} v - 2\xi, \qquad
              \xi \sim N\big(0,\; kR^{2k-2} I + k(k-1)R^{2k-4}\, xx^\top\big),

    where :math:`R = |x|`, and :math:`\xi` is the sum, over the k axes of W, of the contraction of W with x along all other
    axes. So :math:`m = x\cdot v` and :math:`r_\perp^2 = |x - mv|^2` are a Markov chain, and as :math:`d\to\infty`

    .. math::
        \dot m &= \text{lr}\,\big(2k\lambda m^{k-1} - 2kR^{2k-2}m - \text{ridge}\, m\big), \\
        \dot r_\perp^2 &= -\text{lr}\,\big(4kR^{2k-2} + 2\,\text{ridge}\big)\, r_\perp^2 + 4k\,\text{lr}^2 R^{2k-2},

    where the last term, quadratic in the learning rate, is the corrector.

    Parameters
    ----------
    order : k, at least 2; 2 for matrices
    snr : :math:`\lambda`, the signal-to-noise ratio
    lr : learning rate; the step size is lr/d
    ridge : strength of the ridge penalty
    direct : whether `SGD` draws complete tensors, instead of the gradient noise :math:`\xi`, which gives the same law
    name : name of the problem in tables and files

    >>> problem = SpikedTensor(order=3, snr=4.0)
    >>> [part.m.item() for part in problem.drift_parts(Spike(m=0.5, r2=1.0))]
    [1.3125, 0.0]
    """

    order: Annotated[int, integer(at_least=2)] = eqx.field(static=True, default=2)
    snr: PositiveInTime = eqx.field(converter=as_floats, default=1.2)
    lr: Rate = eqx.field(converter=as_floats, default=1.0)
    ridge: NotNegativeInTime = eqx.field(converter=as_floats, default=0.0)
    direct: bool = eqx.field(static=True, converter=bool, default=False, kw_only=True)
    name: str = eqx.field(static=True, default="spiked_tensor", kw_only=True)

    def gradient_coefficients(self, stats: Spike) -> tuple[Float[Array, "*runs"], Float[Array, "*runs"]]:
        """Return (inward, along): the population gradient at the estimate x of the spike v is inward x - along v."""
        k = self.order
        return 2 * k * stats.squared_norm ** (k - 1) + self.ridge, 2 * k * self.snr * stats.m ** (k - 1)

    def _drift_parts(self, stats: Spike) -> tuple[Spike, Spike]:
        inward, along = self.gradient_coefficients(stats)
        population = Spike(self.lr * (along - inward * stats.m), -2 * self.lr * inward * stats.r2)
        corrector = 4 * self.order * self.lr**2 * stats.squared_norm ** (self.order - 1)
        return population, Spike(jnp.zeros_like(stats.m), corrector)

    def _covariance(self, stats: Spike) -> Float[Array, "2 2"]:
        r"""Return the noise covariance of (m, r2): the covariance of d times their increment in one step.

        The random part of that increment is :math:`2\,\text{lr}\,(\xi_v,\, 2r_\perp\xi_w)` over d, with the gradient noise
        :math:`\xi`, the spike v, and the unit vector w along the part of the estimate that is orthogonal to v.
        """
        k, m, r2, R2 = self.order, stats.m, stats.r2, stats.squared_norm
        # the two terms of the covariance of xi: along all directions, and along x
        every, more = k * R2 ** (k - 1), k * (k - 1) * R2 ** (k - 2)
        mixed = 2 * more * m * r2
        return 4 * self.lr**2 * jnp.array([[every + more * m**2, mixed], [mixed, 4 * r2 * (every + more * r2)]])

    @property
    def directions(self) -> Directions:
        return Directions(1, np.eye(1), InitialWeights())

    @property
    def coordinates(self) -> SpikeCoordinates:
        return SpikeCoordinates(self)

    def _risk(self, stats: Spike) -> Float[Array, ""]:
        r"""Return the population loss of the estimate without its constant :math:`E|W|^2 = d^k`, the noise of the tensor.

        The result is :math:`|\lambda v^{\otimes k} - x^{\otimes k}|^2` for the estimate x of the spike v at signal-to-noise
        ratio :math:`\lambda`.
        """
        k = self.order
        return self.snr**2 - 2 * self.snr * stats.m**k + stats.squared_norm**k

    @property
    def rate(self) -> Float[Array, ""] | float:
        return at_start(self).lr

    def sample_loss(self, x: Float[Array, " d"], Y: Float[Array, "..."]) -> Float[Array, ""]:
        """Return the loss of the estimate x on one observed tensor Y, including the ridge penalty."""
        return ((Y - reduce(jnp.multiply.outer, [x] * self.order)) ** 2).sum() + self.ridge / 2 * (x @ x)


class SpikeCoordinates(Coordinates):
    """Vectors, names and checks of spiked-tensor statistics: overlap with the spike, squared norm orthogonal to it."""

    def from_overlaps(self, overlaps: Overlaps) -> Spike:
        """Convert overlaps to spiked-tensor statistics: the overlap m = M and the squared orthogonal norm r2 = Q - M^2.

        An r2 within rounding of zero becomes zero.
        """
        m, square = overlaps.M[..., 0, 0], overlaps.Q[..., 0, 0]
        rest = square - m**2
        return Spike(m, jnp.where(jnp.abs(rest) <= 1e-14 * square, 0.0, rest))

    def admissible(self, stats):
        return Spike(stats.m, jnp.maximum(stats.r2, 0.0))  # noise may make a squared length negative

    def fits(self, stats: Spike) -> None:
        if not isinstance(stats, Spike):
            raise BadInput(
                f"statistics of a spiked tensor must be Spike(m, r2); got {type(stats).__name__}. Give, "
                f"for instance, Spike(0.1, 1.0)."
            )
        super().fits(stats)
        if not is_traced(stats.r2) and float(stats.r2) < 0:
            raise BadInput(f"r2 must be at least 0; got {float(stats.r2):g}. Give the squared length of x outside v.")

    def check(self, stats: Spike) -> None:
        if not isinstance(stats, Spike):
            raise BadInput(
                f"statistics of a spiked tensor must be Spike(m, r2); got {type(stats).__name__}. Give, "
                f"for instance, Spike(0.1, 1.0)."
            )
        for name in Spike.dims:
            value = np.asarray(getattr(stats, name))
            if value.ndim != 1:
                raise BadInput(
                    f"{name} must be one number for each run; got shape {value.shape[1:]} for each. Give one number."
                )
            if not np.isfinite(value).all():
                raise BadInput(f"{name} must be finite; got {value[~np.isfinite(value)][0]}. Give finite statistics.")
        if (np.asarray(stats.r2) < 0).any():
            raise BadInput(f"r2 must be at least 0; got {np.min(stats.r2):g}. Give the squared length of x outside v.")


def contract_noise(
    order: int, x: Float[Array, "..."], g: Float[Array, "..."], product: Callable[[Array, Array], Array]
) -> Float[Array, "..."]:
    r"""Return the gradient's noise at vectors x, made from standard normal vectors g instead of a noise tensor.

    The result is g, with its component along x multiplied by :math:`\sqrt k`, times :math:`\sqrt k\,|x|^{k-1}`: it has the law
    of the contraction of a Gaussian k-tensor with x.

    Parameters
    ----------
    order : order k of the tensor
    x, g : vectors, as arrays of any shape
    product : function that returns the inner product of two such vectors
    """
    square = product(x, x)
    share = product(x, g) / jnp.where(square > 0, square, 1.0)  # at x = 0 the noise vanishes, and the share has no effect
    root = math.sqrt(order)
    return root * jnp.sqrt(square) ** (order - 1) * (g + (root - 1) * share * x)
