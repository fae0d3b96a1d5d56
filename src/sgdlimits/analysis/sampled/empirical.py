"""Problem whose drift at given statistics is an average over fixed samples, at weights with these statistics."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.sampled.estimates import StepSizeFactors
from sgdlimits.analysis.sampled.lift import find_weights_differentiably, find_weights_near
from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.problem.base import Problem
from sgdlimits.problem.coordinates import Coordinates
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.problem.surrogate import check_values
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.values import Values

MAX_SAMPLES_PER_CALL = 64
"""Largest number of samples whose gradients are computed together."""


class EmpiricalProblem(Problem):
    """Problem whose drift and covariance at each state are averages over the same samples, returned by `SampledDynamics`.

    Each evaluation moves weights until they have the statistics of the state, and averages over samples at these weights. The
    drift therefore has the kinks of the loss and no error of a fit, for any number of statistics, at the cost of one gradient
    per sample.

    Parameters
    ----------
    loss, sample, statistics : as in `SampledDynamics`
    weights : weights from which the search for weights with the statistics of a state begins
    d, lr, exponent, slowed, seed : as in `SampledDynamics`
    samples : number of samples in an average
    """

    loss: Callable = eqx.field(static=True)
    sample: Callable = eqx.field(static=True)
    statistics: Callable = eqx.field(static=True)
    weights: PyTree
    d: int = eqx.field(static=True)
    lr: float = eqx.field(static=True, default=1.0)
    exponent: float = eqx.field(static=True, default=1.0)
    slowed: float = eqx.field(static=True, default=0.0)
    samples: int = eqx.field(static=True, default=1024)
    seed: int = eqx.field(static=True, default=0)
    name: str = eqx.field(static=True, default="empirical", kw_only=True)

    @property
    def user_loss(self) -> UserLoss:
        """Loss, sampler and statistics at dimension d."""
        return UserLoss.from_traced(self.loss, self.sample, self.statistics, self.weights, self.d)

    def _averages(self, stats: Values) -> tuple[Array, Array, Array, Array]:
        """Return four averages at a state: the mean loss, each sample's first- and second-order terms, and the corrector."""
        user, scales = self.user_loss, StepSizeFactors(self.lr, self.exponent, self.slowed, self.d)
        w = find_weights_differentiably(user, user.flatten_weights(self.weights), jnp.asarray(stats.u))
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(self.seed), i))(jnp.arange(self.samples))
        one = lambda key: user.terms(w, user.draw(key), jnp.zeros_like(w))
        terms, gradients = lax.map(one, keys, batch_size=min(MAX_SAMPLES_PER_CALL, self.samples))
        n = self.samples
        centred = terms.second_derivatives.mean(0) - user.slopes(w, gradients.mean(0))[1]
        return (
            terms.loss.mean(),
            scales.drift * terms.first_derivatives,
            scales.second_order_terms / 2 * terms.second_derivatives,
            n / (n - 1) * scales.second_order_terms / 2 * centred,
        )

    def _drift_parts(self, stats: Values) -> tuple[Values, Values]:
        _, first, _, corrector = self._averages(stats)
        return Values(-first.mean(0)), Values(corrector)

    def _covariance(self, stats: Values) -> Float[Array, "k k"]:
        _, first, second, _ = self._averages(stats)
        increments = second - first
        increments = increments - increments.mean(0)
        return float(self.d) ** -self.slowed * increments.T @ increments / (self.samples - 1)

    def _risk(self, stats: Values) -> Float[Array, ""]:
        return self._averages(stats)[0]

    @property
    def directions(self) -> Directions:
        return Directions(len(self.user_loss.names), np.eye(1), InitialWeights())

    @property
    def coordinates(self) -> EmpiricalCoordinates:
        return EmpiricalCoordinates(self)

    @property
    def rate(self) -> Float[Array, ""] | float:
        return self.lr


class EmpiricalCoordinates(Coordinates):
    """Coordinates of a user's statistics; a state is valid if some weights have its statistics."""

    problem: EmpiricalProblem

    def names(self, stats):
        return self.problem.user_loss.names

    def from_overlaps(self, overlaps: Overlaps) -> Values:
        """Return starts u + (1 + |u|) M around the statistics u of the problem's weights, for random overlaps M."""
        user = self.problem.user_loss
        middle = np.asarray(user.u(user.flatten_weights(self.problem.weights)))
        return Values(middle + (1 + np.abs(middle)) * overlaps.M[..., 0])

    def fits(self, stats):
        check_values(stats, self.problem.user_loss.names, "Give sgdlimits.Values(u).")
        super().fits(stats)
        if any(map(is_traced, jax.tree.leaves((self.problem, stats)))):
            return
        user, u = self.problem.user_loss, np.asarray(stats.u, float)
        if not find_weights_near(user, np.asarray(user.flatten_weights(self.problem.weights))[None], u[None])[1].all():
            given = ", ".join(f"{name} = {value:.4g}" for name, value in zip(user.names, u, strict=True))
            raise BadInput(f"no weights near those of the problem have the statistics {given}. Give statistics of weights.")

    def check(self, stats):
        check_values(stats, self.problem.user_loss.names, "Give sgdlimits.Values(u).", runs=True)
        super().check(stats)
