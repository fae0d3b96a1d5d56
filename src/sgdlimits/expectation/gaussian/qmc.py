"""Scrambled Sobol points: for any dimension and any function."""

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
from sgdlimits.expectation.gaussian.base import Estimate, Group, Nodes, Rule, orbits, parity
from sgdlimits.size import check_memory

MOST_NODES = 2**17
LOST = 3
"""log2 of how many times fewer points there may be for a group. The error is that of the points before they are turned: with
2^9 of the default 2^12 some 2e-3 of the largest moment, with 2^6, all that the largest group would leave, 2e-2."""


@checked
class Sobol(Rule):
    """Randomised quasi-Monte Carlo: `scrambles` independent scramblings of about 2^`log2_points` points each.

    A scrambling is a scrambled Sobol sequence in all turns of the group, with fewer points before they are turned: as many
    fewer as there are turns, but at most eight times fewer, so that the nodes of a large group are more than asked for.
    Each is an unbiased estimate, so their spread is an honest error estimate. The points are fixed by `seed`: the average is a
    function of the statistics, as the solvers need. Heavy tails (high polynomials) converge slowly.

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
            given = f"{self.log2_points} and {self.scrambles}"
            raise BadInput(f"Sobol needs 1 to 24 as log2_points and at least 2 scrambles; got {given}. Give, say, Sobol(12).")
        check_memory([("scrambles", self.scrambles), ("points", 2.0**self.log2_points), ("numbers", 16)], "Give fewer of them.")

    @property
    def remedy(self):
        return f"Give the problem expectation=Sobol(log2_points={min(24, self.log2_points + 4)})."

    def nodes(self, dim: int, group: Group | None = None) -> Nodes:
        points = _points(dim, parity(dim) if group is None else group, self.log2_points, self.scrambles, self.seed)
        count = points.shape[1]
        return Nodes(jnp.asarray(points), jnp.full(count, 1 / count))

    def error(self, f: Callable, dim: int, group: Group | None = None) -> PyTree:
        return self.estimate(f, dim, group).error

    def estimate(self, f: Callable, dim: int, group: Group | None = None) -> Estimate:
        def spread(values):
            means = values.reshape(*values.shape[:-1], self.scrambles, -1).mean(-1)
            return means.std(-1, ddof=1) / np.sqrt(self.scrambles)

        values = f(self.nodes(dim, group).points)
        return Estimate(jax.tree.map(lambda leaf: leaf.mean(-1), values), jax.tree.map(spread, values))

    def finer(self):
        larger = Sobol(self.log2_points + 2, self.scrambles, self.seed)
        return larger if larger.scrambles * 2**larger.log2_points <= MOST_NODES else None


@lru_cache(maxsize=16)
def _points(dim: int, group: Group, log2_points: int, scrambles: int, seed: int) -> np.ndarray:
    qmc = scipy.stats.qmc
    if dim > qmc.Sobol.MAXDIM:
        raise BadInput(f"Sobol points exist up to dimension {qmc.Sobol.MAXDIM}; got {dim}. Use fewer units.")
    before = max(0, math.ceil(log2_points - min(LOST, math.log2(len(group)))))
    draw = lambda rng: qmc.Sobol(dim, scramble=True, rng=rng).random_base2(before)
    sets = [draw(np.random.default_rng([seed, scramble])) for scramble in range(scrambles)]
    turned = [orbits(scipy.special.ndtri(np.clip(points, 2.0**-54, 1 - 2.0**-53)).T, group) for points in sets]
    return np.concatenate(turned, axis=1)
