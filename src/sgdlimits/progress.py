"""Progress of long work: a bar where somebody looks at a terminal or a notebook, now and then a line elsewhere."""

from __future__ import annotations

import io
import sys
import time
from typing import Any, TextIO

from tqdm.auto import tqdm

MOST_SECONDS = 60.0
"""How far apart lines are at most. They begin close to each other."""


class Lines(io.TextIOBase):
    """What a bar writes, as a few whole lines without the carriage returns that draw over it.

    >>> _ = Lines(sys.stdout).write("\\rchain:  50% of 3 runs")
    chain:  50% of 3 runs
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.begin, self.last = time.monotonic(), -MOST_SECONDS

    def write(self, text: str) -> int:
        line, now = text.replace("\r", "").strip(), time.monotonic()
        if line and now - self.last >= min(MOST_SECONDS, (now - self.begin) / 2):
            self.file.write(f"{line}\n")
            self.last = now
        return len(text)

    def flush(self) -> None:
        self.file.flush()


class Bar(tqdm):
    """tqdm's bar, of which Ctrl-C leaves nothing behind that the end of the program, or another thread, would wait for.

    tqdm's own keeps its lock where it is interrupted while it writes; its thread, which looks after slow bars, waits for it.
    """

    monitor_interval = 0

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:
        if nolock:
            return super().refresh(nolock=True)
        with self.get_lock():
            return super().refresh(nolock=True)


def bar(*items: Any, **how: Any) -> Bar:
    """A bar, from a second on; with what tqdm usually takes."""
    how = {"delay": 1.0, "leave": False, **how}
    if "ipykernel" not in sys.modules and not sys.stderr.isatty():
        how |= {"file": Lines(sys.stderr), "mininterval": 1.0, "ncols": 100}
    return Bar(*items, **how)
