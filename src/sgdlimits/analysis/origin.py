"""What a dataset says about where it comes from."""

from __future__ import annotations

from typing import Any

import xarray as xr

from sgdlimits.run.record import find

KEPT = ("level", "d", "rate", "seed", "problem", "problem_name", "t_max")


def origin(dataset: xr.Dataset) -> dict[str, Any]:
    """The attributes that what is made from a dataset of `simulate` keeps."""
    return {name: dataset.attrs[name] for name in KEPT}


def over_times(dataset: xr.Dataset, variables: dict[str, Any], **attrs: Any) -> xr.Dataset:
    """Variables over the runs and the times of a dataset of `simulate`."""
    return xr.Dataset(variables, {"run": dataset.run.values, "t": dataset.t.values}, attrs | origin_attributes(dataset))


def overlap_name(dataset: xr.Dataset) -> str | None:
    """The variable with the overlaps with fixed directions, which the class of its statistics names, or None."""
    return getattr(find(dataset.attrs["statistics"]), "overlap", None)
