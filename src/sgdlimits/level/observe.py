"""What is looked at beside the statistics: functions of one run's statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.statistics.overlaps import select_students
from sgdlimits.trial import try_function


class Observe(eqx.Module):
    """Named functions of the statistics of one run, beside the risk."""

    functions: tuple[tuple[str, Callable], ...] = eqx.field(static=True, default=())

    def of_runs(self, stats: PyTree) -> dict[str, Array]:
        """The functions of each run of a batch, runs first."""
        every = lambda fn: jax.vmap(lambda one: jnp.asarray(fn(one)))
        return {name: every(fn)(select_students(stats)) for name, fn in self.functions}


def as_observables(observe: Mapping[str, Callable] | None, stats: PyTree, taken: set[str]) -> Observe:
    """Checked functions: names that are free, and numbers or arrays of numbers for the statistics of one run."""
    functions = dict(observe or {})
    for name, fn in functions.items():
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise BadInput(f"observe cannot use the name {name!r}: it is taken or no name. Give another, such as 'largest'.")
        if not hasattr(try_function(f"observe {name!r}", fn, "the statistics of one run", stats, shape=None), "shape"):
            raise BadInput(f"observe {name!r} must return one array; got several. Stack them, or observe each by its own name.")
    return Observe(tuple(functions.items()))
