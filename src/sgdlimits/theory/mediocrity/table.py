"""Exit times of one setting in one table: simulated at every level, and by every formula."""

from __future__ import annotations

import warnings

import numpy as np
import xarray as xr

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.summary import CensoredWarning, Estimate, summarise
from sgdlimits.errors import BadInput, check_count
from sgdlimits.level import ODE, SDE, SGD, Chain
from sgdlimits.level.condition import exits
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.start import RandomInit
from sgdlimits.theory.mediocrity.rates import max_lr, noise_gain, optimal_lr
from sgdlimits.theory.mediocrity.times import AVERAGES, Setting, annealed, exit_time, ode, quenched, setting
from sgdlimits.trajectory import simulate

EQUATIONS = {"annealed": "(47)", "quenched": "(46)", "sde": "(52)"}
ONE_UNIT = ("sde", "sde_quenched", "backward")
"""Averages whose state is one overlap."""
STAY = 64
"""Runs that show that a stable plateau is not left."""


def compare(
    problem: ProjectionProblem,
    d: int,
    threshold: float,
    *,
    runs: int = 400,
    seed: int = 0,
    sgd_runs: int = 0,
    progress: bool = True,
) -> xr.Dataset:
    """Mean exit times of phase retrieval from random starts: of SGD, chain, SDE and ODE, and by every formula.

    Parameters
    ----------
    problem : `presets.phase_retrieval` of any width on the sphere, its second layer fixed
    d : dimension
    threshold : T, the relative decrease of the excess risk, (9)
    runs : of chain, SDE and ODE, which start from the same random starts
    seed : of starts and runs
    sgd_runs : of SGD on the weights, from the first of these starts; 0 leaves it out
    progress : whether to show progress bars

    Returns
    -------
    xarray.Dataset over `source` with `t`, in samples per dimension; `low` and `high`, a 95 % bootstrap interval, NaN for
    formulas; `runs` and `censored`, 0 for formulas; and `difference`, t relative to the chain's less 1.

    Notes
    -----
    The attribute `statistic` says what t is for the simulated methods: the mean, or the median as soon as a run is censored.
    Formulas are means, and have no `difference` from a median. From the learning rate `max_lr` on nothing is learnt: then only
    the chain is simulated, for ten times the time that the optimal rate needs, `learns` is 0, and `risk_start` and
    `risk_end` hold the mean risk of its runs.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=1 / 12)
    >>> table = sl.theory.mediocrity.compare(problem, d=40, threshold=0.2, runs=4, progress=False)
    >>> table.source.values[:5].tolist()
    ['chain', 'SDE', 'ODE', 'annealed (47)', 'quenched (46)']
    """
    return tabulate(problem, d, threshold, simulated(problem, d, threshold, runs, seed, sgd_runs, progress))


def simulated(
    problem: ProjectionProblem,
    d: int,
    threshold: float,
    runs: int,
    seed: int = 0,
    sgd_runs: int = 0,
    progress: bool = True,
) -> dict[str, xr.Dataset]:
    """The dataset of `exit_times` of each level, by name; of the chain alone where the plateau is stable."""
    at = setting(problem, d, threshold)
    runs, sgd_runs = check_count("runs", runs), check_count("sgd_runs", sgd_runs, at_least=0)
    levels = {"SGD": (SGD(at.d), sgd_runs), "chain": (Chain(at.d), runs), "SDE": (SDE(at.d), runs), "ODE": (ODE(), runs)}
    if not np.isfinite(at.slow):
        levels = {"chain": (Chain(at.d), min(runs, STAY))}
    found = {}
    for name, (level, count) in levels.items():
        if count:
            dataset = simulate(
                problem, level, RandomInit(at.d),
                t_max=horizon(at), runs=count, seed=seed, until=exits(at.T), progress=progress,
            )  # fmt: skip
            risk = {"risk_start": float(dataset.risk[:, 0].mean()), "risk_end": float(dataset.risk[:, -1].mean())}
            found[name] = exit_times(dataset, at.T).assign_attrs(risk)
    return found


def tabulate(problem: ProjectionProblem, d: int, threshold: float, exits: dict[str, xr.Dataset]) -> xr.Dataset:
    """The table of simulated exit times, as `simulated` makes them, and of all formulas."""
    at = setting(problem, d, threshold)
    if "chain" not in exits:
        raise BadInput(f"exits must hold those of the chain; got {', '.join(exits) or 'none'}. Simulate the chain too.")
    censored = {name: int(each.censored.sum()) for name, each in exits.items()}
    statistic = "median" if any(censored.values()) else "mean"
    estimates = {name: _estimate(each, statistic) for name, each in exits.items()}
    formulas = {title(name): Estimate(time, np.nan, np.nan) for name, time in formulas_of(at).items()}
    rows = estimates | formulas
    reference = estimates["chain"].value if np.isfinite(estimates["chain"].value) else np.nan
    comparable = [name in estimates or statistic == "mean" for name in rows]
    difference = np.where(comparable, np.array([row.value for row in rows.values()]) / reference - 1, np.nan)
    times = {key: ("source", [getattr(row, name) for row in rows.values()]) for key, name in COLUMNS.items()}
    return xr.Dataset(
        {
            **times,
            "runs": ("source", [exits[name].sizes["run"] if name in exits else 0 for name in rows]),
            "censored": ("source", [censored.get(name, 0) for name in rows]),
            "difference": ("source", difference),
        },
        coords={"source": list(rows)},
        attrs={
            "statistic": statistic, "d": at.d, "threshold": at.T, "width": at.p, "lr": at.lr, "noise": at.noise,
            "rate": float(problem.rate), "noise_gain": float(noise_gain(at.p, at.lr, at.noise)),
            "max_lr": float(max_lr(at.p, at.noise)), "learns": int(np.isfinite(at.slow)), "t_max": float(horizon(at)),
            "risk_start": exits["chain"].attrs.get("risk_start", np.nan),
            "risk_end": exits["chain"].attrs.get("risk_end", np.nan),
        },
    )  # fmt: skip


COLUMNS = {"t": "value", "low": "low", "high": "high"}


def formulas_of(at: Setting) -> dict[str, float]:
    """The mean exit time by every average that the width allows."""
    return {name: exit_time(at.problem, at.d, at.T, name) for name in AVERAGES if at.p == 1 or name not in ONE_UNIT}


def title(average: str) -> str:
    """An average with the number of its equation in the paper, where it has one.

    >>> title("quenched"), title("noisy")
    ('quenched (46)', 'noisy')
    """
    return f"{average} {EQUATIONS[average]}" if average in EQUATIONS else average


def horizon(at: Setting) -> float:
    r"""A time by which nearly all runs have exited: twice the mean of the ODE, and :math:`15\,p/\gamma\omega_M` more.

    A start of overlap m exits :math:`\log(1/dm^2)\,p/2\gamma\omega_M` later than a typical one: without
    SGD's noise a share of about :math:`e^{-15}` is later than this. Where the full ODE does not come to the threshold, only
    rare fluctuations do, and they are not waited for.
    """
    if not np.isfinite(at.slow):
        best = float(optimal_lr(at.p, at.noise))
        return max(1.0, 10 * annealed(at._replace(lr=best)))
    linear, full = quenched(at), ode(at)
    return 2 * (full if np.isfinite(full) else linear) + 30 * at.slow


def _estimate(exits: xr.Dataset, statistic: str) -> Estimate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CensoredWarning)
        return getattr(summarise(exits, quantiles=()), statistic)
