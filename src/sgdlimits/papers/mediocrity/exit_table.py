"""Table of exit times of phase retrieval: simulated at every level, and computed by every formula."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import xarray as xr

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.summary import IntervalEstimate, summarise
from sgdlimits.checks import integer
from sgdlimits.domain import Seed, Size, UncheckedArgument, checked
from sgdlimits.errors import BadInput, CensoredWarning, Interrupted
from sgdlimits.level import ODE, SDE, SGD, Chain
from sgdlimits.level.condition import exits
from sgdlimits.papers.mediocrity.theory.rates import linear_rates, max_lr, noise_gain
from sgdlimits.papers.mediocrity.theory.times import AVERAGES, ONE_UNIT_AVERAGES, exit_horizon, exit_time, read_parameters
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.run import simulate
from sgdlimits.start import RandomInit
from sgdlimits.text import format_table

AVERAGE_TITLES = {"annealed": "annealed (47)", "quenched": "quenched (46)", "sde": "sde (52)"}
"""Titles of the averages that have an equation number in the paper."""
MAX_STABLE_RUNS = 64
"""Number of chain runs at a stable plateau, which all last until the horizon."""
COLUMNS = ("method", "runs", "samples", "t", "paper time", "95 % of t", "to the chain")
"""Headings of the printed table."""


@dataclass(frozen=True, repr=False)
class ExitTable:
    """Table of mean exit times, simulated by chain, SDE, ODE or SGD and computed by every formula; prints as a table.

    Parameters
    ----------
    data : Dataset over `source` with `t`, in samples per dimension; `low` and `high`, a 95 % bootstrap interval, NaN for
        formulas; `runs` and `censored`, 0 for formulas; and `difference`, t relative to the chain's less 1. The attribute
        `statistic` is "mean" or, if any run is censored, "median": the meaning of t for simulated levels. Formulas give means,
        and have no `difference` from a median
    exits : datasets of `exit_times` by name of the simulated level
    """

    data: xr.Dataset
    exits: dict[str, xr.Dataset]

    @property
    def learns(self) -> bool:
        """Whether the learning rate is below `theory.mediocrity.max_lr`, so that runs leave the plateau."""
        return float(linear_rates(*self._paper_parameters).M) > 0

    def __repr__(self) -> str:
        """Return the printed table, or the reason why nothing is learnt."""
        return "\n".join(self._format_lines()) if self.learns else self.reading()

    def reading(self) -> str:
        """Explanation of which formula agrees with the chain and why, or of why nothing is learnt."""
        return " ".join(self._explain_agreement() if self.learns else self._explain_failure())

    @property
    def _paper_parameters(self) -> tuple[int, float, float]:
        """Width, learning rate and noise of the phase retrieval problem."""
        return tuple(self.data.attrs[name] for name in ("width", "lr", "noise"))

    def _select_columns(self, *names: str) -> Iterator[tuple]:
        """Yield for each row of the table its source and the values of the named columns.

        A source is a simulated level, such as the chain, or a formula.
        """
        yield from zip(self.data.source.values.tolist(), *(self.data[name].values for name in names), strict=True)

    def _format_lines(self) -> Iterator[str]:
        """Yield the lines of the printed table, with a footnote on censored runs."""
        a, rows = self.data.attrs, []
        for name, t, low, high, runs, lost, difference in self._select_columns(*self.data.data_vars):
            # formulas have no runs and no interval
            interval = f"[{_format_number(low, '.2f')}, {_format_number(high, '.2f')}]" if runs else ""
            relative = "" if name == "chain" or not np.isfinite(difference) else f"{100 * difference:+.1f} %"
            count = f"{runs}{'*' if lost else ''}" if runs else ""
            times = (_format_number(t * a["d"], ".0f"), _format_number(t, ".2f"), _format_number(t * a["rate"], ".3f"))
            rows.append((name, count, *times, interval, relative))
        yield format_table([COLUMNS, *rows], "<>")
        if self.data.censored.any():
            each = (f"{lost} of {runs} for {name}" for name, lost, runs in self._select_columns("censored", "runs") if lost)
            yield f"* censored at t = {a['t_max']:.4g}: {', '.join(each)}. Therefore t is the median in rows with runs;"
            yield "  formulas give means and are not compared with it."

    def _explain_agreement(self) -> Iterator[str]:
        """Yield sentences on the effects of noise and of the full drift, and on the distance of `noisy_ode` from the chain."""
        kappa, omega = float(noise_gain(*self._paper_parameters)), float(linear_rates(*self._paper_parameters).M)
        t, difference = ({name: float(value) for name, value in self._select_columns(key)} for key in ("t", "difference"))
        gain = np.log1p(kappa) / (2 * omega)
        yield (
            f"SGD's own noise adds kappa = {kappa:.3g} times the variance of the overlap at the start. It shortens the "
            f"quenched time by log(1 + kappa)/(2 omega_M) = {gain:.3g} in the paper's time, "
            f"{gain / self.data.attrs['rate']:.3g} in t; "
            "noisy and noisy_ode include it."
        )
        if np.isfinite(t["ode"]):
            # both average over the same starts; they differ in the drift
            bend = t["ode"] - t["quenched (46)"]
            yield f"The nonlinear drift beyond the plateau adds {bend:.3g} in t; ode and noisy_ode include it."
        else:
            share = self.data.attrs["threshold"]
            yield f"The ODE never loses the share {share:g} of its excess risk: it converges before."
        if np.isfinite(difference["noisy_ode"]):
            low, high = (float(self.data[key].loc["chain"]) for key in ("low", "high"))
            inside = {name: low <= t[name] <= high for name in ("noisy_ode", "quenched (46)")}
            where = "inside" if inside["noisy_ode"] else "outside"
            yield f"noisy_ode includes both: {100 * difference['noisy_ode']:+.1f} % from the chain, {where} its interval."
            # with little noise there is nothing to cancel
            if inside["quenched (46)"] and kappa > 0.1:
                yield "quenched includes neither, and is near the chain here because the two effects cancel."

    def _explain_failure(self) -> Iterator[str]:
        """Yield sentences on why nothing is learnt, and on the behaviour of the chain's runs."""
        a, chain = self.data.attrs, self.exits["chain"]
        runs, left, limit = chain.sizes["run"], int((~chain.censored).sum()), float(max_lr(a["width"], a["noise"]))
        formula = "2/(12 + noise)" if a["width"] == 1 else "2p/(2 + 2/p + 8/p^2 + noise)"
        yield (
            f"lr = {a['lr']:.4g} is at or above {formula} = {limit:.4g} (max_lr for this width): the plateau is stable "
            f"and the risk stays{' for large d' if left else ''}."
        )
        yield (
            f"{runs} runs of the chain up to t = {a['t_max']:.4g}: {left} exited, and the mean risk went from "
            f"{chain.attrs['risk_start']:.4g} to {chain.attrs['risk_end']:.4g}."
        )
        if left:
            yield "These exits are due to the noise at this d, which vanishes as d grows."


class ExitsInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during `exit_table`; the attribute `found` holds the table so far, with unfinished runs censored."""

    def __init__(self, found: ExitTable) -> None:
        super().__init__("interrupted; the table of the runs so far is in the attribute `found` of this exception")
        self.found = found


@checked
def exit_table(
    problem: ProjectionProblem,
    d: Annotated[int, integer(at_least=2)],
    threshold: UncheckedArgument[float],
    *,
    runs: Size = 400,
    seed: Seed = 0,
    sgd_runs: Annotated[int, integer(at_least=0)] = 0,
    progress: bool = True,
) -> ExitTable:
    """Table of mean exit times of phase retrieval from random starts: by SGD, chain, SDE, ODE and every formula.

    At learning rates of `max_lr` or more nothing is learnt. Then only the chain is simulated, for ten times the exit time at
    the optimal rate, and `reading` says so.

    Parameters
    ----------
    problem : `presets.phase_retrieval` of any width on the sphere with a fixed second layer
    d : dimension
    threshold : T, the relative decrease of the excess risk, (9)
    runs : number of runs of chain, SDE and ODE, which share their random starts
    seed : seed of starts and runs
    sgd_runs : number of runs of SGD on the weights, from the first of these starts; 0 skips them
    progress : whether to show progress bars

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=1 / 12)
    >>> format_table = sl.exit_table(problem, d=40, threshold=0.2, runs=4, progress=False)
    >>> format_table.data.source.values[:5].tolist()
    ['chain', 'SDE', 'ODE', 'annealed (47)', 'quenched (46)']
    """
    at = read_parameters(problem, d, threshold)
    levels = {"SGD": (SGD(at.d), sgd_runs), "chain": (Chain(at.d), runs), "SDE": (SDE(at.d), runs), "ODE": (ODE(), runs)}
    if not np.isfinite(at.time_per_log):
        levels = {"chain": (Chain(at.d), min(runs, MAX_STABLE_RUNS))}
    found = {}
    how = dict[str, Any](t_max=exit_horizon(at), seed=seed, until=exits(at.T), progress=progress)
    try:
        for name in sorted(
            levels, key=lambda name: name != "chain"
        ):  # the chain first: a table of an interrupted call needs it
            level, count = levels[name]
            if count:
                found[name] = _measure_exits(simulate(problem, level, RandomInit(at.d), runs=count, **how), at.T)
    except KeyboardInterrupt as stopped:
        if isinstance(stopped, Interrupted) and float(stopped.dataset.t[-1]) > 0:
            found[name] = _measure_exits(stopped.dataset, at.T)
        if "chain" in found:
            there = {name: found[name] for name in levels if name in found}
            raise ExitsInterrupted(tabulate(problem, d, threshold, there)) from None
        raise
    return tabulate(problem, d, threshold, {name: found[name] for name in levels if name in found})


def _measure_exits(dataset: xr.Dataset, threshold: float) -> xr.Dataset:
    """Return the exit times of a dataset's runs, with the mean risk at its first and last time as attributes."""
    risk = {"risk_start": float(dataset.risk[:, 0].mean()), "risk_end": float(dataset.risk[:, -1].mean())}
    return exit_times(dataset, threshold).assign_attrs(risk)


def tabulate(problem: ProjectionProblem, d: int, threshold: float, exits: dict[str, xr.Dataset]) -> ExitTable:
    """Build the exit table from `exit_times` datasets by level (such as chain or SDE), and from all formulas.

    A run exits when its excess risk has fallen by the fraction `threshold`, in d dimensions.
    """
    at = read_parameters(problem, d, threshold)
    if "chain" not in exits:
        raise BadInput(f"exits must include the chain; got {', '.join(exits) or 'none'}. Add the exit times of the chain.")
    censored = {name: int(each.censored.sum()) for name, each in exits.items()}
    statistic = "median" if any(censored.values()) else "mean"  # the mean of censored times is unknown
    rows = {name: _estimate_exit_time(each, statistic) for name, each in exits.items()}
    chain = rows["chain"].value if np.isfinite(rows["chain"].value) else np.nan
    for name in AVERAGES:
        if at.p == 1 or name not in ONE_UNIT_AVERAGES:
            rows[AVERAGE_TITLES.get(name, name)] = IntervalEstimate(exit_time(problem, at.d, at.T, name), np.nan, np.nan)
    times = {"t": "value", "low": "low", "high": "high"}
    columns: dict[str, Any] = {key: [getattr(row, name) for row in rows.values()] for key, name in times.items()}
    columns["runs"] = [exits[name].sizes["run"] if name in exits else 0 for name in rows]
    columns["censored"] = [censored.get(name, 0) for name in rows]
    comparable = [name in exits or statistic == "mean" for name in rows]
    columns["difference"] = np.where(comparable, np.array(columns["t"]) / chain - 1, np.nan)
    about: dict[str, Any] = {"d": at.d, "threshold": at.T, "width": at.p, "lr": at.lr, "noise": at.noise, "rate": at.lr / at.p}
    about |= {"statistic": statistic, "t_max": exits["chain"].attrs["t_max"]}
    return ExitTable(xr.Dataset({key: ("source", each) for key, each in columns.items()}, {"source": list(rows)}, about), exits)


def _estimate_exit_time(exits: xr.Dataset, statistic: str) -> IntervalEstimate:
    """Estimate the mean or median exit time with its interval, without a warning on censored runs.

    Here `statistic` is "mean" or "median".
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CensoredWarning)
        return getattr(summarise(exits, quantiles=()), statistic)


def _format_number(value: float, form: str) -> str:
    """Format a value of the table, in scientific notation from 10^7 on.

    Here `form` is the format specification of smaller values.
    """
    return "inf" if np.isinf(value) else f"{value:{form}}" if abs(value) < 1e7 else f"{value:.2e}"
