"""`collect` and `export`: the results of a sweep as one dataset, in memory, in their files, or in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import xarray as xr

from sgdlimits.checks import check_each, string
from sgdlimits.domain import Size, checked
from sgdlimits.errors import BadInput
from sgdlimits.renamed import PARAMETERS
from sgdlimits.run.io import write_netcdf
from sgdlimits.run.schema import COORDINATES
from sgdlimits.run.sweeps.recipe import as_coordinate, decode_value
from sgdlimits.run.sweeps.store import DamagedFile, Folder, UnitFile, read_result, warn_left_out

MIN_LAZY_BYTES = 2**28
"""Total size of result files in bytes above which `collect` loads values lazily by default."""
MIN_GRID_FRACTION = 0.5
"""Fraction of all combinations of parameter values above which points are stored as a grid; sparser grids waste memory.

Sparser grids waste memory.
"""


class PointRow(NamedTuple):
    """Results at one point of a sweep: all its parameters, the varied ones, and the datasets of its files, ordered by run."""

    all_parameters: dict[str, Any]
    varied_parameters: dict[str, Any]
    run_datasets: list[xr.Dataset]


@checked
def collect(
    folder: str | os.PathLike,
    *,
    lazy: bool | None = None,
    keys: Annotated[Iterable[str], check_each(string)] | None = None,
    runs: Size | None = None,
) -> xr.Dataset:
    """Collect all results of a sweep so far in one dataset, with the varied parameters as dimensions.

    Parameters
    ----------
    folder : folder of the sweep, which may be in progress
    lazy : whether values are read from their files only when used, through dask; None: if they are large
    keys : keys of the points to collect, which begin the names of their files; None collects all
    runs : maximum number of runs of each point; None collects all

    Returns
    -------
    xarray.Dataset with a dimension for each varied parameter, then `run`, and the stored variables. Points without a result
    (yet) are NaN and have an empty `status`. If the points fill at most half of their grid, as random points do, they form one
    dimension `point` with the parameters as coordinates. Files that are damaged or not of a sweep are named in a warning and
    left out. If saved times differ between points, the dimension `time` numbers them and `t` is a variable.

    >>> import tempfile, sgdlimits as sl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     over = sl.grid(lr=[0.05, 0.1], noise=[0.0, 0.5, 1.0])
    ...     _ = sl.sweep("phase_retrieval", sl.Chain(50), sl.RandomInit(50), over=over, folder=folder, runs=4, t_max=1,
    ...                  keep="final_risk", progress=False)
    ...     sl.collect(folder).final_risk.sizes
    Frozen({'lr': 2, 'noise': 3, 'run': 4})
    """
    keys = None if keys is None else list(keys)
    found = read_rows(Folder(folder), keys, runs, lazy)
    if not found:
        raise BadInput(f"{folder} holds no results yet. Run a sweep with this folder.")
    rows = [found[key] for key in keys or found if key in found]
    names, points = _varied_parameters(rows)
    if keys is None:  # files are sorted by their hashes, which have no meaning
        order = sorted(range(len(rows)), key=lambda i: tuple(points[i].values()))
        rows, points = [rows[i] for i in order], [points[i] for i in order]
    # Parameters become dimensions if points are distinct and fill enough of their grid.
    axes = {name: _sort_values([point[name] for point in points]) for name in names}
    distinct = bool(names) and len({tuple(map(repr, point.values())) for point in points}) == len(points)
    regular = distinct and len(points) > MIN_GRID_FRACTION * np.prod([len(values) for values in axes.values()], dtype=float)
    if regular:
        sizes = tuple(len(values) for values in axes.values())
        # By text: values such as tuples and NaN are not found by equality.
        index = [{repr(value): i for i, value in enumerate(values)} for values in axes.values()]
        places = [tuple(known[repr(point[name])] for known, name in zip(index, names, strict=True)) for point in points]
        dims, coords = names, {name: (name, values) for name, values in axes.items()}
    else:
        sizes, places = (len(rows),), [(i,) for i in range(len(rows))]
        dims, coords = ["point"], {name: ("point", [point[name] for point in points]) for name in names}
    return _assemble_points([join_runs(row, runs) for row in rows], places, dims, sizes, coords)


@checked
def export(folder: str | os.PathLike, path: str | os.PathLike) -> None:
    """Write all results of a sweep so far to one zarr store or netCDF file.

    Parameters
    ----------
    folder : folder of the sweep
    path : new path that ends in .zarr, which needs the extra `cluster`, or in .nc
    """
    if str(path).endswith(".zarr"):
        try:
            import zarr  # noqa: F401
        except ImportError as reason:
            raise BadInput("zarr is not installed. Install sgdlimits[cluster], or export to a .nc file.") from reason
        if os.path.exists(path):
            raise BadInput(f"{path} exists already. Remove it, or give another name.")
        dataset = collect(folder)
        words = [str(name) for name in dataset.variables if dataset[name].dtype.kind in "OU"]
        for name in words:  # text as codes with their meanings, since zarr versions differ in how they store text
            meanings, codes = np.unique(dataset[name].values.astype(str), return_inverse=True)
            notes = {"flag_values": list(range(len(meanings))), "flag_meanings": meanings.tolist()}
            coded = xr.Variable(dataset[name].dims, codes.reshape(dataset[name].shape).astype("int8"), notes)
            dataset = dataset.drop_vars(name).assign_coords({name: coded})
        dataset.to_zarr(path, mode="w-", consolidated=False)
    elif str(path).endswith(".nc"):
        write_netcdf(collect(folder), path)
    else:
        raise BadInput(f"{path} must end in .zarr or .nc. Give, for instance, results.nc.")


def read_rows(folder: Folder, keys: Iterable[str] | None, runs: int | None, lazy: bool | None = False) -> dict[str, PointRow]:
    """Return the results of a sweep's points, by key, from the files of consecutive runs that begin at run 0.

    Parameters
    ----------
    folder : folder of the sweep
    keys : keys of the points to read; None reads all
    runs : maximum number of runs of each point; None reads all
    lazy : whether values stay in their files; None: if they are large
    """
    wanted = None if keys is None else set(keys)
    rows: dict[str, PointRow] = {}
    reach: dict[str, int] = {}
    entries = [entry for entry in folder.list_files() if wanted is None or entry.key in wanted]
    if lazy is None:
        lazy = sum(entry.path.lstat().st_size for entry in entries) > MIN_LAZY_BYTES
    for entry in entries:
        have = reach.get(entry.key, 0)
        # Skip runs that an earlier file has, that come after a gap, or that are not asked for.
        if entry.last <= have or entry.first > have or (runs is not None and entry.first >= runs):
            continue
        try:
            dataset = read_result(entry.path)
        except DamagedFile as reason:
            warn_left_out(entry.path, f"{reason}; it is left out. Run the sweep again to replace it")
            continue
        row = rows.setdefault(entry.key, PointRow(*_point_parameters(dataset), []))
        row.run_datasets.append((_leave_in_file(dataset, entry) if lazy else dataset).isel(run=slice(have - entry.first, None)))
        reach[entry.key] = entry.last
    return rows


def _leave_in_file(dataset: xr.Dataset, entry: UnitFile) -> xr.Dataset:
    """Replace the values of a dataset by lazy dask arrays, which are read from the dataset's file when needed."""
    try:
        import dask
        import dask.array as da
    except ImportError as reason:
        raise BadInput(
            "these results are large, and dask, which reads values only when used, is not installed. "
            "Install sgdlimits[cluster], or give lazy=False."
        ) from reason

    def lazy_variable(name: str) -> Any:
        variable = dataset[name].variable
        later = dask.delayed(_read_variable, pure=True)(str(entry.path), name)
        return variable._replace(data=da.from_delayed(later, variable.shape, variable.dtype))

    return dataset.assign({str(name): lazy_variable(str(name)) for name in dataset.data_vars})


def _read_variable(path: str, name: str) -> np.ndarray:
    """Return the values of one variable of a result file."""
    return read_result(Path(path))[name].values


def _point_parameters(dataset: xr.Dataset) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dictionaries for the point of a result file: all its parameters, and those that its sweep varied."""
    whole = json.loads(dataset.attrs["unit"])
    point = json.loads(dataset.attrs["point"])
    full: dict[str, Any] = {"preset": whole["build"], "level": whole["level_name"], "start": whole["start_name"]}
    full |= {"optimiser": whole["rule"].get("name", "sgd"), "t_max": whole["t_max"], "keep": json.dumps(whole["keep"])}
    for part in ("start", "level", "rule", "problem"):
        full |= {
            name: as_coordinate(_decode_or_text(value))
            for name, value in whole[part].items()
            if (part, name) != ("rule", "name")
        }
    present = lambda name: PARAMETERS[name].name if name in PARAMETERS else name  # older files have names of older versions
    return full, {present(name.rpartition(".")[2]): as_coordinate(_decode_or_text(value)) for name, value in point.items()}


def _decode_or_text(value: Any) -> Any:
    """Decode a parameter value from JSON; return the JSON string itself if it cannot be decoded."""
    try:
        return decode_value(value)
    except BadInput:  # a function that this process does not know
        return json.dumps(value)


def _varied_parameters(rows: list[PointRow]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of the parameters that differ between points or that sweeps varied, and their values per point."""
    names = list(dict.fromkeys(name for row in rows for name in row.varied_parameters))
    for name in {name: None for row in rows for name in row.all_parameters}:
        if name not in names and len({repr(row.all_parameters[name]) for row in rows if name in row.all_parameters}) > 1:
            names.append(name)
    points = [{name: row.varied_parameters.get(name, row.all_parameters.get(name, "none")) for name in names} for row in rows]
    for name in names:  # a coordinate of numbers and texts becomes one of texts
        if any(isinstance(point[name], str) for point in points):
            for point in points:
                point[name] = str(point[name])
    return names, points


def _sort_values(values: list) -> list:
    """Return the distinct values of a parameter: numbers in increasing order, strings in the order of the points."""
    each = {repr(value): value for value in values}
    return list(each.values()) if any(isinstance(value, str) for value in values) else sorted(each.values())


def join_runs(row: PointRow, runs: int | None) -> xr.Dataset:
    """Join the datasets of one point's files into a dataset of all its runs, or of the first `runs`."""
    parts = row.run_datasets
    first = parts[0]
    if len(parts) > 1:
        names = [name for name in first.variables if "run" in first[name].dims]
        over_runs = {name: xr.Variable.concat([part[name].variable for part in parts], "run") for name in names}
        first = first.drop_dims("run").assign(over_runs)
    return first if runs is None else first.isel(run=slice(0, runs))


def _assemble_points(parts: list[xr.Dataset], places, dims: list[str], sizes: tuple[int, ...], coords) -> xr.Dataset:
    """Assemble the datasets of all points of a sweep into one dataset.

    Parameters
    ----------
    parts : datasets of points
    places : index of each point along `dims`
    dims, sizes, coords : dimensions of the points, their sizes and coordinates
    """
    times = [part["t"].values for part in parts if "t" in part.dims]
    times_differ = len(times) > 0 and any(not np.array_equal(times[0], each) for each in times[1:])
    if times_differ:  # saved times are multiples of 1/d, for instance, and d is varied
        numbered = lambda part: part.drop_indexes("t").rename_dims(t="time").reset_coords("t")
        parts = [numbered(part) if "t" in part.dims else part for part in parts]
    extent: dict[str, int] = {}
    for part in parts:
        extent |= {str(dim): max(size, extent.get(str(dim), 0)) for dim, size in part.sizes.items()}
    # the values over time of a schedule have the name of the parameter that the sweep varies
    taken = {name: f"scheduled_{name}" for name in coords}
    parts = [part.rename({name: taken[str(name)] for name in part.variables if name in taken}) for part in parts]
    found = {}
    for name in dict.fromkeys(str(name) for part in parts for name in part.variables):
        if name in ("run", "time", "t") and not (name == "t" and times_differ):
            continue
        have = [(place, part[name].variable) for place, part in zip(places, parts, strict=True) if name in part.variables]
        if have[0][1].dims == (name,):
            continue
        # Steps at equal times differ if d does; otherwise one array serves all points.
        if name == "step" and not times_differ and all(each.equals(have[0][1]) for _, each in have):
            found[name] = have[0][1]
            continue
        if other := next((each.dims for _, each in have if each.dims != have[0][1].dims), None):
            raise BadInput(
                f"{name} has the dimensions {have[0][1].dims} and {other} at different points. Collect these points "
                f"separately, with keys=."
            )
        found[name] = _place_on_grid(have, dims, sizes, extent)
    attrs = {
        name: value
        for name, value in parts[0].attrs.items()
        if all(_is_same_attribute(value, part.attrs.get(name)) for part in parts)
    }
    inner = {"run": np.arange(extent["run"])}
    if times and not times_differ:
        inner["t"] = times[0]
    dataset = xr.Dataset(found, {**coords, **inner}, attrs)
    return dataset.set_coords([name for name in COORDINATES if name in dataset.variables])


def _is_same_attribute(left: Any, right: Any) -> bool:
    """Return whether two attributes have the same type and value."""
    return type(left) is type(right) and bool(np.array_equal(left, right))


def _place_on_grid(have: list[tuple[tuple[int, ...], xr.Variable]], dims, sizes, extent: dict[str, int]) -> xr.Variable:
    """Combine one variable of all points into an array over the grid of points; missing points are NaN or "".

    `have` pairs the indices of each point on the grid of `sizes` with the variable there, which is padded to the sizes in
    `extent`.
    """
    first = have[0][1]
    shape = tuple(extent[str(dim)] for dim in first.dims)
    text = first.dtype.kind in "OUS"
    complete = len(have) == np.prod(sizes) and all(each.shape == shape for _, each in have)
    # Integers and bools have no NaN: they become floats where entries are missing.
    kind: Any = object if text else first.dtype if complete else np.result_type(float, first.dtype)
    empty: Any = "" if text else np.nan if np.dtype(kind).kind == "f" else 0
    if not isinstance(first._data, np.ndarray) and hasattr(first.data, "dask"):
        import dask.array as da

        grid = np.full(int(np.prod(sizes)), None, dtype=object)
        for place, each in have:
            wide = [(0, size - mine) for size, mine in zip(shape, each.shape, strict=True)]
            grid[np.ravel_multi_index(place, sizes)] = da.pad(each.data.astype(kind), wide, constant_values=empty)
        # One block for each point, so that reading a point later opens its files only.
        blocks = [da.full(shape, empty, dtype=kind) if block is None else block for block in grid]
        return xr.Variable((*dims, *first.dims), da.stack(blocks).reshape(*sizes, *shape), first.attrs)
    out = np.full((*sizes, *shape), empty, dtype=kind)
    for place, each in have:
        where: tuple[Any, ...] = (*place, *(slice(0, size) for size in each.shape))
        out[where] = each.values
    return xr.Variable((*dims, *first.dims), out.astype(str) if text else out, first.attrs)
