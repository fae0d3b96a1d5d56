"""User-defined statistics: a vector of numbers, whose names the problem defines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import equinox as eqx
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from sgdlimits.checks import any_numbers
from sgdlimits.domain import checked
from sgdlimits.part import Part
from sgdlimits.statistics.trees import as_floats


@checked
class Values(Part):
    """Values of user-defined statistics, in the order of their names in the problem.

    Parameters
    ----------
    u : value of each statistic. A batch of runs has one more axis: first in datasets, last inside the simulators
    """

    u: Annotated[Float[Array, "statistic"], any_numbers] = eqx.field(converter=as_floats)

    if TYPE_CHECKING:  # what the converter takes

        def __init__(self, u: ArrayLike) -> None: ...

    dims: ClassVar[dict[str, tuple[str, ...]]] = {"u": ("statistic",)}
    overlap: ClassVar[str] = "u"
