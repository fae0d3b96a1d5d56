"""Drift and covariance of the increments: closed form, quadrature, Isserlis, one step in R^d, and the papers."""

from __future__ import annotations

import itertools
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import roots_genlaguerre

import sgdlimits as sl
from sgdlimits.kernel.base import StepTime
from sgdlimits.level.chain import FrameChain
from sgdlimits.level.sgd import Batch, WeightProcess
from sgdlimits.statistics.frame import StepCoordinates
from sgdlimits.statistics.overlaps import to_vector
from sgdlimits.statistics.trees import move_runs_last


def squares(p, k, seed=0, *, expectation=None, sphere=False, second=None, ridge=0.2, noise=0.3, weight=0.5, gram=True, lr=0.7):
    rng = np.random.default_rng(1000 + seed)
    A = rng.normal(size=(k, k))
    return sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("square"), k, noise=noise, gram=A @ A.T / k + np.eye(k) if gram else None),
        network=sl.TwoLayer(p, "square"),
        loss=sl.SquaredLoss(weight),
        algorithm=sl.OnePassSGD(lr, lr_second=second, ridge=ridge, sphere=sphere),
        expectation=expectation,
    )


risk = eqx.filter_jit(lambda problem, stats: problem.risk(stats))
drift = eqx.filter_jit(lambda problem, stats: problem.drift(stats))
covariance = eqx.filter_jit(lambda problem, stats: problem.covariance(stats))


@eqx.filter_jit
def limits(problem, stats):
    """Drift, its corrector, risk and covariance."""
    return problem.drift(stats), problem.drift_parts(stats)[1], problem.risk(stats), problem.covariance(stats)


@eqx.filter_jit
def after_step(process, state, numbers):
    """The numbers of the statistics after one step of a process, runs last."""
    return to_vector(move_runs_last(process.statistics(process.step(state, numbers, StepTime(0.0, 0.0)))), True)


def worst(left, right):
    """Largest difference, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.maximum(1.0, jnp.abs(y).max())) for x, y in pairs)


def one_sample(y, k, p, outside):
    """Batches of one input each, from coordinates along the fixed directions and the students, the rest, and label noise."""
    none, c = np.zeros((0, outside.size)), np.zeros((1, outside.size), int)
    return StepCoordinates(*map(jnp.asarray, (y[:k, None], y[k : k + p, None], outside[None], none, y[k + p :], c)))


# --- Isserlis: moments of monomials as sums over pairings, by a recursion that knows nothing of matrices. -----------------


class Isserlis:
    def __init__(self, C):
        self.C = np.asarray(C, float)
        self.moment = lru_cache(maxsize=None)(self._moment)

    def _moment(self, indices):
        if not indices:
            return 1.0
        if len(indices) % 2:
            return 0.0
        first, rest = indices[0], indices[1:]
        return sum(self.C[first, rest[i]] * self.moment(rest[:i] + rest[i + 1 :]) for i in range(len(rest)))

    def expect(self, polynomial):
        """E of a polynomial, a dict from sorted index tuples to coefficients."""
        return sum(c * self.moment(indices) for indices, c in polynomial.items())


def times(left, right):
    out = {}
    for (i, a), (j, b) in itertools.product(left.items(), right.items()):
        key = tuple(sorted(i + j))
        out[key] = out.get(key, 0.0) + a * b
    return out


def plus(left, right, factor=1.0):
    out = dict(left)
    for key, value in right.items():
        out[key] = out.get(key, 0.0) + factor * value
    return out


def increments_as_polynomials(problem, stats):
    """Each statistic's increment as a polynomial in the fields (0..p-1), the fixed fields (p..p+k-1) and z (p+k)."""
    p, k = problem.network.width, problem.target.teachers
    a, M, Q = (np.asarray(leaf) for leaf in (stats.a, stats.M, stats.Q))
    sgd, weight = problem.algorithm, problem.loss.weight
    lr, ridge = float(sgd.lr), float(sgd.ridge)
    D = {(j, j): a[j] / p for j in range(p)}
    D |= {(p + r, p + r): -1 / k for r in range(k)} | {(p + k,): -np.sqrt(float(problem.target.noise))}
    G = [times(D, {(j,): 4 * weight * a[j] / p}) for j in range(p)]
    dM = [[plus({(): -lr * ridge * M[j, r]}, times(G[j], {(p + r,): 1.0}), -lr) for r in range(k)] for j in range(p)]
    dQ = {}
    for j, l in itertools.combinations_with_replacement(range(p), 2):
        change = {(): -2 * lr * ridge * Q[j, l]}
        change = plus(change, plus(times(G[j], {(l,): 1.0}), times(G[l], {(j,): 1.0})), -lr)
        dQ[j, l] = plus(change, times(G[j], G[l]), lr**2)
    if sgd.sphere:
        dM = [[plus(dM[j][r], dQ[j, j], -M[j, r] / 2) for r in range(k)] for j in range(p)]
        dQ = {(j, l): plus(plus(c, dQ[j, j], -Q[j, l] / 2), dQ[l, l], -Q[j, l] / 2) for (j, l), c in dQ.items()}
    rows = [dM[j][r] for j in range(p) for r in range(k)] + list(dQ.values())
    if sgd.trains_second:
        second = float(sgd.lr_second)
        rows += [plus({(): -second * ridge * a[j]}, times(D, {(j, j): 2 * weight / p}), -second) for j in range(p)]
    return rows


def isserlis_of(problem, stats):
    omega = np.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
    return Isserlis(np.block([[omega, np.zeros((len(omega), 1))], [np.zeros((1, len(omega))), np.ones((1, 1))]]))


@pytest.mark.parametrize("sphere", [False, True])
@pytest.mark.parametrize(("p", "k", "second"), [(1, 1, 0.4), (2, 3, None), (8, 4, 0.3)])
def test_closed_drift_agrees_with_isserlis(p, k, second, sphere, random_overlaps):
    problem = squares(p, k, seed=p + k, sphere=sphere, second=second, weight=0.8)
    stats = random_overlaps(problem, seed=p * k, dimension=20)
    wick = isserlis_of(problem, stats)
    expected = np.array([wick.expect(row) for row in increments_as_polynomials(problem, stats)])
    got = np.asarray(to_vector(drift(problem, stats), problem.algorithm.trains_second))
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sphere", [False, True])
@pytest.mark.parametrize(("p", "k", "second"), [(1, 1, None), (2, 2, 0.4), (3, 1, None)])
def test_closed_covariance_agrees_with_isserlis(p, k, second, sphere, random_overlaps):
    problem = squares(p, k, seed=p + k, sphere=sphere, second=second)
    stats = random_overlaps(problem, seed=p * k)
    wick, rows = isserlis_of(problem, stats), increments_as_polynomials(problem, stats)
    mean = [wick.expect(row) for row in rows]
    expected = [
        [wick.expect(times(x, y)) - mx * my for y, my in zip(rows, mean, strict=False)]
        for x, mx in zip(rows, mean, strict=False)
    ]
    np.testing.assert_allclose(covariance(problem, stats), expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("sphere", [False, True])
def test_closed_form_agrees_with_quadrature(sphere, random_overlaps):
    closed, grid = (squares(2, 2, sphere=sphere, second=0.4, expectation=rule) for rule in (None, sl.GaussHermite(8)))
    stats = random_overlaps(closed, seed=2)
    for left, right in zip(limits(closed, stats), limits(grid, stats), strict=True):
        assert worst(left, right) < 1e-10


def test_sobol_agrees_with_closed_form_within_its_error_estimate(random_overlaps):
    closed, sobol = squares(3, 2, second=0.4), squares(3, 2, second=0.4, expectation=sl.Sobol(log2_points=14))
    stats = random_overlaps(closed, seed=3)
    estimate = sobol.moments(stats)
    exact, errors = jax.tree.leaves(closed.moments(stats).value), jax.tree.leaves(estimate.error)
    scores = [
        np.abs(v - x) / np.maximum(e, 1e-12) for v, x, e in zip(jax.tree.leaves(estimate.value), exact, errors, strict=False)
    ]
    scores = np.concatenate([np.ravel(s) for s in scores])
    assert np.median(scores) < 2
    assert scores.max() < 12
    # Eighth powers have heavy tails: over seeds 0 to 3 the largest estimate is 0.08 to 0.36, beside a largest moment of 15.
    assert max(float(np.max(e)) for e in errors) < 0.03 * max(float(np.abs(x).max()) for x in exact)


def test_closed_form_is_chosen_for_squares_alone():
    assert isinstance(squares(2, 1).expectation, sl.ClosedForm)
    other = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("square")), sl.TwoLayer(2, jnp.tanh), sl.SquaredLoss(), sl.OnePassSGD(0.1)
    )
    assert not isinstance(other.expectation, sl.ClosedForm)
    with pytest.raises(sl.BadInput, match="Squares needs squared activations"):
        sl.ProjectionProblem(other.target, other.network, other.loss, other.algorithm, expectation=sl.ClosedForm())


@pytest.mark.parametrize("sphere", [False, True])
def test_exact_mean_of_one_step_at_finite_d_agrees_with_monte_carlo_in_rd(sphere, random_overlaps):
    """The chain's update averaged by quadrature, the norm outside the frame included, is SGD's mean step within 5 sigma."""
    problem = squares(2, 1, sphere=sphere, second=0.4, lr=0.2)
    stats, d = random_overlaps(problem, seed=8), 40
    single = jax.tree.map(lambda leaf: leaf[None], stats)
    before = np.asarray(to_vector(stats, True))

    chain, nodes = FrameChain(problem, d), sl.GaussHermite(9).nodes(4)
    rest, weights = roots_genlaguerre(8, (d - 3) / 2 - 1)
    y, outside = np.repeat(nodes.points, 8, axis=1), np.tile(2 * rest, nodes.weights.size)
    frame = jax.tree.map(lambda leaf: jnp.repeat(leaf, y.shape[1], -1), chain.start(single))
    after = np.asarray(after_step(chain, frame, one_sample(y, 1, 2, outside)))
    exact = (after - before[:, None]) @ np.outer(nodes.weights, weights / weights.sum()).ravel()

    weight, runs, rng = WeightProcess(problem, d), 200_000, np.random.default_rng(9)
    W = jax.tree.map(lambda leaf: jnp.repeat(leaf, runs, 0), weight.start(single))
    inputs = Batch(rng.normal(size=(1, runs, d)), rng.normal(size=(1, runs)), np.zeros((1, runs), int))
    change = np.asarray(after_step(weight, W, inputs)) - before[:, None]
    mean, error = change.mean(1), change.std(1) / np.sqrt(runs)
    assert (np.abs(mean - exact) <= 5 * error + 1e-12).all(), (mean - exact) / error


def test_mean_of_one_step_tends_to_the_drift_as_one_over_d(random_overlaps):
    """d times the exact mean step minus the drift, off the sphere: a fitted exponent of -1."""
    problem = squares(1, 1, second=0.4, lr=0.2)
    stats, nodes = random_overlaps(problem, seed=8), sl.GaussHermite(8).nodes(3)
    single, before = jax.tree.map(lambda leaf: leaf[None], stats), np.asarray(to_vector(stats, True))
    y, gaps, sizes = nodes.points, [], [10**3, 10**4, 10**5]
    for d in sizes:
        chain = FrameChain(problem, d)
        frame = jax.tree.map(lambda leaf: jnp.repeat(leaf, y.shape[1], -1), chain.start(single))
        sample = one_sample(y, 1, 1, np.full(y.shape[1], d - 2.0))
        after = np.asarray(after_step(chain, frame, sample))
        mean = (after - before[:, None]) @ np.asarray(nodes.weights)
        gaps.append(np.abs(d * mean - np.asarray(to_vector(drift(problem, stats), True))).max())
    assert abs(np.polyfit(np.log(sizes), np.log(gaps), 1)[0] + 1) < 0.02


@pytest.mark.parametrize(("m", "noise", "lr"), [(0.3, 0.2, 0.1), (0.0, 0.0, 0.05), (-0.8, 1.0, 0.15)])
def test_covariance_of_one_unit_is_equation_55_of_escaping_mediocrity_with_twice_its_rate(m, noise, lr):
    problem = sl.presets.phase_retrieval(lr=lr, noise=noise, sphere=False)
    got = covariance(problem, sl.Overlaps([1.0], [[m]], [[1.0]])) / problem.rate**2
    g, D = 2 * lr, noise
    var_q = (
        576 * g**2 * D * m**4
        - 2496 * g**2 * D * m**2
        - 11520 * g**2 * m**6
        + 54144 * g**2 * m**4
        - 73728 * g**2 * m**2
        + 544 * g * D * m**2
        - 11136 * g * m**4
        + 22272 * g * m**2
        + 320 * m**4
        - 1600 * m**2
        + 32 * g**2 * D**2
        + 1920 * g**2 * D
        + 31104 * g**2
        - 544 * g * D
        - 11136 * g
        + 48 * D
        + 1280
    )
    cov = (
        72 * g * D * m**3
        - 72 * g * D * m
        - 1440 * g * m**5
        + 2880 * g * m**3
        - 1440 * g * m
        + 24 * D * m
        - 480 * m**3
        + 480 * m
    )
    var_m = 8 * D * m**2 - 192 * m**4 + 144 * m**2 + 4 * D + 48
    np.testing.assert_allclose(got, [[var_m, cov], [cov, var_q]], rtol=1e-12, atol=1e-10)


def test_drift_of_one_unit_on_the_sphere_is_equation_7():
    for m, noise, lr in [(0.3, 0.2, 0.1), (0.9, 0.0, 0.05), (-0.5, 1.0, 0.15)]:
        problem = sl.presets.phase_retrieval(lr=lr, noise=noise)
        slope = drift(problem, sl.Overlaps([1.0], [[m]], [[1.0]]))
        paper = m * (4 * (1 - 6 * lr) * (1 - m**2) - 2 * lr * noise)
        np.testing.assert_allclose(slope.M[0, 0] / problem.rate, paper, rtol=1e-12, atol=1e-14)
        assert slope.Q[0, 0] == 0


def test_drift_of_a_network_is_equation_26_of_escaping_mediocrity(random_overlaps):
    problem = sl.presets.phase_retrieval(width=4, lr=0.3, noise=0.2, sphere=False)
    stats = random_overlaps(problem, seed=11)
    stats = eqx.tree_at(lambda s: s.a, stats, jnp.ones(4))
    m, Q, p, g, D = np.asarray(stats.M), np.asarray(stats.Q), 4, 0.3, 0.2
    tr, mm = np.trace(Q), m @ m.T
    dm = 2 * (1 - tr / p) * m + 4 * (m - Q @ m / p)
    dQ = (
        4 * (1 - tr / p) * Q
        + 8 * (mm - Q @ Q / p)
        + 4
        * g
        / p
        * (
            3 * Q
            + 12 * mm
            + ((tr**2 + 2 * np.trace(Q @ Q)) * Q + 4 * tr * Q @ Q + 8 * Q @ Q @ Q) / p**2
            - 2 / p * ((tr + 2 * np.trace(mm)) * Q + 2 * tr * mm + 2 * Q @ Q + 4 * (mm @ Q + Q @ mm))
            + D * Q
        )
    )
    slope = drift(problem, stats)
    np.testing.assert_allclose(slope.M / problem.rate, dm, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slope.Q / problem.rate, dQ, rtol=1e-12, atol=1e-12)


def test_risk_is_equation_6_of_escaping_mediocrity(random_overlaps):
    problem = sl.presets.phase_retrieval(width=3, noise=0.4, sphere=False)
    s, p = random_overlaps(problem, seed=12), 3
    q, m = jnp.diagonal(s.Q), s.M[:, 0]
    paper = (0.4 + 3) / 2 - (s.a * (q + 2 * m**2)).sum() / p + s.a @ (q[:, None] * q + 2 * s.Q**2) @ s.a / (2 * p**2)
    np.testing.assert_allclose(risk(problem, s), paper, rtol=1e-12)


def test_risk_of_a_quadratic_network_is_the_corrected_bracket_of_its_paper(random_overlaps):
    p, k = 4, 3
    problem = sl.presets.quadratic_network(width=p, teachers=k)
    s = random_overlaps(problem, seed=13)
    s = eqx.tree_at(lambda s: s.a, s, jnp.ones(p))
    tr = jnp.trace(s.Q)
    paper = 1 + 2 / k - 2 * tr / p - 4 * (s.M**2).sum() / (p * k) + (tr**2 + 2 * jnp.trace(s.Q @ s.Q)) / p**2
    np.testing.assert_allclose(risk(problem, s), paper, rtol=1e-12)


def test_population_drift_is_minus_the_gradient_of_the_risk(random_overlaps):
    """du/dt = -lr grad_u risk moves M by -lr (dR/dM P + 2 dR/dQ M) and Q by the same on both sides."""
    problem = squares(3, 2, ridge=0.0, second=0.4)
    stats = random_overlaps(problem, seed=14)
    slope, (population, _) = jax.jit(lambda s: (jax.grad(lambda one: problem.risk(one))(s), problem.drift_parts(s)))(stats)
    sym = slope.Q + slope.Q.T
    lr, P = 0.7, problem.target.gram
    np.testing.assert_allclose(population.M, -lr * (slope.M @ P + sym @ stats.M), rtol=1e-9, atol=1e-11)
    half = slope.M @ stats.M.T + sym @ stats.Q
    np.testing.assert_allclose(population.Q, -lr * (half + half.T), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(population.a, -0.4 * slope.a, rtol=1e-9, atol=1e-11)


def test_problem_is_a_pytree_whose_numbers_can_be_traced():
    stats = sl.Overlaps([1.0], [[0.3]], [[1.0]])
    rates = jnp.array([0.01, 0.05, 0.1])
    slope = jax.jit(lambda lr: sl.presets.phase_retrieval(lr=lr, noise=0.2).drift(stats).M[0, 0])
    together = jax.vmap(slope)(rates)
    np.testing.assert_allclose(together, [slope(lr) for lr in rates], rtol=1e-14)
    stacked = jax.vmap(lambda lr: sl.presets.phase_retrieval(lr=lr, noise=0.2))(rates)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda q: q.drift(stats).M[0, 0]))(stacked), together)


@pytest.mark.full
def test_gradient_of_the_flow_with_respect_to_the_learning_rate_is_its_finite_difference():
    start = sl.Overlaps([1.0, 1.0], [[0.1], [-0.2]], [[1.0, 0.1], [0.1, 1.0]])
    end = lambda lr: sl.flow(sl.presets.phase_retrieval(width=2, lr=lr, noise=0.1), start, 15.0).M[1, 0]
    both = jax.jit(jax.value_and_grad(end))
    (_, slope), (ahead, _), (behind, _) = (both(lr) for lr in (0.1, 0.1 + 1e-5, 0.1 - 1e-5))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-5)


def test_a_teacher_of_another_norm_is_a_change_of_units():
    """Free weights: with rho it is the problem of rho = 1 at the rate lr rho, the noise over rho^2, overlaps over rho."""
    rho, lr, noise = 2.5, 0.03, 0.7
    scaled = sl.presets.phase_retrieval(2, lr=lr, noise=noise, sphere=False, rho=rho)
    plain = sl.presets.phase_retrieval(2, lr=lr * rho, noise=noise / rho**2, sphere=False)
    stats = sl.Overlaps(np.ones(2), [[0.6], [-0.2]], [[1.1, 0.3], [0.3, 0.8]])
    small = sl.Overlaps(stats.a, np.asarray(stats.M) / rho, np.asarray(stats.Q) / rho)
    left, right = scaled.drift(stats), plain.drift(small)
    np.testing.assert_allclose(np.asarray(left.M) / rho, right.M, rtol=1e-10)
    np.testing.assert_allclose(np.asarray(left.Q) / rho, right.Q, rtol=1e-10)
    np.testing.assert_allclose(scaled.risk(stats) / rho**2, plain.risk(small), rtol=1e-10)


def test_risk_with_any_norm_of_the_teacher_is_27_corrected():
    """(3 rho^2 + noise)/2 at zero weights, and by sampling on the sphere: five standard errors of 400,000 samples."""
    rho, noise, m = 2.0, 0.4, 0.9
    problem = sl.presets.phase_retrieval(noise=noise, rho=rho)
    x = np.random.default_rng(0).standard_normal((2, 400_000))
    fixed = np.sqrt(rho) * x[0]
    field = m / np.sqrt(rho) * x[0] + np.sqrt(1 - m**2 / rho) * x[1]
    losses = (fixed**2 - field**2) ** 2 / 2 + noise / 2
    stats = sl.Overlaps([1.0], [[m]], [[1.0]])
    assert abs(problem.risk(stats) - losses.mean()) < 5 * losses.std() / np.sqrt(losses.size)
    free = sl.presets.phase_retrieval(noise=noise, rho=rho, sphere=False)
    np.testing.assert_allclose(free.risk(sl.Overlaps([1.0], [[0.0]], [[1e-12]])), (3 * rho**2 + noise) / 2, rtol=1e-9)
