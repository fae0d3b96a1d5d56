"""Soft committee machines against published relations: Saad and Solla (1995), Goldt et al. (2019)."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.new_results.figures import which_optimiser_why as why
from sgdlimits.papers.new_results.figures.which_optimiser import algorithm_at

SOLVER = sl.ODE(rtol=1e-7, atol=1e-9)

# --- Saad and Solla: sums of units instead of means ---------------------------------------------------------------------------


def sums(students, teachers, eta, noise=0.0):
    """Their problem with learning rate eta: f and y are sums, ours are 1/M of that, with second layer K/M."""
    return sl.presets.committee(students, teachers, lr=eta * teachers**2, noise=noise / teachers**2)


def integral_3(C, u, v, w):
    """I3 of the paper, <g'(u) v g(w)>."""
    root = np.sqrt((1 + C[u, u]) * (1 + C[w, w]) - C[u, w] ** 2)
    return 2 / np.pi / root * (C[v, w] * (1 + C[u, u]) - C[u, v] * C[u, w]) / (1 + C[u, u])


def integral_4(C, u, v, w, z):
    """I4 of the paper, <g'(u) g'(v) g(w) g(z)>."""
    L4 = (1 + C[u, u]) * (1 + C[v, v]) - C[u, v] ** 2
    L0 = L4 * C[w, z] - C[v, w] * C[v, z] * (1 + C[u, u]) - C[u, w] * C[u, z] * (1 + C[v, v])
    L0 = L0 + C[u, v] * C[u, w] * C[v, z] + C[u, v] * C[u, z] * C[v, w]

    def norm(w):
        rest = C[v, w] ** 2 * (1 + C[u, u]) + C[u, w] ** 2 * (1 + C[v, v]) - 2 * C[u, v] * C[u, w] * C[v, w]
        return L4 * (1 + C[w, w]) - rest

    return 4 / np.pi**2 / np.sqrt(L4) * np.arcsin(L0 / np.sqrt(norm(w) * norm(z)))


def saad_and_solla(R, Q, eta, noise):
    """dR/dalpha, dQ/dalpha and the generalisation error as published, with their noise term for noisy teachers."""
    K, M = R.shape
    C = np.block([[Q, R], [R.T, np.eye(M)]])
    sign = np.concatenate([-np.ones(K), np.ones(M)])
    student, unit = np.arange(K), np.arange(K + M)
    three = integral_3(C, *np.ix_(student, unit, unit)) @ sign
    four = np.einsum("iknm,n,m->ik", integral_4(C, *np.ix_(student, student, unit, unit)), sign, sign)
    two = 2 / np.pi / np.sqrt(np.outer(1 + Q.diagonal(), 1 + Q.diagonal()) - Q**2)
    length = np.sqrt(1 + C.diagonal())
    error = sign @ np.arcsin(C / np.outer(length, length)) @ sign / np.pi
    return eta * three[:, K:], eta * (three[:, :K] + three[:, :K].T) + eta**2 * (four + noise * two), error


def test_drift_and_risk_are_those_of_saad_and_solla():
    """At a random state of three students and two teachers, to rounding; their error is M^2 times our excess risk."""
    eta, noise, random = 0.7, 0.3, np.random.default_rng(0)
    U = random.normal(size=(3, 9)) / 3
    R, Q = U[:, :2], U @ U.T
    problem, state = sums(3, 2, eta, noise), sl.Overlaps(np.full(3, 3 / 2), R, Q)
    ours, risk = eqx.filter_jit(lambda problem, state: (problem.drift(state), problem.risk(state)))(problem, state)
    dR, dQ, error = saad_and_solla(R, Q, eta, noise)
    np.testing.assert_allclose(ours.M, dR, atol=1e-13)
    np.testing.assert_allclose(ours.Q, dQ, atol=1e-13)
    np.testing.assert_allclose(4 * (risk - problem.floor), error, atol=1e-13)


UNITS, ETA = 3, 0.01
PLATEAU = sl.Overlaps(
    np.ones(UNITS), np.full((UNITS, UNITS), 1 / np.sqrt(UNITS * (2 * UNITS - 1))), np.full((UNITS, UNITS), 1 / (2 * UNITS - 1))
)
ESCAPE = 2 / np.pi * UNITS * (2 * UNITS - 1) ** -0.5 * (2 * UNITS + 1) ** -1.5
"""Published growth rate of the departure from the plateau, in eta alpha."""


@pytest.fixture(scope="module")
def learning():
    """The ODE at a small rate from small random weights, saved at times eta alpha."""
    problem = sums(UNITS, UNITS, ETA)
    start = sl.RandomInit(10**8, scale=0.1).one(problem, seed=0)
    times = np.concatenate([np.arange(40, 400, 20), [800]]) / ETA
    found = sl.simulate(problem, SOLVER, start, t_max=times[-1], save=times, progress=False).isel(run=0)
    return found.assign_coords(tau=found.t * ETA).swap_dims(t="tau")


def test_students_wait_at_the_published_plateau(learning):
    """Error, R and Q of the symmetric state, up to what a rate of 0.01 instead of 0 leaves."""
    error = UNITS / np.pi * (np.pi / 6 - UNITS * np.arcsin(1 / (2 * UNITS)))
    waiting = learning.sel(tau=slice(40, 100))
    ratios = waiting.risk.values * UNITS**2 / error
    print("plateau: error / published", ratios.round(4), "R", waiting.M.values[0].round(4), "Q", waiting.Q.values[0].round(4))
    np.testing.assert_allclose(ratios, 1, atol=0.01)
    np.testing.assert_allclose(waiting.M, PLATEAU.M[0, 0], atol=0.002)
    np.testing.assert_allclose(waiting.Q, PLATEAU.Q[0, 0], atol=0.01)


def test_plateau_is_left_at_the_rate_of_the_linearised_drift(learning):
    """The rate is the published one in gradient flow; departures of R from its mean grow with it over three decades."""
    problem = sums(UNITS, UNITS, ETA)
    rates = sl.linearise(problem, PLATEAU, corrector=False).rates.real / ETA
    np.testing.assert_allclose(rates[: (UNITS - 1) ** 2], ESCAPE, rtol=1e-6)
    np.testing.assert_allclose(rates[(UNITS - 1) ** 2 :].max(), 0, atol=1e-6)
    departure = np.abs(learning.M - learning.M.mean(("student", "teacher"))).max(("student", "teacher"))
    small = departure.where((departure > 3e-5) & (departure < 3e-2) & (learning.tau > 40), drop=True)
    rate = np.polyfit(small.tau, np.log(small), 1)[0]
    print(f"escape rate {rate:.5f}, published {ESCAPE:.5f}")
    np.testing.assert_allclose(rate, ESCAPE, rtol=0.02)


@pytest.mark.full
@pytest.mark.parametrize("name", ["SGD", "Muon"])
def test_chain_leaves_the_plateau_at_the_linearised_rate(name, say):
    """Batches of 16, two units, rate c = 2: within 5 standard errors and the 3 % by which departures of 0.05 are not small."""
    k, batch, c = 2, 16, 2.0
    rate = why.normalise_rate(name, k, c)
    speed, y = why.escape(why.ALGORITHM_DRIFTS[name], k, rate, why.guess_plateau(k))
    if name == "Muon":
        own = partial(why.finite_batch_muon_drift, batch=batch, log2_points=9)
        large, (speed, y) = speed, why.escape(own, k, rate, y, relax=0.0)
        assert 0.7 < speed / large < 1  # p/b is not small yet
    else:
        found = sl.linearise(sl.presets.committee(k, k, lr=rate), why.symmetric_state(k, y))
        np.testing.assert_allclose([found.rates[0].real, 0], [speed, np.abs(found.drift).max()], rtol=1e-6, atol=1e-6)
    point = why.symmetric_state(k, y)
    found = why.measure_slope(algorithm_at(name, k, c, batch), point, d=20_000, runs=8, t=np.log(5) / speed, seed=1)
    say(f"{name}: {float(found.slope):.4f} +- {float(found.error):.4f}, linearised {speed:.4f}")
    assert float(found.error) < 0.1 * speed
    assert abs(float(found.slope) - speed) < 5 * float(found.error) + 0.03 * speed


def test_students_specialise_in_the_end(learning):
    M, Q = learning.M.values[-1], learning.Q.values[-1]
    np.testing.assert_allclose(np.sort(M, axis=1), np.eye(UNITS)[[UNITS - 1] * UNITS], atol=1e-6)
    np.testing.assert_allclose(M @ M.T, np.eye(UNITS), atol=1e-6)
    np.testing.assert_allclose(Q, np.eye(UNITS), atol=1e-6)


# --- Goldt et al.: more students than teachers, label noise, a fixed second layer ---------------------------------------------


def stationary(eta, noise, time):
    """Where the ODE is at eta alpha = time from the teachers, with L = 0, 1, 2 more students of small weights, in their units.

    Four students in all; those that are not wanted have a second layer of zero, and do not move.
    """
    problem, teachers, spread = sums(4, 2, eta, noise), np.eye(2), 0.02
    U = np.zeros((4, 6))
    U[:2, :2], U[2, 2:4], U[3, 3:5] = teachers, spread, spread
    a = 2.0 * np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    start = sl.Overlaps(a, np.tile(U[:, :2], (3, 1, 1)), np.tile(U @ U.T, (3, 1, 1)))
    found = sl.simulate(problem, SOLVER, start, t_max=time / eta, runs=3, save=[time / eta], progress=False).isel(t=0)
    return 4 * (found.risk.values - float(problem.floor)), found


def first_order(eta, noise):
    """Their sigma^2 eta / (2 pi) (L + M / sqrt 3) for L = 0, 1, 2 and M = 2: noise eta / 4 times the sum of E[s'^2]."""
    return noise * eta / (2 * np.pi) * (np.arange(3) + 2 / np.sqrt(3))


@pytest.mark.full
def test_error_at_the_end_grows_with_rate_noise_and_extra_students():
    """The ratio to their first order in eta is 1 + O(eta): extrapolated from two rates it is 1 within 0.2 %."""
    rates, noise = (0.025, 0.05), 0.01
    ratios = np.array([stationary(eta, noise, time=150)[0] / first_order(eta, noise) for eta in rates])
    twice = stationary(rates[1], 2 * noise, time=150)[0] / first_order(rates[1], 2 * noise)
    limit = 2 * ratios[0] - ratios[1]
    print("error / first order at two rates", ratios.round(4), "at twice the noise", twice.round(4), "limit", limit.round(4))
    np.testing.assert_allclose(ratios, 1, atol=0.07)
    np.testing.assert_allclose(limit, 1, atol=2e-3)
    np.testing.assert_allclose(twice, ratios[1], rtol=2e-3)


def test_two_extra_students_part_in_opposite_directions():
    """s(x) + s(-x) = 0: a pair of opposite students costs nothing, and the larger they are the less they pass noise on."""
    eta, noise = 0.1, 0.5
    error, found = stationary(eta, noise, time=400)
    ratios = error / first_order(eta, noise)
    Q = found.Q.values[2]
    angle = Q[2, 3] / np.sqrt(Q[2, 2] * Q[3, 3])
    print("error / first order", ratios.round(3), "cosine", angle.round(3), "norm", Q[2, 2].round(3))
    assert angle < -0.7
    assert ratios[2] < 0.95 < 1 < ratios[1] < 1.1


@pytest.mark.full
def test_fastest_escape_does_not_depend_on_the_grid_and_normalising_changes_nothing():
    """With large batches normalised SGD is SGD at another rate: both have the same fastest escape, and so have two grids."""
    best = lambda name, grid: max(row["rate"] for row in why.escape_curve(name, 2, grid))
    coarse, fine = np.array([1.0, 2.5, 6.0, 15.0]), np.geomspace(1.2, 9.6, 7)
    rate = best("SGD", coarse)
    np.testing.assert_allclose([best("SGD", fine), best("Normalised", coarse)], rate, rtol=1e-4)
    assert abs(best("Muon", coarse) / rate - 2.90) < 0.01
