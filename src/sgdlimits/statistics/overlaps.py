"""The statistics of a projection problem."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.statistics.trees import number_array


class Overlaps(eqx.Module):
    r"""Summary statistics of p trained directions u_j and k fixed directions e_r.

    Parameters
    ----------
    a : second layer, shape (p,)
    M : overlaps :math:`u_j \cdot e_r`, shape (p, k)
    Q : overlaps :math:`u_j \cdot u_l`, shape (p, p)

    The Gram matrix P of the fixed directions belongs to the problem. A batch of runs has one more axis: first in datasets and
    arguments, last inside the simulators.

    >>> Overlaps(a=[1.0], M=[[0.1]], Q=[[1.0]]).width
    1
    """

    a: Float[Array, "*runs p"] = eqx.field(converter=number_array)
    M: Float[Array, "*runs p k"] = eqx.field(converter=number_array)
    Q: Float[Array, "*runs p p"] = eqx.field(converter=number_array)

    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "a": ("student",),
        "M": ("student", "teacher"),
        "Q": ("student", "student_other"),
    }
    overlap: ClassVar[str] = "M"

    @property
    def width(self) -> int:
        return self.a.shape[-1]


def to_vector(stats: Overlaps, second_layer: bool) -> Float[Array, "n *batch"]:
    """M row by row, the upper triangle of Q row by row, then `a` if it is trained; trailing axes are kept."""
    row, column = np.triu_indices(stats.Q.shape[0])
    parts = [stats.M.reshape(-1, *stats.M.shape[2:]), stats.Q[row, column]]
    return jnp.concatenate([*parts, stats.a] if second_layer else parts)


def from_vector(vector: Float[Array, " n"], like: Overlaps, second_layer: bool) -> Overlaps:
    """The inverse of `to_vector` for one run; `like` gives the shapes, and `a` where it is not trained."""
    p, k = like.M.shape
    row, column = np.triu_indices(p)
    M, Q, a = jnp.split(vector, [p * k, p * k + row.size])
    upper = jnp.zeros((p, p)).at[row, column].set(Q)
    return Overlaps(a if second_layer else like.a, M.reshape(p, k), upper + jnp.triu(upper, 1).T)


def symmetric(stats: Overlaps) -> Overlaps:
    """The statistics of one run with the symmetric part of Q: the drift must not feed what rounding makes of the rest."""
    return Overlaps(stats.a, stats.M, (stats.Q + stats.Q.T) / 2)
