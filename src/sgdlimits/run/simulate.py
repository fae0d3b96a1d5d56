"""The one verb: follow a problem's SGD at a level of description, all at once or piece by piece."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, Interrupted, RepeatedWarning, check_count
from sgdlimits.kernel.choose import check_kernel
from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import DIVERGED, FINISHED, Clock, Engine, Level, Request, RunStatus, Snapshot, Stepper, batches
from sgdlimits.level.condition import Condition, as_condition, check_condition
from sgdlimits.level.observe import as_observe
from sgdlimits.level.stepper import interleaved
from sgdlimits.problem.base import Problem
from sgdlimits.problem.over_time import check_schedules, scheduled
from sgdlimits.progress import bar
from sgdlimits.run.record import condition_text, noted, to_json
from sgdlimits.run.resume import Before, Old, earlier
from sgdlimits.run.schema import INTERRUPTED, State, build, describe, end_of, gathered, repeats, taken_names
from sgdlimits.size import check_room
from sgdlimits.start import Start, as_start
from sgdlimits.statistics.overlaps import Overlaps, shown
from sgdlimits.statistics.particles import Particles
from sgdlimits.statistics.spike import Spike
from sgdlimits.statistics.trees import one_of

PIECE_SECONDS = 0.06
"""Pieces of a stream are at least so long apart."""
TOGETHER = {"ode": 16, "mean-field": 16}
"""Levels whose runs depend in their last bits on those beside them, and how many `simulate_runs` computes together."""
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{long}"


class DivergedWarning(UserWarning):
    """Some runs of a simulation diverged; they are in the dataset, with their last finite state."""


@checked
def simulate(
    problem: Problem,
    level: Level,
    start: Start | Overlaps | Particles | Spike | xr.Dataset,
    *,
    t_max: float,
    runs: int = 1,
    seed: int = 0,
    save: int | Sequence[float] | np.ndarray | None = None,
    until: Condition | Callable | None = None,
    observe: Mapping[str, Callable] | None = None,
    resume: xr.Dataset | None = None,
    progress: bool = True,
    batch: int | None = None,
    kernel: str | None = None,
) -> xr.Dataset:
    """Follow `runs` independent runs of a problem's SGD from a start to `t_max`.

    Parameters
    ----------
    problem : what is learnt, such as `presets.phase_retrieval(lr=0.05)`
    level : how it is described: `SGD(d)`, `Chain(d)`, `SDE(d)`, `ODE()`, `MeanField()`, or `Local(point)` near a fixed point
    start : `RandomInit(d)`, `OrthogonalInit(spread)`, `FixedInit(overlap)`, or explicit `Overlaps` of one run or of each, which
        `weights(W, E)` makes of weights, for `MeanField()` also `Particles`; or a dataset, for where its runs ended
    t_max : the end, in samples per dimension
    runs : number of runs
    seed : a whole number; run i with the same seed is the same run, whatever other runs are beside it
    save : number of equally spaced times to save, from 0 to `t_max`, or the times themselves; None saves 200, or only the start
        and the end where `until` is given
    until : when a run stops: `exits(0.5)`, or a JAX function of one run's statistics that is true, or a number of at least 0,
        where the run should stop
    observe : functions of one run's statistics by name, such as {"largest": lambda stats: abs(stats.M).max()}; the dataset has
        their values beside the risk
    resume : a dataset of the same simulation that was interrupted, or is to go on to a later `t_max` or with more `runs`: its
        runs go on from their last state, bit by bit as if they had not stopped
    progress : whether to show a progress bar when the work takes more than a second
    batch : at most so many runs are computed at once; changes memory and speed, not the result
    kernel : how steps are made, "xla", "lanes" or "cuda" (docs/kernels.md); None takes the fastest one that is there and knows
        all that a step does. Results agree up to rounding

    Returns
    -------
    xarray.Dataset with dimensions run, t and those of the statistics (docs/schema.md). A run that diverges or stops keeps its
    last finite state; its `status` and `t_end` say so.

    Raises
    ------
    BadInput : an argument cannot be used; the message says why and what to do
    Interrupted : on Ctrl-C, with all that was computed in its attribute `dataset`, up to where the runs were

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
    plan = _plan(problem, level, start, t_max, runs, seed, save, until, observe, resume, batch, kernel)
    dataset = _whole(plan, plan.pieces(progress, np.inf))
    _warn_of_divergence(dataset)
    if plan.interrupted:
        raise Interrupted(dataset)
    return dataset


@checked
def stream(
    problem: Problem,
    level: Level,
    start: Start | Overlaps | Particles | Spike | xr.Dataset,
    *,
    t_max: float,
    runs: int = 1,
    seed: int = 0,
    save: int | Sequence[float] | np.ndarray | None = None,
    until: Condition | Callable | None = None,
    observe: Mapping[str, Callable] | None = None,
    resume: xr.Dataset | None = None,
    progress: bool = False,
    batch: int | None = None,
    kernel: str | None = None,
) -> Iterator[xr.Dataset]:
    """The dataset of `simulate`, piece by piece while it is computed: saved times of a batch of runs, then of the next batch.

    Each piece is a dataset with its own runs and times; runs that are still under way have the status "interrupted". `join`
    puts pieces together, and `simulate(..., resume=join(pieces))` goes on from where one stopped to listen.

    Examples
    --------
    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.05), sl.RandomInit(d=100)
    >>> pieces = list(sl.stream(problem, sl.Chain(d=100), start, t_max=2, runs=3, save=5))
    >>> sl.join(pieces).identical(sl.simulate(problem, sl.Chain(d=100), start, t_max=2, runs=3, save=5))
    True
    """
    plan = _plan(problem, level, start, t_max, runs, seed, save, until, observe, resume, batch, kernel)
    yield from plan.pieces(progress, PIECE_SECONDS)
    if plan.interrupted:
        raise KeyboardInterrupt


def simulate_runs(
    problem: Problem, level: Level, start: Start | Overlaps | Particles | Spike | xr.Dataset, numbers: range, **how: Any
) -> xr.Dataset:
    """The dataset of `simulate` with some runs by number, each bit by bit the same whatever other runs are asked for.

    Where runs of a level depend, in their last bits, on those they are computed with, they come in groups that begin at
    multiples of one size, and those that nobody asked for are left out.
    """
    plan = _plan_of_runs(problem, level, start, numbers, **how)
    dataset = _whole(plan, plan.pieces(False, np.inf))
    if plan.interrupted:
        raise KeyboardInterrupt
    return _of_runs(dataset, numbers)


def simulate_together(asked: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, xr.Dataset]]:
    """`simulate_runs` of each of several arguments, few runs each, in the order in which they are done, with which it is.

    Steps are made together where they have the same code: simulations that differ in numbers alone are one batch.
    """
    plans = [_plan_of_runs(**each) for each in asked]
    under_way: dict[Stepper, tuple[int, list[Snapshot]]] = {
        plan._stepper(which, size, plan.request.clock, None): (at, [])
        for at, plan in enumerate(plans)
        for which, size in plan._batches()
    }
    done: list[list[xr.Dataset]] = [[] for _ in plans]
    for stepper, snapshot in interleaved(list(under_way)):
        at, snapshots = under_way[stepper]
        plan, clock = plans[at], stepper.request.clock
        snapshots += [snapshot] if snapshot.stats is not None else []
        if snapshot.stats is not None and len(snapshots) == clock.t.size:
            shown = list(enumerate(snapshots))[0 if stepper.request.begin_shown else 1 :]
            done[at].append(plan._piece(stepper, clock, shown, True, None))
            if sum(piece.sizes["run"] for piece in done[at]) == plan.request.runs.size:
                yield at, _of_runs(_whole(plan, iter(done[at])), asked[at]["numbers"])


def _plan_of_runs(problem, level, start, numbers: range, *, t_max: float, seed: int, **how: Any) -> Plan:
    """A plan of the runs that are asked for, and of those that are computed with them."""
    plan = _plan(problem, level, start, t_max, numbers.stop, seed, **how)
    first, last = numbers.start, numbers.stop
    if together := TOGETHER.get(level.name):
        plan.size = 2 ** int(np.log2(min(together, plan.size)))
        first, last = first - first % plan.size, -(-last // plan.size) * plan.size
    plan.request = plan.request._replace(runs=np.arange(first, last))
    return plan


def _whole(plan: Plan, pieces: Iterator[xr.Dataset]) -> xr.Dataset:
    """The dataset of all runs of a plan."""
    begin = next(pieces, None)
    if begin is None:  # interrupted before the first step
        raise KeyboardInterrupt
    return gathered(chain([begin], pieces), plan.request.runs.size)


def _of_runs(dataset: xr.Dataset, numbers: range) -> xr.Dataset:
    """The runs that are asked for, of a dataset that may have some before and after them."""
    first = dataset.run.values[0]
    return dataset.isel(run=slice(numbers.start - first, numbers.stop - first))


class Plan:
    """A simulation that was checked: an engine, its clock, and which runs set out from where. `interrupted` by Ctrl-C."""

    def __init__(
        self, engine: Engine, start: Start, before: Before, request: Request, size: int, attributes: dict, schedules: dict
    ) -> None:
        self.engine, self.start, self.before, self.request, self.size = engine, start, before, request, size
        self.schedules = schedules
        self.attributes = describe(engine.problem, engine.level, attributes)
        self.interrupted = False

    def pieces(self, progress: bool, seconds: float) -> Iterator[xr.Dataset]:
        """Datasets of batches of runs, each cut into pieces that many seconds apart."""
        todo = self.request.runs.size
        with bar(total=todo, disable=not progress, desc=self.engine.level.name, unit="run", bar_format=_BAR) as shown:
            for which, size in self._batches():
                old = self.before.of(which, self.request.clock)
                clock = self.request.clock if old is None else old.clock
                if old is not None:
                    yield old.dataset
                before = shown.n
                report = lambda share, before=before, runs=which.size: shown.update(min(before + share * runs, todo) - shown.n)
                yield from self._of(which, size, clock, old, seconds, report) if clock.t.size > 1 else ()
                if self.interrupted:
                    return

    def _batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """Runs by number and the size of their batch: those that go on, in groups that stand at one time, then the others."""
        first = 0
        for runs in (*self.before.groups(), self.request.runs.size - self.before.runs):
            for count, size in batches(runs, self.engine.vector, self.size):
                yield self.request.runs[first : first + count], size
                first += count

    def _stepper(self, which: np.ndarray, size: int, clock: Clock, old: Old | None) -> Stepper:
        padded = which[np.minimum(np.arange(size), which.size - 1)]
        starts = self.engine.starts(self.start, Stream.of(self.request.seed, padded))
        request = self.request._replace(runs=which, clock=clock, begin_shown=old is None and self.before.from_zero)
        return self.engine.stepper(starts, request, None if old is None else old.state)

    def _of(self, which, size, clock: Clock, old: Old | None, seconds: float, report: Callable) -> Iterator[xr.Dataset]:
        """The pieces of a batch of runs. After Ctrl-C, wherever in here it comes, what has been reached is the last piece."""
        saved: list[tuple[int, Snapshot]] = []
        start: list[Snapshot] = []
        index, begin = 0, time.perf_counter()
        try:
            stepper = self._stepper(which, size, clock, old)
            for snapshot in stepper:
                if snapshot.stats is not None:
                    start = start or [snapshot]
                    if index > 0 or stepper.request.begin_shown:
                        saved.append((index, snapshot))
                    whole = index == clock.t.size - 1
                    index += 1
                    if saved and (whole or time.perf_counter() - begin > seconds):
                        piece, saved, begin = self._piece(stepper, clock, saved, whole, old), [], time.perf_counter()
                        yield piece
                report(snapshot.share)
        except KeyboardInterrupt:
            self.interrupted = True
            if start:
                if index == 1 and old is None and not stepper.request.begin_shown:
                    saved = [(0, stepper.in_full(start[0]))]
                yield from self._last_piece(stepper, clock, saved, index, old)

    def _last_piece(self, stepper, clock: Clock, saved: list[tuple[int, Snapshot]], index: int, old: Old | None):
        """What was saved since the last piece, and as one more saved time where the runs are."""
        far, since = float(stepper.ends().t.max()), max(index - 1, 0)
        if far > clock.t[since]:
            step = np.rint(np.interp(far, *clock))
            here = Clock(*(np.append(each[: since + 1], now) for each, now in zip(clock, (far, step), strict=True)))
            yield self._piece(stepper, here, [*saved, (since + 1, stepper.now())], False, old, clock.t[since])
        elif saved:
            yield self._piece(stepper, clock, saved, False, old)

    def _piece(self, stepper: Stepper, clock: Clock, saved, whole: bool, old: Old | None, since=None) -> xr.Dataset:
        """The dataset of saved times. Where it is resumed, runs go on from the last time that was to be saved, `since`."""
        which, (status, t_end), numbers = [index for index, _ in saved], stepper.ends(), stepper.state()
        if not whole:
            status = np.where(status == FINISHED, INTERRUPTED, status)
        if old is not None:
            status, t_end = np.where(old.ended, old.dataset.status, status), np.where(old.ended, old.dataset.t_end, t_end)
        attributes = self.attributes if stepper.kernel is None else {**self.attributes, "kernel": stepper.kernel}
        here, snapshots = Clock(clock.t[which], clock.step[which]), [snapshot for _, snapshot in saved]
        state = State(numbers, np.full(len(numbers), here.t[-1] if since is None else since))
        ends = RunStatus(status, t_end)
        return build(self.engine.problem, attributes, stepper.request.runs, here, snapshots, ends, state, self.schedules)


def _plan(
    problem, level, start, t_max, runs, seed, save=None, until=None, observe=None, resume=None, batch=None, kernel=None
) -> Plan:
    """Everything checked and chosen, nothing computed but the start of the first run."""
    ended = start if isinstance(start, xr.Dataset) else None
    start = as_start(start if ended is None else end_of(ended))
    if kernel is not None:
        check_kernel(kernel)
    _check_start(level, start, ended, seed, runs)
    check_schedules(problem, float(t_max))
    condition, view = as_condition(until), level.view(problem)
    asked = (200 if until is None else 2) if save is None else save
    saved = [("runs", runs), ("saved times", _count(asked)), ("numbers", view.numerics.size + 1)]
    check_room(saved, "Take fewer runs, or save fewer times, or a smaller width.")
    first = one_of(level.first(problem, start, Stream.of(seed, [0])))
    engine = level.bind(problem, start, first)
    size = engine.most if batch is None else min(engine.most, batch)
    check_room([("runs at once", min(runs, size)), ("numbers a step", engine.numbers)], "Take a smaller batch, width or d.")
    wanted = saved_times(asked, float(t_max))
    if condition is not None:
        check_condition(condition, view, first)
    schedules = scheduled(problem)
    watched = as_observe(observe, shown(first), taken_names(view, first) | set(schedules))
    clock = engine.snap(np.unique(np.concatenate([[0.0], wanted])))
    attributes = {
        "problem": to_json(problem),
        "start": to_json(start),
        "seed": str(seed),
        "t_max": float(t_max),
        "save": json.dumps(save if save is None or isinstance(save, int) else np.asarray(save).tolist()),
        "until": condition_text(condition),
        "observe": json.dumps({name: noted(fn) for name, fn in watched.functions}),
    }
    before = earlier(resume, engine, attributes, runs, engine.snap(wanted).t[0] == 0)
    request = Request(seed, np.arange(runs), clock, condition, watched, kernel)
    return Plan(engine, start, before, request, size, attributes, schedules)


def _check_start(level: Level, start: Start, ended: xr.Dataset | None, seed: int, runs: int) -> None:
    """Raise `BadInput` if level and start differ in d; warn if the start is the end of runs, in `ended`, with the same seed."""
    mine, theirs = getattr(level, "d", None), getattr(start, "d", None)
    if mine is not None and theirs is not None and mine != theirs:
        raise BadInput(f"the level has d = {mine} and the start d = {theirs}. Give both the same d.")
    if ended is not None and mine is not None and repeats(ended, seed, runs):
        warnings.warn(
            f"the start is where runs with seed {seed} ended, so that these repeat the random numbers that led there. "
            "Give another seed, or go on with resume=dataset.",
            RepeatedWarning,
            stacklevel=5,
        )


def _count(save: int | np.ndarray) -> int:
    """How many times are to be saved."""
    if np.ndim(save) == 0:
        return check_count("save", save, at_least=2, remedy="Give a number of times, or an array of times.")
    return np.size(save)


def saved_times(save: int | np.ndarray, t_max: float) -> np.ndarray:
    """The times to save: so many, evenly, or those that are given."""
    if np.ndim(save) == 0:
        return np.linspace(0.0, t_max, _count(save))
    times = np.unique(np.asarray(save, float))
    if not times.size or not np.isfinite(times).all() or times[0] < 0 or times[-1] > t_max * (1 + 1e-12):
        raise BadInput(f"save must hold times from 0 to t_max = {t_max:g}; got {np.asarray(save).tolist()}. Give such times.")
    return np.unique(np.concatenate([times, [t_max]])) if times[-1] <= 0 else times


def _warn_of_divergence(dataset: xr.Dataset) -> None:
    diverged = dataset.status.values == DIVERGED
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
