"""The number of steps that one kernel call makes."""

from __future__ import annotations

CALL_SECONDS = 0.1
"""Target duration of one kernel call; progress is shown, Ctrl-C obeyed and ended runs removed between calls."""
COMPILE_SECONDS = 3.0
"""Assumed minimum time to compile for another batch size; ended runs are removed once they have cost as much."""


class CallPace:
    """Number of steps to make per kernel call, adapted so that a call takes about `CALL_SECONDS`.

    The number is a multiple of the number of steps whose variates are drawn together.

    Ended runs are dropped once the steps since the last compilation have taken as long as it did (`compiling`): a simulation
    then takes at most about twice the time it would take if the end of each run were known in advance.
    """

    def __init__(self, block: int) -> None:
        self.block, self.steps = block, block
        self.calls, self.seconds = 0, 0.0
        self.compiling = COMPILE_SECONDS

    def record_call(self, steps: int, seconds: float) -> None:
        """Record the duration of a kernel call of `steps` steps, and adapt the number of steps per call."""
        self.calls += 1
        if self.calls == 1:
            self.compiling = max(self.compiling, seconds)
            return
        self.seconds += seconds
        # growth is limited, in case one call happened to be fast
        wanted = min(steps * CALL_SECONDS / max(seconds, 1e-6), 8.0 * self.steps, 2.0**40)
        self.steps = max(1, int(wanted) // self.block) * self.block

    def discard_durations(self) -> None:
        """Discard the measured durations, because the next call will include a compilation."""
        self.calls, self.seconds = 0, 0.0
