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


def bar(*items: Any, **how: Any) -> tqdm:
    """tqdm's bar, from a second on; with what it usually takes."""
    how = {"delay": 1.0, "leave": False, **how}
    if "ipykernel" not in sys.modules and not sys.stderr.isatty():
        how |= {"file": Lines(sys.stderr), "mininterval": 1.0, "ncols": 100}
    return tqdm(*items, **how)
