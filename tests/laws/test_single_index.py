"""Samples that one unit needs to learn a single-index target: d, d log d and d^2 for the information exponents 1, 2 and 3.

Runs of the exact chain start from the typical overlap of random weights, 1/sqrt(d), and end at 1/2. Each comparison fails by
chance with 1e-4 or less. The fitted exponents are printed.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import sgdlimits as sl
from sgdlimits.analysis.single_index import exit_time
from sgdlimits.papers.mediocrity.theory import linear_rates

SIGMAS = norm.isf(0.5e-4)
HALF = 0.5


def soft_cubic(x):
    """A bounded cubic without linear part: of exponent 3, and learnt after a seventh of the samples that he3 needs."""
    return (x**3 - 3 * x / 1.3) * jnp.exp(-0.15 * x**2)


def learnt(stats):
    return jnp.abs(stats.M[0, 0]) - HALF


def problem_at(activation, d, factor=1.0):
    """One unit at the recommended learning rate, or at a multiple of it."""
    lr = sl.recommended_lr(sl.presets.single_index(activation), d, HALF)
    return sl.presets.single_index(activation, lr=factor * lr)


def times(problem, d, runs, t_max, batch=None):
    """(time, censored) of each run."""
    start, how = sl.FixedInit(d**-0.5), dict(t_max=t_max, runs=runs, batch=batch, until=learnt, progress=False)
    exits = sl.exit_times(sl.simulate(problem, sl.Chain(d), start, **how), learnt)
    return exits.t.values, exits.censored.values


def mean_times(problem, d, runs, t_max, batch=None, bias=0.02):
    """The mean time of runs that all learn, and its error; it is what the diffusion expects, up to a bias of order 1/d."""
    t, censored = times(problem, d, runs, t_max, batch)
    assert not censored.any()
    mean, error, expected = t.mean(), t.std() / np.sqrt(runs), exit_time(problem, d, HALF, noise=True)
    assert abs(mean - expected) < SIGMAS * error + bias * expected, f"{mean} ± {error}, theory {expected}"
    return mean, error


def fit(x, y, errors):
    """(slope, its error, chi-square) of a weighted line."""
    line, covariance = np.polyfit(x, y, 1, w=1 / errors, cov="unscaled")
    return line[0], np.sqrt(covariance[0, 0]), (((y - np.polyval(line, x)) / errors) ** 2).sum()


def test_exponent_one_needs_samples_in_proportion_to_d(say):
    """The fit leaves out the smallest d, where the start is a part of the way; there too the theory has the mean."""
    dimensions = np.array([128, 1024, 5000, 25_000])
    mean, error = np.transpose([mean_times(problem_at("linear", d), d, runs=64, t_max=10.0) for d in dimensions.tolist()])
    slope, sigma, _ = fit(np.log(dimensions[1:]), np.log(mean[1:]), (error / mean)[1:])
    say(f"exponent 1: samples ~ d^({1 + slope:.3f} ± {sigma:.3f}), t = {mean.round(3).tolist()}")
    assert abs(slope) < 0.01 + SIGMAS * sigma


@pytest.mark.full
def test_exponent_two_needs_a_logarithm_more(say):
    """The slope of t against log d is 1/(2 rate), with the rate at which the overlap grows on the plateau."""
    runs = {128: 512, 1024: 256, 8000: 128}
    rows = [mean_times(problem_at("he2", d), d, n, t_max=150.0, batch=128) for d, n in runs.items()]
    mean, error = np.transpose(rows)
    x = np.log(list(runs))
    slope, sigma, chi2 = fit(x, mean, error)
    power, _, chi2_power = fit(x, np.log(mean), error / mean)
    expected = 12 / (2 * float(linear_rates(1, 1 / 12).M))
    say(f"exponent 2: t = ({slope:.2f} ± {sigma:.2f}) log d + const, theory {expected:.2f}, chi2 {chi2:.1f}")
    say(f"            or t ~ d^{power:.2f}, chi2 {chi2_power:.1f}; t = {mean.round(2).tolist()}")
    assert abs(slope - expected) < SIGMAS * sigma
    assert chi2 < min(20, chi2_power)


@pytest.mark.full
def test_exponent_three_needs_the_square_of_d_at_a_rate_that_falls_as_its_root(say):
    """At a constant rate instead the corrector holds the start: no run learns in a time in which half of them should."""
    assert sl.information_exponent(soft_cubic) == 3
    runs, middle, spread = {80: 256, 320: 256}, [], []
    for d, n in runs.items():
        t, censored = times(problem_at(soft_cubic, d), d, n, t_max=2.5 * d)
        median = sl.summarise(np.where(censored, 100.0 * d, t), quantiles=()).median
        middle.append(median.value)
        spread.append(np.log(median.high / median.low) / (2 * 1.96))
    slope, sigma, _ = fit(np.log(list(runs)), np.log(middle), np.array(spread))
    say(f"exponent 3: samples ~ d^({1 + slope:.2f} ± {sigma:.2f}), medians of t {np.round(middle).tolist()}")
    assert abs(slope - 1) < SIGMAS * sigma
    held = times(problem_at(soft_cubic, 320, factor=25.0), 320, 256, t_max=middle[1])[1]
    assert held.all()


@pytest.mark.full
def test_noise_carries_runs_over_the_barrier_of_the_corrector(say):
    """At four times the recommended rate, where the ODE does not learn, the mean number of samples is less than half."""
    d, fast = 80, problem_at(soft_cubic, 80, factor=4.0)
    assert exit_time(fast, d, HALF) == np.inf
    mean, error = mean_times(fast, d, runs=256, t_max=40.0 * d, bias=0.1)
    recommended = exit_time(problem_at(soft_cubic, d), d, HALF, noise=True)
    say(f"exponent 3, d = 80: t = {mean:.0f} ± {error:.0f} at four times the recommended rate, theory {recommended:.0f} at it")
    assert mean + SIGMAS * error < 0.7 * recommended
