"""Interface of learning problems."""

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
from sgdlimits.problem.made import PrintableProblem
from sgdlimits.problem.numerics import Numerics
from sgdlimits.renamed import find_renamed_attribute
from sgdlimits.statistics.trees import add, as_floats

Method = TypeVar("Method", bound=Callable)
CHECK_TIME = array(at_least=0, ndim=0)
"""Check of a time argument: one number of at least 0."""


def compiled_at_time(method: Method) -> Method:
    """Decorate a method of a problem that takes statistics and a time t: check its arguments, and compile it.

    The time is traced, so that one compilation serves all times. For t = None, schedules are replaced by their initial values.
    """
    compiled_method = eqx.filter_jit(method)
    needs_limit = method.__name__ != "risk"

    @wraps(method)
    def evaluate(self, stats: PyTree, t: Any = None) -> Any:
        self.coordinates.fits(stats)
        if needs_limit:
            _ = self.limit  # raises BadInput if the problem has no limit
        result = compiled_method(self, stats, None if t is None else as_floats(CHECK_TIME("t", t)))
        if any(not is_traced(leaf) and not np.isfinite(leaf).all() for leaf in jax.tree.leaves(result)):
            # the full check is expensive, and only looks for a cause: statistics that no weights have
            self.coordinates.check_one(stats)
        return result

    return cast(Method, evaluate)


def at_time(problem: Any, t: Float[Array, ""] | float | None) -> Any:
    """Return a problem with its schedules replaced by their values at time t; None stands for time zero."""
    return at_start(problem) if t is None else problem.at(t)  # begun replaces schedules by their initial values


class Problem(PrintableProblem):
    """A learning problem: statistics of SGD with their drift, covariance and risk. An immutable pytree.

    A problem of a new form implements `_drift_parts`, `_covariance` and `_risk` for one state without a batch axis, as pure JAX
    functions for which `jax.vmap`, `jax.grad` and `jax.jit` work. It also defines its `directions`, and the `rate` that
    converts t to the time of its paper. Its statistics are an `equinox.Module` of arrays with a class attribute `dims`, which
    names the axes of each. With these, the ODE, its flow and every analysis of the flow work. If a default in `Coordinates` or
    `Numerics` does not apply, the class defines that method itself, such as `from_overlaps`, or returns a subclass. The exact
    chain and SGD in R^d are registered beside their levels (`level.chain.chain_process`, `level.sgd.sgd_process`), and the
    equations as text by `analysis.equations.equations_of_problem`.

    Any parameter may be a schedule, which `at(t)` replaces by its value: every level takes drift, covariance, risk, observables
    and floor from the problem at the current time, and passes it to stop conditions. The methods that users call (`drift`,
    `drift_parts`, `covariance`, `risk`) are compiled here; those that implementers write are not.
    """

    @abc.abstractmethod
    def _drift_parts(self, stats: PyTree) -> tuple[PyTree, PyTree]:
        """Return the drift at one run's statistics and one time, in two parts: gradient flow and corrector.

        The corrector is the part quadratic in the learning rate, due to the finite step size.
        """

    @abc.abstractmethod
    def _covariance(self, stats: PyTree) -> Float[Array, "n n"]:
        """Return the covariance of the increments at the statistics of one run, for the problem at one time."""

    @abc.abstractmethod
    def _risk(self, stats: PyTree) -> Float[Array, ""]:
        """Return the population risk at the statistics of one run, for the problem at one time."""

    @property
    @abc.abstractmethod
    def directions(self) -> Directions:
        """Numbers of trained and fixed directions, the Gram matrix of the fixed ones, and the law of initial weights."""

    @property
    @abc.abstractmethod
    def rate(self) -> Float[Array, ""] | float:
        """Factor from t, in samples per dimension, to the time unit of the problem's paper."""

    @property
    def sphere(self) -> bool:
        """Whether the trained directions are normalised to norm 1 after each step."""
        return False

    @property
    def trains_second(self) -> bool:
        """Whether the second layer of the network is trained."""
        return False

    @property
    def floor(self) -> Float[Array, ""] | float:
        """Noise floor of the risk: the risk of a network that predicts every label without its noise."""
        return 0.0

    def observables(self, stats: PyTree) -> dict[str, Float[Array, ""]]:
        """Return the quantities, by name, that datasets store beside the risk, at the statistics of one run."""
        return {}

    @property
    def limit(self) -> Problem:
        """The problem in the limit of large d; most problems are their own limit, with the same statistics.

        Raises `BadInput` if the statistics have no drift as d grows.
        """
        return self

    @property
    def coordinates(self) -> Coordinates:
        """Conversions of the problem's statistics to vectors and back, and checks of statistics."""
        return Coordinates(self)

    @property
    def numerics(self) -> Numerics:
        """Numerical properties of the problem: size, accuracy of its drift, and the number of runs computed at once."""
        return Numerics(self)

    @compiled_at_time
    def drift_parts(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> tuple[PyTree, PyTree]:
        """Return the drift in two parts: gradient flow on the risk, and the corrector, quadratic in the learning rate."""
        return at_time(self, t)._drift_parts(stats)

    @compiled_at_time
    def drift(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> PyTree:
        """Return the drift of the statistics, d stats/dt as d -> infinity, with t in samples per dimension."""
        return add(*at_time(self, t)._drift_parts(stats))

    @compiled_at_time
    def covariance(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> Float[Array, "n n"]:
        """Return the noise covariance: that of d times the one-sample increment of the statistics as d -> infinity.

        Rows and columns are in the order of `vector`.
        """
        return at_time(self, t)._covariance(stats)

    @compiled_at_time
    def risk(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> Float[Array, ""]:
        """Return the population risk at the statistics, noise floor included."""
        return at_time(self, t)._risk(stats)

    def vector(self, stats: PyTree) -> Float[Array, " n"]:
        """Return the entries of one run's statistics that can change as a vector, in the order of `covariance`."""
        return self.coordinates.vector(stats)

    def from_vector(self, vector: Float[Array, " n"], like: PyTree) -> PyTree:
        """Return the statistics that have the given `vector`; entries outside the vector are taken from `like`."""
        return self.coordinates.from_vector(vector, like)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute that has moved to `problem.coordinates` or `problem.numerics`, with a deprecation warning."""
            return find_renamed_attribute(self, name, ("coordinates", Coordinates), ("numerics", Numerics))
