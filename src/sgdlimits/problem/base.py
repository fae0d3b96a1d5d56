"""The interface of a learning problem."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.checks import array
from sgdlimits.errors import is_traced
from sgdlimits.part import at_start
from sgdlimits.problem.coordinates import Coordinates
from sgdlimits.problem.directions import Directions
from sgdlimits.problem.made import Presented
from sgdlimits.problem.numerics import Numerics
from sgdlimits.renamed import attribute_of
from sgdlimits.statistics.trees import add, as_floats

Method = TypeVar("Method", bound=Callable)
NOW = array(at_least=0, ndim=0)
"""What a time may be."""


def compiled_for_all_times(method: Method) -> Method:
    """Compile a method of statistics and a time, which is traced; without a time, schedules have their first value."""
    inside, of_limit = eqx.filter_jit(method), method.__name__ != "risk"

    @wraps(method)
    def with_number(self, stats: PyTree, t: Any = None) -> Any:
        self.coordinates.fits(stats)
        if of_limit:
            _ = self.limit  # which there may not be
        answer = inside(self, stats, None if t is None else as_floats(NOW("t", t)))
        if any(not is_traced(leaf) and not np.isfinite(leaf).all() for leaf in jax.tree.leaves(answer)):
            self.coordinates.check_one(stats)  # what weights cannot have
        return answer

    return cast(Method, with_number)


def at_time(problem: Any, t: Float[Array, ""] | float | None) -> Any:
    """A problem at a time; without one, at the start."""
    return at_start(problem) if t is None else problem.at(t)


class Problem(Presented):
    """What is learnt, and how the statistics of SGD on it move. Immutable, a pytree, its numbers traceable.

    A problem of a new form implements `_drift_parts`, `_covariance` and `_risk` for one state without a batch axis, as pure JAX
    functions, and says which `directions` there are and what the `rate` of its paper's clock is; `jax.vmap`, `jax.grad` and
    `jax.jit` of them must work. Its statistics are an `equinox.Module` of arrays with a class attribute `dims`, which names the
    axes of each. With these, the ODE, its flow and every analysis of the flow work. Where `Coordinates` or `Numerics` are not
    right as they are, the class defines some of their methods itself, such as `from_overlaps`, or returns a subclass. The exact
    chain and SGD in R^d are registered beside their levels (`level.chain.chain_process`, `level.sgd.sgd_process`), and the
    equations as text by `analysis.equations.equations_of`.

    Any number in it may be a schedule, which `at(t)` replaces: every level takes drift, covariance, risk, observables and floor
    from the problem at its time, and conditions are given that. What users call (`drift`, `drift_parts`, `covariance`, `risk`)
    is compiled here; what implementers write is not.
    """

    @abc.abstractmethod
    def _drift_parts(self, stats: PyTree) -> tuple[PyTree, PyTree]:
        """`drift_parts` at the time this problem stands at."""

    @abc.abstractmethod
    def _covariance(self, stats: PyTree) -> Float[Array, "n n"]:
        """`covariance`, at statistics of one run."""

    @abc.abstractmethod
    def _risk(self, stats: PyTree) -> Float[Array, ""]:
        """`risk`, at statistics of one run."""

    @property
    @abc.abstractmethod
    def directions(self) -> Directions:
        """The trained and the fixed directions, which starts are drawn for."""

    @property
    @abc.abstractmethod
    def rate(self) -> Float[Array, ""] | float:
        """Paper time per unit of t."""

    @property
    def sphere(self) -> bool:
        """Whether the norms of the trained directions are held at 1."""
        return False

    @property
    def trains_second(self) -> bool:
        """Whether a second layer is trained."""
        return False

    @property
    def floor(self) -> Float[Array, ""] | float:
        """The risk that remains where the prediction is the label without its noise."""
        return 0.0

    def observables(self, stats: PyTree) -> dict[str, Float[Array, ""]]:
        """Return the numbers shown beside the risk, by name, at statistics of one run."""
        return {}

    @property
    def limit(self) -> Problem:
        """The problem whose statistics move by the drift: itself, unless they are others as d grows.

        Raises `BadInput` where the statistics have no drift as d grows.
        """
        return self

    @property
    def coordinates(self) -> Coordinates:
        """Statistics as vectors, and which of them weights can have."""
        return Coordinates(self)

    @property
    def numerics(self) -> Numerics:
        """How large the problem is, how exact its drift, and how runs are computed together."""
        return Numerics(self)

    @compiled_for_all_times
    def drift_parts(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> tuple[PyTree, PyTree]:
        """(population, corrector): d stats/dt as d -> infinity, split into gradient flow and the effect of the step size."""
        return at_time(self, t)._drift_parts(stats)

    @compiled_for_all_times
    def drift(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> PyTree:
        """Drift of the statistics, d stats/dt as d -> infinity, with t in samples per dimension."""
        return add(*at_time(self, t)._drift_parts(stats))

    @compiled_for_all_times
    def covariance(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> Float[Array, "n n"]:
        """Covariance of d times the one-sample increment as d -> infinity."""
        return at_time(self, t)._covariance(stats)

    @compiled_for_all_times
    def risk(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> Float[Array, ""]:
        """Population risk, noise floor included."""
        return at_time(self, t)._risk(stats)

    def vector(self, stats: PyTree) -> Float[Array, " n"]:
        """The numbers of one run's statistics that can move, in the order of `covariance`."""
        return self.coordinates.vector(stats)

    def from_vector(self, vector: Float[Array, " n"], like: PyTree) -> PyTree:
        """The inverse of `vector`; what it leaves out is taken from `like`."""
        return self.coordinates.from_vector(vector, like)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What `coordinates` and `numerics` have now, by its old name, with a warning."""
            return attribute_of(self, name, ("coordinates", Coordinates), ("numerics", Numerics))
