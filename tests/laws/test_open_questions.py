"""What follows escape and what other activations do: the closed results on the open questions, against other routes."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial import hermite_e
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

import sgdlimits as sl
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.papers.mediocrity.escape import critical_points, escape
from sgdlimits.papers.mediocrity.theory import plateau_correction
from sgdlimits.papers.mediocrity.theory.asymptotic import (
    end_rates,
    free_end,
    free_max_lr,
    plateau_series,
    second_only_risk,
    terminal_risk,
    trained_end,
)

drift_and_risk = eqx.filter_jit(lambda problem, stats: (problem.drift(stats), problem.risk(stats)))
WIDTH = 3
"""Most tests take this width, so that they share what is compiled."""


def alike(width, state):
    a, m, norm, q = (float(each) for each in state[:4])
    return sl.Overlaps(np.full(width, a), np.full((width, 1), m), q + (norm - q) * np.eye(width))


def both_layers(ratio, step, noise=0.0, width=WIDTH):
    return sl.presets.single_index("square", width=width, lr=step * width, noise=noise, train_second=ratio)


def quadratic_drift(a, M, Q, step, noise, ratio, sphere):
    """(da, dM, dQ) in the paper's time, in NumPy: the error is x^T K x, and its moments are those of a Gaussian."""
    p, k = a.size, np.append(-a / a.size, 1.0)
    S = np.block([[Q, M], [M.T, np.ones((1, 1))]])
    KS = k[:, None] * S
    SKS, trace = S @ KS, np.trace(KS)
    linear = trace * S + 2 * SKS
    square = (trace**2 + 2 * np.trace(KS @ KS) + noise) * S + 4 * trace * SKS + 8 * SKS @ KS
    dM = 2 * a[:, None] * linear[:p, p:]
    dQ = 2 * (a[:, None] + a) * linear[:p, :p] + 4 * step * np.outer(a, a) * square[:p, :p]
    if sphere:
        norm = np.diag(dQ) / 2
        dM, dQ = dM - M * norm[:, None], dQ - Q * (norm[:, None] + norm)
    return ratio * np.diag(linear)[:p], dM, dQ


def follow(a, M, Q, step, ratio, tau):
    """(a, M, Q) at the end of that ODE on the sphere without noise."""
    p = a.size

    def slope(t, y):
        parts = y[:p], y[p : 2 * p, None], y[2 * p :].reshape(p, p)
        return np.concatenate([each.ravel() for each in quadratic_drift(*parts, step, 0.0, ratio, True)])

    start = np.concatenate([a, M.ravel(), Q.ravel()])
    y = solve_ivp(slope, (0, tau), start, method="LSODA", rtol=1e-10, atol=1e-13).y[:, -1]
    return y[:p], y[p : 2 * p, None], y[2 * p :].reshape(p, p)


def eigenvalues(point, step, noise, ratio, sphere=True):
    """Of the Jacobian of that ODE in the coordinates that move, by central differences."""
    p, pairs = point.a.size, np.triu_indices(point.a.size, int(sphere))

    def slope(y):
        Q = np.array(point.Q, float)
        Q[pairs] = Q.T[pairs] = y[2 * p :]
        change = quadratic_drift(y[:p], y[p : 2 * p, None], Q, step, noise, ratio, sphere)
        return np.concatenate([change[0], change[1][:, 0], change[2][pairs]])

    y, h = np.concatenate([point.a, point.M[:, 0], np.asarray(point.Q)[pairs]]), 1e-6
    moves = np.arange(y.size) >= (0 if ratio else p)
    matrix = np.array([slope(y + h * e) - slope(y - h * e) for e in np.eye(y.size)]).T / (2 * h)
    return np.linalg.eigvals(matrix[np.ix_(moves, moves)])


# The plateau that noise leaves.


@pytest.mark.parametrize(("step", "noise"), [(0.05, 1.0), (0.1, 0.5)])
def test_ends_off_the_sphere_and_with_a_trained_layer_are_fixed_points_with_their_risk(step, noise):
    free = sl.presets.phase_retrieval(WIDTH, lr=step * WIDTH, noise=noise, sphere=False)
    for problem, state in ((free, free_end), (both_layers(1.0, step, noise), trained_end)):
        end = state(WIDTH, step * WIDTH, noise)
        drift, risk = drift_and_risk(problem, alike(WIDTH, end))
        for change in (drift.M, drift.Q, drift.a):
            np.testing.assert_allclose(change, 0, atol=1e-12)
        np.testing.assert_allclose(risk - noise / 2, end.excess_risk, rtol=1e-9)


def test_drift_in_numpy_is_the_one_of_the_package():
    rng, step, noise = np.random.default_rng(0), 0.1, 0.5
    u = rng.standard_normal((WIDTH, 8))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    stats = sl.Overlaps(rng.uniform(0.5, 1.5, WIDTH), u[:, :1], u @ u.T)
    free = sl.presets.phase_retrieval(WIDTH, lr=step * WIDTH, noise=noise, sphere=False)
    for problem, ratio, sphere in ((free, 0.0, False), (both_layers(0.7, step, noise), 0.7, True)):
        ours, _ = drift_and_risk(problem, stats)
        parts = quadratic_drift(stats.a, stats.M, stats.Q, step, noise, ratio, sphere)
        for left, right in zip((ours.a, ours.M, ours.Q), parts, strict=True):
            np.testing.assert_allclose(left / step, right, atol=1e-12)


def test_plateau_is_linear_in_the_noise_with_the_closed_second_order():
    """The remainder is of third order in g, 36 g^3 times the noise at p = 1: it falls by 8 where g halves."""
    for width in (1, 2, 7):
        gaps = []
        for g in (2e-3, 1e-3):
            exact = [mediocrity.asymptotic_excess_risk(width, g * width, 3.0)]
            exact += [end(width, g * width, 3.0).excess_risk for end in (free_end, trained_end)]
            gaps.append(np.abs(np.array(exact) - plateau_series(width, g * width, 3.0)))
        ratio = gaps[0] / gaps[1]
        if width == 1:
            ratio = ratio[[0, 2]] if gaps[0][1] < 1e-15 else ratio
        np.testing.assert_allclose(ratio, 8, rtol=0.1)


def test_one_unit_has_the_plateau_of_the_sphere_off_it_until_it_oscillates():
    """The trace of the Jacobian changes sign at the closed rate, below the one at which the plateau meets the saddle."""
    for noise in (1.0, 2.0):
        rate = float(free_max_lr(noise))
        assert rate < mediocrity.max_lr(1, noise)
        for share, stable in ((0.999, True), (1.001, False)):
            lr = share * rate
            end = free_end(1, lr, noise)
            np.testing.assert_allclose(end.excess_risk, lr * noise / (1 - 6 * lr), rtol=1e-8)
            rates = eigenvalues(alike(1, end), lr, noise, 0.0, sphere=False)
            assert (rates.real.max() < 0) == stable
            assert np.abs(rates.imag).min() > 0
    np.testing.assert_allclose(free_max_lr([4.0, 9.0]), mediocrity.max_lr(1, [4.0, 9.0]))


def one_step(y, lr, noise, d, nodes=14):
    """Mean change of y = m^2 in one exact step, times d, and its mean square, times d^2: quadrature over all that is random."""
    x, weights = hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    fixed, own, label = np.meshgrid(x, x, x, indexing="ij")
    rest = d - 2 + np.sqrt(2 * (d - 2)) * np.array([-1.0, 1.0])[:, None, None, None]  # the moments of chi^2 that matter
    field = np.sqrt(y) * fixed + np.sqrt(1 - y) * own
    c = 2 * lr / d * (fixed**2 + np.sqrt(noise) * label - field**2) * field
    after = (np.sqrt(y) + c * fixed) ** 2 / (1 + 2 * c * field + c**2 * (fixed**2 + own**2 + rest))
    change = (after - y).mean(0)
    mean = lambda values: np.einsum("i,j,k,ijk", weights, weights, weights, values)
    return d * mean(change), d**2 * mean(((after - y) ** 2).mean(0))


@pytest.mark.parametrize(("lr", "noise"), [(0.1, 1.0), (0.03, 2.0), (0.02, 0.1)])
def test_correction_of_the_plateau_is_that_of_the_exact_step(lr, noise):
    """The mean step vanishes in the stationary state: to first order in 1/d that needs its bend and the variance."""
    d, R, h = 10**5, lr * noise / (1 - 6 * lr), 1e-3
    y = 1 - R / 2
    low, (middle, square), high = one_step(y - h, lr, noise, d)[0], one_step(y, lr, noise, d), one_step(y + h, lr, noise, d)[0]
    slope, bend = (high - low) / (2 * h), (high - 2 * middle + low) / h**2
    variance = square / (-2 * slope * d)
    shift = -(middle + bend / 2 * variance) / slope
    np.testing.assert_allclose(plateau_correction(lr, noise), -2 * shift / R * d, rtol=2e-3, atol=2e-3)
    small = 1e-4
    np.testing.assert_allclose(plateau_correction(small, noise), -1 + small * (6 + noise / 2), atol=1e-5)


@pytest.mark.parametrize(("lr", "noise"), [(1 / 12, 0.0), (0.05, 1.5)])
def test_drift_on_the_sphere_to_order_one_over_d_is_that_of_the_exact_step(lr, noise):
    """The mean step at two dimensions, less the drift of the limit: what is left next falls as 1/d."""
    x, weights = hermite_e.hermegauss(16)
    weights = weights / weights.sum()
    fixed, own, label = np.meshgrid(x, x, x, indexing="ij")
    for m in (0.05, 0.5, 0.95):
        gaps = []
        for d in (10**4, 2 * 10**4):
            rest = d - 2 + np.sqrt(2 * (d - 2)) * np.array([-1.0, 1.0])[:, None, None, None]
            field = m * fixed + np.sqrt(1 - m**2) * own
            c = 2 * lr / d * (fixed**2 + np.sqrt(noise) * label - field**2) * field
            after = (m + c * fixed) / np.sqrt(1 + 2 * c * field + c**2 * (fixed**2 + own**2 + rest))
            step = d * np.einsum("i,j,k,ijk", weights, weights, weights, (after - m).mean(0))
            limit = lr * m * (4 * (1 - 6 * lr) * (1 - m**2) - 2 * lr * noise)
            gaps.append(d * (step - limit) - mediocrity.drift_correction(m, lr, noise))
        assert abs(gaps[0]) < 2e-3
        np.testing.assert_allclose(2 * gaps[1], gaps[0], atol=2e-5)


@pytest.mark.full
def test_chain_has_the_correction_of_the_plateau_at_three_dimensions(say):
    """lr 0.03, noise 2: within 5 standard errors, of which the correction is about 10 at d = 50."""
    lr, noise = 0.03, 2.0
    problem, state = sl.presets.phase_retrieval(lr=lr, noise=noise), mediocrity.learnt_state(1, lr, noise)
    start = sl.Overlaps(np.ones(1), np.full((1, 1), float(state.m)), np.eye(1))
    for d in (50, 100, 200):
        found = sl.simulate(problem, sl.Chain(d), start, t_max=1000, runs=256, seed=1, save=1001, progress=False)
        means = (found.risk.values - noise / 2)[:, 100:].mean(1) / state.excess_risk - 1
        error = means.std(ddof=1) / 16
        say(f"d = {d}: {d * means.mean():.2f} ± {d * error:.2f}, in theory {plateau_correction(lr, noise):.2f}")
        assert abs(means.mean() - plateau_correction(lr, noise) / d) < 5 * error  # false alarms below 1e-6


def test_sgd_in_many_dimensions_stays_on_the_plateau(say):
    """Plain NumPy, one unit on the sphere, d = 200: within 5 standard errors, the correction at finite d counted."""
    rng, d, runs, lr, noise = np.random.default_rng(3), 200, 48, 0.05, 2.0
    m = float(mediocrity.learnt_state(1, lr, noise).m)
    u = rng.standard_normal((runs, d))
    u[:, 0] = 0
    u *= np.sqrt(1 - m**2) / np.linalg.norm(u, axis=1, keepdims=True)
    u[:, 0] = m
    risks = []
    for step in range(60 * d):
        x = rng.standard_normal((runs, d))
        field = (u * x).sum(1)
        error = x[:, 0] ** 2 + np.sqrt(noise) * rng.standard_normal(runs) - field**2
        u += (2 * lr / d * error * field)[:, None] * x
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        if step >= 15 * d and step % 20 == 0:
            risks.append(2 * (1 - u[:, 0] ** 2))
    means = np.mean(risks, axis=0)
    error, expected = means.std(ddof=1) / np.sqrt(runs), lr * noise / (1 - 6 * lr) * (1 + plateau_correction(lr, noise) / d)
    say(f"SGD {means.mean():.4f} ± {error:.4f}, theory {expected:.4f}")
    assert abs(means.mean() - expected) < 5 * error  # false alarms below 1e-6


# Other activations.


def even(*coefficients):
    """The polynomial with these coefficients of He_2, He_4, ..., for the package and for NumPy."""
    powers = hermite_e.herme2poly([0, *(each for pair in coefficients for each in (0, pair))])
    return sl.Polynomial(powers), np.polynomial.Polynomial(powers)


def drift_by_quadrature(student, slope, target, m, lr, noise=0.0, nodes=80):
    """The drift of the overlap of one unit on the sphere, on a grid of two fields."""
    x, weights = hermite_e.hermegauss(nodes)
    weights = np.outer(weights, weights) / (2 * np.pi)
    fixed = x[:, None] + 0 * x
    field = m * fixed + np.sqrt(1 - m**2) * x
    error = target(fixed) - student(field)
    push = (weights * error * slope(field) * (fixed - m * field)).sum()
    spread = (weights * (error**2 + noise) * slope(field) ** 2).sum()
    return lr * push - lr**2 * m / 2 * spread


UNITS = {
    "square": ("square", lambda x: x**2, lambda x: 2 * x),
    "cosine": (lambda x: -jnp.cos(x), lambda x: -np.cos(x), np.sin),
    "quartic": (even(1, -0.1)[0], even(1, -0.1)[1], even(1, -0.1)[1].deriv()),
}


@pytest.mark.parametrize("name", UNITS)
def test_rates_of_escape_and_of_recovery_agree_with_quadrature(name):
    fn, student, slope = UNITS[name]
    one, noise = escape(fn, noise=0.3), 0.3
    quiet = escape(fn)
    for lr in (0.3 * one.max_lr, 1.2 * one.max_lr):
        measured = drift_by_quadrature(student, slope, student, 1e-4, lr, noise) / 1e-4
        np.testing.assert_allclose(one.rate(lr), measured, rtol=1e-4, atol=1e-9)
    near = 1 - 1e-5
    for share, grows in ((0.995, True), (1.005, False)):
        assert (drift_by_quadrature(student, slope, student, near, share * quiet.final_lr) > 0) == grows
    x, weights = hermite_e.hermegauss(60)
    kick = [
        (w * v * (student(y) - student(x)) ** 2 * slope(y) ** 2 * x**2)
        for y, v in zip(x, weights, strict=True)
        for w in [weights]
    ]
    np.testing.assert_allclose(quiet.kick, np.sum(kick) / (2 * np.pi), rtol=1e-8)


def test_constants_of_the_page():
    table = {
        "abs": (1.79, 0.876, 1.14),
        lambda x: jnp.log(jnp.cosh(x)): (1.55, 1.76, 0.88),
        even(1, -0.1)[0]: (1.74, 0.144, 0.66),
        even(1, 0.1)[0]: (29.9, 0.00837, 1.10),
    }
    for fn, expected in table.items():
        one = escape(fn)
        np.testing.assert_allclose([one.samples, one.best_lr, one.final_lr / one.max_lr], expected, rtol=6e-3)
    np.testing.assert_allclose(escape(lambda x: x**4).samples, 101, rtol=6e-3)
    cosine = escape(UNITS["cosine"][0])
    np.testing.assert_allclose([cosine.samples, cosine.best_lr, cosine.final_lr / cosine.max_lr], (1.40, 1.94, 0.73), rtol=6e-3)


def test_plateau_of_any_activation_is_the_one_of_phase_retrieval_for_squares():
    np.testing.assert_allclose(escape("square").plateau(0.1, 0.4), 0.1, rtol=1e-9)
    one, lr, noise = escape(UNITS["cosine"][0]), 0.3, 1e-3
    _, student, slope = UNITS["cosine"]
    end = brentq(lambda m: drift_by_quadrature(student, slope, student, m, lr, noise, 40), 0.9, 1.0)
    excess = np.exp(-1) * (np.cosh(1) - np.cosh(end))  # the mean of cos cos at the overlap m is cosh(m)/e
    np.testing.assert_allclose(excess, one.plateau(lr, noise), rtol=5e-3)  # the next order in the noise


def test_traps_are_where_the_sign_of_the_population_changes():
    for c, target in ((0.2, -0.1), (0.5, -0.5)):
        found = critical_points(even(1, c)[0], even(1, target)[0])
        inside = -1 / (24 * c * target)
        if inside > 1:
            assert [point.stable for point in found] == [False, True]
        else:
            assert [point.stable for point in found] == [False, True, False]
            np.testing.assert_allclose(found[1].m, np.sqrt(inside), rtol=1e-9)
    assert [point.stable for point in critical_points("abs")] == [False, True]
    both = critical_points(lambda x: -jnp.cos(1.5 * x), even(1, 14 / 15, 64 / 243)[0])
    assert [point.stable for point in both] == [False, True, False, True]
    assert both[1].risk > both[3].risk


def test_sgd_in_many_dimensions_ends_in_the_trap(say):
    """Plain NumPy at d = 100: the overlap stays near the trap, which the corrector moves down at a finite rate.

    Rare large steps throw runs back, so that means over 24 runs differ by 0.01 to 0.02 between seeds and dimensions; no
    normal law gives a false-alarm rate here, and the room is 0.05. Zero overlap and the teacher are seven times as far.
    """
    (_, student), (_, target) = even(1, -0.1), even(1, 5 / 6)
    found = critical_points(even(1, -0.1)[0], even(1, 5 / 6)[0])
    rng, d, runs, lr, slope = np.random.default_rng(5), 100, 24, 0.003, student.deriv()
    u = rng.standard_normal((runs, d)) / np.sqrt(d)
    u[:, 0] = 0.4
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    kept = []
    for step in range(200 * d):
        x = rng.standard_normal((runs, d))
        field = (u * x).sum(1)
        u -= (lr / d * (student(field) - target(x[:, 0])) * slope(field))[:, None] * x
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        if step > 100 * d and step % 50 == 0:
            kept.append(u[:, 0].copy())
    mean = np.mean(kept)
    expected = brentq(lambda m: drift_by_quadrature(student, slope, target, m, lr, nodes=40), 0.2, 0.9)
    say(f"SGD stays at m = {mean:.3f}, ODE at {expected:.3f}, trap of the population at {found[1].m:.3f}")
    assert [point.stable for point in found] == [False, True, False]
    assert abs(mean - expected) < 0.05


def exits_of_the_chain(student, slope, lr, d, runs, rng, most):
    """Times at which the overlap of one unit passes 1/2 from random starts: the exact chain in NumPy, target and unit alike."""
    m, t = rng.standard_normal(runs), np.full(runs, np.nan)
    m /= np.sqrt(m**2 + rng.chisquare(d - 1, runs))
    for step in range(int(most * d)):
        fixed, own = rng.standard_normal((2, runs))
        across = np.sqrt(1 - m**2)
        field = m * fixed + across * own
        c = -lr / d * (student(field) - student(fixed)) * slope(field)
        m, across = m + c * fixed, np.sqrt((across + c * own) ** 2 + c**2 * rng.chisquare(d - 2, runs))
        m /= np.hypot(m, across)
        t[np.isnan(t) & (np.abs(m) > 0.5)] = (step + 1) / d
        if not np.isnan(t).any():
            break
    return t


@pytest.mark.parametrize("name", ["cosine", "quartic"])
def test_chain_leaves_with_the_predicted_time(name, say):
    """The ODE, the law of the start and SGD's noise near zero, at d = 200 and half of the best rate.

    False alarms below 1e-6 beside the 3 % that are left for terms of order 1/d.
    """
    fn, student, slope = UNITS[name]
    one, d = escape(fn), 200
    lr = one.best_lr / 2
    m = np.geomspace(d**-0.5, 0.5, 60)
    speed = np.array([drift_by_quadrature(student, slope, student, each, lr, nodes=30) for each in m])
    expected = np.trapezoid(m / speed, np.log(m)) + one.delay(lr)
    t = exits_of_the_chain(student, slope, lr, d, 1000, np.random.default_rng(2), 12 * expected)
    assert not np.isnan(t).any()
    error = t.std(ddof=1) / np.sqrt(t.size)
    say(f"{name}: chain {t.mean():.2f} ± {error:.2f}, theory {expected:.2f}")
    assert abs(t.mean() - expected) < 5 * error + 0.03 * expected


# Both layers after the escape.


def simplex(width, s):
    """Students at the same distance from the teacher that have as little in common across it as can be."""
    Q = (1 - s) - s / (width - 1) + (s + s / (width - 1)) * np.eye(width)
    return np.full((width, 1), np.sqrt(1 - s)), Q


@pytest.mark.parametrize("trained", [False, True])
def test_without_noise_learning_ends_as_a_power_law_with_the_closed_factor(trained, say):
    step, tau = 0.05, 1e5
    start = np.array([0.8, 0.9, 1.3]) if trained else np.ones(WIDTH)
    a, M, Q = follow(start, *simplex(WIDTH, 0.01), step, float(trained), tau)
    error = np.array([*(-a / WIDTH), 1.0])
    KS = error[:, None] * np.block([[Q, M], [M.T, np.ones((1, 1))]])
    risk, expected = np.trace(KS) ** 2 / 2 + np.trace(KS @ KS), terminal_risk(a, step * WIDTH, trained)
    say(f"risk tau^2 {risk * tau**2:.6f}, theory {expected:.6f}, a {a.round(3)}")
    np.testing.assert_allclose(risk * tau**2, expected, rtol=5e-3)  # the approach is a power of tau


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_rates_at_the_end_are_the_eigenvalues_of_the_ode(ratio):
    step, noise = 1e-3, 1.0
    state = mediocrity.learnt_state(WIDTH, step * WIDTH, noise)
    end = trained_end(WIDTH, step * WIDTH, noise) if ratio else (1.0, state.m, 1.0, state.q)
    found = np.sort(-eigenvalues(alike(WIDTH, end), step, noise, ratio).real)
    rates = end_rates(WIDTH, step * WIDTH, noise, ratio)
    expected = [rates.trace, *[rates.apart] * (WIDTH - 1), rates.common]
    expected += [rates.mean, *[rates.differences] * (WIDTH - 1)] if ratio else []
    np.testing.assert_allclose(found[: len(expected)], np.sort(expected), rtol=1e-2)  # corrections of order 6 g


@pytest.mark.full
def test_a_fast_second_layer_becomes_sparse_and_a_slow_one_stays_homogeneous(say):
    rng, shares = np.random.default_rng(1), {0.1: [], 10.0: []}
    for _ in range(12):
        u = rng.standard_normal((WIDTH, 1000))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        for ratio, found in shares.items():
            a = follow(np.ones(WIDTH), u[:, :1], u @ u.T, 1 / 24, ratio, 20.0)[0]
            found.append(a.sum() ** 2 / (a**2).sum() / WIDTH)
    say("participation ratio: " + ", ".join(f"{np.median(each):.2f} at r = {ratio:g}" for ratio, each in shares.items()))
    assert min(shares[0.1]) > 0.85
    assert np.median(shares[10.0]) < 0.5


def test_training_only_the_second_layer_stays_on_the_plateau():
    """The least squares of the labels on squares of random fields, from exact moments of random weights."""
    rng, d, p = np.random.default_rng(1), 20_000, 4
    u = rng.standard_normal((p, d)) / np.sqrt(d)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    features = (1 + 2 * (u @ u.T) ** 2) / p**2
    labels = (1 + 2 * u[:, 0] ** 2) / p
    a = np.linalg.solve(features, labels)
    np.testing.assert_allclose((3 - labels @ a) / 2, second_only_risk(p), rtol=1e-3)
    np.testing.assert_allclose(a, p / (p + 2), rtol=2e-3)
