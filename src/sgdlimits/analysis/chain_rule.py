r"""Effective dynamics of a function of a problem's statistics, by the chain rule with its second-order term.

If the statistics u have the drift -f + g, with f of first and g of second order in the learning rate, and noise of covariance
:math:`\Sigma/d`, the statistics :math:`v = \varphi(u)` have

.. math:: f_v = \varphi' f, \qquad g_v = \varphi' g + \frac1{2d}\,\varphi''\!:\!\Sigma, \qquad
          \Sigma_v = \varphi'\,\Sigma\,\varphi'^\top .

The term with :math:`\varphi''` vanishes as d grows, unless :math:`\varphi` grows with d: for :math:`\varphi = d\,m^2`, where m
is an overlap, it is :math:`\Sigma_{mm}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_flatten_with_path
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.closure import Closure
from sgdlimits.analysis.dynamics import CRITICAL_REGIME, EffectiveDynamics
from sgdlimits.domain import Count, Function, Seed, checked
from sgdlimits.errors import BadInput, check_count, is_traced
from sgdlimits.problem.base import Problem
from sgdlimits.start import RandomInit
from sgdlimits.statistics.trees import select_run
from sgdlimits.trial import try_function

MAX_CLOSED_SHARE = 1e-5
"""Share of a drift's derivative along directions that change no statistic, up to which it counts as a rounding error."""
RANK_TOLERANCE = 1e-9
"""Fraction of the largest singular value of a Jacobian below which a singular value counts as zero."""


@checked
@dataclass(frozen=True, repr=False)
class ChosenDynamics(EffectiveDynamics):
    """Effective dynamics of functions of a problem's statistics, made by `effective_dynamics(problem, statistics=...)`.

    The methods `f`, `g` and `h` take the problem's statistics u and return a pytree with the structure of `statistics(u)`;
    `names(u)` lists the entries in the order of the rows and columns of `Sigma`.

    Parameters
    ----------
    problem : problem, or function of the dimension d that returns one
    exponent : exponent s of the step size lr d^-s
    statistics : JAX function of the problem's statistics, or of the problem's statistics and d
    d : dimension at which the second-order term of the chain rule is evaluated; None for infinite d, where the term vanishes
    """

    statistics: Function = None  # type: ignore[assignment]  # a field after one with a default needs one
    d: Count | None = None

    def __repr__(self) -> str:
        at = "" if self.d is None else f" at d = {self.d}"
        return super().__repr__().replace("EffectiveDynamics of", f"ChosenDynamics{at} of functions of the statistics of", 1)

    def at(self, d: int) -> ChosenDynamics:
        """Return the dynamics at dimension `d`, with the second-order term of the chain rule evaluated there."""
        d = check_count("d", d)
        return ChosenDynamics(self._problem_at_dimension(d), self.exponent, self.statistics, d)

    def f(self, stats: PyTree) -> PyTree:
        """Return the term f of h = -f + g: -f is the drift of the chosen statistics under population gradient descent."""
        problem, one = self._here(stats)
        return one.tree(self._population(problem, one, stats))

    def g(self, stats: PyTree) -> PyTree:
        """Return the corrector g: the drift terms quadratic in the learning rate and the second-order term of the chain rule.

        It is zero below the critical step size; above it `BadInput` is raised.
        """
        problem, one = self._here(stats)
        return one.tree(self._corrector(problem, one, stats))

    def h(self, stats: PyTree) -> PyTree:
        """Return the drift h = -f + g of the chosen statistics, where f and g are what the methods `f` and `g` return.

        Raise `BadInput` above the critical step size.
        """
        problem, one = self._here(stats)
        return one.tree(self._drift(problem, one, stats))

    def Sigma(self, stats: PyTree) -> Float[Array, "n n"]:
        r"""Return the diffusion matrix of :math:`\sqrt d` times the chosen statistics, to first order in the noise."""
        self._need_limit("Sigma")
        problem, one = self._here(stats)
        jacobian = one.jacobian(problem.vector(stats))
        return float(self.regime == CRITICAL_REGIME) * jacobian @ problem.covariance(stats) @ jacobian.T

    def diffusion(self, stats: PyTree) -> Float[Array, "n n"]:
        """Return the diffusion matrix of the chosen statistics at dimension d, `Sigma` / d; zero if d is None."""
        Sigma = self.Sigma(stats)
        return jnp.zeros_like(Sigma) if self.d is None else Sigma / self.d

    def names(self, stats: PyTree) -> tuple[str, ...]:
        """Return the name of each entry of the chosen statistics, such as "m[0]"."""
        return self._here(stats)[1].names

    @checked
    def closure(self, states: Count = 8, seed: Seed = 0) -> Closure:
        """Test whether the drift of the chosen statistics is a function of these statistics alone, so that they close.

        The drift is differentiated at random states along the directions in which no chosen statistic changes: if the
        statistics close, these derivatives vanish. At a given d the diffusion matrix is tested in the same way.

        Parameters
        ----------
        states : number of random states
        seed : seed of the random states
        """
        problem = self._single_problem()
        span = problem.directions.width + problem.directions.fixed
        points = RandomInit(2 * span, scale=1.0).sample(problem, runs=states, seed=seed)
        shares, pulls = [], []
        for i in range(states):
            stats = jax.tree.map(np.asarray, select_run(points, i))
            names, share, pull = self._measure_leak(problem, stats)
            shares.append(share)
            pulls.append(pull)
        worst = np.argmax(shares, axis=0)
        own = np.array(problem.coordinates.names(stats))[np.flatnonzero(problem.coordinates.moves(stats))]
        along = tuple(str(own[int(np.abs(pulls[i][j]).argmax())]) for j, i in enumerate(worst))
        tolerance = max(MAX_CLOSED_SHARE, 100 * problem.numerics.tolerance)
        return Closure(names, np.max(shares, axis=0), np.zeros(len(names)), along, tolerance)

    def localizability(self, *args: Any, **more: Any) -> NoReturn:
        """Raise `BadInput`: localizability is a condition on statistics of weights, not on functions of statistics."""
        raise BadInput(
            "localizability is measured for the statistics of the problem, not for functions of these statistics. Leave out "
            "statistics=, and give magnify= and around= for magnified statistics; or give your own loss=."
        )

    @staticmethod
    def _population(problem: Problem, one: StatisticsFunction, stats: PyTree) -> Float[Array, " n"]:
        return -one.directional_derivative(problem.vector(stats), problem.vector(problem.drift_parts(stats)[0]))

    def _corrector(self, problem: Problem, one: StatisticsFunction, stats: PyTree) -> Float[Array, " n"]:
        self._need_limit("g")
        x = problem.vector(stats)
        slope = one.directional_derivative(x, problem.vector(problem.drift_parts(stats)[1]))
        if self.d is not None and self.regime == CRITICAL_REGIME:
            slope = slope + one.contract_second_derivatives(x, problem.covariance(stats)) / (2 * self.d)
        return float(self.regime == CRITICAL_REGIME) * slope

    def _drift(self, problem: Problem, one: StatisticsFunction, stats: PyTree) -> Float[Array, " n"]:
        return self._corrector(problem, one, stats) - self._population(problem, one, stats)

    def _measure_leak(self, problem: Problem, stats: PyTree) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
        """Return how much the drift of each chosen statistic varies along directions in which no chosen statistic changes.

        The share of a statistic is the norm of its drift's derivatives along these directions, relative to the norm of all
        derivatives of its drift at this state.
        """
        _, one = self._here(stats)
        free = np.flatnonzero(problem.coordinates.moves(stats))
        x = problem.vector(stats)

        def quantities(x):
            here = problem.from_vector(x, stats)
            noise = self.diffusion(here).ravel() if self.d is not None else jnp.zeros(0)
            return jnp.concatenate([self._drift(problem, one, here), noise])

        slopes = np.asarray(jax.jacfwd(quantities)(x))[:, free]
        n = len(one.names)
        noise = slopes[n:].reshape(n, -1, free.size)  # the noise of a statistic counts as part of what moves it
        slopes = np.concatenate([slopes[:n, None], noise], axis=1)
        jacobian = np.asarray(one.jacobian(x))[:, free]
        size = np.abs(jacobian).max(1, keepdims=True)
        _, values, rows = np.linalg.svd(jacobian / np.where(size > 0, size, 1.0), full_matrices=True)
        kernel = rows[int((values > RANK_TOLERANCE * values.max(initial=0.0)).sum()) :]
        pull = slopes @ kernel.T @ kernel
        whole_change = np.sqrt((slopes**2).sum((1, 2)))
        share = np.sqrt((pull**2).sum((1, 2))) / np.where(whole_change > 0, whole_change, 1.0)
        return one.names, share, np.abs(pull).max(1)

    def _here(self, stats: PyTree) -> tuple[Problem, StatisticsFunction]:
        """Return the problem and the `StatisticsFunction` statistics, checked by evaluating them at the state `stats`."""
        problem = self._single_problem()
        problem.coordinates.fits(stats)
        needs_d = requires_dimension(self.statistics)
        if needs_d and self.d is None:
            raise BadInput("statistics= depends on d, but no d is given. Choose d, for instance dynamics.at(1000).h.")
        fn = (lambda u: self.statistics(u, self.d)) if needs_d else self.statistics
        return problem, StatisticsFunction.from_function(fn, problem, stats)


class StatisticsFunction:
    """User's function of a problem's statistics as a function of vectors, with its derivatives and the names of its entries."""

    def __init__(self, fn: Callable[[Any], Array], names: tuple[str, ...], tree: Callable[[Any], PyTree]) -> None:
        self.fn, self.names, self.tree = fn, names, tree

    @classmethod
    def from_function(cls, fn: Callable[[PyTree], Any], problem: Problem, stats: PyTree) -> StatisticsFunction:
        if not any(map(is_traced, jax.tree.leaves(stats))):
            cls._try(fn, stats)
        value = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), fn(jax.tree.map(jnp.asarray, stats)))
        if isinstance(value, type(stats)):
            names, flat = problem.coordinates.names(stats), lambda value: problem.vector(value)
            tree = lambda vector: problem.from_vector(vector, jax.tree.map(jnp.zeros_like, value))
        else:
            names, flat = name_tree_entries(value), lambda value: ravel_pytree(value)[0]
            shape = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), value)
            tree = ravel_pytree(shape)[1]
        along = lambda x: jnp.asarray(flat(fn(problem.from_vector(x, stats))), float)
        return cls(along, names, tree)

    @staticmethod
    def _try(fn: Callable[[PyTree], Any], stats: PyTree) -> None:
        """Raise `BadInput` unless the function returns differentiable numbers at a state."""
        kind = f"{type(stats).__name__}({', '.join(type(stats).dims)})"
        try:
            try_function("statistics", fn, kind, jax.tree.map(np.asarray, stats), shape=None)
        except BadInput as reason:
            if not isinstance(reason.__cause__, AttributeError):
                raise
            hint = "A statistic of the weights that is no function of these has no closed dynamics."
            raise BadInput(f"{reason} {hint}") from reason

    def directional_derivative(self, x: Any, direction: Any) -> Float[Array, " n"]:
        """Return the derivative of the function at the vector x along the vector `direction`."""
        return self._finite(jax.jvp(self.fn, (x,), (jnp.asarray(direction),))[1])

    def jacobian(self, x: Any) -> Float[Array, "n m"]:
        return self._finite(jax.jacfwd(self.fn)(x))

    def contract_second_derivatives(self, x: Any, covariance: Any) -> Float[Array, " n"]:
        """Return the contraction of the function's second derivatives at the vector x with a covariance matrix."""

        def one(axis, column):
            slope = lambda x: jax.jvp(self.fn, (x,), (axis,))[1]
            return jax.jvp(slope, (x,), (column,))[1]

        return self._finite(jax.vmap(one)(jnp.eye(x.size), covariance).sum(0))

    def _finite(self, value: Any) -> Any:
        if not isinstance(value, jax.core.Tracer) and not np.isfinite(value).all():
            bad = self.names[int(np.argmin(np.isfinite(value).reshape(len(self.names), -1).all(1)))]
            raise BadInput(f"statistics= has no finite derivative of {bad} at this state. Give a state where {bad} is smooth.")
        return value


def name_tree_entries(tree: PyTree) -> tuple[str, ...]:
    """Return the name of each entry of a pytree of arrays, made of dictionary keys and array indices.

    >>> name_tree_entries({"m": np.zeros(2), "r": 0.0})
    ('m[0]', 'm[1]', 'r')
    """
    names: list[str] = []
    for path, leaf in tree_flatten_with_path(tree)[0]:
        keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        name = ".".join(keys) or "u"
        names += [f"{name}[{','.join(map(str, index))}]" if index else name for index in np.ndindex(np.shape(leaf))]
    return tuple(names)


def requires_dimension(fn: Callable[..., Any]) -> bool:
    """Return whether a function of statistics requires a second argument, d."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) > 1
