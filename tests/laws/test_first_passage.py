"""Exit times found while runs are simulated are those of the stored trajectories."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import sgdlimits as sl

PROBLEM = sl.presets.phase_retrieval(lr=0.08, noise=0.1)
NETWORK = sl.presets.phase_retrieval(width=2, lr=0.08, noise=0.1, sphere=False)
D, T_MAX = 30, 25.0
LEVELS = {
    "chain": (sl.Chain(D), np.arange(D * T_MAX + 1) / D, 1e-12),
    "sgd": (sl.SGD(D), np.arange(D * T_MAX + 1) / D, 1e-12),
    "sde": (sl.SDE(D, dt=2 / D, samples=8), np.arange(0, D * T_MAX + 1, 2) / D, 1.01 / D),
    "ode": (sl.ODE(), np.linspace(0, T_MAX, 251), 2e-3),
}

NEVER = sl.exits(1.0)
"""Beyond all that is asked for: stored trajectories share what is compiled with runs that stop."""


def go(level, problem=PROBLEM, **changes):
    arguments = dict(start=sl.RandomInit(D), t_max=T_MAX, runs=16, seed=2, progress=False)
    return sl.simulate(problem, level, **{**arguments, **changes})


@cache
def stored(name, units=1):
    """Trajectories with all steps."""
    level, times, _ = LEVELS[name]
    return go(level, PROBLEM if units == 1 else NETWORK, save=times, until=NEVER)


@pytest.mark.parametrize(("name", "units"), [*((name, 1) for name in LEVELS), ("chain", 2), ("ode", 2)])
def test_exits_found_on_the_way_are_those_of_the_stored_trajectories(name, units):
    """Run by run: to the sample where steps are samples, within a step of two samples, and to the ODE's grid squared."""
    level, _, tolerance = LEVELS[name]
    for T in (0.1, 0.5, 0.9):
        found = go(level, PROBLEM if units == 1 else NETWORK, until=sl.exits(T))
        on_the_way, after = sl.exit_times(found, T), sl.exit_times(stored(name, units), T)
        np.testing.assert_array_equal(on_the_way.censored, after.censored)
        np.testing.assert_allclose(on_the_way.t, after.t, rtol=1e-12, atol=tolerance)
        assert T > 0.5 or float(on_the_way.censored.mean()) < 0.5


def test_coarse_trajectories_are_late_by_the_crossings_that_they_miss():
    """A crossing that is seen at spacing 1/2 has happened; one that came back within the spacing is missed."""
    exact, coarse = (sl.exit_times(each, 0.5) for each in (stored("chain"), go(sl.Chain(D), save=51, until=NEVER)))
    late = (coarse.t - exact.t).values
    assert late.min() > -0.5
    assert 0 < late.mean() < 0.5


@pytest.mark.parametrize("kind", ["margin", "bool"])
@pytest.mark.parametrize("name", ["chain", "ode"])
def test_functions_of_the_statistics_stop_runs_where_the_stored_trajectories_cross(name, kind):
    """SGD and the SDE run the loop of the chain; that each level stops where a function holds is in the contracts."""
    level, _, tolerance = LEVELS[name]
    margin = lambda stats: abs(stats.M[0, 0]) - 0.6
    function = margin if kind == "margin" else lambda stats: margin(stats) >= 0
    on_the_way = sl.exit_times(go(level, until=function), function)
    after = sl.exit_times(stored(name), function)
    np.testing.assert_array_equal(on_the_way.censored, after.censored)
    bool_on_a_grid = kind == "bool" and name == "ode"
    np.testing.assert_allclose(on_the_way.t, after.t, rtol=1e-12, atol=0.101 if bool_on_a_grid else tolerance)


def test_threshold_is_that_of_each_run_and_not_of_their_mean():
    """The excess risk at the exit, over that at the start of the same run, is 1 - T, and below by one sample's step at most."""
    data = go(sl.Chain(1024), start=sl.RandomInit(1024), t_max=60, until=sl.exits(0.3))
    share = (data.risk - data.attrs["floor"]).isel(t=1) / (data.risk - data.attrs["floor"]).isel(t=0)
    assert (data.status == "stopped").all()
    assert (share <= 0.7).all()
    assert (share > 0.69).all()


@cache
def followed():
    """Exit times of a thousand runs that all exit."""
    return sl.exit_times(go(sl.Chain(D), t_max=200, runs=1000, seed=0, until=sl.exits(0.5)), 0.5)


@pytest.mark.full
def test_censoring_leaves_lower_quantiles_as_they_are():
    """The same runs, followed to the end and only until 40 % have exited."""
    whole = followed()
    assert not whole.censored.any()
    end = float(np.quantile(whole.t, 0.4, method="inverted_cdf"))
    part = sl.exit_times(go(sl.Chain(D), t_max=end, runs=1000, seed=0, until=sl.exits(0.5)), 0.5)
    assert float(part.censored.mean()) == pytest.approx(0.6, abs=0.03)
    complete = sl.summarise(whole, [0.3])
    with pytest.warns(sl.CensoredWarning):
        cut = sl.summarise(part, [0.3])
    assert cut.quantiles[0.3].value == complete.quantiles[0.3].value
    assert cut.median.value == np.inf
    assert cut.mean.value < complete.mean.value


@pytest.mark.full  # contracts compare the laws of all statistics
def test_chain_and_sgd_have_the_same_law_of_exit_times(same_law):
    """Up to t = 60."""
    direct = go(sl.SGD(D), runs=1000, t_max=60, seed=1, until=sl.exits(0.5)).t_end.values
    same_law({"t": np.minimum(followed().t.values, 60)}, {"t": direct})
