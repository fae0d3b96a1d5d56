"""The interface of inputs: the law of their fields, their coordinates in a frame, and the vectors themselves."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, Int

from sgdlimits.kernel.random import Stream
from sgdlimits.part import Part
from sgdlimits.statistics.frame import Coordinates, Loading
from sgdlimits.statistics.law import FieldLaw
from sgdlimits.statistics.overlaps import Overlaps


class Sizes(NamedTuple):
    """How much is drawn for a step.

    Parameters
    ----------
    samples : b, the inputs of the step that have a label
    inputs : L, the same and the algorithm's own noise, standard normal vectors
    fixed, directions : k and n, how many directions are fixed and how many move
    rests : r, how many combinations of what lies outside of all directions matter
    """

    samples: int
    inputs: int
    fixed: int
    directions: int
    rests: int


class Inputs(Part):
    """Where the vectors of a sample come from: immutable, a pytree, its numbers traceable.

    `law` serves ODE, SDE, mean field and every analysis; `draw` and `place` the chain; `at` whoever has points of a rule;
    `vectors` SGD in R^d. What kind of inputs these are shows in the structure, never in the value of a number.
    """

    @property
    @abc.abstractmethod
    def classes(self) -> int:
        """The number of classes."""

    @property
    @abc.abstractmethod
    def centred(self) -> bool:
        """Whether the means of all classes are zero."""

    @property
    @abc.abstractmethod
    def on_means(self) -> bool:
        """Whether every input is the mean of its class."""

    @property
    @abc.abstractmethod
    def squared_length(self) -> Float[Array, ""]:
        """The limit of |x|^2/d as d grows."""

    @abc.abstractmethod
    def check(self, fixed: int) -> None:
        """Raise `BadInput` unless the means are along so many fixed directions."""

    @abc.abstractmethod
    def law(self, stats: Overlaps, gram: Float[Array, "k k"]) -> FieldLaw:
        """The law of the fields of directions with the overlaps `stats`, of one run; `gram` is that of the fixed directions."""

    @abc.abstractmethod
    def law_of_factor(self, F: Loading, gram: Float[Array, "k k"]) -> FieldLaw:
        """The law of the fields of directions with coordinates F, those in the frame of the fixed directions first."""

    @abc.abstractmethod
    def draw_class(self, stream: Stream, samples: int) -> Int[Array, "steps samples runs"]:
        """The class of each of a step's inputs."""

    @abc.abstractmethod
    def at(self, points: Float[Array, "s *batch"], c: Int[Array, "*batch"], B: Float[Array, "k k"]) -> Float[Array, "s *batch"]:
        """Coordinates of inputs of classes `c` at standard normal points; the first k are in the frame B."""

    @abc.abstractmethod
    def draw(self, stream: Stream, sizes: Sizes, d: Float[Array, ""]) -> Coordinates:
        """The random numbers behind the coordinates of each step's inputs in dimension d, the steps first."""

    @abc.abstractmethod
    def place(self, numbers: Coordinates, B: Float[Array, "k k"]) -> Coordinates:
        """The coordinates that such numbers stand for, with the fixed directions in the frame B."""

    @abc.abstractmethod
    def vectors(
        self, stream: Stream, sizes: Sizes, d: int, B: Float[Array, "k k"], moved: Callable[[Array, Array], Array]
    ) -> tuple[Float[Array, "steps inputs runs d"], Float[Array, "steps samples runs"], Int[Array, "steps samples runs"]]:
        """Vectors of R^d with label noise and classes; `moved(x, m)` moves vectors by coordinates m in the frame B."""
