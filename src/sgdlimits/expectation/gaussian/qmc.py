"""Quasi-Monte Carlo averages at scrambled Sobol points, for any dimension and any function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import PyTree

from sgdlimits.domain import Count, Seed, checked
from sgdlimits.errors import BadInput
from sgdlimits.expectation.gaussian.base import Estimate, Group, Nodes, Rule, compute_orbits, sign_group
from sgdlimits.size import check_memory

MAX_NODES = 2**17
MAX_LOG2_REDUCTION = 3
"""log2 of the largest factor by which a group reduces the number of Sobol points. The error is that of the points before the
group is applied: with 2^9 of the default 2^12 some 2e-3 of the largest moment, and 2e-2 with the 2^6 that the largest group
would leave."""


@checked
class Sobol(Rule):
    """Randomised quasi-Monte Carlo: `scrambles` independent scramblings of about 2^`log2_points` points each.

    The nodes of a scrambling are the images of a scrambled Sobol sequence under the model's symmetry group. The sequence is
    shorter by the size of the group, but at most eight times shorter, so a larger group has more nodes than requested. Each
    scrambling is an unbiased estimate, so their spread is a valid error estimate. The points are fixed by `seed`: the average
    is a deterministic function of the statistics, as solvers need. Heavy tails (high polynomials) converge slowly.

    Parameters
    ----------
    log2_points : log2 of the number of points per scrambling, 1 to 24
    scrambles : number of independent scramblings, at least 2
    seed : seed of the scramblings

    >>> import jax.numpy as jnp
    >>> value, error = Sobol().expect(lambda v: jnp.abs(v[0]), jnp.zeros(1), jnp.eye(1))
    >>> bool(abs(value - (2 / jnp.pi) ** 0.5) < 5 * error < 1e-3)
    True
    """

    tolerance: ClassVar[float] = 1e-4
    accuracy: ClassVar[float] = 2e-2
    log2_points: Count = eqx.field(static=True, default=12)
    scrambles: Count = eqx.field(static=True, default=8)
    seed: Seed = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        if not (0 < self.log2_points <= 24 and self.scrambles >= 2):
            given = f"log2_points={self.log2_points}, scrambles={self.scrambles}"
            raise BadInput(f"Sobol needs log2_points from 1 to 24 and at least 2 scrambles; got {given}. Give, say, Sobol(12).")
        # 16 floats per point stand for the fields and products at it, whose number is not known yet.
        check_memory([("scrambles", self.scrambles), ("points", 2.0**self.log2_points), ("numbers", 16)], "Give fewer of them.")

    @property
    def remedy(self):
        return f"Give the problem expectation=Sobol(log2_points={min(24, self.log2_points + 4)})."

    def nodes(self, dim: int, group: Group | None = None) -> Nodes:
        points = _scrambled_normal_points(
            dim, sign_group(dim) if group is None else group, self.log2_points, self.scrambles, self.seed
        )
        count = points.shape[1]
        return Nodes(jnp.asarray(points), jnp.full(count, 1 / count))

    def error(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        return self.estimate(f, dim, group).error

    def estimate(self, f: Callable, dim: int, group: Group | None = None) -> Estimate:
        def standard_error(values):
            # Points of one scrambling are dependent; only the means of the scramblings are independent samples.
            means = values.reshape(*values.shape[:-1], self.scrambles, -1).mean(-1)
            return means.std(-1, ddof=1) / np.sqrt(self.scrambles)

        values = f(self.nodes(dim, group).points)
        return Estimate(jax.tree.map(lambda leaf: leaf.mean(-1), values), jax.tree.map(standard_error, values))

    def with_more_nodes(self):
        larger = Sobol(self.log2_points + 2, self.scrambles, self.seed)
        return larger if larger.scrambles * 2**larger.log2_points <= MAX_NODES else None


@lru_cache(maxsize=16)
def _scrambled_normal_points(dim: int, group: Group, log2_points: int, scrambles: int, seed: int) -> np.ndarray:
    """Return the symmetrised Sobol points of all scramblings, mapped to normal variates, as one array of shape (dim, n)."""
    qmc = scipy.stats.qmc
    if dim > qmc.Sobol.MAXDIM:
        raise BadInput(f"Sobol points exist up to dimension {qmc.Sobol.MAXDIM}; got {dim}. Use fewer units.")
    log2_before_group = max(0, math.ceil(log2_points - min(MAX_LOG2_REDUCTION, math.log2(len(group)))))
    draw = lambda rng: qmc.Sobol(dim, scramble=True, rng=rng).random_base2(log2_before_group)
    sets = [draw(np.random.default_rng([seed, scramble])) for scramble in range(scrambles)]
    # Clipped to the open unit interval, so that no normal quantile is infinite.
    images = [compute_orbits(scipy.special.ndtri(np.clip(points, 2.0**-54, 1 - 2.0**-53)).T, group) for points in sets]
    return np.concatenate(images, axis=1)
