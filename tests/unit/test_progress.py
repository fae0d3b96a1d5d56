"""Bars that are interrupted."""

from __future__ import annotations

import io
import threading

import pytest

from sgdlimits.progress import Bar


class Interrupting(io.StringIO):
    """A file to which Ctrl-C comes in the middle of what is written."""

    def write(self, text):
        raise KeyboardInterrupt


def test_a_bar_that_is_interrupted_while_it_writes_keeps_no_lock():
    """Another thread, such as that of a notebook's own bars, would wait for it for ever."""
    bar = Bar(total=3, file=Interrupting(), delay=1e-9, mininterval=0)
    with pytest.raises(KeyboardInterrupt):
        bar.update(1)
    free = []

    def other():
        for lock in Bar.get_lock().locks:
            free.append(lock.acquire(timeout=1))
            lock.release() if free[-1] else None

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert free
    assert all(free)
    assert "tqdm_monitor" not in {thread.name for thread in threading.enumerate()}
    bar.disable = True


def test_a_bar_estimates_from_the_pace_after_the_first_work_which_compiles():
    """5 s of compilation for the first thousandth, then 10 s for all: 1.4 hours by the mean pace."""
    clock = [0.0]
    bar = Bar(total=1000, file=io.StringIO(), delay=1e-9)
    bar._time, bar.start_t = lambda: clock[0], 0.0
    clock[0], bar.n = 5.0, 1
    assert bar.format_dict["remaining"] == "?"
    clock[0], bar.n = 6.0, 100
    assert bar.format_dict["remaining"] == "?"
    clock[0], bar.n = 10.0, 501
    assert bar.format_dict["remaining"] == "00:04"
    clock[0], bar.n, bar.total = 11.0, 601, 1000 * 100
    assert ", about 17 minutes in all" in bar.format_dict["long"]
    bar.disable = True
