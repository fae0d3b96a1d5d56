"""Result of `optimise`, and its check by the exact chain at finite d."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, PyTree

from sgdlimits.analysis.objective import Objective
from sgdlimits.domain import Count, Seed, Size, checked
from sgdlimits.errors import BadInput
from sgdlimits.level.base import Level
from sgdlimits.level.chain import Chain
from sgdlimits.problem.base import Problem
from sgdlimits.run.simulate import simulate
from sgdlimits.schedule_forms import Steps
from sgdlimits.text import format_count, format_table

NORMAL_QUANTILE = 1.959963984540054
"""Quantile of the normal distribution for two-sided intervals of 95%."""


@dataclass(frozen=True, repr=False)
class ChainGain:
    """Gain of the optimal schedules over the best constants, measured in runs of the exact chain.

    Parameters
    ----------
    d : dimension
    runs : number of runs with the optimal schedules, and with the best constants
    gain : mean objective with the best constants minus that with the optimal schedules
    standard_error : standard error of the gain
    predicted : gain that the ODE predicts
    optimum, baseline : objective of each run, with the optimal schedules and with the best constants
    """

    d: int
    runs: int
    gain: float
    standard_error: float
    predicted: float
    optimum: Float[np.ndarray, " runs"]
    baseline: Float[np.ndarray, " runs"]

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval, at 95 %, of the gain that was measured in runs of the chain."""
        arm = NORMAL_QUANTILE * self.standard_error
        return self.gain - arm, self.gain + arm

    @property
    def confirmed(self) -> bool:
        """Whether the measured gain is within two standard errors of the gain that the ODE predicts."""
        return bool(abs(self.gain - self.predicted) <= 2 * self.standard_error)

    def __repr__(self) -> str:
        low, high = self.interval
        verdict = "within" if self.confirmed else "not within"
        return (
            f"gain {self.gain:.4g} in {format_count(self.runs, 'run')} of the chain at d = {self.d} "
            f"(95%: {low:.4g} to {high:.4g}), "
            f"{verdict} two standard errors of {self.predicted:.4g}"
        )


@dataclass(repr=False)
class Optimum:
    """Best schedules that `optimise` found, with their objective, a baseline and measures of optimality.

    Parameters
    ----------
    value, baseline : objective with the optimal schedules, and with the best constants
    controls : optimal schedule of each control
    constants : best constant of each control
    problem, baseline_problem : problem with the optimal schedules, and with the best constants
    dataset : path of `ODE()` with the optimal schedules
    start : initial statistics of all runs
    values : objective reached from each start of the search
    certificate : norm of the projected gradient at the optimum, 0 at a stationary point; the objective is in units of its
        value at the best constants, the controls in units of their ranges
    certificate_of_constants : norm of the projected gradient at the best constants, for comparison
    costate : gradient of the objective with respect to the statistics at each time in `t`, times first
    t : beginnings of the intervals on which all controls are constant
    evaluations : number of gradients computed
    error : difference between `value` and the objective of `dataset`, which `ODE()` solved with error control
    complete : whether the search converged; false after Ctrl-C, and if the limit on gradients was reached first
    interrupted : whether Ctrl-C ended the search
    objective : objective that was minimised
    ends : 0, the times at which a control changes, and `t_max`
    checks : results of `check`
    """

    value: float
    baseline: float
    controls: dict[str, Steps]
    constants: dict[str, float]
    problem: Problem
    baseline_problem: Problem
    dataset: xr.Dataset
    start: PyTree
    values: tuple[float, ...]
    certificate: float
    certificate_of_constants: float
    costate: PyTree
    t: Float[np.ndarray, " intervals"]
    evaluations: int
    error: float
    complete: bool
    interrupted: bool
    objective: Objective
    ends: Float[np.ndarray, " intervals+1"]
    checks: list[ChainGain] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Objective with the best constants minus that with the optimal schedules."""
        return self.baseline - self.value

    @property
    def spread(self) -> float:
        """Largest minus smallest objective over the starts of the search."""
        return max(self.values) - min(self.values)

    @checked
    def check(self, d: Count, runs: Size = 64, *, seed: Seed = 0, progress: bool = True) -> ChainGain:
        """Measure the gain by the exact chain at dimension d, with independent runs of the two problems from the same start.

        Parameters
        ----------
        d : dimension
        runs : number of runs with the optimal schedules, and with the best constants
        seed : seed of the runs with the optimal schedules; runs with the best constants have the next seed
        progress : whether to show a progress bar

        The result is also appended to `checks`. The mean of the chain differs from the ODE by O(1/d), besides sampling errors.
        """
        if runs < 2:
            raise BadInput(f"runs must be at least 2 for a standard error; got {runs}. Give runs=2 or more.")
        samples = []
        for offset, problem in enumerate((self.problem, self.baseline_problem)):
            dataset = simulate_path(problem, Chain(d), self.start, self.ends, self.objective, runs, seed + offset, progress)
            samples.append(np.asarray(self.objective.evaluate_runs(problem, dataset), float))
        optimum, baseline = samples
        standard_error = float(np.sqrt((optimum.var(ddof=1) + baseline.var(ddof=1)) / runs))
        found = ChainGain(d, runs, float(baseline.mean() - optimum.mean()), standard_error, self.gain, optimum, baseline)
        self.checks.append(found)
        return found

    def __repr__(self) -> str:
        name = self.objective.title
        rows = [
            (name, f"{self.value:.6g} (best constants {self.baseline:.6g}, gain {self.gain:.4g})"),
            ("best constants", ", ".join(f"{each} = {value:.4g}" for each, value in self.constants.items())),
            *((each, _describe_schedule(control)) for each, control in self.controls.items()),
            ("starts", f"{', '.join(f'{value:.6g}' for value in self.values)} (spread {self.spread:.2g})"),
            ("projected gradient", f"{self.certificate:.2g} (at the best constants {self.certificate_of_constants:.2g})"),
            ("difference from ODE()", f"{self.error:.1g}"),
            ("gradients", f"{self.evaluations}{'' if self.complete else '; the search had not ended'}"),
            *(("chain", repr(check)) for check in self.checks),
        ]
        return f"Optimum: {name}\n{format_table(rows, indent='  ')}"


def _describe_schedule(control: Steps) -> str:
    """Describe a schedule by its number of pieces and a few of its values."""
    values = np.asarray(control.values)
    places = np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))
    return f"{format_count(len(values), 'piece')}: {', '.join(f'{values[i]:.4g}' for i in places)}"


def simulate_path(
    problem: Problem,
    level: Level,
    start: Any,
    ends: np.ndarray,
    objective: Objective,
    runs: int = 1,
    seed: int = 0,
    progress: bool = False,
) -> xr.Dataset:
    """Simulate a problem to the last of the times `ends`, and save the statistics that an objective needs."""
    save = None if objective.until is not None else ends
    return simulate(
        problem, level, start, t_max=float(ends[-1]), runs=runs, seed=seed, save=save, until=objective.until, progress=progress
    )
