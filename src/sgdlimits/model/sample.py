"""The model of one sample: inputs, target, network and loss."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.blocks import block_grams
from sgdlimits.inputs.masks import MaskedInputs, decode_masks
from sgdlimits.model.loss import Loss
from sgdlimits.model.network import AnyNetwork
from sgdlimits.model.target import Target
from sgdlimits.part import Part
from sgdlimits.statistics.blocks import block_factor
from sgdlimits.statistics.frame import FieldFactor, cholesky_factor
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps, Scalars
from sgdlimits.statistics.products import Moments


@checked
class Model(Part):
    r"""Inputs, target, network and loss of one random sample, without the optimiser.

    An input x has the fields :math:`\lambda_j = u_j\cdot x` along the p trained directions and :math:`\lambda^*_r = e_r\cdot x`
    along the k fixed ones. Their arrays have shapes (p, ...) and (k, ...), with any trailing axes: runs, nodes or none.

    Parameters
    ----------
    data : the law of the inputs
    target : the labels, as a function of the fixed fields
    network : the trained network
    loss : the loss of a prediction and a label
    """

    data: Inputs
    target: Target
    network: AnyNetwork
    loss: Loss

    @property
    def width(self) -> int:
        """Number of trained directions, p."""
        return self.network.width

    @property
    def teachers(self) -> int:
        """Number of fixed directions, k."""
        return self.target.teachers

    @property
    def classes(self) -> int:
        """The number of classes of the inputs, without masks of units."""
        return self.data.classes

    @property
    def centred(self) -> bool:
        """Whether all fields have mean zero, by the structure of the inputs rather than by values."""
        return self.data.centred

    @property
    def has_inputs_at_means(self) -> bool:
        """Whether every input equals the mean of its class, by the structure of the inputs rather than by values."""
        return self.data.has_inputs_at_means

    @property
    def frame(self) -> Float[Array, "k k"]:
        """Coordinates of the fixed directions in an orthonormal basis of their span: a k-by-k matrix B with P = B B^T."""
        if self.data.blocks is not None:
            raise BadInput(
                "inputs with blocks of variances have one frame of the fixed directions for each block, and no single frame. "
                "Use ODE(), SDE(d), Chain(d), SGD(d), or one block."
            )
        return cholesky_factor(self.target.gram)

    @property
    def gram(self) -> Float[Array, "*blocks k k"]:
        """The Gram matrix of the fixed directions, in each block if the inputs have blocks."""
        return block_grams(self.data, self.target.gram)

    @property
    def frames(self) -> Float[Array, "*blocks k k"]:
        """The coordinates of the fixed directions in an orthonormal basis of their span, in each block if there are several."""
        return self.frame if self.data.blocks is None else block_factor(self.gram)

    def omega(self, stats: Overlaps) -> Float[Array, "n n"]:
        """Assemble the Gram matrix of all directions, the trained ones first, from the overlaps M, Q and P.

        Within a class the fields have sigma^2 times this matrix as covariance, with sigma the standard deviation of the inputs.
        """
        _ = self.frame  # raises BadInput for blocks
        return jnp.block([[stats.Q, stats.M], [stats.M.T, jnp.asarray(self.target.gram)]])

    def law(self, stats: Overlaps) -> FieldLaw:
        """Compute the Gaussian law of the fields at the statistics of one run."""
        return self.data.law(stats, self.gram)

    def law_of_factor(self, F: FieldFactor) -> FieldLaw:
        """Compute the Gaussian law of the fields from coordinates F of all directions in an orthonormal basis.

        The first k coordinates are those along an orthonormal basis of the span of the fixed directions.
        """
        return self.data.law_of_factor(F, self.target.gram)

    @property
    def coordinates(self) -> FieldLaw:
        """Gaussian law of the coordinates of an input along an orthonormal basis of the fixed directions."""
        # The axes themselves as fixed directions: their fields are the coordinates.
        k = self.teachers
        return self.law_of_factor(FieldFactor(jnp.zeros((0, k)), jnp.eye(k)))

    @property
    def inputs(self) -> Inputs:
        """Law of the training inputs: the data and, with dropout, the masks of units."""
        rate = self.network.mask_rate
        return self.data if rate is None else MaskedInputs(self.data, rate, self.width)

    @property
    def test_model(self) -> Model:
        """The model at test time, without dropout and input noise, by which risk and accuracy are defined."""
        network, data = self.network.without_dropout(), self.data.without_noise()
        unchanged = network is self.network and data is self.data
        return self if unchanged else eqx.tree_at(lambda model: (model.network, model.data), self, (network, data))

    def sample_loss(self, fields, fixed, a, z, c) -> Float[Array, "*batch"]:
        """Evaluate the loss of samples with student fields, fixed fields, network scalars, label noise z and class c.

        With dropout, c also encodes the mask of units (see `inputs.masks`).
        """
        kept = None
        if self.network.mask_rate is not None:
            c, mask = c % self.classes, c // self.classes
            kept = decode_masks(mask, self.width)
        return self.loss(self.network.output(fields, a, c, kept), self.target.label(fixed, z, c))

    def gradient(self, fields, fixed, a, z, c) -> tuple[Float[Array, "p *batch"], Scalars]:
        """Compute the derivatives of the loss l of samples with respect to the student fields and to the network scalars.

        Returns (dl/dfields, dl/da). Each network scalar in `a` has the trailing axes of the fields.
        """
        # The sum over samples has the gradients of all of them at once, since samples are independent.
        total = lambda fields, a: self.sample_loss(fields, fixed, a, z, c).sum()
        return jax.grad(total, argnums=(0, 1))(fields, a)

    def products(self, fields, fixed, a, z, c) -> Moments:
        """Compute the products of gradients and fields of samples; changes of the statistics are affine functions of these."""
        G, second = self.gradient(fields, fixed, a, z, c)
        loss = self.sample_loss(fields, fixed, a, z, c)
        return Moments(loss, G[:, None] * fixed[None], G[:, None] * fields[None], G[:, None] * G[None], second)
