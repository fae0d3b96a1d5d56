"""What learning conserves: the orthogonal part of M, balances of the two layers; and the solution it selects."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import orthogonal_procrustes, polar as scipy_polar

import sgdlimits as sl
from sgdlimits.analysis import conserved
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.target import CommitteeReadout, Target


def network(width=3, lr=0.1, noise=0.0, gram=None):
    """A quadratic network with two teachers of any Gram matrix."""
    teacher = Target(CommitteeReadout("square"), 2, noise=noise, gram=gram)
    return sl.ProjectionProblem(teacher, TwoLayer(width, "square"), sl.SquaredLoss(weight=1.0), sl.OnePassSGD(lr))


def ode(problem, start, t_max, save=11, runs=1, **how):
    return sl.simulate(problem, sl.ODE(**how), start, t_max=t_max, save=save, runs=runs, progress=False)


def orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def weights_in(rng, width, dimension=9):
    """Students as rows in R^9, whose first two coordinates are the teachers."""
    return rng.normal(size=(width, dimension)) / np.sqrt(dimension)


def overlaps_of(U):
    return sl.Overlaps(np.ones(len(U)), U[:, :2], U @ U.T)


def flow_of(U, rate=1.0):
    """Gradient flow on the population risk of weights in R^d: -4/p U (tr D + 2 D), D = U^T U/p - E^T E/k."""
    D = U.T @ U / len(U) - np.diag([0.5, 0.5] + [0.0] * (U.shape[1] - 2))
    return -4 * rate / len(U) * U @ (np.trace(D) * np.eye(len(D)) + 2 * D)


def dense_flow(U, t):
    """Where gradient flow in R^d is at the time t of the paper."""
    slope = lambda t, y: flow_of(y.reshape(U.shape)).ravel()
    return solve_ivp(slope, (0, t), U.ravel(), method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1].reshape(U.shape)


# --- the orthogonal part of M ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_orthogonal_part_and_its_derivative_are_those_of_the_polar_decomposition(shape):
    """Against SciPy and differences of it, also where two singular values are equal."""
    rng = np.random.default_rng(0)
    A, B = orthogonal(rng, shape[0])[:, :2], orthogonal(rng, shape[1])[:2]
    part = jax.jit(lambda M, V: jax.jvp(lambda M: conserved.phase(sl.Overlaps(np.ones(len(M)), M, M @ M.T)), (M,), (V,)))
    reference = lambda M: scipy_polar(M, side="right" if shape[0] >= shape[1] else "left")[0]
    for values in ([2e-3, 0.7], [0.5, 0.5]):
        M, V = A @ np.diag(values) @ B, rng.normal(size=shape)
        S, slope = part(M, V)
        h = 1e-5 * min(values)
        np.testing.assert_allclose(S, reference(M), atol=1e-12)
        difference = (reference(M + h * V) - reference(M - h * V)) / (2 * h)
        np.testing.assert_allclose(slope, difference, atol=1e-8 * np.abs(difference).max())


def test_orthogonal_part_is_conserved_at_every_learning_rate_from_orthogonal_starts(say):
    """With the corrector, to a rate that is too large to learn, and with label noise; from overlaps of 1e-2 and 1e-6."""
    worst = {}
    for lr, noise in ((0.01, 0.0), (0.35, 0.0), (0.4, 0.0), (0.1, 0.5)):
        problem = network(lr=lr, noise=noise)
        start = sl.OrthogonalInit(0.01).sample(problem, runs=8)
        small = sl.Overlaps(start.a, start.M * np.repeat([1.0, 1e-4], 4)[:, None, None], start.Q)
        runs = ode(problem, small, 35 / lr, save=3, runs=8)
        found = conserved.polar(runs)
        assert found.commutes.all()
        assert found.conserved.all()
        assert (float(runs.risk[:, -1].max()) < 0.6) == (lr < 0.4)
        worst[lr, noise] = float(found.drift.max())
    say("largest change of an entry of S: " + ", ".join(f"{x:.1e} at (lr, noise) = {key}" for key, x in worst.items()))
    assert max(worst.values()) < 1e-10


def test_orthogonal_part_moves_from_students_of_different_norms_or_with_overlaps(say):
    rng = np.random.default_rng(1)
    M = 0.02 * rng.normal(size=(4, 3, 2))
    Q = np.repeat([np.diag([1.8, 1.0, 0.2]), 0.4 * np.eye(3) + 0.6], 4, axis=0)
    start = sl.Overlaps(np.ones((8, 3)), np.concatenate([M, M]), Q)
    found = conserved.polar(ode(network(), start, 400.0, runs=8))
    say(f"change of S: different norms {found.drift[:4, -1].values.round(2)}, overlaps {found.drift[4:, -1].values.round(2)}")
    assert not found.commutes.any()
    assert not found.conserved.any()
    assert (found.drift[:, -1] > 0.1).all()


def test_orthogonal_part_moves_by_inverse_root_d_from_random_weights_of_norm_one(say):
    """Exponent -1/2 within 0.13, four standard errors: four starts of relative spread 0.6 at each of two sizes."""
    problem = network()
    draws = [sl.RandomInit(d, unit=True).sample(problem, runs=4) for d in (10**2, 10**8)]
    start = jax.tree.map(lambda *leaves: np.concatenate(leaves), *draws)
    change = conserved.polar(ode(problem, start, 600.0, runs=8)).frobenius[:, -1].values.reshape(2, 4).mean(1)
    slope = np.log(change[1] / change[0]) / np.log(10**6)
    say(f"change of S along the ODE from random starts ~ d^{slope:.3f}, {change[0]:.3f} at d = 100")
    assert abs(slope + 0.5) < 0.13


def test_orthogonal_part_stands_still_where_Q_commutes_and_nowhere_else(say):
    """The rate by automatic differentiation is that of weights in R^d, by differences."""
    rng, problem = np.random.default_rng(2), network(lr=0.2)
    U = np.array([weights_in(rng, 3) for _ in range(4)])
    stats = sl.Overlaps(np.ones((4, 3)), U[:, :, :2], U @ U.swapaxes(1, 2))
    found = conserved.along(problem, conserved.phase, stats)
    h = 1e-6
    for u, rate in zip(U, found.rate.values, strict=True):
        step = h * flow_of(u, rate=0.2)
        difference = (scipy_polar((u + step)[:, :2])[0] - scipy_polar((u - step)[:, :2])[0]) / (2 * h)
        np.testing.assert_allclose(rate.reshape(3, 2), difference, atol=1e-8)
    assert not found.conserved.any()
    A = np.array([orthogonal(rng, 3) for _ in range(4)])
    B = np.array([orthogonal(rng, 2) for _ in range(4)])
    values, norms = rng.uniform(0.1, 0.6, size=(4, 2)), rng.uniform(0.5, 1.5, size=(4, 3))
    M, Q = (A[:, :, :2] * values[:, None]) @ B, (A * norms[:, None]) @ A.swapaxes(1, 2)
    still = conserved.along(problem, conserved.phase, sl.Overlaps(np.ones((4, 3)), M, Q))
    say(f"rates relative to their terms: {[float((abs(x.rate).max('component') / x.scale).max()) for x in (found, still)]}")
    assert still.conserved.all()
    assert float(abs(still.rate).max()) < 1e-13


@pytest.mark.full
def test_change_of_the_orthogonal_part_falls_as_inverse_root_d(say):
    """Exponent -1/2 within 0.08, four standard errors; each size has 32 runs and one free angle."""
    sizes = np.array([10**3, 10**4, 10**5, 10**6])
    problem = network(width=2, lr=0.2)
    start = sl.OrthogonalInit(0.3).one(problem)
    change = []
    for d in sizes:
        runs = sl.simulate(problem, sl.Chain(int(d)), start, t_max=0.1, runs=32, save=2, progress=False)
        found = conserved.polar(runs)
        assert not found.conserved.any()
        change.append(np.sqrt((found.frobenius[:, -1].values ** 2).mean()))
    x = np.log(sizes) - np.log(sizes).mean()
    slope = float(x @ np.log(change) / (x @ x))
    error = float(np.sqrt(1 / 64) / np.sqrt(x @ x))
    say(f"change of S ~ d^{slope:.3f} +- {error:.3f}, from {change[0]:.2g} at d = 10^3 to {change[-1]:.2g} at 10^6")
    assert abs(slope + 0.5) < 0.08


# --- the solution that is selected -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gram", [None, [[1.0, 0.4], [0.4, 0.8]]])
def test_end_point_is_the_closest_of_the_weights_of_zero_risk(gram):
    """Against SciPy's Procrustes, weights in R^d and 2000 random solutions."""
    rng, problem = np.random.default_rng(3), network(gram=gram)
    E = np.hstack([np.linalg.cholesky(problem.target.gram), np.zeros((2, 7))])
    U = weights_in(rng, 3)
    end = conserved.end_point(problem, sl.Overlaps(np.ones(3), U @ E.T, U @ U.T))
    solution = lambda S: np.sqrt(1.5) * S @ E
    np.testing.assert_allclose(end.distance, np.linalg.norm(solution(end.S) - U), rtol=1e-12)
    np.testing.assert_allclose(end.stats.M, solution(end.S) @ E.T, atol=1e-12)
    np.testing.assert_allclose(end.stats.Q, solution(end.S) @ solution(end.S).T, atol=1e-12)
    square = np.hstack([U @ E.T, np.zeros((3, 1))])
    np.testing.assert_allclose(end.S, orthogonal_procrustes(np.eye(3), square)[0][:, :2], atol=1e-12)
    assert abs(float(problem.risk(end.stats))) < 1e-12
    others = [np.linalg.norm(solution(np.linalg.qr(rng.normal(size=(3, 2)))[0]) - U) for _ in range(2000)]
    assert end.distance < min(others)


def test_equal_widths_end_at_the_closest_solution(say):
    """Exponentially fast, at small and large learning rates, and for correlated teachers where M^T M commutes with P."""
    P = np.array([[1.0, 0.4], [0.4, 1.0]])
    rotation = np.array([[0.6, 0.8], [-0.8, 0.6]])
    M = rotation @ np.diag([0.1, 0.05]) @ np.array([[1, 1], [1, -1]]) / np.sqrt(2)
    for lr, gram in ((0.01, None), (0.2, None), (0.1, P)):
        problem = network(width=2, lr=lr, gram=gram)
        start = sl.OrthogonalInit(0.05).one(problem, seed=3) if gram is None else sl.Overlaps(np.ones(2), M, np.eye(2))
        runs = ode(problem, start, 30 / lr, save=2)
        end = conserved.end_point(problem, start)
        apart = conserved.distance(runs, end)
        M_off, Q_off = float(apart.M[0, -1]), float(apart.Q[0, -1])
        say(f"lr {lr}, P[0, 1] = {float(problem.target.gram[0, 1])}: M is {M_off:.1e} and Q {Q_off:.1e} from the end point")
        assert max(M_off, Q_off) < 1e-6
        np.testing.assert_allclose(apart.weights[0, 0], end.distance, rtol=1e-12)


def test_wider_students_approach_the_closest_solution_as_one_over_time(say):
    """tau |M - M_end| tends to k p^(3/2) (p - k)/(32 (p + 2)) with tau = lr t, at every lr (docs/implicit_bias.md)."""
    p, k = 3, 2
    law = k * p**1.5 * (p - k) / (32 * (p + 2))
    problem = network(lr=0.2)
    start = sl.OrthogonalInit(0.05).sample(problem, runs=8)
    end = conserved.end_point(problem, start)
    tau = np.array([1e3, 2e3])
    runs = ode(problem, start, tau[1] / 0.2, save=np.concatenate([[0.0], tau / 0.2]), runs=8)
    measured = tau * conserved.distance(runs, end).M.values[:, 1:]
    limit = 2 * runs.M.values[:, 2] - runs.M.values[:, 1]
    off = np.linalg.norm(limit - end.stats.M, axis=(1, 2)).max()
    say(f"lr 0.2: tau |M - M_end| = {measured.mean(0).round(5)}; law {law:.5f}; extrapolated M is {off:.1e} off")
    np.testing.assert_allclose(measured, law, rtol=1e-2)
    assert off < 1e-6


def test_too_few_students_end_at_the_closest_of_the_best_solutions(say):
    """Gradient flow of one unit with two teachers, whose least risk has Q = p (k + 2)/(k (p + 2))."""
    problem = network(width=1, lr=0.1)
    start = sl.Overlaps([1.0], [[0.02, -0.05]], [[1.0]])
    end = conserved.end_point(problem, start)
    runs = ode(problem, start, 600.0, save=2, corrector=False)
    apart = conserved.distance(runs, end)
    risks = [
        float(problem.risk(sl.Overlaps([1.0], scale * end.stats.M, scale**2 * end.stats.Q))) for scale in (0.99, 1.0, 1.01)
    ]
    say(f"Q = {float(end.stats.Q[0, 0]):.6f}, distance of M at the end {float(apart.M[0, -1]):.1e}")
    np.testing.assert_allclose(end.stats.Q, [[2 / 3]], rtol=1e-12)
    assert risks[1] < min(risks[0], risks[2])
    assert float(apart.M[0, -1]) < 1e-6


def test_students_of_different_norms_end_at_a_solution_that_is_not_the_closest(say):
    """The ODE, and gradient flow of weights in R^d: both end at the same solution, further away than the closest one."""
    U, problem = np.diag([1.4, 0.5]) @ orthogonal(np.random.default_rng(2), 9)[:2], network(width=2, lr=0.1)
    start = overlaps_of(U)
    end = conserved.end_point(problem, start)
    runs = ode(problem, start, 600.0, save=2, corrector=False)
    apart = conserved.distance(runs, end)
    last = dense_flow(U, 60.0)
    travelled = np.linalg.norm(last - U)
    say(f"|M - M_closest| = {float(apart.M[0, -1]):.3f}; travelled {travelled:.4f}, closest {float(end.distance):.4f} away")
    assert float(runs.risk[0, -1]) < 1e-10
    np.testing.assert_allclose(runs.M.values[0, -1], last[:, :2], atol=1e-6)
    assert float(apart.M[0, -1]) > 0.4
    assert travelled > end.distance + 0.01


# --- other conserved quantities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "degree"), [("relu", 1), ("square", 2)])
def test_gradient_flow_keeps_the_balance_of_the_layers_of_homogeneous_units(activation, degree):
    """s(c x) = c^n s(x): Q_jj - n lr/lr_2 a_j^2. The corrector adds lr^2 E[G_j^2] to its rate."""
    problem = sl.presets.committee(2, 1, activation, lr=0.1, train_second=0.5)
    rng = np.random.default_rng(4)
    U = np.array([weights_in(rng, 2) for _ in range(3)])
    stats = sl.Overlaps(rng.normal(size=(3, 2)), U[:, :, :1], U @ U.swapaxes(1, 2))
    balance = lambda stats, n: stats.Q.diagonal() - 2 * n * stats.a**2
    found = conserved.along(problem, lambda stats: balance(stats, np.array([[degree], [degree + 1]])), stats, corrector=False)
    size = abs(found.rate.values.reshape(3, 2, 2)) / found.scale.values[:, None, None]
    assert (size[:, 0] < found.tolerance).all()
    assert (size[:, 1] > 1e-4).all()
    if activation == "square":
        broken = conserved.along(problem, lambda stats: balance(stats, 2), stats)
        noise = jax.jit(jax.vmap(lambda one: problem.drift_parts(one)[1].Q.diagonal()))(stats)
        np.testing.assert_allclose(broken.rate, noise, rtol=1e-9)
        assert not broken.conserved.any()


def test_a_balance_is_seen_to_hold_along_gradient_flow_and_to_break_along_sgd(say):
    problem = sl.presets.committee(2, 1, "square", lr=0.1, train_second=0.5)
    start = sl.Overlaps([0.9, 1.2], [[0.3], [0.2]], np.eye(2))
    drifts = {}
    for corrector in (False, True):
        found = conserved.check(
            lambda stats: stats.Q.diagonal() - 4 * stats.a**2, ode(problem, start, 60.0, corrector=corrector)
        )
        drifts[corrector] = float(found.drift.max())
        assert bool(found.conserved[0]) is not corrector
        np.testing.assert_allclose(found.scale, 1 + 8 * 1.44, rtol=0.3)
    say(f"change of Q_jj - 4 a_j^2: {drifts[False]:.1e} in gradient flow, {drifts[True]:.2g} with the corrector")


def test_the_sphere_keeps_norms():
    """To rounding: Q_jj is 1 to a few times 1e-16 at random starts."""
    problem = sl.presets.phase_retrieval(width=1, lr=0.1, noise=0.3, sphere=True)
    found = conserved.along(problem, lambda stats: np.array([1.0, 0.0]) * stats.Q[0, 0] + np.array([0.0, 1.0]) * stats.M[0, 0])
    norm, overlap = (abs(found.rate) / found.scale).values.T
    assert norm.max() < 1e-14
    assert overlap.min() > 0.1
    assert not found.conserved.any()


FINE = sl.Overlaps(np.ones(3), 0.1 * np.eye(3)[:, :2], np.eye(3))


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: conserved.end_point(network(), sl.OrthogonalInit(0.1)), "start must be statistics"),
        (lambda: conserved.end_point(network(), sl.Overlaps(np.ones(3), np.ones((3, 2)) / 9, np.eye(3))), "full rank"),
        (lambda: conserved.end_point(network(), sl.Overlaps([1.0, 2.0, 1.0], FINE.M, FINE.Q)), "second layer"),
        (lambda: conserved.end_point(sl.presets.committee(3, 2), FINE), "squared units"),
        (lambda: conserved.end_point(sl.presets.phase_retrieval(3), FINE), "sphere=False, ridge=0 and a fixed second layer"),
        (
            lambda: conserved.end_point(network(1, gram=[[1, 0.5], [0.5, 1]]), sl.Overlaps([1.0], [[0.1, 0.2]], [[1.0]])),
            "orthonormal",
        ),
        (lambda: conserved.along(network(), conserved.phase, FINE, tolerance=0.0), "tolerance"),
        (lambda: conserved.polar("runs"), "must be a dataset"),
    ],
)
def test_wrong_input_gets_a_sentence(call, part):
    with pytest.raises(sl.BadInput, match=part):
        call()
