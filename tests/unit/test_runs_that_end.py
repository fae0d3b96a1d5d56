"""Runs that diverge, and runs that are interrupted."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl


@pytest.mark.parametrize("level", [sl.SGD(60), sl.Chain(60), sl.SDE(60), sl.ODE()], ids=lambda level: level.name)
def test_diverged_runs_are_data_and_the_others_go_on(level):
    """Starts with large norms diverge, those with small ones do not; one warning with the remedy; nothing is NaN."""
    problem = sl.presets.phase_retrieval(lr=0.05, sphere=False)
    norms = np.array([0.5, 40.0, 0.7, 60.0])
    start = sl.Overlaps(np.ones((4, 1)), np.zeros((4, 1, 1)), norms[:, None, None])
    with pytest.warns(sl.DivergedWarning, match="2 of 4 runs diverged.*Use a smaller lr") as caught:
        data = sl.simulate(problem, level, start, t_max=3, runs=4, save=7, progress=False)
    assert len(caught) == 1
    assert data.status.values.tolist() == ["finished", "diverged", "finished", "diverged"]
    sl.check(data)
    assert (data.t_end.values[[1, 3]] < 3).all()
    assert (data.t_end.values[[0, 2]] == 3).all()
    alike = sl.simulate(problem, level, sl.Overlaps([1.0], [[0.0]], [[0.5]]), t_max=3, runs=4, save=7, progress=False)
    np.testing.assert_allclose(alike.Q[0], data.Q[0], rtol=1e-6)
    assert np.isfinite(data.risk.mean("run")).all()


def test_ended_runs_are_dropped_without_changing_the_others(monkeypatch):
    """Compaction of a batch changes nothing."""
    from sgdlimits.level import process

    problem, stop = sl.presets.phase_retrieval(lr=0.1), lambda stats: jnp.abs(stats.M[0, 0]) > 0.2
    arguments = dict(t_max=20, runs=16, save=40, until=stop, progress=False)
    plain = sl.simulate(problem, sl.Chain(100), sl.RandomInit(100), **arguments)
    monkeypatch.setattr(process._Pace, "seconds", property(lambda self: 2.0, lambda self, value: None), raising=False)
    dropped = sl.simulate(problem, sl.Chain(100), sl.RandomInit(100), **arguments)
    assert (plain.status == "stopped").mean() > 0.5
    np.testing.assert_allclose(dropped.M, plain.M, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(dropped.t_end, plain.t_end)


@pytest.mark.parametrize("level", [sl.Chain(60), sl.SGD(60), sl.SDE(60), sl.ODE()], ids=lambda level: level.name)
def test_interruption_keeps_what_was_reached(level, monkeypatch):
    """Ctrl-C in the middle of the only batch: the exception carries a dataset of the times reached."""
    from sgdlimits.level import ode, process

    def interrupt(self, *args):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(process._Pace, "note", interrupt)
    hits = ode._Solve._hits
    monkeypatch.setattr(ode._Solve, "_hits", lambda self, *args: interrupt(self) or hits(self, *args))
    with pytest.raises(sl.Interrupted) as caught:
        sl.simulate(sl.presets.phase_retrieval(), level, sl.RandomInit(60), t_max=100, runs=4, save=500, progress=False)
    data = caught.value.dataset
    sl.check(data)
    assert 1 <= data.sizes["t"] < 500
    assert (data.status == "interrupted").all()
    assert (data.t_end >= data.t[-1]).all()
    assert (data.t_end < 100).all()


def test_interruption_keeps_the_finished_batches(monkeypatch):
    from sgdlimits.level.chain import Chain

    calls, run = [], Chain.run

    def interrupted_at_the_second(self, problem, starts, job):
        calls.append(1)
        track = run(self, problem, starts, job)
        return track if len(calls) < 2 else track._replace(saved=1)

    monkeypatch.setattr(Chain, "run", interrupted_at_the_second)
    with pytest.raises(KeyboardInterrupt) as caught:
        sl.simulate(
            sl.presets.phase_retrieval(),
            sl.Chain(30),
            sl.RandomInit(30),
            t_max=1,
            runs=6,
            batch=2,
            save=3,
            progress=False,
        )
    assert caught.value.dataset.sizes == {"run": 2, "t": 3, "student": 1, "teacher": 1, "student_other": 1}
    assert (caught.value.dataset.status == "finished").all()


def test_interruption_between_batches_keeps_the_finished_ones(monkeypatch):
    module = sys.modules[sl.simulate.__module__]

    calls, draw = [], module._starts

    def interrupted_at_the_third(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return draw(*args)

    monkeypatch.setattr(module, "_starts", interrupted_at_the_third)
    with pytest.raises(sl.Interrupted) as caught:
        sl.simulate(sl.presets.phase_retrieval(), sl.Chain(30), sl.RandomInit(30), t_max=1, runs=6, batch=2, save=3)
    assert caught.value.dataset.sizes["run"] == 4


def test_a_time_that_rounds_to_the_start_is_saved_as_the_start():
    data = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(10), sl.RandomInit(10), t_max=1, save=[0.001, 1.0])
    assert data.t.values.tolist() == [0.0, 1.0]
