r"""Gaussian inputs whose variance differs between blocks of coordinates and between classes.

The d dimensions are split into B blocks, the same for all classes. Given the class c, the coordinates in block b are
independent with variance :math:`v_{cb}`, around a mean in the span of the fixed directions. With the Gram matrices
:math:`\Omega_b` of the trained and fixed directions within each block, the fields have the covariance
:math:`\sum_b v_{cb}\Omega_b`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs.base import Inputs, check_means, draw_classes
from sgdlimits.inputs.mixture import Mixture
from sgdlimits.inputs.spectrum import as_shares, block_sizes, check_variances
from sgdlimits.kernel.random import Purpose
from sgdlimits.part import is_schedule
from sgdlimits.statistics.frame import FieldFactor, StepCoordinates
from sgdlimits.statistics.law import Covariance, FieldLaw
from sgdlimits.statistics.trees import as_floats


class Blocks(Inputs):
    r"""Gaussian classes with a variance for each block of coordinates.

    In block b an input of class c is :math:`x_b = \sum_r \beta_r^{(c)} e_{rb} + \sqrt{v_{cb}}\, g_b`, where :math:`e_{rb}` is
    the part of fixed direction r in the block, :math:`\beta_r^{(c)}` a coefficient of the mean, and g standard normal.

    Statistics have a leading axis for the blocks, and are Euclidean within each: they are not weighted by the variance. With
    one block, whose variance depends on the class, they have no such axis.

    Parameters
    ----------
    weights : probabilities of the classes, shape (classes,)
    means : coefficients :math:`\beta` of the class means along the k fixed directions, shape (classes, k); None for zero means
    variance : v, of shape (classes, B), or (1, B) if it is the same in all classes
    shares : fraction of the dimensions in each block
    """

    weights: Float[Array, " classes"]
    means: Float[Array, "classes k"] | None
    variance: Float[Array, "classes blocks"]
    shares: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, weights, means, variance, shares=(1.0,)) -> None:
        self.weights, self.variance = as_floats(weights), as_floats(variance)
        means = None if means is None else as_floats(means)
        self.means = None if means is None or (not is_traced(means) and not np.any(means)) else means
        shape = np.shape(self.variance) if not is_schedule(self.variance) else self.variance.shape
        if len(shape) != 2 or shape[0] not in (1, self.classes):
            raise BadInput(
                f"variance must have shape ({self.classes}, B), one for each class and block; got {shape}. "
                "Give one variance for each class and block."
            )
        self.shares = as_shares(shares, shape[1])
        check_variances("variance", self.variance)

    @property
    def classes(self):
        return self.weights.shape[0]

    @property
    def centred(self):
        return self.means is None

    @property
    def has_inputs_at_means(self):
        return False

    @property
    def blocks(self):
        return len(self.shares) if len(self.shares) > 1 else None

    @property
    def variance_by_class(self):
        return self.classes > 1 and self.variance.shape[0] > 1

    @property
    def has_classes_apart(self):
        return self.variance_by_class or self.means is not None

    @property
    def squared_length(self):
        raise _one_variance_only("this analysis")

    def block_sizes(self, d):
        return block_sizes(self.shares, d)

    def check(self, fixed):
        check_means(self.means, fixed)

    def variances(self, i: int | None) -> Float[Array, " blocks"]:
        """Return the variance in each block of inputs of class i, or of all classes for None."""
        return self.variance[i if i is not None and self.variance_by_class else 0]

    def field_gram(self, gram: Float[Array, "*blocks k k"], i: int | None) -> Float[Array, "k k"]:
        """Return the covariance of the fixed fields in class i; `gram` has the Gram matrix of the directions in each block."""
        return (self.variances(i)[:, None, None] * jnp.reshape(gram, (len(self.shares), *np.shape(gram)[-2:]))).sum(0)

    def isotropic(self, gram: Float[Array, "*blocks k k"], i: int | None) -> tuple[Mixture, Float[Array, "k k"]]:
        """Return standard normal inputs and a Gram matrix for which the fixed fields have the same law as in class i.

        With i None the law is that of all classes, whose variances must then be equal.
        """
        P = self.field_gram(gram, i)
        if self.means is None:
            return Mixture(np.ones(1) if i is not None else self.weights), P
        total = jnp.reshape(gram, (-1, *np.shape(gram)[-2:])).sum(0)
        means = self.means if i is None else self.means[i : i + 1]
        return Mixture(np.ones(1) if i is not None else self.weights, jnp.linalg.solve(P, total @ means.T).T), P

    def law(self, stats, gram):
        B, k = len(self.shares), np.shape(gram)[-1]
        M = jnp.reshape(stats.M, (B, -1, k))
        Q, P = jnp.reshape(stats.Q, (B, *stats.Q.shape[-2:])), jnp.reshape(gram, (B, k, k))
        each = [jnp.einsum("cb,bij->cij", self.variance, part) for part in (Q, M, P)]
        covariance = Covariance(*(each if self.variance_by_class else (part[0] for part in each)))
        mean = None if self.means is None else FieldFactor(M.sum(0) @ self.means.T, P.sum(0) @ self.means.T)
        return FieldLaw(self.weights, mean, jnp.ones(()), covariance, None, M.shape[1:])

    def law_of_factor(self, F, gram):
        raise _one_variance_only("an expectation at given weights")

    def draw_class(self, stream, samples):
        return draw_classes(stream, samples, self.weights)

    def from_normal(self, points, c, B):
        if self.blocks is not None:
            raise _one_variance_only("an average over inputs")
        root, k = jnp.sqrt(self.variance[:, 0]), len(B)
        inside = (root[c] if self.variance_by_class else root[0]) * points
        return inside if self.means is None else inside.at[:k].add(jnp.moveaxis((self.means @ B)[c], -1, 0))

    def draw(self, stream, sizes, d):
        b, L, k, n, r = sizes
        B, column = len(self.shares), np.tril_indices(r, -1)[1]
        each = (k + n) * L + column.size
        normal = stream.normal(Purpose.STEP, B * each + b)
        parts = normal[:, : B * each].reshape(stream.steps, B, each, stream.runs.size)
        inside, along, below = jnp.split(parts, np.cumsum([k * L, n * L]), axis=2)
        inside, along = (part.reshape(stream.steps, B, -1, L, stream.runs.size) for part in (inside, along))
        # The Bartlett factor of each block, as for one variance.
        dof = jnp.maximum(jnp.reshape(d, (B, 1)) - k - n - np.arange(r), 0.0)
        outside = stream.chi_square(Purpose.CHI, dof.ravel()).reshape(stream.steps, B, r, -1)
        below = below * (dof[:, column] > 0)[:, :, None]
        if self.blocks is None:
            inside, along, outside, below = (part[:, 0] for part in (inside, along, outside, below))
        return StepCoordinates(inside, along, outside, below, normal[:, B * each :], self.draw_class(stream, b))

    def to_frame_coordinates(self, variates, B):
        inside, along, outside, below, z, c = variates
        (b, L), r = (len(z), inside.shape[-2]), outside.shape[-2]
        roots = jnp.sqrt(self.variance).T
        scale = roots[:, c] if self.variance_by_class else jnp.broadcast_to(roots[:, :, None], (len(roots), b, 1))
        if b < L:  # vectors of the algorithm's own noise, without mean and with variance 1, follow the samples
            scale = jnp.pad(scale, ((0, 0), (0, L - b), (0, 0)), constant_values=1.0)
        if self.blocks is None:
            scale = scale[0]
        # Fewer combinations than inputs are drawn for inputs of one variance only.
        own = scale if r == L else scale[..., :1, :]
        row = np.tril_indices(r, -1)[0] if r == L else np.zeros(1, int)
        inside = scale[..., None, :, :] * inside
        if self.means is not None:
            centre = jnp.einsum("cr,...rs->...sc", self.means, B)[..., c]
            inside = inside + jnp.pad(centre, (*[(0, 0)] * (centre.ndim - 2), (0, L - b), (0, 0)))
        return StepCoordinates(inside, scale[..., None, :, :] * along, own**2 * outside, own[..., row, :] * below, z, c)

    def draw_vectors(self, stream, sizes, d, B, add_mean):
        b, L = sizes.samples, sizes.inputs
        normal = stream.split_into_samples(L).normal_rows(Purpose.INPUT, d + 1).reshape(stream.steps, L, -1, d + 1)
        c = self.draw_class(stream, b)
        roots = jnp.repeat(jnp.sqrt(self.variance), np.array(self.block_sizes(d)), axis=1, total_repeat_length=d)
        x = normal[:, :b, :, :-1] * (roots[c] if self.variance_by_class else roots[0])
        if self.means is not None:
            x = add_mean(x, (self.means @ B)[c])
        x = x if b == L else jnp.concatenate([x, normal[:, b:, :, :-1]], axis=1)
        return x, normal[:, :b, :, -1], c


def _one_variance_only(what: str) -> BadInput:
    """Return the error of an analysis, named by `what`, that supports only inputs with a single variance."""
    return BadInput(
        f"{what} supports only inputs with a single variance, not one by block or class. Use ODE(), Chain(d) or SGD(d)."
    )


def block_grams(data: Inputs, gram: Any) -> Any:
    """Return the Gram matrix of the fixed directions in each block: as given, or split by the shares of the blocks.

    Inputs without a block axis have one Gram matrix, which is returned unchanged.
    """
    if data.blocks is None or np.ndim(gram) == 3:
        return gram
    return np.asarray(data.shares)[:, None, None] * gram  # type: ignore[attr-defined]
