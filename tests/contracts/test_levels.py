"""What every problem keeps at every level."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

D, RUNS = 1024, 8
"""From this dimension on the chain's blocks have their full size, so that larger dimensions share what is compiled."""
risk = eqx.filter_jit(lambda problem, stats: problem.risk(stats))
drift = eqx.filter_jit(lambda problem, stats: problem.drift(stats))
covariance = eqx.filter_jit(lambda problem, stats: problem.covariance(stats))
PAIRS = [
    ("absolute_huber_product", "sgd"), ("unequal_teachers", "chain"), ("own_mixture", "sde"), ("unequal_teachers", "ode"),
    ("spiked_tensor", "sgd"), ("spiked_tensor", "chain"), ("spiked_tensor", "sde"), ("absolute_huber_product", "ode"),
]  # fmt: skip
by_machinery = pytest.mark.parametrize(("problem", "level"), PAIRS, indirect=True)
"""For what the loops of a level decide and no problem changes: each loop once, each problem, classes and batches in one."""


def end(level):
    """When simulations end: earlier at the ODE, which is smooth, and slow where its drift is a sum over Sobol points."""
    return 0.25 if level.name == "ode" else 1.0


def go(problem, level, **changes):
    arguments = dict(t_max=end(level), runs=RUNS, seed=3, save=4, progress=False)
    return sl.simulate(problem, level, **{"start": sl.RandomInit(D), **arguments, **changes})


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture
def data(problem, level, made, request):
    """The dataset of `go`, made once for all tests that only look at it."""
    key = tuple(request.node.callspec.params[name] for name in ("problem", "level"))
    if key not in made:
        made[key] = go(problem, level(D))
    return made[key]


def dims(problem):
    """The axes of each statistic, by name."""
    return type(sl.FixedInit(0.3).one(problem)).dims


def overlap(stats):
    """The overlaps with the fixed directions, of statistics or a dataset."""
    return stats.M if hasattr(stats, "M") else stats.m


def algorithm(problem, name):
    """What the algorithm of a problem does, if it is a choice there."""
    return hasattr(problem, "algorithm") and getattr(problem.algorithm, name)


def test_dataset_follows_the_schema(problem, level, data):
    assert sl.check(data) is data
    p, k = problem.directions.width, problem.directions.fixed
    sizes = {"student": p, "teacher": k, "student_other": p}
    axes = {axis for each in dims(problem).values() for axis in each}
    assert dict(data.sizes) == {"run": RUNS, "t": 4} | {axis: sizes[axis] for axis in axes}
    assert data.t.values[0] == 0
    assert abs(data.t.values[-1] - end(level(D))) * D <= problem.samples_per_step // 2
    assert (data.status == "finished").all()


def test_all_levels_start_from_the_same_statistics(problem, level):
    start = sl.RandomInit(D).one(problem, seed=5)
    first = go(problem, level(D), start=start, t_max=16 / D).isel(t=0)
    for name in dims(problem):
        np.testing.assert_allclose(first[name].values, np.broadcast_to(getattr(start, name), first[name].shape), atol=1e-12)
    np.testing.assert_allclose(first.risk.values, float(risk(problem, start)), rtol=1e-8, atol=1e-12)


@by_machinery
def test_same_seed_gives_the_same_numbers_whatever_the_batch(problem, level, data):
    parts, fewer = go(problem, level(D), batch=2), go(problem, level(D), runs=2)
    # Runs of an ODE in closed form share their steps: equal within its tolerance.
    tolerance = dict(rtol=1e-7, atol=1e-9) if level(D).name == "ode" else dict(rtol=1e-12, atol=1e-13)
    for name in (*dims(problem), "risk"):
        np.testing.assert_allclose(parts[name], data[name], **tolerance)
        np.testing.assert_allclose(fewer[name], data[name][:2], **tolerance)


@by_machinery
def test_other_seed_gives_other_numbers(problem, level, data):
    assert not np.allclose(overlap(data)[:, -1], overlap(go(problem, level(D), seed=4))[:, -1])


@by_machinery
def test_saved_file_can_be_loaded_and_run_again(data, tmp_path):
    loaded = sl.load(sl.save(data, tmp_path / "data.nc"))
    assert loaded.identical(data)
    np.testing.assert_array_equal(overlap(sl.rerun(loaded)), overlap(data))


@by_machinery
def test_until_stops_each_run_where_its_predicate_first_holds(problem, level):
    def far(stats):
        return (overlap(stats) ** 2).sum() > small

    small = 0.04 / D
    data = go(problem, level(D), start=sl.FixedInit(0.0), until=far, t_max=8 * end(level(D)), save=30)
    stopped = data.status == "stopped"
    size = (overlap(data) ** 2).sum(overlap(data).dims[2:])
    if level(D).name == "ode":
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
    if level(D).name != "sde":
        steps = data.t_end.values * D / problem.samples_per_step
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)


def test_sphere_alone_keeps_unit_norm(problem, data):
    norms = np.diagonal(data.Q.values, axis1=-2, axis2=-1) if "Q" in data else (data.m**2 + data.r2).values
    assert (np.abs(norms - 1).max() < 1e-12) == algorithm(problem, "sphere")


def test_fixed_second_layer_does_not_move(problem, data):
    moves = "a" in data and np.ptp(data.a.values, axis=1).max() > 0
    assert moves == algorithm(problem, "trains_second")


def test_mean_over_runs_follows_the_drift(problem, level):
    """Over a short time all levels move by t times the drift, within 5 sigma and the curvature of the path."""
    start, t, runs = sl.FixedInit(0.3).one(problem), 0.05, RUNS if level(D).name == "ode" else 50 * RUNS
    data = go(problem, level(D), start=start, t_max=t, runs=runs, batch=RUNS, save=[t]).isel(t=0)
    t, slope = float(data.t), drift(problem, start)
    for name in dims(problem):
        change = data[name].values - np.asarray(getattr(start, name))
        error = change.std(0) / np.sqrt(runs)
        expected = t * np.asarray(getattr(slope, name))
        assert (np.abs(change.mean(0) - expected) <= 5 * error + 0.1 * np.abs(expected) + 2e-3).all(), name


def test_chain_has_the_law_of_sgd(problem, same_law):
    times = np.array([1, 10, 100]) / 20
    data = [
        go(problem, level, start=sl.RandomInit(20), t_max=5.0, runs=2000, seed=seed, save=times)
        for seed, level in enumerate((sl.Chain(20), sl.SGD(20)))
    ]
    same_law(*({name: each[name].values for name in dims(problem)} for each in data))


def test_drift_can_be_differentiated_and_batched(problem, random_statistics):
    stats = [random_statistics(problem, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stats)
    together = eqx.filter_jit(eqx.filter_vmap(drift, in_axes=(None, 0)))(problem, stacked)
    for i, one in enumerate(stats):
        for left, right in zip(jax.tree.leaves(together), jax.tree.leaves(drift(problem, one)), strict=True):
            np.testing.assert_allclose(left[i], right, rtol=1e-10, atol=1e-12)
    jacobian = eqx.filter_jit(lambda problem, s: jax.jacfwd(lambda one: problem.drift(one))(s))(problem, stats[0])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jacobian))


def test_covariance_is_symmetric_and_positive(problem, random_statistics):
    C = np.asarray(covariance(problem, random_statistics(problem)))
    np.testing.assert_allclose(C, C.T, atol=1e-10 * np.abs(C).max())
    assert np.linalg.eigvalsh(C).min() > -1e-10 * np.abs(C).max()
