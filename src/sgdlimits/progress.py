"""Progress of long work: a bar where somebody looks at a terminal or a notebook, now and then a line elsewhere."""

from __future__ import annotations

import io
import sys
import time
from typing import Any, TextIO

from tqdm.auto import tqdm

MOST_SECONDS = 60.0
"""How far apart lines are at most. They begin close to each other."""
LONG_SECONDS, SETTLED_SECONDS = 600.0, 10.0
"""From how long on a bar says how long all will take, and after which time."""
PACE_SECONDS = 2.0
"""How long work must go on after the first of it was seen until its pace is known: what came before has compiled."""


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
    """tqdm's bar, which knows `{long}`: how long all of it takes, in words, where its pace so far makes that long.

    Ctrl-C leaves nothing behind for which another thread would wait: tqdm's own keeps its lock where it is interrupted while it
    writes, and has a thread, which looks after slow bars.
    """

    monitor_interval = 0
    first: tuple[float, float] | None = None
    """When the first work was seen to be done, and how much of it."""

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:
        if nolock:
            return super().refresh(nolock=True)
        with self.get_lock():
            return super().refresh(nolock=True)

    @property
    def format_dict(self) -> dict[str, Any]:
        known = super().format_dict
        done, total, elapsed = known["n"], known["total"], known["elapsed"]
        if self.first is None and done > known["initial"]:
            self.first = elapsed, done
        since, before = self.first or (elapsed, done)
        if not total or done <= before or elapsed - since < PACE_SECONDS:
            return {**known, "long": "", "remaining": "?"}
        left = (total - done) * (elapsed - since) / (done - before)
        words = f", about {format_duration(elapsed + left)} in all; what is done is kept on Ctrl-C"
        long = elapsed + left > LONG_SECONDS and elapsed > SETTLED_SECONDS
        return {**known, "long": words if long else "", "remaining": self.format_interval(left)}


def format_duration(seconds: float) -> str:
    """A time in words.

    >>> format_duration(4000), format_duration(3e8)
    ('1.1 hours', '9.5 years')
    """
    units = ((31557600, "years"), (86400, "days"), (3600, "hours"), (60, "minutes"))
    size, unit = next(((size, unit) for size, unit in units if seconds >= 1.05 * size), (1, "seconds"))
    return f"{seconds / size:.2g} {unit}"


def bar(*items: Any, **how: Any) -> Bar:
    """A bar, from a second on; with what tqdm usually takes."""
    how = {"delay": 1.0, "leave": False, **how}
    if "ipykernel" not in sys.modules and not sys.stderr.isatty():
        how |= {"file": Lines(sys.stderr), "mininterval": 1.0, "ncols": 128}
    return Bar(*items, **how)
