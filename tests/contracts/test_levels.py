"""What every problem keeps at every level."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import sgdlimits as sl

D, RUNS = 40, 6


def go(problem, level, **changes):
    arguments = dict(t_max=1.0, runs=RUNS, seed=3, save=4, progress=False)
    return sl.simulate(problem, level, **{"start": sl.RandomInit(D), **arguments, **changes})


def test_dataset_follows_the_schema(problem, level):
    data = go(problem, level(D))
    assert sl.check(data) is data
    p, k = problem.network.width, problem.target.teachers
    assert dict(data.sizes) == {"run": RUNS, "t": 4, "student": p, "teacher": k, "student_other": p}
    assert data.t.values[0] == 0
    assert abs(data.t.values[-1] * D - D) <= problem.samples_per_step // 2
    assert (data.status == "finished").all()


def test_all_levels_start_from_the_same_statistics(problem, level):
    start = sl.RandomInit(D).one(problem, seed=5)
    first = go(problem, level(D), start=start).isel(t=0)
    for name in ("a", "M", "Q"):
        np.testing.assert_allclose(first[name].values, np.broadcast_to(getattr(start, name), first[name].shape), atol=1e-12)
    np.testing.assert_allclose(first.risk.values, float(problem.risk(start)), rtol=1e-8, atol=1e-12)


def test_same_seed_gives_the_same_numbers_whatever_the_batch(problem, level):
    whole, parts = go(problem, level(D)), go(problem, level(D), batch=2)
    fewer = go(problem, level(D), runs=2)
    # Runs of an ODE in closed form share their steps: equal within its tolerance.
    tolerance = dict(rtol=1e-7, atol=1e-9) if level(D).name == "ode" else dict(rtol=1e-12, atol=1e-13)
    for name in ("a", "M", "Q", "risk"):
        np.testing.assert_allclose(parts[name], whole[name], **tolerance)
        np.testing.assert_allclose(fewer[name], whole[name][:2], **tolerance)


def test_other_seed_gives_other_numbers(problem, level):
    assert not np.allclose(go(problem, level(D)).M[:, -1], go(problem, level(D), seed=4).M[:, -1])


def test_saved_file_can_be_loaded_and_run_again(problem, level, tmp_path):
    data = go(problem, level(D))
    loaded = sl.load(sl.save(data, tmp_path / "data.nc"))
    assert loaded.identical(data)
    again = sl.rerun(loaded)
    np.testing.assert_array_equal(again.M, data.M)


def test_until_stops_each_run_where_its_predicate_first_holds(problem, level):
    def far(stats):
        return (stats.M**2).sum() > 1e-3

    data = go(problem, level(D), start=sl.FixedInit(0.0), until=far, t_max=8.0, save=30)
    stopped = data.status == "stopped"
    size = (data.M**2).sum(("student", "teacher"))
    if level(D).name == "ode":
        assert (size.values < 0.1).all()
        return
    assert stopped.any()
    end = size.isel(t=-1)
    assert (end.where(stopped, 1) > 1e-3).all()
    assert (end.where(~stopped, 0) <= 1e-3).all()
    for run in np.flatnonzero(stopped):
        later = data.t.values >= data.t_end.values[run] - 1e-12
        assert np.ptp(size.values[run, later]) == 0
        assert (size.values[run, ~later] <= 1e-3).all()
    if level(D).name != "sde":
        steps = data.t_end.values * D / problem.samples_per_step
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)


def test_sphere_alone_keeps_unit_norm(problem, level):
    norms = np.diagonal(go(problem, level(D)).Q.values, axis1=-2, axis2=-1)
    assert (np.abs(norms - 1).max() < 1e-12) == problem.algorithm.sphere


def test_fixed_second_layer_does_not_move(problem, level):
    a = go(problem, level(D)).a.values
    moves = np.ptp(a, axis=1).max() > 0
    assert moves == problem.algorithm.trains_second


def test_mean_over_runs_follows_the_drift(problem, level):
    """Over a short time all levels move by t times the drift, within 5 sigma and the curvature of the path."""
    start, d, t, runs = sl.FixedInit(0.3).one(problem), 2000, 0.05, 1 if level(9).name == "ode" else 400
    if level(9).name == "sgd":
        d, runs = 500, 200
    data = go(problem, level(d), start=start, t_max=t, runs=runs, save=[t]).isel(t=0)
    t, slope = float(data.t), problem.drift(start)
    for name in ("a", "M", "Q"):
        change = data[name].values - np.asarray(getattr(start, name))
        error = change.std(0) / np.sqrt(runs) if runs > 1 else 0.0
        expected = t * np.asarray(getattr(slope, name))
        assert (np.abs(change.mean(0) - expected) <= 5 * error + 0.1 * np.abs(expected) + 2e-3).all(), name


def test_chain_has_the_law_of_sgd(problem, same_law):
    times = np.array([1, 10, 100]) / 20
    data = [
        go(problem, level, start=sl.RandomInit(20), t_max=5.0, runs=2000, seed=seed, save=times)
        for seed, level in enumerate((sl.Chain(20), sl.SGD(20)))
    ]
    same_law(*({name: each[name].values for name in ("a", "M", "Q")} for each in data))


def test_drift_can_be_differentiated_and_batched(problem, random_overlaps):
    import jax

    stats = [random_overlaps(problem, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stats)
    together = jax.vmap(problem.drift)(stacked)
    for i, one in enumerate(stats):
        np.testing.assert_allclose(together.Q[i], problem.drift(one).Q, rtol=1e-10, atol=1e-12)
    jacobian = jax.jacfwd(lambda s: problem.drift(s).M)(stats[0])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jacobian))


def test_covariance_is_symmetric_and_positive(problem, random_overlaps):
    C = np.asarray(problem.covariance(random_overlaps(problem)))
    np.testing.assert_allclose(C, C.T, atol=1e-10 * np.abs(C).max())
    assert np.linalg.eigvalsh(C).min() > -1e-10 * np.abs(C).max()
