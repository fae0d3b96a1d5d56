"""Formulas of "Escaping mediocrity", each against another route: automatic differentiation, quadrature, sampling, mpmath."""

from __future__ import annotations

import equinox as eqx
import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import digamma
from scipy.stats import chi, norm

import sgdlimits as sl
from sgdlimits.analysis.first_passage import FirstPassage, PassageTimeLaw, mean_exit_time
from sgdlimits.expectation.gaussian.quadrature import overlap_rule
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.papers.mediocrity.theory.start import draw_start_sums, mean_log_overlap

limits = eqx.filter_jit(lambda problem, stats: (problem.drift(stats), problem.covariance(stats)))


def saddle(width):
    return sl.Overlaps(np.ones(width), np.zeros((width, 1)), np.eye(width))


# --- rates -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_linear_rates_38_to_40_are_those_of_the_drift_by_automatic_differentiation(width, noise):
    lr = 0.07 * width
    problem = sl.presets.phase_retrieval(width=width, lr=lr, noise=noise)
    found = sl.linearise(problem, saddle(width))
    rates = mediocrity.linear_rates(width, lr, noise)
    pairs = width * (width - 1) // 2
    expected = np.sort([*[float(rates.M)] * width, *[-float(rates.Q)] * pairs])[::-1] * float(problem.rate)
    np.testing.assert_allclose(found.rates, expected, rtol=1e-10)
    np.testing.assert_allclose(found.drift, 0, atol=1e-14)
    assert not found.stable


def test_linearise_has_the_coordinates_of_the_covariance_and_the_derivative_of_the_drift(random_overlaps):
    problem = sl.presets.phase_retrieval(width=2, lr=0.1, sphere=False, train_second=True)
    point = random_overlaps(problem, seed=3)
    found = sl.linearise(problem, point)
    assert found.names == ("M[0,0]", "M[1,0]", "Q[0,0]", "Q[0,1]", "Q[1,1]", "a[0]", "a[1]")
    step = 1e-5
    moved = [sl.Overlaps(point.a, point.M + np.array([[sign * step], [0]]), point.Q) for sign in (1, -1)]
    (up, covariance), (down, _) = (limits(problem, each) for each in moved)
    assert found.matrix.shape == covariance.shape
    np.testing.assert_allclose(found.matrix[:2, 0], (up.M - down.M)[:, 0] / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(found.matrix[3, 0], (up.Q - down.Q)[0, 1] / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(found.matrix[5:, 0], (up.a - down.a) / (2 * step), rtol=1e-6)


def test_linearise_says_where_a_point_is_stable():
    problem = sl.presets.phase_retrieval(width=2, lr=0.2)
    assert sl.linearise(problem, sl.Overlaps([1, 1], [[1], [1]], [[1, 1], [1, 1]])).rates[0].real < 1e-12


@pytest.mark.parametrize("width", [1, 2, 3])
def test_noise_at_the_saddle_is_that_of_the_covariance(width):
    """4 (10 - 6/p + 8/p^2 + noise), three coefficients by three widths, and no correlation with anything else."""
    lr, noise = 0.06 * width, 0.4
    problem = sl.presets.phase_retrieval(width=width, lr=lr, noise=noise)
    covariance = np.asarray(limits(problem, saddle(width))[1]) / float(problem.rate) ** 2
    growth = float(mediocrity.linear_rates(width, lr, noise).M)
    kappa = lr / width * covariance[0, 0] / (2 * growth)
    np.testing.assert_allclose(mediocrity.noise_gain(width, lr, noise), kappa, rtol=1e-10)
    np.testing.assert_allclose(covariance[:width, :width], covariance[0, 0] * np.eye(width), atol=1e-9)
    np.testing.assert_allclose(covariance[:width, width:], 0, atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.3, 5.0])
def test_noise_doubles_the_variance_of_the_start_at_the_optimal_rate_of_one_unit(noise):
    np.testing.assert_allclose(mediocrity.noise_gain(1, mediocrity.optimal_lr(1, noise), noise), 1, rtol=1e-14)


@pytest.mark.parametrize(("width", "noise"), [(1, 0.0), (1, 1.0), (3, 0.2), (20, 0.0)])
def test_optimal_rate_needs_the_fewest_samples(width, noise):
    """E.4 against a numerical minimum of the annealed time (47), which also gives the minimal number of samples."""

    def samples(lr):
        return 500 * mediocrity.exit_time(sl.presets.phase_retrieval(width, lr=lr, noise=noise), 500, 0.3, "annealed")

    top = float(mediocrity.max_lr(width, noise))
    best = minimize_scalar(samples, bounds=(0.01 * top, 0.99 * top), method="bounded", options={"xatol": 1e-9 * top})
    np.testing.assert_allclose(best.x, mediocrity.optimal_lr(width, noise), rtol=1e-5)
    np.testing.assert_allclose(best.fun, mediocrity.minimal_samples(width, noise, 500, 0.3), rtol=1e-9)


@pytest.mark.parametrize(("width", "noise"), [(1, 0.0), (1, 2.0), (5, 0.5)])
def test_saddle_is_stable_from_the_largest_rate_on(width, noise):
    top = float(mediocrity.max_lr(width, noise))
    growth = [
        sl.linearise(sl.presets.phase_retrieval(width, lr=share * top, noise=noise), saddle(width)).matrix[0, 0]
        for share in (0.999, 1.001)
    ]
    assert growth[0] > 0 > growth[1]


def test_formulas_broadcast():
    assert mediocrity.optimal_lr(np.arange(1, 4)[:, None], [0.0, 0.1]).shape == (3, 2)
    assert mediocrity.minimal_samples([1, 2], 0.0, [[100], [1000], [10000]], 0.1).shape == (3, 2)
    assert mediocrity.linear_rates([1, 2], 0.1, [[0.0], [1.0]]).M.shape == (2, 2)
    problem = sl.presets.phase_retrieval()
    assert mediocrity.exit_time(problem, [[100], [1000]], [0.1, 0.2, 0.3]).shape == (2, 3)
    assert isinstance(mediocrity.exit_time(problem, 100, 0.1), float)
    assert (np.diff(mediocrity.exit_time(problem, 100, 0.1, "sde", start=[0.0, 0.05, 0.2])) < 0).all()


@pytest.mark.parametrize(("width", "lr"), [(1, 1 / 12), (1, 0.03), (3, 0.2)])
def test_delay_by_noise_is_the_hypergeometric_function_and_on_average_over_starts_a_logarithm(width, lr):
    """Against mpmath, and over the law of the start: a chi-square number of p degrees of freedom."""
    kappa, rate = float(mediocrity.noise_gain(width, lr)), float(mediocrity.linear_rates(width, lr).M)
    y = np.array([0.05, 0.3, 1.0, 2.5, 30.0])
    for at, delay in zip(y, mediocrity.noise_delay(width, lr, 0.0, y), strict=True):
        x = mpmath.mpf(at) ** 2 / kappa
        bracket = mpmath.log(x / 2) - mpmath.digamma(width / 2) - x / width * mpmath.hyp2f2(1, 1, 2, 1 + width / 2, -x / 2)
        np.testing.assert_allclose(delay, float(bracket) / (2 * rate), rtol=1e-6, atol=1e-9)
    density = lambda log_y: float(np.exp(log_y) * chi.pdf(np.exp(log_y), width))
    mean = quad(lambda v: density(v) * float(mediocrity.noise_delay(width, lr, 0.0, np.exp(v))), -25, 3, limit=200)[0]
    np.testing.assert_allclose(mean, -np.log1p(kappa) / (2 * rate), rtol=1e-6)


def test_delay_from_a_start_is_that_of_the_backward_equation():
    """Full drift and noise of one unit at d = 10^6, T = 0.1; what is left is of order 1/d T."""
    problem, d, T = sl.presets.phase_retrieval(lr=1 / 12), 10**6, 0.1
    for y in (0.25, 1.0, 3.0):
        times = [mediocrity.exit_time(problem, d, T, average, start=y * d**-0.5) for average in ("backward", "ode")]
        np.testing.assert_allclose((times[0] - times[1]) / 12, mediocrity.noise_delay(1, 1 / 12, 0.0, y), atol=2e-5)


def test_share_of_delayed_starts_is_that_of_random_ones():
    """5,000 normal numbers; five standard errors are 0.036."""
    y = np.abs(np.random.default_rng(0).standard_normal(5_000))
    for lr in (0.03, 1 / 12, 0.15):
        delayed = mediocrity.noise_delay(1, lr, 0.0, y) > 0
        assert abs(delayed.mean() - mediocrity.delayed_share(lr)) < 0.036
    assert (mediocrity.noise_delay(2, 0.2, 0.0, y[:100]) < 1e-9).all()


# --- the law of the start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 8, 1000, 10**9])
def test_overlap_rule_has_the_moments_of_a_uniform_direction(d):
    m, weights = overlap_rule(d)
    moments = np.cumprod([1.0, *((2 * n + 1) / (d + 2 * n) for n in range(6))])
    np.testing.assert_allclose([weights @ m ** (2 * n) for n in range(7)], moments, rtol=1e-10)


@pytest.mark.parametrize("d", [2, 3, 17, 1000, 10**6])
def test_mean_log_overlap_of_one_unit_is_that_of_a_beta_variable(d):
    np.testing.assert_allclose(mean_log_overlap(1, d), digamma(0.5) - digamma(d / 2) + np.log(d), atol=1e-9)


@pytest.mark.parametrize(("width", "d"), [(2, 3), (3, 12), (20, 30), (5, 10**5)])
def test_mean_log_overlap_is_that_of_random_directions(width, d):
    """False alarm 1e-5 a case."""
    rng = np.random.default_rng(1)
    along, across = rng.normal(size=(100_000, width)) ** 2, rng.chisquare(d - 1, size=(100_000, width))
    logs = np.log((d * along / (along + across)).sum(1))
    assert abs(logs.mean() - mean_log_overlap(width, d)) < norm.isf(0.5e-5) * logs.std() / np.sqrt(logs.size)


@pytest.mark.parametrize(("width", "d"), [(2, 5), (6, 40)])
def test_squares_of_overlaps_have_the_stated_means_and_variances(width, d):
    """Against directions drawn in R^d. Each mean of 50000 draws within 5 of its standard errors."""
    rng = np.random.default_rng(2)
    W = rng.normal(size=(50_000, width + 1, d))
    W /= np.linalg.norm(W, axis=2, keepdims=True)
    Q = W[:, 1:] @ W[:, 1:].swapaxes(1, 2)
    mu = d * ((W[:, 1:] @ W[:, 0, :, None]) ** 2).sum((1, 2))
    tau = d * (Q**2 * ~np.eye(width, dtype=bool)).sum((1, 2))
    stated = draw_start_sums(width, d)
    for drawn, mean, variance in zip((mu, tau), stated.mean, stated.variance, strict=True):
        assert abs(drawn.mean() - mean) < 5 * drawn.std() / np.sqrt(drawn.size)
        square = (drawn - mean) ** 2
        assert abs(square.mean() - variance) < 5 * square.std() / np.sqrt(drawn.size)
    product = (mu - mu.mean()) * (tau - tau.mean())
    assert abs(product.mean()) < 5 * product.std() / np.sqrt(product.size)


# --- exit times --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "d", "threshold"), [(1, 50, 0.1), (1, 3000, 0.5), (2, 100, 0.05), (5, 300, 0.2)])
def test_quenched_time_46_is_the_mean_over_random_starts(width, d, threshold):
    """The formula of appendix E.2 for each of 50000 drawn starts; false alarm 1e-5 a case."""
    problem = sl.presets.phase_retrieval(width, lr=0.08 * width, noise=0.1)
    start = sl.RandomInit(d).sample(problem, runs=50_000, seed=11)
    M, Q = np.asarray(start.M), np.asarray(start.Q)
    mu, tau = d * (M**2).sum((1, 2)), d * ((Q**2).sum((1, 2)) - width)
    rate = float(mediocrity.linear_rates(width, 0.08 * width, 0.1).M)
    way = threshold * width * (width + 1) * d + (2 * mu * width - tau) * (1 - threshold)
    times = np.log(way / (2 * mu * width)) / (2 * rate)
    found = mediocrity.exit_time(problem, d, threshold, "quenched") * float(problem.rate)
    assert abs(times.mean() - found) < norm.isf(0.5e-5) * times.std() / np.sqrt(times.size)


def test_quenched_time_of_one_unit_is_48_for_large_d():
    """Against the average over a chi-square variable that the paper prints, which is the limit of large d."""
    d, T = 10**7, 0.1
    problem = sl.presets.phase_retrieval(lr=1 / 12, noise=0.5)
    mean = quad(lambda z: 2 * norm.pdf(z) * np.log(T * d / z**2 + 1 - T), 0, np.inf, epsabs=1e-12, epsrel=1e-12)[0]
    printed = mean / (8 * (1 - 6 / 12) - 4 * 0.5 / 12)
    np.testing.assert_allclose(mediocrity.exit_time(problem, d, T) * float(problem.rate), printed, rtol=1e-7)


def test_quenched_time_is_above_the_annealed_one_and_close_to_it_when_wide():
    """Concavity, section 2; and the gap, which is about psi(p/2) - log(p/2), closes with width."""
    gaps = []
    for width in (1, 2, 10):
        problem = sl.presets.phase_retrieval(width, lr=0.08 * width)
        quenched, annealed = (mediocrity.exit_time(problem, 10**5, 0.1, which) for which in ("quenched", "annealed"))
        slow = width / (2 * 0.08 * width * float(mediocrity.linear_rates(width, 0.08 * width).M))
        gaps.append((quenched - annealed) / slow)
        np.testing.assert_allclose(gaps[-1], np.log(width / 2) - digamma(width / 2), atol=1e-3)
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_annealed_time_is_10_for_one_unit_and_the_linear_ode_from_the_mean_square_at_any_width():
    """47 against (10) as printed, and against the root of (45) with the means of mu_0 and tau_0."""
    d, T, gamma, Delta = 700, 0.2, 0.05, 0.3
    printed = np.log(T * d + 1 - T) / (8 * (1 - 6 * gamma) - 4 * gamma * Delta)
    problem = sl.presets.phase_retrieval(lr=gamma, noise=Delta)
    np.testing.assert_allclose(mediocrity.exit_time(problem, d, T, "annealed") * gamma, printed, rtol=1e-12)
    for p in (2, 7):
        rate = float(mediocrity.linear_rates(p, gamma * p, Delta).M)
        start = (1 - T) * (1 + 1 / p + p * (p - 1) / (d * p**2) - 2 * p / (d * p))
        left = lambda t, p=p, rate=rate, start=start: 1 + 1 / p - 2 * p / (d * p) * np.exp(2 * rate * t) - start
        found = mediocrity.exit_time(sl.presets.phase_retrieval(p, lr=gamma * p, noise=Delta), d, T, "annealed") * gamma
        np.testing.assert_allclose(found, brentq(left, 0, 20), rtol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_exit_time_of_the_full_ode_in_closed_form_is_that_of_the_solver(noise):
    problem = sl.presets.phase_retrieval(lr=0.07, noise=noise)
    for overlap in (0.01, 0.2):
        stats = sl.Overlaps([1.0], [[overlap]], [[1.0]])
        solved = mediocrity.ode_exit_time(problem, stats, 0.6)
        np.testing.assert_allclose(mediocrity.exit_time(problem, 100, 0.6, "ode", start=overlap), solved, rtol=1e-6)


def test_ode_average_of_one_unit_is_the_mean_over_its_starts():
    problem = sl.presets.phase_retrieval(lr=0.07, noise=0.1)
    m = np.asarray(sl.RandomInit(200).sample(problem, runs=1000, seed=4).M)[:, 0, 0]
    each = np.array([mediocrity.exit_time(problem, 200, 0.5, "ode", start=float(one)) for one in m])
    found = mediocrity.exit_time(problem, 200, 0.5, "ode")
    assert abs(each.mean() - found) < 4.5 * each.std() / np.sqrt(each.size)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize(("growth", "variance", "end"), [(2, 5e-2, 0.3), (2, 4e-6, 0.7), (0.3, 1e-9, 0.9), (-1.5, 0.01, 0.5)])
def test_time_of_the_linear_sde_52_is_the_hypergeometric_function(growth, variance, end, p):
    """2F2 by mpmath, from 0 and from elsewhere as the errata have it, and for the norm of p overlaps."""
    F = lambda square: square / (p * variance) * mpmath.hyp2f2(1, 1, 1 + p / 2, 2, -growth * square / variance)
    np.testing.assert_allclose(mean_exit_time(0.0, end, growth, variance, p), float(F(end**2)), rtol=1e-11)
    start = 0.4 * end
    np.testing.assert_allclose(mean_exit_time(start, end, growth, variance, p), float(F(end**2) - F(start**2)), rtol=1e-10)


def test_sde_average_has_the_drift_50_and_the_noise_of_appendix_f():
    problem = sl.presets.phase_retrieval(lr=0.09, noise=0.6)
    d, T, gamma, Delta = 800, 0.15, 0.09, 0.6
    mu, s2 = 4 * (1 - 6 * gamma) - 2 * gamma * Delta, gamma / d * (48 + 4 * Delta)
    printed = T / s2 * mpmath.hyp2f2(1, 1, 1.5, 2, -mu * T / s2)
    found = mediocrity.exit_time(problem, d, T, "sde") * float(problem.rate)
    np.testing.assert_allclose(found, float(printed), rtol=1e-11)


def test_sde_quenched_is_the_mean_over_random_starts():
    problem, d, T = sl.presets.phase_retrieval(lr=0.09, noise=0.6), 100, 0.15
    m = np.abs(np.asarray(sl.RandomInit(d).sample(problem, runs=50_000, seed=5).M)[:, 0, 0])
    times = mean_exit_time(m, np.sqrt(T + (1 - T) * m**2), 4 * (1 - 0.54) - 0.18 * 0.6, 0.09 / d * (48 + 2.4))
    found = mediocrity.exit_time(problem, d, T, "sde_quenched") * float(problem.rate)
    assert abs(times.mean() - found) < 4.5 * times.std() / np.sqrt(times.size)


def test_quenched_time_of_the_linear_sde_is_the_noisy_one_for_large_d():
    """The derivation of `noise_gain`: the linear SDE's mean is the quenched one less log(1 + kappa)/(2 omega)."""
    for lr, noise in ((1 / 12, 0.0), (0.12, 0.2), (0.03, 1.0)):
        problem = sl.presets.phase_retrieval(lr=lr, noise=noise)
        sde, noisy = (mediocrity.exit_time(problem, 10**8, 0.1, which) for which in ("sde_quenched", "noisy"))
        np.testing.assert_allclose(sde, noisy, rtol=1e-7)
    for width in (2, 5):  # averages over draws, whose errors differ
        problem = sl.presets.phase_retrieval(width, lr=0.1 * width, noise=0.3)
        sde, noisy = (mediocrity.exit_time(problem, 10**8, 0.1, which) for which in ("sde_quenched", "noisy"))
        np.testing.assert_allclose(sde, noisy, rtol=5e-4)


# --- the backward equation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("growth", "variance"), [(2.0, 0.05), (2.0, 4e-4), (1.0, 4e-7), (0.2, 1e-9)])
def test_backward_equation_reduces_to_52_when_linearised(growth, variance):
    passage = FirstPassage(lambda m: growth * m, lambda m: variance + 0 * m, end=0.6, growth=growth)
    starts = np.array([0.0, np.sqrt(variance), 0.3])
    np.testing.assert_allclose(passage.mean(starts), mean_exit_time(starts, 0.6, growth, variance), rtol=1e-8)
    np.testing.assert_allclose(passage.mean(starts, 0.5), mean_exit_time(starts, 0.5, growth, variance), rtol=1e-8)


def test_brownian_exit_has_its_known_law():
    """Mean 1, variance 2/3, and the alternating series of the survival function on (-1, 1)."""
    passage = FirstPassage(lambda m: 0 * m, lambda m: 1 + 0 * m, end=1.0, growth=0.0, nodes=40)
    law = passage.law(0.0)
    np.testing.assert_allclose([law.mean, law.variance], [1, 2 / 3], rtol=1e-9)
    t, n = np.linspace(0.05, 6, 40), np.arange(200)
    waves = 4 / np.pi * (-1.0) ** n / (2 * n + 1) * np.exp(-((2 * n + 1) ** 2) * np.pi**2 / 8 * t[:, None])
    np.testing.assert_allclose(1 - law.cdf(t), waves.sum(1), atol=1e-6)
    np.testing.assert_allclose(law.cdf(law.quantile([0.1, 0.5, 0.99])), [0.1, 0.5, 0.99], atol=1e-9)
    np.testing.assert_allclose(np.trapezoid(law.pdf(np.linspace(0, 12, 4001)), dx=0.003), 1, atol=1e-5)


def test_exit_law_of_a_small_noise_is_that_of_the_logarithm_of_a_normal_number():
    """As the noise goes to 0 the linear process leaves at log(end/|z|)/growth, z the normal sum of start and noise."""
    growth, variance, end, start = 2.0, 4e-9, 0.5, 3e-5
    law = FirstPassage(lambda m: growth * m, lambda m: variance + 0 * m, end, growth).law(start)
    t, s = np.linspace(3, 8, 11), np.sqrt(variance / (2 * growth))
    reach = end * np.exp(-growth * t)
    np.testing.assert_allclose(law.cdf(t), norm.sf((reach - start) / s) + norm.cdf((-reach - start) / s), atol=1e-6)


def test_laws_add_along_the_way():
    """From m to an end and on to a farther one: means and variances add, transforms multiply."""
    problem = sl.presets.phase_retrieval(lr=0.08, noise=0.2)
    far = mediocrity.exit_law(problem, 300, 0.5, start=0.05)
    assert isinstance(far, PassageTimeLaw)
    passage = FirstPassage(lambda m: m * (1 - m**2), lambda m: 0.01 * (1 + m**2), end=0.8, growth=1.0)
    shorter = FirstPassage(lambda m: m * (1 - m**2), lambda m: 0.01 * (1 + m**2), end=0.5, growth=1.0)
    np.testing.assert_allclose(passage.mean(0.1, 0.5), shorter.mean(0.1), rtol=1e-9)
    np.testing.assert_allclose(passage.variance(0.1, 0.5), shorter.variance(0.1), rtol=1e-8)
    np.testing.assert_allclose(passage.transform(0.7 - 2j, 0.1, 0.5), shorter.transform(0.7 - 2j, 0.1), rtol=1e-8)


# --- what users meet ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["annealed", "quenched", "noisy", "ode", "noisy_ode"])
def test_no_deterministic_theory_exits_where_the_saddle_is_stable(average):
    problem = sl.presets.phase_retrieval(lr=float(mediocrity.max_lr(1, 0.5)) * 1.01, noise=0.5)
    assert mediocrity.exit_time(problem, 1000, 0.1, average) == np.inf


def test_ode_from_zero_overlap_never_exits():
    problem = sl.presets.phase_retrieval(lr=1 / 12)
    assert mediocrity.exit_time(problem, 1000, 0.1, "ode", start=0.0) == np.inf
    assert mediocrity.ode_exit_time(problem, saddle(1), 0.1, t_max=1000.0) == np.inf


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"average": "mean"}, "average must be one of annealed, quenched"),
        ({"threshold": 1.0}, "threshold must be below 1"),
        ({"threshold": 0.0}, "threshold must be a finite number above 0"),
        ({"d": 0.5}, "d must be a whole number"),
        ({"start": 0.1}, r"start needs average .ode., .sde. or .backward."),
        ({"problem": sl.presets.phase_retrieval(2), "average": "backward"}, "backward needs width 1"),
        ({"problem": sl.presets.phase_retrieval(sphere=False)}, "phase retrieval on the sphere"),
        ({"problem": sl.presets.quadratic_network()}, "phase retrieval on the sphere"),
    ],
)
def test_wrong_questions_get_a_sentence(arguments, words):
    good = {"problem": sl.presets.phase_retrieval(), "d": 100, "threshold": 0.1}
    with pytest.raises(sl.BadInput, match=words):
        mediocrity.exit_time(**good | arguments)


# --- where every term matters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["annealed", "quenched"])
def test_times_of_one_unit_at_small_d_and_large_thresholds(average):
    """At d = 3 an overlap of a random start is uniform on [-1, 1], and Td, 1 - T and the start are of one size.

    The linear ODE takes log(m_end^2/m^2)/(2 omega) from m to m_end^2 = T + (1 - T) m^2; the annealed time is that of
    E m^2 = 1/3.
    """
    T, lr, noise = 0.7, 0.08, 0.1
    problem = sl.presets.phase_retrieval(lr=lr, noise=noise)
    time = lambda square: np.log(T / square + 1 - T)
    expected = time(1 / 3) if average == "annealed" else quad(lambda m: time(m**2), 0, 1, epsabs=1e-12)[0]
    omega = 4 * (1 - 6 * lr) - 2 * lr * noise
    found = mediocrity.exit_time(problem, 3, T, average) * float(problem.rate)
    np.testing.assert_allclose(found, expected / (2 * omega), rtol=1e-6)


def test_quenched_time_of_three_units_at_small_d_is_the_mean_over_starts():
    """Where the term of the overlaps between students is as large as T p (p + 1) d: false alarm 1e-5."""
    width, d, T = 3, 6, 0.5
    problem = sl.presets.phase_retrieval(width, lr=0.2, noise=0.1)
    W = np.random.default_rng(3).normal(size=(400_000, width, d))
    W /= np.linalg.norm(W, axis=2, keepdims=True)
    mu, tau = d * (W[:, :, 0] ** 2).sum(1), d * (((W @ W.swapaxes(1, 2)) ** 2).sum((1, 2)) - width)
    way = T * width * (width + 1) * d + (2 * mu * width - tau) * (1 - T)
    rate = float(mediocrity.linear_rates(width, 0.2, 0.1).M)
    times = np.maximum(np.log(way / (2 * mu * width)), 0) / (2 * rate)
    found = mediocrity.exit_time(problem, d, T, "quenched") * float(problem.rate)
    # the package averages what is beyond second order over 8192 starts of its own
    error = norm.isf(0.5e-5) * times.std() * np.sqrt(1 / times.size + 1 / 8192)
    assert abs(times.mean() - found) < error
