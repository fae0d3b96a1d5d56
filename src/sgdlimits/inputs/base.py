"""Interface of inputs: the law of their fields, samples of their coordinates along all directions, and sample vectors."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.errors import BadInput
from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.part import Part
from sgdlimits.statistics.frame import FieldFactor, StepCoordinates
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.text import format_count


class StepDimensions(NamedTuple):
    """Numbers of samples, input vectors, directions and orthogonal components in one step of SGD.

    Parameters
    ----------
    samples : b, the number of labelled inputs
    inputs : L, the number of samples and of standard normal vectors for the algorithm's own noise
    fixed_directions, directions : k, the number of fixed directions, and n, the number of trained ones
    orthogonal_count : r, the number of linear combinations of the inputs' orthogonal components on which the step depends
    """

    samples: int
    inputs: int
    fixed_directions: int
    directions: int
    orthogonal_count: int


class Inputs(Part):
    """Base class of the laws of inputs: an immutable pytree whose parameters can be traced.

    The ODE, the mean field and analyses use `law`; the SDE and averages over steps use `from_normal`, at standard normal
    points; the chain uses `draw` and `to_frame_coordinates`, and SGD in R^d uses `draw_vectors`. Properties such as `centred`
    follow from the structure of the pytree, never from values.
    """

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """Number of classes of the inputs."""

    @property
    @abc.abstractmethod
    def centred(self) -> bool:
        """Whether the means of all classes are zero."""

    @property
    @abc.abstractmethod
    def has_inputs_at_means(self) -> bool:
        """Whether every input equals the mean of its class, that is, has no variance."""

    @property
    @abc.abstractmethod
    def squared_length(self) -> Float[Array, ""]:
        r"""Limit of :math:`|x|^2/d` for inputs x in R^d as d grows."""

    @property
    def blocks(self) -> int | None:
        """Number of blocks of coordinates with their own variances; None for statistics without a block axis."""
        return None

    @property
    def variance_by_class(self) -> bool:
        """Whether the variance of the inputs depends on their class."""
        return False

    @property
    def has_classes_apart(self) -> bool:
        """Whether expectations must be computed for each class separately, because the covariance depends on the class."""
        return False

    @property
    def has_noise(self) -> bool:
        """Whether noise is added to the inputs in training, after their labels are computed."""
        return False

    @property
    def noise_variance(self) -> Float[Array, ""] | float:
        """The variance of the noise that is added to each coordinate of an input in training, after its label is computed."""
        return 0.0

    def without_noise(self) -> Inputs:
        """Return the inputs without noise, by which risk and accuracy are defined."""
        return self

    def block_sizes(self, d: int) -> tuple[int, ...]:
        """Return the number of dimensions of each block in R^d."""
        return (d,)

    @abc.abstractmethod
    def check(self, fixed: int) -> None:
        """Raise `BadInput` if the class means do not have `fixed` coefficients, one for each fixed direction."""

    @abc.abstractmethod
    def law(self, stats: Overlaps, gram: Float[Array, "k k"]) -> FieldLaw:
        """Compute the Gaussian law of the fields at the statistics of one run; `gram` is the fixed directions' Gram matrix."""

    @abc.abstractmethod
    def law_of_factor(self, F: FieldFactor, gram: Float[Array, "k k"]) -> FieldLaw:
        """Compute the Gaussian law of the fields from coordinates F of all directions in an orthonormal basis.

        The first k coordinates are those along an orthonormal basis of the span of the fixed directions, whose Gram matrix is
        `gram`.
        """

    @property
    def class_probabilities(self) -> Float[Array, " classes"]:
        """The probability of each class: the `weights` of a mixture, or 1 for inputs of one class."""
        weights: Any = getattr(self, "weights", np.ones(1))
        return weights

    @abc.abstractmethod
    def draw_class(self, stream: Stream, samples: int) -> Int[Array, "steps samples runs"]:
        """Draw the class of each sample from the class probabilities."""

    @abc.abstractmethod
    def from_normal(
        self, points: Float[Array, "s *batch"], c: Int[Array, "*batch"], B: Float[Array, "k k"]
    ) -> Float[Array, "s *batch"]:
        """Map standard normal points to coordinates of inputs of the classes `c` in an orthonormal basis of the span.

        The fixed directions are the rows of B in the first k coordinates of the frame, and zero in the others.
        """

    @abc.abstractmethod
    def draw(self, stream: Stream, sizes: StepDimensions, d: Float[Array, ""]) -> StepCoordinates:
        """Draw the random variates that determine the inputs in dimension d, with the steps on the first axis."""

    @abc.abstractmethod
    def to_frame_coordinates(self, variates: StepCoordinates, B: Float[Array, "k k"]) -> StepCoordinates:
        """Map the random variates of one step, from `draw`, to coordinates of its inputs in an orthonormal basis.

        The fixed directions are the rows of B in the first k coordinates of the frame, and zero in the others.
        """

    @abc.abstractmethod
    def draw_vectors(
        self, stream: Stream, sizes: StepDimensions, d: int, B: Float[Array, "k k"], add_mean: Callable[[Array, Array], Array]
    ) -> tuple[Float[Array, "steps inputs runs d"], Float[Array, "steps samples runs"], Int[Array, "steps samples runs"]]:
        """Draw input vectors in R^d, label noise and classes for several steps.

        `add_mean(x, m)` adds means to vectors x; m has the coordinates of the means in the frame in which the fixed directions
        are the rows of B.
        """

    def draw_noise(self, stream: Stream, samples: int, d: int) -> Float[Array, "steps samples runs d"] | None:
        """Draw standard normal vectors in R^d, which steps scale and add to their samples; None without input noise."""
        return None


def refuse_noise(data: Inputs, what: str) -> None:
    """Raise `BadInput` for inputs with noise in training, which the analysis or level named by `what` does not support."""
    if data.has_noise:
        raise BadInput(f"{what} does not support input noise. Use ODE(), SDE(d), Chain(d) or SGD(d).")


def draw_classes(stream: Stream, samples: int, weights: Float[Array, " classes"]) -> Int[Array, "steps samples runs"]:
    """Draw the class of each sample, with given probabilities."""
    shape = (stream.steps, samples, stream.runs.size)
    if weights.shape[0] == 1:  # one class draws no random variates
        return jnp.zeros(shape, jnp.int32)
    u = stream.split_into_samples(samples).uniform(Purpose.CLASS, 1).reshape(shape)
    # The last edge is left out, so that a sum of weights just below 1 cannot give a class too many.
    return (u[..., None] > jnp.cumsum(weights)[:-1]).sum(-1, dtype=jnp.int32)


def check_means(means: Any, fixed: int) -> None:
    """Raise `BadInput` if the class means do not have `fixed` coefficients, one for each fixed direction."""
    if means is not None and np.shape(means)[1] != fixed:
        raise BadInput(
            f"the means of the data have {format_count(np.shape(means)[1], 'coefficient')}, and the target has "
            f"{format_count(fixed, 'fixed direction')}. Give means of shape (classes, {fixed})."
        )
