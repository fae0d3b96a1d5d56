"""Conditions for which compiled code asks the host."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.base import Span
from sgdlimits.kernel.lanes import Lanes
from sgdlimits.level.march import set_out
from sgdlimits.random import Stream

RUNS, STEPS = 9, 400


@pytest.fixture
def kernel():
    """A kernel whose runs are asked for, and a function that makes its steps."""
    problem, until, start = sl.presets.committee(2, 1, "tanh", lr=0.2), sl.exits(0.5), sl.RandomInit(200)
    engine, stream = sl.Chain(200).bind(problem, start, None), Stream.of(1, np.arange(RUNS))
    carry = set_out(engine.process, until, engine.process.start(engine.starts(start, stream)))
    kernel = Lanes(engine.process, until, carry)
    return (
        kernel,
        lambda carry, first: kernel.advance(carry, stream.seed, stream.runs, Span(first, STEPS, 0.0, engine.tick)),
        carry,
    )


def test_bounds_stay_good_from_one_call_to_the_next(kernel, monkeypatch):
    kernel, steps, carry = kernel
    asked, ask = [], kernel.guards.ask
    monkeypatch.setattr(kernel.guards, "ask", lambda *state: asked.append(0) or ask(*state))
    there = steps(carry, 0)
    first = len(asked)
    steps(there, STEPS)
    assert RUNS <= first < RUNS * STEPS / 10
    assert len(asked) - first < first


def test_an_error_of_the_host_is_raised(kernel, monkeypatch):
    kernel, steps, carry = kernel

    def ask(*state):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel.guards, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        steps(carry, 0)
