"""Result of `phases`, printed as a table with theoretical values beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.papers.mediocrity.theory.rates import linear_rates
from sgdlimits.papers.quadratic.theory.plateau import plateau_rates, plateau_risk
from sgdlimits.papers.quadratic.theory.terminal import terminal_decay
from sgdlimits.problem.recognise import recognise_phase_retrieval, recognise_quadratic_network
from sgdlimits.run.record import from_json
from sgdlimits.text import format_count, format_table

PHASES = ("norm learning", "plateau", "escape", "descent", "tail")
"""Names of the phases in order; norm learning precedes the plateau, and is absent for students of fixed norm."""
OUTCOMES = {"left": "left a plateau", "stays": "stayed on one", "none": "had none", "diverged": "diverged"}
"""Words for the outcomes of runs in the printed table."""
ROW_TITLES = {
    "level": "risk on the plateau",
    "growth": "growth of overlaps",
    "decay": "decay between students",
    "tail_rate": "rate of the tail",
    "tail_exponent": "exponent of the tail",
}
"""Titles of the rows of rates in the printed table."""


@dataclass(frozen=True, repr=False)
class Phases:
    """Phases of learning of each run, as found by `sgdlimits.phases`, with theoretical values where they are known.

    Parameters
    ----------
    data : Dataset over `run` and `phase`, described in `sgdlimits.phases`
    theory : theoretical values by variable name, for quadratic networks and phase retrieval on the sphere
    """

    data: xr.Dataset
    theory: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = Counter(self.data.outcome.values.tolist())
        runs = self.data.sizes["run"]
        words = ", ".join(f"{counts[name]} {text}" for name, text in OUTCOMES.items() if counts[name])
        head = f"{self.data.attrs['problem_name']}, {self.data.attrs['level']}: {format_count(runs, 'run')}, {words}"
        rows = [("", "median", "10 to 90 %", "theory"), *self._time_rows(), *self._value_rows()]
        return f"{head}\n{format_table(rows, indent='  ')}" if len(rows) > 1 else head

    def _time_rows(self):
        """Yield table rows with the times at which the phases begin."""
        for phase in PHASES[1:]:
            begin = self.data.begin.sel(phase=phase).values
            if np.isfinite(begin).any():
                yield f"{phase} from t", *_format_quantiles(begin), ""

    def _value_rows(self):
        """Yield table rows with the risk on the plateau and the fitted rates, beside their theoretical values."""
        for name, text in ROW_TITLES.items():
            values = self.data[name].values
            if np.isfinite(values).any() or (name in self.theory and name in ("level", "growth")):
                yield text, *_format_quantiles(values), f"{self.theory[name]:.4g}" if name in self.theory else ""


def _format_quantiles(values: np.ndarray) -> tuple[str, str]:
    """Format the median of values over runs and the range of the middle 80 %, ignoring NaN."""
    values = values[np.isfinite(values)]
    if not values.size:
        return "", ""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return f"{middle:.4g}", f"{low:.4g} to {high:.4g}" if values.size > 1 else ""


def compute_theory(dataset: xr.Dataset) -> dict[str, float]:
    """Return theoretical plateau and tail values by variable name, for a dataset's problem and level.

    The dict is empty if no theory applies.
    """
    try:
        problem, level = (from_json(dataset.attrs[name]) for name in ("problem", "level_parameters"))
        corrector = getattr(level, "corrector", True)
        if recognise_quadratic_network(problem):
            return _quadratic_theory(problem, corrector)
        found = recognise_phase_retrieval(problem)
    except BadInput:
        return {}
    if not (found and corrector and found.sphere) or found.trains_second:
        return {}
    rates = linear_rates(found.p, found.lr, found.noise)
    values = {"growth": float(rates.M) * found.lr / found.p}
    return values | ({"decay": float(np.abs(rates.Q)) * found.lr / found.p} if found.p > 1 else {})


def _quadratic_theory(problem, corrector: bool) -> dict[str, float]:
    """Return a quadratic network's theoretical risk and rates on the plateau, and its tail rate or exponent.

    Here `corrector` is whether terms quadratic in the learning rate are included.
    """
    rates = plateau_rates(problem, corrector=corrector)
    values = {"level": plateau_risk(problem, corrector=corrector), "growth": rates.rho}
    if problem.network.width > 1:
        values["decay"] = rates.Q
    try:
        end = terminal_decay(problem, corrector=corrector)
    except BadInput:
        return values
    return values | ({"tail_rate": end.rate} if end.law == "exponential" else {"tail_exponent": 2.0})
