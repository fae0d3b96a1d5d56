"""Conditions for which compiled code asks the host."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.base import StepRange
from sgdlimits.kernel.compiler.checks import inert_coordinates
from sgdlimits.kernel.lanes import Lanes
from sgdlimits.kernel.random import Stream
from sgdlimits.level.stepper import initial_carry

RUNS, STEPS = 9, 400


@pytest.fixture
def kernel():
    """A kernel whose runs are asked for, and a function that makes its steps."""
    problem, until, start = sl.presets.committee(2, 1, "tanh", lr=0.2), sl.exits(0.5), sl.RandomInit(200)
    engine, stream = sl.Chain(200).make_engine(problem, start, None), Stream.from_seed(1, np.arange(RUNS))
    carry = initial_carry(engine.process, until, engine.process.start(engine.draw_starts(start, stream)))
    kernel = Lanes(engine.process, until, carry)
    return (
        kernel,
        lambda carry, first: kernel.advance(carry, stream.seed, stream.runs, StepRange(first, STEPS, 0.0, engine.step_time)),
        carry,
    )


def test_bounds_stay_good_from_one_call_to_the_next(kernel, monkeypatch):
    kernel, steps, carry = kernel
    asked, ask = [], kernel.bounds.ask
    monkeypatch.setattr(kernel.bounds, "ask", lambda *state: asked.append(0) or ask(*state))
    there = steps(carry, 0)
    first = len(asked)
    steps(there, STEPS)
    assert RUNS <= first < RUNS * STEPS / 10
    assert len(asked) - first < first


def test_an_error_of_the_host_is_raised(kernel, monkeypatch):
    kernel, steps, carry = kernel

    def ask(*state):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel.bounds, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        steps(carry, 0)


def test_without_noise_only_what_lies_along_the_means_is_watched():
    """And runs end at the steps at which the condition itself ends them."""
    problem, until, start = sl.presets.binary_mixture(snr=np.inf), sl.exits(0.3), sl.RandomInit(60)
    engine = sl.Chain(60).make_engine(problem, start, None)
    carry = initial_carry(
        engine.process, until, engine.process.start(engine.draw_starts(start, Stream.from_seed(3, np.arange(24))))
    )
    replica = Lanes(engine.process, until, carry).spec.trace_replica(can_call_host=True)
    assert inert_coordinates(replica) == set(range(4, len(replica.changed_indices)))  # a and m come first, then T
    runs = lambda kernel: sl.simulate(problem, sl.Chain(60), start, t_max=60, runs=24, until=until, seed=3, kernel=kernel)
    lanes, xla = runs("lanes"), runs("xla")
    assert (lanes.status == "stopped").sum() > 12
    np.testing.assert_array_equal(lanes.t_end, xla.t_end)
