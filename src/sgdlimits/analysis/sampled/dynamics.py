"""Effective dynamics of statistics of weights, estimated from a user's loss and sampler."""

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

from sgdlimits.analysis.sampled.closure import TRIAL_PAIR_COUNT, SampledClosure, compare_drifts
from sgdlimits.analysis.sampled.empirical import EmpiricalProblem
from sgdlimits.analysis.sampled.estimates import DynamicsEstimates, SampleAverage, StepSizeFactors, estimates_at
from sgdlimits.analysis.sampled.family import SampledLocalizability, family_report
from sgdlimits.analysis.sampled.fit import FittedDynamics, find_weights, fit_dynamics, grid_points, sample_region
from sgdlimits.analysis.sampled.loss import UserLoss, as_weights, dimension_of
from sgdlimits.analysis.sampled.moments import moments
from sgdlimits.checks import integer, real
from sgdlimits.domain import Count, Fraction, Function, Positive, Seed, checked
from sgdlimits.errors import BadInput, check_count
from sgdlimits.problem.basis import Polynomials
from sgdlimits.statistics.values import Values
from sgdlimits.trial import describe_error

SampleCount = Annotated[int, integer(at_least=64)]
DEFAULT_SAMPLE_NUMBER = 4096
"""Default number of samples over which the dynamics is averaged."""
MAX_DRAWN_WEIGHTS = 64
"""Maximum number of weights drawn as starting points of the search for weights with a grid point's statistics."""


@checked
@dataclass(frozen=True, repr=False)
class SampledDynamics:
    r"""Effective dynamics of statistics u(w) of SGD on a loss L(w, x), at the step size :math:`\text{lr}\,d^{-s}`.

    .. math:: f = \text{lr}\,E\langle\nabla L, \nabla u\rangle, \qquad
              g = \tfrac12\text{lr}^2 d^{-s}\sum_{ij} V_{ij}\,\partial_i\partial_j u, \qquad
              \Sigma = \operatorname{Cov}\big[-\text{lr}\,\langle\nabla L,\nabla u\rangle
              + \tfrac12\text{lr}^2 d^{-s}\langle\nabla^2 u,\nabla H\otimes\nabla H\rangle\big],

    with :math:`H = L - EL`, the covariance V of one sample's gradient, and time in :math:`d^s` samples. The population drift f,
    the corrector g and the diffusion matrix :math:`\Sigma` are estimated by averages over samples at weights in R^n, without
    arrays of size n x n. `effective_dynamics(loss=...)` returns objects of this class.

    Parameters
    ----------
    loss : JAX function of weights and of one sample that returns a number
    sample : JAX function of a key and of d that returns one sample, an array or a pytree of arrays
    statistics : JAX function of weights, or of weights and of d, that returns a number, an array or a dictionary of these
    at : weights, an array or a pytree of arrays; or a function of a key and of d that draws weights
    lr : learning rate
    d : dimension; None takes the length of the longest last axis of the weights
    exponent : exponent s of the step size lr d^-s
    slowed : power of d by which time is slowed, for slow statistics: a unit of time is d^(s + slowed) samples
    samples : number of samples in an average
    seed : seed of samples and weights
    """

    loss: Function
    sample: Function
    statistics: Function
    at: Any
    lr: Positive
    d: Count | None = None
    exponent: Positive = 1.0
    slowed: Annotated[float, real] = 0.0
    samples: SampleCount = DEFAULT_SAMPLE_NUMBER
    seed: Seed = 0

    def __post_init__(self) -> None:
        _ = self.user_loss

    @cached_property
    def weights(self) -> PyTree:
        """Weights at which the dynamics is estimated by default: `at`, or the first draw if `at` is a function."""
        return self.draw_weights(0)

    @cached_property
    def dimension(self) -> int:
        """Dimension d, given or read from the weights."""
        if self.d is None and callable(self.at):
            raise BadInput("d= is missing, which a function at= that draws weights needs. Give d=, for instance d=200.")
        return dimension_of(as_weights("at", self.at)) if self.d is None else self.d

    @cached_property
    def user_loss(self) -> UserLoss:
        """Loss, sampler and statistics at dimension d, each of which has been evaluated once as a check."""
        return UserLoss.of(self.loss, self.sample, self.statistics, self.weights, self.dimension)

    @property
    def scales(self) -> StepSizeFactors:
        """Powers of the learning rate and of d that convert averages over samples to terms of the dynamics."""
        return StepSizeFactors(self.lr, self.exponent, self.slowed, self.dimension)

    def __repr__(self) -> str:
        clock = f", time in d^{self.exponent + self.slowed:g} samples" if self.slowed else ""
        return f"SampledDynamics at step size {self.lr:g} d^-{self.exponent:g}, d = {self.dimension}{clock}\n{self.estimates()}"

    def estimates(self, weights: PyTree | None = None) -> DynamicsEstimates:
        """Return the estimates of all terms of the dynamics at given weights, by default `self.weights`."""
        return self._estimates if weights is None else self.estimates_of([weights])[0]

    def estimates_of(self, weights: Sequence[PyTree]) -> tuple[DynamicsEstimates, ...]:
        """Return the estimates of all terms of the dynamics at each of several weights.

        The samples are the same for all weights, so that errors of differences between weights are small.
        """
        rows = np.stack([self._row(each) for each in weights])
        measured = moments(self.user_loss, rows, self.samples, jax.random.key(self.seed))
        return tuple(
            estimates_at(self.user_loss, self.scales, measured, i, np.asarray(self.user_loss.u(row)))
            for i, row in enumerate(rows)
        )

    def _row(self, weights: PyTree) -> np.ndarray:
        """Return weights as one row, or raise `BadInput` unless they have the shapes of `self.weights`."""
        other = as_weights("weights", weights)
        if jax.tree.map(np.shape, other) != jax.tree.map(np.shape, self.weights):
            shapes = ", ".join(str(np.shape(leaf)) for leaf in jax.tree.leaves(other))
            must = ", ".join(map(str, self.user_loss.weights.shapes))
            raise BadInput(f"weights must have the shapes {must}, as those of at=; got {shapes}. Give weights of these shapes.")
        return np.asarray(self.user_loss.flatten_weights(other))

    @cached_property
    def _estimates(self) -> DynamicsEstimates:
        return self.estimates_of([self.weights])[0]

    def u(self, weights: PyTree | None = None) -> PyTree:
        """Return the statistics of weights, in the form in which `statistics` returns them."""
        return self.user_loss.unflatten_statistics(
            np.asarray(self.user_loss.u(self._row(self.weights if weights is None else weights)))
        )

    def f(self, weights: PyTree | None = None) -> SampleAverage:
        """Return f, with standard error; -f is the drift of the statistics under gradient descent on the population loss."""
        return self.estimates(weights).f

    def g(self, weights: PyTree | None = None) -> SampleAverage:
        """Return an unbiased estimate of the corrector g, the drift quadratic in the learning rate, with standard error."""
        return self.estimates(weights).g

    def h(self, weights: PyTree | None = None) -> SampleAverage:
        """Return the drift h = -f + g of the statistics, with standard error; the methods `f` and `g` return its two terms."""
        return self.estimates(weights).h

    def Sigma(self, weights: PyTree | None = None) -> SampleAverage:
        """Return the diffusion matrix of :math:`d^{s/2}` times the statistics, with error, at the step size lr d^-s."""
        return self.estimates(weights).Sigma

    def volatility(self, weights: PyTree | None = None) -> SampleAverage:
        r"""Return the first-order part :math:`\text{lr}^2JVJ^\top` of `Sigma`, with standard error.

        J is the Jacobian of the statistics, and V the covariance of one sample's gradient.
        """
        return self.estimates(weights).volatility

    def diffusion(self, weights: PyTree | None = None) -> SampleAverage:
        """Return the diffusion matrix of the statistics at dimension d, `Sigma` times d^-s, with standard error."""
        return self.estimates(weights).diffusion

    @checked
    def closure(self, references: Count = 4, tolerance: Fraction = 0.05) -> SampledClosure:
        """Test whether the statistics close: whether their drift is the same at different weights with equal statistics.

        Random weights, and weights found by a search for a different drift, are moved until they have the statistics of
        reference weights. The drifts are compared on the same samples.

        Parameters
        ----------
        references : number of reference weights
        tolerance : largest difference, relative to the size of the drift, that counts as zero
        """
        rows = np.stack([self._row(self.draw_weights(i)) for i in range(references * (1 + TRIAL_PAIR_COUNT))])
        return compare_drifts(
            self.user_loss, self.scales, rows[:references], rows[references:], self.samples, tolerance, self.seed
        )

    @checked
    def localizability(self, dimensions: tuple[int, ...] = (32, 64, 128, 256), states: Count = 4) -> SampledLocalizability:
        r"""Measure the conditions of the limit theorem (Definition 2.1 [2]_) over a family of dimensions.

        `at` must be a function that draws weights. With the step size :math:`\delta`, the last condition is taken as
        :math:`O(\delta^{-3})`, as in `EffectiveDynamics.localizability`.

        Parameters
        ----------
        dimensions : at least three dimensions
        states : number of random weights, whose statistics represent a compact set
        """
        given, dimensions = dimensions, tuple(sorted({check_count("d", d) for d in dimensions}))
        if len(dimensions) < 3:
            raise BadInput(f"dimensions= must have three or more entries; got {list(given)}. Give, say, (32, 64, 128, 256).")
        family = [self.with_d(d) for d in dimensions]
        drawn = [np.stack([each._row(each.draw_weights(i)) for i in range(states)]) for each in family]
        users = [each.user_loss for each in family]
        return family_report(users, drawn, self.exponent, self.slowed, self.samples, self.seed)

    @checked
    def fit(
        self, degree: Annotated[int, integer(below=9)] = 3, points: Count | None = None, region: Any = None
    ) -> FittedDynamics:
        """Fit polynomials of the statistics to the estimated dynamics; the result's `problem` can be simulated and analysed.

        Parameters
        ----------
        degree : total degree of the polynomials
        points : number of weights at which the dynamics is estimated; None takes four for each term
        region : interval for each statistic by name, {"m": (-1, 1), ...}, over which the fitted points are spread; None takes
            the statistics of weights that `at` draws
        """
        k = len(self.user_loss.names)
        count = points or 4 * math.comb(k + degree, k)
        drawn = np.stack([self._row(self.draw_weights(i)) for i in range(count)])
        if region is None:
            u = np.asarray(jax.vmap(self.user_loss.u)(drawn))
        else:
            drawn, u = find_weights(self.user_loss, drawn, sample_region(self.user_loss.names, region, count, self.seed))
        size = np.abs(u).max(0)
        basis = Polynomials(degree, jnp.where(size > 0, size, 1.0))
        return fit_dynamics(self.user_loss, self.scales, basis, drawn, u, self.samples, self.seed)

    @checked
    def tabulate(self, grid: Any) -> FittedDynamics:
        """Tabulate the estimated dynamics on a grid, interpolated by cubic splines; the result's `problem` can be simulated.

        Parameters
        ----------
        grid : increasing values of each statistic by name, {"m": np.linspace(-1, 1, 9), ...}; the dynamics is estimated at
            weights with each combination of values
        """
        basis, targets = grid_points(self.user_loss.names, grid)
        drawn = np.stack([self._row(self.draw_weights(i)) for i in range(min(len(targets), MAX_DRAWN_WEIGHTS))])
        rows, u = find_weights(self.user_loss, drawn, targets)
        if len(u) < len(targets):
            raise BadInput(
                f"no weights have the statistics of {len(targets) - len(u)} points of grid=. Give a smaller grid, or use fit."
            )
        return fit_dynamics(self.user_loss, self.scales, basis, rows, u, self.samples, self.seed)

    @checked
    def empirical(self, samples: Annotated[int, integer(at_least=2)] = 1024) -> EmpiricalProblem:
        """Return the dynamics as a problem whose drift at each state is an average over fixed samples, without a fit.

        Parameters
        ----------
        samples : number of samples in an average
        """
        weights = jax.tree.map(np.asarray, self.weights)
        return EmpiricalProblem(
            self.loss, self.sample, self.statistics, weights, self.dimension, float(self.lr), float(self.exponent),
            float(self.slowed), samples, self.seed,
        )  # fmt: skip

    @checked
    def starts(self, runs: Count = 1) -> Values:
        """Return statistics of `runs` random weights, as a start for runs of a fitted problem."""
        return Values(np.stack([np.asarray(self.user_loss.u(self._row(self.draw_weights(i)))) for i in range(runs)]))

    def with_d(self, d: int) -> SampledDynamics:
        """Return the same dynamics at another dimension; `at` must be a function that draws weights."""
        if not callable(self.at):
            raise BadInput(f"at= has weights in {self.dimension} dimensions, not in {d}. Give a function of a key and of d.")
        return replace(self, d=d)

    def draw_weights(self, index: int) -> PyTree:
        """Return weights number `index`: a draw if `at` is a function, else `at` for 0 and a noisy copy of `at` for others."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.seed), 2**31), index)
        if callable(self.at):
            try:
                drawn = self.at(key, self.dimension)
            except Exception as reason:
                raise BadInput(f"at(key, d) fails at d = {self.dimension}: {describe_error(reason)}") from reason
            return as_weights("at", drawn)
        given = as_weights("at", self.at)
        return given if index == 0 else _add_noise(given, key)


def _add_noise(weights: PyTree, key: Any) -> PyTree:
    """Return weights with normal noise added to each array, of the array's root mean square."""
    leaves, tree = jax.tree.flatten(weights)
    keys = jax.random.split(key, len(leaves))
    size = lambda leaf: np.sqrt((leaf**2).mean()) or 1 / np.sqrt(max(1, leaf.shape[-1] if leaf.ndim else 1))
    noise = [np.asarray(jax.random.normal(key, leaf.shape)) for key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, [leaf + size(leaf) * xi for leaf, xi in zip(leaves, noise, strict=True)])
