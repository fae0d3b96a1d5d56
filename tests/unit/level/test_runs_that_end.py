"""Runs that diverge, and runs that are interrupted."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.random import Stream
from sgdlimits.level.process import reports_problem_risk
from sgdlimits.level.stepper import initial_carry
from sgdlimits.run.runner import Simulation


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


@pytest.mark.parametrize("level", [sl.Chain(60), sl.ODE()], ids=lambda level: level.name)
def test_interruption_keeps_what_was_reached(level, monkeypatch):
    """Ctrl-C in the middle of the only batch: the exception carries a dataset of the times reached.

    In the loop of all levels with a d, and in the solver.
    """
    from sgdlimits.level import ode, stepper

    def interrupt(self, *args):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(stepper.CallPace, "record_call", interrupt)
    hits = ode.Solver._check_condition
    monkeypatch.setattr(ode.Solver, "_check_condition", lambda self, *args: interrupt(self) or hits(self, *args))
    with pytest.raises(sl.Interrupted) as caught:
        sl.simulate(sl.presets.phase_retrieval(), level, sl.RandomInit(60), t_max=100, runs=4, save=500, progress=False)
    data = caught.value.dataset
    sl.check(data)
    assert 1 <= data.sizes["t"] < 500
    assert (data.status == "interrupted").all()
    assert (data.t_end >= data.t[-1]).all()
    assert (data.t_end < 100).all()


def test_interruption_keeps_the_finished_batches_and_how_far_the_next_had_come(monkeypatch):
    from sgdlimits.level import pace, stepper

    go = dict(start=sl.RandomInit(30), t_max=10, runs=6, batch=2, save=3, progress=False)
    calls, note = [], stepper.CallPace.record_call

    def interrupt(*args):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        note(*args)

    whole = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(30), **go)
    monkeypatch.setattr(pace, "CALL_SECONDS", 1e9)
    monkeypatch.setattr(stepper.CallPace, "record_call", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        sl.simulate(sl.presets.phase_retrieval(), sl.Chain(30), **go)
    data = caught.value.dataset
    assert dict(data.sizes) == {"run": 4, "t": 3, "student": 1, "teacher": 1, "student_other": 1}
    assert data.status.values.tolist() == ["finished"] * 2 + ["interrupted"] * 2
    assert (data.t_end.values[2:] < 10).all()
    again = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(30), resume=data, **go)
    assert again.identical(whole)


@pytest.mark.parametrize("save", [[0.0, 50.0], [50.0]], ids=["from the start", "only at the end"])
@pytest.mark.parametrize("level", [sl.Chain(30), sl.ODE()], ids=lambda level: level.name)
def test_interruption_long_before_the_first_saved_time_keeps_where_the_runs_were(level, save, monkeypatch, tmp_path):
    """As a time of its own, which `resume` takes out again: what was computed is not computed again."""
    from sgdlimits.level import ode, stepper

    calls = []

    def interrupted(method):
        def call(*args):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return method(*args)

        return call

    go = dict(start=sl.RandomInit(30), t_max=50, runs=3, save=save, progress=False)
    whole = sl.simulate(sl.presets.phase_retrieval(), level, **go)
    monkeypatch.setattr(stepper.CallPace, "record_call", interrupted(stepper.CallPace.record_call))
    monkeypatch.setattr(ode.Solver, "_check_condition", interrupted(ode.Solver._check_condition))
    with pytest.raises(sl.Interrupted) as caught:
        sl.simulate(sl.presets.phase_retrieval(), level, **go)
    monkeypatch.undo()
    data = sl.load(sl.save(caught.value.dataset, tmp_path / "x.nc"))
    assert data.t.values[0] == 0
    assert 0 < data.t.values[-1] < 50
    assert (data.t_end == data.t[-1]).all()
    assert (abs(data.M[:, -1] - data.M[:, 0]) > 0).all()
    again = sl.simulate(sl.presets.phase_retrieval(), level, resume=data, **go)
    assert again.sel(t=whole.t).identical(whole)


def test_interruption_between_batches_keeps_the_finished_ones(monkeypatch):
    calls, begin = [], Simulation._make_runner

    def interrupted_at_the_third(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return begin(*args)

    monkeypatch.setattr(Simulation, "_make_runner", interrupted_at_the_third)
    with pytest.raises(sl.Interrupted) as caught:
        sl.simulate(sl.presets.phase_retrieval(), sl.Chain(30), sl.RandomInit(30), t_max=1, runs=6, batch=2, save=3)
    assert caught.value.dataset.sizes["run"] == 4


def test_a_time_that_rounds_to_the_start_is_saved_as_the_start():
    data = sl.simulate(sl.presets.phase_retrieval(), sl.Chain(30), sl.RandomInit(30), t_max=1, runs=2, save=[0.001, 1.0])
    assert data.t.values.tolist() == [0.0, 1.0]


CASES = [(sl.Chain(60), "phase_retrieval"), (sl.Chain(60), "binary_mixture"), (sl.SGD(60), "phase_retrieval")]


@pytest.mark.parametrize(("level", "preset"), CASES, ids=["chain", "mixture", "sgd"])
def test_a_risk_that_is_known_is_that_from_which_runs_set_out(level, preset):
    """Chains of squares show a risk of their factor; conditions look at that of the statistics, which all others show."""
    problem, until, start = getattr(sl.presets, preset)(), sl.exits(0.5), sl.RandomInit(60)
    engine, stream = level.make_engine(problem, start, None), Stream.from_seed(1, np.arange(16))
    process = engine.process
    state = process.start(engine.draw_starts(start, stream))
    risk = np.asarray(process.risk(state, process.statistics(state), np.zeros(16)))
    alone = initial_carry(process, until, state)
    assert not np.asarray(alone.stopped).any()
    assert reports_problem_risk(process) == ((level.name, preset) != ("chain", "phase_retrieval"))
    if reports_problem_risk(process):
        known = initial_carry(process, until, state, risk)
        np.testing.assert_allclose(known.memory, alone.memory, rtol=1e-14)
        assert np.asarray(initial_carry(process, until, state, np.full(16, float(problem.floor))).stopped).all()
