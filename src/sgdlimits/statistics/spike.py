"""The summary statistics of an estimate of a spike."""

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
class Spike(Part):
    r"""Summary statistics of an estimate x of the spike, a unit vector v.

    Parameters
    ----------
    m : the overlap :math:`x\cdot v`
    r2 : the squared length of the orthogonal component, :math:`|x - mv|^2`

    Both are scalars. A batch of runs has one axis: first in datasets and arguments, last inside the simulators.

    >>> float(Spike(m=0.5, r2=1).squared_norm)
    1.25
    """

    m: Annotated[Float[Array, "*runs"], any_numbers] = eqx.field(converter=as_floats)
    r2: Annotated[Float[Array, "*runs"], any_numbers] = eqx.field(converter=as_floats)

    if TYPE_CHECKING:  # what the converters take

        def __init__(self, m: ArrayLike, r2: ArrayLike) -> None: ...

    dims: ClassVar[dict[str, tuple[str, ...]]] = {"m": (), "r2": ()}
    overlap: ClassVar[str] = "m"

    @property
    def squared_norm(self) -> Float[Array, "*runs"]:
        r"""The squared norm of the estimate x, :math:`|x|^2 = m^2 + r_\perp^2`, where :math:`r_\perp^2` is `r2`."""
        return self.m**2 + self.r2
