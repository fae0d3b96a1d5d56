"""Datasets on disk: netCDF files that record the problem, level and start, so that the simulation can be repeated."""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.files import atomic_replacement
from sgdlimits.problem.base import Problem
from sgdlimits.run.contained import check_contained
from sgdlimits.run.record import explain_decoding_errors, find_named_object, from_json
from sgdlimits.run.schema import ResumeState, check, check_form, plain_variable, resume_state_of
from sgdlimits.run.simulate import simulate
from sgdlimits.text import escape_controls, format_bytes

STATE_VARIABLES = {"state": ("run", "number"), "state_t": ("run",)}
"""Names and dimensions of the variables of a file that hold the state from which runs resume, and its time."""
MAX_BUFFERED_BYTES = 2**28
"""Size up to which a file is built in memory and written at once; HDF5 writes larger files piece by piece."""
OVERHEAD_BYTES = 2**16
"""Bytes that a file takes for names, attributes and tables beside its values, for the check of free disk space."""


@checked
def save(dataset: xr.Dataset, path: str | os.PathLike) -> Path:
    """Write a dataset of `simulate` to a netCDF file atomically (complete or not at all), and return the path."""
    state = resume_state_of(check_form(dataset))
    if state is not None and len(state.t) == dataset.sizes["run"]:
        dataset = dataset.assign(
            {name: plain_variable(dims, part) for (name, dims), part in zip(STATE_VARIABLES.items(), state, strict=True)}
        )
    return write_netcdf(dataset, path)


def write_netcdf(dataset: xr.Dataset, path: str | os.PathLike) -> Path:
    """Write any dataset to a netCDF file atomically (complete or not at all), and return the path.

    Raise `BadInput` if an attribute has a type that files cannot store, or if the disk is full.
    """
    from sgdlimits.run import netcdf

    with atomic_replacement(path) as partial:
        free = shutil.disk_usage(partial.parent).free
        if free < dataset.nbytes + OVERHEAD_BYTES:  # the HDF5 library crashes on a full disk
            raise OSError(errno.ENOSPC, f"it needs {format_bytes(dataset.nbytes)} and the disk has {format_bytes(free)} left")
        for of, attributes in {"the dataset": dataset.attrs, **{str(name): dataset[name].attrs for name in dataset}}.items():
            for name, value in attributes.items():
                if np.asarray(value).dtype.kind not in "fiubU":
                    raise BadInput(
                        f"the attribute {name!r} of {of} is {shorten(value)}, which files cannot store. Convert it to a string."
                    )
        if dataset.nbytes < MAX_BUFFERED_BYTES:
            buffer = io.BytesIO()
            netcdf.write_netcdf4(dataset, buffer)
            partial.write_bytes(buffer.getbuffer())
        else:
            netcdf.write_netcdf4(dataset, partial)
    return Path(path)


@checked
def load(path: str | os.PathLike) -> xr.Dataset:
    """Read a dataset from a file that `save` wrote, and check it; warn if the file is of a newer version of the package."""
    if not os.path.isfile(path):
        if os.path.exists(path):
            raise BadInput(escape_controls(f"{path} is not a regular file. Give the path of a file that sgdlimits.save wrote."))
        raise BadInput(escape_controls(f"there is no file {path}. Give the path of a file that sgdlimits.save wrote."))
    with explain_read_errors(path):
        dataset = _read_checked(path)
    if _newer_version_note(dataset):
        warnings.warn(f"{path}: {_newer_version_note(dataset)}", VersionWarning, stacklevel=2)
    return dataset


@contextmanager
def explain_read_errors(path: str | os.PathLike) -> Iterator[None]:
    """Turn any exception raised in the block into a `BadInput` that names the file being read.

    For damaged files the HDF5 library raises exceptions of any type.
    """
    try:
        yield
    except BadInput as reason:
        raise BadInput(escape_controls(f"{path}: {reason}")) from reason
    except Exception as reason:
        words = " ".join(str(reason).split())[:200] or type(reason).__name__
        raise BadInput(
            escape_controls(
                f"{path} is not a netCDF file that can be read: {words}. Give the path of a file that sgdlimits.save wrote."
            )
        ) from reason


def _read_checked(path: str | os.PathLike) -> xr.Dataset:
    """Read a dataset file and check it; the state from which its runs resume is put into the dataset's encoding."""
    import h5py  # not before a file is read: a simulation has no use for it

    # Before xarray opens it: that would follow links and allocate arrays of any size.
    with h5py.File(path, "r") as whole_file:
        check_contained(whole_file)
    with xr.open_dataset(path, engine="h5netcdf") as file:
        dataset = file.load()
    if "status" in dataset.variables:  # text comes back as objects, and as a variable
        dataset["status"] = dataset.status.astype(str)
        dataset = dataset.set_coords("status")
    if set(STATE_VARIABLES) <= set(dataset.variables):
        state = ResumeState(*(dataset[name].values for name in STATE_VARIABLES))
        dataset = dataset.drop_vars(list(STATE_VARIABLES))
        dataset.encoding = {"state": state}
    return check(dataset)


class VersionWarning(UserWarning):
    """Warning that a dataset file was written by a newer version of the package."""


def _newer_version_note(dataset: xr.Dataset) -> str:
    """Return a sentence if a newer version of the package made a dataset, else an empty string."""
    theirs, ours = str(dataset.attrs["version"]), version("sgdlimits")
    # Only the three numbers of a release count, not suffixes of development versions.
    numbers = lambda text: [int(part) for part in re.findall(r"\d+", text)[:3]]
    if numbers(theirs) <= numbers(ours):
        return ""
    return f"it was made by sgdlimits {theirs}, newer than the installed version, {ours}. Update sgdlimits to be sure of it."


@checked
def problem_of(dataset: xr.Dataset) -> Problem:
    """Return the problem that was simulated for a dataset, rebuilt from the dataset's attributes.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.1)
    >>> sl.problem_of(sl.simulate(problem, sl.ODE(), sl.FixedInit(0.1), t_max=1, save=2)) == problem
    True
    """
    text = dataset.attrs.get("problem")
    if not isinstance(text, str):
        raise BadInput("the dataset does not record how it was made. Give a dataset that simulate or load returned.")
    found = from_json(text)
    if not isinstance(found, Problem):
        raise BadInput(f"the dataset records {shorten(found)} as its problem. Give a dataset that simulate or load returned.")
    return found


@checked
def rerun(dataset: xr.Dataset, **changes: Any) -> xr.Dataset:
    """Repeat the simulation that made a dataset; `changes` replaces arguments of `simulate`, such as `seed=1`.

    >>> import numpy as np, sgdlimits as sl
    >>> first = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(d=50), sl.RandomInit(d=50), t_max=1, runs=2, save=3)
    >>> bool(np.array_equal(sl.rerun(first).M, first.M))
    True
    """
    known = inspect.signature(simulate).parameters
    if unknown := [name for name in changes if name not in known]:
        raise BadInput(
            f"{unknown[0]} is not an argument of simulate. The arguments are {', '.join(known)}; use "
            f"problem.replace to change the problem."
        )
    attributes = check_form(dataset).attrs
    if _newer_version_note(dataset) and not changes.keys() >= {"problem", "level", "start"}:
        raise BadInput(f"the dataset cannot be simulated again: {_newer_version_note(dataset)}")
    until = attributes["until"]
    if until and not until.startswith("{") and "until" not in changes:
        raise BadInput(f"the runs stopped at {until}, a condition that files cannot store. Pass until= to rerun.")
    with explain_decoding_errors():
        times = json.loads(attributes["save"])
        arguments = {
            "t_max": float(attributes["t_max"]),
            "runs": dataset.sizes["run"],
            "seed": int(attributes["seed"]),
            "save": np.asarray(times, float) if isinstance(times, list) else times,
        }
        functions = json.loads(attributes.get("observe", "{}"))
        if "observe" not in changes:
            arguments["observe"] = {name: find_named_object(address) for name, address in functions.items()}
    # Arguments that are replaced are not decoded, so that they may be such as files cannot name.
    recorded = {"problem": "problem", "level": "level_parameters", "start": "start", **({"until": "until"} if until else {})}
    for name, attribute in recorded.items():
        arguments[name] = changes.pop(name) if name in changes else from_json(attributes[attribute])
    return simulate(**{**arguments, **changes})
