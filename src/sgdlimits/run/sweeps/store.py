"""The folder of a sweep: a netCDF file for each unit, whole or not there, and a note for each unit that failed.

Nothing is ever appended to or changed: any number of processes, on any number of machines, may write to one folder, and it may
be read at any time. A file is believed only where its name is the hash of what it says it is and its numbers have the digest
that was written with them.
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
from sgdlimits.files import clear, write
from sgdlimits.run.contained import check_contained
from sgdlimits.run.io import write_netcdf
from sgdlimits.run.schema import COORDINATES
from sgdlimits.run.sweeps.unit import NAME, Unit, hashed
from sgdlimits.text import printable

FAILED = ".failed.json"


class SweepWarning(UserWarning):
    """A file in the folder of a sweep that is not one of its own, or was damaged; it is left out."""


class Entry(NamedTuple):
    """A file of the folder by its name: whose point it is, and which runs it has."""

    path: Path
    key: str
    first: int
    last: int


class Folder:
    """The files of a sweep."""

    def __init__(self, path: str | os.PathLike, make: bool = False) -> None:
        self.path = Path(path)
        if make:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as reason:
                raise BadInput(f"the folder {path} cannot be made: {reason.strerror}. Give another one.") from reason
        if not self.path.is_dir():
            raise BadInput(f"there is no folder {path}. Give the folder of a sweep.")
        if make:
            clear(self.path)

    def entries(self) -> list[Entry]:
        """The files of units, those of one point together, the first runs first. Others are told of and left out."""
        found = []
        for item in sorted(os.scandir(self.path), key=lambda item: item.name):
            if match := NAME.fullmatch(item.name):
                found.append(Entry(Path(item.path), match[1], int(match[2]), int(match[3])))
            elif not item.name.startswith(".") and not item.name.endswith((FAILED, ".toml", ".bad")):
                warn_of(item.path, "is not a file of a sweep")
        return sorted(found, key=lambda entry: entry[1:])

    def put(self, unit: Unit, dataset: xr.Dataset) -> None:
        """Write the file of a unit, unless another process has been quicker, and forget that it had failed."""
        path = self.path / unit.name
        if not path.exists():
            write_netcdf(stamped(dataset), path)
        with suppress(FileNotFoundError):
            self._failure(unit).unlink()

    def fail(self, unit: Unit, error: str) -> None:
        """Take note of a unit that cannot be computed."""
        note = {"error": error, "point": json.loads(unit.to_json())[3], "unit": unit.whole}
        write(self._failure(unit), json.dumps(note, indent=1).encode())

    def failure(self, unit: Unit) -> str | None:
        """Why a unit failed, where it did."""
        path = self._failure(unit)
        try:
            return str(json.loads(path.read_bytes())["error"]) if path.is_file() else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _failure(self, unit: Unit) -> Path:
        return self.path / f"{unit.name.removesuffix('.nc')}{FAILED}"


def missing(folder: Folder, units: Iterable[Unit]) -> Iterator[Unit]:
    """Of units, the runs that the folder has no file of, file by file looked at; a damaged one is renamed to .bad."""
    there: dict[str, list[Entry]] = {}
    for entry in folder.entries():
        there.setdefault(entry.key, []).append(entry)
    for unit in units:
        gap = unit.first
        for entry in there.get(unit.key, ()):
            if entry.last <= gap or entry.first >= unit.last:
                continue
            try:
                read(entry.path)
            except Damaged as reason:
                warn_of(entry.path, f"{reason}; its runs are computed again")
                with suppress(FileNotFoundError):
                    entry.path.rename(entry.path.with_suffix(".bad"))
                continue
            if entry.first > gap:
                yield unit._replace(first=gap, last=entry.first)
            gap = max(gap, entry.last)
        if gap < unit.last:
            yield unit._replace(first=gap)


class Damaged(Exception):
    """What is wrong with a file, in a few words."""


def read(path: Path) -> xr.Dataset:
    """The dataset in a file of a unit, or `Damaged` where it is not, number by number, what was written."""
    match = NAME.fullmatch(path.name)
    try:
        if not os.path.isfile(path):  # reading a pipe would wait for ever
            raise Damaged("is gone, or not a plain file")
        with h5py.File(path, "r") as file:
            check_contained(file)
            attributes = {name: _attribute(value) for name, value in file.attrs.items() if not name.startswith("_")}
            layout = json.loads(attributes["variables"])
            arrays = {name: file[name][()] for name in layout}
        if match is None or hashed(json.loads(attributes["unit"])) != match[1]:
            raise Damaged("does not have the parameters that its name says")
        if digest(arrays, attributes) != attributes["digest"]:
            raise Damaged("has other numbers than were written")
        if not np.array_equal(arrays["run"], np.arange(int(match[2]), int(match[3]))):
            raise Damaged("does not have the runs that its name says")
        made = {name: (dims, _typed(arrays[name], kind), notes) for name, (dims, kind, notes) in layout.items()}
    except Damaged:
        raise
    except Exception as reason:  # a damaged file makes the HDF5 library raise anything
        raise Damaged(f"cannot be read ({printable(str(reason))[:80] or type(reason).__name__})") from reason
    kept = {name: value for name, value in attributes.items() if name not in ("digest", "variables")}
    return xr.Dataset(made, attrs=kept).set_coords([name for name in COORDINATES if name in made])


def _attribute(value: Any) -> Any:
    """One number as a number: files have an array of it."""
    return value[0] if isinstance(value, np.ndarray) and value.shape == (1,) else value


def stamped(dataset: xr.Dataset) -> xr.Dataset:
    """A dataset with what `read` needs: its variables, with their dimensions and types, and the digest of its numbers."""
    layout = {str(name): [each.dims, each.dtype.kind, each.attrs] for name, each in dataset.variables.items()}
    known = dataset.assign_attrs(variables=json.dumps(layout))
    arrays = {str(name): variable.values for name, variable in dataset.variables.items()}
    return known.assign_attrs(digest=digest(arrays, known.attrs))


def digest(arrays: dict[str, Any], attributes: dict[Any, Any]) -> str:
    """A hash of all arrays, by name, and of all attributes that are text."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        words = array.dtype.kind in "OSU"
        content = "\0".join(_typed(array, "U").ravel().tolist()).encode() if words else np.ascontiguousarray(array).tobytes()
        found.update(f"{name}{array.shape}".encode())
        found.update(content)
    for name in sorted(attributes):
        if isinstance(attributes[name], str) and name != "digest":
            found.update(f"{name}={attributes[name]}".encode())
    return found.hexdigest()


def _typed(array: Any, kind: str) -> np.ndarray:
    """An array of a file as it was before: texts and bools."""
    if kind == "U" and array.dtype.kind == "O":
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in array.ravel()]
        array = np.array(texts).reshape(array.shape)
    return np.asarray(array).astype(bool) if kind == "b" else np.asarray(array)


def warn_of(path: Any, reason: str) -> None:
    """Name a file that is left out, and say why."""
    warnings.warn(f"{path} {reason}.", SweepWarning, stacklevel=3)
