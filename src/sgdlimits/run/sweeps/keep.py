"""What a sweep keeps of each simulation: the whole trajectory, or numbers read off it, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.origin import overlap_name
from sgdlimits.checks import mapping
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level.condition import Condition, exits
from sgdlimits.run.record import from_json
from sgdlimits.run.sweeps.names import called, named


def _at(values: xr.DataArray, index: int) -> xr.DataArray:
    """The values at one of the times, without the time: xarray would import all of dask to see if that is dask's."""
    return values.drop_vars("t").isel(t=index)


def final_risk(dataset: xr.Dataset) -> xr.DataArray:
    """The population risk of each run at its end."""
    return _at(dataset.risk, -1)


def excess_risk(dataset: xr.Dataset) -> xr.DataArray:
    """The population risk of each run at its end, above the floor."""
    return final_risk(dataset) - dataset.attrs["floor"]


def relative_risk(dataset: xr.Dataset) -> xr.DataArray:
    """The excess risk of each run at its end, in units of that at its start: 0 where all is learnt, 1 where nothing is."""
    floor = dataset.attrs["floor"]
    return (final_risk(dataset) - floor) / (_at(dataset.risk, 0) - floor)


def learnt(dataset: xr.Dataset, threshold: float = 0.5) -> xr.DataArray:
    """Whether each run has lost the fraction `threshold` of its excess risk at its end, 1 or 0; 0 where it diverged."""
    return ((relative_risk(dataset) <= 1 - threshold) & (dataset.status != "diverged")).astype(float)


def overlap(dataset: xr.Dataset) -> xr.DataArray:
    """The mean absolute overlap with the fixed directions of each run at its end."""
    values = abs(_at(dataset[str(overlap_name(dataset))], -1))
    return values.mean([dim for dim in values.dims if dim != "run"])


def accuracy(dataset: xr.Dataset) -> xr.DataArray:
    """The probability of predicting the right class of each run at its end."""
    if "accuracy" not in dataset:
        raise BadInput(f"{dataset.attrs['problem_name']} predicts no classes and has no accuracy. Keep final_risk.")
    return _at(dataset.accuracy, -1)


def exit_time(dataset: xr.Dataset, threshold: float = 0.5) -> xr.Dataset:
    """The exit time of each run, and whether it is censored: `exit_times`."""
    return exit_times(dataset, threshold)[["t", "censored"]].rename(t="exit_time").drop_vars("status")


def fixed_point_count(dataset: xr.Dataset) -> int:
    """How many components of fixed points the ODE has, images under symmetries included."""
    from sgdlimits.analysis.fixed_points import fixed_points

    return sum(point.copies for point in fixed_points(from_json(dataset.attrs["problem"])))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn for fn in (final_risk, excess_risk, relative_risk, learnt, overlap, accuracy, exit_time, fixed_point_count)
}
"""What can be kept, by name. Each takes the dataset of one simulation."""


def as_keep(keep: Any) -> dict[str, dict[str, Any]]:
    """What to keep as names with options: of a reduction or, with a colon, of a function in a module. Empty: everything.

    >>> as_keep("final_risk"), as_keep({"exit_time": {"threshold": 0.3}})
    ({'final_risk': {}}, {'exit_time': {'threshold': 0.3}})
    """
    if keep is None:
        return {}
    several = isinstance(keep, Iterable) and not isinstance(keep, str) and not callable(keep)
    given = keep if isinstance(keep, Mapping) else dict.fromkeys(keep if several else [keep])
    return {_known(name): dict(mapping(f"keep[{name!r}]", options or {})) for name, options in given.items()}


def _known(name: Any) -> str:
    if callable(name):
        return named(name)
    if isinstance(name, str) and (name in REDUCTIONS or ":" in name):
        return name
    raise BadInput(f"keep must name what to keep; got {shorten(name)}. Give some of {', '.join(REDUCTIONS)}, or a function.")


def stops(keep: Mapping[str, dict[str, Any]]) -> Condition | None:
    """When runs can stop: at the exit, where that is all that is kept."""
    return exits(keep["exit_time"].get("threshold", 0.5)) if list(keep) == ["exit_time"] else None


def reduced(dataset: xr.Dataset, keep: Mapping[str, dict[str, Any]]) -> xr.Dataset:
    """What is kept of a dataset of `simulate`, with how its runs ended and where it comes from."""
    if not keep:
        return dataset
    coords = {name: dataset[name] for name in ("run", "status", "t_end")}
    found = xr.Dataset(coords=coords, attrs=dataset.attrs)
    for name, options in keep.items():
        fn = REDUCTIONS[name] if name in REDUCTIONS else called(name)
        for each, values in _variables(name.rpartition(":")[2], fn(dataset, **options), dataset).items():
            found[each] = values
    return found


def _variables(name: str, result: Any, dataset: xr.Dataset) -> dict[str, xr.Variable]:
    """What a reduction returned, as variables: over runs where it has one number for each."""
    if isinstance(result, xr.Dataset):
        return {str(each): result[each].variable for each in result.data_vars}
    if isinstance(result, Mapping):
        return {key: variable for each in result for key, variable in _variables(str(each), result[each], dataset).items()}
    if isinstance(result, xr.DataArray):
        return {name: result.variable}
    array = np.asarray(result)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{name} must return numbers; got {shorten(result)}. Return an array over runs, or a dataset.")
    by_run = array.ndim > 0 and len(array) == dataset.sizes["run"]
    return {name: xr.Variable([("run" if by_run and i == 0 else f"{name}_{i}") for i in range(array.ndim)], array)}
