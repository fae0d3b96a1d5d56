"""Steps between saved times: numbers, sizes and initial times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GRID_ROUNDING = 1e-9
"""Fraction of a step by which a time may differ from the time grid of the steps and still count as on the grid."""


class Segments(NamedTuple):
    """Steps to make from each saved time, or knot of a schedule, to the next: numbers, sizes in t and initial times.

    A saved time may lie a fraction of a step after the last whole step of its segment: `remaining_step_sizes` has the length of
    that fraction in t, or zero. `saved` is true for segments that end at a saved time, and false for those that end at a knot.
    """

    step_counts: np.ndarray
    sizes: np.ndarray
    begin_times: np.ndarray
    remaining_step_sizes: np.ndarray
    saved: np.ndarray

    @classmethod
    def from_whole_steps(cls, counts: np.ndarray, sizes: np.ndarray, begins: np.ndarray) -> Segments:
        """Return segments of whole steps, each of which ends at a saved time."""
        return cls(counts, sizes, begins, np.zeros(counts.size), np.ones(counts.size, bool))

    @classmethod
    def on_time_grid(cls, times: np.ndarray, size: float, knots: np.ndarray) -> Segments:
        """Return the segments between saved times on a time grid that no saved time changes.

        The grid is that of equal steps from each knot to the next, the longest that are not above `size`, and of steps of
        `size` after the last knot. Without knots it is 0, `size`, 2 `size`, ...
        """
        edges = np.concatenate([[0.0], knots])
        gaps = np.diff(edges)
        steps = np.maximum(np.ceil(gaps / size - GRID_ROUNDING), 1.0)  # of each piece between two knots
        sizes = np.concatenate([gaps / steps, [size]])
        piece = np.searchsorted(edges, times, side="right") - 1
        before = np.floor((times - edges[piece]) / sizes[piece] + GRID_ROUNDING)  # steps of its piece before each time
        ends = edges[piece] + before * sizes[piece]
        remainders = np.where(times - ends > GRID_ROUNDING * sizes[piece], times - ends, 0.0)

        rows = []
        for i in range(times.size - 1):
            now, done = piece[i], before[i]
            for passed in range(now, piece[i + 1]):
                rows.append((steps[passed] - done, passed, done, 0.0, False))
                now, done = passed + 1, 0.0
            rows.append((before[i + 1] - done, now, done, remainders[i + 1], True))
        counts, pieces, done, rest, saved = np.array(rows, float).reshape(-1, 5).T
        at = pieces.astype(int)
        return cls(counts.astype(np.int64), sizes[at], edges[at] + done * sizes[at], rest, saved > 0)

    def times_after_steps(self, steps: np.ndarray) -> np.ndarray:
        """Return the times that are reached after the given numbers of steps from the first saved time."""
        ends = self.begin_times[-1:] + self.step_counts[-1:] * self.sizes[-1:]
        return np.interp(steps, np.concatenate([[0], np.cumsum(self.step_counts)]), np.concatenate([self.begin_times, ends]))
