"""Phases as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from sgdlimits.text import count, table

PHASES = ("norm learning", "plateau", "escape", "descent", "tail")
"""In their order. Norm learning is whatever leads to the plateau: for students of fixed norm there is none."""
WORDS = {
    "left": "left a plateau",
    "stays": "stayed on one",
    "none": "had none",
    "diverged": "diverged",
}
ROWS = {
    "level": "risk on the plateau",
    "growth": "growth of overlaps",
    "decay": "decay between students",
    "tail_rate": "rate of the tail",
    "tail_exponent": "exponent of the tail",
}


@dataclass(frozen=True, repr=False)
class Phases:
    """The phases of each run, and what theory says where it does.

    Parameters
    ----------
    data : Dataset over `run` and `phase`, described in `sgdlimits.phases`
    theory : values for the variables of `data` by name, of quadratic networks and of phase retrieval on the sphere
    """

    data: xr.Dataset
    theory: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = Counter(self.data.outcome.values.tolist())
        runs = self.data.sizes["run"]
        words = ", ".join(f"{counts[name]} {text}" for name, text in WORDS.items() if counts[name])
        head = f"{self.data.attrs['problem_name']}, {self.data.attrs['level']}: {count(runs, 'run')}, {words}"
        rows = [("", "median", "10 to 90 %", "theory"), *self._times(), *self._values()]
        return f"{head}\n{table(rows, indent='  ')}" if len(rows) > 1 else head

    def _times(self):
        for phase in PHASES[1:]:
            begin = self.data.begin.sel(phase=phase).values
            if np.isfinite(begin).any():
                yield f"{phase} from t", *_spread(begin), ""

    def _values(self):
        for name, text in ROWS.items():
            values = self.data[name].values
            if np.isfinite(values).any() or (name in self.theory and name in ("level", "growth")):
                yield text, *_spread(values), f"{self.theory[name]:.4g}" if name in self.theory else ""


def _spread(values: np.ndarray) -> tuple[str, str]:
    values = values[np.isfinite(values)]
    if not values.size:
        return "", ""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g}", f"{low:.4g} to {high:.4g}" if values.size > 1 else ""
