"""The interface of inputs: the law of their fields, their coordinates in a frame, and the vectors themselves."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from sgdlimits.kernel.random import Stream
from sgdlimits.part import Part
from sgdlimits.statistics.frame import Coordinates, FieldFactor
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps


class Sizes(NamedTuple):
    """Numbers of vectors in one step.

    Parameters
    ----------
    samples : b, inputs with a label
    inputs : L, samples and the standard normal vectors of the algorithm's own noise
    fixed, directions : k fixed directions and n that move
    rests : r, combinations of the components outside of all directions on which the step depends
    """

    samples: int
    inputs: int
    fixed: int
    directions: int
    rests: int


class Inputs(Part):
    """The source of the vectors of a sample: immutable, a pytree, its numbers traceable.

    `law` serves ODE, mean field and every analysis; `at` the SDE and averages over steps, which have standard normal points;
    `draw` and `place` serve the chain, and `vectors` SGD in R^d. The kind of inputs shows in the structure, never in the value
    of a number.
    """

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """The number of classes."""

    @property
    @abc.abstractmethod
    def centred(self) -> bool:
        """Return whether the means of all classes are zero."""

    @property
    @abc.abstractmethod
    def on_means(self) -> bool:
        """Return whether every input is the mean of its class."""

    @property
    @abc.abstractmethod
    def squared_length(self) -> Float[Array, ""]:
        r"""The limit of :math:`|x|^2/d` as d grows."""

    @abc.abstractmethod
    def check(self, fixed: int) -> None:
        """Raise `BadInput` unless the means are along so many fixed directions."""

    @abc.abstractmethod
    def law(self, stats: Overlaps, gram: Float[Array, "k k"]) -> FieldLaw:
        """Return the law of the fields at statistics of one run; `gram` is the Gram matrix of the fixed directions."""

    @abc.abstractmethod
    def law_of_factor(self, F: FieldFactor, gram: Float[Array, "k k"]) -> FieldLaw:
        """Return the same from coordinates F of the directions; the first k axes are the frame of the fixed directions."""

    @property
    def outcomes(self) -> Float[Array, " classes"]:
        """The probability of each class: the `weights` of inputs that have them."""
        weights: Any = getattr(self, "weights", np.ones(1))
        return weights

    @abc.abstractmethod
    def draw_class(self, stream: Stream, samples: int) -> Int[Array, "steps samples runs"]:
        """Draw the class of each sample."""

    @abc.abstractmethod
    def from_normal(
        self, points: Float[Array, "s *batch"], c: Int[Array, "*batch"], B: Float[Array, "k k"]
    ) -> Float[Array, "s *batch"]:
        """Return the coordinates of inputs of classes `c` at standard normal points; the first k axes are the frame of B."""

    @abc.abstractmethod
    def draw(self, stream: Stream, sizes: Sizes, d: Float[Array, ""]) -> Coordinates:
        """Draw the random numbers of each step's inputs in dimension d, the steps first."""

    @abc.abstractmethod
    def place(self, numbers: Coordinates, B: Float[Array, "k k"]) -> Coordinates:
        """Turn the numbers drawn for one step into coordinates of its inputs; the first k axes are the frame of B."""

    @abc.abstractmethod
    def vectors(
        self, stream: Stream, sizes: Sizes, d: int, B: Float[Array, "k k"], moved: Callable[[Array, Array], Array]
    ) -> tuple[Float[Array, "steps inputs runs d"], Float[Array, "steps samples runs"], Int[Array, "steps samples runs"]]:
        """Draw vectors of R^d, label noise and classes; `moved(x, m)` adds to vectors their means m in the frame of B."""
