"""Progress of long computations: a bar in terminals and notebooks, and an occasional line elsewhere, as in a job's log."""

from __future__ import annotations

import io
import sys
import time
from typing import Any, TextIO

from tqdm.auto import tqdm

MAX_LINE_INTERVAL_SECONDS = 60.0
"""Maximum time in seconds between two lines of progress; the first lines are closer to each other."""
MIN_LONG_SECONDS, MIN_ELAPSED_SECONDS = 600.0, 10.0
"""Estimated total time and elapsed time in seconds above which a progress bar shows the total time."""
MIN_PACE_SECONDS = 2.0
"""Time in seconds from the first progress, which follows compilation, to the first estimate of the remaining time."""


class LineWriter(io.TextIOBase):
    """Output file for a progress bar, which writes a few separate lines instead of redrawing one line.

    >>> _ = LineWriter(sys.stdout).write("\\rchain:  50% of 3 runs")
    chain:  50% of 3 runs
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.begin, self.last = time.monotonic(), -MAX_LINE_INTERVAL_SECONDS

    def write(self, text: str) -> int:
        """Write a line of progress, unless the last one was too recent.

        Intervals grow to half of the elapsed time, up to the maximum.
        """
        line, now = text.replace("\r", "").strip(), time.monotonic()
        if line and now - self.last >= min(MAX_LINE_INTERVAL_SECONDS, (now - self.begin) / 2):
            self.file.write(f"{line}\n")
            self.last = now
        return len(text)

    def flush(self) -> None:
        self.file.flush()


class Bar(tqdm):
    """Progress bar (of tqdm) that can also show the estimated total time of a long computation in words.

    Ctrl-C cannot cause a deadlock, as it can for the bar of tqdm: that bar keeps its lock if it is interrupted while it writes,
    and its monitor thread waits for the lock.
    """

    monitor_interval = 0  # no monitor thread
    first_progress: tuple[float, float] | None = None
    """Elapsed time in seconds, and number of finished items, at the first progress."""

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> Any:
        if nolock:
            return super().refresh(nolock=True)
        # `with` releases the lock on any exception, tqdm's own acquire and release do not.
        with self.get_lock():
            return super().refresh(nolock=True)

    @property
    def format_dict(self) -> dict[str, Any]:
        """Values for the bar's format string, by name; estimates of time leave out the time before the first progress."""
        known = super().format_dict
        done, total, elapsed = known["n"], known["total"], known["elapsed"]
        if self.first_progress is None and done > known["initial"]:
            self.first_progress = elapsed, done
        since, before = self.first_progress or (elapsed, done)
        if not total or done <= before or elapsed - since < MIN_PACE_SECONDS:
            return {**known, "long": "", "remaining": "?"}
        left = (total - done) * (elapsed - since) / (done - before)
        words = f", about {format_duration(elapsed + left)} in all; what is done is kept on Ctrl-C"
        long = elapsed + left > MIN_LONG_SECONDS and elapsed > MIN_ELAPSED_SECONDS
        return {**known, "long": words if long else "", "remaining": self.format_interval(left)}


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as a string with two digits and a unit, such as "1.1 hours".

    >>> format_duration(4000), format_duration(3e8)
    ('1.1 hours', '9.5 years')
    """
    units = ((31557600, "years"), (86400, "days"), (3600, "hours"), (60, "minutes"))
    size, unit = next(((size, unit) for size, unit in units if seconds >= 1.05 * size), (1, "seconds"))
    return f"{seconds / size:.2g} {unit}"


def bar(*items: Any, **how: Any) -> Bar:
    """Return a progress bar that appears after a second; the arguments are those of `tqdm`."""
    how = {"delay": 1.0, "leave": False, **how}
    if "ipykernel" not in sys.modules and not sys.stderr.isatty():
        how |= {"file": LineWriter(sys.stderr), "mininterval": 1.0, "ncols": 128}
    return Bar(*items, **how)
