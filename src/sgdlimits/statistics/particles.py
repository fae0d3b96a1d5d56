"""The summary statistics of the mean-field limit, without overlaps between units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from sgdlimits.checks import any_numbers, scalars
from sgdlimits.domain import checked
from sgdlimits.part import Part
from sgdlimits.statistics.frame import project_to_cone
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import as_floats


@checked
class Particles(Part):
    r"""Statistics of p units u_j without overlaps between units: the particles of the mean-field limit.

    Parameters
    ----------
    a : second layer, shape (p,)
    M : overlaps :math:`u_j \cdot e_r` with the k fixed directions e_r, shape (p, k)
    q : squared norms :math:`|u_j|^2`, shape (p,)

    A batch of runs has one more axis, first.

    >>> Particles(a=[1.0, 1.0], M=[[0.1], [0.2]], q=[1.0, 1.0]).width
    2
    """

    a: Annotated[Float[Array, "*runs p"], scalars] = eqx.field(converter=as_floats)
    M: Annotated[Float[Array, "*runs p k"], any_numbers] = eqx.field(converter=as_floats)
    q: Annotated[Float[Array, "*runs p"], any_numbers] = eqx.field(converter=as_floats)

    if TYPE_CHECKING:  # what the converters take

        def __init__(self, a: ArrayLike, M: ArrayLike, q: ArrayLike) -> None: ...

    dims: ClassVar[dict[str, tuple[str, ...]]] = {"a": ("student",), "M": ("student", "teacher"), "q": ("student",)}
    overlap: ClassVar[str] = "M"

    @property
    def width(self) -> int:
        """The number of units, p."""
        return self.a.shape[-1]


def particles_of(stats: Overlaps | Particles) -> Particles:
    """Convert overlaps to particles, which keep the diagonal of Q only; particles are unchanged."""
    if isinstance(stats, Particles):
        return stats
    return Particles(stats.a, stats.M, as_floats(np.diagonal(stats.Q, axis1=-2, axis2=-1)))


@project_to_cone.register
def _(stats: Particles, B):
    """Shrink the overlaps M of units whose component along the fixed directions is longer than their norm."""
    # |P_frame u|^2 = |B^-1 M|^2 cannot exceed |u|^2 = q.
    inside = (np.linalg.solve(B, np.asarray(stats.M).swapaxes(-1, -2)) ** 2).sum(-2)
    scale = np.sqrt(np.minimum(1.0, np.divide(stats.q, inside, out=np.ones_like(inside), where=inside > 0)))
    return eqx.tree_at(lambda stats: stats.M, stats, scale[..., None] * stats.M)
