"""Coordinates of the statistics of a problem: conversion to vectors, names of entries, and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from sgdlimits.checks import statistics
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.problem.view import ProblemView
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.text import format_count


class Coordinates(ProblemView):
    """Conversions between the statistics of a problem and vectors, names of entries, and checks of statistics.

    These defaults are for statistics that consist of scalars, all of which can change. A problem with other statistics returns
    a subclass as its `coordinates`, or defines some of these methods itself.
    """

    overridable = ("names", "moves", "variables", "from_overlaps", "in_limit", "admissible", "fits", "check")

    def vector(self, stats: PyTree) -> Float[Array, " n"]:
        """Return, as a vector, the entries of one run's statistics that can change, in the order of `problem.covariance`."""
        return ravel_pytree(stats)[0]

    def from_vector(self, vector: Float[Array, " n"], like: PyTree) -> PyTree:
        """Return the statistics that have the given `vector`; entries outside the vector are taken from `like`."""
        return ravel_pytree(like)[1](vector)

    def names(self, stats: PyTree) -> tuple[str, ...]:
        """Return the names of the entries of the statistics' vector, such as `M[0,1]`."""
        return tuple(type(stats).dims)

    def moves(self, stats: PyTree) -> np.ndarray:
        """Return a mask of the statistics vector: true for entries that training changes, false for norms on the sphere."""
        return np.ones(len(self.names(stats)), bool)

    def variables(self, stats: PyTree) -> dict[str, tuple[tuple[str, ...], Any]]:
        """Return the arrays of the statistics by their names in datasets, each with the names of its last axes."""
        return {name: (axes, getattr(stats, name)) for name, axes in type(stats).dims.items()}

    def from_overlaps(self, overlaps: Overlaps) -> PyTree:
        """Convert overlaps of a batch of runs to the statistics of the problem."""
        return overlaps

    def in_limit(self, stats: PyTree) -> PyTree:
        """Convert the statistics of one run to those of the problem's limit of large d, `problem.limit`."""
        return stats

    def admissible(self, stats: PyTree) -> PyTree:
        """Project the statistics of a batch of runs to the nearest statistics that some weights have.

        Noise of a discretised diffusion may produce statistics that no weights have. The runs are on the last axis.
        """
        return stats

    def fits(self, stats: PyTree) -> None:
        """Raise `BadInput` unless the statistics of one run have the problem's type and shapes, and finite entries."""
        statistics("stats", stats)
        for name, (axes, leaf) in self.variables(stats).items():
            if np.ndim(leaf) != len(axes):
                raise BadInput(
                    f"{name} of one run must have {len(axes)} axes; got shape {np.shape(leaf)}. Use jax.vmap for many runs."
                )
            # traced arrays have no values to check
            if not is_traced(leaf) and not np.isfinite(leaf).all():
                raise BadInput(f"{name} must be finite; got {np.asarray(leaf)[~np.isfinite(leaf)][0]}. Give finite statistics.")

    def check(self, stats: PyTree) -> None:
        """Raise `BadInput` unless, for each run of a batch, some weights have the given statistics."""
        for i in range(len(jax.tree.leaves(stats)[0])):
            self.fits(jax.tree.map(lambda leaf, i=i: leaf[i], stats))

    def check_one(self, stats: PyTree) -> None:
        """Raise `BadInput` unless some weights have one run's statistics; of traced statistics only shapes are checked."""
        self.fits(stats)
        # whether weights with the statistics exist depends on values, which traced arrays do not have
        if not any(map(is_traced, jax.tree.leaves((self.problem, stats)))):
            self.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], stats))


def check_arrays(arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], width: int, fixed: int, what: str) -> None:
    """Raise `BadInput` unless the arrays of a batch of runs have the given shapes and finite entries.

    Parameters
    ----------
    arrays : arrays by name
    shapes : shape of each array for one run
    width, fixed : numbers of trained and fixed directions, for the message
    what : noun for the arrays, for the message
    """
    for name, shape in shapes.items():
        value = np.asarray(arrays[name])
        if value.shape[1:] != shape:
            raise BadInput(
                f"{name} must have shape {shape} for width {width} and {format_count(fixed, 'fixed direction')}; "
                f"got {value.shape[1:]}. Reshape {what} to {shape}."
            )
        if not np.isfinite(value).all():
            raise BadInput(f"{name} must be finite; got {value[~np.isfinite(value)][0]}. Give finite {what}.")
