"""Units in processes of this machine."""

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

from sgdlimits._miscompiled import quieten
from sgdlimits.run.sweeps.engine import SweepEngine, Task, tasks
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit
from sgdlimits.run.sweeps.worker import FAILED, Outcome


class Pool(SweepEngine):
    """Processes of this machine, each with its share of the cores. One that dies is replaced and its units tried again."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        text, todo, left = recipe.to_json(), tasks(recipe, units, self.workers), len(units)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pool = [PoolWorker(cores[i % max(1, len(cores)) :: self.workers]) for i in range(min(self.workers, len(todo)))]
        listen = selectors.DefaultSelector()
        try:
            for worker in pool:
                listen.register(worker.answers, selectors.EVENT_READ, worker)
                worker.give(text, folder, todo)
            while left:
                for ready, _ in listen.select():
                    worker = ready.data
                    task, outcomes = worker.task, worker.answer()
                    if outcomes is None:
                        listen.unregister(worker.answers)
                        outcomes = worker.died()
                        worker.begin()
                        listen.register(worker.answers, selectors.EVENT_READ, worker)
                    for outcome in task.settled(outcomes, todo.append):
                        left -= 1
                        yield outcome
                for worker in pool:  # also those that had nothing to do while a unit was tried again elsewhere
                    if not worker.left:
                        worker.give(text, folder, todo)
        finally:
            for worker in pool:
                worker.end()
            listen.close()


class PoolWorker:
    """A process of `sgdlimits.run.sweeps.process`, and what it is at."""

    def __init__(self, cores: list[int]) -> None:
        self.cores = cores
        self.begin()

    def begin(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        quieten(environment)  # the process imports JAX before it can do so itself
        command = [sys.executable, "-m", "sgdlimits.run.sweeps.process", json.dumps(self.cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True, bufsize=0
        )  # a line that was read ahead would never be heard of
        self.task, self.left = Task([]), dict[str, Unit]()
        assert self.process.stdout is not None
        self.answers = self.process.stdout

    def give(self, recipe: str, folder: Folder, todo: deque[Task]) -> None:
        """The next task, where there is one."""
        if not todo:
            return
        self.task = todo.popleft()
        self.left = {unit.name: unit for unit in self.task.units}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which its answers will say
            asked = [recipe, str(folder.path), [unit.to_json() for unit in self.task.units]]
            _send(self.process.stdin, f"{json.dumps(asked)}\n".encode())

    def answer(self) -> list[Outcome] | None:
        """What became of one of its units, or None where the process has died."""
        try:
            name, what, error = json.loads(self.answers.readline())
        except ValueError:
            return None
        return [Outcome(self.left.pop(name), what, error)]

    def died(self) -> list[Outcome]:
        """All units that it was at have failed."""
        left, how = list(self.left.values()), self.end()
        return [Outcome(unit, FAILED, f"the process that computed it ended {how}") for unit in left]

    def end(self) -> str:
        """Stop the process, whatever it is at: how it ended, in words. Files are whole or not there."""
        if self.process.poll() is None and self.left:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        code = self.process.wait()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"


def _send(pipe: Any, text: bytes) -> None:
    """All of a text: a pipe that keeps nothing back may take a part."""
    while text:
        text = text[pipe.write(text) :]
