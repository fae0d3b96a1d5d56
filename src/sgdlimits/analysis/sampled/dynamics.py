"""Effective dynamics of statistics of weights, estimated from nothing but a loss and a sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sgdlimits.analysis.sampled.closure import TRIALS, SampledClosure, compare
from sgdlimits.analysis.sampled.empirical import EmpiricalProblem
from sgdlimits.analysis.sampled.estimates import DynamicsEstimates, SampleAverage, StepScales, estimates_at
from sgdlimits.analysis.sampled.family import SampledLocalizability, family_report
from sgdlimits.analysis.sampled.fit import FittedDynamics, box, fitted, grid_points, weights_in
from sgdlimits.analysis.sampled.loss import UserLoss, as_weights, dimension_of
from sgdlimits.analysis.sampled.moments import moments
from sgdlimits.checks import integer, real
from sgdlimits.domain import Count, Fraction, Function, Positive, Seed, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.problem.basis import Polynomials
from sgdlimits.statistics.values import Values
from sgdlimits.trial import describe_error

Samples = Annotated[int, integer(at_least=64)]
DEFAULT_SAMPLES = 4096
MAX_DRAWN = 64
"""Weights from which those with the statistics of a grid are made."""


@checked
@dataclass(frozen=True, repr=False)
class SampledDynamics:
    r"""The dynamics of statistics u(w) of SGD on a loss L(w, x), at the step size :math:`\text{lr}\,d^{-s}`.

    .. math:: f = \text{lr}\,E\langle\nabla L, \nabla u\rangle, \qquad
              g = \tfrac12\text{lr}^2 d^{-s}\sum_{ij} V_{ij}\,\partial_i\partial_j u, \qquad
              \Sigma = \operatorname{Cov}\big[-\text{lr}\,\langle\nabla L,\nabla u\rangle
              + \tfrac12\text{lr}^2 d^{-s}\langle\nabla^2 u,\nabla H\otimes\nabla H\rangle\big],

    with :math:`H = L - EL`, the covariance V of one sample's gradient, and time in :math:`d^s` samples. They are averages over
    samples at weights in R^n, at this d; no array of size n x n is made. `effective_dynamics(loss=...)` makes it.

    Parameters
    ----------
    loss : a JAX function of weights and of one sample that returns a number
    sample : a JAX function of a key and of d that returns one sample, an array or a tree of arrays
    statistics : a JAX function of weights, or of weights and of d, that returns a number, an array or a dictionary of these
    at : weights, an array or a tree of arrays; or a function of a key and of d that draws such
    lr : the learning rate
    d : dimension; None takes the longest last axis of the weights
    exponent : s
    slowed : the unit of time is d^(s + slowed) samples, for statistics that move more slowly than others
    samples : how many samples are averaged
    seed : an integer; the same seed gives the same numbers
    """

    loss: Function
    sample: Function
    statistics: Function
    at: Any
    lr: Positive
    d: Count | None = None
    exponent: Positive = 1.0
    slowed: Annotated[float, real] = 0.0
    samples: Samples = DEFAULT_SAMPLES
    seed: Seed = 0

    def __post_init__(self) -> None:
        _ = self.user

    @cached_property
    def weights(self) -> PyTree:
        """The weights at which estimates are made: those given, or the first ones that `at` draws."""
        return self.draw_weights(0)

    @cached_property
    def dimension(self) -> int:
        """The dimension d."""
        if self.d is None and callable(self.at):
            raise BadInput("d is needed with a function that draws weights. Give d=, for instance d=200.")
        return dimension_of(as_weights("at", self.at)) if self.d is None else self.d

    @cached_property
    def user(self) -> UserLoss:
        """The user's functions at d, which were tried."""
        return UserLoss.of(self.loss, self.sample, self.statistics, self.weights, self.dimension)

    @property
    def scales(self) -> StepScales:
        return StepScales(self.lr, self.exponent, self.slowed, self.dimension)

    def __repr__(self) -> str:
        clock = f", time in d^{self.exponent + self.slowed:g} samples" if self.slowed else ""
        return f"SampledDynamics at step size {self.lr:g} d^-{self.exponent:g}, d = {self.dimension}{clock}\n{self.estimates()}"

    def estimates(self, weights: PyTree | None = None) -> DynamicsEstimates:
        """All estimates at weights; without weights, at those of `at`."""
        return self._estimates if weights is None else self.estimates_of([weights])[0]

    def estimates_of(self, weights: Sequence[PyTree]) -> tuple[DynamicsEstimates, ...]:
        """All estimates at several weights, from the same samples: differences between weights have smaller errors."""
        rows = np.stack([self._row(each) for each in weights])
        measured = moments(self.user, rows, self.samples, jax.random.key(self.seed))
        return tuple(
            estimates_at(self.user, self.scales, measured, i, np.asarray(self.user.u(row))) for i, row in enumerate(rows)
        )

    def _row(self, weights: PyTree) -> np.ndarray:
        other = as_weights("weights", weights)
        if jax.tree.map(np.shape, other) != jax.tree.map(np.shape, self.weights):
            shapes = ", ".join(str(np.shape(leaf)) for leaf in jax.tree.leaves(other))
            must = ", ".join(map(str, self.user.weights.shapes))
            raise BadInput(f"weights must have the shapes {must} of those in at; got {shapes}. Give such weights.")
        return np.asarray(self.user.row(other))

    @cached_property
    def _estimates(self) -> DynamicsEstimates:
        return self.estimates_of([self.weights])[0]

    def u(self, weights: PyTree | None = None) -> PyTree:
        """The statistics of weights."""
        return self.user.tree(np.asarray(self.user.u(self._row(self.weights if weights is None else weights))))

    def f(self, weights: PyTree | None = None) -> SampleAverage:
        """The population drift: gradient descent on the population loss follows -f."""
        return self.estimates(weights).f

    def g(self, weights: PyTree | None = None) -> SampleAverage:
        """The corrector, the effect of the step size on the mean, without bias."""
        return self.estimates(weights).g

    def h(self, weights: PyTree | None = None) -> SampleAverage:
        """The drift -f + g."""
        return self.estimates(weights).h

    def Sigma(self, weights: PyTree | None = None) -> SampleAverage:
        """The diffusion matrix of the statistics magnified by the root of one over the step size, as that of a problem."""
        return self.estimates(weights).Sigma

    def volatility(self, weights: PyTree | None = None) -> SampleAverage:
        r"""The part of first order of `Sigma`: :math:`\text{lr}^2JVJ^\top` with the Jacobian J of the statistics."""
        return self.estimates(weights).volatility

    def diffusion(self, weights: PyTree | None = None) -> SampleAverage:
        """The diffusion matrix of the statistics themselves at this d."""
        return self.estimates(weights).diffusion

    @checked
    def closure(self, references: Count = 4, tolerance: Fraction = 0.05) -> SampledClosure:
        """Test whether the statistics close: whether the drift agrees at weights that share all of them.

        Random weights, and some that are sought out to change the drift, are moved until they have the statistics of a
        reference. All are compared on the same samples.

        Parameters
        ----------
        references : how many weights have others compared with them
        tolerance : the largest difference, relative to the size of the drift, that counts as none
        """
        rows = np.stack([self._row(self.draw_weights(i)) for i in range(references * (1 + TRIALS))])
        return compare(self.user, self.scales, rows[:references], rows[references:], self.samples, tolerance, self.seed)

    @checked
    def localizability(self, dimensions: tuple[int, ...] = (32, 64, 128, 256), states: Count = 4) -> SampledLocalizability:
        r"""Measure the conditions of the limit theorem (Definition 2.1 [2]_) over a family of dimensions.

        `at` must draw weights. The last condition is taken as :math:`O(\delta^{-3})`, as in
        `EffectiveDynamics.localizability`.

        Parameters
        ----------
        dimensions : at least three, increasing
        states : how many random weights stand for a compact set of statistics
        """
        given, dimensions = dimensions, tuple(sorted({check_count("d", d) for d in dimensions}))
        if len(dimensions) < 3:
            raise BadInput(f"dimensions must hold at least three; got {list(given)}. Give, say, (32, 64, 128, 256).")
        family = [self.with_d(d) for d in dimensions]
        drawn = [np.stack([each._row(each.draw_weights(i)) for i in range(states)]) for each in family]
        users = [each.user for each in family]
        return family_report(users, drawn, self.exponent, self.slowed, self.samples, self.seed)

    @checked
    def fit(
        self, degree: Annotated[int, integer(below=9)] = 3, points: Count | None = None, region: Any = None
    ) -> FittedDynamics:
        """Fit polynomials of the statistics to the dynamics; `.problem` follows them as ODE or SDE, with all analyses.

        Parameters
        ----------
        degree : the total degree
        points : how many weights the dynamics is estimated at; None takes four for each term
        region : an interval for each statistic by name, {"m": (-1, 1), ...}, over which weights are spread. None takes weights
            as `at` draws them
        """
        k = len(self.user.names)
        count = points or 4 * math.comb(k + degree, k)
        drawn = np.stack([self._row(self.draw_weights(i)) for i in range(count)])
        if region is None:
            u = np.asarray(jax.vmap(self.user.u)(drawn))
        else:
            drawn, u = weights_in(self.user, drawn, box(self.user.names, region, count, self.seed))
        size = np.abs(u).max(0)
        basis = Polynomials(degree, jnp.where(size > 0, size, 1.0))
        return fitted(self.user, self.scales, basis, drawn, u, self.samples, self.seed)

    @checked
    def tabulate(self, grid: Any) -> FittedDynamics:
        """Tabulate the dynamics on a grid, with cubic splines in between; `.problem` follows them as ODE or SDE.

        Parameters
        ----------
        grid : increasing values of each statistic by name, {"m": np.linspace(-1, 1, 9), ...}: the dynamics is estimated at
            weights with each combination of them
        """
        basis, targets = grid_points(self.user.names, grid)
        drawn = np.stack([self._row(self.draw_weights(i)) for i in range(min(len(targets), MAX_DRAWN))])
        rows, u = weights_in(self.user, drawn, targets)
        if len(u) < len(targets):
            raise BadInput(
                f"{len(targets) - len(u)} points of the grid are no statistics of weights. Give a smaller grid, or use fit."
            )
        return fitted(self.user, self.scales, basis, rows, u, self.samples, self.seed)

    @checked
    def empirical(self, samples: Annotated[int, integer(at_least=2)] = 1024) -> EmpiricalProblem:
        """The dynamics as a problem without a fit: every drift is an average over the same samples, at weights of that state.

        Parameters
        ----------
        samples : how many samples are averaged
        """
        weights = jax.tree.map(np.asarray, self.weights)
        return EmpiricalProblem(
            self.loss, self.sample, self.statistics, weights, self.dimension, float(self.lr), float(self.exponent),
            float(self.slowed), samples, self.seed,
        )  # fmt: skip

    @checked
    def starts(self, runs: Count = 1) -> Values:
        """The statistics of weights as `at` draws them, a start for `runs` runs of a fitted problem."""
        return Values(np.stack([np.asarray(self.user.u(self._row(self.draw_weights(i)))) for i in range(runs)]))

    def with_d(self, d: int) -> SampledDynamics:
        """The same at another dimension; `at` must be a function that draws weights."""
        if not callable(self.at):
            raise BadInput(f"weights in {self.dimension} dimensions are none in {d}. Give at= a function of a key and of d.")
        return replace(self, d=d)

    def draw_weights(self, index: int) -> PyTree:
        """The weights of a number: those that `at` draws; or the weights `at`, and from 1 on others of about their size."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), 2**31), index)
        if callable(self.at):
            try:
                drawn = self.at(key, self.dimension)
            except Exception as reason:
                raise BadInput(f"at fails on a key and d = {self.dimension}: {describe_error(reason)}") from reason
            return as_weights("at", drawn)
        given = as_weights("at", self.at)
        return given if index == 0 else _shaken(given, key)


def _shaken(weights: PyTree, key: Any) -> PyTree:
    """Weights with noise of their own size added to each array."""
    leaves, tree = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    size = lambda leaf: np.sqrt((leaf**2).mean()) or 1 / np.sqrt(max(1, leaf.shape[-1] if leaf.ndim else 1))
    noise = [np.asarray(jax.random.normal(key, leaf.shape)) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [leaf + size(leaf) * xi for leaf, xi in zip(leaves, noise, strict=True)])
