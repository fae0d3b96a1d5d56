"""What the page shows of datasets, as plain lists: curves, exit times, the phase portrait, the spectrum, the main numbers."""

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
from sgdlimits.analysis.fixed_points.system import OutOfTime, Watch
from sgdlimits.analysis.landscape import hessian_spectrum
from sgdlimits.analysis.origin import overlap_name
from sgdlimits.analysis.summary import summarise
from sgdlimits.cli.explorer.setting import Setting
from sgdlimits.errors import BadInput
from sgdlimits.level.base import DIVERGED
from sgdlimits.papers.mediocrity.theory import exit_time
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.run.schema import statistics

SINGLES = 24
"""Single runs that are drawn."""
ENTRIES = 12
"""Single overlaps that can be chosen."""
GRID = 17
TRACK = 400
"""Times of a trajectory in a phase portrait, however many there are: another number would be compiled anew."""
SEARCH = 30.0
"""Seconds in which fixed points are looked for."""
FORMULAS = ("quenched", "noisy_ode", "backward")


def listed(values: Any) -> Any:
    """Numbers as lists with seven digits, None where they are not finite."""
    array = np.asarray(values, float)
    if array.ndim:
        return [listed(each) for each in array]
    return float(f"{array:.7g}") if np.isfinite(array) else None


def quantities(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """What can be drawn against time, by name, each of shape (run, t)."""
    name = str(overlap_name(dataset))
    found = {"risk": dataset.risk.values}
    if "accuracy" in dataset:
        found["accuracy"] = dataset.accuracy.values
    overlaps = np.abs(dataset[name].values)
    found["largest overlap"] = overlaps.reshape(*overlaps.shape[:2], -1).max(2)
    for variable in (name, "Q", "q", "r2", "a"):
        if variable in dataset and dataset[variable].dims[:2] == ("run", "t"):
            values = dataset[variable].values
            for index in np.ndindex(values.shape[2:]):
                if len(found) < ENTRIES and (len(index) < 2 or variable == name or index[0] <= index[1]):
                    label = f"{variable}[{','.join(map(str, index))}]" if index else variable
                    found[label] = values[(..., *index)]
    return found


def good_runs(dataset: xr.Dataset) -> xr.Dataset:
    """The runs that did not diverge, or all where all did."""
    good = dataset.isel(run=dataset.status.values != DIVERGED)
    return good if good.sizes["run"] else dataset


def curves(piece: xr.Dataset, level: str) -> dict[str, Any]:
    """The part of the curves that a piece of a stream has: means, single runs of the chain, quantiles of the SDE."""
    made = {}
    for name, values in quantities(good_runs(piece)).items():
        one: dict[str, Any] = {"mean": listed(values.mean(0))}
        if level == "chain":
            one["runs"] = listed(values[:SINGLES])
        if level == "sde":
            one["low"], one["high"] = listed(np.quantile(values, (0.1, 0.9), axis=0))
        made[name] = one
    return {"t": listed(piece.t.values), "curves": made, "diverged": int((piece.status.values == DIVERGED).sum())}


def numbers(dataset: xr.Dataset) -> dict[str, str]:
    """The main numbers of a level's runs where they stand, as they are read out."""
    good = dataset.isel(run=dataset.status.values != DIVERGED)
    if not good.sizes["run"]:
        return {"runs": "all diverged"}
    found = {"t": f"{float(dataset.t.values[-1]):.5g}"}
    for name, values in list(quantities(good).items())[:3]:
        last = values[:, -1]
        error = f" ± {last.std(ddof=1) / last.size**0.5:.1g}" if last.size > 1 else ""
        if name in ("risk", "accuracy", "largest overlap"):
            found[name] = f"{last.mean():.5g}{error}"
    return found


def exits(setting: Setting, datasets: dict[str, xr.Dataset]) -> dict[str, Any]:
    """Exit times of the chain's runs so far, in t, their summary in samples, and the marks of each theory."""
    found = exit_times(datasets["chain"], setting.threshold)
    marks: dict[str, float] = {}
    t, censored = found.t.values, found.censored.values.astype(bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = summarise(found)
        for name in ("ode", "sde", "mean_field"):
            if name in datasets:
                marks[name] = summarise(exit_times(datasets[name], setting.threshold), resamples=1).median.value
    for name in FORMULAS:
        try:
            marks[name] = exit_time(cast(Any, setting.problem), setting.d, setting.threshold, name)
        except (BadInput, TypeError, AttributeError):
            break
    scaled = chain.scaled(setting.d)
    rows = {"mean": scaled.mean, "median": scaled.median, **{f"{100 * q:g} %": each for q, each in scaled.quantiles.items()}}
    return {"exited": listed(t[~censored]), "censored": int(censored.sum()), "runs": int(t.size),
            "end": float(datasets["chain"].t.values[-1]), "marks": {name: listed(mark) for name, mark in marks.items()},
            "confidence": chain.confidence,
            "rows": {name: listed((each.value, each.low, each.high)) for name, each in rows.items()}}  # fmt: skip


class Patience(Watch):
    """A watch that also ends a search that nobody waits for any more."""

    def __init__(self, name: str, wanted: Callable[[], bool]) -> None:
        super().__init__(name, SEARCH, progress=False)
        self.wanted = wanted

    def tick(self, points: int = 1) -> None:
        super().tick(points)
        if self.end < math.inf and not self.wanted():
            raise OutOfTime


def found_points(setting: Setting, wanted: Callable[[], bool]) -> FixedPoints:
    """The fixed points of the setting's ODE that are found in a while, or as long as they are wanted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_search(Patience(setting.preset, wanted), setting.problem.limit, count=32)


def searched(found: FixedPoints | None) -> str:
    """How the search for fixed points stands, where it has not come to its end with some."""
    if found is None:
        return "Looking for fixed points…"
    if not found.stopped:
        return "" if found else "No fixed point was found."
    known = "There may be more fixed points" if found else "No fixed point was found, though there may be some"
    return f"{known}: the search was stopped after {SEARCH:g} s. The function fixed_points can go on for longer."


def portrait(
    setting: Setting, found: FixedPoints | None, ode: xr.Dataset, chain: xr.Dataset | None, plane: Any
) -> dict[str, Any]:
    """The flow in a plane of statistics: arrows on a grid, fixed points by stability, and trajectories.

    The other statistics are those of the first run's start. Where one statistic moves, it is its rate against itself.
    """
    problem = setting.problem.limit
    ode = ode.isel(run=ode.status.values != DIVERGED)
    if not ode.sizes["run"]:
        raise BadInput("All runs of the ODE diverged: there is no flow to draw. Take a smaller lr.")
    stats = statistics(_track(ode))
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], stats)
    names, free = problem.coordinates.names(first), problem.coordinates.moves(first)
    moving = [name for name, moves in zip(names, free, strict=True) if moves]
    asked = [name for name in dict.fromkeys(map(str, plane)) if name in moving] if isinstance(plane, list) else []
    x, y = (*asked, *(name for name in moving if name not in asked), "", "")[:2]
    flows = np.asarray(_vectors(problem, jax.tree.map(lambda leaf: np.asarray(leaf)[:8], stats)))
    places = [names.index(name) for name in (x, y) if name]
    tracks, real = flows[:, :, places], []
    if chain is not None and setting.optimiser == "sgd":
        chain = chain.isel(run=np.flatnonzero(chain.status.values != DIVERGED)[:4])
        real = list(np.asarray(_vectors(problem, statistics(_track(chain))))[:, :, places]) if chain.sizes["run"] else []
    points = _points(problem, found, places) if found else []
    every = np.concatenate([*tracks, *real, *(point[None] for point, _ in points)])
    low, high = every.min(0), every.max(0)
    room = 0.08 * np.maximum(high - low, 1e-3)
    axes = [np.linspace(a, b, GRID if y else 8 * GRID) for a, b in zip(low - room, high + room, strict=True)]
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(places))
    vectors = np.tile(flows[0, 0], (len(mesh), 1))
    vectors[:, places] = mesh
    batch, moved = _flow(problem, vectors, first)
    drift = np.array(moved)[:, places]
    drift[~_exist(problem, batch)] = np.nan
    return {
        "names": moving, "x": x, "y": y, "grid": listed(mesh), "drift": listed(drift),
        "ode": listed(tracks), "chain": listed(real),
        "points": [{"at": listed(point), "stability": stability} for point, stability in points],
        "text": repr(found) if found else "", "search": searched(found),
    }  # fmt: skip


@eqx.filter_jit
def _vectors(problem: Any, stats: Any) -> jax.Array:
    """The numbers of statistics, those of runs and times."""
    return jax.vmap(jax.vmap(problem.vector))(stats)


@eqx.filter_jit
def _flow(problem: Any, vectors: np.ndarray, like: Any) -> tuple[Any, jax.Array]:
    """Statistics by their numbers, and the numbers of the drift there."""
    batch = jax.vmap(lambda vector: problem.from_vector(vector, like))(vectors)
    return batch, problem.numerics.over_runs(lambda one: problem.vector(problem.drift(one)), batch)


def _points(problem: Any, found: FixedPoints, places: list[int]) -> list[tuple[np.ndarray, str]]:
    """Where fixed points and their images lie in a plane, each place of a component once, and their stability."""
    every = jax.tree.map(lambda *leaves: np.concatenate(leaves)[None], *(each.images for each in found))
    at = np.round(np.asarray(_vectors(problem, every))[0][:, places], 6) + 0.0
    ends = np.cumsum([len(jax.tree.leaves(each.images)[0]) for each in found])
    parts = zip(np.split(at, ends[:-1]), found, strict=True)
    return [(point, each.stability) for part, each in parts for point in np.unique(part, axis=0)]


def _track(dataset: xr.Dataset) -> xr.Dataset:
    """The dataset at evenly chosen ones of its times."""
    return dataset.isel(t=np.linspace(0, dataset.sizes["t"] - 1, TRACK).round().astype(int))


def _exist(problem: Any, batch: Any) -> np.ndarray:
    """Which statistics weights can have."""
    if not isinstance(problem, ProjectionProblem):
        return np.asarray(batch.r2) >= 0
    M, Q = np.asarray(batch.M), np.asarray(batch.Q)
    outside = Q - M @ np.linalg.inv(problem.directions.gram) @ np.swapaxes(M, 1, 2)
    return np.linalg.eigvalsh(outside)[:, 0] > -1e-9


def spectrum(setting: Setting, piece: xr.Dataset) -> dict[str, Any]:
    """The Hessian's eigenvalues with multiplicities where the first run stands."""
    if not isinstance(setting.problem, ProjectionProblem):
        raise BadInput("The Hessian is known for networks, not for spiked tensors. Choose another problem to see one.")
    stats = jax.tree.map(lambda leaf: np.asarray(leaf)[0, -1], statistics(piece))
    found = hessian_spectrum(setting.problem, setting.problem.coordinates.in_limit(stats), setting.d)
    return {"t": listed(piece.t.values[-1]), "run": int(piece.run.values[0]), "values": listed(found.eigenvalues),
            "counts": found.multiplicities.tolist(), "index": list(found.index)}  # fmt: skip
