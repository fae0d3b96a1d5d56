"""Session of one page: the process that simulates for the page, started when needed and ended with the page."""

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
    """Spawned process that simulates for a page, and the connection to the process."""

    process: Any
    connection: Any


def spawn_process(warm: bool = False) -> SpawnedProcess:
    """Spawn the process of a page; if `warm`, it compiles the first scene while it waits for the first message."""
    # never fork: JAX's threads would be missing in the child
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_process, args=(theirs, warm), daemon=True)
    process.start()
    # so that the pipe reports its end when the child dies
    theirs.close()
    return SpawnedProcess(process, ours)


class Session:
    """Connection of one page with its process, which is replaced if it dies; the queue `inbox` receives the process's answers.

    Parameters
    ----------
    spare : process that was spawned earlier and is used first; None to spawn one when needed
    """

    def __init__(self, spare: SpawnedProcess | None = None) -> None:
        self.spare = spare
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.process: Any = None
        self.connection: Any = None

    def start(self) -> None:
        """Use the spare process or spawn a new one, unless the session's process is alive."""
        if self.process is not None and self.process.is_alive():
            return
        self.close()
        spare, self.spare = self.spare, None
        self.process, self.connection = spare if spare and spare.process.is_alive() else spawn_process()
        threading.Thread(target=self._listen, args=(self.connection, self.process), daemon=True).start()

    def _listen(self, connection: Any, process: Any) -> None:
        """Put the answers of a process into the inbox, until its connection closes."""
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError, TypeError):  # TypeError: the connection was closed while being read
                break
            self._put_threadsafe(message)
        if process is self.process:
            self._put_threadsafe({"kind": "died", "text": PROCESS_ENDED_TEXT})

    def _put_threadsafe(self, message: dict[str, Any]) -> None:
        """Put a message into the inbox, from a thread other than that of the event loop."""
        if not self.loop.is_closed():
            # asyncio queues are not thread-safe
            self.loop.call_soon_threadsafe(self.inbox.put_nowait, message)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the session's process; if its connection is closed, start a new process first."""
        self.start()
        try:
            self.connection.send(message)
        except OSError:
            self.close()
            self.start()
            self.connection.send(message)

    def close(self) -> None:
        """Kill the process that simulates for the page of this session."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            self.connection.close()
            process.join(1.0)


def run_process(connection: Any, warm: bool = False) -> None:
    """Run the process that simulates for a page, until its connection closes; only this process imports JAX."""
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
        worker.compile_first_scene()
    worker.read_messages()
    # skips waiting for threads in compiled code
    os._exit(0)
