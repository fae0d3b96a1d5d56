"""The interface of a learning problem."""

from __future__ import annotations

import abc
from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from sgdlimits.problem.overlaps import add


class Problem(eqx.Module):
    """What is learnt, and how the statistics of SGD on it move. Immutable, a pytree, its numbers traceable.

    A problem of a new form implements the methods below, for one state without a batch axis, as pure JAX functions; `jax.vmap`,
    `jax.grad` and `jax.jit` of them must work. Its statistics are an `equinox.Module` of arrays with a class attribute
    `dims`, which names the axes of each. With these, the ODE, its flow and every analysis of the flow work. The exact chain
    and SGD in R^d are registered beside their levels (`level.chain.chain_process`, `level.sgd.sgd_process`).
    """

    @abc.abstractmethod
    def drift_parts(self, stats: PyTree) -> tuple[PyTree, PyTree]:
        """(population, corrector): d stats/dt as d -> infinity, split into gradient flow and the effect of the step size."""

    def drift(self, stats: PyTree) -> PyTree:
        """d stats/dt as d -> infinity, with t in samples per dimension."""
        return add(*self.drift_parts(stats))

    @abc.abstractmethod
    def covariance(self, stats: PyTree) -> Float[Array, "n n"]:
        """Covariance of d times the one-sample increment as d -> infinity."""

    @abc.abstractmethod
    def risk(self, stats: PyTree) -> Float[Array, ""]:
        """Population risk, noise floor included."""

    @property
    def floor(self) -> Float[Array, ""] | float:
        """The risk that remains where the prediction is the label without its noise."""
        return 0.0

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

    def warn_of_inaccuracy(self, stats: PyTree, tolerance: float | None = None) -> None:
        """Warn where the drift at these statistics of one run is less accurate than `tolerance`, or than it should be."""

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
