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
