"""Sample averages at several weights at once: the same samples for all of them, a chunk at a time."""

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

NUMBERS_PER_CHUNK = 2**21
"""About 16 MB, so that a chunk of samples with its gradients stays near the processor."""
MAX_CHUNK = 256
GROUPS = 8
"""Groups of samples with a mean gradient each: products of two of them are free of bias."""
PILOT_SAMPLES = 64
"""Samples of the first estimate of the mean gradient. It only centres numbers, and no average depends on it."""
PILOT, MAIN = 0, 1


@dataclass(frozen=True)
class SampleMoments:
    """What was measured at P points, on N samples that all points share.

    Parameters
    ----------
    loss : shape (N, P)
    first : derivative of each statistic along each sample's gradient G, shape (N, P, k)
    second : second derivative along G twice, shape (N, P, k)
    centred : second derivative along G minus its mean, shape (N, P, k): its mean over samples is that of V, up to `excess`
    excess : what the error of the estimated mean adds to the mean of `centred`, shape (P, k)
    gradients : mean gradient of each group of samples, shape (groups, P, n)
    """

    loss: np.ndarray
    first: np.ndarray
    second: np.ndarray
    centred: np.ndarray
    excess: np.ndarray
    gradients: np.ndarray

    @property
    def samples(self) -> int:
        return len(self.loss)

    @property
    def bend(self) -> np.ndarray:
        r"""The samples of :math:`\sum_{ij} V_{ij}\,\partial_i\partial_j u`, whose mean is free of bias, shape (N, P, k)."""
        n = self.samples
        return n / (n - 1) * (self.centred - self.excess)


def moments(user: UserLoss, points: Any, samples: int, key: Array) -> SampleMoments:
    """Average one sample's terms at rows of weights, shape (P, n)."""
    points = jnp.asarray(points)
    numbers = 8 * len(user.names) + 1
    check_memory([("samples", samples), ("weights", len(points)), ("numbers", numbers)], "Give fewer samples or weights.")
    pilot = _sums(user, points, jnp.zeros_like(points), jax.random.fold_in(key, PILOT), PILOT_SAMPLES)[1].sum(0) / PILOT_SAMPLES
    terms, sums = _sums(user, points, jnp.asarray(pilot), jax.random.fold_in(key, MAIN), samples)
    _check_finite(user, terms)
    mean = sums.sum(0) / samples
    bends = jit_bound(_bends, user, fast_compile=True)
    shift, excess = np.asarray(bends(points, pilot)), np.asarray(bends(points, mean - pilot))
    counts = np.array([len(range(group, samples, GROUPS)) for group in range(GROUPS)])
    centred = terms.second - 2 * terms.cross + shift
    return SampleMoments(
        loss=np.asarray(terms.loss),
        first=np.asarray(terms.first),
        second=np.asarray(terms.second),
        centred=np.asarray(centred),
        excess=excess,
        gradients=sums / counts[:, None, None],
    )


def _sums(user: UserLoss, points: Any, pilot: Any, key: Array, samples: int) -> tuple[SampleTerms, np.ndarray]:
    """The terms of all samples, and the sum of the gradients of each group: sample i is in group i mod GROUPS."""
    chunk = NUMBERS_PER_CHUNK // user.numbers_per_sample(len(points))
    chunk = GROUPS * max(1, min(chunk, MAX_CHUNK) // GROUPS)
    piece = jit_bound(_piece, user, chunk)
    parts, sums = [], np.zeros((GROUPS, *points.shape))
    for begin in range(0, samples, chunk):
        terms, sum_ = piece(points, pilot, key, begin, samples)
        parts.append(jax.tree.map(lambda leaf, begin=begin: np.asarray(leaf)[: samples - begin], terms))
        sums += np.asarray(sum_)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), sums


def _piece(user: UserLoss, chunk: int, points, pilot, key, begin, samples):
    """The terms of a chunk of samples, and the sum of the gradients of each group among those that count."""
    index = begin + jnp.arange(chunk)
    x = jax.vmap(lambda i: user.draw(jax.random.fold_in(key, i)))(index)
    at_points = lambda x: jax.vmap(lambda w, c: user.terms(w, x, c))(points, pilot)
    terms, gradients = jax.vmap(at_points)(x)
    counted = jnp.where((index < samples)[:, None, None], gradients, 0.0)
    return terms, counted.reshape(-1, GROUPS, *points.shape).sum(0)


def _bends(user: UserLoss, points, directions):
    return jax.vmap(lambda w, v: user.slopes(w, v)[1])(points, directions)


def _check_finite(user: UserLoss, terms: SampleTerms) -> None:
    for name, values in zip(("loss", "gradient", "gradient"), terms[:3], strict=True):
        bad = ~np.isfinite(values)
        if bad.any():
            share = bad.reshape(len(values), -1).any(1).mean()
            raise BadInput(
                f"the {name} of {100 * share:.3g} % of the samples is not finite at d = {user.d}. Look at loss and sample."
            )
