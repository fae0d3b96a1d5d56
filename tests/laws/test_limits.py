"""How the levels approach each other as d grows."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl

NETWORK = sl.presets.phase_retrieval(width=2, lr=0.2, noise=0.1)
START = sl.Overlaps([1.0, 1.0], [[0.3], [-0.2]], [[1.0, 0.2], [0.2, 1.0]])
flow = eqx.filter_jit(sl.flow)


def gap(left, right):
    """sup_t E |left - right| over the statistics."""
    distance = sum(((left[name] - right[name]) ** 2).sum(left[name].dims[2:]) for name in ("M", "Q", "a")) ** 0.5
    return float(distance.mean("run").max("t"))


def test_gap_to_ode_shrinks_as_inverse_root_d():
    """From d = 1000 to 30000 the fitted exponent is -1/2 within 0.05, which is six of its standard errors."""
    problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
    start = sl.Overlaps([1, 1], [[0.5, 0.1], [-0.2, 0.4]], np.eye(2))
    times = np.linspace(0.25, 1, 4)
    ode = sl.simulate(problem, sl.ODE(), start, t_max=1, save=times).isel(run=0, drop=True)
    # The exponent's own error is about 0.4 / sqrt(runs) / log(30): most runs where they are cheap.
    sizes, runs = [1000, 5000, 30_000], [2048, 1024, 256]
    gaps = [
        gap(sl.simulate(problem, sl.Chain(d), start, t_max=1, runs=n, save=times, batch=256, progress=False), ode)
        for d, n in zip(sizes, runs, strict=True)
    ]
    weights = np.sqrt(runs)
    exponent = np.polyfit(np.log(sizes), np.log(gaps), 1, w=weights)[0]
    print(f"fitted exponent {exponent:.3f}, gaps {np.round(gaps, 6)}")
    assert abs(exponent + 0.5) < 0.05


def test_sde_has_the_variance_of_the_chain_to_leading_order():
    """d Var of each statistic: the ratio of SDE to chain is 1 within 10 % at d = 2500 (3072 runs, 2.6 % each)."""
    d, how = 2500, dict(t_max=2, runs=3072, save=[1.0, 2.0], batch=256, progress=False)
    chain = sl.simulate(NETWORK, sl.Chain(d), START, seed=1, **how)
    sde = sl.simulate(NETWORK, sl.SDE(d, samples=8), START, seed=2, **how)
    ratios = np.concatenate(
        [(sde[name].var("run") / chain[name].var("run")).values.ravel() for name in ("M", "risk")]
        + [(sde.Q[..., 0, 1].var("run") / chain.Q[..., 0, 1].var("run")).values]
    )
    means = [abs(sde[n].mean("run") - chain[n].mean("run")) / chain[n].std("run") for n in ("M", "risk")]
    print(ratios)
    assert np.abs(ratios - 1).max() < 0.1  # 4 sigma of a ratio of two variances of 3072 runs
    assert all(float(m.max()) < 0.1 for m in means)


def test_noise_of_the_sde_has_the_covariance_of_the_increments(random_overlaps):
    """One step of size h from a point: covariance h/d times problem.covariance, entry by entry within 5 sigma."""
    from sgdlimits.statistics.overlaps import to_vector
    from sgdlimits.statistics.trees import move_runs_last

    problem = sl.presets.phase_retrieval(width=2, lr=0.3, noise=0.2, sphere=False, train_second=True)
    stats, d, h, runs = random_overlaps(problem, seed=3), 10**8, 1e-6, 8192
    out = sl.simulate(problem, sl.SDE(d, dt=h), stats, t_max=h, runs=runs, save=[h], progress=False)
    moved = sl.Overlaps(*(out[name].values[:, 0] for name in ("a", "M", "Q")))
    kicks = np.asarray(to_vector(move_runs_last(moved), True)).T
    kicks = (kicks - kicks.mean(0)) * np.sqrt(d / h)
    got, expected = kicks.T @ kicks / runs, np.asarray(eqx.filter_jit(problem.covariance)(stats))
    products = kicks[:, :, None] * kicks[:, None]
    error = products.std(0) / np.sqrt(runs)
    assert (np.abs(got - expected) < 5 * error).all()


@pytest.mark.full
def test_ode_agrees_with_the_differentiable_flow():
    ode = sl.simulate(NETWORK, sl.ODE(), START, t_max=20, save=[20.0])
    end = flow(NETWORK, START, jnp.array(20.0))
    np.testing.assert_allclose(ode.M.values[0, 0], end.M, rtol=1e-7)
    np.testing.assert_allclose(ode.Q.values[0, 0], end.Q, rtol=1e-7)
    both = flow(NETWORK, START, jnp.array([5.0, 20.0]))
    np.testing.assert_allclose(both.M[1], end.M, rtol=1e-7)
    np.testing.assert_allclose(both.M[0], flow(NETWORK, START, jnp.array(5.0)).M, rtol=1e-7)


def test_gradient_flow_never_raises_the_risk_and_large_steps_pay_for_it():
    flow = sl.simulate(NETWORK, sl.ODE(corrector=False), START, t_max=60)
    steps = sl.simulate(NETWORK, sl.ODE(), START, t_max=60)
    assert (np.diff(flow.risk.values) < 1e-12).all()
    assert flow.risk.values[0, -1] < steps.risk.values[0, -1]


def test_stiff_problems_are_solved_by_the_implicit_method():
    """A second layer ten thousand times faster than the first: explicit steps would number millions."""
    problem = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("square")), sl.TwoLayer(1), sl.SquaredLoss(), sl.OnePassSGD(0.01, lr_second=300.0)
    )
    start = sl.Overlaps([1.0], [[0.4]], [[1.0]])
    end = sl.simulate(problem, sl.ODE(rtol=1e-7, atol=1e-9), start, t_max=100, save=[100.0]).isel(run=0, t=0)
    # The fast layer stays at its optimum: E[D lambda^2] = 0, so 3 a q^2 = q + 2 m^2.
    q, m = float(end.Q[0, 0]), float(end.M[0, 0])
    np.testing.assert_allclose(float(end.a[0]), (q + 2 * m**2) / (3 * q**2), rtol=1e-3)


def test_perfect_recovery_goes_on_to_the_last_digits():
    """Noise 0: the chain reaches risk 1e-25 without NaN or a negative eigenvalue, and SDE and ODE go on too."""
    problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.06)
    start = sl.FixedInit(0.3 * np.eye(2) + 0.1)
    chain = sl.simulate(problem, sl.Chain(200), start, t_max=400, runs=16, save=40, progress=False)
    assert chain.risk.values[:, -1].max() < 1e-25
    assert chain.risk.values.min() >= 0
    M, Q = chain.M.values, chain.Q.values
    assert np.linalg.eigvalsh(Q - M @ np.swapaxes(M, -1, -2)).min() > -1e-14
    for level, runs in ((sl.SDE(200), 4), (sl.ODE(), 1)):
        other = sl.simulate(problem, level, start, t_max=400, runs=runs, save=40, progress=False)
        sl.check(other)
        assert (other.status == "finished").all()
        assert np.abs(other.risk.values[:, -1]).max() < 1e-10


def test_perfect_recovery_on_the_sphere_goes_on_to_the_last_digits():
    chain = sl.simulate(
        sl.presets.phase_retrieval(lr=0.08),
        sl.Chain(200),
        sl.FixedInit(0.3),
        t_max=800,
        runs=16,
        save=9,
        progress=False,
    )
    assert chain.risk.values[:, -1].max() < 1e-25


def test_start_at_the_teacher_stays_there():
    start = sl.Overlaps([1.0], [[1.0]], [[1.0]])
    for level in (sl.SGD(20), sl.Chain(20), sl.SDE(20), sl.ODE()):
        end = sl.simulate(sl.presets.phase_retrieval(lr=0.1), level, start, t_max=5, runs=2, save=3, progress=False)
        np.testing.assert_allclose(end.M.values, 1.0, atol=1e-14)
        np.testing.assert_allclose(end.risk.values, 0.0, atol=1e-25)


def test_ode_at_saved_times_is_as_good_as_its_tolerance_also_once_converged():
    """Long steps near the fixed point: interpolation there would be off by a hundred times the tolerance."""
    end = sl.simulate(sl.presets.phase_retrieval(lr=0.08), sl.ODE(), sl.FixedInit(0.3), t_max=300, save=101)
    assert np.abs(end.M.values[0, 60:, 0, 0] - 1).max() < 1e-8
    assert end.risk.values.min() > -1e-8


def test_ode_stops_at_the_time_its_predicate_first_holds():
    """Two runs that reach overlap 1/2 at their own times: the flow is at 1/2 there, and the saved state stays as it stopped."""
    M = np.array([[0.3, -0.2], [0.4, 0.1], [0.0, 0.0]])[:, :, None]
    start = sl.Overlaps(np.ones((3, 2)), M, np.tile(START.Q, (3, 1, 1)))
    data = sl.simulate(NETWORK, sl.ODE(), start, t_max=30, runs=3, save=16, until=lambda stats: stats.M[0, 0] > 0.5)
    assert data.status.values.tolist() == ["stopped", "stopped", "finished"]
    assert data.t_end.values[1] < data.t_end.values[0] < data.t_end.values[2] == 30
    for run in (0, 1):
        one = sl.Overlaps(*(start_leaf[run] for start_leaf in (start.a, start.M, start.Q)))
        np.testing.assert_allclose(flow(NETWORK, one, jnp.asarray(data.t_end.values[run])).M[0, 0], 0.5, atol=1e-7)
        later = data.t.values >= data.t_end.values[run]
        np.testing.assert_allclose(data.M.values[run, later, 0, 0], 0.5, atol=1e-7)


def test_ode_keeps_q_symmetric_for_ever():
    """Otherwise an antisymmetric part of Q grows from rounding, and two units leave their fixed point by t = 1200."""
    problem = sl.presets.phase_retrieval(width=2, lr=0.2, noise=1.0)
    late = sl.simulate(problem, sl.ODE(), sl.RandomInit(10_000), t_max=1500, runs=2, save=[1000, 1500])
    np.testing.assert_allclose(late.Q, late.Q.transpose("run", "t", "student_other", "student"), atol=1e-11)
    np.testing.assert_allclose(late.risk.isel(t=0), late.risk.isel(t=1), rtol=1e-6)
