"""Result of a closure test: whether the drift of chosen statistics is a function of the chosen statistics alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgdlimits.text import format_table


@dataclass(frozen=True, repr=False)
class Closure:
    """Share of each statistic's drift that is not a function of the statistics, with its standard error.

    Parameters
    ----------
    names : names of the n statistics
    share : norm of the drift's derivatives along directions that change no statistic, relative to all of its derivatives,
        shape (n,)
    error : standard errors of `share`; zero where expectations are closed
    along : for each statistic, name of the coordinate with which its drift changes most along the directions of `share`
    tolerance : largest share that counts as zero
    """

    names: tuple[str, ...]
    share: np.ndarray
    error: np.ndarray
    along: tuple[str, ...]
    tolerance: float

    @property
    def open(self) -> tuple[str, ...]:
        """Names of the statistics whose `share` exceeds both the tolerance and five standard errors."""
        above = self.share > np.maximum(self.tolerance, 5 * self.error)
        return tuple(name for name, is_open in zip(self.names, above, strict=True) if is_open)

    @property
    def closed(self) -> bool:
        """Whether the drift of every statistic is a function of the statistics."""
        return not self.open

    def __repr__(self) -> str:
        if self.closed:
            verdict = "the drift is a function of the statistics"
        else:
            worst = max(self.open, key=lambda name: self.share[self.names.index(name)])
            verdict = (
                f"the drift of {', '.join(self.open)} is NO function of the statistics: where all of them stay the same, that "
                f"of {worst} changes with {self.along[self.names.index(worst)]}. Add what it changes with to the statistics"
            )
        rows = [("statistic", "share of the change", "error", "mostly with")]
        for name, share, error, along in zip(self.names, self.share, self.error, self.along, strict=True):
            rows.append((name, f"{share:.2g}", f"{error:.2g}", along if name in self.open else ""))
        return f"Closure: {verdict}\n{format_table(rows, '<>><')}"
