"""Where the search for fixed points starts."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import PyTree

from sgdlimits.problem.base import Problem
from sgdlimits.statistics.overlaps import Overlaps

SCALES = (0.3, 1.0, 2.0)
DENSE = 0.3
"""The share of starts in which nothing is switched off."""


def draw_starts(problem: Problem, count: int, seed: int) -> PyTree:
    """Statistics of random weights of several sizes, runs first; in most, parts are switched off.

    Saddles lie where units are zero, or blind to some of the fixed directions, or within the span of these. Such states are
    invariant for many problems, so that a search that starts from them stays there.
    """
    rng, directions = np.random.default_rng(seed), problem.directions
    p, k, law = directions.width, directions.fixed, directions.initial
    on_sphere, trained = problem.sphere, problem.trains_second
    B = np.linalg.cholesky(np.asarray(directions.gram))
    scale = float(law.scale) * (np.ones((count, 1, 1)) if on_sphere else rng.choice(SCALES, (count, 1, 1)))
    inside, outside = rng.normal(size=(count, p, k)), rng.normal(size=(count, p, p))
    dense = rng.random((count, 1, 1)) < DENSE
    on = dense | (rng.random((count, p, 1)) < rng.uniform(0.3, 1, (count, 1, 1)))
    sees = dense | (rng.random((count, p, k)) < rng.uniform(0.5, 1, (count, 1, 1)))
    leaves = dense | (rng.random((count, 1, 1)) < 0.5)
    weights = np.concatenate([inside * sees @ B, outside * leaves], axis=2)
    if on_sphere:
        blank = ~weights.any(axis=2, keepdims=True)
        weights = np.where(blank, np.concatenate([inside @ B, outside], axis=2), weights)
        weights *= scale / np.linalg.norm(weights, axis=2, keepdims=True)
    else:
        weights *= scale * on / np.sqrt(k + p)
    a = scale[:, :, 0] * rng.normal(size=(count, p)) * on[:, :, 0] if trained else np.full((count, p), float(law.second))
    M, Q = weights[:, :, :k] @ B.T, weights @ weights.swapaxes(1, 2)
    overlaps: Any = Overlaps
    return problem.from_overlaps(overlaps(a, M, Q))
