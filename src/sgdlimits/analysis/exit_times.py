"""Exit times: when the risk, or a user's function, of each run of a dataset passes a threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import xarray as xr

from sgdlimits.analysis.origin import origin_attributes
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput
from sgdlimits.level.base import RUN_STOPPED
from sgdlimits.level.condition import Condition, Exits, Predicate, as_condition, check_condition, exit_risk, is_reached
from sgdlimits.run.record import format_condition, from_json
from sgdlimits.run.schema import check_form, plain_variable, statistics


@checked
def exit_times(dataset: xr.Dataset, threshold: float | Callable | Condition) -> xr.Dataset:
    r"""Return the exit time of each run of a dataset; runs that have not exited are marked as censored.

    For a number T a run exits at the first t with :math:`R(t) - R_0 \le (1 - T)(R(0) - R_0)`, where R is its population risk
    and :math:`R_0` the problem's floor: equation (9) of Arnaboldi, Krzakala, Loureiro and Stephan [1]_.

    The dataset over `run` has `t`, the exit time, or the last time at which the run was observed if `censored` is true. Its
    attributes give the threshold, the level of description (such as `SGD` or `ODE`), d, the rate, the seed, the problem and
    `t_max`.

    Runs that the same condition stopped (``until=exits(T)``) have their exact exit times. Otherwise the margin by which the
    threshold is passed is interpolated linearly between saved times and, for simulations at a dimension d, the time is rounded
    up to a whole sample; an excursion beyond the threshold between two saved times is missed. For a function that returns a
    bool, the exit time is the first saved time at which it is true. A run that is beyond the threshold at its start exits at
    t = 0. A run that finished, diverged, was interrupted or stopped for another reason before its exit is censored. `summarise`
    estimates mean and quantiles.

    Parameters
    ----------
    dataset : a dataset of `simulate`
    threshold : T, above 0 and at most 1; or a JAX function of one run's statistics that is true, or a number of at least 0,
        where the run has exited

    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.08), sl.RandomInit(d=50)
    >>> runs = sl.simulate(problem, sl.Chain(d=50), start, t_max=100, runs=20, until=sl.exits(0.5))
    >>> exits = sl.exit_times(runs, 0.5)
    >>> int(exits.censored.sum()), bool((exits.t == runs.t_end).all())
    (0, True)
    """
    check_form(dataset)
    condition = as_condition(threshold) if callable(threshold) or isinstance(threshold, Condition) else Exits(threshold)
    assert condition is not None
    same_text = dataset.attrs["until"] == format_condition(condition)
    if same_text and not isinstance(condition, Predicate):
        t, censored = dataset.t_end.values, dataset.status.values != RUN_STOPPED
    else:
        t, censored = _first_passage(dataset, _condition_margins(dataset, condition), same_text)
    variables = {
        "t": plain_variable(("run",), t, {"long_name": "exit time, or the last time observed where censored"}),
        "censored": plain_variable(("run",), censored, {"long_name": "whether the run had not exited"}),
    }
    coords = {name: plain_variable(("run",), dataset[name].values, dataset[name].attrs) for name in ("run", "status")}
    passed = float(condition.threshold) if isinstance(condition, Exits) else format_condition(condition)
    return xr.Dataset(variables, coords, {"threshold": passed, **origin_attributes(dataset)})


def _condition_margins(dataset: xr.Dataset, condition: Condition) -> np.ndarray:
    """Return the margin by which each run satisfies the exit condition at each saved time; bools for a boolean condition."""
    if dataset.t.values[0] > 0:
        raise BadInput(
            f"exit times need the start of the runs, but the first saved time is {dataset.t.values[0]:g}. "
            "Simulate with 0 among the times in save, or with until=exits(threshold)."
        )
    if isinstance(condition, Exits):
        risk = dataset.risk.values
        return exit_risk(risk[:, :1], dataset.attrs["floor"], float(condition.threshold)) - risk
    problem: Any = None
    if not isinstance(condition, Predicate):
        problem = from_json(dataset.attrs["level_parameters"]).adapt_problem(from_json(dataset.attrs["problem"]))
    stats = statistics(dataset)
    check_condition(condition, problem, jax.tree.map(lambda leaf: leaf[0, 0], stats), "threshold")
    runs, times = dataset.risk.shape
    at: Callable = lambda t: None if problem is None else problem.at(t)
    memory = condition.begin_runs(at(float(dataset.t[0])), jax.tree.map(lambda leaf: leaf[:, 0], stats))
    memory = jax.tree.map(lambda leaf: np.repeat(leaf, times, axis=0), memory)
    flat = jax.tree.map(lambda leaf: leaf.reshape(runs * times, *leaf.shape[2:]), stats)
    observed = np.minimum(dataset.t.values, dataset.t_end.values[:, None]).ravel()
    margins = condition.over_runs(problem, lambda one: condition.margin(at(one[2]), *one[:2]), (flat, memory, observed))
    return np.asarray(margins).reshape(runs, times)


def _first_passage(dataset: xr.Dataset, margins: np.ndarray, same_name: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return each run's exit time and whether it is censored, from the margins of the exit condition at the saved times.

    The margins of a run after its end repeat the one at its end. `same_name` says whether the condition that stopped the runs
    has the name of this one.
    """
    t, t_end = dataset.t.values, dataset.t_end.values
    stopped = dataset.status.values == RUN_STOPPED
    beyond = is_reached(margins)
    if same_name and _explains_stops(beyond, t, t_end, stopped):
        return t_end, ~stopped
    observed = np.minimum(t, t_end[:, None])
    first, run = beyond.argmax(1), np.arange(t_end.size)
    before = np.maximum(first - 1, 0)
    low, high = observed[run, before], observed[run, first]
    if margins.dtype == bool:
        times = high
    else:
        with np.errstate(all="ignore"):
            share = margins[run, before] / (margins[run, before] - margins[run, first])
        share = np.where((share > 0) & (share <= 1), share, 1.0)
        times = low + share * (high - low)
        if d := int(dataset.attrs["d"]):
            samples = np.rint(low * d) + np.ceil(share * np.rint((high - low) * d))
            times = np.minimum(samples / d, high)
    censored = ~beyond.any(1)
    return np.where(censored, observed[:, -1], np.where(first == 0, observed[:, 0], times)), censored


def _explains_stops(beyond: np.ndarray, t: np.ndarray, t_end: np.ndarray, stopped: np.ndarray) -> bool:
    """Return whether a boolean condition can have stopped the runs: false before the end of each run, true where runs stopped.

    `beyond` has the condition for each run at each saved time `t`; `stopped` marks the runs that were stopped, at `t_end`.
    """
    early = (beyond & (t < t_end[:, None])).any()
    seen = t_end <= t[-1]
    return not early and bool((beyond[:, -1] == stopped)[seen].all())
