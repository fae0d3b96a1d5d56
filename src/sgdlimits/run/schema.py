"""Schema of the dataset that every simulation returns (docs/schema.md): construction, joining and checks of datasets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NoReturn

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import PyTree

from sgdlimits.checks import dataset
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.level.base import RUN_DIVERGED, RUN_FINISHED, RUN_STOPPED, Clock, Level, RunStatus, Snapshot
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_schedule
from sgdlimits.run.record import find_named_object, from_json, public_name, to_json
from sgdlimits.schedule import Schedule

INTERRUPTED = "interrupted"
"""Status of runs that had not ended when the dataset was built."""
STATUSES = (RUN_FINISHED, RUN_STOPPED, RUN_DIVERGED, INTERRUPTED)
ATTRIBUTES = (
    "level",
    "d",
    "level_parameters",
    "problem",
    "problem_name",
    "statistics",
    "start",
    "seed",
    "t_max",
    "save",
    "rate",
    "floor",
    "until",
    "version",
)
TEXT_ATTRIBUTES = ("level", "level_parameters", "problem", "problem_name", "statistics", "start", "save", "until", "version")
"""Attributes of a dataset that are strings; all others are numbers, or strings that can be read as a number."""
COORDINATES = {"step": ("t",), "status": ("run",), "t_end": ("run",)}
"""Names of the coordinates that every dataset has besides run and t, with the names of their dimensions."""
PSD_TOLERANCE = 1e-4
"""Relative size of negative eigenvalues of Q - M P^-1 M^T that `check` still attributes to solver errors.

Q, M and P have the overlaps of students, of students with fixed directions, and of fixed directions.
"""
MAX_STATE_FLOATS = 2**22
"""Maximum number of floats, over all runs, of a resume state that a dataset stores (32 MiB).

Runs with a larger state cannot be resumed.
"""
_LONG_NAMES = {
    "a": "second layer",
    "M": "overlap of student and teacher",
    "Q": "overlap of students",
    "q": "squared norm of the student",
    "m": "overlap with the spike",
    "r2": "squared norm outside the spike",
    "risk": "population risk",
    "train_risk": "training risk, the mean loss over the samples of the dataset",
    "accuracy": "probability of predicting the right class",
    "train_accuracy": "training accuracy, the share of right predictions in the dataset",
    "accuracy_error": "standard error of the accuracy, a sum over nodes",
    "task_risk": "population risk on each task",
    "risk_average": "population risk of the averaged weights",
    "t": "samples per dimension",
    "epoch": "number of passes over the dataset",
    "step": "SGD steps",
    "t_end": "time at which the run ended",
    "status": "how the run ended",
}
RESERVED_VARIABLES = {
    "run",
    "state",
    "state_t",
    "number",
    "student",
    "student_other",
    "teacher",
    "block",
    "output",
    "task",
    *_LONG_NAMES,
}
"""Names of variables and dimensions of datasets, which observables and schedules cannot have."""

_AXES = {"task_risk": ("task",)}
"""Names of the axes of array-valued observables, other than those of runs and times."""


class ResumeState(NamedTuple):
    """State from which runs resume: one row of floats per run, written by a stepper, and the time of the state."""

    rows: np.ndarray
    t: np.ndarray


def simulation_attributes(problem: Problem, level: Level, attributes: dict) -> dict:
    """Return the attributes of every dataset of a simulation; `attributes` has those given by the call, such as seed."""
    return {
        "level": level.name,
        "d": int(getattr(level, "d", None) or 0),
        "level_parameters": to_json(level),
        "problem_name": getattr(problem, "name", getattr(getattr(problem, "problem", None), "name", type(problem).__name__)),
        "rate": float(problem.rate),
        "floor": float(problem.floor),
        "version": version("sgdlimits"),
        **attributes,
    }


def build_dataset(
    problem: Problem,
    attributes: dict,
    runs: np.ndarray,
    clock: Clock,
    snapshots: list[Snapshot],
    ends: RunStatus,
    state: ResumeState,
    schedules: Mapping[str, Schedule] = MappingProxyType({}),
) -> xr.Dataset:
    """Build the dataset of some runs at some saved times from their snapshots.

    Parameters
    ----------
    problem : learning problem, stated in the statistics of the level
    attributes : attributes of the simulation
    runs : indices of the runs
    clock, snapshots : saved times and, for each of them, statistics, risk and observables of all runs
    ends : status of each run and the time at which it ended
    state : state from which the runs resume; stored in the encoding unless it is large
    schedules : schedules by name, whose values at the saved times become coordinates
    """
    stats, observed = _stack_times([tuple(snapshot) for snapshot in snapshots])
    found = problem.coordinates.variables(stats).items()
    variables = {name: plain_variable(("run", "t", *axes), np.asarray(values)) for name, (axes, values) in found}
    for name, values in {"risk": observed.pop("risk"), **observed}.items():
        axes = _AXES.get(name) or tuple(f"{name}_{i}" for i in range(values.ndim - 2))
        variables[name] = plain_variable(("run", "t", *axes), values)
    coordinates = {
        "run": plain_variable(("run",), pd.Index(runs)),
        "t": plain_variable(("t",), pd.Index(clock.t)),
        "step": plain_variable(("t",), clock.step),
        "status": plain_variable(("run",), ends.status.astype(str)),
        "t_end": plain_variable(("run",), ends.t),
    }
    training_set = getattr(problem, "training_set", None)
    if training_set is not None:
        epochs = clock.step * (problem.numerics.samples_per_step / training_set.n)
        coordinates["epoch"] = plain_variable(("t",), epochs)
    for name, schedule in schedules.items():
        values = evaluate_schedule(schedule, clock.t)
        name = f"scheduled_{name}" if name in RESERVED_VARIABLES or name in variables else name
        dims = ("t", *(f"{name}_{i}" for i in range(values.ndim - 1)))
        coordinates[name] = plain_variable(dims, values, {"long_name": f"{name.replace('_', ' ')} at time t"})
    scalars = sorted(stats.a) if isinstance(getattr(stats, "a", None), dict) else []
    named = {"scalars": json.dumps(scalars)} if scalars else {}
    dataset = xr.Dataset(variables, coordinates, {**attributes, "statistics": public_name(type(stats)), **named})
    # Most operations of xarray drop the encoding, and so they should: a dataset that was cut or edited cannot resume.
    if state.rows.size <= MAX_STATE_FLOATS:
        dataset.encoding = {"state": state}
    for name in dataset.variables:
        if name in _LONG_NAMES or name in variables:
            dataset[name].attrs["long_name"] = _LONG_NAMES.get(str(name), str(name).replace("_", " "))
    return dataset


def _stack_times(trees: list[PyTree]) -> PyTree:
    """Stack the pytrees of several times, with arrays of axes (run, ...), into one with arrays of axes (run, t, ...)."""
    columns = zip(*map(jax.tree.leaves, trees), strict=True)
    return jax.tree.unflatten(jax.tree.structure(trees[0]), [np.stack(column, axis=1) for column in columns])


def plain_variable(dims: tuple[str, ...], values: np.ndarray | pd.Index, attributes: Mapping | None = None) -> xr.Variable:
    """Return a NumPy array as an xarray variable, skipping xarray's checks of its type, which would import dask."""
    return xr.Variable(dims, values, attributes, fastpath=True)


@checked
def join(pieces: Sequence[xr.Dataset]) -> xr.Dataset:
    """Join the pieces that `stream` yields into one dataset; ended runs are extended by their last state.

    >>> import sgdlimits as sl
    >>> go = sl.stream(sl.presets.phase_retrieval(), sl.Chain(d=50), sl.RandomInit(d=50), t_max=1, runs=3, save=4)
    >>> sl.join(list(go)).sizes["t"]
    4
    """
    for piece in pieces:
        check_form(piece)
        for name in ("problem", "level_parameters", "start", "seed"):
            if piece.attrs[name] != pieces[0].attrs[name]:
                raise BadInput(
                    f"pieces must be of one simulation; the pieces given differ in {name}. Give the pieces of one stream."
                )
    seen: dict[int, float] = {}
    for piece in pieces:
        begin, end = float(piece.t.values[0]), float(piece.t.values[-1])
        for run in piece.run.values.tolist():
            if begin <= seen.get(run, -math.inf):
                raise BadInput(
                    f"pieces have run {run} at t = {begin:g} twice. Give each piece once, in the order of the stream."
                )
            seen[run] = end
    return join_pieces(sorted(pieces, key=_first_run))


def join_pieces(pieces: Iterable[xr.Dataset], runs: int | None = None) -> xr.Dataset:
    """Join the pieces of a `stream` as they arrive: along t for the same batch of runs, then all batches along run.

    If the total number of `runs` is given, arrays of the result are allocated once and filled batch by batch, so that the peak
    memory is that of the result and one batch.
    """
    rows: list[xr.Dataset] = []
    whole: dict[Any, np.ndarray] = {}
    done = 0
    for _, group in groupby(pieces, _first_run):  # pieces of one batch are consecutive
        row = _concatenate_datasets(list(group), "t")
        # A single batch is the result already; with more of them each is copied into the arrays of the result.
        if runs and row.sizes["run"] < runs:
            whole = whole or {name: np.empty((runs, *row[name].shape[1:]), row[name].dtype) for name in row.data_vars}
            if all(row[name].shape[1:] == array.shape[1:] for name, array in whole.items()):
                row = _copy_into(row, {name: array[done : done + row.sizes["run"]] for name, array in whole.items()})
        rows.append(row)
        done += row.sizes["run"]
    if not rows:
        raise BadInput("pieces is empty. Give the datasets that stream yields.")
    longest = max(rows, key=lambda row: row.sizes["t"])
    over_time = {name: each for name, each in longest.coords.items() if each.dims[:1] == ("t",)}
    if any(row.sizes["t"] != longest.sizes["t"] for row in rows):
        rows = [row.isel(t=np.minimum(np.arange(longest.sizes["t"]), row.sizes["t"] - 1)) for row in rows]
        whole = {}  # its arrays have the shapes of a batch with fewer times
    return _concatenate_datasets([row.assign_coords(over_time) for row in rows], "run", whole if done == runs else {})


def _first_run(piece: xr.Dataset) -> int:
    """Return the index of the first run in a piece of a dataset."""
    return int(piece.run.values[0])


def _copy_into(dataset: xr.Dataset, places: dict[Any, np.ndarray]) -> xr.Dataset:
    """Copy the arrays of a dataset into preallocated arrays, and return the dataset that holds the preallocated arrays."""
    for name, place in places.items():
        place[...] = dataset[name].values
    return dataset.copy(data=places)


def _concatenate_datasets(parts: list[xr.Dataset], dim: str, whole: Mapping[Any, np.ndarray] | None = None) -> xr.Dataset:
    """Concatenate datasets along a dimension; variables in `whole` are taken from there, already concatenated.

    Variables without the dimension, and the attributes, are taken from the last dataset.
    """
    if len(parts) == 1:
        return parts[0]
    last = parts[-1]
    known = whole or {}

    def concatenate_variable(name):
        variable = last[name].variable
        if dim not in variable.dims:
            return variable
        if name in known:
            return plain_variable(variable.dims, known[name], variable.attrs)
        values = np.concatenate([part[name].values for part in parts], axis=variable.dims.index(dim))
        return plain_variable(variable.dims, values, variable.attrs)

    states = [resume_state_of(part) for part in parts]
    variables = {name: concatenate_variable(name) for name in last.data_vars}
    joined = xr.Dataset(variables, {name: concatenate_variable(name) for name in last.coords}, last.attrs)
    if dim == "t":
        joined.encoding = last.encoding
    elif all(states):
        joined.encoding = {"state": ResumeState(*(np.concatenate(part) for part in zip(*states, strict=True)))}
    return joined


def repeats_random_numbers(dataset: xr.Dataset, seed: int, runs: int) -> bool:
    """Return whether new runs, started from the end of a dataset, would repeat the random numbers of the dataset's runs.

    The new runs have the indices 0 to `runs` - 1 and the given seed. Random numbers follow from seed, run and step: a run
    repeats them if it starts from the last state of the run with the same index and seed.
    """
    if str(seed) != dataset.attrs["seed"] or not dataset.t.values[-1] > 0 or np.isnan(dataset.step.values).any():
        return False  # levels without steps are not random
    indices = dataset.run.values
    return bool(indices[0] < runs if indices.size == 1 else (indices[:runs] == np.arange(min(runs, indices.size))).any())


def resume_state_of(dataset: xr.Dataset) -> ResumeState | None:
    """Return the state from which the runs of a dataset can resume, or None if the dataset does not have it."""
    return dataset.encoding.get("state")


@checked
def check(dataset: Annotated[Any, dataset]) -> xr.Dataset:
    """Check that a dataset follows the schema and return it; otherwise raise `BadInput` with the first violation.

    A dataset follows the schema if it has all dimensions, variables and attributes, its version and statuses are known, its
    values are finite and its times increase. The statistics must also belong to some weights: Q - M P^-1 M^T is positive
    semi-definite up to the accuracy of solvers, where Q, M and P have the overlaps of students, of students with fixed
    directions, and of fixed directions. `SDE` and `Local` are exempt from this condition, which their noise can violate.

    >>> import xarray as xr
    >>> check(xr.Dataset())
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: not a dataset of simulate: it has no dimension 'run'. Make one with sgdlimits.simulate.
    """
    check_form(dataset)
    worst = 0.0 if _may_leave_cone(dataset) else least_eigenvalue(dataset)
    if worst < -PSD_TOLERANCE:
        _raise_violation(f"no weights have its statistics: Q - M P^-1 M^T has the eigenvalue {worst:.3g}")
    return dataset


def _may_leave_cone(dataset: xr.Dataset) -> bool:
    """Return whether a dataset's level has noise that may give overlaps of no weights; False for unknown levels."""
    try:
        level = find_named_object(json.loads(dataset.attrs["level_parameters"])["class"])
    except (ValueError, KeyError, TypeError, BadInput):
        return False
    return getattr(level, "leaves_cone", False)


def check_form(dataset: Any) -> xr.Dataset:
    """Check the dimensions, variables, attributes and values of a dataset, and return the dataset.

    Unlike `check`, this function does not check that some weights have the statistics.
    """
    if not isinstance(dataset, xr.Dataset):
        _raise_violation(f"it is a {type(dataset).__name__}")
    for dim in ("run", "t"):
        if not dataset.sizes.get(dim):
            _raise_violation(f"it has no dimension {dim!r}")
    for name in ATTRIBUTES:
        if name not in dataset.attrs:
            _raise_violation(f"it has no attribute {name!r}")
    # All attributes are present; now their types, which later checks rely on.
    for name in ATTRIBUTES:
        value = dataset.attrs[name]
        if not isinstance(value, str) and (name in TEXT_ATTRIBUTES or np.ndim(value) != 0 or not np.isfinite(float(value))):
            _raise_violation(f"its attribute {name!r} has the invalid value {shorten(value)}")
    if not hasattr(find_named_object(dataset.attrs["statistics"]), "dims"):
        _raise_violation(f"its statistics are of the unknown kind {str(dataset.attrs['statistics'])[:40]!r}")
    for name in ("risk", *COORDINATES, *find_named_object(dataset.attrs["statistics"]).dims):
        if name not in dataset.variables and not (name == "a" and "scalars" in dataset.attrs):
            _raise_violation(f"it has no variable {name!r}")
    for name in COORDINATES:
        if dataset[name].dims != COORDINATES[name]:
            _raise_violation(f"{name} has dimensions {dataset[name].dims} instead of {COORDINATES[name]}")
    for each, variable in {**dataset.data_vars, "t": dataset.t, "t_end": dataset.t_end}.items():
        if each in dataset.data_vars and variable.dims[:2] != ("run", "t"):
            _raise_violation(f"{each} has dimensions {variable.dims}, which do not begin with run and t")
        if variable.dtype.kind not in "fiub" or not np.isfinite(variable.values).all():
            _raise_violation(f"{each} is not finite")
    if (np.diff(dataset.t.values) <= 0).any() or dataset.t.values[0] < 0:
        _raise_violation("its times do not increase")
    if unknown := set(dataset.status.values.tolist()) - set(STATUSES):
        _raise_violation(f"a run has the unknown status {str(sorted(map(str, unknown))[0])[:40]!r}")
    if not re.match(r"\d", str(dataset.attrs["version"])):
        _raise_violation(f"its version is not a number but {str(dataset.attrs['version'])[:40]!r}")
    return dataset


def _raise_violation(reason: str) -> NoReturn:
    """Raise a `BadInput` which says why a dataset violates the schema."""
    raise BadInput(f"not a dataset of simulate: {reason}. Make one with sgdlimits.simulate.")


def least_eigenvalue(dataset: xr.Dataset) -> float:
    """Return the least eigenvalue of Q - M P^-1 M^T over all runs and times, relative to Q where an entry of Q exceeds 1.

    Q, M and P have the overlaps of students, of students with fixed directions, and of fixed directions. For statistics
    without these matrices, the result is the least value of the squared norms `r2` or `q`.
    """
    if "Q" not in dataset or "M" not in dataset:
        return float(min((dataset[name].values.min() for name in ("r2", "q") if name in dataset), default=0.0))
    if "block" in dataset.M.dims:
        return _least_eigenvalue_in_blocks(dataset)
    try:
        gram = json.loads(dataset.attrs["problem"])["fields"]["target"]["fields"]["gram"]["array"]
        inverse = np.linalg.inv(np.asarray(gram, float))
    except (ValueError, KeyError, TypeError, np.linalg.LinAlgError):
        _raise_violation("its problem has no Gram matrix")
    least = np.inf
    # One run at a time: the temporary arrays of all runs would be as large as the dataset.
    for M, Q in zip(dataset.M.values, dataset.Q.values, strict=True):
        if M.shape[1:] != (Q.shape[1], len(inverse)) or Q.shape[1] != Q.shape[2]:
            _raise_violation(f"its M has shape {M.shape[1:]} and its Q has shape {Q.shape[1:]}")
        outside = Q - M @ inverse @ M.swapaxes(-1, -2)
        # With one unit the matrix is a number, and an eigenvalue solver would be the slowest part of `check`.
        values = outside[:, 0] if Q.shape[1] == 1 else np.linalg.eigvalsh(outside)[:, :1]
        least = min(least, float((values / np.maximum(np.abs(Q).max((1, 2)), 1.0)[:, None]).min()))
    return least


def _least_eigenvalue_in_blocks(dataset: xr.Dataset) -> float:
    """Return the least eigenvalue of Q - M P^+ M^T over all runs, times and blocks, as `least_eigenvalue` for one block."""
    inverse = np.linalg.pinv(np.asarray(from_json(dataset.attrs["problem"]).model.gram))
    M, Q = dataset.M.values, dataset.Q.values
    values = np.linalg.eigvalsh(Q - M @ inverse @ M.swapaxes(-1, -2))[..., 0]
    return float((values / np.maximum(np.abs(Q).max((-1, -2)), 1.0)).min())


def statistics(dataset: xr.Dataset) -> PyTree:
    """Return the statistics in a dataset as an object such as `Overlaps`, whose arrays have axes (run, t, ...)."""
    cls = find_named_object(dataset.attrs["statistics"])
    values = lambda names: {name: dataset[name].values for name in names}
    # If `a` is a dictionary of scalars, each of them is a variable of its own, and the attribute lists their names.
    if "scalars" not in dataset.attrs:
        return cls(**values(cls.dims))
    return cls(**{"a": values(json.loads(dataset.attrs["scalars"])), **values(name for name in cls.dims if name != "a")})


def final_statistics(dataset: xr.Dataset) -> PyTree:
    """Return the statistics of each run at the last time of a dataset; for a single run, without the axis of runs."""
    last = jax.tree.map(lambda leaf: leaf[:, -1], statistics(check_form(dataset)))
    return last if dataset.sizes["run"] > 1 else jax.tree.map(lambda leaf: leaf[0], last)


def reserved_names(problem: Problem, stats: PyTree) -> set[str]:
    """Return the names that datasets of the given statistics use, and that observables cannot have."""
    found = problem.coordinates.variables(stats)
    return RESERVED_VARIABLES | set(found) | {axis for axes, _ in found.values() for axis in axes}
