"""The files of a sweep as one dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import xarray as xr

from sgdlimits.checks import each_of, text
from sgdlimits.domain import Size, checked
from sgdlimits.errors import BadInput
from sgdlimits.renamed import PARAMETERS
from sgdlimits.run.io import write_netcdf
from sgdlimits.run.schema import COORDINATES
from sgdlimits.run.sweeps.recipe import decoded, label
from sgdlimits.run.sweeps.store import Damaged, Entry, Folder, read, warn_of

LARGE = 2**28
"""Bytes from which on a dataset stays in its files until it is asked for."""
SHARE = 0.5
"""Of all combinations of values more than this share must be there for parameters to be dimensions."""


class PointRow(NamedTuple):
    """What the files of one point hold, and its parameters: all of them, and those that its sweep varied."""

    full: dict[str, Any]
    varied: dict[str, Any]
    parts: list[xr.Dataset]


@checked
def collect(
    folder: str | os.PathLike,
    *,
    lazy: bool | None = None,
    keys: Annotated[Iterable[str], each_of(text)] | None = None,
    runs: Size | None = None,
) -> xr.Dataset:
    """All that a sweep has computed so far, as one dataset with its parameters as dimensions.

    Parameters
    ----------
    folder : of a sweep, which may be under way
    lazy : whether numbers stay in their files until they are asked for, through dask; None: where they are large
    keys : of the points to take; None takes all
    runs : of how many runs at most; None takes all

    Returns
    -------
    xarray.Dataset with a dimension for each parameter that was varied, then `run`, and what was kept. Where points are not
    there (yet), numbers are NaN and `status` is empty. Points that fill at most half of their grid, as those that were drawn
    at random, are one dimension `point` with the parameters as coordinates. Files that are damaged or not of a sweep are named
    in a warning and left out. Where times differ from point to point, the dimension `time` numbers them and `t` is a variable.

    >>> import tempfile, sgdlimits as sl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     over = sl.grid(lr=[0.05, 0.1], noise=[0.0, 0.5, 1.0])
    ...     _ = sl.sweep("phase_retrieval", sl.Chain(50), sl.RandomInit(50), over=over, folder=folder, runs=4, t_max=1,
    ...                  keep="final_risk", progress=False)
    ...     sl.collect(folder).final_risk.sizes
    Frozen({'lr': 2, 'noise': 3, 'run': 4})
    """
    keys = None if keys is None else list(keys)
    found = rows_of(Folder(folder), keys, runs, lazy)
    if not found:
        raise BadInput(f"{folder} holds no results yet. Run a sweep into it.")
    rows = [found[key] for key in keys or found if key in found]
    names, points = _varied(rows)
    if keys is None:  # files come by their hashes
        order = sorted(range(len(rows)), key=lambda i: tuple(points[i].values()))
        rows, points = [rows[i] for i in order], [points[i] for i in order]
    axes = {name: _sorted([point[name] for point in points]) for name in names}
    whole = bool(names) and len({tuple(map(repr, point.values())) for point in points}) == len(points)
    regular = whole and len(points) > SHARE * np.prod([len(values) for values in axes.values()], dtype=float)
    if regular:
        sizes = tuple(len(values) for values in axes.values())
        index = [{repr(value): i for i, value in enumerate(values)} for values in axes.values()]
        places = [tuple(known[repr(point[name])] for known, name in zip(index, names, strict=True)) for point in points]
        dims, coords = names, {name: (name, values) for name, values in axes.items()}
    else:
        sizes, places = (len(rows),), [(i,) for i in range(len(rows))]
        dims, coords = ["point"], {name: ("point", [point[name] for point in points]) for name in names}
    return _assembled([joined(row, runs) for row in rows], places, dims, sizes, coords)


@checked
def export(folder: str | os.PathLike, path: str | os.PathLike) -> None:
    """Write all that a sweep has computed to one file: a folder `.zarr` or a netCDF file `.nc`.

    Parameters
    ----------
    folder : of a sweep
    path : ends in .zarr, for which the extra `cluster` has to be installed, or in .nc
    """
    if str(path).endswith(".zarr"):
        try:
            import zarr  # noqa: F401
        except ImportError as reason:
            raise BadInput("zarr is not installed. Install sgdlimits[cluster], or export to a file .nc.") from reason
        if os.path.exists(path):
            raise BadInput(f"{path} exists already. Remove it, or give another name.")
        dataset = collect(folder)
        words = [str(name) for name in dataset.variables if dataset[name].dtype.kind in "OU"]
        for name in words:  # numbers with their meanings: formats of text differ between versions
            meanings, codes = np.unique(dataset[name].values.astype(str), return_inverse=True)
            notes = {"flag_values": list(range(len(meanings))), "flag_meanings": meanings.tolist()}
            coded = xr.Variable(dataset[name].dims, codes.reshape(dataset[name].shape).astype("int8"), notes)
            dataset = dataset.drop_vars(name).assign_coords({name: coded})
        dataset.to_zarr(path, mode="w-", consolidated=False)
    elif str(path).endswith(".nc"):
        write_netcdf(collect(folder), path)
    else:
        raise BadInput(f"{path} must end in .zarr or .nc. Give such a name.")


def rows_of(folder: Folder, keys: Iterable[str] | None, runs: int | None, lazy: bool | None = False) -> dict[str, PointRow]:
    """The points that are there by key, with files that together have runs from 0 on, each run once."""
    wanted = None if keys is None else set(keys)
    rows: dict[str, PointRow] = {}
    reach: dict[str, int] = {}
    entries = [entry for entry in folder.entries() if wanted is None or entry.key in wanted]
    if lazy is None:
        lazy = sum(entry.path.lstat().st_size for entry in entries) > LARGE
    for entry in entries:
        have = reach.get(entry.key, 0)
        if entry.last <= have or entry.first > have or (runs is not None and entry.first >= runs):
            continue  # runs that are there already, or before which some are missing, or that nobody asked for
        try:
            dataset = read(entry.path)
        except Damaged as reason:
            warn_of(entry.path, f"{reason}; it is left out. Run the sweep again to have it made anew")
            continue
        row = rows.setdefault(entry.key, PointRow(*_parameters(dataset), []))
        row.parts.append((_left(dataset, entry) if lazy else dataset).isel(run=slice(have - entry.first, None)))
        reach[entry.key] = entry.last
    return rows


def _left(dataset: xr.Dataset, entry: Entry) -> xr.Dataset:
    """The dataset with its variables left in their file."""
    try:
        import dask
        import dask.array as da
    except ImportError as reason:
        raise BadInput(
            "these results are large, and dask, which leaves them in their files, is not installed. "
            "Install sgdlimits[cluster], or give lazy=False."
        ) from reason

    def of(name: str) -> Any:
        each = dataset[name].variable
        later = dask.delayed(_variable, pure=True)(str(entry.path), name)
        return each._replace(data=da.from_delayed(later, each.shape, each.dtype))

    return dataset.assign({str(name): of(str(name)) for name in dataset.data_vars})


def _variable(path: str, name: str) -> np.ndarray:
    return read(Path(path))[name].values


def _parameters(dataset: xr.Dataset) -> tuple[dict[str, Any], dict[str, Any]]:
    """All parameters of a file's point, and those that its sweep varied."""
    whole, point = json.loads(dataset.attrs["unit"]), json.loads(dataset.attrs["point"])
    full: dict[str, Any] = {"preset": whole["build"], "level": whole["level_name"], "start": whole["start_name"]}
    full |= {"optimiser": whole["rule"].get("name", "sgd"), "t_max": whole["t_max"], "keep": json.dumps(whole["keep"])}
    for part in ("start", "level", "rule", "problem"):
        full |= {name: label(_value(value)) for name, value in whole[part].items() if (part, name) != ("rule", "name")}
    present = lambda name: PARAMETERS[name].name if name in PARAMETERS else name  # files of before have the old name
    return full, {present(name.rpartition(".")[2]): label(_value(value)) for name, value in point.items()}


def _value(value: Any) -> Any:
    try:
        return decoded(value)
    except BadInput:  # a function that this process does not know
        return json.dumps(value)


def _varied(rows: list[PointRow]) -> tuple[list[str], list[dict[str, Any]]]:
    """The parameters that sweeps varied or in which points differ, and their values at each point."""
    names = list(dict.fromkeys(name for row in rows for name in row.varied))
    for name in {name: None for row in rows for name in row.full}:
        if name not in names and len({repr(row.full[name]) for row in rows if name in row.full}) > 1:
            names.append(name)
    points = [{name: row.varied.get(name, row.full.get(name, "none")) for name in names} for row in rows]
    for name in names:  # numbers together with words are words
        if any(isinstance(point[name], str) for point in points):
            for point in points:
                point[name] = str(point[name])
    return names, points


def _sorted(values: list) -> list:
    each = {repr(value): value for value in values}
    return list(each.values()) if any(isinstance(value, str) for value in values) else sorted(each.values())


def joined(row: PointRow, runs: int | None) -> xr.Dataset:
    """The files of a point as one dataset over its runs."""
    parts, first = row.parts, row.parts[0]
    if len(parts) > 1:
        of = lambda name: xr.Variable.concat([part[name].variable for part in parts], "run")
        first = first.drop_dims("run").assign({name: of(name) for name in first.variables if "run" in first[name].dims})
    return first if runs is None else first.isel(run=slice(0, runs))


def _assembled(parts: list[xr.Dataset], places, dims: list[str], sizes: tuple[int, ...], coords) -> xr.Dataset:
    """Datasets of points at their places in the grid."""
    times = [part["t"].values for part in parts if "t" in part.dims]
    moved = len(times) > 0 and any(not np.array_equal(times[0], each) for each in times[1:])
    if moved:  # times of another d
        numbered = lambda part: part.drop_indexes("t").rename_dims(t="time").reset_coords("t")
        parts = [numbered(part) if "t" in part.dims else part for part in parts]
    extent: dict[str, int] = {}
    for part in parts:
        extent |= {str(dim): max(size, extent.get(str(dim), 0)) for dim, size in part.sizes.items()}
    found = {}
    for name in dict.fromkeys(str(name) for part in parts for name in part.variables):
        if name in ("run", "time", "t") and not (name == "t" and moved):
            continue
        have = [(place, part[name].variable) for place, part in zip(places, parts, strict=True) if name in part.variables]
        if have[0][1].dims == (name,):
            continue
        if name == "step" and not moved and all(each.equals(have[0][1]) for _, each in have):
            found[name] = have[0][1]
            continue
        if other := next((each.dims for _, each in have if each.dims != have[0][1].dims), None):
            raise BadInput(f"{name} has the dimensions {have[0][1].dims} here and {other} there. Collect them apart, by keys=.")
        found[name] = _placed(have, dims, sizes, extent)
    attrs = {name: value for name, value in parts[0].attrs.items() if all(_same(value, part.attrs.get(name)) for part in parts)}
    inner = {"run": np.arange(extent["run"])}
    if times and not moved:
        inner["t"] = times[0]
    dataset = xr.Dataset(found, {**coords, **inner}, attrs)
    return dataset.set_coords([name for name in COORDINATES if name in dataset.variables])


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(np.array_equal(left, right))


def _placed(have: list[tuple[tuple[int, ...], xr.Variable]], dims, sizes, extent: dict[str, int]) -> xr.Variable:
    """Arrays of points in one array of the `extent` of all variables: what is missing is NaN, or empty text."""
    first = have[0][1]
    shape = tuple(extent[str(dim)] for dim in first.dims)
    text = first.dtype.kind in "OUS"
    whole = len(have) == np.prod(sizes) and all(each.shape == shape for _, each in have)
    kind: Any = object if text else first.dtype if whole else np.result_type(float, first.dtype)
    empty: Any = "" if text else np.nan if np.dtype(kind).kind == "f" else 0
    if not isinstance(first._data, np.ndarray) and hasattr(first.data, "dask"):
        import dask.array as da

        grid = np.full(int(np.prod(sizes)), None, dtype=object)
        for place, each in have:
            wide = [(0, size - mine) for size, mine in zip(shape, each.shape, strict=True)]
            grid[np.ravel_multi_index(place, sizes)] = da.pad(each.data.astype(kind), wide, constant_values=empty)
        blocks = [da.full(shape, empty, dtype=kind) if block is None else block for block in grid]
        return xr.Variable((*dims, *first.dims), da.stack(blocks).reshape(*sizes, *shape), first.attrs)
    out = np.full((*sizes, *shape), empty, dtype=kind)
    for place, each in have:
        where: tuple[Any, ...] = (*place, *(slice(0, size) for size in each.shape))
        out[where] = each.values
    return xr.Variable((*dims, *first.dims), out.astype(str) if text else out, first.attrs)
