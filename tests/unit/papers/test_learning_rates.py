"""Final states of the ODE of phase retrieval, and the learning rates that learn."""

from __future__ import annotations

from itertools import pairwise

import equinox as eqx
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity

drift_and_risk = eqx.filter_jit(lambda problem, stats: (problem.drift(stats), problem.risk(stats)))


def alike(width, m, q):
    return sl.Overlaps(np.ones(width), np.full((width, 1), m), q + (1 - q) * np.eye(width))


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("noise", [0.1, 6.0])
@pytest.mark.parametrize("share", [0.1, 0.99])
def test_learnt_state_is_a_fixed_point_with_its_risk(width, noise, share):
    lr = share * float(mediocrity.usable_lr(width, noise))
    problem = sl.presets.phase_retrieval(width, lr=lr, noise=noise)
    state = mediocrity.learnt_state(width, lr, noise)
    stats = alike(width, float(state.m), float(state.q))
    drift, risk = drift_and_risk(problem, stats)
    np.testing.assert_allclose(drift.M, 0, atol=1e-11)
    np.testing.assert_allclose(drift.Q, 0, atol=1e-11)
    np.testing.assert_allclose(risk - noise / 2, state.excess_risk, rtol=1e-9)
    problem.coordinates.check(sl.Overlaps(stats.a[None], stats.M[None], stats.Q[None]))


@pytest.mark.parametrize(("width", "noise"), [(2, 0.3), (5, 1.0)])
def test_learnt_state_is_stable_up_to_the_usable_rate(width, noise):
    for share in (0.3, 0.999):
        lr = share * float(mediocrity.usable_lr(width, noise))
        state = mediocrity.learnt_state(width, lr, noise)
        point = alike(width, float(state.m), float(state.q))
        assert sl.linearise(sl.presets.phase_retrieval(width, lr=lr, noise=noise), point).stable


def test_two_units_stay_alike_below_their_own_rate_only():
    """The Jacobian by automatic differentiation; for loud labels that rate is below the usable one, by 0.55 % at most."""
    for noise in (0.0, 1.0, 40.0, 77.0):
        rate = float(mediocrity.pair_max_lr(noise))
        for share, stable in ((0.9998, True), (1.0002, False)):
            state = mediocrity.learnt_state(2, share * rate, noise)
            point = alike(2, float(state.m), float(state.q))
            assert sl.linearise(sl.presets.phase_retrieval(2, lr=share * rate, noise=noise), point).stable == stable
    noise = np.linspace(0, 500, 501)
    share = mediocrity.pair_max_lr(noise) / mediocrity.usable_lr(2, noise)
    np.testing.assert_array_equal(share < 1, noise > 12 + 8 * np.sqrt(6))
    assert 0.9945 < share.min() < 0.9946


@pytest.mark.full
@pytest.mark.parametrize("width", [3, 5])
def test_three_and_more_units_stay_alike_up_to_the_usable_rate_however_loud_the_labels(width):
    for noise in (1.0, 35.0, 100.0):
        lr = 0.999 * float(mediocrity.usable_lr(width, noise))
        state = mediocrity.learnt_state(width, lr, noise)
        point = alike(width, float(state.m), float(state.q))
        assert sl.linearise(sl.presets.phase_retrieval(width, lr=lr, noise=noise), point).stable


def test_asymptotic_risk_of_one_unit_is_8():
    lr, noise = np.array([0.01, 0.05, 0.1]), np.array([[0.1], [1.0]])
    np.testing.assert_allclose(mediocrity.asymptotic_excess_risk(1, lr, noise), lr * noise / (1 - 6 * lr), rtol=1e-12)
    np.testing.assert_allclose(mediocrity.asymptotic_excess_risk(1, 0.1666, 0.5), 2.0)


def test_width_lowers_the_asymptotic_risk_below_8_at_the_same_step():
    noise, g = 1.0, np.array([0.01, 0.05, 0.1, 0.15])
    risks = [mediocrity.asymptotic_excess_risk(width, g * width, noise) for width in (1, 2, 5, 20)]
    assert all((narrow > wide).all() for narrow, wide in pairwise(risks))
    small = 1e-3
    series = small * noise + small**2 * (6 * noise - (1 - 1 / 5) * noise**2 / 4)
    np.testing.assert_allclose(mediocrity.asymptotic_excess_risk(5, 5 * small, noise), series, rtol=1e-4)


@pytest.mark.parametrize(("width", "noise"), [(1, 0.3), (2, 0.3), (5, 1.0)])
def test_full_ode_ends_at_the_asymptotic_risk(width, noise):
    lr = 0.7 * float(mediocrity.usable_lr(width, noise))
    problem = sl.presets.phase_retrieval(width, lr=lr, noise=noise)
    late = sl.simulate(problem, sl.ODE(), sl.RandomInit(1000), t_max=3000, runs=2, save=2)
    expected = mediocrity.asymptotic_excess_risk(width, lr, noise)
    np.testing.assert_allclose(late.risk[:, -1] - noise / 2, expected, rtol=1e-5)


@pytest.mark.full
def test_full_ode_reaches_zero_risk_below_a_sixth_of_the_width_and_not_above():
    width, ends = 5, {}
    for share in (0.16, 0.17):
        problem = sl.presets.phase_retrieval(width, lr=share * width)
        ends[share] = sl.simulate(problem, sl.ODE(), sl.RandomInit(1000), t_max=3000, runs=2, save=2).risk.values[:, -1]
    assert ends[0.16].max() < 1e-5
    np.testing.assert_allclose(ends[0.17], mediocrity.asymptotic_excess_risk(width, 0.17 * width, 0.0), rtol=1e-4)
    assert ends[0.17].min() > 0.05


@pytest.mark.full
def test_published_optimum_of_ten_units_ends_with_all_students_alike_and_nothing_learnt():
    """Risk 2, overlap 0 with the teacher, overlap 1 among students, in the ODE and in the chain."""
    lr = float(mediocrity.optimal_lr(10))
    assert lr > 2 * mediocrity.usable_lr(10)
    problem = sl.presets.phase_retrieval(10, lr=lr)
    limit = sl.simulate(problem, sl.ODE(), sl.RandomInit(1000), t_max=100, runs=2, save=2).isel(t=-1)
    chain = sl.simulate(problem, sl.Chain(500), sl.RandomInit(500), t_max=100, runs=4, save=2).isel(t=-1)
    np.testing.assert_allclose(limit.risk, 2, atol=1e-3)
    np.testing.assert_allclose(abs(limit.M), 0, atol=1e-3)
    np.testing.assert_allclose(abs(limit.Q), 1, atol=1e-3)
    np.testing.assert_allclose(chain.risk, 2, atol=0.1)


def test_usable_rate_binds_where_the_noise_is_small_and_the_gain_is_what_its_samples_say():
    width, noise = np.array([2, 3, 10]), np.array([[0.0], [1.0], [7.0], [9.0]])
    binds = mediocrity.optimal_lr(width, noise) > mediocrity.usable_lr(width, noise)
    np.testing.assert_array_equal(binds, noise < 8 - 4 / width - 16 / width**2)
    lr = mediocrity.usable_optimal_lr(width, noise)
    samples = width / lr / mediocrity.linear_rates(width, lr, noise).M
    one = 1 / mediocrity.optimal_lr(1, noise) / 2
    np.testing.assert_allclose(mediocrity.usable_gain(width, noise), one / samples, rtol=1e-12)
    np.testing.assert_allclose(mediocrity.usable_gain(10**9), 10 / 3, rtol=1e-8)
    np.testing.assert_allclose(mediocrity.overparametrisation_gain(10**9, [0.0, 1.0]), [6, 13 / 3], rtol=1e-8)


def test_rate_for_a_risk_ends_there():
    for width in (1, 2, 10):
        lr = float(mediocrity.lr_for_risk(width, 0.2, 0.01))
        np.testing.assert_allclose(mediocrity.asymptotic_excess_risk(width, lr, 0.2), 0.01, rtol=1e-8)
    np.testing.assert_allclose(mediocrity.lr_for_risk(3, 0.2, 1.9), mediocrity.usable_lr(3, 0.2), rtol=1e-9)
