"""Theories of the exit time against the exact chain, the SDE and the ODE. Each comparison fails by chance with 1e-4 or less.

Chains of one unit run in batches of 256 at d = 1024 and above, so that one compilation serves all.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest, norm

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.papers.mediocrity.theory.start import mean_log_overlap

SIGMAS = norm.isf(0.5e-4)


def exits(problem, level, start, threshold, runs, t_max, seed=0):
    """Exit times of runs that all exit."""
    until, batch = sl.exits(threshold), 256 if level.name == "chain" else None
    found = sl.simulate(problem, level, start, t_max=t_max, runs=runs, seed=seed, until=until, batch=batch, progress=False)
    times = sl.exit_times(found, threshold)
    assert not times.censored.any()
    return times.t.values


def agrees(times, expected, bias=0.0):
    """Whether the mean of the times is what was expected, up to its error and a relative bias of the theory."""
    return abs(times.mean() - expected) < SIGMAS * times.std() / np.sqrt(times.size) + bias * expected


# --- one unit ----------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("level", [sl.Chain(2000), sl.SDE(2000, samples=16)], ids=["chain", "sde"])
def test_noise_alone_leaves_zero_overlap_after_the_time_52(level):
    """From m = 0, where the ODE stays for ever; within 3 % at d = 2000, T = 0.05, and not by chance."""
    problem, start = sl.presets.phase_retrieval(lr=1 / 12), sl.FixedInit(0.0)
    times = exits(problem, level, start, 0.05, runs=256, t_max=300)
    printed = mediocrity.exit_time(problem, level.d, 0.05, "sde")
    assert abs(times.mean() / printed - 1) < 0.03 + 2 * times.std() / np.sqrt(times.size) / printed
    assert agrees(times, mediocrity.exit_time(problem, level.d, 0.05, "backward", start=0.0))
    limit = sl.simulate(problem, sl.ODE(), start, t_max=300, save=2)
    assert not limit.M.values.any()


@pytest.mark.full
@pytest.mark.parametrize("d", [2000, 4000, 8000])
def test_noise_alone_leaves_zero_overlap_at_any_width_after_the_time_of_the_linear_sde(d, say):
    """Three units that are orthogonal to the teacher and to each other, T = 0.02; what bends there is some 3 %."""
    problem = sl.presets.phase_retrieval(3, lr=0.3)
    times = exits(problem, sl.Chain(d), sl.Overlaps(np.ones(3), np.zeros((3, 1)), np.eye(3)), 0.02, runs=256, t_max=100)
    expected = mediocrity.exit_time(problem, d, 0.02, "sde")
    say(f"d = {d}: chain {times.mean():.2f} ± {times.std() / 16:.2f}, theory {expected:.2f}")
    assert agrees(times, expected, bias=0.03)


@pytest.mark.full
@pytest.mark.parametrize("start", [None, 0.1])
def test_backward_equation_has_the_law_of_the_sde(start):
    """Mean, and the whole distribution (Kolmogorov-Smirnov), with full drift and noise."""
    problem, d, T = sl.presets.phase_retrieval(lr=0.1, noise=0.3), 400, 0.4
    law = mediocrity.exit_law(problem, d, T, start)
    init = sl.RandomInit(d) if start is None else sl.FixedInit(start)
    times = exits(problem, sl.SDE(d, samples=16), init, T, runs=512, t_max=1000)
    assert agrees(times, law.mean, bias=0.002)  # the SDE's steps: an exit is seen at the end of one
    assert agrees((times - law.mean) ** 2, law.variance, bias=0.01)
    assert kstest(times, law.cdf).pvalue > 1e-4


@pytest.mark.parametrize(("d", "threshold", "runs"), [(1024, 0.1, 512), (8192, 8e-3, 256)])
def test_noise_adds_to_the_random_start_whatever_d(d, threshold, runs):
    """The chain exits log(1 + kappa)/(2 omega) before the quenched ODE: log(2) at the optimal rate."""
    problem = sl.presets.phase_retrieval(lr=1 / 12)
    times = exits(problem, sl.Chain(d), sl.RandomInit(d), threshold, runs, t_max=300, seed=3)
    expected = mediocrity.exit_time(problem, d, threshold, "noisy_ode")
    assert agrees(times, expected, bias=0.01)
    law = mediocrity.exit_law(problem, d, threshold)
    assert kstest(times, law.cdf).pvalue > 1e-4
    assert not agrees(times, mediocrity.exit_time(problem, d, threshold, "ode"))


@pytest.mark.full
def test_large_rates_have_more_noise_and_exit_sooner_still():
    problem, d, T = sl.presets.phase_retrieval(lr=0.12), 1024, 0.2
    times = exits(problem, sl.Chain(d), sl.RandomInit(d), T, runs=768, t_max=500)
    assert agrees(times, mediocrity.exit_time(problem, d, T, "noisy_ode"), bias=0.01)
    assert times.mean() < 0.85 * mediocrity.exit_time(problem, d, T, "ode")


@pytest.mark.full
def test_one_unit_needs_the_fewest_samples_near_the_optimal_rate():
    """A parabola through the logarithms of the chain's mean times; its minimum within 20 % of 1/(12 + noise)."""
    d, T, noise = 1024, 0.1, 0.5
    shares = np.array([0.4, 0.7, 1.0, 1.3, 1.6])
    means = [
        exits(sl.presets.phase_retrieval(lr=share / 12.5, noise=noise), sl.Chain(d), sl.RandomInit(d), T, 256, 1000).mean()
        for share in shares
    ]
    bend, slope, _ = np.polyfit(np.log(shares), np.log(means), 2)
    assert bend > 0
    assert abs(-slope / (2 * bend)) < 0.2


# --- any width ---------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("d", [1024, 4096, 16384])
def test_noise_delays_the_exit_from_a_typical_start_and_not_from_a_small_one(d, say):
    """One unit at kappa = 1 from the overlaps 1 and 1/4 times d^-1/2: the ODE's time and the closed delay, whatever d."""
    problem, T = sl.presets.phase_retrieval(lr=1 / 12), 0.1
    for y in (1.0, 0.25):
        m = y * d**-0.5
        start = sl.Overlaps(np.ones(1), np.full((1, 1), m), np.eye(1))
        times = exits(problem, sl.Chain(d), start, T, runs=512 if d < 10**4 else 256, t_max=400, seed=3)
        limit, delay = (
            mediocrity.exit_time(problem, d, T, "ode", start=m),
            12 * float(mediocrity.noise_delay(1, 1 / 12, 0.0, y)),
        )
        error = times.std(ddof=1) / np.sqrt(times.size)
        say(f"d = {d}, y = {y}: chain less ODE {(times.mean() - limit) / 12:.3f} ± {error / 12:.3f}, theory {delay / 12:.3f}")
        assert agrees(times, limit + delay)
        assert (times.mean() - limit) * delay > 0


@pytest.mark.full
def test_full_ode_over_random_starts_has_the_quenched_time_for_small_thresholds_only():
    """Within 1 % at T = 0.01, d = 10^4, width 5; at T = 0.5 the drift's bend delays it by more than 5 %."""
    width, d = 5, 10_000
    problem = sl.presets.phase_retrieval(width, lr=0.08 * width)
    for T in (0.01, 0.5):
        times = exits(problem, sl.ODE(), sl.RandomInit(d), T, runs=255, t_max=1000)
        quenched = mediocrity.exit_time(problem, d, T, "quenched")
        if T < 0.1:
            assert agrees(times, quenched, bias=0.01)
        else:
            assert times.mean() > 1.05 * quenched


def test_linear_formulas_hold_near_the_saddle_at_any_width_once_noise_is_counted():
    """First passage of the sum of m^2 of eight units at 0.02, d = 16000; what bends there is of the order of 0.02."""
    width, d, g = 8, 16_000, 0.12
    problem = sl.presets.phase_retrieval(width, lr=g * width)
    found = sl.simulate(
        problem,
        sl.Chain(d),
        sl.RandomInit(d),
        t_max=100,
        runs=16,
        until=lambda stats: (stats.M**2).sum() - 0.02,
        progress=False,
    )
    assert (found.status == "stopped").all()
    slow = 1 / (2 * g * float(mediocrity.linear_rates(width, g * width).M))
    noiseless = slow * (np.log(0.02 * d) - mean_log_overlap(width, d))
    noisy = noiseless - slow * float(np.log1p(mediocrity.noise_gain(width, g * width)))
    times = found.t_end.values
    assert agrees(times, noisy, bias=0.02)
    print(f"mean {times.mean():.2f} ± {times.std() / 4:.2f}, theory {noisy:.2f}, without noise {noiseless:.2f}")
    assert abs(times.mean() - noisy) < abs(times.mean() - noiseless)


def test_nothing_is_learnt_above_the_largest_rate():
    """lr = 1.2 times 2/(12 + noise): the risk of the chain stays at that of the saddle."""
    noise = 0.5
    problem = sl.presets.phase_retrieval(lr=1.2 * float(mediocrity.max_lr(1, noise)), noise=noise)
    how = dict(t_max=60, runs=256, save=20, until=sl.exits(0.9), progress=False)
    stays = sl.simulate(problem, sl.Chain(1024), sl.RandomInit(1024), **how)
    assert (stays.status == "finished").all()
    assert (stays.risk.mean("run") - noise / 2 > 1.9).all()


@pytest.mark.full
def test_training_the_second_layer_leaves_the_plateau_at_the_same_time():
    """Appendix I: first passage of the largest overlap at 0.3, p = 5, d = 1000, with the second layer trained and fixed."""
    largest = lambda stats: abs(stats.M).max() - 0.3
    means, errors = [], []
    for train in (False, True):
        problem = sl.presets.phase_retrieval(5, lr=0.5, train_second=train)
        found = sl.simulate(problem, sl.Chain(1000), sl.RandomInit(1000), t_max=100, runs=48, until=largest, progress=False)
        assert (found.status == "stopped").all()
        means.append(float(found.t_end.mean()))
        errors.append(float(found.t_end.std()) / np.sqrt(48))
    assert abs(means[1] / means[0] - 1) < 0.1 + 4 * np.hypot(*errors) / means[0]
