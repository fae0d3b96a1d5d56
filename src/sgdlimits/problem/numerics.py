"""Numerics of a problem: its size, how exact its drift is, and how many runs are computed at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from sgdlimits.problem.view import View


class Numerics(View):
    """How a problem is computed.

    This class is right for drifts in closed form. A problem with others returns a subclass as its `numerics`, or defines some
    of this itself.
    """

    own = ("size", "samples_per_step", "tolerance", "implicit", "over_runs", "sharp", "refined")

    @cached_property
    def size(self) -> int:
        """About how many numbers the state of one run is."""
        directions = self.problem.directions
        return directions.width * (directions.width + directions.fixed)

    @cached_property
    def samples_per_step(self) -> int:
        """Samples of one step of SGD: the time t is the number of steps times this over d."""
        return 1

    @cached_property
    def tolerance(self) -> float:
        """A relative tolerance worth asking of a solver of the drift."""
        return 1e-9

    @cached_property
    def implicit(self) -> bool:
        """Whether the Jacobian of one run's drift is small enough to be made, as an implicit solver needs."""
        return True

    @cached_property
    def runs_at_once(self) -> int | None:
        """The most runs whose drift is computed at once; None for all."""
        return None

    def over_runs(self, f: Callable, batch: PyTree, axis: int = 0) -> PyTree:
        """Apply f to each run of a batch, the runs on an axis, `runs_at_once` at a time."""
        few = self.runs_at_once
        if few is None or few >= jax.tree.leaves(batch)[0].shape[axis]:
            return jax.vmap(f, axis, axis)(batch)
        first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), batch)
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, 0, axis), jax.lax.map(f, first, batch_size=None if few == 1 else few)
        )

    def without_smoothing(self) -> Any:
        """The problem with kinks as they are, where its drift smooths them for solvers."""
        return self.problem

    def refined(self, stats: PyTree, tolerance: float | None = None) -> Any:
        """The problem with expectations fine enough at these statistics of one run, or a warning where they are not."""
        return self.problem
