"""One sample: what a network makes of an input, and how it is scored."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.domain import checked
from sgdlimits.inputs.base import Inputs
from sgdlimits.model.loss import Loss
from sgdlimits.model.masks import MaskedInputs, kept_units
from sgdlimits.model.network import AnyNetwork
from sgdlimits.model.target import Target
from sgdlimits.part import Part
from sgdlimits.statistics.frame import FieldFactor, cholesky_factor
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps, Scalars
from sgdlimits.statistics.products import Moments


@checked
class Model(Part):
    r"""Inputs, target, network and loss: everything about one sample, nothing about averages or about the algorithm.

    Fields :math:`\lambda_j = u_j\cdot x` and :math:`\lambda^*_r = e_r\cdot x` have shapes (p, ...) and (k, ...), with any
    trailing axes: runs, nodes or none.
    """

    data: Inputs
    target: Target
    network: AnyNetwork
    loss: Loss

    @property
    def width(self) -> int:
        """p, the number of trained directions."""
        return self.network.width

    @property
    def teachers(self) -> int:
        """k, the number of fixed directions."""
        return self.target.teachers

    @property
    def centred(self) -> bool:
        """Return whether all fields have mean zero, by structure."""
        return self.data.centred

    @property
    def on_means(self) -> bool:
        """Return whether every input is the mean of its class, by structure."""
        return self.data.on_means

    @property
    def frame(self) -> Float[Array, "k k"]:
        """B, the fixed directions in their orthonormal frame: P = B B^T."""
        return cholesky_factor(self.target.gram)

    def omega(self, stats: Overlaps) -> Float[Array, "n n"]:
        r""":math:`\Omega`, the Gram matrix of all directions: sigma squared times it is the covariance of the fields."""
        return jnp.block([[stats.Q, stats.M], [stats.M.T, jnp.asarray(self.target.gram)]])

    def law(self, stats: Overlaps) -> FieldLaw:
        """Return the law of the fields at statistics of one run."""
        return self.data.law(stats, self.target.gram)

    def law_of_factor(self, F: FieldFactor) -> FieldLaw:
        """Return the same from coordinates of the directions."""
        return self.data.law_of_factor(F, self.target.gram)

    @property
    def coordinates(self) -> FieldLaw:
        """The law of the coordinates of an input in the frame of the fixed directions."""
        k = self.teachers
        return self.law_of_factor(FieldFactor(jnp.zeros((0, k)), jnp.eye(k)))

    @property
    def inputs(self) -> Inputs:
        """The data, with masks of units where the network has dropout: what samples of training are drawn from."""
        rate = self.network.mask_rate
        return self.data if rate is None else MaskedInputs(self.data, rate, self.width)

    @property
    def tested(self) -> Model:
        """The model as it is tested: without dropout."""
        plain = self.network.tested()
        return self if plain is self.network else eqx.tree_at(lambda model: model.network, self, plain)

    def sample_loss(self, fields, fixed, a, z, c) -> Float[Array, "*batch"]:
        """The loss of one sample; with dropout its class says which units are kept, too (see `model.masks`)."""
        kept = None
        if self.network.mask_rate is not None:
            c, mask = c % self.data.classes, c // self.data.classes
            kept = kept_units(mask, self.width)
        return self.loss(self.network.output(fields, a, c, kept), self.target.label(fixed, z, c))

    def gradient(self, fields, fixed, a, z, c) -> tuple[Float[Array, "p *batch"], Scalars]:
        """(G, dl/da) of one sample, by automatic differentiation; each scalar has the trailing axes of the fields."""
        total = lambda fields, a: self.sample_loss(fields, fixed, a, z, c).sum()
        return jax.grad(total, argnums=(0, 1))(fields, a)

    def products(self, fields, fixed, a, z, c) -> Moments:
        """The products behind one sample's increment."""
        G, second = self.gradient(fields, fixed, a, z, c)
        loss = self.sample_loss(fields, fixed, a, z, c)
        return Moments(loss, G[:, None] * fixed[None], G[:, None] * fields[None], G[:, None] * G[None], second)
