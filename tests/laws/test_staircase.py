"""Small overlaps are followed where expectations are sums over nodes: sign(x1) + 0.3 x2 x3, learnt by softplus units."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl


def staircase(x):
    return jnp.sign(x[0]) + 0.3 * x[1] * x[2]


def problem(rule=None):
    network = sl.TwoLayer(3, jax.nn.softplus)
    return sl.ProjectionProblem(sl.Target(staircase, 3), network, sl.SquaredLoss(), sl.OnePassSGD(lr=4.0), expectation=rule)


M = np.array([[0.0, 0.1, 0.1], [0.0, 0.08, 0.12], [0.0, 0.12, 0.08]])
START = sl.Overlaps(np.ones(3), M, np.eye(3) + M @ M.T)


@pytest.mark.full
def test_ode_at_its_default_nodes_agrees_with_the_chain_along_small_overlaps():
    """The means of M along x2 and x3 over 48 runs, within 3 standard errors; two numbers: false alarms 0.5 per cent."""
    ode = sl.simulate(problem(), sl.ODE(), START, t_max=15.0, save=2, progress=False)
    chain = sl.simulate(problem(), sl.Chain(3000), START, t_max=15.0, save=2, runs=48, seed=1, progress=False)
    limit, runs = (data.M.isel(t=-1).mean("student").isel(teacher=slice(1, 3)).values for data in (ode, chain))
    error = runs.std(0, ddof=1) / np.sqrt(len(runs))
    assert (np.abs(runs.mean(0) - limit[0]) < 3 * error).all(), (limit, runs.mean(0), error)


def test_nodes_are_added_until_small_overlaps_are_resolved():
    """At a random start M is of order 1/sqrt(d); a rule that was asked for is kept, with a warning."""
    start = sl.RandomInit(2000).one(problem(), seed=3)
    refined = problem().numerics.refined(start)
    assert refined.expectation.rule.log2_points in (12, 14)
    with pytest.warns(
        sl.AccuracyWarning,
        match=r"have a relative error of about .*, above the requested .*. Give the problem "
        "expectation=Sobol",
    ):
        assert problem(sl.Sobol(6)).numerics.refined(start).expectation.rule == sl.Sobol(6)


def test_overlaps_that_are_zero_by_symmetry_are_no_alarm():
    """M = 0 along x2 and x3: their drift is zero, and so is its error."""
    start = sl.Overlaps(np.ones(3), np.diag([0.5, 0.0, 0.0]), np.eye(3))
    problem(sl.Sobol(log2_points=10)).numerics.refined(start)


# --- leaps -------------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", ["x1 + x1 x2", "x1 + x1 x2 x3", "x1 x2 x3"])
def test_samples_grow_and_directions_are_found_as_the_leaps_of_the_target_say(name, say):
    """One unit, 24 runs at two dimensions: exponents within 0.3, the error of a fit of two medians, and the order of leaps."""
    from sgdlimits.papers.figure import select_rows, tabulate
    from sgdlimits.papers.new_results.figures import staircase as figure

    hard = max(leap.order for leap in sl.leaps(figure.build_target(name))) > 2
    table = tabulate(figure.measure_leaps(name, (800, 2400) if hard else (1000, 8000), runs=24, seed=1))
    times = []
    for stage, leap in enumerate(sl.leaps(figure.build_target(name))):
        rows = select_rows(table, stage=stage)
        say(
            f"{name}, leap {leap.order}: exponent {figure.fit_exponent(rows):.2f}, "
            f"t = {rows.t.values}, {rows.lost.values} not done"
        )
        assert abs(figure.fit_exponent(rows) - leap.samples) < 0.3
        times.append(rows.t.values)
    assert (np.diff(times, axis=0) > 0).all()
