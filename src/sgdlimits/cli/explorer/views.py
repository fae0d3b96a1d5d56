"""Views of datasets for the explorer's page, as lists: curves, exit times, phase portrait, spectrum, headline numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.fixed_points import FixedPoints
from sgdlimits.analysis.fixed_points.find import run_search
from sgdlimits.analysis.fixed_points.system import OutOfTime, SearchMonitor
from sgdlimits.analysis.landscape import hessian_spectrum
from sgdlimits.analysis.origin import name_of_overlap
from sgdlimits.analysis.summary import summarise
from sgdlimits.cli.explorer.setting import Setting
from sgdlimits.errors import BadInput
from sgdlimits.level.base import RUN_DIVERGED
from sgdlimits.papers.mediocrity.theory import exit_time
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.run.schema import statistics

MAX_SINGLE_RUNS = 24
"""Maximum number of single runs that the explorer's page draws."""
MAX_QUANTITIES = 12
"""Maximum number of quantities that the explorer's page offers to draw."""
PORTRAIT_POINTS = 17
"""Number of arrows of a phase portrait along each axis."""
TRACK_POINT_COUNT = 400
"""Number of times of each trajectory in a phase portrait; a fixed number needs one compilation only."""
SEARCH_SECONDS = 30.0
"""Time limit of the search for fixed points that the explorer's page shows, in seconds."""
STATISTIC_FORMULAS = ("quenched", "noisy_ode", "backward")
"""Theories, by their names in the table of exit times, whose predictions are marked in the histogram."""


def as_lists(values: Any) -> Any:
    """Convert an array to nested lists of floats with seven digits, or None where not finite, for JSON."""
    array = np.asarray(values, float)
    if array.ndim:
        return [as_lists(each) for each in array]
    # seven digits keep messages short; JSON has no NaN
    return float(f"{array:.7g}") if np.isfinite(array) else None


def drawable_quantities(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the quantities of a dataset that the page can draw against time, by name, each of shape (run, t)."""
    name = str(name_of_overlap(dataset))
    found = {"risk": dataset.risk.values}
    if "accuracy" in dataset:
        found["accuracy"] = dataset.accuracy.values
    overlaps = np.abs(dataset[name].values)
    found["largest overlap"] = overlaps.reshape(*overlaps.shape[:2], -1).max(2)
    for variable in (name, "Q", "q", "r2", "a"):
        if variable in dataset and dataset[variable].dims[:2] == ("run", "t"):
            values = dataset[variable].values
            for index in np.ndindex(values.shape[2:]):
                if len(found) < MAX_QUANTITIES and (len(index) < 2 or variable == name or index[0] <= index[1]):
                    label = f"{variable}[{','.join(map(str, index))}]" if index else variable
                    found[label] = values[(..., *index)]
    return found


def drop_diverged_unless_all(dataset: xr.Dataset) -> xr.Dataset:
    """Return the runs of a dataset that did not diverge, or all runs if all diverged."""
    good = dataset.isel(run=dataset.status.values != RUN_DIVERGED)
    return good if good.sizes["run"] else dataset


def build_curves(piece: xr.Dataset, level: str) -> dict[str, Any]:
    """Return the curves in a piece of a level's dataset: means over runs, single runs of the chain, quantiles of the SDE."""
    made = {}
    for name, values in drawable_quantities(drop_diverged_unless_all(piece)).items():
        one: dict[str, Any] = {"mean": as_lists(values.mean(0))}
        if level == "chain":
            one["runs"] = as_lists(values[:MAX_SINGLE_RUNS])
        if level == "sde":
            one["low"], one["high"] = as_lists(np.quantile(values, (0.1, 0.9), axis=0))
        made[name] = one
    return {"t": as_lists(piece.t.values), "curves": made, "diverged": int((piece.status.values == RUN_DIVERGED).sum())}


def headline_numbers(dataset: xr.Dataset) -> dict[str, str]:
    """Return the last saved time, and the mean risk and largest overlap of a level's runs at that time, as strings by name."""
    good = dataset.isel(run=dataset.status.values != RUN_DIVERGED)
    if not good.sizes["run"]:
        return {"runs": "all diverged"}
    found = {"t": f"{float(dataset.t.values[-1]):.5g}"}
    for name, values in list(drawable_quantities(good).items())[:3]:
        last = values[:, -1]
        error = f" ± {last.std(ddof=1) / last.size**0.5:.1g}" if last.size > 1 else ""
        if name in ("risk", "accuracy", "largest overlap"):
            found[name] = f"{last.mean():.5g}{error}"
    return found


def build_exits(setting: Setting, datasets: dict[str, xr.Dataset]) -> dict[str, Any]:
    """Return exit times of the chain's runs so far, their summary in samples, and the exit times that theories predict."""
    found = exit_times(datasets["chain"], setting.threshold)
    marks: dict[str, float] = {}
    t, censored = found.t.values, found.censored.values.astype(bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = summarise(found)
        for name in ("ode", "sde", "mean_field"):
            if name in datasets:
                marks[name] = summarise(exit_times(datasets[name], setting.threshold), resamples=1).median.value
    for name in STATISTIC_FORMULAS:
        try:
            marks[name] = exit_time(cast(Any, setting.problem), setting.d, setting.threshold, name)
        except (BadInput, TypeError, AttributeError):  # the formulas are for phase retrieval only
            break
    scaled = chain.scaled(setting.d)
    rows = {"mean": scaled.mean, "median": scaled.median, **{f"{100 * q:g} %": each for q, each in scaled.quantiles.items()}}
    return {"exited": as_lists(t[~censored]), "censored": int(censored.sum()), "runs": int(t.size),
            "end": float(datasets["chain"].t.values[-1]), "marks": {name: as_lists(mark) for name, mark in marks.items()},
            "confidence": chain.confidence,
            "rows": {name: as_lists((each.value, each.low, each.high)) for name, each in rows.items()}}  # fmt: skip


class CancellableSearchMonitor(SearchMonitor):
    """Progress watch of a search for fixed points, which also ends the search once `wanted()` is false."""

    def __init__(self, name: str, wanted: Callable[[], bool]) -> None:
        super().__init__(name, SEARCH_SECONDS, progress=False)
        self.wanted = wanted

    def tick(self, points: int = 1) -> None:
        super().tick(points)
        if self.end < math.inf and not self.wanted():
            raise OutOfTime


def find_points(setting: Setting, wanted: Callable[[], bool]) -> FixedPoints:
    """Find fixed points of a setting's ODE, for at most `SEARCH_SECONDS` and only while `wanted()` is true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_search(CancellableSearchMonitor(setting.preset, wanted), setting.final_problem.limit, count=32)


def describe_search(found: FixedPoints | None) -> str:
    """Describe the state of a search for fixed points; an empty string if the search has finished and found a point."""
    if found is None:
        return "Looking for fixed points…"
    if not found.stopped:
        return "" if found else "No fixed point was found."
    known = "There may be more fixed points" if found else "No fixed point was found, though there may be some"
    return f"{known}: the search was stopped after {SEARCH_SECONDS:g} s. The function fixed_points can go on for longer."


def build_portrait(
    setting: Setting, found: FixedPoints | None, ode: xr.Dataset, chain: xr.Dataset | None, plane: Any
) -> dict[str, Any]:
    """Return the phase portrait in a plane of two statistics: arrows on a grid, fixed points and trajectories.

    The other statistics are fixed at the first run's start. If only one statistic is free, its drift is drawn against it.

    Parameters
    ----------
    found : fixed points, if known
    ode, chain : trajectories to draw
    plane : names of the two statistics, as sent by the page; invalid ones are replaced
    """
    problem = setting.final_problem.limit
    ode = ode.isel(run=ode.status.values != RUN_DIVERGED)
    if not ode.sizes["run"]:
        raise BadInput("All runs of the ODE diverged: there is no flow to draw. Take a smaller lr.")
    stats = statistics(_thin_times(ode))
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], stats)
    names, free = problem.coordinates.names(first), problem.coordinates.moves(first)
    moving = [name for name, moves in zip(names, free, strict=True) if moves]
    asked = [name for name in dict.fromkeys(map(str, plane)) if name in moving] if isinstance(plane, list) else []
    x, y = (*asked, *(name for name in moving if name not in asked), "", "")[:2]
    # eight trajectories at most
    flows = np.asarray(_flatten_statistics(problem, jax.tree.map(lambda leaf: np.asarray(leaf)[:8], stats)))
    places = [names.index(name) for name in (x, y) if name]
    tracks, real = flows[:, :, places], []
    if chain is not None and setting.optimiser == "sgd":
        chain = chain.isel(run=np.flatnonzero(chain.status.values != RUN_DIVERGED)[:4])
        real = (
            list(np.asarray(_flatten_statistics(problem, statistics(_thin_times(chain))))[:, :, places])
            if chain.sizes["run"]
            else []
        )
    # also before the search has ended
    points = _locate_points(problem, found, places) if found else []
    every = np.concatenate([*tracks, *real, *(point[None] for point, _ in points)])
    low, high = every.min(0), every.max(0)
    margin = 0.08 * np.maximum(high - low, 1e-3)
    axes = [
        np.linspace(a, b, PORTRAIT_POINTS if y else 8 * PORTRAIT_POINTS)
        for a, b in zip(low - margin, high + margin, strict=True)
    ]
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(places))
    vectors = np.tile(flows[0, 0], (len(mesh), 1))
    vectors[:, places] = mesh
    batch, moved = _drift_at(problem, vectors, first)
    drift = np.array(moved)[:, places]
    # no arrows where no weights have such statistics
    drift[~_are_allowed(problem, batch)] = np.nan
    return {
        "names": moving, "x": x, "y": y, "grid": as_lists(mesh), "drift": as_lists(drift),
        "ode": as_lists(tracks), "chain": as_lists(real),
        "points": [{"at": as_lists(point), "stability": stability} for point, stability in points],
        "text": repr(found) if found else "", "search": describe_search(found),
    }  # fmt: skip


@eqx.filter_jit
def _flatten_statistics(problem: Any, stats: Any) -> jax.Array:
    """Flatten statistics with axes (run, t) to vectors."""
    return jax.vmap(jax.vmap(problem.vector))(stats)


@eqx.filter_jit
def _drift_at(problem: Any, vectors: np.ndarray, like: Any) -> tuple[Any, jax.Array]:
    """Return the statistics that have the given flattened vectors, and the flattened drift at each of them."""
    batch = jax.vmap(lambda vector: problem.from_vector(vector, like))(vectors)
    return batch, problem.numerics.over_runs(lambda one: problem.vector(problem.drift(one)), batch)


def _locate_points(problem: Any, found: FixedPoints, places: list[int]) -> list[tuple[np.ndarray, str]]:
    """Return the position in the plane and the stability of each fixed point and its images under symmetries.

    `places` has the indices of the two statistics. Each position of a component is returned once.
    """
    every = jax.tree.map(lambda *leaves: np.concatenate(leaves)[None], *(each.images for each in found))
    at = np.round(np.asarray(_flatten_statistics(problem, every))[0][:, places], 6) + 0.0
    ends = np.cumsum([len(jax.tree.leaves(each.images)[0]) for each in found])
    parts = zip(np.split(at, ends[:-1]), found, strict=True)
    return [(point, each.stability) for part, each in parts for point in np.unique(part, axis=0)]


def _thin_times(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset reduced to `TRACK_POINT_COUNT` evenly spaced times."""
    return dataset.isel(t=np.linspace(0, dataset.sizes["t"] - 1, TRACK_POINT_COUNT).round().astype(int))


def _are_allowed(problem: Any, batch: Any) -> np.ndarray:
    """Return, for each entry of a batch of statistics, whether some weights have these statistics."""
    if not isinstance(problem, ProjectionProblem):
        return np.asarray(batch.r2) >= 0
    M, Q = np.asarray(batch.M), np.asarray(batch.Q)
    # Gram matrix of the components orthogonal to the fixed directions
    outside = Q - M @ np.linalg.inv(problem.directions.gram) @ np.swapaxes(M, 1, 2)
    return np.linalg.eigvalsh(outside)[:, 0] > -1e-9


def build_spectrum(setting: Setting, piece: xr.Dataset) -> dict[str, Any]:
    """Return the eigenvalues of the Hessian, with multiplicities, at the last state of the first run."""
    if not isinstance(setting.problem, ProjectionProblem):
        raise BadInput("The Hessian is available for networks only, not for spiked tensors. Choose another problem.")
    stats = jax.tree.map(lambda leaf: np.asarray(leaf)[0, -1], statistics(piece))
    now = setting.problem.at(float(piece.t.values[-1]))
    found = hessian_spectrum(now, setting.problem.coordinates.in_limit(stats), setting.d)
    return {"t": as_lists(piece.t.values[-1]), "run": int(piece.run.values[0]), "values": as_lists(found.eigenvalues),
            "counts": found.multiplicities.tolist(), "index": list(found.index)}  # fmt: skip
