"""The process behind one page, started when needed and ended with the page."""

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

# shown on the page
PROCESS_ENDED_TEXT = "The simulation's process ended unexpectedly. Move a slider, or press Run again, to start another one."


class SpawnedProcess(NamedTuple):
    """A process and the connection to it."""

    process: Any
    connection: Any


def spawn(warm: bool = False) -> SpawnedProcess:
    """Spawn a process for a page; with `warm` it compiles the first scene before the first message."""
    # never fork: JAX's threads would be missing in the child
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, warm), daemon=True)
    process.start()
    # so that the pipe reports its end when the child dies
    theirs.close()
    return SpawnedProcess(process, ours)


class Session:
    """The process of a page, replaced if it dies; the queue `inbox` receives its answers as dicts.

    Parameters
    ----------
    spare : a process spawned before, to be used first
    """

    def __init__(self, spare: SpawnedProcess | None = None) -> None:
        self.spare = spare
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.process: Any = None
        self.connection: Any = None

    def start(self) -> None:
        """Take the spare process or spawn one, unless a process is alive."""
        if self.process is not None and self.process.is_alive():
            return
        self.close()
        spare, self.spare = self.spare, None
        self.process, self.connection = spare if spare and spare.process.is_alive() else spawn()
        threading.Thread(target=self._listen, args=(self.connection, self.process), daemon=True).start()

    def _listen(self, connection: Any, process: Any) -> None:
        """Put the answers of a process into the inbox until it ends."""
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError, TypeError):  # TypeError: the connection was closed while being read
                break
            self._put(message)
        if process is self.process:
            self._put({"kind": "died", "text": PROCESS_ENDED_TEXT})

    def _put(self, message: dict[str, Any]) -> None:
        """Put a message into the inbox from another thread."""
        if not self.loop.is_closed():
            # asyncio queues are not thread-safe
            self.loop.call_soon_threadsafe(self.inbox.put_nowait, message)

    def ask(self, message: dict[str, Any]) -> None:
        """Send a message to the process, or to a new one if the pipe is closed, as it is while a process ends."""
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
    """Run the process until its connection closes. JAX is imported here only, as the server does not need it."""
    # Ctrl-C reaches all processes of the terminal; the server ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        # the browser and the server stay responsive
        os.nice(5)
    tqdm.set_lock(threading.RLock())  # tqdm's default is a lock between processes, which a killed process leaks
    connection.send({"kind": "ready", "job": None, "process": os.getpid()})
    setup_process()  # before JAX is imported
    from sgdlimits.cli.explorer.worker import Worker

    worker = Worker(connection)
    if warm:
        worker.warm()
    worker.read()
    # skips waiting for threads in compiled code
    os._exit(0)
