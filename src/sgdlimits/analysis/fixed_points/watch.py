"""How far a search has come, and when it must end."""

from __future__ import annotations

import math
import time

from tqdm.auto import tqdm


class OutOfTime(Exception):
    """The seconds that a search was given are over."""


class Watch:
    """A line of progress, shown after a second, and a clock that raises `OutOfTime`, between two calls of compiled code.

    All watches are equal: what is compiled for a system that carries one serves the next.
    """

    def __init__(self, name: str, seconds: float | None, progress: bool) -> None:
        self.name, self.begin, self.end = name, time.monotonic(), math.inf
        self.seconds = math.inf if seconds is None else seconds
        line = "{desc}; {n} points treated{postfix} [{elapsed}]"
        self.bar = tqdm(delay=1.0, mininterval=0.2, miniters=0, disable=not progress, leave=False, bar_format=line)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watch)

    def __hash__(self) -> int:
        return 0

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """What is done now, and how far it has come."""
        now = f"{name}, {done} of {total}" if total else name
        self.bar.set_description_str(f"fixed points of {self.name}: {now}", refresh=False)
        self.tick(0)

    def tick(self, points: int = 1) -> None:
        """So many points were treated; raises `OutOfTime` where the time is over."""
        self.bar.update(points)
        if time.monotonic() > self.end:
            raise OutOfTime

    def arm(self) -> None:
        """From now on points count, and there is something to return when the time is over."""
        self.bar.n = self.bar.last_print_n = 0
        self.end = self.begin + self.seconds

    def stop(self) -> None:
        """No more progress, and no more limit."""
        self.end = math.inf
        self.bar.close()
