"""Engine of sweeps that computes units in several processes of this machine."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sgdlimits._miscompiled import silence_xla_hints
from sgdlimits.run.sweeps.engine import EngineTask, SweepEngine, make_tasks
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit
from sgdlimits.run.sweeps.worker import FAILED, UnitOutcome


class PoolEngine(SweepEngine):
    """Engine that computes a sweep in several worker processes of this machine, each with its share of the cores.

    A worker that dies is replaced, and its work units are tried again.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[UnitOutcome]:
        text = recipe.to_json()
        todo = make_tasks(recipe, units, self.workers)
        left = len(units)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        # Each worker has its own cores, so that the threads of one do not slow the others.
        pool = [PoolWorker(cores[i % max(1, len(cores)) :: self.workers]) for i in range(min(self.workers, len(todo)))]
        selector = selectors.DefaultSelector()
        try:
            for worker in pool:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
                worker.start_task(text, folder, todo)
            while left:
                for ready, _ in selector.select():
                    worker = ready.data
                    task = worker.task
                    outcomes = worker.read_outcome()
                    if outcomes is None:  # the process has died, and its pipe with it
                        selector.unregister(worker.answers)
                        outcomes = worker.fail_remaining()
                        worker.start_process()
                        selector.register(worker.answers, selectors.EVENT_READ, worker)
                    for outcome in task.final_outcomes(outcomes, todo.append):
                        left -= 1
                        yield outcome
                for worker in pool:  # idle workers too: a failed unit may have come back to the queue since
                    if not worker.left:
                        worker.start_task(text, folder, todo)
        finally:
            for worker in pool:
                worker.stop()
            selector.close()


class PoolWorker:
    """Worker process of a `PoolEngine`, with its present task and those work units of the task that are not done yet."""

    def __init__(self, cores: list[int]) -> None:
        self.cores = cores
        self.start_process()

    def start_process(self) -> None:
        """Start a new worker process on the cores of this worker; it reads tasks from its standard input."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        silence_xla_hints(environment)  # the process imports JAX before it can do so itself
        command = [sys.executable, "-m", "sgdlimits.run.sweeps.process", json.dumps(self.cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True, bufsize=0
        )  # unbuffered: the selector does not report a line that a buffer has read ahead
        self.task = EngineTask([])
        self.left = dict[str, Unit]()
        assert self.process.stdout is not None
        self.answers = self.process.stdout

    def start_task(self, recipe: str, folder: Folder, todo: deque[EngineTask]) -> None:
        """Take the next task from the queue, if there is one, and send it to the worker process."""
        if not todo:
            return
        self.task = todo.popleft()
        self.left = {unit.name: unit for unit in self.task.units}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has died, which the end of its answers will show
            message = [recipe, str(folder.path), [unit.to_json() for unit in self.task.units]]
            _write_all(self.process.stdin, f"{json.dumps(message)}\n".encode())

    def read_outcome(self) -> list[UnitOutcome] | None:
        """Read the outcome of one work unit from the process, as a list; None if the process has died."""
        try:
            name, status, error = json.loads(self.answers.readline())
        except ValueError:
            return None
        return [UnitOutcome(self.left.pop(name), status, error)]

    def fail_remaining(self) -> list[UnitOutcome]:
        """Return failed outcomes for the work units that the process had not finished when it died."""
        left = list(self.left.values())
        how = self.stop()
        return [UnitOutcome(unit, FAILED, f"the process that computed the unit ended {how}") for unit in left]

    def stop(self) -> str:
        """Stop the worker process, even in the middle of a task, and return in words how it ended.

        Files of units are written atomically, so that a kill leaves no partial file.
        """
        if self.process.poll() is None and self.left:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        code = self.process.wait()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"


def _write_all(pipe: Any, text: bytes) -> None:
    """Write all bytes of `text` to an unbuffered pipe, which may accept only a part of them at a time."""
    while text:
        text = text[pipe.write(text) :]
