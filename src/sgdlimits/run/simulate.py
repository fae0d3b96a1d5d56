"""`simulate` and `stream`: runs of a problem's SGD at a level of description, as one dataset or piece by piece."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.domain import Positive, SavedTimes, Seed, Size, checked
from sgdlimits.errors import BadInput, Interrupted, RepeatedWarning, check_count
from sgdlimits.kernel.choose import check_kernel
from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import RUN_DIVERGED, Level, Request
from sgdlimits.level.condition import Condition, as_condition, check_condition
from sgdlimits.level.observe import as_observables
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import check_schedules, find_schedules
from sgdlimits.run.record import format_condition, record_name, to_json
from sgdlimits.run.resume import read_checkpoint
from sgdlimits.run.runner import Runner, Simulation
from sgdlimits.run.schema import final_statistics, join_pieces, repeats_random_numbers, reserved_names
from sgdlimits.size import check_memory
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.overlaps import Overlaps, select_students
from sgdlimits.statistics.particles import Particles
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.trees import select_run

MIN_PIECE_SECONDS = 0.06
"""Minimum time in seconds between two pieces that `stream` yields."""


class DivergedWarning(UserWarning):
    """Warning that some runs of a simulation diverged; the dataset holds their last finite state."""


@checked
def simulate(
    problem: Problem,
    level: Level,
    start: Start | Overlaps | Particles | Spike | xr.Dataset,
    *,
    t_max: Positive,
    runs: Size = 1,
    seed: Seed = 0,
    save: SavedTimes | None = None,
    until: Condition | Callable | None = None,
    observe: Mapping[str, Callable] | None = None,
    resume: xr.Dataset | None = None,
    progress: bool = True,
    batch: Size | None = None,
    kernel: str | None = None,
) -> xr.Dataset:
    """Simulate independent runs of one-pass SGD on a problem, at a level of description, from a start to `t_max`.

    Parameters
    ----------
    problem : learning problem, such as `presets.phase_retrieval(lr=0.05)`
    level : level of description: `SGD(d)`, `Chain(d)`, `SDE(d)`, `ODE()`, `MeanField()`, or `Local(point)` at a fixed point
    start : `RandomInit(d)`, `OrthogonalInit(spread)`, `FixedInit(overlap)`; or explicit `Overlaps` of one run or of each, which
        `weights(W, E)` computes from weights, for `MeanField()` also `Particles`; or a dataset, which is continued
    t_max : final time, in samples per dimension
    runs : number of runs
    seed : an integer; run i with the same seed is the same run, whatever the number of runs
    save : number of equally spaced times to save, from 0 to `t_max`, or an array of times; None saves 200, or only the start
        and the end if `until` is given
    until : stop condition: `exits(0.5)`, or a JAX function of one run's statistics; the run stops when it returns true, or a
        number of at least 0
    observe : functions of one run's statistics by name, such as {"largest": lambda stats: abs(stats.M).max()}; the dataset has
        their values beside the risk
    resume : dataset of the same simulation, interrupted, or with an earlier `t_max` or fewer `runs`: its runs continue from
        their last state, bit by bit as if they had not stopped
    progress : whether to show a progress bar when the work takes more than a second
    batch : maximum number of runs computed at once; changes memory and speed, not the result
    kernel : implementation of the steps, "xla", "lanes" or "cuda" (docs/kernels.md); None takes the fastest one available that
        supports the problem and the level. Results agree up to rounding

    Returns
    -------
    xarray.Dataset with dimensions run, t and those of the statistics (docs/schema.md). A run that diverges or stops keeps its
    last finite state; `status` and `t_end` say how and when it ended.

    Raises
    ------
    BadInput : an argument cannot be used; the message gives the reason and the remedy
    Interrupted : on Ctrl-C; its attribute `dataset` has the runs up to the time they had reached

    See Also
    --------
    stream : the same, piece by piece

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=0.05)
    >>> exact = sl.simulate(problem, sl.Chain(d=100), sl.RandomInit(d=100), t_max=2, runs=3, save=5)
    >>> dict(exact.sizes)
    {'run': 3, 't': 5, 'student': 1, 'teacher': 1, 'student_other': 1}
    """
    simulation = _prepare_simulation(problem, level, start, t_max, runs, seed, save, until, observe, resume, batch, kernel)
    dataset = _join_arriving(simulation, simulation.datasets(progress, np.inf))
    _warn_of_divergence(dataset)
    if simulation.interrupted:
        raise Interrupted(dataset)
    return dataset


@checked
def stream(
    problem: Problem,
    level: Level,
    start: Start | Overlaps | Particles | Spike | xr.Dataset,
    *,
    t_max: Positive,
    runs: Size = 1,
    seed: Seed = 0,
    save: SavedTimes | None = None,
    until: Condition | Callable | None = None,
    observe: Mapping[str, Callable] | None = None,
    resume: xr.Dataset | None = None,
    progress: bool = False,
    batch: Size | None = None,
    kernel: str | None = None,
) -> Iterator[xr.Dataset]:
    """Simulate as `simulate` does, and yield the dataset in pieces: some saved times of a batch of runs at a time.

    The arguments are those of `simulate`. Each piece is a dataset with its own runs and times; runs still in progress have the
    status "interrupted". `join` concatenates pieces, and `simulate(..., resume=join(pieces))` continues after the last piece.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.05), sl.RandomInit(d=100)
    >>> pieces = list(sl.stream(problem, sl.Chain(d=100), start, t_max=2, runs=3, save=5))
    >>> sl.join(pieces).identical(sl.simulate(problem, sl.Chain(d=100), start, t_max=2, runs=3, save=5))
    True
    """
    simulation = _prepare_simulation(problem, level, start, t_max, runs, seed, save, until, observe, resume, batch, kernel)
    yield from simulation.datasets(progress, MIN_PIECE_SECONDS)
    if simulation.interrupted:
        raise KeyboardInterrupt


def simulate_runs(
    problem: Problem, level: Level, start: Start | Overlaps | Particles | Spike | xr.Dataset, indices: range, **options: Any
) -> xr.Dataset:
    """Simulate only the runs with the given indices; the results are, bit for bit, those of `simulate` for all runs.

    At levels with a `shared_batch`, whole batches that begin at multiples of that number are computed, and the runs outside
    `indices` are dropped. `options` are further arguments of `simulate`.
    """
    simulation = _prepare_runs(problem, level, start, indices, **options)
    dataset = _join_arriving(simulation, simulation.datasets(False, np.inf))
    if simulation.interrupted:
        raise KeyboardInterrupt
    return _select_runs(dataset, indices)


def simulate_batched(arguments: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, xr.Dataset]]:
    """Simulate several small simulations in shared batches, and yield (position, dataset) as each of them finishes.

    Simulations that differ only in the values of parameters have the same compiled code: one call makes the steps of all.

    Parameters
    ----------
    arguments : keyword arguments of `simulate_runs`, one mapping for each simulation
    """
    simulations = [_prepare_runs(**each) for each in arguments]
    # All runners are made first: their steps can then share calls from the beginning.
    position = {runner: at for at, simulation in enumerate(simulations) for runner in simulation.make_runners()}
    done: list[list[xr.Dataset]] = [[] for _ in simulations]
    for runner in Runner.run_many(position):
        at = position[runner]
        done[at].append(runner.next_dataset())
        if sum(part.sizes["run"] for part in done[at]) == simulations[at].request.runs.size:
            parts = sorted(done[at], key=lambda part: int(part.run.values[0]))
            yield at, _select_runs(_join_arriving(simulations[at], iter(parts)), arguments[at]["indices"])


def _prepare_runs(problem, level, start, indices: range, *, t_max: float, seed: int, **options: Any) -> Simulation:
    """Check the arguments of `simulate_runs` and prepare the simulation of whole batches that contain the given runs."""
    simulation = _prepare_simulation(problem, level, start, t_max, indices.stop, seed, **options)
    first, last = indices.start, indices.stop
    if shared := level.shared_batch:
        # The rounding of a run depends on the others of its batch, so the limits of batches must not depend on `indices`.
        size = 2 ** int(np.log2(min(shared, simulation.max_batch)))
        simulation.max_batch = size
        first -= first % size
        last = -(-last // size) * size
    simulation.request = simulation.request._replace(runs=np.arange(first, last))
    return simulation


def _join_arriving(simulation: Simulation, datasets: Iterator[xr.Dataset]) -> xr.Dataset:
    """Join the datasets of a simulation as they arrive; raise `KeyboardInterrupt` if Ctrl-C came before the first one."""
    begin = next(datasets, None)
    if begin is None:  # interrupted before the first step
        raise KeyboardInterrupt
    return join_pieces(chain([begin], datasets), simulation.request.runs.size)


def _select_runs(dataset: xr.Dataset, indices: range) -> xr.Dataset:
    """Select the runs with the given indices from a dataset of consecutive runs."""
    first = dataset.run.values[0]
    return dataset.isel(run=slice(indices.start - first, indices.stop - first))


def _prepare_simulation(
    problem, level, start, t_max, runs, seed, save=None, until=None, observe=None, resume=None, batch=None, kernel=None
) -> Simulation:
    """Check the arguments of `simulate` and prepare the simulation; only the initial statistics of run 0 are drawn for it."""
    ended = start if isinstance(start, xr.Dataset) else None
    start = as_start(start if ended is None else final_statistics(ended))
    if kernel is not None:
        check_kernel(kernel)
    _check_start(level, start, ended, seed, runs)
    check_schedules(problem, float(t_max))
    condition = as_condition(until)
    view = level.adapt_problem(problem)
    times = (200 if until is None else 2) if save is None else save
    # Memory is checked before anything is allocated: first the dataset, then, once the engine is known, a batch of steps.
    dimensions = [("runs", runs), ("saved times", _count_saved_times(times)), ("numbers", view.numerics.size + 1)]
    check_memory(dimensions, "Take fewer runs, fewer saved times or a smaller width.")
    # Run 0 alone fixes shapes and step sizes, so that these do not depend on the number of runs.
    first = select_run(level.draw_initial_statistics(problem, start, Stream.from_seed(seed, [0])))
    engine = level.make_engine(problem, start, first)
    size = engine.max_batch if batch is None else min(engine.max_batch, batch)
    at_once = [("runs at once", min(runs, size)), ("numbers a step", engine.floats_per_run)]
    check_memory(at_once, "Take a smaller batch, width or d.")
    wanted = saved_times(times, float(t_max))
    if condition is not None:
        check_condition(condition, view, first)
    schedules = find_schedules(problem)
    observed = as_observables(observe, select_students(first), reserved_names(view, first) | set(schedules))
    clock = engine.round_to_steps(np.unique(np.concatenate([[0.0], wanted])))  # runs begin at 0, whether that is saved or not
    save_start = bool(engine.round_to_steps(wanted).t[0] == 0)
    attributes = {
        "problem": to_json(problem),
        "start": to_json(start),
        "seed": str(seed),
        "t_max": float(t_max),
        "save": json.dumps(save if save is None or isinstance(save, int) else np.asarray(save).tolist()),
        "until": format_condition(condition),
        "observe": json.dumps({name: record_name(fn) for name, fn in observed.functions}),
    }
    checkpoint = read_checkpoint(resume, engine, attributes, runs)
    request = Request(seed, np.arange(runs), clock, condition, observed, kernel, save_start)
    return Simulation(engine, start, checkpoint, request, size, attributes, schedules)


def _check_start(level: Level, start: Start, ended: xr.Dataset | None, seed: int, runs: int) -> None:
    """Raise `BadInput` if the level and the start have different dimensions d.

    A warning reports runs that would repeat the random numbers of the dataset `ended` from which they start.
    """
    mine, theirs = getattr(level, "d", None), getattr(start, "d", None)
    if mine is not None and theirs is not None and mine != theirs:
        raise BadInput(f"the level has d = {mine} and the start d = {theirs}. Give both the same d.")
    if ended is not None and mine is not None and repeats_random_numbers(ended, seed, runs):
        warnings.warn(
            f"the runs start where runs with the same seed, {seed}, ended, and repeat their random numbers. "
            "Give another seed, or go on with resume=dataset.",
            RepeatedWarning,
            stacklevel=5,
        )


def _count_saved_times(save: int | np.ndarray) -> int:
    """Return the number of saved times for the argument `save`, a number of times or an array of times."""
    if np.ndim(save) == 0:
        return check_count("save", save, at_least=2, remedy="Give a number of times, or an array of times.")
    return np.size(save)


def saved_times(save: int | np.ndarray, t_max: float) -> np.ndarray:
    """Return the saved times for the argument `save`: a number of equally spaced times, or the given times, sorted."""
    if np.ndim(save) == 0:
        return np.linspace(0.0, t_max, _count_saved_times(save))
    times = np.unique(np.asarray(save, float))
    # Times are often computed as multiples of a step, so that the last may exceed t_max by rounding.
    if not times.size or not np.isfinite(times).all() or times[0] < 0 or times[-1] > t_max * (1 + 1e-12):
        raise BadInput(f"save must hold times from 0 to t_max = {t_max:g}; got {np.asarray(save).tolist()}. Give such times.")
    # A dataset needs an end: if only t = 0 was asked for, t_max is saved as well.
    return np.unique(np.concatenate([times, [t_max]])) if times[-1] <= 0 else times


def _warn_of_divergence(dataset: xr.Dataset) -> None:
    """Warn if runs in a dataset diverged, with their number, the first time of divergence and the likely cause."""
    diverged = dataset.status.values == RUN_DIVERGED
    if diverged.any():
        first = dataset.t_end.values[diverged].min()
        above = "the learning rate is above the stable limit there. Use a smaller lr. "
        cause = "the learning rate is far too large, or the loss or the algorithm gives NaN"
        at_once = f"{cause}. Use a smaller lr, or look for NaN. "
        why = above if first > 0 else at_once
        warnings.warn(
            f"{diverged.sum()} of {diverged.size} runs diverged, the first at t = {first:.3g}: {why}"
            "The diverged runs keep their last finite state; select the others with dataset.status != 'diverged'.",
            DivergedWarning,
            stacklevel=4,
        )
