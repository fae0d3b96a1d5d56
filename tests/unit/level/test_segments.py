"""Steps of levels with a step size of their own: they end at the knots of schedules, and do not depend on saved times."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.level.segments import Segments

KNOT, DT, T = 0.503, 0.2, 1.6
LR, NOISE = (1.5, 0.3), sl.Steps([0.9], [0.0, 2.0])
START = sl.Overlaps([1.0], [[0.2]], [[1.0]])


def problem(lr):
    return sl.presets.single_index("linear", lr=lr, noise=NOISE, sphere=False)


def run(lr, save, level, **more):
    return sl.simulate(problem(lr), level, START, t_max=max(save), save=save, seed=2, progress=False, **more)


def test_a_grid_has_equal_steps_between_knots_and_any_saved_times():
    times = np.array([0.0, 0.3, 0.5, 0.55, 1.0, 1.6])
    found = Segments.on_time_grid(times, 0.2, np.array([0.5, 0.9]))
    assert found.step_counts.tolist() == [1, 2, 0, 0, 2, 0, 3]
    np.testing.assert_allclose(found.sizes, [0.5 / 3, 0.5 / 3, 0.2, 0.2, 0.2, 0.2, 0.2])
    np.testing.assert_allclose(found.begin_times, [0, 0.5 / 3, 0.5, 0.5, 0.5, 0.9, 0.9])
    np.testing.assert_allclose(found.remaining_step_sizes, [0.3 - 0.5 / 3, 0, 0, 0.05, 0, 0.1, 0.1], atol=1e-12)
    assert found.saved.tolist() == [True, False, True, True, False, True, True]
    np.testing.assert_allclose(found.times_after_steps(np.array([1, 2, 4, 6, 8])), [0.5 / 3, 1 / 3, 0.7, 1.1, 1.5])


def test_a_grid_without_knots_has_multiples_of_the_step():
    times = np.array([0.0, 0.35, 0.4, 1.0])
    found = Segments.on_time_grid(times, 0.1, np.zeros(0))
    assert (found.step_counts.tolist(), found.begin_times.tolist(), found.saved.all()) == (
        [3, 1, 6],
        [0.0, 3 * 0.1, 4 * 0.1],
        True,
    )
    np.testing.assert_allclose(found.remaining_step_sizes, [0.05, 0.0, 0.0], atol=1e-12)


def test_a_step_of_the_sde_ends_at_a_knot():
    """Without noise to speak of: the SDE is that of each rate on its side of the knot, step by step."""
    found = run(sl.Steps([KNOT], LR), [0.0, T], sl.SDE(10**14, dt=DT))
    follow = lambda lr, noise, dt, start, t: sl.simulate(
        sl.presets.single_index("linear", lr=lr, noise=noise, sphere=False), sl.SDE(10**14, dt=dt), start, t_max=t,
        save=[0.0, t], progress=False,
    )  # fmt: skip
    before = follow(LR[0], 0.0, KNOT / 3, START, KNOT)
    M, Q = (before[name].values[0, -1] for name in ("M", "Q"))
    after = follow(LR[1], NOISE.shift(-KNOT), DT, sl.Overlaps([1.0], M, Q), T - KNOT)
    for name in ("M", "Q", "risk"):
        np.testing.assert_allclose(found[name][:, -1], after[name][:, -1], atol=1e-6)


def test_the_sde_keeps_its_order_through_knots():
    """The error against the ODE falls by four where the step is halved; a step across a knot has an error of first order."""
    end = lambda level: run(sl.Steps([KNOT], LR), [0.0, T], level).Q.values[0, -1, 0, 0]
    errors = [abs(end(sl.SDE(10**14, dt=dt)) - end(sl.ODE(rtol=1e-12))) for dt in (0.1, 0.05)]
    assert 3.0 < errors[0] / errors[1] < 5.5, errors


@pytest.mark.parametrize("level", [sl.SDE(50, dt=0.13), sl.Chain(50)], ids=lambda level: level.name)
def test_saved_times_and_a_pause_leave_a_path_through_knots_as_it_is(level):
    """Bit for bit: with other saved times, and resumed after a part of the run, from any saved time."""
    lr = sl.Steps([KNOT, 1.1], [*LR, 1.0])
    ends = [0.0, 0.3, 0.5, 0.62, 0.9, 1.2, T]
    whole = run(lr, [0.0, T], level, runs=3)
    dense = run(lr, ends, level, runs=3)
    for name in ("M", "Q", "risk"):
        np.testing.assert_array_equal(whole[name][:, -1], dense[name][:, -1])
    for last in range(2, len(ends)):
        first = run(lr, ends[:last], level, runs=3)
        resumed = run(lr, ends, level, runs=3, resume=first)
        np.testing.assert_array_equal(resumed.M, dense.M)
