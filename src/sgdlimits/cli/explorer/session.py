"""One page's simulation: a spawned process of its own, started when it is needed and ended with the page."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from tqdm import tqdm

from sgdlimits.settings import setup_process

DIED = "The simulation's process ended unexpectedly. Move a slider, or press Run again, to start another one."


class Spawned(NamedTuple):
    """A process, and the connection to it."""

    process: Any
    connection: Any


def spawned(warm: bool = False) -> Spawned:
    """Spawn a process, which compiles what the page begins with where it is to be `warm`.

    Never fork: JAX's threads would be missing in the child.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, warm), daemon=True)
    process.start()
    theirs.close()
    return Spawned(process, ours)


class Session:
    """The process of a page. `inbox` is the queue of what it answers, as dicts; a process that has died is replaced.

    Parameters
    ----------
    spare : a process that was spawned before, for this session
    """

    def __init__(self, spare: Spawned | None = None) -> None:
        self.spare = spare
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.process: Any = None
        self.connection: Any = None

    def start(self) -> None:
        """Take the spare process or spawn one, unless there is one that lives."""
        if self.process is not None and self.process.is_alive():
            return
        self.close()
        spare, self.spare = self.spare, None
        self.process, self.connection = spare if spare and spare.process.is_alive() else spawned()
        threading.Thread(target=self._listen, args=(self.connection, self.process), daemon=True).start()

    def _listen(self, connection: Any, process: Any) -> None:
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError, TypeError):  # the last where it is closed while it is read
                break
            self._put(message)
        if process is self.process:
            self._put({"kind": "died", "text": DIED})

    def _put(self, message: dict[str, Any]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.inbox.put_nowait, message)

    def ask(self, message: dict[str, Any]) -> None:
        """Send a message to the process, or to another one where it is ending: its pipe closes before it is gone."""
        self.start()
        try:
            self.connection.send(message)
        except OSError:
            self.close()
            self.start()
            self.connection.send(message)

    def close(self) -> None:
        """End the process at once."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            self.connection.close()
            process.join(1.0)


def main(connection: Any, warm: bool = False) -> None:
    """What the process does until its connection closes. The server has no need of the machinery that is imported here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(5)
    tqdm.set_lock(threading.RLock())  # its own lock is one between processes, which a process that is killed leaves behind
    connection.send({"kind": "ready", "job": None, "process": os.getpid()})
    setup_process()  # before JAX is imported
    from sgdlimits.cli.explorer.worker import Worker

    worker = Worker(connection)
    if warm:
        worker.warm()
    worker.read()
    os._exit(0)
