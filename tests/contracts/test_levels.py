"""What every problem keeps at every level."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from contracts.matrix import FEWER, OUTPUTS, Beyond, D, oblique, overlap, with_fresh_samples

import sgdlimits as sl

pytestmark = pytest.mark.filterwarnings("ignore:the small overlaps of this problem")  # few points, which compile faster


def variables(problem, kind, stats):
    """The axes and the array of each statistic of the students at a level, by name."""
    return kind.view(problem).coordinates.variables(stats.of("student") if isinstance(stats, sl.Overlaps) else stats)


def parts(problem, kind, stats):
    """The arrays of the students' statistics, by name."""
    return {name: np.asarray(value) for name, (_, value) in variables(problem, kind, stats).items()}


def dims(problem, kind):
    """The axes of each statistic at a level, by name."""
    seen = kind.seen(sl.FixedInit(0.3).one(problem))
    return {name: axes for name, (axes, _) in variables(problem, kind, seen).items()}


def norms(data):
    """The squared norms of the trained directions."""
    if "Q" in data:
        return np.diagonal(data.Q.values, axis1=-2, axis2=-1)
    return (data.q if "q" in data else data.m**2 + data.r2).values


def test_dataset_follows_the_schema(problem, level, kind, data):
    assert sl.check(data) is data
    p, k = problem.directions.width, problem.directions.fixed
    sizes = {"student": p, "teacher": k, "student_other": p, "output": OUTPUTS, "task": 2}
    axes = {axis for each in dims(problem, kind).values() for axis in each}
    shown = {axis for variable in data.data_vars.values() for axis in variable.dims}  # schedules have axes of their own
    assert {axis: data.sizes[axis] for axis in shown} == {"run": kind.runs, "t": 4} | {axis: sizes[axis] for axis in axes}
    assert data.t.values[0] == 0
    assert abs(data.t.values[-1] - kind.end) * kind.d <= problem.numerics.samples_per_step // 2
    assert (data.status == "finished").all()
    if kind.steps:
        np.testing.assert_allclose(data.step * problem.numerics.samples_per_step / kind.d, data.t)


def test_all_levels_start_from_the_same_statistics(problem, level, kind, go):
    start = sl.RandomInit(kind.d).one(problem, seed=5)
    first, seen = go(start=start, t_max=16 / kind.d).isel(t=0), kind.seen(start)
    for name, value in parts(problem, kind, seen).items():
        np.testing.assert_allclose(first[name].values, np.broadcast_to(value, first[name].shape), atol=1e-12)
    # The chain has another factor of Omega, and so at nodes other points: equal to what the nodes are worth.
    view = kind.view(problem)
    np.testing.assert_allclose(first.risk.values, float(view.risk(seen)), rtol=max(1e-8, view.numerics.tolerance), atol=1e-12)


def test_same_seed_gives_the_same_numbers_whatever_the_batch(problem, level, kind, go, data):
    """In batches of another size, and watched by a predicate that never holds."""
    never = None if kind.leaps else Beyond(np.inf)
    parts, fewer = go(batch=FEWER, until=never), go(runs=FEWER, until=never)
    # Runs of an ODE in closed form share their steps: equal within its tolerance, which sliding along a kink magnifies.
    tolerance = dict(rtol=0, atol=0) if kind.noisy else dict(rtol=1e-6, atol=1e-8)
    for name in (*dims(problem, kind), "risk"):
        np.testing.assert_allclose(parts[name], data[name], **tolerance)
        np.testing.assert_allclose(fewer[name], data[name][:FEWER], **tolerance)


def test_other_seed_gives_other_numbers(level, go, data):
    assert not np.allclose(overlap(data)[:, -1], overlap(go(seed=4))[:, -1])


def test_saved_file_can_be_loaded_and_run_again(level, data, tmp_path):
    loaded = sl.load(sl.save(data, tmp_path / "data.nc"))
    assert loaded.identical(data)
    np.testing.assert_array_equal(overlap(sl.rerun(loaded)), overlap(data))


def test_until_stops_each_run_where_its_predicate_first_holds(problem, level, kind, go):
    small = 0.04 / kind.d
    how = dict(t_max=8 * kind.end, save=33 if kind.noisy else 2)  # where levels with steps of their own look
    data = go(start=oblique(problem, 1e-3, second=1.0), until=Beyond(small), **how)
    stopped = data.status == "stopped"
    size = (overlap(data) ** 2).sum(overlap(data).dims[2:])
    if not kind.noisy:
        assert (size.values < 0.1).all()
        return
    assert stopped.any()
    last = size.isel(t=-1)
    assert (last.where(stopped, 1) > small).all()
    assert (last.where(~stopped, 0) <= small).all()
    for run in np.flatnonzero(stopped):
        later = data.t.values >= data.t_end.values[run] - 1e-12
        assert np.ptp(size.values[run, later]) == 0
        assert (size.values[run, ~later] <= small).all()
    if kind.steps:
        steps = data.t_end.values * kind.d / problem.numerics.samples_per_step
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)


def test_sphere_alone_keeps_unit_norm(problem, level, data):
    assert (np.abs(norms(data) - 1).max() < 1e-12) == problem.sphere


def test_fixed_second_layer_does_not_move(problem, level, data):
    moves = "a" in data and np.ptp(data.a.values, axis=1).max() > 0
    assert moves == problem.trains_second


def test_mean_over_runs_follows_the_drift(named, problem, level, kind, go):
    """Over a short time all levels move by t times the drift, within 5 sigma and the curvature of the path.

    With so many runs 5 sigma are about what the curvature is allowed: more would hardly tell more.
    """
    start, t, runs = kind.near(named, problem), 0.05, kind.runs * (6 * math.isqrt(D // kind.d) if kind.noisy else 1)
    data = go(start=start, t_max=t, runs=runs, batch=kind.runs, save=[t]).isel(t=0)
    t, seen = float(data.t), kind.seen(start)
    before, slope = (parts(problem, kind, stats) for stats in (seen, kind.view(with_fresh_samples(problem)).drift(seen)))
    for name in before:
        change = data[name].values - before[name]
        error = change.std(0) / np.sqrt(runs)
        expected = t * slope[name]
        assert (np.abs(change.mean(0) - expected) <= 5 * error + 0.1 * np.abs(expected) + 2e-3).all(), name


def test_a_stream_that_is_interrupted_is_the_simulation(level, data, go, monkeypatch):
    """Pieces of single times; stopped after the second, saved state and all, and taken up again."""
    monkeypatch.setattr(sys.modules[sl.simulate.__module__], "MIN_PIECE_SECONDS", 0.0)
    pieces = []
    for piece in go(verb=sl.stream):
        pieces.append(piece)
        if len(pieces) == 2:
            break
    assert go(resume=sl.join(pieces)).identical(data)


def test_observables_stand_beside_the_risk(level, data):
    np.testing.assert_allclose(data.square, (overlap(data) ** 2).sum(overlap(data).dims[2:]), rtol=1e-12, atol=1e-30)
