"""Inputs from a mixture of isotropic Gaussian classes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.errors import is_traced
from sgdlimits.inputs.base import Inputs, check_means, draw_classes
from sgdlimits.kernel.random import Purpose
from sgdlimits.statistics.frame import FieldFactor, StepCoordinates, cholesky_factor
from sgdlimits.statistics.law import Covariance, FieldLaw
from sgdlimits.statistics.trees import as_floats


class Mixture(Inputs):
    r"""Isotropic Gaussian classes: :math:`x = \sum_r b_r^{(c)} e_r + \sigma g`, where class c has probability :math:`\pi_c`.

    Here :math:`e_r` are the k fixed directions, :math:`b_r^{(c)}` the coefficients of the mean, and g is standard normal.

    Parameters
    ----------
    weights : probabilities of the classes, shape (classes,)
    means : coefficients b of the mean of each class along the fixed directions, shape (classes, k); None for zero means
    sigma : standard deviation of every coordinate around the mean
    centred : whether the means are zero, which overrides `means`

    Properties of the inputs follow from the structure of the pytree, not from values: zero means and a sigma of zero are stored
    as None. A traced sigma counts as positive.
    """

    weights: Float[Array, " classes"]
    means: Float[Array, "classes k"] | None
    spread: Float[Array, ""] | None

    def __init__(self, weights, means=None, sigma: float | Float[Array, ""] = 1.0, centred: bool = False) -> None:
        self.weights = as_floats(weights)
        self.means = None if means is None or centred else as_floats(means)
        self.spread = None if not is_traced(sigma) and float(sigma) == 0 else as_floats(sigma)

    @property
    def centred(self):
        return self.means is None

    @property
    def has_inputs_at_means(self):
        return self.spread is None

    @property
    def sigma(self) -> Float[Array, ""]:
        """The standard deviation of every coordinate around the mean."""
        return as_floats(0.0) if self.spread is None else self.spread

    @property
    def classes(self):
        return self.weights.shape[0]

    @property
    def squared_length(self):
        return self.sigma**2

    def law(self, stats, gram):
        unit, means = None if self.spread is None else self.spread**2, self.means
        mean = None if means is None else FieldFactor(stats.M @ means.T, gram @ means.T)
        covariance = None if unit is None else Covariance(unit * stats.Q, unit * stats.M, unit * gram)
        return FieldLaw(self.weights, mean, unit, covariance, None, stats.M.shape)

    def law_of_factor(self, F, gram):
        unit = None if self.spread is None else self.spread**2
        shape = (len(F.student), len(F.fixed))
        k = len(gram)
        centre = None if self.means is None else (self.means @ cholesky_factor(gram)).T
        mean = None if centre is None else FieldFactor(F.student[:, :k] @ centre, F.fixed[:, :k] @ centre)
        factor = FieldFactor(self.sigma * F.student, self.sigma * F.fixed)
        return FieldLaw(self.weights, mean, unit, None, factor, shape)

    def centre(self, B: Float[Array, "k k"], c: Array) -> Float[Array, "k *batch"]:
        """Return the coordinates of the mean of class `c` in the frame of the fixed directions."""
        if self.means is None:
            return jnp.zeros((B.shape[0], *jnp.shape(c)))
        return jnp.moveaxis((self.means @ B)[c], -1, 0)

    def select_class(self, i: int, turn: Float[Array, "k k"] | None = None) -> Mixture:
        """Return the inputs of class i alone, with the coefficients of its mean multiplied by a matrix if one is given."""
        means = None if self.means is None else self.means[i : i + 1]
        if means is not None and turn is not None:
            means = means @ turn
        return Mixture(np.ones(1), means, 0.0 if self.spread is None else self.spread)

    def draw_class(self, stream, samples):
        return draw_classes(stream, samples, self.weights)

    def check(self, fixed):
        check_means(self.means, fixed)

    def from_normal(self, points, c, B):
        inside, k = self.sigma * points, len(B)
        return jnp.concatenate([inside[:k] + self.centre(B, c), inside[k:]])

    def draw(self, stream, sizes, d):
        b, L, k, n, r = sizes
        column = np.tril_indices(r, -1)[1]
        normal = stream.normal(Purpose.STEP, (k + n) * L + b + column.size)
        inside, along, z, below = jnp.split(normal, np.cumsum([k * L, n * L, b]), axis=1)
        inside, along = (part.reshape(stream.steps, -1, L, stream.runs.size) for part in (inside, along))
        # Bartlett: squared pivots are chi-square, with one degree of freedom less for each orthogonal component before.
        dof = jnp.maximum(d - k - n - np.arange(r), 0.0)
        outside = stream.chi_square(Purpose.CHI, dof)
        # Columns beyond the dimension are zero: as many components have no direction left.
        below = below * (dof[column] > 0)[:, None]
        return StepCoordinates(inside, along, outside, below, z, self.draw_class(stream, b))

    def to_frame_coordinates(self, variates, B):
        inside, along, outside, below, z, c = variates
        (b, L), r, sigma = (len(z), inside.shape[1]), len(outside), self.sigma
        centre = self.centre(B, c)
        if b == L:  # the usual case, without arrays of scales that each step would multiply
            return StepCoordinates(centre + sigma * inside, sigma * along, sigma**2 * outside, sigma * below, z, c)
        # Vectors of the algorithm's own noise follow the samples; they are standard normal, without mean and sigma.
        scale = jnp.concatenate([jnp.full(b, sigma), jnp.ones(L - b)])
        centre = jnp.pad(centre, ((0, 0), (0, L - b), (0, 0)))
        by, row = scale[:, None], np.tril_indices(r, -1)[0]
        return StepCoordinates(centre + by * inside, by * along, by**2 * outside, scale[row][:, None] * below, z, c)

    def draw_vectors(self, stream, sizes, d, B, add_mean):
        b, L = sizes.samples, sizes.inputs
        normal = stream.split_into_samples(L).normal_rows(Purpose.INPUT, d + 1).reshape(stream.steps, L, -1, d + 1)
        # The last entry of each row is the label noise, drawn together with its input.
        c = self.draw_class(stream, b)
        x = self.sigma * normal[:, :b, :, :-1]
        if not self.centred:
            x = add_mean(x, jnp.moveaxis(self.centre(B, c), 0, -1))
        x = x if b == L else jnp.concatenate([x, normal[:, b:, :, :-1]], axis=1)
        return x, normal[:, :b, :, -1], c


Data = Mixture
"""Former name of `Mixture`, which saved files still use."""
