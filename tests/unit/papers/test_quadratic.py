"""Quadratic networks: the plateau, the escape, the learning rate and the end of learning, against the ODE and its Jacobian."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import sgdlimits as sl
from sgdlimits.papers.quadratic import theory as theory
from sgdlimits.papers.quadratic.theory import escape, learning_rate, plateau, terminal

RUNS = 4
SETTINGS = [(3, 3, 0.05, 0.0), (3, 3, 0.3, 0.5), (3, 2, 0.2, 0.0), (3, 2, 0.1, 1.0)]


def network(width, teachers, lr, noise=0.0):
    return sl.presets.quadratic_network(width, teachers, lr, noise)


def on_plateau(problem, M, **how):
    """Return students at the plateau's norm with the overlaps M, runs first."""
    runs, width, _ = M.shape
    Q = plateau.plateau_norm(problem, **how) * np.eye(width)
    return sl.Overlaps(np.ones((runs, width)), M, np.tile(Q, (runs, 1, 1)))


@pytest.mark.parametrize("corrector", [True, False])
def test_plateau_is_a_fixed_point_with_the_rates_of_its_jacobian(corrector):
    """(10), (11) with omega_Q as a decay, and (12), each at any learning rate and noise."""
    for width, teachers, lr, noise in SETTINGS:
        problem = network(width, teachers, lr, noise)
        norm = plateau.plateau_norm(problem, corrector=corrector)
        point = sl.Overlaps(np.ones(width), np.zeros((width, teachers)), norm * np.eye(width))
        near = sl.linearise(problem, point, corrector=corrector)
        rates = plateau.plateau_rates(problem, corrector=corrector)
        pairs = width * (width + 1) // 2
        expected = [rates.rho] * width * teachers + [-rates.Q] * (pairs - 1) + [-rates.norm]
        assert np.abs(near.drift).max() < 1e-15
        np.testing.assert_allclose(near.rates, sorted(expected, reverse=True), rtol=1e-9)
        np.testing.assert_allclose(plateau.plateau_risk(problem, corrector=corrector), problem.risk(point), rtol=1e-12)
        if not corrector:
            paper = [8 / (width * teachers), 16 / (width * (width + 2)), 8 / width]
            np.testing.assert_allclose(np.array(rates) / lr, paper, rtol=1e-12)
            np.testing.assert_allclose(norm, width / (width + 2))


def test_largest_rates_are_where_the_plateau_ends_holds_and_the_solution_turns_unstable():
    for width, teachers, noise in [(1, 1, 0.0), (3, 3, 0.0), (6, 3, 0.0), (3, 2, 1.0), (9, 4, 0.3)]:
        largest = plateau.largest_lr(width, teachers, noise)
        for lr, sign in ((0.999 * largest.escape, 1), (1.001 * largest.escape, -1)):
            problem = network(width, teachers, lr, noise)
            if sign < 0 and np.isclose(largest.escape, largest.plateau):
                with pytest.raises(sl.BadInput, match="no plateau"):
                    plateau.plateau_rates(problem)
            else:
                assert plateau.plateau_rates(problem).rho * sign > 0
        at = plateau.Coefficients(width, teachers, largest.plateau, noise)
        assert abs(at.discriminant) < 1e-12
        lrs = np.linspace(0, largest.escape, 27)[1:-1]
        growth = [plateau.plateau_rates(network(width, teachers, lr, noise)).rho for lr in lrs]
        fastest = plateau.fastest_escape_lr(width, teachers, noise)
        best = plateau.plateau_rates(network(width, teachers, fastest, noise)).rho
        assert best >= max(growth) * (1 - 1e-12)
        assert abs(lrs[np.argmax(growth)] - fastest) <= lrs[1] - lrs[0]
    for width, teachers in ((3, 3), (3, 2)):
        largest = plateau.largest_lr(width, teachers)
        for share, stable in ((0.98, True), (1.02, False)):
            rates = _at_the_end(network(width, teachers, share * largest.solution), 1.0, 1.0, 0.0).rates.real
            assert (rates.max() < 1e-9) == stable


def _at_the_end(problem, x, y, z):
    """The Jacobian where p* students span the teachers, from x = y = 1 at zero risk, and the rest has the norm z."""
    width, teachers = problem.directions.width, problem.directions.fixed
    M = np.zeros((width, teachers))
    M[:teachers] = np.sqrt(y * width / teachers) * np.eye(teachers)
    Q = np.diag([x * width / teachers] * teachers + [z] * (width - teachers))
    return sl.linearise(problem, sl.Overlaps(np.ones(width), M, Q))


def test_risk_on_the_plateau_is_13_with_the_exponent_of_its_appendix(say):
    """The mean over starts of the ODE, to second order in the spread; the printed exponent, in lr alpha, is p times ours."""
    M = 1e-4 * np.random.default_rng(0).normal(size=(RUNS, 3, 2))
    spread, t = np.sqrt(np.mean(M**2)), np.linspace(0, 20, 11)
    for corrector in (True, False):
        problem = network(3, 2, 0.2)
        level = sl.ODE(corrector=corrector, rtol=1e-12, atol=1e-16)
        start = on_plateau(problem, M, corrector=corrector)
        runs = sl.simulate(problem, level, start, t_max=t[-1], runs=RUNS, save=t)
        loss = plateau.plateau_risk(problem, corrector=corrector) - runs.risk.mean("run").values
        theory = plateau.plateau_risk(problem, corrector=corrector) - escape.risk_on_plateau(
            problem, t, spread, corrector=corrector
        )
        gap = np.abs(loss / theory - 1).max()
        say(f"loss below the plateau grows by {loss[-1] / loss[0]:.4g}, within {gap:.1e} of (13), corrector {corrector}")
        # The next order is the squared overlaps themselves, at most 4 M^2/(p p*) = the loss over 1.
        assert gap < 4 * theory[-1]
    gains = 0.2 * t[-1] * 16 / 6
    np.testing.assert_allclose(theory[-1] / theory[0], np.exp(gains), rtol=1e-6)


def test_norm_learning_changes_overlaps_by_the_stated_factor():
    M = 1e-7 * np.random.default_rng(1).normal(size=(RUNS, 3, 2))
    problem = network(3, 2, 0.2)
    start = sl.Overlaps(np.ones((RUNS, 3)), M, np.tile(np.eye(3), (RUNS, 1, 1)))
    level = sl.ODE(rtol=1e-12, atol=1e-16)
    end = sl.simulate(problem, level, start, t_max=40, runs=RUNS, save=2).M.values[:, -1]
    gain = escape.norm_gain(problem) * np.exp(40 * plateau.plateau_rates(problem).rho)
    np.testing.assert_allclose(end, gain * M, atol=1e-6 * np.abs(gain * M).max())
    with pytest.raises(sl.BadInput, match="norm must be below"):
        escape.norm_gain(problem, 50.0)


def test_escape_time_inverts_the_risk_and_averages_over_starts():
    problem, spread = network(3, 2, 0.2), 1e-3
    t = escape.escape_time(problem, spread, np.array([0.01, 0.1]))
    risk = escape.risk_on_plateau(problem, np.array([0.0, *t]), spread)
    np.testing.assert_allclose(1 - risk[1:] / risk[0], [0.01, 0.1], rtol=1e-6)
    squares = spread**2 * np.random.default_rng(2).chisquare(6, size=400_000) / 6
    single = [escape.escape_time(problem, np.sqrt(square), 0.1) for square in squares[:50]]
    rate, chi = plateau.plateau_rates(problem).rho, escape.compute_norm_response(plateau.read_coefficients(problem))
    way = 0.1 * (plateau.plateau_risk(problem) / (4 * squares) - 1)
    each = np.log((1 + way) / chi) / (2 * rate)
    np.testing.assert_allclose(each[:50], single)
    quenched = escape.escape_time(problem, spread, 0.1, average="quenched")
    assert abs(each.mean() - quenched) < 5 * each.std() / np.sqrt(each.size)  # false alarm 6e-7
    assert escape.escape_time(network(3, 3, 0.46), spread) == np.inf
    for wrong in ({"reduction": 0.0}, {"average": "mean"}):
        with pytest.raises(sl.BadInput):
            escape.escape_time(problem, spread, **wrong)


def test_halving_times_are_those_of_the_ode():
    """The 2k + 1 numbers of the reduced system are all there is from an orthonormal start."""
    lrs = [0.1, 0.25]
    times = learning_rate.halving_time(3, 2, lrs, starts=RUNS)
    for lr, found in zip(lrs, times, strict=True):
        runs = sl.simulate(
            network(3, 2, lr), sl.ODE(), sl.OrthogonalInit(0.01), t_max=300, runs=RUNS, until=sl.exits(0.5), save=2
        )
        np.testing.assert_allclose(found, runs.t_end, rtol=1e-6)
    assert np.isinf(learning_rate.halving_time(3, 2, 1.01 * plateau.largest_lr(3, 2).plateau, starts=1)).all()


def test_optimal_rate_is_linear_in_the_width(say):
    """Figure 2, right. The ratio to p rises slowly with (p + 2)/(p + 4), so that a line through all has an intercept."""
    widths = np.array([3, 6, 9, 12])
    found = np.array([learning_rate.optimal_lr(width, 3, starts=4) for width in widths])
    line = np.polyfit(widths, found, 1)
    gaps = found - np.polyval(line, widths)
    say(f"optimal rates {found.round(4).tolist()} = {line[0]:.4f} p {line[1]:+.4f}, residuals {gaps.round(4).tolist()}")
    assert np.abs(gaps).max() < 0.02 * found.max()
    assert 1 - (gaps**2).sum() / ((found - found.mean()) ** 2).sum() > 0.999
    near = found[0] * np.array([0.97, 1.0, 1.03])
    times = learning_rate.halving_time(3, 3, near, starts=4).mean(-1)
    assert times[1] < min(times[0], times[2])
    solution = plateau.largest_lr(100, 3).solution
    free, learns = (
        learning_rate.optimal_lr(100, 3, spread=1e-3, threshold=0.1, starts=1, learns=learns) for learns in (False, True)
    )
    say(f"a hundred students: {free:.2f}, above {solution:.2f} where zero risk is unstable; {learns:.2f} below it")
    assert learns < solution < free


def test_end_of_learning_decays_as_the_jacobian_at_the_solution():
    problem = network(3, 3, 0.2)
    rates = -_at_the_end(problem, 1.0, 1.0, 0.0).rates.real
    slow = terminal.terminal_decay(problem)
    assert slow.law == "exponential"
    np.testing.assert_allclose(rates[rates > 1e-9].min(), slow.rate)
    np.testing.assert_allclose(terminal.terminal_decay(problem, corrector=False).rate, 2 * 0.2 * 8 / 9)


def test_learning_from_noisy_labels_ends_where_the_drift_vanishes():
    for width, teachers, lr, noise in [(3, 3, 0.2, 0.4), (3, 2, 0.2, 0.4), (3, 2, 1e-3, 0.4)]:
        problem = network(width, teachers, lr, noise)
        x, y, z = terminal.stationary_norms(problem)
        share = teachers / width
        near = _at_the_end(problem, x * share, y * share, z)
        assert np.abs(near.drift).max() < 1e-14
        assert near.rates.real.max() < 1e-12
        M = np.zeros((width, teachers))
        M[:teachers] = np.sqrt(y) * np.eye(teachers)
        point = sl.Overlaps(np.ones(width), M, np.diag([x] * teachers + [z] * (width - teachers)))
        np.testing.assert_allclose(terminal.stationary_risk(problem), problem.risk(point), rtol=1e-12)
    slowest = -near.rates.real
    np.testing.assert_allclose(slowest[slowest > 1e-12].min(), 16 * lr**2 * noise / width**2, rtol=0.01)
    np.testing.assert_allclose(terminal.stationary_risk(problem) - noise, 4 * lr * noise / width, rtol=0.01)


def test_problems_without_these_phases_are_refused():
    for problem, match in (
        (network(3, 3, 0.2, 0.1), "stationary_risk"),
        (network(2, 3, 0.1), "cannot represent"),
        (network(3, 3, 0.46), "unstable"),
        (sl.presets.phase_retrieval(), "quadratic network"),
    ):
        with pytest.raises(sl.BadInput, match=match):
            terminal.terminal_decay(problem)


# --- norm learning -----------------------------------------------------------------------------------------------------------


def test_norm_learning_solves_9_for_any_overlaps_between_students():
    """Against the printed equations, entry by entry, with another solver."""
    p, lr, t = 3, 0.1, np.array([0.0, 0.5, 4.0, 40.0])
    A = np.random.default_rng(0).normal(size=(p, p))

    def slope(_, y):
        Q, change = y.reshape(p, p), np.zeros((p, p))
        for i in range(p):
            for j in range(p):
                own = Q[i] @ Q[:, j]
                change[i, j] = 8 / p * (Q[i, j] * (1 - np.trace(Q) / p) - 2 / p * own)
        return lr * change.ravel()

    problem = sl.presets.quadratic_network(width=p, teachers=2, lr=lr)
    for Q in (A @ A.T, np.outer(A[0], A[0]), 0.3 * np.eye(p)):
        expected = solve_ivp(slope, (0, t[-1]), Q.ravel(), "LSODA", t, rtol=1e-11, atol=1e-13).y.T.reshape(-1, p, p)
        np.testing.assert_allclose(theory.student_overlaps(problem, t, Q), expected, atol=1e-8)
    np.testing.assert_allclose(theory.norm_learning(problem, t, 0.3, corrector=False), expected[:, 0, 0], atol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_norm_learning_at_any_rate_is_the_ode(noise):
    problem, t = sl.presets.quadratic_network(width=3, teachers=2, lr=0.2, noise=noise), np.linspace(0, 30, 7)
    for norm in (0.1, 1.0):
        start = sl.Overlaps(np.ones(3), np.zeros((3, 2)), norm * np.eye(3))
        limit = sl.simulate(problem, sl.ODE(rtol=1e-9), start, t_max=30, save=t, progress=False)
        np.testing.assert_allclose(theory.norm_learning(problem, t, norm), limit.Q.values[0, :, 0, 0], rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("d", [1000, 4000, 16000])
def test_chain_learns_norms_as_the_closed_curve(d, say):
    """64 runs from orthogonal students of norm 0.2: within five standard errors while the overlaps with teachers are small."""
    problem = sl.presets.quadratic_network(width=3, teachers=2, lr=0.2)
    start = sl.Overlaps(np.ones(3), np.zeros((3, 2)), 0.2 * np.eye(3))
    how = dict(t_max=4, runs=64, seed=d, save=np.array([0.0, 2.0, 4.0]), progress=False)
    found = sl.simulate(problem, sl.Chain(d), start, **how)
    norms = np.trace(found.Q.values, axis1=2, axis2=3)[:, 1:] / 3
    error, expected = norms.std(0, ddof=1) / 8, theory.norm_learning(problem, [2.0, 4.0], 0.2)
    say(f"d = {d}: {norms.mean(0).round(4)} ± {error.round(4)}, theory {expected.round(4)}")
    assert (np.abs(norms.mean(0) - expected) < 5 * error).all()
