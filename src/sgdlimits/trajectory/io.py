"""Datasets on disk: netCDF files that hold all that is needed to make them again."""

from __future__ import annotations

import json
import os
import re
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.trajectory.record import find, from_json
from sgdlimits.trajectory.schema import check
from sgdlimits.trajectory.simulate import simulate

STATE = {"state": ("run", "number"), "state_t": ("run",)}
"""Attributes that files hold as variables: what runs need to go on, and from when."""


def save(dataset: xr.Dataset, path: str | os.PathLike) -> Path:
    """Write a dataset of `simulate` to a netCDF file, whole or not at all, and return the path."""
    check(dataset)
    kept = {name: (dims, dataset.attrs[name]) for name, dims in STATE.items() if name in dataset.attrs}
    dataset = dataset.assign(kept)
    dataset.attrs = {name: value for name, value in dataset.attrs.items() if name not in STATE}
    return write_whole(dataset, path)


def write_whole(dataset: xr.Dataset, path: str | os.PathLike) -> Path:
    """Write a netCDF file, which appears under its name only once it is complete: a crash leaves the old file or none."""
    path = Path(path)
    if not path.parent.is_dir():
        raise BadInput(f"the folder {path.parent} does not exist. Make it, or give another path.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        dataset.to_netcdf(partial, engine="h5netcdf")
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load(path: str | os.PathLike) -> xr.Dataset:
    """The dataset in a file that `save` wrote, in memory and checked; with a warning where a newer version wrote it."""
    if not Path(path).is_file():
        raise BadInput(f"there is no file {path}. Give the path of a dataset that was saved.")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as file:
            dataset = file.load()
    except OSError as reason:
        raise BadInput(f"{path} is not a netCDF file: {reason}. Give the path of a dataset that was saved.") from reason
    if "status" in dataset.variables:
        dataset["status"] = dataset.status.astype(str)
        dataset = dataset.set_coords("status")
    kept = {name: dataset[name].values for name in STATE if name in dataset.variables}
    dataset = dataset.drop_vars(kept).assign_attrs(kept)
    check(dataset)
    if _newer(dataset):
        warnings.warn(f"{path}: {_newer(dataset)}", VersionWarning, stacklevel=2)
    return dataset


class VersionWarning(UserWarning):
    """A file was written by a newer version of the package."""


def _newer(dataset: xr.Dataset) -> str:
    """One sentence where a newer version than this one made a dataset; nothing otherwise."""
    theirs, ours = str(dataset.attrs["version"]), version("sgdlimits")
    numbers = lambda text: [int(part) for part in re.findall(r"\d+", text)[:3]]
    if numbers(theirs) <= numbers(ours):
        return ""
    return f"it was made by sgdlimits {theirs}, which is newer than this one, {ours}. Update the package to be sure of it."


def rerun(dataset: xr.Dataset, **changes: Any) -> xr.Dataset:
    """Simulate again what a dataset came from. `changes` are arguments of `simulate` to replace, such as `seed=1`.

    >>> import numpy as np, sgdlimits as sl
    >>> first = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(d=50), sl.RandomInit(d=50), t_max=1, runs=2, save=3)
    >>> bool(np.array_equal(sl.rerun(first).M, first.M))
    True
    """
    attributes = check(dataset).attrs
    if _newer(dataset) and not changes.keys() >= {"problem", "level", "start"}:
        raise BadInput(f"the dataset cannot be made again: {_newer(dataset)}")
    until = attributes["until"]
    if until and not until.startswith("{") and "until" not in changes:
        raise BadInput(f"the runs stopped at {until}, which files do not hold. Pass until= to rerun.")
    times = json.loads(attributes["save"])
    arguments = {
        "t_max": float(attributes["t_max"]),
        "runs": dataset.sizes["run"],
        "seed": int(attributes["seed"]),
        "save": np.asarray(times) if isinstance(times, list) else times,
    }
    recorded = {"problem": "problem", "level": "level_parameters", "start": "start", **({"until": "until"} if until else {})}
    if "observe" not in changes:
        functions = json.loads(attributes.get("observe", "{}"))
        arguments["observe"] = {name: find(address) for name, address in functions.items()}
    for name, attribute in recorded.items():
        arguments[name] = changes.pop(name) if name in changes else from_json(attributes[attribute])
    return simulate(**{**arguments, **changes})
