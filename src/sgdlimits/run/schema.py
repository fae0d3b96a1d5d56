"""The one dataset that every simulation returns (docs/schema.md), built and checked."""

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
from sgdlimits.level.base import DIVERGED, FINISHED, STOPPED, Clock, Level, RunStatus, Snapshot
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import evaluate_schedule
from sgdlimits.run.record import find, name_of, to_json
from sgdlimits.schedule import Schedule

INTERRUPTED = "interrupted"
STATUSES = (FINISHED, STOPPED, DIVERGED, INTERRUPTED)
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
TEXTS = ("level", "level_parameters", "problem", "problem_name", "statistics", "start", "save", "until", "version")
"""Attributes that are text; the others are numbers, or text that says one."""
COORDINATES = {"step": ("t",), "status": ("run",), "t_end": ("run",)}
PSD_TOLERANCE = 1e-4
"""As much as the coarsest solver may lose."""
MOST_STATE = 2**22
"""States of more numbers are not kept: such runs cannot be resumed."""
_LONG_NAMES = {
    "a": "second layer",
    "M": "overlap of student and teacher",
    "Q": "overlap of students",
    "q": "squared norm of the student",
    "m": "overlap with the spike",
    "r2": "squared norm outside the spike",
    "risk": "population risk",
    "accuracy": "probability of predicting the right class",
    "accuracy_error": "standard error of the accuracy, a sum over nodes",
    "task_risk": "population risk on each task",
    "risk_average": "population risk of the averaged weights",
    "t": "samples per dimension",
    "step": "SGD steps",
    "t_end": "time at which the run ended",
    "status": "how the run ended",
}
RESERVED = {"run", "state", "state_t", "number", "student", "student_other", "teacher", "output", "task", *_LONG_NAMES}
"""Names that nothing else in a dataset can have."""

AXES = {"task_risk": ("task",)}
"""Names of the axes of observables that have some."""


class ResumeState(NamedTuple):
    """State from which runs resume: a row of floats for each, as its stepper wrote it, and the last saved time before it."""

    rows: np.ndarray
    t: np.ndarray


def describe(problem: Problem, level: Level, attributes: dict) -> dict:
    """The attributes of all pieces of a simulation, `problem` in the statistics of the level."""
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


def build(
    problem: Problem,
    attributes: dict,
    runs: np.ndarray,
    clock: Clock,
    snapshots: list[Snapshot],
    ends: RunStatus,
    state: ResumeState,
    schedules: Mapping[str, Schedule] = MappingProxyType({}),
) -> xr.Dataset:
    """The dataset of runs by number at some saved times, of which each has a snapshot.

    Its encoding holds the state that its runs need to go on, unless that is large. The values of `schedules` at the saved times
    are coordinates under their names.
    """
    stats, observed = _over_times([tuple(snapshot) for snapshot in snapshots])
    found = problem.coordinates.variables(stats).items()
    variables = {name: plain_variable(("run", "t", *axes), np.asarray(values)) for name, (axes, values) in found}
    for name, values in {"risk": observed.pop("risk"), **observed}.items():
        axes = AXES.get(name) or tuple(f"{name}_{i}" for i in range(values.ndim - 2))
        variables[name] = plain_variable(("run", "t", *axes), values)
    coordinates = {
        "run": plain_variable(("run",), pd.Index(runs)),
        "t": plain_variable(("t",), pd.Index(clock.t)),
        "step": plain_variable(("t",), clock.step),
        "status": plain_variable(("run",), ends.status.astype(str)),
        "t_end": plain_variable(("run",), ends.t),
    }
    for name, schedule in schedules.items():
        values = evaluate_schedule(schedule, clock.t)
        name = f"scheduled_{name}" if name in RESERVED or name in variables else name
        dims = ("t", *(f"{name}_{i}" for i in range(values.ndim - 1)))
        coordinates[name] = plain_variable(dims, values, {"long_name": f"{name.replace('_', ' ')} at time t"})
    scalars = sorted(stats.a) if isinstance(getattr(stats, "a", None), dict) else []
    named = {"scalars": json.dumps(scalars)} if scalars else {}
    dataset = xr.Dataset(variables, coordinates, {**attributes, "statistics": name_of(type(stats)), **named})
    if state.rows.size <= MOST_STATE:
        dataset.encoding = {"state": state}
    for name in dataset.variables:
        if name in _LONG_NAMES or name in variables:
            dataset[name].attrs["long_name"] = _LONG_NAMES.get(str(name), str(name).replace("_", " "))
    return dataset


def _over_times(trees: list[PyTree]) -> PyTree:
    """Trees of arrays, runs first, as one with the times behind the runs."""
    columns = zip(*map(jax.tree.leaves, trees), strict=True)
    return jax.tree.unflatten(jax.tree.structure(trees[0]), [np.stack(column, axis=1) for column in columns])


def plain_variable(dims: tuple[str, ...], values: np.ndarray | pd.Index, attributes: Mapping | None = None) -> xr.Variable:
    """A variable of plain numbers. Where xarray has to look what they are, it imports all of dask to see if they are dask's."""
    return xr.Variable(dims, values, attributes, fastpath=True)


@checked
def join(pieces: Sequence[xr.Dataset]) -> xr.Dataset:
    """Pieces of a `stream` as one dataset. A batch of runs that did not come as far as others keeps its last state.

    >>> import sgdlimits as sl
    >>> go = sl.stream(sl.presets.phase_retrieval(), sl.Chain(d=50), sl.RandomInit(d=50), t_max=1, runs=3, save=4)
    >>> sl.join(list(go)).sizes["t"]
    4
    """
    for piece in pieces:
        check_form(piece)
        for name in ("problem", "level_parameters", "start", "seed"):
            if piece.attrs[name] != pieces[0].attrs[name]:
                raise BadInput(f"pieces must be of one simulation, but their {name} differs. Give the pieces of one stream.")
    seen: dict[int, float] = {}
    for piece in pieces:
        begin, end = float(piece.t.values[0]), float(piece.t.values[-1])
        for run in piece.run.values.tolist():
            if begin <= seen.get(run, -math.inf):
                raise BadInput(f"pieces have run {run} at t = {begin:g} twice. Give each piece once, as they came.")
            seen[run] = end
    return gathered(sorted(pieces, key=_first_run))


def gathered(pieces: Iterable[xr.Dataset], runs: int | None = None) -> xr.Dataset:
    """`join` of pieces as they come. With the number of all `runs` given, no two copies of a large array are held at once."""
    rows: list[xr.Dataset] = []
    whole: dict[Any, np.ndarray] = {}
    done = 0
    for _, group in groupby(pieces, _first_run):
        row = _concatenated(list(group), "t")
        if runs and row.sizes["run"] < runs:
            whole = whole or {name: np.empty((runs, *row[name].shape[1:]), row[name].dtype) for name in row.data_vars}
            if all(row[name].shape[1:] == array.shape[1:] for name, array in whole.items()):
                row = _moved(row, {name: array[done : done + row.sizes["run"]] for name, array in whole.items()})
        rows.append(row)
        done += row.sizes["run"]
    if not rows:
        raise BadInput("there is nothing to join. Give the pieces of a stream.")
    longest = max(rows, key=lambda row: row.sizes["t"])
    over_time = {name: each for name, each in longest.coords.items() if each.dims[:1] == ("t",)}
    if any(row.sizes["t"] != longest.sizes["t"] for row in rows):
        rows = [row.isel(t=np.minimum(np.arange(longest.sizes["t"]), row.sizes["t"] - 1)) for row in rows]
        whole = {}
    return _concatenated([row.assign_coords(over_time) for row in rows], "run", whole if done == runs else {})


def _first_run(piece: xr.Dataset) -> int:
    return int(piece.run.values[0])


def _moved(dataset: xr.Dataset, places: dict[Any, np.ndarray]) -> xr.Dataset:
    """The dataset with its arrays in other places of memory."""
    for name, place in places.items():
        place[...] = dataset[name].values
    return dataset.copy(data=places)


def _concatenated(parts: list[xr.Dataset], dim: str, whole: Mapping[Any, np.ndarray] | None = None) -> xr.Dataset:
    """Datasets along one dimension, of which `whole` has arrays together already.

    What has no such dimension, and the attributes, are those of the last.
    """
    if len(parts) == 1:
        return parts[0]
    last, known = parts[-1], whole or {}

    def of(name):
        variable = last[name].variable
        if dim not in variable.dims:
            return variable
        if name in known:
            return plain_variable(variable.dims, known[name], variable.attrs)
        values = np.concatenate([part[name].values for part in parts], axis=variable.dims.index(dim))
        return plain_variable(variable.dims, values, variable.attrs)

    states = [state_of(part) for part in parts]
    joined = xr.Dataset({name: of(name) for name in last.data_vars}, {name: of(name) for name in last.coords}, last.attrs)
    if dim == "t":
        joined.encoding = last.encoding
    elif all(states):
        joined.encoding = {"state": ResumeState(*(np.concatenate(part) for part in zip(*states, strict=True)))}
    return joined


def repeats(dataset: xr.Dataset, seed: int, runs: int) -> bool:
    """Return whether some of so many runs with a seed, from where those of a dataset ended, have led there themselves."""
    if str(seed) != dataset.attrs["seed"] or not dataset.t.values[-1] > 0 or np.isnan(dataset.step.values).any():
        return False  # levels without steps are not random
    numbers = dataset.run.values
    return bool(numbers[0] < runs if numbers.size == 1 else (numbers[:runs] == np.arange(min(runs, numbers.size))).any())


def state_of(dataset: xr.Dataset) -> ResumeState | None:
    """What the runs of a dataset need to go on, where it is there."""
    return dataset.encoding.get("state")


@checked
def check(dataset: Annotated[Any, dataset]) -> xr.Dataset:
    """The dataset itself, or `BadInput` that names the first thing in which it departs from the schema.

    It is complete (dimensions, variables, attributes, those of its statistics included), of a version and with statuses that
    are known, its numbers are finite and its times increase. At levels that cannot leave them, all but `SDE` and `Local`, its
    statistics are those of weights: Q - M P^-1 M^T is positive semi-definite, up to the accuracy of solvers.

    >>> import xarray as xr
    >>> check(xr.Dataset())
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: not a dataset of simulate: it has no dimension 'run'. Make one with sgdlimits.simulate.
    """
    check_form(dataset)
    worst = 0.0 if _may_leave_cone(dataset) else least_eigenvalue(dataset)
    if worst < -PSD_TOLERANCE:
        _fail(f"no weights have its statistics, which have the eigenvalue {worst:.3g}")
    return dataset


def _may_leave_cone(dataset: xr.Dataset) -> bool:
    """Whether the level of a dataset is one whose noise may leave the cone; a class that is not known here is not."""
    try:
        level = find(json.loads(dataset.attrs["level_parameters"])["class"])
    except (ValueError, KeyError, TypeError, BadInput):
        return False
    return getattr(level, "leaves_cone", False)


def check_form(dataset: Any) -> xr.Dataset:
    """`check` without a look at each state."""
    if not isinstance(dataset, xr.Dataset):
        _fail(f"it is a {type(dataset).__name__}")
    for dim in ("run", "t"):
        if not dataset.sizes.get(dim):
            _fail(f"it has no dimension {dim!r}")
    for name in ATTRIBUTES:
        if name not in dataset.attrs:
            _fail(f"it has no attribute {name!r}")
    for name in ATTRIBUTES:
        value = dataset.attrs[name]
        if not isinstance(value, str) and (name in TEXTS or np.ndim(value) != 0 or not np.isfinite(float(value))):
            _fail(f"its attribute {name!r} is {shorten(value)}")
    if not hasattr(find(dataset.attrs["statistics"]), "dims"):
        _fail(f"its statistics are {str(dataset.attrs['statistics'])[:40]!r}")
    for name in ("risk", *COORDINATES, *find(dataset.attrs["statistics"]).dims):
        if name not in dataset.variables and not (name == "a" and "scalars" in dataset.attrs):
            _fail(f"it has no variable {name!r}")
    for name in COORDINATES:
        if dataset[name].dims != COORDINATES[name]:
            _fail(f"{name} has dimensions {dataset[name].dims}")
    for each, variable in {**dataset.data_vars, "t": dataset.t, "t_end": dataset.t_end}.items():
        if each in dataset.data_vars and variable.dims[:2] != ("run", "t"):
            _fail(f"{each} has dimensions {variable.dims}")
        if variable.dtype.kind not in "fiub" or not np.isfinite(variable.values).all():
            _fail(f"{each} is not finite")
    if (np.diff(dataset.t.values) <= 0).any() or dataset.t.values[0] < 0:
        _fail("its times do not increase")
    if unknown := set(dataset.status.values.tolist()) - set(STATUSES):
        _fail(f"it has the status {str(sorted(map(str, unknown))[0])[:40]!r}")
    if not re.match(r"\d", str(dataset.attrs["version"])):
        _fail(f"its version is {str(dataset.attrs['version'])[:40]!r}")
    return dataset


def _fail(reason: str) -> NoReturn:
    raise BadInput(f"not a dataset of simulate: {reason}. Make one with sgdlimits.simulate.")


def least_eigenvalue(dataset: xr.Dataset) -> float:
    """The least eigenvalue of Q - M P^-1 M^T over all states, relative to their size, or of what stands for it."""
    if "Q" not in dataset or "M" not in dataset:
        return float(min(dataset[name].values.min() for name in ("r2", "q") if name in dataset))
    try:
        gram = json.loads(dataset.attrs["problem"])["fields"]["target"]["fields"]["gram"]["array"]
        inverse, least = np.linalg.inv(np.asarray(gram, float)), np.inf
    except (ValueError, KeyError, TypeError, np.linalg.LinAlgError):
        _fail("its problem has no Gram matrix")
    for M, Q in zip(dataset.M.values, dataset.Q.values, strict=True):  # run by run: all at once are as large as the dataset
        if M.shape[1:] != (Q.shape[1], len(inverse)) or Q.shape[1] != Q.shape[2]:
            _fail(f"M has shape {M.shape[1:]} and Q {Q.shape[1:]}")
        outside = Q - M @ inverse @ M.swapaxes(-1, -2)
        values = outside[:, 0] if Q.shape[1] == 1 else np.linalg.eigvalsh(outside)[:, :1]
        least = min(least, float((values / np.maximum(np.abs(Q).max((1, 2)), 1.0)[:, None]).min()))
    return least


def statistics(dataset: xr.Dataset) -> PyTree:
    """The statistics in a dataset as the module that problems take, with runs and then times first."""
    cls = find(dataset.attrs["statistics"])
    values = lambda names: {name: dataset[name].values for name in names}
    if "scalars" not in dataset.attrs:
        return cls(**values(cls.dims))
    return cls(**{"a": values(json.loads(dataset.attrs["scalars"])), **values(name for name in cls.dims if name != "a")})


def end_of(dataset: xr.Dataset) -> PyTree:
    """The statistics in which the runs of a dataset ended, runs first; of a single run without an axis."""
    last = jax.tree.map(lambda leaf: leaf[:, -1], statistics(check_form(dataset)))
    return last if dataset.sizes["run"] > 1 else jax.tree.map(lambda leaf: leaf[0], last)


def taken_names(problem: Problem, stats: PyTree) -> set[str]:
    """Names that a dataset of such statistics has for its variables and their axes, or that its file has for the state."""
    found = problem.coordinates.variables(stats)
    return RESERVED | set(found) | {axis for axes, _ in found.values() for axis in axes}
