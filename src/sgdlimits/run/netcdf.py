"""Datasets as netCDF-4 files, which are HDF5 files with a little order: a scale for each dimension, attached to what has it.

The general writers take some 40 milliseconds for a small file, longer than the simulation of many a point of a sweep, and five
times as long as this one (`benchmarks/sweeps.py`).
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.conventions import encode_cf_variable, encode_dataset_coordinates

BARE = "This is a netCDF dimension but not a netCDF variable."


def write(dataset: xr.Dataset, target: Any) -> None:
    """Write a dataset to a path, or to something like a file, with the numbers, texts and attributes as xarray encodes them."""
    variables, attributes = encode_dataset_coordinates(dataset)
    with h5py.File(target, "w", track_order=True) as file:
        file.attrs.update(attributes)
        for name, variable in variables.items():
            _put(file, str(name), encode_cf_variable(variable, name=name))
        for number, (dim, size) in enumerate(dataset.sizes.items()):
            name = str(dim)
            scale = file[name] if name in file else file.create_dataset(name, (size,), ">f4")
            scale.make_scale(name if dim in variables else f"{BARE}{size:10d}")
            scale.attrs["_Netcdf4Dimid"] = np.int32(number)
        for name, variable in variables.items():
            for axis, dim in enumerate(variable.dims):
                if dim != name:
                    file[str(name)].dims[axis].attach_scale(file[str(dim)])


def _put(file: h5py.File, name: str, variable: xr.Variable) -> None:
    values, attributes = variable.values, dict(variable.attrs)
    fill = attributes.pop("_FillValue", None)
    text = values.dtype.kind in "OU"
    kind = h5py.string_dtype() if text else values.dtype
    made = file.create_dataset(name, data=values.astype(object) if text else values, dtype=kind, fillvalue=fill)
    made.attrs.update(attributes)
    if fill is not None:
        made.attrs["_FillValue"] = np.array([fill], values.dtype)
