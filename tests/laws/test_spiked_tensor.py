"""Spiked matrices and tensors: the law of the noise, thresholds, the diffusive limit, and the barrier of the scaled tensor."""

from __future__ import annotations

from functools import reduce

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

import sgdlimits as sl
from sgdlimits.papers.effective import theory as effective
from sgdlimits.papers.effective.recovery import crossing_time, recovery_time

D = 20_000
OVERSHOOT = 0.5826
"""A random walk passes a boundary by this part of its step's standard deviation, on average (Siegmund)."""


def contract(tensors, x):
    """The sum over the axes of k-tensors (stacked along the first axis) of the tensor contracted with x on all other axes."""
    total = 0.0
    for axis in range(1, tensors.ndim):
        part = np.moveaxis(tensors, axis, 1)
        while part.ndim > 2:
            part = part @ x
        total = total + part
    return total


def power(x, k):
    return reduce(np.multiply.outer, [x] * k)


def noise_covariance(x, k):
    """The exact covariance of the contracted noise, by contraction of each entry of a tensor alone."""
    entries = np.eye(x.size**k).reshape(-1, *(x.size,) * k)
    each = contract(entries, x)
    return each.T @ each


def at(m, r, n):
    return np.concatenate([[m, r], np.zeros(n - 2)])


@pytest.mark.parametrize("k", [2, 3, 4])
def test_noise_of_a_real_tensor_has_the_stated_covariance(k):
    x = np.random.default_rng(k).normal(size=5)
    R2 = x @ x
    stated = k * R2 ** (k - 1) * np.eye(5) + k * (k - 1) * R2 ** (k - 2) * np.outer(x, x)
    np.testing.assert_allclose(noise_covariance(x, k), stated, rtol=1e-12, atol=1e-12 * R2 ** (k - 1))


@pytest.mark.parametrize("k", [2, 3])
def test_drift_and_covariance_are_the_limits_of_one_step_with_a_real_tensor(k):
    """Mean and covariance of one step are polynomials in 1/n, and exact: four dimensions give their value at infinity."""
    snr, lr, ridge, m, r = 1.7, 0.6, 0.4, 0.5, 0.8
    problem, stats, sizes = sl.presets.spiked_tensor(k, snr, lr, ridge), sl.Spike(m, r**2), np.array([3, 5, 7, 9])
    means, covariances = [], []
    for n in sizes:
        x = at(m, r, n)
        residual = snr * power(np.eye(n)[0], k) - power(x, k)
        np.testing.assert_allclose(problem.risk(stats), (residual**2).sum(), rtol=1e-13)
        after = x - lr / n * (-2 * contract(residual[None], x)[0] + ridge * x)
        S = (2 * lr / n) ** 2 * noise_covariance(x, k)
        rest, S_rest = after[1:], S[1:, 1:]
        means.append(n * np.array([after[0] - m, rest @ rest + np.trace(S_rest) - r**2]))
        mixed, var = 2 * S[0, 1:] @ rest, 4 * rest @ S_rest @ rest + 2 * np.trace(S_rest @ S_rest)
        covariances.append(n**2 * np.array([S[0, 0], mixed, mixed, var]))
    mean, covariance = (np.polyfit(1 / sizes, values, 3)[-1] for values in (means, covariances))
    drift = problem.drift(stats)
    np.testing.assert_allclose([drift.m, drift.r2], mean, rtol=1e-9)
    np.testing.assert_allclose(problem.covariance(stats), covariance.reshape(2, 2), rtol=1e-9)


@pytest.mark.full
def test_whole_tensors_their_noise_and_the_chain_have_one_law(same_law):
    """After 1, 10 and 60 steps in dimension 6, 3000 runs each; each of the two comparisons fails by chance once in 10^4."""
    k, d, start = 3, 6, sl.Spike(0.5, 0.6)
    times = np.array([1, 10, 60]) / d
    arguments = dict(t_max=times[-1], runs=3000, save=times, progress=False)
    problem = sl.presets.spiked_tensor(k, snr=1.5, lr=0.08, ridge=0.3)
    direct = sl.presets.spiked_tensor(k, snr=1.5, lr=0.08, ridge=0.3, direct=True)
    whole, vector, chain = (
        sl.simulate(each, level, start, seed=seed, **arguments)
        for seed, (each, level) in enumerate([(direct, sl.SGD(d)), (problem, sl.SGD(d)), (problem, sl.Chain(d))])
    )
    for other in (vector, chain):
        assert (other.status == "finished").all()
        same_law(*({name: data[name].values for name in ("m", "r2", "risk")} for data in (whole, other)))


@pytest.mark.full
def test_gap_to_ode_shrinks_as_inverse_root_d_and_the_sde_fluctuates_alike(same_law):
    """From d = 1024 to 40960 the exponent is -1/2 within 0.05, four times its error from 1024 runs."""
    problem, start = sl.presets.spiked_tensor(3, snr=4.0, lr=0.5), sl.Spike(0.5, 0.7)
    times, sizes = np.array([0.0625, 0.125, 0.1875]), np.array([1024, 8192, 40_960])
    arguments = dict(t_max=times[-1], save=times, progress=False)
    ode = sl.simulate(problem, sl.ODE(), start, **arguments).isel(run=0, drop=True)
    chains = [sl.simulate(problem, sl.Chain(int(d)), start, runs=1024, seed=1, **arguments) for d in sizes]
    gaps = [float((((c.m - ode.m) ** 2 + (c.r2 - ode.r2) ** 2) ** 0.5).mean("run").max()) for c in chains]
    exponent = np.polyfit(np.log(sizes), np.log(gaps), 1)[0]
    print(f"fitted exponent {exponent:.3f}, gaps {np.round(gaps, 5)}")
    assert abs(exponent + 0.5) < 0.05
    sde = sl.simulate(problem, sl.SDE(int(sizes[1])), start, runs=1024, seed=2, **arguments)
    ratio = {name: (sde[name].std("run") / chains[1][name].std("run")).values.round(3) for name in ("m", "r2")}
    print(f"standard deviations, SDE over chain: {ratio}")
    same_law(*({name: data[name].values for name in ("m", "r2")} for data in (sde, chains[1])))


def variance_from_random_starts(snr, times):
    """The variance of u = sqrt(d) m in matrix PCA, over that of du = 4 (snr - 1) u dt + 2 sqrt 2 dB from N(0, 1).

    SGD on sqrt(lr) x at the rates lr and the ratio lr snr is SGD on x at rate 1, lr^2 times faster in t: lr = 3 saves steps.
    """
    lr, growth = 3.0, 4 * (snr - 1)
    problem, start = sl.presets.spiked_tensor(order=2, snr=lr * snr, lr=lr), sl.RandomInit(D, scale=lr**0.5)
    t = times / lr**2
    runs = sl.simulate(problem, sl.Chain(D), start, t_max=t[-1], runs=16_384, seed=1, save=t, progress=False)
    measured, rest = D * (runs.m**2).mean("run").values / lr, -4 / growth
    theory = rest + (1 - rest) * np.exp(2 * growth * times)
    length = float(runs.r2[:, -1].mean()) / lr
    print(f"snr {snr}: variances {measured.round(3)}, theory {theory.round(3)}, mean of r2 over lr {length:.4f}")
    return measured, theory


@pytest.mark.full
def test_matrix_pca_below_the_threshold_is_a_stable_linear_diffusion():
    """Stationary variance 1/(1 - snr), within 3 %.

    At this d it is about 1 % below, and 16384 runs scatter by 0.8 %: one seed in a hundred would fail.
    """
    snr, times = 0.8, np.array([1.2, 1.8, 2.4])
    measured, theory = variance_from_random_starts(snr, times)
    stationary = ((measured - theory) / (1 - np.exp(8 * (snr - 1) * times))).mean() + 1 / (1 - snr)
    print(f"stationary variance {stationary:.3f}, theory {1 / (1 - snr):.3f}")
    assert abs(stationary * (1 - snr) - 1) < 0.03


def test_matrix_pca_above_the_threshold_is_an_unstable_linear_diffusion():
    """The standard deviation grows at the rate 4 (snr - 1), within 3 %.

    At this d the rate is about 1 % below, and 16384 runs scatter by 0.6 %: one seed in a thousand would fail.
    """
    snr, times = 1.2, np.array([0.5, 1.0])
    measured, _ = variance_from_random_starts(snr, times)
    growth, noise = 4 * (snr - 1), 1 / (snr - 1)
    rate = np.log((measured[-1] + noise) / (1 + noise)) / (2 * times[-1])
    print(f"growth rate of the standard deviation {rate:.4f}, theory {growth:.4f}")
    assert abs(rate / growth - 1) < 0.03


def test_fixed_points_of_matrices_and_their_stability():
    for snr, lr in ((0.8, 1.0), (1.2, 1.0), (0.9, 0.7)):
        problem, m_star = sl.presets.spiked_tensor(2, snr, lr), effective.overlaps(2, snr, lr).m_star
        assert sl.linearise(problem, sl.Spike(0.0, 0.0)).rates[0] > 0
        assert sl.linearise(problem, sl.Spike(0.0, lr)).stable == (snr < effective.critical_snr(2, lr))
        if snr < lr:
            assert np.isnan(m_star)
            continue
        assert m_star == pytest.approx(np.sqrt(snr - lr))
        for sign in (-1, 1):
            here = sl.linearise(problem, sl.Spike(sign * m_star, lr))
            assert here.stable
            np.testing.assert_allclose(here.drift, 0, atol=1e-13)


@pytest.mark.parametrize("k", [3, 4])
def test_fixed_points_of_tensors_and_their_stability(k):
    lr, snr = 0.8, 1.3 * effective.critical_snr(k, 0.8)
    problem = sl.presets.spiked_tensor(k, snr, lr)
    assert problem.drift(sl.Spike(0.0, 0.01)).r2 > 0
    assert sl.linearise(problem, sl.Spike(0.0, lr)).stable
    m_dagger, m_star = effective.overlaps(k, snr, lr)
    for m, stable in ((m_dagger, False), (m_star, True)):
        for sign in (1, -1) if k % 2 == 0 else (1,):
            here = sl.linearise(problem, sl.Spike(sign * m, lr))
            np.testing.assert_allclose(here.drift, 0, atol=1e-11)
            assert here.stable == stable
    starts = sl.Spike(m_dagger + np.array([-0.02, 0.02, -1.0]), np.full(3, lr))
    end = sl.simulate(problem, sl.ODE(), starts, t_max=30, runs=3, save=2, progress=False).isel(t=-1)
    expected = [0.0, m_star, 0.0 if k % 2 or m_dagger > 1 - m_dagger else -m_star]
    np.testing.assert_allclose(end.m, expected, atol=1e-6)
    np.testing.assert_allclose(end.r2, lr, atol=1e-6)


def test_ridge_moves_the_fixed_points_where_overlaps_says():
    for k, snr, lr, ridge in ((2, 1.5, 1.0, 0.4), (3, 4.0, 0.7, 0.3), (4, 8.0, 1.0, 0.5)):
        problem = sl.presets.spiked_tensor(k, snr, lr, ridge)
        for m in effective.overlaps(k, snr, lr, ridge):
            drift = problem.drift(sl.Spike(m, lr * (1 - ridge / (2 * k * snr * m ** (k - 2)))))
            np.testing.assert_allclose([drift.m, drift.r2], 0, atol=1e-11)


@pytest.mark.parametrize("k", [3, 4, 5])
def test_threshold_is_where_the_fixed_points_appear(k):
    lr = 0.7
    least = minimize_scalar(lambda m: (m**2 + lr) ** (k - 1) / m ** (k - 2), bounds=(0.05, 3), method="bounded").fun
    assert effective.critical_snr(k, lr) == pytest.approx(least, rel=1e-9)
    assert np.isnan(effective.overlaps(k, least * 0.999, lr)).all()
    m_dagger, m_star = effective.overlaps(k, least * 1.001, lr)
    assert 0 < m_dagger < np.sqrt((k - 2) * lr / k) < m_star


@pytest.mark.full
def test_scaled_tensor_has_a_barrier_at_every_strength():
    """For snr = Lambda sqrt(d), k = 3: who reaches u = 6 before 0 from below, at and above the barrier u = 1/Lambda.

    The scale function says it; 2048 runs a start, and a chance of 1e-4 in all that the largest of three is off by 4.1 sigma.
    """
    Lambda, k, d, high, count = 0.4, 3, 2048, 6.0, 2048
    top = effective.barrier(Lambda, k)
    assert top == pytest.approx(2.5)
    problem = sl.presets.spiked_tensor(k, effective.scaled_snr(Lambda, k, d))
    assert sl.linearise(problem, sl.Spike(0.0, 1.0)).stable
    starts = top + np.array([-1.0, 0.0, 1.0])
    u = np.repeat(starts, count) / np.sqrt(d)

    def left(stats):
        scaled = jnp.sqrt(float(d)) * stats.m
        return (scaled <= 0) | (scaled >= high)

    data = sl.simulate(
        problem, sl.Chain(d), sl.Spike(u, np.ones(u.size)), t_max=3.0, runs=u.size, seed=4, until=left, progress=False
    )
    assert (data.status == "stopped").mean() > 0.99
    up = (data.m[:, -1].values > 0).reshape(3, count).mean(1)
    over = OVERSHOOT * 2 * np.sqrt(k / d)
    scale = lambda a, b: quad(lambda u: np.exp(u**2 / 2 - Lambda * u**k / k), a, b)[0]
    theory = np.array([scale(-over, u0) / scale(-over, high + over) for u0 in starts])
    print(f"share that escapes from {starts}: {up.round(3)}, theory {theory.round(3)}")
    assert np.abs(up - theory).max() < 4.1 * np.sqrt(0.25 / count)
    assert up[0] < 0.5 < up[2]


def test_starts_and_refusals():
    problem = sl.presets.spiked_tensor(order=3, snr=2.0)
    start = sl.FixedInit(0.6).one(problem)
    np.testing.assert_allclose([start.m, start.r2], [0.6, 0.64])
    many = sl.RandomInit(50).sample(problem, runs=4000, seed=5)
    np.testing.assert_allclose([50 * many.m.var(), many.r2.mean()], [1, 49 / 50], atol=0.1)
    short = dict(t_max=1.0, progress=False)
    for bad in (sl.Spike(0.1, -1.0), sl.Spike(np.nan, 1.0), sl.Spike([[0.1]], [[1.0]]), sl.Overlaps([1.0], [[2.0]], [[1.0]])):
        with pytest.raises(sl.BadInput, match="must be"):
            sl.simulate(problem, sl.ODE(), bad, **short)
    with pytest.raises(sl.BadInput, match="d must be"):
        sl.simulate(problem, sl.Chain(1), sl.Spike(0.1, 1.0), **short)
    with pytest.raises(sl.BadInput, match="direct=False"):
        sl.simulate(sl.presets.spiked_tensor(3, direct=True), sl.SGD(200), sl.Spike(0.1, 1.0), **short)
    with pytest.raises(sl.BadInput, match="order"):
        sl.presets.spiked_tensor(order=1)


def test_plots_show_both_statistics():
    problem = sl.presets.spiked_tensor(order=2, snr=1.5)
    data = sl.simulate(problem, sl.ODE(), sl.Spike(0.1, 1.0), t_max=3, save=5, progress=False)
    assert [line.get_label() for line in sl.plot.overlaps(data).lines] == ["$|m|$", r"$r_\perp^2$"]
    assert sl.plot.overlaps(data, what="r2").get_ylabel() == r"squared orthogonal norm $r_\perp^2$"
    sl.plot.overview(data)
    plt.close("all")


# --- how long it takes -------------------------------------------------------------------------------------------------------


def recoveries(snr, lr, d, runs, seed):
    """Times at which matrix PCA has half of its final overlap: plain NumPy, vectors in R^d with the noise of a real matrix."""
    rng, end, times = np.random.default_rng(seed), 0.5 * np.sqrt(snr - lr), np.full(runs, np.nan)
    x = rng.normal(size=(runs, d)) / np.sqrt(d)
    for step in range(1, 40 * d):
        g, square = rng.normal(size=(runs, d)), (x**2).sum(1, keepdims=True)
        unit = x / np.sqrt(square)
        noise = np.sqrt(2 * square) * (g + (np.sqrt(2) - 1) * unit * (unit * g).sum(1, keepdims=True))
        push = 4 * snr * x[:, :1] * (np.arange(d) == 0) - 4 * square * x + 2 * noise
        x = x + lr / d * push
        times[np.isnan(times) & (np.abs(x[:, 0]) > end)] = step / d
        if not np.isnan(times).any():
            return times
    raise AssertionError("a run takes too long")


@pytest.mark.parametrize(("snr", "lr"), [(2.0, 1.0), (1.5, 0.5)])
def test_vectors_find_the_spike_after_the_time_with_its_constant(snr, lr, say):
    """d = 200, 300 runs: within five standard errors, and 2 % for terms of order 1/d."""
    times, theory = recoveries(snr, lr, 200, 300, 0), recovery_time(snr, 200, 0.5, lr)
    error = times.std(ddof=1) / np.sqrt(times.size)
    say(f"SGD {times.mean():.3f} ± {error:.3f} and spread {times.std():.3f}, theory {theory.mean:.3f} and {theory.spread:.3f}")
    assert abs(times.mean() - theory.mean) < 5 * error + 0.02 * theory.mean
    assert abs(times.std() / theory.spread - 1) < 0.3


@pytest.mark.full
@pytest.mark.parametrize("d", [1000, 10_000, 100_000])
def test_chain_finds_the_spike_after_the_time_with_its_constant(d, say):
    """lr below, at and above the length of the start: within four standard errors of 512 runs."""
    for snr, lr in ((2.0, 1.0), (1.5, 0.5), (3.0, 2.0)):
        problem, end = sl.presets.spiked_tensor(order=2, snr=snr, lr=lr), 0.5 * np.sqrt(snr - lr)
        until = lambda stats, end=end: abs(stats.m) - end
        found = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), t_max=60, runs=512, seed=d, until=until, progress=False)
        assert (found.status == "stopped").all()
        times, theory = found.t_end.values, recovery_time(snr, d, 0.5, lr)
        error = times.std(ddof=1) / np.sqrt(512)
        say(f"snr {snr}, lr {lr}, d = {d}: {times.mean():.3f} ± {error:.3f}, theory {theory.mean:.3f}")
        assert abs(times.mean() - theory.mean) < 4 * error + 3 * theory.mean / d


def test_crossing_time_is_the_double_integral_and_kramers_formula_far_from_it():
    for L, k, start, end in ((0.4, 3, 0.0, 6.0), (0.4, 4, 0.5, 4.0), (0.4, 3, -1.0, 5.0)):
        V = lambda y, L=L, k=k: y**2 / 2 - L * y**k / k
        low = 0.0 if k % 2 == 0 else -12.0
        inner = lambda y, V=V, low=low: quad(lambda z: np.exp(V(y) - V(z)), low, y, limit=200)[0]
        np.testing.assert_allclose(crossing_time(L, k, start, end), quad(inner, start, end)[0] / (2 * k), rtol=1e-6)
    for L, k in ((0.06, 3), (0.02, 4)):
        kramers = np.pi / (k * np.sqrt(k - 2)) * np.exp((k - 2) / (2 * k) * L ** (-2 / (k - 2))) / (2 - k % 2)
        np.testing.assert_allclose(crossing_time(L, k), kramers, rtol=0.05)


@pytest.mark.full
@pytest.mark.parametrize(("order", "Lambda", "end"), [(3, 0.4, 6.0), (4, 0.3, 4.0)])
def test_chain_crosses_the_barrier_after_the_closed_time(order, Lambda, end, say):
    """From u = 0 to beyond the barrier, at three dimensions: four standard errors of 512 runs, and terms of order end^2/d."""
    for d in (1000, 4000, 16_000):
        problem = sl.presets.spiked_tensor(order=order, snr=effective.scaled_snr(Lambda, order, d))
        until = lambda stats, d=d: (stats.m if order % 2 else abs(stats.m)) - end * d**-0.5
        how = dict(t_max=80, runs=512, seed=d, until=until, progress=False)
        found = sl.simulate(problem, sl.Chain(d), sl.Spike(m=0.0, r2=1.0), **how)
        assert (found.status == "stopped").all()
        times, expected = found.t_end.values, crossing_time(Lambda, order, 0.0, end)
        error = times.std(ddof=1) / np.sqrt(512)
        say(f"k = {order}, d = {d}: {times.mean():.3f} ± {error:.3f}, theory {expected:.3f}")
        assert abs(times.mean() - expected) < 4 * error + end**2 / d * expected
