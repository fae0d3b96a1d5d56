"""Exit times of any problem with a plateau, by chain, SDE, ODE, and the ODE from starts to which SGD's noise is added."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np
import xarray as xr

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.first_passage import ode_exit_times
from sgdlimits.analysis.plateau import Departure, find_plateau, noisy_starts
from sgdlimits.analysis.summary import IntervalEstimate, summarise
from sgdlimits.checks import integer
from sgdlimits.domain import Fraction, Seed, Size, Statistics, checked
from sgdlimits.errors import BadInput, CensoredWarning
from sgdlimits.level import ODE, SDE, Chain
from sgdlimits.level.chain import chain_process
from sgdlimits.level.condition import RiskBelow
from sgdlimits.problem.base import Problem
from sgdlimits.run import simulate
from sgdlimits.start import RandomInit, Start, as_start
from sgdlimits.text import format_table

NOISY_LAW = "noisy law"
"""Name, in the table of exit times, of the law obtained from the ODE with noise added to its starts."""
TABLE_STATISTICS = ("mean", "10 %", "median", "90 %")
"""Names of the statistics of exit times, the rows of the printed table."""
LAW_START_COUNT = 1024
"""Number of noisy starts of the ODE that represent the noisy law, enough for a mean within 3 % of the standard deviation."""
MAX_EXIT_DELAY = 40.0
"""Delay after the linearised ODE's exit, in inverse growth rates, beyond which a noisy start counts as never exiting."""
FINAL_TIME_FACTOR = 1.5
"""End time of the simulations, as a multiple of the last exit time of the noisy law."""
LAW_ODE_TOLERANCE = 1e-6
"""Relative tolerance of the ODE from noisy starts, far below the method's error of order 1/sqrt(d)."""


@dataclass(frozen=True, repr=False)
class PlateauExits:
    """Exit times from a plateau, as a table with a column for chain, SDE, ODE, and the ODE from starts with noise added.

    Attributes
    ----------
    data : Dataset over `source` (chain, SDE, ODE, noisy law) and `statistic` (mean, 10 %, median, 90 %) with `t`, in samples
        per dimension, and `low` and `high`, its 95 % bootstrap interval; over `source`, `runs` and `censored`
    exits : datasets of `exit_times` by simulated source
    law : exit times of the noisy law, one for each start of the ODE with noise added, infinite without an exit
    plateau : saddle, its risk, its unstable rates, and the noise of the departure
    """

    data: xr.Dataset
    exits: dict[str, xr.Dataset]
    law: np.ndarray
    plateau: Departure

    def __repr__(self) -> str:
        a, data = self.data.attrs, self.data
        sources = data.source.values.tolist()
        rows = [("t", *sources)]
        for name in data.statistic.values.tolist():
            cells = [self._format_cell(data.sel(source=source, statistic=name)) for source in sources]
            rows.append((name, *cells))
        samples = data.t.sel(statistic="mean") * a["d"]
        rows.append(("samples, mean", *(f"{value:.4g}" for value in samples.values)))
        rows.append(("runs", *(str(int(data.runs.sel(source=each))) for each in sources)))
        rates = ", ".join(f"{rate:.4g}" for rate in np.real_if_close(self.plateau.rates))
        lines = [
            f"plateau at risk {self.plateau.risk:.4g}, unstable rates {rates}; exit at risk {a['exit_risk']:.4g}",
            format_table(rows, "<>"),
        ]
        if data.censored.any():
            lost = (f"{int(data.censored.sel(source=each))} of {each}" for each in sources if data.censored.sel(source=each))
            lines.append(f"censored at t = {a['t_max']:.4g}: {', '.join(lost)}; their means are lower bounds")
        return "\n".join(lines)

    @staticmethod
    def _format_cell(at: xr.Dataset) -> str:
        """Format one entry of the table: an exit time with its interval."""
        value, low, high = (float(at[name]) for name in ("t", "low", "high"))
        return "inf" if np.isinf(value) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


@checked
def plateau_exits(
    problem: Problem,
    d: Annotated[int, integer(at_least=2)],
    threshold: Fraction = 0.5,
    *,
    start: Start | Statistics | None = None,
    plateau: Statistics | None = None,
    runs: Size = 400,
    seed: Seed = 0,
    progress: bool = True,
) -> PlateauExits:
    r"""Compute exit times from the plateau that starts approach, by chain, SDE, ODE, and the ODE from starts with noise added.

    A run exits when its population risk has fallen to :math:`R_0 + (1 - T)(R_p - R_0)`, where :math:`R_p` is the risk of the
    plateau, :math:`R_0` the floor and T the threshold. The noisy law is that of the ODE from random starts to which the noise
    of SGD before and on the plateau is added, to first order in :math:`1/\sqrt d` (`analysis.plateau` has the equations). The
    relative error of the noisy law is of order :math:`1/\sqrt d` and :math:`1/(Td)`.

    Parameters
    ----------
    problem : any problem whose starts approach a linearly unstable fixed point of the ODE; the table of a fitted problem, for
        which there is no chain, starts with the SDE
    d : dimension
    threshold : T, the share of the plateau's excess risk that is lost at the exit
    start : law of starts, or statistics from which all runs start; None takes `RandomInit(d)`
    plateau : statistics near the saddle, refined by Newton's method; None follows the ODE from the centre of the start
    runs : number of runs of chain, SDE and ODE, which share their random starts
    seed : seed of starts and runs
    progress : whether to show progress bars

    See Also
    --------
    sgdlimits.exit_table : phase retrieval, with all formulas of its paper
    sgdlimits.linearise : the rates at any point

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=1 / 12)
    >>> found = sl.plateau_exits(problem, d=200, threshold=0.2, runs=8, progress=False)
    >>> found.data.source.values.tolist(), round(float(found.plateau.risk), 6)
    (['chain', 'SDE', 'ODE', 'noisy law'], 2.0)
    """
    start = RandomInit(d) if start is None else as_start(start)
    saddle = find_plateau(problem, start, plateau)
    floor = float(problem.floor)
    risk = floor + (1 - threshold) * (saddle.risk - floor)
    if not float(problem.risk(saddle.centre)) > risk:
        raise BadInput(
            f"the start has the risk {float(problem.risk(saddle.centre)):.4g}, below that of the exit, {risk:.4g}. "
            "Give another start, or a larger threshold."
        )
    law = law_times(problem, saddle, start, d, risk, seed)
    if not np.isfinite(law).any():
        excess = f"{saddle.risk - floor:.4g} over a floor of {floor:.4g}"
        raise BadInput(
            f"the ODE never loses the share {threshold:g} of the plateau's excess risk, {excess}. Give a smaller threshold."
        )
    t_max = FINAL_TIME_FACTOR * float(law[np.isfinite(law)].max())
    levels = {"chain": Chain(d), "SDE": SDE(d), "ODE": ODE()}
    if chain_process.dispatch(type(problem)) is chain_process.dispatch(object):
        del levels["chain"]
    how = dict[str, Any](t_max=t_max, seed=seed, until=RiskBelow(risk), progress=progress)
    exits = {
        name: exit_times(simulate(problem, level, start, runs=runs, **how), RiskBelow(risk)) for name, level in levels.items()
    }
    about = {"d": d, "threshold": threshold, "exit_risk": risk, "plateau_risk": saddle.risk, "t_max": t_max}
    about |= {"rate": float(problem.rate), "seed": seed}
    return PlateauExits(_tabulate(exits, law, t_max, about), exits, law, saddle)


def law_times(problem: Problem, saddle: Departure, start: Start, d: int, risk: float, seed: int = 0) -> np.ndarray:
    """Return sampled times at which the ODE, from starts to which SGD's noise is added, falls to a given risk."""
    starts = noisy_starts(problem, saddle, start, d, LAW_START_COUNT, seed)
    floor = float(problem.floor)
    excess = np.asarray(jax.vmap(problem.risk)(starts)) - floor
    rate = float(saddle.rates.real.max())
    latest = (np.log(d) / 2 + MAX_EXIT_DELAY) / rate
    return ode_exit_times(problem.limit, starts, 1 - (risk - floor) / excess, latest, LAW_ODE_TOLERANCE)


def _tabulate(exits: dict[str, xr.Dataset], law: np.ndarray, t_max: float, about: dict[str, Any]) -> xr.Dataset:
    """Return a dataset of the mean and the quantiles of exit times, with intervals, for chain, SDE, ODE and theory."""
    columns = {name: _estimate_statistics(each) for name, each in exits.items()}
    kept = np.isfinite(law) & (law <= t_max)
    columns[NOISY_LAW] = _estimate_statistics(
        xr.Dataset({"t": ("run", np.where(kept, law, t_max)), "censored": ("run", ~kept)})
    )
    counts = {name: (each.sizes["run"], int(each.censored.sum())) for name, each in exits.items()}
    counts[NOISY_LAW] = (law.size, int((~kept).sum()))
    pick = lambda key: [[getattr(cell, key) for cell in row] for row in columns.values()]
    variables: dict[str, Any] = {
        name: (("source", "statistic"), pick(key)) for name, key in (("t", "value"), ("low", "low"), ("high", "high"))
    }
    variables |= {name: ("source", [count[i] for count in counts.values()]) for i, name in enumerate(("runs", "censored"))}
    return xr.Dataset(variables, {"source": list(columns), "statistic": list(TABLE_STATISTICS)}, about)


def _estimate_statistics(exits: xr.Dataset) -> list[IntervalEstimate]:
    """Estimate the statistics of the exit times of one source, in the order of `TABLE_STATISTICS`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CensoredWarning)  # the table says how many runs are censored
        found = summarise(exits, quantiles=(0.1, 0.9))
    return [found.mean, found.quantiles[0.1], found.median, found.quantiles[0.9]]
