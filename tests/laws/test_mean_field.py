"""The limit of infinite width: how it is approached, and that two evaluations and several independent routes agree on it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, ndtr

import sgdlimits as sl
from sgdlimits.expectation.particles import GridExpectation, PairwiseExpectation
from sgdlimits.inputs import Data
from sgdlimits.problem.mean_field import MeanFieldProblem


def units(p, k, seed=0, sphere=False):
    """Random units: a, M and q."""
    rng = np.random.default_rng(seed)
    a, M, outside = 1 + 0.5 * rng.normal(size=p), 0.3 * rng.normal(size=(p, k)), 0.5 + rng.random(p)
    return sl.Particles(a, M, np.ones(p) if sphere else (M**2).sum(1) + outside)


def overlaps(particles, copies=1):
    """Each unit so many times, all orthogonal to each other outside the span of the fixed directions (P = 1)."""
    a, M, q = (np.repeat(np.asarray(leaf), copies, axis=0) for leaf in (particles.a, particles.M, particles.q))
    inside = M @ M.T
    return sl.Overlaps(a, M, inside + np.diag(q - np.diagonal(inside)))


def compiled(f, stats):
    return jax.jit(lambda one: f(one))(stats)


def largest(left, right):
    return max(float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))


# --- the limit ------------------------------------------------------------------------------------------------------------


def test_gap_to_the_ode_falls_as_one_over_the_width():
    """sup_t of the gap in M, q and the risk, and of Q off the diagonal to M P^-1 M^T, at equal paper time and fixed lr."""
    widths, gaps = [6, 24], []
    for p in widths:
        start = overlaps(sl.Particles(np.ones(p), *jax.tree.leaves(units(p, 2, seed=p))[1:]))
        problem, how = sl.presets.committee(p, 2, lr=1.0, noise=0.1), dict(t_max=3.0 * p, save=7, progress=False)
        ode = sl.simulate(problem, sl.ODE(rtol=1e-6), start, **how).isel(run=0)
        limit = sl.simulate(problem, sl.MeanField(rtol=1e-6), start, **how).isel(run=0)
        Q, M = ode.Q.values, ode.M.values
        off = (Q - M @ M.swapaxes(1, 2)) * (1 - np.eye(p))
        norms = np.diagonal(Q, axis1=1, axis2=2) - limit.q.values
        shifts = np.sqrt(((ode.M - limit.M) ** 2).mean(("student", "teacher")))
        gaps.append([float(abs(x).max()) for x in (shifts.values, norms, (ode.risk - limit.risk).values, off)])
    exponents = np.polyfit(np.log(widths), np.log(gaps), 1)[0]
    print(f"fitted exponents of M, q, risk and Q off the diagonal: {np.round(exponents, 2)}; gaps {np.round(gaps, 4).tolist()}")
    assert (exponents < -0.5).all()
    assert (abs(exponents + 1) < 0.2).all()


@pytest.mark.parametrize(
    "problem",
    [
        lambda p, lr: sl.presets.committee(p, 2, lr=lr, train_second=True),
        lambda p, lr: sl.presets.phase_retrieval(p, lr=lr, noise=0.1),
    ],
    ids=["erf, pairs", "squares on the sphere, grid"],
)
def test_drift_is_the_limit_of_many_copies_of_each_unit(problem):
    """At n copies the population drift differs by c/n exactly, so that two values of n give the limit to rounding."""
    p, first = 3, problem(3, 1.0)
    start = units(p, first.target.teachers, sphere=first.algorithm.sphere)
    limit = compiled(MeanFieldProblem(first).drift, start)
    drifts = {}
    for n in (1, 2):
        whole = compiled(problem(n * p, float(n)).drift_parts, overlaps(start, n))[0]
        drifts[n] = sl.Particles(whole.a[::n], whole.M[::n], jnp.diagonal(whole.Q)[::n])
    gaps = {n: largest(drift, limit) for n, drift in drifts.items()}
    richardson = jax.tree.map(lambda one, two: 2 * two - one, drifts[1], drifts[2])
    print(f"gap at 1 and 2 copies {gaps}, after Richardson {largest(richardson, limit):.1e}")
    assert gaps[1] > 1e-4
    np.testing.assert_allclose(gaps[1] / gaps[2], 2, rtol=1e-6)
    assert largest(richardson, limit) < 1e-12


@pytest.mark.full
def test_mean_field_from_random_weights_is_near_a_wide_chain():
    """d = 500 and 32 units at lr/p = 1/16: the risk of one run is within 4 % of the start's at all times."""
    problem, d = sl.presets.committee(32, 1, lr=2.0), 500
    how = dict(t_max=80, save=5, seed=1, progress=False)
    chain = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), **how)
    limit = sl.simulate(problem, sl.MeanField(), sl.RandomInit(d), **how)
    np.testing.assert_allclose(limit.M[:, 0], chain.M[:, 0], atol=1e-14)  # the same units
    gap = float(abs(chain.risk - limit.risk).max() / limit.risk[0, 0])
    print(f"largest gap over the risk at the start {gap:.3f}; risk falls by {float(limit.risk[0, -1] / limit.risk[0, 0]):.4f}")
    assert gap < 0.04
    assert limit.risk[0, -1] < 0.1 * limit.risk[0, 0]


# --- two evaluations, and independent routes to each -----------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "k"), [("erf", 1), ("he2", 1), ("he3", 1), ("tanh", 1), ("erf", 2)])
def test_grid_and_pairs_agree(activation, k):
    problem = sl.presets.committee(5, k, activation, lr=1.0, train_second=True, noise=0.2)
    start = units(5, k)
    start = sl.Particles(start.a, 0.7 * start.M, 0.5 * start.q)
    limits = [MeanFieldProblem(problem, rule) for rule in (GridExpectation(True), PairwiseExpectation())]
    grid, pairs = (compiled(lambda one, limit=limit: (limit.drift(one), limit.risk(one)), start) for limit in limits)
    print(f"{activation}, k = {k}: {largest(grid, pairs):.1e}")
    assert largest(grid, pairs) < 1e-9


def own_readout(fixed):
    return jnp.sin(fixed[0])


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


def unequal_teachers(activation) -> sl.ProjectionProblem:
    return sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout(activation, [1.0, -2.0]), 2, noise=0.1, gram=[[1.0, 0.3], [0.3, 0.7]]),
        sl.TwoLayer(4, activation),
        sl.SquaredLoss(weight=1.0),
        sl.OnePassSGD(0.5, lr_second=0.2, ridge=0.1, batch=2),
    )


def own_problem() -> sl.ProjectionProblem:
    """Two classes, a readout and a loss that are not in the package, and noisy labels."""
    return sl.ProjectionProblem(
        sl.Target(own_readout, noise=0.3, gram=[[0.8]]),
        sl.TwoLayer(4, "tanh"),
        huber,
        sl.OnePassSGD(0.5, lr_second=0.2),
        data=Data(jnp.array([0.3, 0.7]), jnp.array([[0.5], [-0.2]]), jnp.array(0.9)),
    )


@pytest.mark.parametrize(
    "problem",
    [lambda: unequal_teachers("erf"), lambda: unequal_teachers("relu"), own_problem],
    ids=["erf, pairs", "relu, pairs", "own, grid"],
)
def test_drift_is_the_gradient_of_the_risk_in_the_metric_of_weights(problem):
    """With u_i moved against dR/du_i = sum_r (dR/dm_ir) e_r + 2 (dR/dq_i) u_i, at lr over the batch."""
    problem = problem()
    limit, start, sgd = MeanFieldProblem(problem), units(4, problem.target.teachers), problem.algorithm
    slope = compiled(jax.grad(limit.risk), start)
    M = slope.M @ problem.target.gram + 2 * slope.q[:, None] * start.M + sgd.ridge * start.M
    q = 2 * (slope.M * start.M).sum(1) + 4 * slope.q * start.q + 2 * sgd.ridge * start.q
    expected = sl.Particles(-sgd.lr_second * (slope.a + sgd.ridge * start.a), -sgd.lr * M, -sgd.lr * q)
    assert largest(compiled(limit.drift, start), jax.tree.map(lambda leaf: leaf / sgd.batch, expected)) < 1e-9


def relu_mean(mu, v):
    return mu * ndtr(mu / np.sqrt(v)) + np.sqrt(v / (2 * np.pi)) * np.exp(-(mu**2) / (2 * v))


def erf_mean(mu, v):
    return erf(mu / np.sqrt(2 * (1 + v)))


def tanh_mean(mu, v):
    z, w = np.polynomial.hermite_e.hermegauss(80)
    return np.tanh(mu[..., None] + np.sqrt(v)[..., None] * z) @ (w / w.sum())


def squared_mean(error, noise):
    return (error**2 + noise) / 2


def huber_mean(error, noise):
    """The square less the squares of what is above 1, whose means over Gaussian noise are in closed form."""
    s = np.sqrt(noise)
    above = lambda x: (x**2 + noise) * ndtr(x / s) + x * s * np.exp(-(x**2) / (2 * noise)) / np.sqrt(2 * np.pi)
    return (error**2 + noise - above(error - 1) - above(-error - 1)) / 2


@pytest.mark.parametrize(
    ("problem", "mean", "label", "loss", "tolerance"),
    [
        (sl.presets.committee(4, 1, "erf", noise=0.2), erf_mean, lambda x: erf_mean(x, 0.0), squared_mean, 1e-12),
        (sl.presets.committee(4, 1, "relu", noise=0.2), relu_mean, lambda x: np.maximum(x, 0), squared_mean, 1e-7),
        (own_problem(), tanh_mean, np.sin, huber_mean, 1e-7),
    ],
    ids=["erf, grid", "relu, pairs", "Huber loss of noisy labels, grid"],
)
def test_risk_is_the_mean_loss_of_the_network_as_a_function_of_the_fixed_field(problem, mean, label, loss, tolerance):
    """Against a fine sum over the field, with means over the rest of the units' fields and the label noise by hand."""
    start, noise, data = units(4, 1), float(problem.target.noise), problem.data
    B, sigma, z = float(problem.frame[0, 0]), float(data.sigma), np.linspace(-9, 9, 20_001)
    w, m = np.exp(-(z**2) / 2), np.asarray(start.M) / B
    expected = 0.0
    for share, b in zip(data.weights, np.zeros(1) if data.centred else data.means[:, 0], strict=True):
        x = sigma * z + float(b) * B
        f = np.asarray(start.a) @ mean(m * x, np.broadcast_to(sigma**2 * (start.q[:, None] - m**2), (4, x.size))) / 4
        expected += float(share) * (w @ loss(f - label(B * x), noise) / w.sum())
    np.testing.assert_allclose(float(compiled(MeanFieldProblem(problem).risk, start)), expected, rtol=tolerance)


@pytest.mark.full
def test_risk_never_rises_along_the_flow_and_goes_on_to_zero():
    """Gradient flow, on the sphere too, and with a second layer a hundred times faster, which the implicit method solves."""
    problem = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("he2")), sl.TwoLayer(4, "he2"), sl.SquaredLoss(), sl.OnePassSGD(4.0, 400.0, sphere=True)
    )
    flow = sl.simulate(problem, sl.MeanField(), units(4, 1, sphere=True), t_max=40, save=81, progress=False)
    assert (np.diff(flow.risk.values) < 1e-12).all()
    assert 0 <= flow.risk.values[0, -1] < 1e-12
    np.testing.assert_allclose(flow.q, 1, atol=1e-12)


def test_the_risk_is_quadratic_in_the_measure_of_units():
    """Between two measures of units, by their share of the second: third differences vanish, and the second one is positive."""
    view, one, two = (
        (lambda p: sl.MeanField().adapt_problem(sl.presets.committee(p, 1, lr=1.0))),
        units(2, 1, 0),
        units(2, 1, 1),
    )
    mixed = [jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *[one] * (4 - n), *[two] * n) for n in range(5)]
    risks = [float(view(8).risk(each)) for each in mixed]
    second = np.diff(risks, 2)
    assert (second > 1e-4).all()
    np.testing.assert_allclose(second, second[0], rtol=1e-6)


# --- at a finite dimension ---------------------------------------------------------------------------------------------------


def test_drift_at_finite_dimension_is_that_of_many_units_around_a_circle():
    """Two kinds of erf units in R^3: each stands for all directions in the plane across the teacher, here for 24 of them."""
    a, m, q, count = np.array([1.0, -0.6]), np.array([0.4, -0.7]), np.array([1.2, 0.9]), 24
    angles = 2 * np.pi * (np.arange(count) + 0.5) / count
    across = np.sqrt(q - m**2)[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    W = np.concatenate([np.repeat(m, count)[:, None], across.reshape(-1, 2)], axis=1)
    wide = sl.presets.committee(2 * count, 1, "erf", lr=2.0 * count, train_second=True)
    many = wide.drift_parts(sl.Overlaps(np.repeat(a, count), W[:, :1], W @ W.T))[0]
    narrow = sl.presets.committee(2, 1, "erf", lr=2.0, train_second=True)
    stats = sl.Particles(a, m[:, None], q)
    limit = sl.MeanField(outside=2).adapt_problem(narrow).drift(stats)
    np.testing.assert_allclose(limit.M, many.M.reshape(2, count, 1)[:, 0], atol=1e-6)
    np.testing.assert_allclose(limit.q, np.diagonal(many.Q).reshape(2, count)[:, 0], atol=1e-6)
    np.testing.assert_allclose(limit.a, many.a.reshape(2, count)[:, 0], atol=1e-6)
    gaps = [
        np.abs(
            sl.MeanField(outside=n).adapt_problem(narrow).drift(stats).q - sl.MeanField().adapt_problem(narrow).drift(stats).q
        )
        for n in (100, 200)
    ]
    np.testing.assert_allclose(gaps[0] / gaps[1], 2, rtol=0.05)


def test_finite_dimension_needs_a_grid():
    with pytest.raises(
        sl.BadInput, match=r"MeanField\(outside=...\) needs a smooth activation and at most 2 fixed directions; got 1"
    ):
        sl.MeanField(outside=5).adapt_problem(sl.presets.committee(2, 1, "relu"))
    with pytest.raises(sl.BadInput, match="outside must be a whole number"):
        sl.MeanField(outside=0).adapt_problem(sl.presets.committee(2, 1, "erf"))
