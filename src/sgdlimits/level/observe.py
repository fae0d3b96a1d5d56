"""Observables: functions of the statistics of one run that the user wants saved beside the risk."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from sgdlimits.errors import BadInput
from sgdlimits.statistics.overlaps import select_students
from sgdlimits.trial import try_function


class Observables(eqx.Module):
    """Functions of the statistics of one run, by name, whose values a simulation saves beside the risk."""

    functions: tuple[tuple[str, Callable], ...] = eqx.field(static=True, default=())

    def evaluate_runs(self, stats: PyTree) -> dict[str, Array]:
        """Return the values of the functions for each run of a batch, by name."""
        over_runs = lambda fn: jax.vmap(lambda one: jnp.asarray(fn(one)))
        return {name: over_runs(fn)(select_students(stats)) for name, fn in self.functions}


def as_observables(observe: Mapping[str, Callable] | None, stats: PyTree, taken: set[str]) -> Observables:
    """Convert the argument `observe` of `simulate`, functions by name, to checked observables.

    Parameters
    ----------
    observe : functions by name; each must return one number or array
    stats : statistics of one run, at which each function is tried
    taken : names that datasets already use
    """
    functions = dict(observe or {})
    for name, fn in functions.items():
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise BadInput(
                f"observe cannot use the name {name!r}: it is in use, or not an identifier. Give another name, such "
                f"as 'largest'."
            )
        if not hasattr(try_function(f"observe {name!r}", fn, "the statistics of one run", stats, shape=None), "shape"):
            raise BadInput(f"observe {name!r} must return one array; got several. Stack them, or observe each by its own name.")
    return Observables(tuple(functions.items()))
