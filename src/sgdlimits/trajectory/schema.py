"""The one dataset that every simulation returns (docs/schema.md), built and checked."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import PyTree

from sgdlimits.errors import BadInput
from sgdlimits.level.base import DIVERGED, FINISHED, STOPPED, Level, Track
from sgdlimits.problem.base import Problem
from sgdlimits.trajectory.record import find, name_of, to_json

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
_LONG_NAMES = {
    "a": "second layer",
    "M": "overlap of student and teacher",
    "Q": "overlap of students",
    "q": "squared norm of the student",
    "m": "overlap with the spike",
    "r2": "squared norm outside the spike",
    "risk": "population risk",
    "t": "samples per dimension",
    "step": "SGD steps",
    "t_end": "time at which the run ended",
    "status": "how the run ended",
}


def build(problem: Problem, level: Level, track: Track, times: np.ndarray, steps: np.ndarray, attributes: dict) -> xr.Dataset:
    """The dataset of a track at the saved `times` and `steps`."""
    stats, dims = track.stats, type(track.stats).dims
    variables = {name: (("run", "t", *dims[name]), np.asarray(getattr(stats, name))) for name in dims}
    variables["risk"] = (("run", "t"), track.risk)
    runs = track.risk.shape[0]
    dataset = xr.Dataset(
        variables,
        coords={
            "run": np.arange(runs),
            "t": times,
            "step": ("t", steps),
            "status": ("run", track.status.astype(str)),
            "t_end": ("run", track.t_end),
        },
        attrs={
            "level": level.name,
            "d": int(getattr(level, "d", 0)),
            "level_parameters": to_json(level),
            "problem": to_json(problem),
            "problem_name": getattr(problem, "name", type(problem).__name__),
            "statistics": name_of(type(stats)),
            "rate": float(problem.rate),
            "floor": float(problem.floor),
            "version": version("sgdlimits"),
            **attributes,
        },
    )
    for name in dataset.variables:
        if name in _LONG_NAMES:
            dataset[name].attrs["long_name"] = _LONG_NAMES[name]
    return dataset


def check(dataset: Any) -> xr.Dataset:
    """The dataset itself, or `BadInput` that names the first thing in which it departs from the schema.

    >>> import xarray as xr
    >>> check(xr.Dataset())
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: not a dataset of simulate: it has no dimension 'run'. Make one with sgdlimits.simulate.
    """

    def fail(reason: str):
        raise BadInput(f"not a dataset of simulate: {reason}. Make one with sgdlimits.simulate.")

    if not isinstance(dataset, xr.Dataset):
        fail(f"it is a {type(dataset).__name__}")
    for dim in ("run", "t"):
        if dim not in dataset.dims:
            fail(f"it has no dimension {dim!r}")
    for name in ("risk", "step", "status", "t_end"):
        if name not in dataset.variables:
            fail(f"it has no variable {name!r}")
    for name in ATTRIBUTES:
        if name not in dataset.attrs:
            fail(f"it has no attribute {name!r}")
    for name, variable in dataset.data_vars.items():
        if variable.dims[:2] != ("run", "t"):
            fail(f"{name} has dimensions {variable.dims}")
        if not np.isfinite(variable.values).all():
            fail(f"{name} is not finite")
    if (np.diff(dataset.t.values) <= 0).any():
        fail("its times do not increase")
    if unknown := set(dataset.status.values.tolist()) - set(STATUSES):
        fail(f"it has the status {sorted(unknown)[0]!r}")
    return dataset


def statistics(dataset: xr.Dataset) -> PyTree:
    """The statistics in a dataset as the module that problems take, with runs and then times first."""
    cls = find(dataset.attrs["statistics"])
    return cls(**{name: dataset[name].values for name in cls.dims})


def join(tracks: list[Track]) -> Track:
    """Batches of runs as one."""
    saved = min(track.saved for track in tracks)
    first = lambda leaf: np.asarray(leaf)[:, :saved]
    stats: PyTree = jax.tree.map(lambda *leaves: np.concatenate([first(leaf) for leaf in leaves]), *[t.stats for t in tracks])
    return Track(
        stats,
        np.concatenate([first(track.risk) for track in tracks]),
        np.concatenate([track.status for track in tracks]),
        np.concatenate([track.t_end for track in tracks]),
        saved,
    )
