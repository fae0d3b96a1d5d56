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

from sgdlimits.sweeps.engine import RETRIES, Engine, Outcome
from sgdlimits.sweeps.recipe import Recipe
from sgdlimits.sweeps.store import Folder
from sgdlimits.sweeps.unit import Unit
from sgdlimits.sweeps.worker import FAILED


class Pool(Engine):
    """Processes of this machine, each with its share of the cores. One that dies is replaced and its unit tried again."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        text, todo, left = recipe.to_json(), deque((unit, 0) for unit in units), len(units)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        pool = [Worker(cores[i % max(1, len(cores)) :: self.workers]) for i in range(min(self.workers, len(units)))]
        listen = selectors.DefaultSelector()
        try:
            for worker in pool:
                listen.register(worker.answers, selectors.EVENT_READ, worker)
                worker.give(text, folder, todo)
            while left:
                for ready, _ in listen.select():
                    worker = ready.data
                    (unit, tries), answer = worker.task, worker.answer()
                    if answer is None:
                        listen.unregister(worker.answers)
                        how = worker.end()
                        what, error = FAILED, f"the process that computed it ended {how}"
                        worker.begin()
                        listen.register(worker.answers, selectors.EVENT_READ, worker)
                    else:
                        what, error = answer
                    if what == FAILED and tries < RETRIES:
                        todo.append((unit, tries + 1))
                    else:
                        left -= 1
                        yield Outcome(unit, what, error)
                    worker.give(text, folder, todo)
                for worker in pool:  # those that had nothing to do while a unit was tried again elsewhere
                    if worker.task is None:
                        worker.give(text, folder, todo)
        finally:
            for worker in pool:
                worker.end()
            listen.close()


class Worker:
    """A process of `sgdlimits.sweeps.worker`, and what it is at."""

    def __init__(self, cores: list[int]) -> None:
        self.cores = cores
        self.begin()

    def begin(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*(path or os.getcwd() for path in sys.path)])}
        command = [sys.executable, "-m", "sgdlimits.sweeps.process", json.dumps(self.cores)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self.task: tuple[Unit, int] | None = None
        assert self.process.stdout is not None
        self.answers = self.process.stdout

    def give(self, recipe: str, folder: Folder, todo: deque) -> None:
        """The next task, where there is one."""
        self.task = todo.popleft() if todo else None
        if self.task is not None:
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):  # it has died, which its answers will say
                self.process.stdin.write(f"{json.dumps([recipe, str(folder.path), self.task[0].to_json()])}\n".encode())
                self.process.stdin.flush()

    def answer(self) -> tuple[str, str] | None:
        """What became of its unit, or None where the process has died."""
        try:
            what, error = json.loads(self.answers.readline())
        except ValueError:
            return None
        return what, error

    def end(self) -> str:
        """Stop the process, whatever it is at: how it ended, in words. Files are whole or not there."""
        if self.process.poll() is None and self.task is not None:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        code = self.process.wait()
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
