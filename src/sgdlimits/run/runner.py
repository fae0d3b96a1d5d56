"""Run loop of all simulations, both at levels that make steps (SGD, chain, SDE) and at levels with an ODE solver.

- **Saved times.** Each call of the stepper returns the snapshots of the saved times it reaches. They are collected until a
  dataset is built from them: at the end, or at regular intervals for a stream.
- **Ended runs** stay in all later snapshots with their last state. Before each call the stepper may drop them from its batch.
- **Ctrl-C** may come at any point. The stepper is then in the state after its last complete call. The last dataset has the
  times saved so far and, as one more, the present state of the runs; `Simulation.interrupted` is set, and the loop ends.
- **Resumed runs** begin with the dataset of their checkpoint, and continue from the state of the stepper in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import xarray as xr

from sgdlimits.kernel.random import Stream
from sgdlimits.level.base import RUN_FINISHED, Clock, Engine, Request, RunStatus, Snapshot, Stepper, split_runs
from sgdlimits.progress import bar
from sgdlimits.run.resume import BatchCheckpoint, Checkpoint
from sgdlimits.run.schema import INTERRUPTED, ResumeState, build_dataset, simulation_attributes
from sgdlimits.schedule import Schedule
from sgdlimits.start import Start

_BAR_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{long}"


class Runner:
    """Loop that simulates one batch of runs: it advances a stepper and builds datasets from the snapshots at saved times.

    `index` is the index of the last saved time reached (-1 before the first), and `unsent` has the snapshots, with the indices
    of their times, since the last dataset.
    """

    def __init__(
        self,
        engine: Engine,
        stepper: Stepper,
        attributes: dict,
        schedules: Mapping[str, Schedule],
        checkpoint: BatchCheckpoint | None,
    ) -> None:
        self.engine = engine
        self.stepper = stepper
        self.checkpoint = checkpoint
        self.clock = stepper.request.clock
        self.schedules = schedules
        self.attributes = attributes if stepper.kernel is None else {**attributes, "kernel": stepper.kernel}
        self.index = -1 if stepper.request.save_start else 0
        self.unsent: list[tuple[int, Snapshot]] = []

    @property
    def finished(self) -> bool:
        """Whether the runs have reached the last saved time."""
        return self.index == self.clock.t.size - 1

    def run(self, seconds: float, report: Callable[[float], None]) -> Iterator[xr.Dataset]:
        """Simulate up to the last saved time; yield a dataset of the newly saved times every `seconds` seconds, and at the end.

        `report` is called after each step of the loop with the fraction of the time covered so far.
        """
        last = time.perf_counter()
        snapshots = self._initial_snapshots()
        while True:
            for snapshot in snapshots:
                self._append_snapshot(snapshot)
            # not between two snapshots of one call: the state to resume from is later than all of them
            if self.finished or (snapshots and time.perf_counter() - last > seconds):
                yield self.next_dataset()
                last = time.perf_counter()
            report(self.stepper.completed_fraction)
            if self.finished:
                return
            self.stepper.drop_ended()
            snapshots = self.stepper.advance()

    @staticmethod
    def run_many(runners: Iterable[Runner]) -> Iterator[Runner]:
        """Simulate the batches of runs of several runners, and yield each runner as soon as its batch is finished.

        Batches that share compiled code are advanced by the same calls.
        """
        active = list(runners)
        for runner in active:
            for snapshot in runner._initial_snapshots():
                runner._append_snapshot(snapshot)
        while active:
            # Only steppers whose next call has the same key can be batched; the others wait for a later turn of the loop.
            alike = [runner for runner in active if runner.stepper.batch_key == active[0].stepper.batch_key]
            for runner in alike:
                runner.stepper.drop_ended()
            reached = type(alike[0].stepper).advance_many([runner.stepper for runner in alike])
            for runner, snapshots in zip(alike, reached, strict=True):
                for snapshot in snapshots:
                    runner._append_snapshot(snapshot)
            yield from (runner for runner in alike if runner.finished)
            active = [runner for runner in active if not runner.finished]

    def _initial_snapshots(self) -> list[Snapshot]:
        """Return a list with the snapshot at the first time, or an empty list if that time is not saved."""
        return [self.stepper.initial_snapshot] if self.stepper.request.save_start else []

    def _append_snapshot(self, snapshot: Snapshot) -> None:
        """Append the snapshot at the next saved time to those for the next dataset."""
        self.unsent.append((self.index + 1, snapshot))
        self.index += 1

    def next_dataset(self) -> xr.Dataset:
        """Build the dataset of the times saved since the last call."""
        dataset = self._build_dataset(self.clock, self.unsent, self.clock.t[self.index])
        self.unsent = []  # not before: Ctrl-C may come while the dataset is built
        return dataset

    def interrupted_dataset(self) -> xr.Dataset | None:
        """Build the dataset of the times saved since the last dataset, and of the time at which the run was interrupted.

        The result is None if nothing is new.
        """
        for snapshot in self.stepper.observe_waiting():
            self._append_snapshot(snapshot)
        reached = float(self.stepper.run_status().t.max())
        here = self.clock.t[self.index]
        if self.index < 0 or (not self.unsent and reached <= here):
            return None
        if reached <= here:
            return self.next_dataset()
        if self.index == 0 and self.checkpoint is None and not self.unsent:
            self.unsent = [(0, self.stepper.initial_snapshot)]  # a dataset begins at t = 0, whatever times are saved
        times = self.clock.t[: self.index + 1], self.clock.step[: self.index + 1]
        more = reached, np.rint(np.interp(reached, *self.clock))  # steps grow linearly with t between saved times
        clock = Clock(*(np.append(saved, now) for saved, now in zip(times, more, strict=True)))
        return self._build_dataset(clock, [*self.unsent, (self.index + 1, self.stepper.current_snapshot())], here)

    def _build_dataset(self, clock: Clock, saved: Sequence[tuple[int, Snapshot]], resume_t: float) -> xr.Dataset:
        """Build a dataset from snapshots, each given with the index of its time in `clock`.

        Runs that resume from the dataset continue from the saved time `resume_t`; later times are computed again.
        """
        status, t_end = self.stepper.run_status()
        rows = self.stepper.resume_state()
        old = self.checkpoint
        if not self.finished:
            status = np.where(status == RUN_FINISHED, INTERRUPTED, status)
        if old is not None:  # a stepper does not know why resumed runs had ended before
            status = np.where(old.ended, old.dataset.status, status)
            t_end = np.where(old.ended, old.dataset.t_end, t_end)
        which = [index for index, _ in saved]
        here = Clock(clock.t[which], clock.step[which])
        snapshots = [snapshot for _, snapshot in saved]
        state = ResumeState(rows, np.full(len(rows), resume_t))
        runs = self.stepper.request.runs
        ended = RunStatus(status, t_end)
        return build_dataset(self.engine.problem, self.attributes, runs, here, snapshots, ended, state, self.schedules)


class Simulation:
    """Simulation whose arguments have been checked: an engine, a start, and a request for all runs.

    The generator `datasets` simulates batch by batch. Ctrl-C ends it: the last dataset has the present state of the batch in
    progress, and `interrupted` is true.
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
        self.engine = engine
        self.start = start
        self.checkpoint = checkpoint
        self.request = request
        self.max_batch = max_batch
        self.schedules = schedules
        self.attributes = simulation_attributes(engine.problem, engine.level, attributes)
        self.interrupted = False

    def datasets(self, progress: bool, seconds: float) -> Iterator[xr.Dataset]:
        """Simulate one batch of runs after another and yield their datasets, in pieces at least `seconds` seconds apart.

        `progress` shows a progress bar over all runs.
        """
        total = self.request.runs.size
        with bar(total=total, disable=not progress, desc=self.engine.level.name, unit="run", bar_format=_BAR_FORMAT) as shown:
            for runs, size in self._split_batches():
                checkpoint = self.checkpoint.for_runs(runs, self.request.clock)
                if checkpoint is not None:
                    yield checkpoint.dataset
                    if checkpoint.clock.t.size == 1:  # the checkpoint has all saved times
                        continue

                def show_fraction(share: float, done: float = shown.n, count: int = runs.size) -> None:
                    shown.update(min(done + share * count, total) - shown.n)

                yield from self._run_batch(runs, size, checkpoint, seconds, show_fraction)
                if self.interrupted:
                    return

    def _run_batch(self, runs, size: int, checkpoint, seconds: float, report: Callable[[float], None]) -> Iterator[xr.Dataset]:
        """Simulate one batch and yield its datasets; after Ctrl-C the last one has the present state of the runs."""
        runner = None
        try:
            runner = self._make_runner(runs, size, checkpoint, seconds)
            yield from runner.run(seconds, report)
        except KeyboardInterrupt:
            self.interrupted = True
            last = None if runner is None else runner.interrupted_dataset()
            if last is not None:
                yield last

    def make_runners(self) -> list[Runner]:
        """Return the runners of all batches of a simulation that begins at the start."""
        return [self._make_runner(runs, size, None, np.inf) for runs, size in self._split_batches()]

    def _make_runner(self, runs: np.ndarray, size: int, checkpoint: BatchCheckpoint | None, max_wait: float) -> Runner:
        """Return the runner of a batch of runs, padded to `size` runs, which begins at the start or at a checkpoint.

        Saved states wait at most `max_wait` seconds to be observed.
        """
        padded = runs[np.minimum(np.arange(size), runs.size - 1)]  # copies of the last run fill the batch to a compiled size
        starts = self.engine.draw_starts(self.start, Stream.from_seed(self.request.seed, padded))
        request = self.request._replace(runs=runs, max_wait=max_wait)
        state = None
        if checkpoint is not None:
            request = request._replace(clock=checkpoint.clock, save_start=False)
            state = checkpoint.rows
        stepper = self.engine.stepper(starts, request, state)
        return Runner(self.engine, stepper, self.attributes, self.schedules, checkpoint)

    def _split_batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the indices of the runs in each batch, and the size to which the batch is padded.

        Resumed runs come first, in groups that reached the same time.
        """
        first = 0
        for runs in (*self.checkpoint.group_sizes(), self.request.runs.size - self.checkpoint.runs):
            for count, size in split_runs(runs, self.engine.batch_multiple, self.max_batch):
                yield self.request.runs[first : first + count], size
                first += count
