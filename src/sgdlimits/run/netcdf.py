"""Fast writer of netCDF-4 files: HDF5 files with a dimension scale for each dimension, attached to the variables that have it.

The general writers of xarray take some 40 milliseconds for a small file, longer than the simulation of many points of a sweep,
and five times as long as this one (`benchmarks/sweeps.py`).
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.conventions import encode_cf_variable, encode_dataset_coordinates

NO_VARIABLE_NAME = "This is a netCDF dimension but not a netCDF variable."
"""Name that the netCDF-4 format prescribes for the scale of a dimension that has no coordinate variable."""


def write_netcdf4(dataset: xr.Dataset, target: Any) -> None:
    """Write a dataset to a path or a binary file object as netCDF-4, with values and attributes encoded as xarray does."""
    variables, attributes = encode_dataset_coordinates(dataset)
    # netCDF-4 readers take the order of variables and dimensions from the order of creation in the file.
    with h5py.File(target, "w", track_order=True) as file:
        file.attrs.update(attributes)
        for name, variable in variables.items():
            _write_variable(file, str(name), encode_cf_variable(variable, name=name))
        for number, (dim, size) in enumerate(dataset.sizes.items()):
            name = str(dim)
            # A dimension without coordinates still needs a scale: the format asks for an empty big-endian float32 array.
            scale = file[name] if name in file else file.create_dataset(name, (size,), ">f4")
            scale.make_scale(name if dim in variables else f"{NO_VARIABLE_NAME}{size:10d}")
            scale.attrs["_Netcdf4Dimid"] = np.int32(number)
        for name, variable in variables.items():
            for axis, dim in enumerate(variable.dims):
                if dim != name:
                    file[str(name)].dims[axis].attach_scale(file[str(dim)])


def _write_variable(file: h5py.File, name: str, variable: xr.Variable) -> None:
    """Write an encoded variable with its attributes as one HDF5 dataset."""
    values = variable.values
    attributes = dict(variable.attrs)
    fill = attributes.pop("_FillValue", None)
    is_text = values.dtype.kind in "OU"
    kind = h5py.string_dtype() if is_text else values.dtype
    written = file.create_dataset(name, data=values.astype(object) if is_text else values, dtype=kind, fillvalue=fill)
    written.attrs.update(attributes)
    if fill is not None:
        # netCDF wants the fill value as an array of one element of the variable's own type, which `update` would not keep.
        written.attrs["_FillValue"] = np.array([fill], values.dtype)
