"""The one verb: follow a problem's SGD at a level of description."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable

import jax
import numpy as np
import xarray as xr
from jaxtyping import PyTree
from tqdm.auto import tqdm

from sgdlimits.errors import BadInput, Interrupted, check_count, check_number
from sgdlimits.level.base import DIVERGED, FINISHED, Job, Level, Track
from sgdlimits.level.condition import Condition, as_condition, check_condition
from sgdlimits.problem.base import Problem
from sgdlimits.random import Stream
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.particles import Particles
from sgdlimits.trajectory.record import condition_text, to_json
from sgdlimits.trajectory.schema import INTERRUPTED, build, join


class DivergedWarning(UserWarning):
    """Some runs of a simulation diverged; they are in the dataset, with their last finite state."""


def simulate(
    problem: Problem,
    level: Level,
    start: Start | Overlaps | Particles,
    *,
    t_max: float,
    runs: int = 1,
    seed: int = 0,
    save: int | np.ndarray | None = None,
    until: Condition | Callable | None = None,
    progress: bool = True,
    batch: int | None = None,
) -> xr.Dataset:
    """Follow `runs` independent runs of a problem's SGD from a start to `t_max`.

    Parameters
    ----------
    problem : what is learnt, such as `presets.phase_retrieval(lr=0.05)`
    level : how it is described: `SGD(d)`, `Chain(d)`, `SDE(d)`, `ODE()`, `MeanField()`, or `Local(point)` near a fixed point
    start : `RandomInit(d)`, `OrthogonalInit(spread)`, `FixedInit(overlap)`, or explicit `Overlaps` of one run or of each, for
        `MeanField()` also `Particles`
    t_max : the end, in samples per dimension
    runs : number of runs
    seed : a whole number; run i with the same seed is the same run, whatever other runs are beside it
    save : number of equally spaced times to save, from 0 to `t_max`, or the times themselves; None saves 200, or only the start
        and the end where `until` is given
    until : when a run stops: `exits(0.5)`, or a JAX function of one run's statistics that is true, or a number of at least 0,
        where the run should stop
    progress : whether to show a progress bar when the work takes more than a second
    batch : at most so many runs are computed at once; changes memory and speed, not the result

    Returns
    -------
    xarray.Dataset with dimensions run, t and those of the statistics (docs/schema.md). A run that diverges or stops keeps its
    last finite state; its `status` and `t_end` say so.

    Raises
    ------
    BadInput : an argument cannot be used; the message says why and what to do
    Interrupted : on Ctrl-C, with the finished part in its attribute `dataset`

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.05)
    >>> exact = sl.simulate(problem, sl.Chain(d=100), sl.RandomInit(d=100), t_max=2, runs=3, save=5)
    >>> dict(exact.sizes)
    {'run': 3, 't': 5, 'student': 1, 'teacher': 1, 'student_other': 1}
    """
    if not isinstance(problem, Problem):
        raise BadInput(f"problem must be a Problem; got {type(problem).__name__}. Take one from sgdlimits.presets.")
    if not isinstance(level, Level):
        raise BadInput(f"level must be a level such as Chain(d=3000) or ODE(); got {level!r}. Give an instance of a level.")
    start, runs = as_start(start), check_count("runs", runs)
    level = level.for_start(start)
    check_number("t_max", t_max, above=0)
    seed = check_count("seed", seed, at_least=0)
    if seed >= 2**64:
        raise BadInput(f"seed must be below 2^64; got {seed}. Give a smaller seed.")
    most = level.batch(problem) if batch is None else min(level.batch(problem), check_count("batch", batch))
    size = -(-runs // -(-runs // most))
    starts = _starts(problem, level, start, seed, np.arange(size))
    first = jax.tree.map(lambda leaf: leaf[0], starts)
    level = level.prepared(problem, first)
    condition = as_condition(until)
    if condition is not None:
        check_condition(condition, level.view(problem), first)
    wanted = _times((200 if until is None else 2) if save is None else save, float(t_max))
    times, steps = level.snap(problem, np.unique(np.concatenate([[0.0], wanted])))
    drop_zero = int(level.snap(problem, wanted)[0][0] > 0)

    tracks: list[Track] = []
    total = runs + -runs % size
    with tqdm(total=total, desc=level.name, unit="run", delay=1.0, disable=not progress, leave=False, bar_format=_BAR) as bar:
        interrupted = False
        for done in range(0, runs, size):
            which = np.minimum(np.arange(done, done + size), runs - 1)
            job = Job(times, seed, which, condition, lambda share: bar.update(min(share * size, total - bar.n)))
            try:
                starts = starts if done == 0 else _starts(problem, level, start, seed, which)
                tracks.append(level.run(problem, starts, job).of_runs(runs - done))
            except KeyboardInterrupt:
                if not tracks:
                    raise
                interrupted = True
            interrupted = interrupted or tracks[-1].saved < times.size
            if interrupted:
                break

    attributes = {
        "start": to_json(start),
        "seed": str(seed),
        "t_max": float(t_max),
        "save": json.dumps(save if save is None or isinstance(save, int) else np.asarray(save).tolist()),
        "until": condition_text(condition),
    }
    track = _finished(tracks, times.size)
    kept = slice(drop_zero, track.saved)
    shown = track._replace(stats=jax.tree.map(lambda leaf: leaf[:, kept], track.stats), risk=track.risk[:, kept])
    dataset = build(problem, level, shown, times[kept], steps[kept], attributes)
    _warn_of_divergence(dataset)
    if interrupted:
        raise Interrupted(dataset)
    return dataset


def _starts(problem: Problem, level: Level, start: Start, seed: int, which: np.ndarray) -> PyTree:
    starts = level.starts(problem, start, Stream.of(seed, which))
    level.view(problem).check(starts)
    return starts


_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"


def _times(save: int | np.ndarray, t_max: float) -> np.ndarray:
    if np.ndim(save) == 0:
        count = check_count("save", save, at_least=2, remedy="Give a number of times, or an array of times.")
        return np.linspace(0.0, t_max, count)
    times = np.unique(np.asarray(save, float))
    if not times.size or not np.isfinite(times).all() or times[0] < 0 or times[-1] > t_max * (1 + 1e-12):
        raise BadInput(f"save must hold times from 0 to t_max = {t_max:g}; got {np.asarray(save).tolist()}. Give such times.")
    return np.unique(np.concatenate([times, [t_max]])) if times[-1] <= 0 else times


def _finished(tracks: list[Track], times: int) -> Track:
    """The batches that had finished; or, where the first was interrupted, all its runs up to where they came."""
    whole = [track for track in tracks if track.saved == times]
    if whole:
        return join(whole)
    track = tracks[0]
    return track._replace(status=np.where(track.status == FINISHED, INTERRUPTED, track.status))


def _warn_of_divergence(dataset: xr.Dataset) -> None:
    diverged = dataset.status.values == DIVERGED
    if diverged.any():
        warnings.warn(
            f"{diverged.sum()} of {diverged.size} runs diverged, the first at t = {dataset.t_end.values[diverged].min():.3g}: "
            "the learning rate is above the stable limit there. Use a smaller lr. "
            "The diverged runs keep their last finite state; select the others with dataset.status != 'diverged'.",
            DivergedWarning,
            stacklevel=3,
        )
