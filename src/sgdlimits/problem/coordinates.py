"""Coordinates of a problem's statistics: vectors and names, what weights can have, and the checks of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from sgdlimits.checks import statistics
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.problem.view import View
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.text import count


class Coordinates(View):
    """Statistics as vectors, and which statistics belong to a problem.

    This class is right for statistics of single numbers, all of which move. A problem whose statistics are others returns a
    subclass as its `coordinates`, or defines some of these methods itself.
    """

    own = ("names", "moves", "variables", "from_overlaps", "in_limit", "admissible", "fits", "check")

    def vector(self, stats: PyTree) -> Float[Array, " n"]:
        """The numbers of one run's statistics that can move, in the order of `problem.covariance`."""
        return ravel_pytree(stats)[0]

    def from_vector(self, vector: Float[Array, " n"], like: PyTree) -> PyTree:
        """The inverse of `vector`; what it leaves out is taken from `like`."""
        return ravel_pytree(like)[1](vector)

    def names(self, stats: PyTree) -> tuple[str, ...]:
        """The name of each entry of `vector`: for statistics that are single numbers, their names."""
        return tuple(type(stats).dims)

    def moves(self, stats: PyTree) -> np.ndarray:
        """Mask of the entries of `vector` that are free: all, unless the algorithm holds some."""
        return np.ones(len(self.names(stats)), bool)

    def variables(self, stats: PyTree) -> dict[str, tuple[tuple[str, ...], Any]]:
        """The arrays of statistics by name, as datasets have them, and the axes of each beyond those in front."""
        return {name: (axes, getattr(stats, name)) for name, axes in type(stats).dims.items()}

    def from_overlaps(self, overlaps: Overlaps) -> PyTree:
        """The statistics of runs (runs first) whose directions have these overlaps."""
        return overlaps

    def in_limit(self, stats: PyTree) -> PyTree:
        """Statistics of one run as those of `problem.limit`."""
        return stats

    def admissible(self, stats: PyTree) -> PyTree:
        """Statistics of runs (runs last), moved to where weights have them if a step in time has left that."""
        return stats

    def fits(self, stats: PyTree) -> None:
        """Raise `BadInput` unless these can be statistics of one run: their kind and shapes, and numbers that are finite."""
        statistics("stats", stats)
        for name, (axes, leaf) in self.variables(stats).items():
            if np.ndim(leaf) != len(axes):
                raise BadInput(
                    f"{name} of one run has {len(axes)} axes; got shape {np.shape(leaf)}. Use jax.vmap for many runs."
                )
            if not is_traced(leaf) and not np.isfinite(leaf).all():
                raise BadInput(f"{name} must be finite; got {np.asarray(leaf)[~np.isfinite(leaf)][0]}. Give finite statistics.")

    def check(self, stats: PyTree) -> None:
        """Raise `BadInput` unless weights have these statistics of a batch of runs (runs first)."""
        for i in range(len(jax.tree.leaves(stats)[0])):
            self.fits(jax.tree.map(lambda leaf, i=i: leaf[i], stats))

    def check_one(self, stats: PyTree) -> None:
        """Raise `BadInput` unless weights have these statistics of one run; traced ones are checked by kind and shape."""
        self.fits(stats)
        if not any(map(is_traced, jax.tree.leaves((self.problem, stats)))):
            self.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], stats))


def check_arrays(arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], width: int, fixed: int, what: str) -> None:
    """Raise `BadInput` unless arrays by name, runs first, are finite and have the shapes that so many directions give them."""
    for name, shape in shapes.items():
        value = np.asarray(arrays[name])
        if value.shape[1:] != shape:
            raise BadInput(
                f"{name} must have shape {shape} for width {width} and {count(fixed, 'fixed direction')}; "
                f"got {value.shape[1:]}. Give {what} of that shape."
            )
        if not np.isfinite(value).all():
            raise BadInput(f"{name} must be finite; got {value[~np.isfinite(value)][0]}. Give finite {what}.")
