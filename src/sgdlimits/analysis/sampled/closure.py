"""Closure test for the statistics of a user's loss: comparison of the drift at different weights with equal statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.analysis.sampled.estimates import StepSizeFactors, format_with_error
from sgdlimits.analysis.sampled.lift import find_weights_near
from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.analysis.sampled.moments import moments
from sgdlimits.errors import BadInput
from sgdlimits.jaxtools import jit_bound
from sgdlimits.text import format_table

TRIAL_PAIR_COUNT = 3
"""Number of random weights moved to the statistics of each reference, besides the weights that a search finds."""
MAX_SEARCHED_POINTS = 4
"""Largest number of statistics for whose drifts a search for different weights is made; more searches would add little."""
SEARCH_STEP_LENGTH = 0.7
"""Length of the step by which a search moves weights to change the drift, relative to their norm."""
SEARCH_SAMPLE_COUNT = 256
"""Number of samples in the averages of a search."""
MIN_STANDARD_ERRORS = 5
"""Number of standard errors up to which a difference counts as zero."""


@dataclass(frozen=True, repr=False)
class SampledClosure:
    """Difference of each statistic's drift between different weights with equal statistics.

    Parameters
    ----------
    names : names of the k statistics
    share : difference of the drift with the most standard errors, relative to the root mean square of the population drift f
        and the corrector g, shape (k,)
    error : standard error of `share`, shape (k,)
    pair : for each statistic, the two weights with equal statistics between which its drift differs most
    drifts : drift of each statistic at these two weights, each with its standard error, shape (k, 2, 2)
    tolerance : largest share that counts as zero; at finite d the drifts of statistics that close in the limit differ a little
    weights : number of weights that were compared
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
        """Names of the statistics whose `share` exceeds both the tolerance and five standard errors."""
        above = self.share > np.maximum(self.tolerance, MIN_STANDARD_ERRORS * self.error)
        return tuple(name for name, is_open in zip(self.names, above, strict=True) if is_open)

    @property
    def closed(self) -> bool:
        """Whether the drift of every statistic is equal, within tolerance, at all compared weights with equal statistics."""
        return not self.open

    def __repr__(self) -> str:
        verdict = f"the drift agrees at {self.weights} weights that share the statistics"
        if not self.closed:
            i = self.names.index(max(self.open, key=lambda name: self.share[self.names.index(name)]))
            one, other = (format_with_error(*each) for each in self.drifts[i])
            verdict = (
                f"the drift of {', '.join(self.open)} is NO function of the statistics: at two weights that share all of them, "
                f"that of {self.names[i]} is {one} and {other}. Add a statistic in which the two differ (closure.pair[{i}])"
            )
        rows = [("statistic", "largest difference", "error", "")]
        for name, share, error in zip(self.names, self.share, self.error, strict=True):
            rows.append((name, f"{share:.2g}", f"{error:.2g}", "open" if name in self.open else ""))
        return f"Closure: {verdict}\n{format_table(rows, '<>><')}"


def compare_drifts(
    user: UserLoss, scales: StepSizeFactors, references: Float[np.ndarray, "R n"], others: Float[np.ndarray, "m n"],
    samples: int, tolerance: float, seed: int,
) -> SampledClosure:  # fmt: skip
    """Compare the drifts at reference weights with the drifts at other weights that are moved to the same statistics.

    The other weights are random (`others`), or found by a search on separate samples: a step from the reference weights along
    the derivative of a drift, projected on directions that change no statistic.
    """
    key = jax.random.key(seed)
    groups = [
        _find_matching_rows(user, scales, row, others[i :: len(references)], jax.random.fold_in(key, i))
        for i, row in enumerate(references)
    ]
    if all(len(group) < 2 for group in groups):
        raise BadInput("no two weights with the same statistics were found. Give fewer statistics than there are weights.")
    rows = np.concatenate(groups)
    measured = moments(user, rows, samples, jax.random.fold_in(key, len(references)))
    drift = scales.second_order_terms / 2 * measured.second_order_terms - scales.drift * measured.first_derivatives
    size = np.sqrt(
        (
            (scales.drift * measured.first_derivatives.mean(0)) ** 2
            + (scales.second_order_terms / 2 * measured.second_order_terms.mean(0)) ** 2
        ).mean(0)
    )
    size = np.where(size > 0, size, 1.0)
    best = [(-np.inf, 0.0, 0.0, 0, 0)] * len(user.names)
    begin = 0
    for group in groups:
        for other in range(begin + 1, begin + len(group)):
            gap = drift[:, other] - drift[:, begin]
            value, error = np.abs(gap.mean(0)), gap.std(0, ddof=1) / np.sqrt(samples)
            for i in range(len(best)):
                best[i] = max(best[i], (value[i] - MIN_STANDARD_ERRORS * error[i], value[i], error[i], begin, other))
        begin += len(group)
    tree = lambda row: jax.tree.map(np.asarray, user.weights.values(jnp.asarray(row)))
    at = np.array([each[3:] for each in best])
    mean, error = drift.mean(0), drift.std(0, ddof=1) / np.sqrt(samples)
    drifts = np.stack([np.stack([mean[at[i], i], error[at[i], i]], axis=1) for i in range(len(best))])
    share, errors = (np.array([each[part] for each in best]) / size for part in (1, 2))
    pairs = tuple((tree(rows[one]), tree(rows[other])) for one, other in at)
    return SampledClosure(user.names, share, errors, pairs, drifts, tolerance, len(rows))


def _find_matching_rows(user: UserLoss, scales: StepSizeFactors, row: np.ndarray, others: np.ndarray, key: Array) -> np.ndarray:
    """Return a row of weights followed by further rows with equal statistics, from `others` and from a search."""
    keys = jax.random.split(key, SEARCH_SAMPLE_COUNT)
    pulls = np.asarray(
        jit_bound(_projected_drift_gradients, user, fast_compile=True)(row, keys, scales.drift, scales.second_order_terms)
    )[:MAX_SEARCHED_POINTS]
    norms = np.linalg.norm(pulls, axis=1, keepdims=True)
    searched = row + SEARCH_STEP_LENGTH * np.linalg.norm(row) * pulls / np.where(norms > 0, norms, 1.0)
    tries = np.concatenate([others, searched[np.isfinite(searched).all(1) & (norms[:, 0] > 0)]])
    found, there = find_weights_near(user, tries, np.repeat(np.asarray(user.u(row))[None], len(tries), axis=0))
    return np.concatenate([row[None], found[there]])


def _projected_drift_gradients(
    user: UserLoss, row: Float[Array, " n"], keys: Array, of_first: Any, of_bend: Any
) -> Float[Array, "k n"]:
    """Return the gradient of each statistic's drift, projected on directions that change no statistic."""

    def drift(w: Array) -> Array:
        def one(key: Array) -> tuple[Array, Array]:
            terms, gradient = user.terms(w, user.draw(key), jnp.zeros_like(w))
            return of_bend / 2 * terms.second_derivatives - of_first * terms.first_derivatives, gradient

        drifts, gradients = jax.lax.map(one, keys, batch_size=16)
        return drifts.mean(0) - of_bend / 2 * user.slopes(w, gradients.mean(0))[1]

    slopes, J = jax.jacrev(drift)(row), jax.jacrev(user.u)(row)
    return slopes - slopes @ jnp.linalg.pinv(J) @ J
