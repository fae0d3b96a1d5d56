"""The interface of a learning problem."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Self, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from sgdlimits.domain import array, statistics
from sgdlimits.equations import Equations
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import Part, begun
from sgdlimits.problem.directions import Directions
from sgdlimits.problem.made import replaced, words
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import add, number_array
from sgdlimits.text import count

Method = TypeVar("Method", bound=Callable)
NOW = array(at_least=0, ndim=0)
"""What a time may be."""


def compiled_for_all_times(method: Method) -> Method:
    """Compile a method of statistics and a time, which is traced; without a time, schedules have their first value."""
    inside, of_limit = eqx.filter_jit(method), method.__name__ != "risk"

    @wraps(method)
    def with_number(self, stats: PyTree, t: Any = None) -> Any:
        self.fits(stats)
        if of_limit:
            self.check_limit()
        return inside(self, stats, None if t is None else number_array(NOW("t", t)))

    return cast(Method, with_number)


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


class Problem(Part):
    """What is learnt, and how the statistics of SGD on it move. Immutable, a pytree, its numbers traceable.

    A problem of a new form implements the abstract methods below, for one state without a batch axis, as pure JAX functions;
    `jax.vmap`, `jax.grad` and `jax.jit` of them must work. Its statistics are an `equinox.Module` of arrays with a class
    attribute `dims`, which names the axes of each. With these, the ODE, its flow and every analysis of the flow work. The exact
    chain and SGD in R^d are registered beside their levels (`level.chain.chain_process`, `level.sgd.sgd_process`).

    What users call (`drift`, `drift_parts`, `covariance`, `risk`) is compiled here; what implementers write (`_drift_parts`,
    `_covariance`, `_risk`) is not.
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

    def at(self, t: Float[Array, ""] | float) -> Self:
        """The problem as it is at time t: itself, unless a schedule stands in it.

        Every level takes drift, covariance, risk, observables and floor from it, and conditions are given it.
        """
        return super().at(t)

    def _now(self, t: Float[Array, ""] | float | None) -> Self:
        return begun(self) if t is None else self.at(t)

    @compiled_for_all_times
    def drift_parts(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> tuple[PyTree, PyTree]:
        """(population, corrector): d stats/dt as d -> infinity, split into gradient flow and the effect of the step size."""
        return self._now(t)._drift_parts(stats)

    @compiled_for_all_times
    def drift(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> PyTree:
        """d stats/dt as d -> infinity, with t in samples per dimension."""
        return add(*self._now(t)._drift_parts(stats))

    @compiled_for_all_times
    def covariance(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> Float[Array, "n n"]:
        """Covariance of d times the one-sample increment as d -> infinity."""
        return self._now(t)._covariance(stats)

    @compiled_for_all_times
    def risk(self, stats: PyTree, t: Float[Array, ""] | float | None = None) -> Float[Array, ""]:
        """Population risk, noise floor included."""
        return self._now(t)._risk(stats)

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

    def observables(self, stats: PyTree) -> dict[str, Float[Array, ""]]:
        """What is shown beside the risk, by name, at statistics of one run."""
        return {}

    def variables(self, stats: PyTree) -> dict[str, tuple[tuple[str, ...], Any]]:
        """The arrays of statistics by name, as datasets have them, and the axes of each beyond those in front."""
        return {name: (axes, getattr(stats, name)) for name, axes in type(stats).dims.items()}

    @property
    def limit(self) -> Problem:
        """The problem whose statistics move by the drift: itself, unless they are others as d grows."""
        return self

    def check_limit(self) -> None:
        """Raise `BadInput` where the statistics have no drift as d grows."""
        return None

    def in_limit(self, stats: PyTree) -> PyTree:
        """Statistics of one run as those of `limit`."""
        return stats

    def vector(self, stats: PyTree) -> Float[Array, " n"]:
        """The numbers of one run's statistics that can move, in the order of `covariance`."""
        return ravel_pytree(stats)[0]

    def from_vector(self, vector: Float[Array, " n"], like: PyTree) -> PyTree:
        """The inverse of `vector`; what it leaves out is taken from `like`."""
        return ravel_pytree(like)[1](vector)

    def names(self, stats: PyTree) -> tuple[str, ...]:
        """What each entry of `vector` is called: for statistics that are single numbers, their names."""
        return tuple(type(stats).dims)

    def moves(self, stats: PyTree) -> np.ndarray:
        """Which entries of `vector` are free: all, unless the algorithm holds some."""
        return np.ones(len(self.names(stats)), bool)

    @property
    @abc.abstractmethod
    def directions(self) -> Directions:
        """The trained and the fixed directions, which starts are drawn for."""

    @property
    def sphere(self) -> bool:
        """Whether the norms of the trained directions are held at 1."""
        return False

    @property
    def trains_second(self) -> bool:
        """Whether a second layer is trained."""
        return False

    def from_overlaps(self, overlaps: Overlaps) -> PyTree:
        """The problem's statistics of runs (runs first) whose directions have these overlaps."""
        return overlaps

    def admissible(self, stats: PyTree) -> PyTree:
        """Statistics of runs (runs last), moved to where weights have them if a step in time has left that."""
        return stats

    @property
    def floor(self) -> Float[Array, ""] | float:
        """The risk that remains where the prediction is the label without its noise."""
        return 0.0

    def __repr__(self) -> str:
        return f"{getattr(self, 'name', type(self).__name__)}: {words(self)}"

    def replace(self, **changes: Any) -> Self:
        """The problem with other arguments, by the names that its preset or its constructors have for them.

        Parameters
        ----------
        **changes : new values by name, such as lr, noise or width

        Returns
        -------
        Problem
            what the preset gives with these; for a problem from parts, the same parts with these

        >>> import sgdlimits as sl
        >>> sl.presets.phase_retrieval(lr=0.05).replace(lr=0.1, noise=0.2)
        phase_retrieval: width=1, lr=0.1, noise=0.2, sphere=True
          1 square unit learns 1 direction from standard normal inputs; SquaredLoss(), OnePassSGD
        """
        return replaced(self, changes)

    def equations(self) -> Equations:
        """The ODE as text, which `latex` prints."""
        raise BadInput(f"the equations of {type(self).__name__} are not written out. Implement its method equations.")

    def _repr_latex_(self) -> str | None:
        """What notebooks show."""
        try:
            return f"$$\n{self.equations().latex()}\n$$"
        except BadInput:
            return None

    def over_runs(self, f: Callable, batch: PyTree, axis: int = 0) -> PyTree:
        """f of each run of a batch, the runs on an axis, all at once unless that needs much memory."""
        return jax.vmap(f, axis, axis)(batch)

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many numbers the state of one run is, about."""

    @property
    def tolerance(self) -> float:
        """A relative tolerance worth asking of a solver of the drift."""
        return 1e-9

    def sharp(self) -> Self:
        """The problem with kinks as they are, where its drift smooths them for solvers."""
        return self

    def refined(self, stats: PyTree, tolerance: float | None = None) -> Self:
        """The problem with expectations fine enough at these statistics of one run, or a warning where they are not."""
        return self

    @property
    def implicit(self) -> bool:
        """Whether the Jacobian of one run's drift is small enough to be made, as an implicit solver needs."""
        return True

    @property
    @abc.abstractmethod
    def rate(self) -> Float[Array, ""] | float:
        """Paper time per unit of t."""

    @property
    def samples_per_step(self) -> int:
        """How many samples one step of SGD takes: the time t is the number of steps times this over d."""
        return 1

    @abc.abstractmethod
    def check(self, stats: PyTree) -> None:
        """Raise `BadInput` unless the statistics of a batch of runs (runs first) belong to this problem."""


def check_state(problem: Problem, stats: PyTree) -> None:
    """Raise `BadInput` unless weights have these statistics of one run; of traced ones kind and shapes are looked at alone."""
    problem.fits(stats)
    if not any(map(is_traced, jax.tree.leaves((problem, stats)))):
        problem.check(jax.tree.map(lambda leaf: np.asarray(leaf)[None], stats))
