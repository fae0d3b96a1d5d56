"""Datasets on disk: netCDF files that hold all that is needed to make them again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.trajectory.record import from_json
from sgdlimits.trajectory.schema import check
from sgdlimits.trajectory.simulate import simulate


def save(dataset: xr.Dataset, path: str | os.PathLike) -> Path:
    """Write a dataset of `simulate` to a netCDF file, whole or not at all, and return the path.

    The file appears under its name only once it is complete, so that a crash leaves the old file or none.
    """
    check(dataset)
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
    """The dataset in a file that `save` wrote, in memory and checked."""
    if not Path(path).is_file():
        raise BadInput(f"there is no file {path}. Give the path of a dataset that was saved.")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as file:
            dataset = file.load()
    except OSError as reason:
        raise BadInput(f"{path} is not a netCDF file: {reason}. Give the path of a dataset that was saved.") from reason
    dataset["status"] = dataset.status.astype(str)
    return check(dataset.set_coords("status"))


def rerun(dataset: xr.Dataset, **changes: Any) -> xr.Dataset:
    """Simulate again what a dataset came from. `changes` are arguments of `simulate` to replace, such as `seed=1`.

    >>> import numpy as np, sgdlimits as sl
    >>> first = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(d=50), sl.RandomInit(d=50), t_max=1, runs=2, save=3)
    >>> bool(np.array_equal(sl.rerun(first).M, first.M))
    True
    """
    attributes = check(dataset).attrs
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
    for name, attribute in recorded.items():
        arguments[name] = changes.pop(name) if name in changes else from_json(attributes[attribute])
    return simulate(**{**arguments, **changes})
