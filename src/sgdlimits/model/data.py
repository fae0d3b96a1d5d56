"""Where inputs come from."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.part import Part, is_schedule
from sgdlimits.statistics.trees import number_array


class Data(Part):
    r"""Isotropic Gaussian classes, :math:`x = \sum_r b_r^{(c)} e_r + \sigma g` with class c of probability :math:`\pi_c`.

    Parameters
    ----------
    weights : the probabilities, shape (classes,)
    means : the coefficients b of each class's mean along the fixed directions, shape (classes, k); None for zero means
    sigma : standard deviation of every coordinate around the mean
    centred : whether the means are zero, whatever `means` says

    What kind of data it is shows in its structure, not in the value of a number: means that are zero and a sigma that is zero
    are None. So another mean or another sigma is other data, and a sigma that is traced is not zero.
    """

    weights: Float[Array, " classes"]
    means: Float[Array, "classes k"] | None
    spread: Float[Array, ""] | None

    def __init__(self, weights, means=None, sigma: float | Float[Array, ""] = 1.0, centred: bool = False) -> None:
        self.weights = number_array(weights)
        self.means = None if means is None or centred else number_array(means)
        self.spread = None if not is_traced(sigma) and float(sigma) == 0 else number_array(sigma)

    @property
    def centred(self) -> bool:
        """Whether there is one class only, with mean zero."""
        return self.means is None

    @property
    def on_means(self) -> bool:
        """Whether every input is the mean of its class."""
        return self.spread is None

    @property
    def sigma(self) -> Float[Array, ""]:
        return number_array(0.0) if self.spread is None else self.spread

    @property
    def classes(self) -> int:
        return self.weights.shape[0]

    def centre(self, B: Float[Array, "k k"], c: Array) -> Float[Array, "k *batch"]:
        """Frame coordinates of the mean of class `c`."""
        if self.means is None:
            return jnp.zeros((B.shape[0], *jnp.shape(c)))
        return jnp.moveaxis((self.means @ B)[c], -1, 0)

    def draw_class(self, stream: Stream, samples: int) -> Int[Array, "steps samples runs"]:
        """The class of each of a step's inputs."""
        shape = (stream.steps, samples, stream.runs.size)
        if self.classes == 1:
            return jnp.zeros(shape, jnp.int32)
        u = stream.each(samples).uniform(Purpose.CLASS, 1).reshape(shape)
        return (u[..., None] > jnp.cumsum(self.weights)[:-1]).sum(-1, dtype=jnp.int32)


def gaussian() -> Data:
    """Standard normal inputs: one class, no mean, sigma = 1."""
    return Data(np.ones(1))


@checked
def mixture(means, weights=None, variance: float = 1.0) -> Data:
    r"""A mixture of isotropic Gaussian classes whose means lie in the span of the fixed directions.

    Parameters
    ----------
    means : the coefficients of each class's mean along the k fixed directions, shape (classes, k)
    weights : the probabilities of the classes, some of which may be 0; equal unless given
    variance : of every coordinate around the mean, 1/snr; 0 puts all inputs of a class on its mean

    >>> mixture([[1.0, 0.0], [0.0, 1.0]], variance=0.01).classes
    2
    """
    means = number_array(means)
    if means.ndim != 2 or not means.size:
        raise BadInput(f"means must have shape (classes, k); got {means.shape}. Give one row a class.")
    weights = np.full(means.shape[0], 1 / means.shape[0]) if weights is None else number_array(weights)
    if weights.shape != means.shape[:1]:
        raise BadInput(f"weights must have shape {means.shape[:1]}, one a class; got {weights.shape}. Give such weights.")
    for each in weights.examples() if is_schedule(weights) else [] if is_traced(weights) else [weights]:
        if not (float(each.min()) >= 0 and math.isclose(float(each.sum()), 1.0, abs_tol=1e-9)):
            raise BadInput(
                f"weights must not be negative and sum to 1; got {np.asarray(each).tolist()}. Give such probabilities."
            )
    if not is_traced(means) and not np.isfinite(means).all():
        raise BadInput(f"means must be finite; got {np.asarray(means).tolist()}. Give finite means.")
    if is_schedule(variance):
        return Data(weights, means, variance**0.5)
    return Data(weights, means, jnp.sqrt(variance) if is_traced(variance) else math.sqrt(variance))
