"""The summary statistics of a projection problem: overlaps of trained and fixed directions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from sgdlimits.checks import any_numbers, check_each, finite_scalars, scalars, string
from sgdlimits.domain import Matrix, checked
from sgdlimits.errors import BadInput
from sgdlimits.part import Part
from sgdlimits.statistics.trees import as_floats

STUDENT = "student"
Scalars = Any
"""Type of the scalars of a network: an array of shape (p,), or arrays by name."""


def as_scalars(value: Any) -> Scalars:
    """Convert network scalars to floating point: one array, or a dictionary of arrays by name."""
    return {name: as_floats(part) for name, part in value.items()} if isinstance(value, Mapping) else as_floats(value)


def select_scalars(scalars: Scalars, which: bool | tuple[str, ...]) -> Scalars:
    """Select all of the network scalars (True), none (False), or those with the given names."""
    if isinstance(which, bool):
        return scalars if which else ()
    return {name: scalars[name] for name in which}


def replace_scalars(scalars: Scalars, new: Scalars) -> Scalars:
    """Replace the values of all network scalars (one array), or of some by name; the empty tuple replaces none."""
    if isinstance(scalars, dict):
        return {**scalars, **dict(new)}
    return scalars if isinstance(new, tuple) else new


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of arrays of directions as a tuple; raise `BadInput`, naming the argument `name`, if there are none."""
    if not (names := check_each(string)(name, value)):
        raise BadInput(f"{name} is empty. Give {name}=('student',), or leave out {name}.")
    return names


@checked
class Overlaps(Part):
    r"""Summary statistics (overlaps) of p trained directions u_j and k fixed directions e_r.

    Parameters
    ----------
    a : second layer, shape (p,); or all scalars of another network, a dictionary of arrays by name
    M : overlaps :math:`u_j \cdot e_r`, shape (p, k)
    Q : overlaps :math:`u_j \cdot u_l`, shape (p, p)
    kept : memory of the algorithm other than directions, by name; empty for SGD
    names : names of the groups of p rows in M and Q: the students first, then directions in the algorithm's memory

    For inputs with blocks of variances, M and Q have a leading axis for the block: scalar products within each block, which
    are not weighted by the variance.

    The Gram matrix P of the fixed directions belongs to the problem. A batch of runs has one more axis: first in datasets and
    arguments, last inside the simulators.

    >>> Overlaps(a=[1.0], M=[[0.1]], Q=[[1.0]]).width
    1
    """

    a: Annotated[Scalars, scalars] = eqx.field(converter=as_scalars)
    M: Annotated[Float[Array, "*runs p k"], any_numbers] = eqx.field(converter=as_floats)
    Q: Annotated[Float[Array, "*runs p p"], any_numbers] = eqx.field(converter=as_floats)
    kept: dict[str, Any] = eqx.field(default_factory=dict)
    names: Annotated[tuple[str, ...], check_names] = eqx.field(static=True, default=(STUDENT,))

    if TYPE_CHECKING:  # what the converters take

        def __init__(
            self,
            a: ArrayLike | Mapping[str, Any],
            M: ArrayLike,
            Q: ArrayLike,
            kept: dict[str, Any] = ...,
            names: tuple[str, ...] = ...,
        ) -> None: ...

    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "a": ("student",),
        "M": ("student", "teacher"),
        "Q": ("student", "student_other"),
    }
    overlap: ClassVar[str] = "M"

    @property
    def has_blocks(self) -> bool:
        """Whether M and Q have an axis of blocks of coordinates."""
        # M has one axis more than a plain second layer has; named scalars, of any shapes, exist for one block only.
        return not isinstance(self.a, dict) and np.ndim(self.M) - np.ndim(self.a) == 2

    @property
    def width(self) -> int:
        """Number of students, p."""
        return self.M.shape[-2] // len(self.names)

    def of(self, name: str, other: str | None = None) -> Overlaps:
        """Return the overlaps of one array of directions, such as "student", with Q between it and `other`."""
        rows, columns = (rows_of(self.names, one, self.width) for one in (name, other or name))
        # Memory of scalars under the same name, such as their velocity, takes the place of the scalars.
        own = self.kept.get(name, ())
        own = own if jax.tree.leaves(own) else ()
        return Overlaps(replace_scalars(self.a, own), self.M[..., rows, :], self.Q[..., rows, columns])

    def variables(self, scalars: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Return the arrays that a dataset stores, by variable name, each with the names of its last axes.

        Memory of the algorithm has prefixed names, such as `velocity_M`. `scalars` gives the axes of network scalars other than
        a second layer.
        """
        students, axes = self.of(STUDENT), {**self.dims, **(scalars or {})}
        if self.has_blocks:
            axes |= {name: ("block", *axes[name]) for name in "MQ"}

        def scalar_variables(tree: Scalars, prefix: str = "") -> dict[str, tuple[tuple[str, ...], Any]]:
            """Return the dataset arrays of network scalars, with a prefix for their names."""
            by_name = tree if isinstance(tree, dict) else {"a": tree}
            return {f"{prefix}{name}": (axes.get(name, ()), leaf) for name, leaf in by_name.items()}

        arrays = {**scalar_variables(self.a), "M": (axes["M"], students.M), "Q": (axes["Q"], students.Q)}
        for i, name in enumerate(self.names[1:], 1):
            own = self.of(name)
            arrays |= {f"{name}_M": (axes["M"], own.M), f"{name}_Q": (axes["Q"], own.Q)}
            arrays |= {f"{name}_{other}": (axes["Q"], self.of(name, other).Q) for other in self.names[:i]}
        for name, kept in self.kept.items():
            if name in self.names and jax.tree.leaves(kept):
                arrays |= scalar_variables(kept, f"{name}_")
            elif name not in self.names:
                # Memory without directions has no axis, or one or two of the students, behind the axes of M's batch.
                arrays[name] = (("student",) * (np.ndim(kept) - self.M.ndim + len(axes["M"])), kept)
        return arrays

    def reorder(self, names: tuple[str, ...], kept: Collection[str] | None = None) -> Overlaps:
        """Return the overlaps of the named arrays of directions, in this order, with the scalar memory named in `kept`."""
        remembered = self.kept if kept is None else {name: self.kept[name] for name in self.kept if name in kept}
        if names == self.names:  # no indexing, which would add operations to every step
            return Overlaps(self.a, self.M, self.Q, remembered, names)
        rows = np.concatenate([np.r_[rows_of(self.names, name, self.width)] for name in names])
        return Overlaps(self.a, self.M[..., rows, :], self.Q[..., rows[:, None], rows], remembered, names)


@checked
def weights(W: Matrix, E: Matrix, a: Annotated[ArrayLike | Mapping[str, Any], finite_scalars] | None = None) -> Overlaps:
    r"""Compute the overlaps of weights in R^d, :math:`M = WE^\top` and :math:`Q = WW^\top`, as a start or for analysis.

    Parameters
    ----------
    W : the trained directions, shape (p, d)
    E : the fixed directions, shape (k, d); their Gram matrix :math:`EE^\top` is the problem's `gram`
    a : the second layer, shape (p,), ones unless given; or all scalars of another network, arrays by name

    >>> weights([[0.6, 0.8, 0.0]], [[1.0, 0.0, 0.0]]).M.tolist()
    [[0.6]]
    """
    u, fixed = np.asarray(W, float), np.asarray(E, float)
    if u.shape[1] != fixed.shape[1]:
        raise BadInput(f"W and E must have the same d columns; got shapes {u.shape} and {fixed.shape}. Give vectors of R^d.")
    if a is not None and not isinstance(a, Mapping) and np.shape(a) != (len(u),):
        raise BadInput(
            f"a must have shape ({len(u)},), one number for each row of W; got {np.shape(a)}. Change the shape of a."
        )
    return Overlaps(np.ones(len(u)) if a is None else a, u @ fixed.T, u @ u.T)


def select_students(stats: Any) -> Any:
    """Return statistics without the algorithm's memory, for users' functions."""
    return stats.of(STUDENT) if isinstance(stats, Overlaps) and len(stats.names) > 1 else stats


def rows_of(names: tuple[str, ...], name: str, width: int) -> slice:
    """Return the slice of the rows of M and Q that belong to the directions called `name`; each name has `width` rows."""
    if name not in names:
        raise BadInput(f"there are no directions of {name!r} in the statistics. Give one of {', '.join(names)}.")
    first = names.index(name) * width
    return slice(first, first + width)


def to_vector(stats: Overlaps, second_layer: bool | tuple[str, ...]) -> Float[Array, "n *batch"]:
    """Flatten overlaps to vectors: M and the upper triangle of Q row by row, trained scalars, memory of the algorithm.

    `second_layer` says which scalars are trained: all, none, or those with the given names. Trailing axes are kept.
    """
    first = 1 if stats.has_blocks else 0
    row, column = np.triu_indices(stats.Q.shape[first])
    batch = stats.M.shape[first + 2 :]
    upper = stats.Q[:, row, column] if stats.has_blocks else stats.Q[row, column]
    flat = [
        leaf.reshape(-1, *batch)
        for leaf in (stats.M, upper, *jax.tree.leaves((select_scalars(stats.a, second_layer), stats.kept)))
    ]
    return jnp.concatenate(flat)


def from_vector(vector: Float[Array, " n"], like: Overlaps, second_layer: bool | tuple[str, ...]) -> Overlaps:
    """Invert `to_vector` for one run; `like` provides the shapes and the scalars that are not trained."""
    *blocks, n, k = like.M.shape
    count = math.prod(blocks)
    row, column = np.triu_indices(n)
    M, Q, rest = jnp.split(vector, [count * n * k, count * (n * k + row.size)])
    # Only the upper triangle of Q is a coordinate, so symmetry cannot be lost.
    symmetric_matrix = lambda Q: (lambda upper: upper + jnp.triu(upper, 1).T)(jnp.zeros((n, n)).at[row, column].set(Q))
    full = jax.vmap(symmetric_matrix)(Q.reshape(count, -1)) if blocks else symmetric_matrix(Q)
    new, kept = ravel_pytree((select_scalars(like.a, second_layer), like.kept))[1](rest)
    return Overlaps(replace_scalars(like.a, new), M.reshape(*blocks, n, k), full, kept, like.names)


def symmetrise(stats: Overlaps) -> Overlaps:
    """Replace Q of one run by its symmetric part, so that the drift cannot amplify asymmetric rounding errors."""
    across = jnp.swapaxes(stats.Q, 1, 2) if stats.has_blocks else stats.Q.T
    return Overlaps(stats.a, stats.M, (stats.Q + across) / 2, stats.kept, stats.names)
