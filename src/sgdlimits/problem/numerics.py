"""Numerics of a problem: its size, the accuracy of its drift, and the number of runs computed together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from sgdlimits.problem.view import ProblemView


class Numerics(ProblemView):
    """Numerical properties of a problem: its size, the accuracy of its drift, and how many runs are computed at once.

    These defaults are for drifts in closed form. A problem whose expectations have no closed form returns a subclass as its
    `numerics`, or defines some of these attributes itself.
    """

    overridable = ("size", "samples_per_step", "tolerance", "implicit", "over_runs", "without_smoothing", "refined")

    @cached_property
    def size(self) -> int:
        """Approximate number of floats in the statistics of one run."""
        directions = self.problem.directions
        return directions.width * (directions.width + directions.fixed)

    @cached_property
    def samples_per_step(self) -> int:
        """Number of samples in one step of SGD, the batch size b: after n steps, t = n b/d."""
        return 1

    @cached_property
    def tolerance(self) -> float:
        """Relative tolerance for solving the ODE that is justified by the accuracy of the drift."""
        return 1e-9

    @cached_property
    def implicit(self) -> bool:
        """Whether the statistics are few enough for an implicit ODE solver, which needs the Jacobian of the drift."""
        return True

    @cached_property
    def runs_at_once(self) -> int | None:
        """Maximum number of runs whose drift is computed at once, which bounds memory; None for all runs."""
        return None

    def over_runs(self, f: Callable, batch: PyTree, axis: int = 0) -> PyTree:
        """Apply a function `f` of one run to each run of a batch, at most `runs_at_once` runs at a time.

        `axis` is the axis of the runs in all arrays.
        """
        at_once = self.runs_at_once
        if at_once is None or at_once >= jax.tree.leaves(batch)[0].shape[axis]:
            return jax.vmap(f, axis, axis)(batch)
        first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), batch)
        # a loop over single runs needs no vmap inside, which batch_size=1 would add
        results = jax.lax.map(f, first, batch_size=None if at_once == 1 else at_once)
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), results)

    def without_smoothing(self) -> Any:
        """Return the problem with exact kinks of its activations; for ODE solvers the drift may smooth these kinks."""
        return self.problem

    def refined(self, stats: PyTree, tolerance: float | None = None) -> Any:
        """Return the problem with enough quadrature nodes for accurate expectations at the statistics of one run.

        A warning reports accuracy that cannot be reached.
        """
        return self.problem
