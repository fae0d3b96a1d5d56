"""Reductions: the values that a sweep stores of each simulation in place of its whole trajectory, such as the final risk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.origin import name_of_overlap
from sgdlimits.checks import mapping
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level.condition import Condition, exits
from sgdlimits.run.record import from_json
from sgdlimits.run.sweeps.names import function_name, import_function


def _select_time(values: xr.DataArray, index: int) -> xr.DataArray:
    """Return an array at the time with the given index, without the coordinate t."""
    return values.drop_vars("t").isel(t=index)  # indexing a coordinate makes xarray import all of dask


def final_risk(dataset: xr.Dataset) -> xr.DataArray:
    """Return the population risk of each run in a dataset at the last time."""
    return _select_time(dataset.risk, -1)


def excess_risk(dataset: xr.Dataset) -> xr.DataArray:
    """Return the final population risk of each run minus the noise floor, the risk of predicting labels without their noise."""
    return final_risk(dataset) - dataset.attrs["floor"]


def relative_risk(dataset: xr.Dataset) -> xr.DataArray:
    """Return the final excess risk of each run divided by the initial one: 0 if everything is learnt, 1 if nothing is."""
    floor = dataset.attrs["floor"]
    return (final_risk(dataset) - floor) / (_select_time(dataset.risk, 0) - floor)


def learnt(dataset: xr.Dataset, threshold: float = 0.5) -> xr.DataArray:
    """Return 1.0 for each run whose excess risk has lost the fraction `threshold` of its initial value, else 0.0.

    Runs that diverged give 0.0.
    """
    return ((relative_risk(dataset) <= 1 - threshold) & (dataset.status != "diverged")).astype(float)


def overlap(dataset: xr.Dataset) -> xr.DataArray:
    """Return the final overlap of each run with the fixed directions, in absolute value, averaged over its entries."""
    values = abs(_select_time(dataset[str(name_of_overlap(dataset))], -1))
    return values.mean([dim for dim in values.dims if dim != "run"])


def accuracy(dataset: xr.Dataset) -> xr.DataArray:
    """Return the probability, at the end of each run, that the network predicts the right class."""
    if "accuracy" not in dataset:
        raise BadInput(f"{dataset.attrs['problem_name']} predicts no classes and has no accuracy. Use keep='final_risk'.")
    return _select_time(dataset.accuracy, -1)


def exit_time(dataset: xr.Dataset, threshold: float = 0.5) -> xr.Dataset:
    """Return the exit time of each run, and whether it is censored (longer than the run), as `sgdlimits.exit_times`."""
    return exit_times(dataset, threshold)[["t", "censored"]].rename(t="exit_time").drop_vars("status")


def fixed_point_count(dataset: xr.Dataset) -> int:
    """Return the number of connected components of fixed points of the ODE of a dataset's problem.

    Images under symmetries are counted.
    """
    from sgdlimits.analysis.fixed_points import fixed_points

    return sum(point.copies for point in fixed_points(from_json(dataset.attrs["problem"])))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn for fn in (final_risk, excess_risk, relative_risk, learnt, overlap, accuracy, exit_time, fixed_point_count)
}
"""Reductions by name: functions of the dataset of one simulation, with options as keyword arguments."""


def as_reductions(keep: Any) -> dict[str, dict[str, Any]]:
    """Convert the argument `keep` of `sweep` to a dictionary from reductions' names to their options.

    The dictionary is empty if whole trajectories are stored. A name is a key of `REDUCTIONS` or `module:function`.

    >>> as_reductions("final_risk"), as_reductions({"exit_time": {"threshold": 0.3}})
    ({'final_risk': {}}, {'exit_time': {'threshold': 0.3}})
    """
    if keep is None:
        return {}
    several = isinstance(keep, Iterable) and not isinstance(keep, str) and not callable(keep)
    given = keep if isinstance(keep, Mapping) else dict.fromkeys(keep if several else [keep])
    return {_check_reduction_name(name): dict(mapping(f"keep[{name!r}]", options or {})) for name, options in given.items()}


def _check_reduction_name(name: Any) -> str:
    """Return the name of a reduction, given as a name or a function; raise `BadInput` for an unknown one."""
    if callable(name):
        return function_name(name)
    if isinstance(name, str) and (name in REDUCTIONS or ":" in name):
        return name
    raise BadInput(f"keep must name values to store; got {shorten(name)}. Give some of {', '.join(REDUCTIONS)}, or a function.")


def stop_condition_of(keep: Mapping[str, dict[str, Any]]) -> Condition | None:
    """Return the condition at which runs may stop early: the exit, if a sweep stores only exit times; else None."""
    return exits(keep["exit_time"].get("threshold", 0.5)) if list(keep) == ["exit_time"] else None


def reduce_dataset(dataset: xr.Dataset, keep: Mapping[str, dict[str, Any]]) -> xr.Dataset:
    """Apply reductions, given by name with their options, to a dataset of `simulate`.

    The result has the run coordinates and attributes of the dataset.
    """
    if not keep:
        return dataset
    # How runs ended stays beside every reduction, so that diverged ones can be told apart.
    coords = {name: dataset[name] for name in ("run", "status", "t_end")}
    reduced = xr.Dataset(coords=coords, attrs=dataset.attrs)
    for name, options in keep.items():
        fn = REDUCTIONS[name] if name in REDUCTIONS else import_function(name)
        for each, values in _as_variables(name.rpartition(":")[2], fn(dataset, **options), dataset).items():
            reduced[each] = values
    return reduced


def _as_variables(name: str, result: Any, dataset: xr.Dataset) -> dict[str, xr.Variable]:
    """Return the result of a reduction as xarray variables by name; a result per run has the axis `run` first."""
    if isinstance(result, xr.Dataset):
        return {str(each): result[each].variable for each in result.data_vars}
    if isinstance(result, Mapping):
        return {key: variable for each in result for key, variable in _as_variables(str(each), result[each], dataset).items()}
    if isinstance(result, xr.DataArray):
        return {name: result.variable}
    array = np.asarray(result)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{name} must return numbers; got {shorten(result)}. Return an array over runs, or a dataset.")
    # A plain array has no names of axes: a first axis of the right length is that of the runs.
    by_run = array.ndim > 0 and len(array) == dataset.sizes["run"]
    return {name: xr.Variable([("run" if by_run and i == 0 else f"{name}_{i}") for i in range(array.ndim)], array)}
