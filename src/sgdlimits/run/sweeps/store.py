"""Folder of a sweep: a netCDF file for each work unit (some runs at one point), and a note for each that failed.

Files are never modified: any number of processes, on any number of machines, may write to one folder, and it may be read at any
time. A file is accepted only if its name has the hash of the parameters in it, and its values have the digest that was written
with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.files import remove_partial_files, write
from sgdlimits.run.contained import check_contained
from sgdlimits.run.io import write_netcdf
from sgdlimits.run.schema import COORDINATES
from sgdlimits.run.sweeps.unit import FILE_NAME, Unit, hash_json
from sgdlimits.text import escape_controls

FAILURE_SUFFIX = ".failed.json"
"""Suffix of the files that hold notes on failed work units."""


class SweepWarning(UserWarning):
    """Warning that a file in a sweep's folder is left out, because it is damaged or not a result of a sweep."""


class UnitFile(NamedTuple):
    """Result file of a work unit: its path, the key of its point, and its runs `first` to `last` (exclusive)."""

    path: Path
    key: str
    first: int
    last: int


class Folder:
    """Folder of a sweep's results: reads and writes the result files of work units and the notes on failures.

    `make` creates the folder.
    """

    def __init__(self, path: str | os.PathLike, make: bool = False) -> None:
        self.path = Path(path)
        if make:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as reason:
                raise BadInput(f"the folder {path} cannot be created: {reason.strerror}. Give another one.") from reason
        if not self.path.is_dir():
            raise BadInput(f"there is no folder {path}. Give the folder of a sweep.")
        if make:
            remove_partial_files(self.path)

    def list_files(self) -> list[UnitFile]:
        """List the result files in the folder, sorted by point and then by run; unknown files are left out with a warning."""
        found = []
        for item in sorted(os.scandir(self.path), key=lambda item: item.name):
            if match := FILE_NAME.fullmatch(item.name):
                found.append(UnitFile(Path(item.path), match[1], int(match[2]), int(match[3])))
            # Partial files begin with a dot; a sweep's TOML file and damaged files, renamed to .bad, may be here as well.
            elif not item.name.startswith(".") and not item.name.endswith((FAILURE_SUFFIX, ".toml", ".bad")):
                warn_left_out(item.path, "the file is not a result of a sweep")
        return sorted(found, key=lambda entry: entry[1:])

    def store(self, unit: Unit, dataset: xr.Dataset) -> None:
        """Write the result file of a work unit, unless another process has done so, and remove the note on its failure."""
        path = self.path / unit.name
        if not path.exists():
            write_netcdf(add_digest(dataset), path)
        with suppress(FileNotFoundError):
            self._failure_path(unit).unlink()

    def record_failure(self, unit: Unit, error: str) -> None:
        """Write a note on a failed work unit, with the error and the unit's parameters."""
        note = {"error": error, "point": json.loads(unit.to_json())[3], "unit": unit.whole}
        write(self._failure_path(unit), json.dumps(note, indent=1).encode())

    def read_failure(self, unit: Unit) -> str | None:
        """Return the error in the note on a failed work unit; None if there is no readable note."""
        path = self._failure_path(unit)
        try:
            return str(json.loads(path.read_bytes())["error"]) if path.is_file() else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _failure_path(self, unit: Unit) -> Path:
        """Return the path of the note on a failed work unit."""
        return self.path / f"{unit.name.removesuffix('.nc')}{FAILURE_SUFFIX}"


def missing_units(folder: Folder, units: Iterable[Unit]) -> Iterator[Unit]:
    """Yield work units for the runs that have no valid result file; damaged files are renamed to end in .bad."""
    existing: dict[str, list[UnitFile]] = {}
    for entry in folder.list_files():
        existing.setdefault(entry.key, []).append(entry)
    for unit in units:
        gap = unit.first  # the first run that no file has so far
        for entry in existing.get(unit.key, ()):
            if entry.last <= gap or entry.first >= unit.last:
                continue
            try:
                read_result(entry.path)
            except DamagedFile as reason:
                warn_left_out(entry.path, f"{reason}; its runs are computed again")
                with suppress(FileNotFoundError):
                    entry.path.rename(entry.path.with_suffix(".bad"))
                continue
            if entry.first > gap:
                yield unit._replace(first=gap, last=entry.first)
            gap = max(gap, entry.last)
        if gap < unit.last:
            yield unit._replace(first=gap)


class DamagedFile(Exception):
    """Error for a damaged result file; its message is a clause such as "the file is gone"."""


def read_result(path: Path) -> xr.Dataset:
    """Read the dataset in a result file; raise `DamagedFile` unless values, runs and parameters are as they were written."""
    match = FILE_NAME.fullmatch(path.name)
    try:
        if not os.path.isfile(path):  # opening a pipe would wait for ever
            raise DamagedFile("the file is gone, or not a regular file")
        with h5py.File(path, "r") as file:
            check_contained(file)
            attributes = {name: _unwrap_attribute(value) for name, value in file.attrs.items() if not name.startswith("_")}
            layout = json.loads(attributes["variables"])
            arrays = {name: file[name][()] for name in layout}
        if match is None or hash_json(json.loads(attributes["unit"])) != match[1]:
            raise DamagedFile("the file does not have the parameters that its name says")
        if compute_digest(arrays, attributes) != attributes["digest"]:
            raise DamagedFile("the file has values other than those written to it")
        if not np.array_equal(arrays["run"], np.arange(int(match[2]), int(match[3]))):
            raise DamagedFile("the file does not have the runs that its name says")
        variables = {name: (dims, _restore_dtype(arrays[name], kind), notes) for name, (dims, kind, notes) in layout.items()}
    except DamagedFile:
        raise
    except Exception as reason:  # the HDF5 library raises any type of exception for a damaged file
        raise DamagedFile(f"the file cannot be read ({escape_controls(str(reason))[:80] or type(reason).__name__})") from reason
    kept = {name: value for name, value in attributes.items() if name not in ("digest", "variables")}
    return xr.Dataset(variables, attrs=kept).set_coords([name for name in COORDINATES if name in variables])


def _unwrap_attribute(value: Any) -> Any:
    """Return the number in an attribute that netCDF stored as an array of one element; any other attribute is unchanged."""
    return value[0] if isinstance(value, np.ndarray) and value.shape == (1,) else value


def add_digest(dataset: xr.Dataset) -> xr.Dataset:
    """Add attributes by which `read_result` recognises damage: dimensions and types of variables, digest of all values."""
    layout = {str(name): [each.dims, each.dtype.kind, each.attrs] for name, each in dataset.variables.items()}
    known = dataset.assign_attrs(variables=json.dumps(layout))
    arrays = {str(name): variable.values for name, variable in dataset.variables.items()}
    return known.assign_attrs(digest=compute_digest(arrays, known.attrs))


def compute_digest(arrays: dict[str, Any], attributes: dict[Any, Any]) -> str:
    """Return the SHA-256 digest of all arrays, with their names and shapes, and of all string attributes of a dataset."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.kind in "OSU":  # files return text as objects or bytes, whose memory is not what was written
            content = "\0".join(_restore_dtype(array, "U").ravel().tolist()).encode()
        else:
            content = np.ascontiguousarray(array).tobytes()
        digest.update(f"{name}{array.shape}".encode())
        digest.update(content)
    for name in sorted(attributes):
        if isinstance(attributes[name], str) and name != "digest":
            digest.update(f"{name}={attributes[name]}".encode())
    return digest.hexdigest()


def _restore_dtype(array: Any, kind: str) -> np.ndarray:
    """Convert an array read from a file to the type it was written with: `kind` is "U" for strings, "b" for bools."""
    if kind == "U" and array.dtype.kind == "O":
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in array.ravel()]
        array = np.array(texts).reshape(array.shape)
    return np.asarray(array).astype(bool) if kind == "b" else np.asarray(array)


def warn_left_out(path: Any, reason: str) -> None:
    """Warn that a file is left out; the reason is a clause such as "the file cannot be read"."""
    warnings.warn(f"{path}: {reason}.", SweepWarning, stacklevel=3)
