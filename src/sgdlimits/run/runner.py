"""The run loop of every simulation, at levels that make steps and at levels that are solved.

- **Saved times.** Each call of the stepper returns the snapshots of the saved times it reaches. They are kept until a dataset
  is made of them: at the end, or every so many seconds for a stream.
- **Ended runs** stay in all later snapshots with their last state. Before each call the stepper may drop them from its batch.
- **Ctrl-C** may come anywhere. The stepper then stands where its last complete call left it. The last dataset has the times
  saved so far and, as one more, the present state of the runs; `Simulation.interrupted` is set, and the loop ends.
- **Resumed runs** begin with the dataset of their checkpoint, and continue from the rows that their stepper left in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import xarray as xr

from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import FINISHED, Clock, Engine, Request, RunStatus, Snapshot, Stepper, split_runs
from sgdlimits.progress import bar
from sgdlimits.run.resume import BatchCheckpoint, Checkpoint
from sgdlimits.run.schema import INTERRUPTED, ResumeState, build, describe
from sgdlimits.schedule import Schedule
from sgdlimits.start import Start

_BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{long}"


class Runner:
    """One batch of runs: advances its stepper, keeps the snapshots of saved times, and makes datasets of them.

    `index` is that of the last saved time reached, and `unsent` holds the saved times since the last dataset.
    """

    def __init__(
        self,
        engine: Engine,
        stepper: Stepper,
        attributes: dict,
        schedules: Mapping[str, Schedule],
        checkpoint: BatchCheckpoint | None,
    ) -> None:
        self.engine, self.stepper, self.checkpoint, self.clock = engine, stepper, checkpoint, stepper.request.clock
        self.schedules = schedules
        self.attributes = attributes if stepper.kernel is None else {**attributes, "kernel": stepper.kernel}
        self.index = -1 if stepper.request.save_start else 0
        self.unsent: list[tuple[int, Snapshot]] = []

    @property
    def finished(self) -> bool:
        """Whether the last saved time is reached."""
        return self.index == self.clock.t.size - 1

    def run(self, seconds: float, report: Callable[[float], None]) -> Iterator[xr.Dataset]:
        """Advance to the last saved time, and yield what was saved whenever that many seconds have passed, and at the end."""
        last, snapshots = time.perf_counter(), self._start()
        while True:
            for snapshot in snapshots:
                self._keep(snapshot)
                if self.finished or time.perf_counter() - last > seconds:
                    yield self.dataset()
                    last = time.perf_counter()
            report(self.stepper.completed_fraction)
            if self.finished:
                return
            self.stepper.drop_ended()
            snapshots = self.stepper.advance()

    @staticmethod
    def many(runners: Iterable[Runner]) -> Iterator[Runner]:
        """Advance several batches, in one call where their next steps share compiled code, and yield each as it finishes."""
        left = list(runners)
        for runner in left:
            for snapshot in runner._start():
                runner._keep(snapshot)
        while left:
            alike = [runner for runner in left if runner.stepper.batch_key == left[0].stepper.batch_key]
            for runner in alike:
                runner.stepper.drop_ended()
            found = type(alike[0].stepper).advance_many([runner.stepper for runner in alike])
            for runner, snapshots in zip(alike, found, strict=True):
                for snapshot in snapshots:
                    runner._keep(snapshot)
            yield from (runner for runner in alike if runner.finished)
            left = [runner for runner in left if not runner.finished]

    def _start(self) -> list[Snapshot]:
        """Return the snapshot of the first time where that is to be saved."""
        return [self.stepper.initial] if self.stepper.request.save_start else []

    def _keep(self, snapshot: Snapshot) -> None:
        """Keep the snapshot of the next saved time."""
        self.unsent.append((self.index + 1, snapshot))
        self.index += 1

    def dataset(self) -> xr.Dataset:
        """Return the saved times since the last call as a dataset."""
        dataset = self._build(self.clock, self.unsent, self.clock.t[self.index])
        self.unsent = []  # not before: Ctrl-C may come while the dataset is built
        return dataset

    def interrupted_dataset(self) -> xr.Dataset | None:
        """Return the saved times since the last dataset and, as one more, the present; None if there is neither."""
        reached = float(self.stepper.run_status().t.max())
        here = self.clock.t[self.index]
        if self.index < 0 or (not self.unsent and reached <= here):
            return None
        if reached <= here:
            return self.dataset()
        if self.index == 0 and self.checkpoint is None and not self.unsent:
            self.unsent = [(0, self.stepper.initial)]  # a dataset begins at t = 0, whatever times are saved
        times = self.clock.t[: self.index + 1], self.clock.step[: self.index + 1]
        more = reached, np.rint(np.interp(reached, *self.clock))
        clock = Clock(*(np.append(saved, now) for saved, now in zip(times, more, strict=True)))
        return self._build(clock, [*self.unsent, (self.index + 1, self.stepper.now())], here)

    def _build(self, clock: Clock, saved: Sequence[tuple[int, Snapshot]], resume_t: float) -> xr.Dataset:
        """Return the dataset of saved times. Resumed runs go on from the saved time `resume_t`, which drops later ones."""
        (status, t_end), rows, old = self.stepper.run_status(), self.stepper.state(), self.checkpoint
        if not self.finished:
            status = np.where(status == FINISHED, INTERRUPTED, status)
        if old is not None:
            status, t_end = np.where(old.ended, old.dataset.status, status), np.where(old.ended, old.dataset.t_end, t_end)
        which = [index for index, _ in saved]
        here, snapshots = Clock(clock.t[which], clock.step[which]), [snapshot for _, snapshot in saved]
        state = ResumeState(rows, np.full(len(rows), resume_t))
        runs = self.stepper.request.runs
        ended = RunStatus(status, t_end)
        return build(self.engine.problem, self.attributes, runs, here, snapshots, ended, state, self.schedules)


class Simulation:
    """A simulation whose arguments were checked: an engine, a start, and a request for all runs.

    `datasets` is the loop over its batches. Ctrl-C ends it: the last dataset holds how far the batch under way came, and
    `interrupted` is true.
    """

    def __init__(
        self,
        engine: Engine,
        start: Start,
        checkpoint: Checkpoint,
        request: Request,
        max_batch: int,
        attributes: dict,
        schedules: Mapping[str, Schedule],
    ) -> None:
        self.engine, self.start, self.checkpoint, self.request, self.max_batch = engine, start, checkpoint, request, max_batch
        self.schedules = schedules
        self.attributes = describe(engine.problem, engine.level, attributes)
        self.interrupted = False

    def datasets(self, progress: bool, seconds: float) -> Iterator[xr.Dataset]:
        """Yield the datasets of batches of runs, each cut into pieces that many seconds apart."""
        todo = self.request.runs.size
        with bar(total=todo, disable=not progress, desc=self.engine.level.name, unit="run", bar_format=_BAR) as shown:
            for runs, size in self._batches():
                checkpoint, done = self.checkpoint.of(runs, self.request.clock), shown.n
                if checkpoint is not None:
                    yield checkpoint.dataset
                    if checkpoint.clock.t.size == 1:  # which holds all saved times
                        continue
                report = lambda share, done=done, count=runs.size: shown.update(min(done + share * count, todo) - shown.n)
                yield from self._batch(runs, size, checkpoint, seconds, report)
                if self.interrupted:
                    return

    def _batch(self, runs, size: int, checkpoint, seconds: float, report: Callable[[float], None]) -> Iterator[xr.Dataset]:
        """Yield the datasets of one batch. Wherever Ctrl-C comes in here, the last one holds what had been reached."""
        runner = None
        try:
            runner = self._runner(runs, size, checkpoint)
            yield from runner.run(seconds, report)
        except KeyboardInterrupt:
            self.interrupted = True
            last = None if runner is None else runner.interrupted_dataset()
            if last is not None:
                yield last

    def runners(self) -> list[Runner]:
        """Make the runners of all batches of a simulation that is not resumed."""
        return [self._runner(runs, size, None) for runs, size in self._batches()]

    def _runner(self, runs: np.ndarray, size: int, checkpoint: BatchCheckpoint | None) -> Runner:
        padded = runs[np.minimum(np.arange(size), runs.size - 1)]
        starts = self.engine.starts(self.start, Stream.of(self.request.seed, padded))
        request, state = self.request._replace(runs=runs), None
        if checkpoint is not None:
            request, state = request._replace(clock=checkpoint.clock, save_start=False), checkpoint.rows
        stepper = self.engine.stepper(starts, request, state)
        return Runner(self.engine, stepper, self.attributes, self.schedules, checkpoint)

    def _batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the runs of each batch and its padded size: resumed runs, in groups that reached the same time, come first."""
        first = 0
        for runs in (*self.checkpoint.groups(), self.request.runs.size - self.checkpoint.runs):
            for count, size in split_runs(runs, self.engine.batch_multiple, self.max_batch):
                yield self.request.runs[first : first + count], size
                first += count
