"""Do statistics of a loss close? The drift is compared at weights that share all statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.sampled.estimates import StepScales, with_error
from sgdlimits.analysis.sampled.lift import lift
from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.analysis.sampled.moments import moments
from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import jit_bound
from sgdlimits.text import table

TRIALS = 3
"""Random weights with the statistics of each reference, beside the weights that are sought out."""
MAX_SOUGHT = 4
"""Statistics for which weights are sought out; searches for others would cost more than they add."""
STEP = 0.7
"""How far weights are moved to change the drift, relative to their norm."""
SEARCH_SAMPLES = 256
ERRORS = 5
"""A difference of fewer standard errors is none."""


@dataclass(frozen=True, repr=False)
class SampledClosure:
    """How much the drift of each statistic differs between weights that share all statistics.

    Parameters
    ----------
    names : of the statistics
    share : the difference that exceeds its error most, relative to the size of the drift and of its two parts, shape (k,)
    error : the standard error of that difference, relative to the same, shape (k,)
    pair : of each statistic, two weights that share all statistics, between which its drift differs most
    drifts : of each statistic, its drift at the two weights with standard errors, shape (k, 2, 2)
    tolerance : the share that counts as none; at a finite d drifts of statistics that close differ a little
    weights : how many weights were compared
    """

    names: tuple[str, ...]
    share: np.ndarray
    error: np.ndarray
    pair: tuple[tuple[PyTree, PyTree], ...]
    drifts: np.ndarray
    tolerance: float
    weights: int

    @property
    def open(self) -> tuple[str, ...]:
        """The statistics whose drift is no function of them: by more than the tolerance and five standard errors."""
        above = self.share > np.maximum(self.tolerance, ERRORS * self.error)
        return tuple(name for name, is_open in zip(self.names, above, strict=True) if is_open)

    @property
    def closed(self) -> bool:
        """Whether no drift differs between weights that share all statistics."""
        return not self.open

    def __repr__(self) -> str:
        verdict = f"the drift agrees at {self.weights} weights that share the statistics"
        if not self.closed:
            i = self.names.index(max(self.open, key=lambda name: self.share[self.names.index(name)]))
            one, other = (with_error(*each) for each in self.drifts[i])
            verdict = (
                f"the drift of {', '.join(self.open)} is NO function of the statistics: at two weights that share all of them, "
                f"that of {self.names[i]} is {one} and {other}. Add a statistic in which the two differ (closure.pair[{i}])"
            )
        rows = [("statistic", "largest difference", "error", "")]
        for name, share, error in zip(self.names, self.share, self.error, strict=True):
            rows.append((name, f"{share:.2g}", f"{error:.2g}", "open" if name in self.open else ""))
        return f"Closure: {verdict}\n{table(rows, '<>><')}"


def compare(
    user: UserLoss, scales: StepScales, references: Float[np.ndarray, "R n"], others: Float[np.ndarray, "m n"],
    samples: int, tolerance: float, seed: int,
) -> SampledClosure:  # fmt: skip
    """Compare drifts at references and at weights moved to share their statistics: random ones, and some that are sought out.

    Weights are sought out on samples of their own: along the derivative of a drift, without what changes the statistics.
    """
    key = jax.random.key(seed)
    groups = [
        _sharing(user, scales, row, others[i :: len(references)], jax.random.fold_in(key, i))
        for i, row in enumerate(references)
    ]
    if all(len(group) < 2 for group in groups):
        raise BadInput("no other weights with the same statistics were found. Give fewer statistics than there are weights.")
    rows = np.concatenate(groups)
    measured = moments(user, rows, samples, jax.random.fold_in(key, len(references)))
    drift = scales.bend / 2 * measured.bend - scales.drift * measured.first
    size = np.sqrt(((scales.drift * measured.first.mean(0)) ** 2 + (scales.bend / 2 * measured.bend.mean(0)) ** 2).mean(0))
    size = np.where(size > 0, size, 1.0)
    best = [(-np.inf, 0.0, 0.0, 0, 0)] * len(user.names)
    begin = 0
    for group in groups:
        for other in range(begin + 1, begin + len(group)):
            gap = drift[:, other] - drift[:, begin]
            value, error = np.abs(gap.mean(0)), gap.std(0, ddof=1) / np.sqrt(samples)
            for i in range(len(best)):
                best[i] = max(best[i], (value[i] - ERRORS * error[i], value[i], error[i], begin, other))
        begin += len(group)
    tree = lambda row: jax.tree.map(np.asarray, user.weights.values(jnp.asarray(row)))
    at = np.array([each[3:] for each in best])
    mean, error = drift.mean(0), drift.std(0, ddof=1) / np.sqrt(samples)
    drifts = np.stack([np.stack([mean[at[i], i], error[at[i], i]], axis=1) for i in range(len(best))])
    share, errors = (np.array([each[part] for each in best]) / size for part in (1, 2))
    pairs = tuple((tree(rows[one]), tree(rows[other])) for one, other in at)
    return SampledClosure(user.names, share, errors, pairs, drifts, tolerance, len(rows))


def _sharing(user: UserLoss, scales: StepScales, row: np.ndarray, others: np.ndarray, key: Array) -> np.ndarray:
    """A row of weights, and rows that share its statistics."""
    keys = jax.random.split(key, SEARCH_SAMPLES)
    pulls = np.asarray(jit_bound(_pulls, user, fast_compile=True)(row, keys, scales.drift, scales.bend))[:MAX_SOUGHT]
    norms = np.linalg.norm(pulls, axis=1, keepdims=True)
    sought = row + STEP * np.linalg.norm(row) * pulls / np.where(norms > 0, norms, 1.0)
    tries = np.concatenate([others, sought[np.isfinite(sought).all(1) & (norms[:, 0] > 0)]])
    found, there = lift(user, tries, np.repeat(np.asarray(user.u(row))[None], len(tries), axis=0))
    return np.concatenate([row[None], found[there]])


def _pulls(user: UserLoss, row: Float[Array, " n"], keys: Array, of_first: Any, of_bend: Any) -> Float[Array, "k n"]:
    """The derivative of each statistic's drift along the directions in which no statistic changes."""

    def drift(w: Array) -> Array:
        def one(key: Array) -> tuple[Array, Array]:
            terms, gradient = user.terms(w, user.draw(key), jnp.zeros_like(w))
            return of_bend / 2 * terms.second - of_first * terms.first, gradient

        drifts, gradients = jax.lax.map(one, keys, batch_size=16)
        return drifts.mean(0) - of_bend / 2 * user.slopes(w, gradients.mean(0))[1]

    slopes, J = jax.jacrev(drift)(row), jax.jacrev(user.u)(row)
    return slopes - slopes @ jnp.linalg.pinv(J) @ J
