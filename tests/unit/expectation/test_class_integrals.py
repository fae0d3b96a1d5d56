"""Expectations of classification on Gaussian mixtures against integrals over quadrants, inputs in R^d, and the paper."""

from __future__ import annotations

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import multivariate_normal, norm, qmc

import sgdlimits as sl
from sgdlimits.expectation.classes import AtMeans, ClassIntegrals
from sgdlimits.expectation.gaussian import means_where_positive, probability_both_positive, split_line

RIDGE, LR = 0.1, 0.7


def mixture(preset, snr, rule=None):
    """Build the preset with another snr and expectation, as arrays of one problem, so that it is compiled once."""
    if snr == np.inf:
        return preset(snr=snr, ridge=RIDGE, lr=LR).with_expectation(rule)
    problem = preset(snr=10.0, ridge=RIDGE, lr=LR)
    problem = eqx.tree_at(lambda problem: problem.data.sigma, problem, jnp.asarray(snr**-0.5))
    return problem.with_expectation(rule or ClassIntegrals())


def weights(p, k, seed, outside=1.0, size=0.9):
    """Draw a second layer and directions in R^8, whose first k coordinates are along the fixed directions."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=p), rng.normal(size=(p, 8)) * np.repeat([size, outside * size], [k, 8 - k]) / 2


def overlaps(a, W, k):
    return sl.Overlaps(a, W[:, :k], W @ W.T)


@eqx.filter_jit
def estimate(problem, stats):
    return problem.expectation.estimate(problem.model, stats.a, problem.model.law(stats))


@eqx.filter_jit
def drift(problem, stats):
    return problem.drift(stats)


def largest(moments):
    return max(float(np.abs(leaf).max()) for leaf in moments)


def gap(one, other):
    return largest([np.asarray(a) - np.asarray(b) for a, b in zip(one, other, strict=True)])


# --- One normal number, and two on the sides of zero. -----------------------------------------------------------------------


def upper_moments(c, degree):
    """Compute the integrals of z^m over [c, infinity), by parts."""
    moments = [norm.sf(c), norm.pdf(c)]
    for m in range(2, degree + 1):
        moments.append(c ** (m - 1) * norm.pdf(c) + (m - 1) * moments[m - 2])
    return np.array(moments)


def test_split_line_is_exact_for_piecewise_polynomials_and_follows_its_kink():
    cs = jnp.array([-7.3, -2.6, -0.4, 0.0, 1.1, 3.7, 7.9])
    rule = jax.jit(split_line, static_argnums=1)
    worst = 0.0
    for order in (2, 5):
        points, line = (np.asarray(part) for part in rule(cs, order))
        assert np.abs(line.sum(0) - 1).max() < 1e-14
        assert (points[:order] > cs).all()
        assert (points[order:] < cs).all()
        for at, c in enumerate(np.asarray(cs)):
            exact = upper_moments(c, 2 * order - 1)
            got = [(line[:order, at] * points[:order, at] ** m).sum() for m in range(2 * order)]
            every = np.array([(line[:, at] * points[:, at] ** m).sum() for m in range(2 * order)])
            all_moments = upper_moments(-40.0, 2 * order - 1)
            worst = max(worst, np.abs((got - exact) / np.abs(all_moments).max()).max(), np.abs(every - all_moments).max())
    print(f"piecewise polynomials: {worst:.1e}")
    assert worst < 1e-11

    def kinked(c):
        points, line = split_line(c, 14)
        return (line * jnp.abs(points - c) * jnp.cos(points)).sum()

    density = lambda z: np.cos(z) * norm.pdf(z)
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(kinked)))(cs)
    for c, got, moved in zip(np.asarray(cs), value, slope, strict=True):
        under, over = ([quad(lambda z: z**m * density(z), *ends)[0] for m in (0, 1)] for ends in ((-12, c), (c, 12)))  # noqa: B023
        assert got == pytest.approx(over[1] - under[1] - c * (over[0] - under[0]), abs=1e-9)
        assert moved == pytest.approx(under[0] - over[0], abs=1e-7)


def test_half_spaces_agree_with_the_normal_law():
    A = np.random.default_rng(3).normal(size=(3, 3))
    C, mean = A @ A.T, np.array([0.4, -1.3, 0.0])
    other, cross = np.array([0.7]), A @ np.array([[0.2], [0.1], [-0.5]])
    pairs = np.asarray(jax.jit(probability_both_positive)(mean, C))
    for i in range(3):
        for j in range(i):
            law = multivariate_normal(mean[[i, j]], C[np.ix_([i, j], [i, j])])
            assert pairs[i, j] == pytest.approx(law.cdf([np.inf, np.inf], lower_limit=[0, 0]), abs=1e-8)
    np.testing.assert_allclose(np.diagonal(pairs), norm.cdf(mean / np.sqrt(np.diagonal(C))), rtol=1e-12)
    for angle in (1e-3, 0.02, 0.3, np.pi - 0.01):  # P(x > 0 > y), over the line of x in pieces around the step of y
        rho, h, k = np.cos(angle), 0.4, np.sign(np.cos(angle)) * 0.4 + 0.01
        off = lambda z: norm.pdf(z) * norm.cdf(-(k + rho * z) / np.sin(angle))  # noqa: B023
        step, width = -k / rho, np.sin(angle)
        pieces = np.unique(np.clip([-h, step - 8 * width, step, step + 8 * width, 10.0], -h, 10.0))
        apart = sum(quad(off, *ends, epsabs=1e-13)[0] for ends in itertools.pairwise(pieces))
        pair = jax.jit(probability_both_positive)(jnp.array([h, k]), jnp.array([[1.0, rho], [rho, 1.0]]))
        assert float(pair[0, 0] - pair[0, 1]) == pytest.approx(apart, abs=1e-7)
    got = jax.jit(means_where_positive)(mean, jnp.diagonal(C), other, cross)
    for j in range(3):
        spread = np.sqrt(C[j, j])
        given = lambda x: (other[0] + cross[j, 0] / C[j, j] * (x - mean[j])) * norm.pdf(x, mean[j], spread)  # noqa: B023
        assert got[j, 0] == pytest.approx(quad(given, 0, mean[j] + 12 * spread)[0], abs=1e-9)


# --- Two units: the plane of their fields, quadrant by quadrant. -------------------------------------------------------------


def quadrants(mean, C, panels=14, nodes=16):
    """Return nodes in the plane, weighted with the density of N(mean, C), in panels that no axis crosses."""
    x, w = leggauss(nodes)
    lines = []
    for m, s in zip(mean, np.sqrt(np.diagonal(C)), strict=True):
        edges = np.unique(np.clip(np.concatenate([np.linspace(m - 9 * s, m + 9 * s, 2 * panels), [0.0]]), m - 9 * s, m + 9 * s))
        middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        lines.append(((middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()))
    first, second = np.meshgrid(lines[0][0], lines[1][0], indexing="ij")
    points = np.stack([first.ravel(), second.ravel()])
    offset = points - mean[:, None]
    density = np.exp(-(offset * np.linalg.solve(C, offset)).sum(0) / 2) / (2 * np.pi * np.sqrt(np.linalg.det(C)))
    return points, np.outer(lines[0][1], lines[1][1]).ravel() * density


def paper_integrals(v, m, Q, snr):
    """Compute A^mu, A^perp and B of (4.3)."""
    A, perp, B = np.zeros(2), np.zeros((2, 2)), np.zeros((2, 2))
    for y, mu in ((1.0, 1.0), (0.0, -1.0)):
        points, weight = quadrants(mu * m, Q / snr)
        along = mu + m @ np.linalg.solve(Q, points - mu * m[:, None])
        on, error = points >= 0, expit(v @ np.maximum(points, 0)) - y
        A += (weight * on * error) @ along / 2
        perp += (weight * on * error) @ (points - m[:, None] * along).T / 2
        B += (weight * on * error**2) @ on.T / 2
    return A, perp, B


@pytest.mark.parametrize("snr", [1.0, 10.0, 100.0])
def test_binary_drift_is_that_of_proposition_4_1(snr):
    worst, bound = 0.0, 0.0
    rough = ClassIntegrals(orders=(2, 4))
    for seed, outside in ((1, 1.0), (2, 0.5), (4, 0.3)):
        v, W = weights(2, 1, seed, outside, size=1.5)
        stats, m = overlaps(v, W, 1), W[:, 0]
        A, perp, B = paper_integrals(v, m, W @ W.T, snr)
        R = W[:, 1:] @ W[:, 1:].T
        f_v, f_m = m * A + np.diagonal(perp) + RIDGE * v, v * A + RIDGE * m
        f_R = v[:, None] * perp + (v[:, None] * perp).T + 2 * RIDGE * R
        g_R = LR * np.outer(v, v) / snr * B
        got = drift(mixture(sl.presets.binary_mixture, snr), stats)
        dm = got.M[:, 0] / LR
        dR = got.Q / LR - np.outer(m, dm) - np.outer(dm, m)
        here = gap([got.a / LR, dm, dR], [-f_v, -f_m, g_R - f_R]) / max(largest([f_v, f_m, f_R]), 0.1)
        value, error = estimate(mixture(sl.presets.binary_mixture, snr, rough), stats)
        exact = [v[:, None] * A[:, None], v[:, None] * v * B]
        assert gap([value.gradient_fixed, value.gradient_gradient], exact) <= largest(error) + 1e-10
        worst, bound = max(worst, here), max(bound, largest(error))
    print(f"snr {snr}: drift {worst:.1e}; rough rule claims {bound:.1e}")
    assert worst < 1e-7


def wedges(v, W, snr, panels=20, nodes=16):
    """Compute loss, A, E[G lambda] and E[G G] of the binary mixture, in polar coordinates around the crossing of the kinks."""
    L, sigma = np.linalg.cholesky(W @ W.T), snr**-0.5
    x, w = leggauss(nodes)

    def composite(edges):
        middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        return (middle[:, None] + half[:, None] * x).ravel(), (half[:, None] * w).ravel()

    normals = np.arctan2(L[:, 1], L[:, 0])
    kinks = np.sort(np.mod(np.concatenate([normals + np.pi / 2, normals - np.pi / 2]), 2 * np.pi))
    kinks = np.append(kinks, kinks[0] + 2 * np.pi)
    total = [0.0, 0.0, 0.0, 0.0]
    for y, mu in ((1.0, 1.0), (0.0, -1.0)):
        apex = -np.linalg.solve(sigma * L, mu * W[:, 0])
        distance, towards = np.hypot(*apex), np.arctan2(-apex[1], -apex[0])
        near = (towards + np.linspace(-9, 9, 2 * panels) / max(distance, 3))[:, None] + 2 * np.pi * np.arange(-1, 3)
        even = np.linspace(kinks[:-1], kinks[1:], 4)
        phi, turn = composite(np.unique(np.concatenate([even.ravel(), near[(near > kinks[0]) & (near < kinks[-1])]])))
        r, length = composite(np.unique(np.clip(np.linspace(distance - 9, distance + 9, panels), 0, None)))
        z = apex[:, None, None] + np.stack([np.cos(phi), np.sin(phi)])[:, :, None] * r
        weight = (turn[:, None] * length * r * np.exp(-(z**2).sum(0) / 2) / (4 * np.pi)).ravel()
        z = z.reshape(2, -1)
        fields = mu * W[:, :1] + sigma * L @ z
        f = v @ np.maximum(fields, 0)
        G, fixed = v[:, None] * (fields > 0) * (expit(f) - y), mu + sigma * np.linalg.solve(L, W[:, 0]) @ z
        parts = weight @ (np.logaddexp(0, f) - y * f), G @ (weight * fixed), (weight * G) @ fields.T, (weight * G) @ G.T
        total = [one + other for one, other in zip(total, parts, strict=True)]
    return total


@pytest.mark.parametrize("snr", [5.0, 2.0, 15.0])
def test_nearly_parallel_units_differ_by_what_is_between_their_kinks(snr):
    """Angles down to 1e-3. Inputs with exactly one unit on part the directions of the units, by their squared slope g^2."""
    problem, worst, thin = mixture(sl.presets.binary_mixture, snr), 0.0, 0.0
    v, first = np.array([1.2, 0.9]), np.array([0.6, 0.5, 0.0])
    across = np.array([-0.3, 0.36, 0.624])
    for angle in (1e-3, 2e-3, 8e-3, 2e-2, 0.2, np.pi - 1e-2):
        W = np.stack([first, 1.3 * (np.cos(angle) * first + np.sin(angle) * across)])
        exact = wedges(v, W, snr)
        value, _ = estimate(problem, overlaps(v, W, 1))
        worst = max(worst, gap([value.loss, value.gradient_fixed[:, 0], *value[2:4]], exact))
        one_on = lambda GG: GG[0, 0] / v[0] ** 2 + GG[1, 1] / v[1] ** 2 - 2 * GG[0, 1] / v[0] / v[1]
        thin = max(thin, abs(float(one_on(value.gradient_gradient)) / one_on(exact[3]) - 1))
    print(f"snr {snr}: moments {worst:.1e}, E[g^2; exactly one on] {thin:.1e} of itself")
    assert worst < 1e-8
    assert thin < 1e-6


# --- Four units: inputs in R^d. ----------------------------------------------------------------------------------------------


def inputs_in_space(a, W, snr, seed, log2=15):
    """Estimate the moments of XOR and the covariance of d times the increments, from inputs in R^8 at Sobol points."""
    p, d = W.shape
    g = norm.ppf(qmc.Sobol(d, rng=np.random.default_rng(seed)).random_base2(log2)).T / np.sqrt(snr)
    x = np.concatenate(
        [g + np.pad(np.asarray(mean, float), (0, d - 2))[:, None] for mean in ((1, 0), (-1, 0), (0, 1), (0, -1))], axis=1
    )
    y = np.repeat([1.0, 1.0, 0.0, 0.0], g.shape[1])
    fields, fixed = W @ x, x[:2]
    f = a @ np.maximum(fields, 0)
    error = expit(f) - y
    G, second = a[:, None] * (fields > 0) * error, np.maximum(fields, 0) * error
    n = y.size
    moments = [np.mean(np.logaddexp(0, f) - y * f), G @ fixed.T / n, G @ fields.T / n, G @ G.T / n, second.mean(1)]
    row, column = np.triu_indices(p)
    dM = -LR * (G[:, None] * fixed).reshape(2 * p, n)
    dQ = -LR * (G[row] * fields[column] + fields[row] * G[column]) + LR**2 / snr * G[row] * G[column]
    return moments, np.cov(np.concatenate([dM, dQ, -LR * second]))


def xor_states():
    """Return a random state, and one near the optimum whose units are almost parallel in pairs, by snr."""
    radius = np.sqrt(np.log(0.6) - np.log(0.4))
    optimum = radius * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
    near = np.hstack([optimum, np.zeros((4, 6))]) + 0.02 * np.random.default_rng(5).normal(size=(4, 8))
    return {10.0: weights(4, 2, 6), 1000.0: (radius * np.array([1.0, 1.0, -1.0, -1.0]), near)}


@pytest.mark.full
@pytest.mark.parametrize("snr", [10.0, 1000.0])
def test_xor_moments_are_those_of_inputs_in_space(snr):
    """12 scrambled sequences; 45 moments each within 7 standard errors: a false alarm once in a thousand."""
    a, W = xor_states()[snr]
    problem, stats = mixture(sl.presets.xor_mixture, snr), overlaps(a, W, 2)
    value, error = estimate(problem, stats)
    samples = [inputs_in_space(a, W, snr, seed) for seed in range(12)]
    flat = lambda moments: np.concatenate([np.ravel(leaf) for leaf in moments])
    draws = np.stack([flat(moments) for moments, _ in samples])
    spread = draws.std(0, ddof=1) / np.sqrt(len(draws))
    distance = np.abs(flat(value) - draws.mean(0)) / (spread + largest(error) / 7)
    print(f"snr {snr}: {distance.max():.1f} errors of {spread.max():.1e}; ladder claims {largest(error) / largest(value):.1e}")
    assert distance.max() < 7
    assert largest(error) < 1e-4 * largest(value)
    assert float(eqx.filter_jit(problem.expectation.risk)(problem.model, stats.a, problem.model.law(stats))) == pytest.approx(
        float(value.loss), abs=1e-5
    )
    covariance = problem.covariance(stats)
    covariances = np.stack([sampled for _, sampled in samples])
    spread = covariances.std(0, ddof=1) / np.sqrt(len(covariances))
    beyond = (np.abs(covariance - covariances.mean(0)) - 7 * spread).max() / np.abs(covariances).max()
    print(f"covariance: {beyond:.1e} of the largest beyond 7 errors")
    assert beyond < {10.0: 1e-5, 1000.0: 0.05}[snr]


# --- No noise, and the way there. ---------------------------------------------------------------------------------------------


def proposition_4_2(v, m):
    together = m[0] * m[1] > 0
    pull = expit(-(v @ m)) if together else expit(-v * m)
    return m / 2 * pull - RIDGE * v, v / 2 * pull - RIDGE * m


def test_inputs_at_their_means_follow_proposition_4_2_which_small_noise_tends_to():
    limit = mixture(sl.presets.binary_mixture, np.inf, AtMeans())
    near = mixture(sl.presets.binary_mixture, 1e8)
    for seed in range(6):
        v, W = weights(2, 1, seed)
        stats, m = overlaps(v, W, 1), W[:, 0]
        assert np.abs(m).min() > 0.01
        got = drift(limit, stats)
        dv, dm = proposition_4_2(v, m)
        np.testing.assert_allclose(got.a / LR, dv, atol=1e-12)
        np.testing.assert_allclose(got.M[:, 0] / LR, dm, atol=1e-12)
        dR = got.Q - np.outer(m, got.M[:, 0]) - np.outer(got.M[:, 0], m)
        np.testing.assert_allclose(dR, -2 * LR * RIDGE * W[:, 1:] @ W[:, 1:].T, atol=1e-12)
        for one, other in zip(jax.tree.leaves(drift(near, stats)), jax.tree.leaves(got), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-7)


def test_a_field_at_its_kink_brings_no_noise():
    problem = mixture(sl.presets.xor_mixture, np.inf, AtMeans())
    a, M = np.array([1.0, 1.0, -1.0, -1.0]), np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    covariance = np.asarray(eqx.filter_jit(problem.covariance)(sl.Overlaps(a, M, M @ M.T)))[:8, :8].reshape(4, 2, 4, 2)
    G = LR * (1 - expit(1.0))
    assert covariance[0, 0, 0, 0] == pytest.approx(G**2 * (1 / 4 - 1 / 16))
    assert np.abs(covariance[:2, 1]).max() == 0
    assert np.abs(covariance[2:, 0]).max() == 0


# --- What JAX does with the ladder, and smooth units. -----------------------------------------------------------------------


@pytest.mark.full
def test_the_ladder_can_be_differentiated_and_batched():
    problem = mixture(partial(sl.presets.binary_mixture, width=1), 3.0, ClassIntegrals(1e-4, orders=(3, 6)))
    states = [overlaps(*weights(1, 1, seed), 1) for seed in (1, 2)]
    direction = overlaps(*weights(1, 1, 9), 1)

    def along(stats, step):
        moved = jax.tree.map(lambda value, more: value + step * more, stats, direction)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(problem.drift(moved)))

    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    both = eqx.filter_jit(jax.vmap(jax.value_and_grad(along, argnums=1), in_axes=(0, None)))
    h = 1e-4
    (behind, _), (_, slope), (ahead, _) = (both(batch, jnp.asarray(step)) for step in (-h, 0.0, h))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * h), rtol=1e-4)


def test_smooth_units_agree_with_an_integral():
    data = sl.mixture([[1.0], [-0.5]], [0.3, 0.7], variance=0.25)
    problem = sl.ProjectionProblem(
        sl.Target(sl.ClassLabels([1.0, 0.0])), sl.TwoLayer(1, "tanh"), sl.CrossEntropy(), sl.OnePassSGD(LR), data=data,
        expectation=ClassIntegrals(),
    )  # fmt: skip
    a, m, q = 1.4, 0.6, 1.1
    value, error = estimate(problem, sl.Overlaps([a], [[m]], [[q]]))
    exact = np.zeros(3)
    for weight, mean, y in ((0.3, 1.0, 1.0), (0.7, -0.5, 0.0)):

        def at(z, which, mean=mean, y=y):
            field = m * mean + 0.5 * np.sqrt(q) * z
            along = mean + m / q * (field - m * mean)
            f = a * np.tanh(field)
            G = a / np.cosh(field) ** 2 * (expit(f) - y)
            return (np.logaddexp(0, f) - y * f, G * along, G**2)[which] * norm.pdf(z)

        exact += weight * np.array([quad(at, -10, 10, args=(which,), epsabs=1e-12)[0] for which in range(3)])
    got = [value.loss, value.gradient_fixed[0, 0], value.gradient_gradient[0, 0]]
    np.testing.assert_allclose(got, exact, atol=1e-8)
    assert np.abs(got - exact).max() <= largest(error) + 1e-12


def test_orders_that_do_not_grow_are_refused():
    with pytest.raises(sl.BadInput, match="increasing"):
        ClassIntegrals(orders=(6, 4))
