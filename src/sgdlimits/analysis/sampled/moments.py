"""Sample averages at several weights, over the same samples for all weights, a chunk of samples at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sgdlimits.analysis.sampled.loss import SampleTerms, UserLoss
from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import jit_bound
from sgdlimits.size import check_memory

FLOATS_PER_CHUNK = 2**21
"""Number of floats in a chunk of samples with its gradients: 16 MB, so that it fits into a processor's cache."""
MAX_CHUNK = 256
"""Largest number of samples in a chunk."""
SAMPLE_GROUPS = 8
"""Number of groups of samples; products of the mean gradients of two groups are unbiased."""
PILOT_SAMPLE_COUNT = 64
"""Number of samples for a first estimate of the mean gradient, which centres terms and biases no average."""
PILOT_KEY, MAIN_KEY = 0, 1
"""Numbers folded into the random key: for the samples of the first estimate, and for those of the final one."""


@dataclass(frozen=True)
class SampleMoments:
    """Terms in the change of k statistics by a step of SGD, for each of N samples at P rows of n weights.

    Parameters
    ----------
    loss : loss of each sample, shape (N, P)
    first : derivative of each statistic along each sample's gradient G, shape (N, P, k)
    second : second derivative of each statistic along G, shape (N, P, k)
    centred : second derivative of each statistic along G minus an estimate of the mean of G, shape (N, P, k)
    excess : bias of the mean of `centred` due to the error of this estimate, shape (P, k)
    gradients : mean gradient of each group of samples, shape (groups, P, n)
    """

    loss: np.ndarray
    first_derivatives: np.ndarray
    second_derivatives: np.ndarray
    centred: np.ndarray
    excess: np.ndarray
    gradients: np.ndarray

    @property
    def samples(self) -> int:
        return len(self.loss)

    @property
    def second_order_terms(self) -> np.ndarray:
        r"""Unbiased estimate of :math:`\sum_{ij} V_{ij}\,\partial_i\partial_j u` from each sample, shape (N, P, k).

        V is the covariance of one sample's gradient, and u are the statistics.
        """
        n = self.samples
        return n / (n - 1) * (self.centred - self.excess)


def moments(user: UserLoss, points: Any, samples: int, key: Array) -> SampleMoments:
    """Compute the terms of random samples at rows of weights, shape (P, n)."""
    points = jnp.asarray(points)
    numbers = 8 * len(user.names) + 1
    check_memory([("samples", samples), ("weights", len(points)), ("numbers", numbers)], "Give fewer samples or weights.")
    pilot_key = jax.random.fold_in(key, PILOT_KEY)
    pilot = _compute_terms(user, points, jnp.zeros_like(points), pilot_key, PILOT_SAMPLE_COUNT)[1].sum(0) / PILOT_SAMPLE_COUNT
    terms, sums = _compute_terms(user, points, jnp.asarray(pilot), jax.random.fold_in(key, MAIN_KEY), samples)
    _check_finite(user, terms)
    mean = sums.sum(0) / samples
    bends = jit_bound(_second_derivatives, user, fast_compile=True)
    shift, excess = np.asarray(bends(points, pilot)), np.asarray(bends(points, mean - pilot))
    counts = np.array([len(range(group, samples, SAMPLE_GROUPS)) for group in range(SAMPLE_GROUPS)])
    centred = terms.second_derivatives - 2 * terms.mixed_derivatives + shift
    return SampleMoments(
        loss=np.asarray(terms.loss),
        first_derivatives=np.asarray(terms.first_derivatives),
        second_derivatives=np.asarray(terms.second_derivatives),
        centred=np.asarray(centred),
        excess=excess,
        gradients=sums / counts[:, None, None],
    )


def _compute_terms(user: UserLoss, points: Any, pilot: Any, key: Array, samples: int) -> tuple[SampleTerms, np.ndarray]:
    """Return the terms of all samples, and the sum of gradients over each group; sample i is in group i mod GROUPS."""
    chunk = FLOATS_PER_CHUNK // user.count_floats_per_sample(len(points))
    chunk = SAMPLE_GROUPS * max(1, min(chunk, MAX_CHUNK) // SAMPLE_GROUPS)
    piece = jit_bound(_compute_chunk_terms, user, chunk)
    parts, sums = [], np.zeros((SAMPLE_GROUPS, *points.shape))
    for begin in range(0, samples, chunk):
        terms, sum_ = piece(points, pilot, key, begin, samples)
        parts.append(jax.tree.map(lambda leaf, begin=begin: np.asarray(leaf)[: samples - begin], terms))
        sums += np.asarray(sum_)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), sums


def _compute_chunk_terms(user: UserLoss, chunk: int, points, pilot, key, begin, samples):
    """Return the terms of a chunk of samples, and the sum of gradients over each group, up to sample number `samples`."""
    index = begin + jnp.arange(chunk)
    x = jax.vmap(lambda i: user.draw(jax.random.fold_in(key, i)))(index)
    at_points = lambda x: jax.vmap(lambda w, c: user.terms(w, x, c))(points, pilot)
    terms, gradients = jax.vmap(at_points)(x)
    counted = jnp.where((index < samples)[:, None, None], gradients, 0.0)
    return terms, counted.reshape(-1, SAMPLE_GROUPS, *points.shape).sum(0)


def _second_derivatives(user: UserLoss, points, directions):
    return jax.vmap(lambda w, v: user.slopes(w, v)[1])(points, directions)


def _check_finite(user: UserLoss, terms: SampleTerms) -> None:
    for name, values in zip(("loss", "gradient", "gradient"), terms[:3], strict=True):
        bad = ~np.isfinite(values)
        if bad.any():
            share = bad.reshape(len(values), -1).any(1).mean()
            raise BadInput(
                f"the {name} of {100 * share:.3g} % of the samples is not finite at d = {user.d}. Look at loss and sample."
            )
