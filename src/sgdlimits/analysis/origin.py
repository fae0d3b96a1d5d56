"""Attributes that describe the simulation behind a dataset, and datasets derived from one."""

from __future__ import annotations

from typing import Any

import xarray as xr

from sgdlimits.run.record import find_named_object

# enough to make the runs again, and to convert times
COPIED_ATTRIBUTES = ("level", "d", "rate", "seed", "problem", "problem_name", "t_max")
"""Attributes of a dataset of `simulate` that are copied to datasets computed from it."""


def origin_attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """Return those attributes of a dataset of `simulate` that are copied to datasets computed from the dataset."""
    # other attributes describe how the runs were saved, not what they are
    return {name: dataset.attrs[name] for name in COPIED_ATTRIBUTES}


def build_dataset_over_times(dataset: xr.Dataset, variables: dict[str, Any], **attrs: Any) -> xr.Dataset:
    """Build a dataset of variables with the runs and times of a dataset of `simulate`."""
    return xr.Dataset(variables, {"run": dataset.run.values, "t": dataset.t.values}, attrs | origin_attributes(dataset))


def name_of_overlap(dataset: xr.Dataset) -> str | None:
    """Return the name of the dataset's variable with the overlaps with fixed directions; None if it has no such variable."""
    return getattr(find_named_object(dataset.attrs["statistics"]), "overlap", None)
