"""The origin of a dataset: attributes that derived datasets keep, and the name of its overlaps."""

from __future__ import annotations

from typing import Any

import xarray as xr

from sgdlimits.run.record import find

# enough to make the runs again, and to convert times
KEPT_ATTRIBUTES = ("level", "d", "rate", "seed", "problem", "problem_name", "t_max")


def origin_attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the attributes that a dataset derived from one of `simulate` keeps."""
    # other attributes describe how the runs were saved, not what they are
    return {name: dataset.attrs[name] for name in KEPT_ATTRIBUTES}


def over_times(dataset: xr.Dataset, variables: dict[str, Any], **attrs: Any) -> xr.Dataset:
    """Build a dataset of variables over the runs and times of a dataset of `simulate`."""
    return xr.Dataset(variables, {"run": dataset.run.values, "t": dataset.t.values}, attrs | origin_attributes(dataset))


def overlap_name(dataset: xr.Dataset) -> str | None:
    """Return the name of the variable with the overlaps with fixed directions, or None if the statistics have none."""
    return getattr(find(dataset.attrs["statistics"]), "overlap", None)
