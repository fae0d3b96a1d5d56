"""Exit times: the definition of an exit, and censored runs."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.level import Condition

PROBLEM = sl.presets.phase_retrieval(lr=0.1, noise=0.2)


def go(level=None, problem=PROBLEM, **changes):
    arguments = dict(t_max=10.0, runs=8, seed=1, progress=False)
    return sl.simulate(problem, level or sl.Chain(30), **{"start": sl.RandomInit(30), **arguments, **changes})


@pytest.fixture(scope="module")
def made():
    """Return a function that makes a dataset of one statistic, M_11, which is also the excess risk, from rows of values."""
    three = go(sl.ODE(), t_max=4.0, save=[0.0, 1.0, 2.0, 4.0], runs=3, start=sl.FixedInit(0.1))

    def make(rows, *, status="finished", t_end=None, d=0, until="", t=None):
        data = three.isel(run=slice(len(rows))).copy(deep=True)
        data.M[:] = np.asarray(rows, float)[:, :, None, None]
        data["risk"][:] = data.attrs["floor"] + np.asarray(rows, float)
        data["status"] = "run", np.broadcast_to(status, len(rows)).astype(str)
        data["t_end"] = "run", np.broadcast_to(4.0 if t_end is None else t_end, len(rows)).astype(float)
        data.attrs |= {"d": d, "until": until}
        return data.set_coords(["status", "t_end"])

    return make


def below(level):
    return lambda stats: level - stats.M[0, 0]


# --- which time it is -----------------------------------------------------------------------------------------------------


def test_crossing_is_interpolated_linearly_between_saved_times(made):
    exits = sl.exit_times(made([[1.0, 0.8, 0.3, 0.1], [1.0, 1.0, 1.0, 0.0]]), 0.5)
    np.testing.assert_allclose(exits.t, [1.6, 3.0])
    assert not exits.censored.any()


def test_each_run_is_compared_with_its_own_start(made):
    exits = sl.exit_times(made([[1.0, 0.6, 0.4, 0.4], [2.0, 1.2, 0.8, 0.8], [0.5, 0.4, 0.4, 0.4]]), 0.5)
    np.testing.assert_allclose(exits.t, [1.5, 1.5, 4.0])
    assert exits.censored.values.tolist() == [False, False, True]


def test_with_a_dimension_the_crossing_is_the_next_whole_sample(made):
    assert sl.exit_times(made([[1.0, 0.8, 0.3, 0.1]], d=4), 0.5).t.values == [1.75]


def test_run_that_is_beyond_at_the_start_exits_at_zero(made):
    data = made([[0.3, 0.5, 0.1, 0.1], [0.3, 0.5, 0.7, 0.1]])
    assert sl.exit_times(data, below(0.4)).t.values.tolist() == [0, 0]
    at_the_floor = sl.exit_times(made([[0.0, 0.1, 0.1, 0.1]]), 0.5)
    assert (float(at_the_floor.t[0]), bool(at_the_floor.censored[0])) == (0, False)


@pytest.mark.parametrize("status", ["finished", "diverged", "interrupted", "stopped"])
def test_run_that_ends_before_its_exit_is_censored_at_its_end(made, status):
    exits = sl.exit_times(made([[1.0, 0.9, 0.8, 0.8]], status=status, t_end=1.5), 0.5)
    assert (float(exits.t[0]), bool(exits.censored[0]), str(exits.status[0].values)) == (1.5, True, status)


def test_state_that_an_ended_run_keeps_belongs_to_its_end(made):
    """Stopped by something else at t = 1.5 with excess risk 0.4: it crossed 0.5 between 1 and 1.5, not between 1 and 2."""
    data = made([[1.0, 0.6, 0.4, 0.4]], status="stopped", t_end=1.5)
    np.testing.assert_allclose(sl.exit_times(data, 0.5).t, [1.25])
    assert sl.exit_times(data, lambda stats: stats.M[0, 0] <= 0.5).t.values == [1.5]


def test_margin_is_interpolated_and_a_bool_is_known_at_saved_times_alone(made):
    data = made([[1.0, 0.8, 0.3, 0.1], [1.0, 1.0, 1.0, 1.0]])
    margin, boolean = sl.exit_times(data, below(0.5)), sl.exit_times(data, lambda stats: stats.M[0, 0] <= 0.5)
    np.testing.assert_allclose(margin.t, [1.6, 4.0])
    np.testing.assert_allclose(boolean.t, [2.0, 4.0])
    assert margin.censored.values.tolist() == boolean.censored.values.tolist() == [False, True]


def test_function_that_stopped_the_runs_has_their_exact_times(made):
    rows = [[1.0, 0.8, 0.3, 0.3], [1.0, 0.9, 0.9, 0.9]]
    ended = dict(status=["stopped", "finished"], t_end=[1.25, 4.0], until=below(0.5).__qualname__)
    assert sl.exit_times(made(rows, **ended), below(0.5)).t.values.tolist() == [1.25, 4.0]
    # Another function of the same name contradicts how the runs ended, and is interpolated.
    np.testing.assert_allclose(sl.exit_times(made(rows, **ended), below(0.85)).t, [0.75, 4.0])
    np.testing.assert_allclose(sl.exit_times(made(rows, **ended), below(0.2)).t, [1.25, 4.0])


def test_interrupted_dataset_keeps_the_exits_it_knows(made):
    data = made([[1.0, 0.8, 0.3, 0.3], [1.0] * 4], status=["stopped", "interrupted"], t_end=[3.1, 1.0]).isel(t=slice(0, 2))
    data.attrs["until"] = go(until=sl.exits(0.5), t_max=0.1).attrs["until"]
    exits = sl.exit_times(data, 0.5)
    assert exits.t.values.tolist() == [3.1, 1.0]
    assert exits.censored.values.tolist() == [False, True]


# --- what simulate does with conditions -----------------------------------------------------------------------------------


def test_with_until_only_the_start_and_the_end_are_saved():
    data = go(until=sl.exits(0.5))
    assert data.t.values.tolist() == [0, 10]
    assert go().sizes["t"] == 200
    assert go(until=sl.exits(0.5), save=5).sizes["t"] == 5


def test_exits_survives_a_file_and_runs_again(tmp_path):
    data = sl.load(sl.save(go(until=sl.exits(0.5)), tmp_path / "data.nc"))
    again = sl.rerun(data)
    np.testing.assert_array_equal(again.t_end, data.t_end)
    assert again.attrs == data.attrs
    assert json.loads(data.attrs["until"])["fields"] == {"threshold": {"array": 0.5}}
    other = sl.rerun(data, until=sl.exits(0.1))
    assert (other.t_end <= data.t_end).all()
    assert sl.rerun(data, until=None).sizes["t"] == 200


def test_dataset_of_exits_says_where_it_comes_from():
    data = go(until=sl.exits(0.5))
    exits = sl.exit_times(data, 0.5)
    assert exits.attrs["threshold"] == 0.5
    assert {"level", "d", "rate", "seed", "problem", "t_max"} <= set(exits.attrs)
    assert set(exits.coords) == {"run", "status"}
    assert dict(exits.sizes) == {"run": 8}
    assert sl.exit_times(data, below(0.5)).attrs["threshold"] == "below.<locals>.<lambda>"


class Shrinks(Condition):
    """The first norm falls below a share of its start: a user's own condition with a memory."""

    share: float

    def begin(self, problem, stats):
        return {"goal": self.share * stats.Q[0, 0]}

    def margin(self, problem, stats, memory):
        return memory["goal"] - stats.Q[0, 0]


@pytest.mark.parametrize("level", [sl.Chain(30), sl.ODE()], ids=lambda level: level.name)
def test_user_can_write_a_condition_with_a_memory(level):
    """In the loop of all levels with a d, and in the solver; `exits`, a condition like this, is tested at all levels."""
    problem = sl.presets.phase_retrieval(lr=0.02, sphere=False)
    start = sl.Overlaps(np.ones((3, 1)), np.zeros((3, 1, 1)), np.array([1.6, 2.0, 3.0])[:, None, None])
    data = go(level, problem, start=start, runs=3, until=Shrinks(0.5), t_max=60)
    assert (data.status == "stopped").all()
    norms = data.Q.values[:, :, 0, 0]
    assert (norms[:, -1] <= norms[:, 0] / 2 * (1 + 1e-9)).all()
    np.testing.assert_array_equal(sl.exit_times(data, Shrinks(0.5)).t, data.t_end)
    share = 0.1 / (1 - norms[:, -1] / norms[:, 0])  # of the straight line between the two saved states
    np.testing.assert_allclose(sl.exit_times(data, Shrinks(0.9)).t, share * data.t_end, atol=1.01 / 30)


def test_conditions_are_compiled_once():
    """A function of Python is called to be traced: not again for more steps, nor in another simulation of that size."""
    calls = []

    def far(stats):
        calls.append(1)
        return jnp.abs(stats.M[0, 0]) - 0.9

    go(until=far, t_max=40)
    first = len(calls)
    go(until=far, t_max=40, seed=2)
    assert len(calls) == first + 1  # the check of what it returns


@pytest.mark.parametrize("level", [sl.Chain(30), sl.ODE()], ids=lambda level: level.name)
def test_exit_times_do_not_depend_on_batches(level):
    """In the loop of all levels with a d, and in the solver; that no level's numbers depend on batches is in the contracts."""
    whole, parts = (go(level, until=sl.exits(0.3), t_max=40, **how) for how in ({}, {"batch": 4}))
    np.testing.assert_allclose(parts.t_end, whole.t_end, rtol=1e-7 if level.name == "ode" else 1e-12)
    assert (whole.status == "stopped").mean() > 0.5


@pytest.mark.full
def test_ended_runs_are_dropped_between_saved_times_without_changing_the_others(monkeypatch):
    """Twice, and what was saved before and after stays as it is; in the kernel that steps all runs that it is given."""
    from sgdlimits.level import pace, stepper

    how = dict(until=sl.exits(0.3), runs=128, t_max=60, save=13, kernel="xla")
    plain = go(**how)
    monkeypatch.setattr(pace, "CALL_SECONDS", 1e-4)
    monkeypatch.setattr(stepper.CallPace, "seconds", property(lambda self: np.inf, lambda self, value: None), raising=False)
    sizes, drop = [], stepper.ProcessStepper._drop
    monkeypatch.setattr(stepper.ProcessStepper, "_drop", lambda self, few: sizes.append(len(few)) or drop(self, few))
    dropped = go(**how)
    assert sizes == [64, 16]
    np.testing.assert_array_equal(dropped.t_end, plain.t_end)
    np.testing.assert_allclose(dropped.M, plain.M, rtol=1e-12)
    np.testing.assert_allclose(dropped.risk, plain.risk, rtol=1e-12)


@pytest.mark.parametrize(("level", "calls"), [(sl.Chain(30), 8), (sl.ODE(), 1)], ids=["chain", "ode"])
def test_interrupted_runs_are_censored_where_they_had_come_to(level, calls, monkeypatch):
    """Ctrl-C long before the first time to save: exits until then are exact, and the others were seen up to that time."""
    from sgdlimits.level import ode, stepper

    whole, left = go(level, until=sl.exits(0.5), t_max=50), iter(range(calls))

    def interrupt(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt

    stop = ode.Solver._locate_stops
    monkeypatch.setattr(stepper.CallPace, "record_call", interrupt)
    monkeypatch.setattr(ode.Solver, "_locate_stops", lambda *args: interrupt() or stop(*args))
    with pytest.raises(sl.Interrupted) as caught:
        go(level, until=sl.exits(0.5), t_max=50)
    data = caught.value.dataset
    exits, all_exits = sl.exit_times(data, 0.5), sl.exit_times(whole, 0.5)
    assert data.t.values.tolist() == [0, data.t_end.max()]
    assert 0 < exits.censored.sum() < 8
    gone = ~exits.censored.values
    np.testing.assert_allclose(exits.t[gone], all_exits.t[gone], rtol=1e-9)
    assert (exits.t.values[~gone] <= all_exits.t.values[~gone]).all()
    assert (exits.t.values[~gone] > 0).all()


# --- the floor ------------------------------------------------------------------------------------------------------------


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 0.5, error**2 / 2, 0.5 * (error - 0.25))


@pytest.mark.parametrize("rule", [None, sl.GaussHermite(40)], ids=["sobol", "grid"])
def test_floor_is_the_mean_loss_of_the_label_without_noise(rule):
    """Against 10^6 draws, within 5 standard errors (false alarms: 6e-7) and the error of the rule at the kink."""
    target = sl.Target(lambda fixed: fixed[0] * fixed[1], teachers=2, noise=0.7)
    problem = sl.ProjectionProblem(target, sl.TwoLayer(1), huber, sl.OnePassSGD(0.1), expectation=rule)
    losses = np.asarray(huber(0.0, np.sqrt(0.7) * np.random.default_rng(0).normal(size=10**6)))
    assert abs(float(problem.floor) - losses.mean()) < 5 * losses.std() / 1e3 + 1e-3


def test_floor_of_a_squared_loss_is_its_weight_times_the_noise():
    assert float(PROBLEM.floor) == pytest.approx(0.1)
    assert float(sl.presets.quadratic_network(noise=0.2).floor) == pytest.approx(0.2)
    assert go().attrs["floor"] == pytest.approx(0.1)
    teacher = sl.Overlaps([1.0], [[1.0]], [[1.0]])
    assert float(PROBLEM.risk(teacher)) == pytest.approx(float(PROBLEM.floor))


def test_floor_can_be_differentiated():
    def by_rule(noise):
        target = sl.Target(lambda fixed: fixed[0], noise=noise)
        return sl.ProjectionProblem(target, sl.TwoLayer(1), lambda f, y: (f - y) ** 4, sl.OnePassSGD(0.1)).floor

    slope = jax.grad(lambda noise: sl.presets.phase_retrieval(noise=noise).floor)(0.3)
    assert float(slope) == pytest.approx(0.5)
    assert float(jax.grad(by_rule)(0.3)) == pytest.approx(6 * 0.3, rel=1e-2)


# --- bad input ------------------------------------------------------------------------------------------------------------

TWO = {"exits": np.array([1.0, 2.0])}
BAD = {
    "threshold must be a finite number above 0; got 0": lambda: sl.exits(0),
    "threshold must be at most 1, the whole excess risk; got 1.5": lambda: sl.exits(1.5),
    "threshold must be one number; got 'half'": lambda: sl.exits("half"),
    "until must be a condition or a function of the statistics of one run; got 0.5": lambda: go(until=0.5),
    "until must return one bool or one number; got shape (1, 1). Sum, index": lambda: go(until=lambda stats: stats.M > 0.5),
    "until must return a bool or real floating-point numbers; got integers": lambda: go(
        until=lambda stats: jnp.argmax(stats.M)
    ),
    "until fails on the statistics of one run: it asks a number that is not known yet": lambda: go(
        until=lambda stats: 1.0 if stats.M[0, 0] > 0.5 else -1.0
    ),
    "until fails on the statistics of one run: 'Overlaps' object has no attribute 'N'": lambda: go(until=lambda stats: stats.N),
    "threshold must be a finite number above 0; got -1": lambda: sl.exit_times(go(), -1),
    "threshold must be one number; got [0.1, 0.5]": lambda: sl.exit_times(go(), [0.1, 0.5]),
    "threshold must be one number; got None": lambda: sl.exit_times(go(), None),
    "threshold fails on the statistics of one run": lambda: sl.exit_times(go(), lambda stats: stats.N),
    "exit times need the start of the runs, but the first saved time is 5": lambda: sl.exit_times(go(save=[5.0, 10.0]), 0.5),
    "the first saved time is 4": lambda: sl.exit_times(go(save=[4.0], until=sl.exits(0.5)), 0.4),
    "not a dataset of simulate": lambda: sl.exit_times(sl.exit_times(go(), 0.5), 0.5),
    "exits must be a dataset of exit times": lambda: sl.summarise(go()),
    "exit times must be a dataset or an array; got a str": lambda: sl.summarise("long"),
    "exit times must be a row of finite numbers of at least 0; got shape (0,)": lambda: sl.summarise([]),
    "exit times must be a row of finite numbers of at least 0; got shape (1,)": lambda: sl.summarise([np.inf]),
    "exit times must be a row of finite numbers of at least 0; got shape (1, 2)": lambda: sl.summarise([[1.0, 2.0]]),
    "quantiles must be between 0 and 1; got 50": lambda: sl.summarise(**TWO, quantiles=[50]),
    "confidence must be between 0 and 1; got 95": lambda: sl.summarise(**TWO, confidence=95),
    "resamples must be an integer of at least 1; got 0": lambda: sl.summarise(**TWO, resamples=0),
    "factor must be a finite number above 0; got 0": lambda: sl.summarise(**TWO).scaled(0),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_gets_a_sentence_with_the_remedy(sentence):
    with pytest.raises(sl.BadInput) as caught:
        BAD[sentence]()
    message = str(caught.value)
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message


def test_dataset_without_its_start_has_the_exits_that_stopped_it():
    data = go(save=[5.0, 10.0], until=sl.exits(0.5))
    np.testing.assert_array_equal(sl.exit_times(data, 0.5).t, data.t_end)


def test_thresholds_share_what_is_compiled():
    from sgdlimits.level import condition

    traced, risk = [], condition.exit_risk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(condition, "exit_risk", lambda *args: traced.append(1) or risk(*args))
        go(until=sl.exits(0.21))
        before = len(traced)
        go(until=sl.exits(0.22))
    assert len(traced) == before + 1  # the check of what it returns
