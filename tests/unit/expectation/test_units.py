"""Integrals over two and four fields: closed forms and Mehler's formula against grids, quadrants and steps in R^d."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss
from scipy.special import erf, roots_hermitenorm
from scipy.stats import multivariate_normal, norm

import sgdlimits as sl
from sgdlimits.expectation import FieldIntegrals
from sgdlimits.expectation.gaussian.piecewise_linear import _sign_absolute_moments
from sgdlimits.model.activation import FunctionActivation

of_four = jax.jit(_sign_absolute_moments)


def bump(x):
    """A smooth activation that the package does not know, neither odd nor even."""
    return x * jnp.exp(-(x**2) / 4) + 0.3 * jnp.cos(x)


def softplus(x):
    return jnp.log1p(jnp.exp(x))


def state(p, k, seed, size=0.9):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(p, 12)) * size / np.sqrt(12)
    return sl.Overlaps(1 + 0.5 * rng.normal(size=p), W[:, :k], W @ W.T)


@eqx.filter_jit
def moments(problem, stats):
    return problem.expectation.moments(problem.model, stats.a, problem.model.law(stats))


covariance = eqx.filter_jit(lambda problem, stats: problem.covariance(stats))


def fields(problem, stats):
    return np.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])


def coefficients(problem, stats):
    p, k = problem.network.width, problem.target.teachers
    return np.concatenate([np.asarray(stats.a) / p, -np.ones(k) / k])


# --- Grids over two, three and four fields, for smooth units. --------------------------------------------------------------


def grid_mean(f, C, which, order):
    """Compute E f(x_i, x_j, ...) of the fields `which` on a product grid over the distinct ones."""
    z, w = roots_hermitenorm(order)
    distinct, place = np.unique(which, return_inverse=True)
    axes = np.meshgrid(*[z] * distinct.size, indexing="ij")
    weights = np.prod(np.meshgrid(*[w / w.sum()] * distinct.size, indexing="ij"), axis=0)
    x = np.tensordot(np.linalg.cholesky(C[np.ix_(distinct, distinct)]), np.stack(axes), axes=1)
    return float((weights * f(*x[place])).sum())


SMOOTH = {
    "erf": (lambda x: erf(x / np.sqrt(2)), lambda x: np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2), (24, 34)),
    "erf_plain": (erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2)), (60, 80)),
    "he3": (lambda x: x**3 - 3 * x, lambda x: 3 * x**2 - 3, (7, 7)),
}


def by_grids(name, problem, stats, some):
    """Sum E[G lambda*], E[G lambda], and E[G G] for `some` pairs, from integrals over three and four fields."""
    s, slope, (few, many) = SMOOTH[name]
    C, c, p = fields(problem, stats), coefficients(problem, stats), problem.network.width
    n, first = len(C), 2 * problem.loss.weight * np.asarray(stats.a) / p
    noise = float(problem.target.noise)
    three = lambda j, y, m: grid_mean(lambda a, b, d: slope(a) * b * s(d), C, [j, y, m], few)
    cross = np.array([[sum(c[m] * three(j, y, m) for m in range(n)) for y in range(n)] for j in range(p)])

    def four(j, l):
        total = noise * grid_mean(lambda a, b: slope(a) * slope(b), C, [j, l], many)
        for m, q in itertools.combinations_with_replacement(range(n), 2):
            value = grid_mean(lambda a, b, d, e: slope(a) * slope(b) * s(d) * s(e), C, [j, l, m, q], many)
            total += c[m] * c[q] * value * (1 if m == q else 2)
        return first[j] * first[l] * total

    return first[:, None] * cross, np.array([four(j, l) for j, l in some])


@pytest.mark.parametrize(("name", "p", "k"), [("erf", 3, 2), ("he3", 6, 3), ("erf_plain", 1, 1)])
def test_closed_moments_agree_with_grids(name, p, k):
    problem = sl.presets.committee(p, k, name, lr=0.7, noise=0.2)
    stats = state(p, k, seed=p + k, size=0.7)
    got = moments(problem, stats)
    some = [(0, 0), (0, p - 1)]
    cross, squares = by_grids(name, problem, stats, some)
    np.testing.assert_allclose(np.hstack([got.gradient_field, got.gradient_fixed]), cross, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose([got.gradient_gradient[pair] for pair in some], squares, rtol=1e-9, atol=1e-9)


# --- Quadrants, for relu: smooth inside, in polar coordinates, with the other signs by the normal distribution function. -----


def positive_mean(f, C, m, n, signs):
    """Compute E[f(x_m, x_n); x_m > 0, x_n > 0, x_i > 0 for i in signs]."""
    nodes, weights = leggauss(48)
    if m == n:
        inside, scale = np.array([[1.0]]), np.sqrt(C[m, m])
        r = (nodes + 1) * 5
        x, density = scale * r[:, None], weights * 5 * np.exp(-(r**2) / 2) / np.sqrt(2 * np.pi)
        which = [m]
    else:
        which = [m, n]
        inside = np.linalg.cholesky(C[np.ix_(which, which)])
        low, high = np.arctan2(-inside[1, 0], inside[1, 1]), np.pi / 2
        r, angle = np.meshgrid((nodes + 1) * 5, (low + high) / 2 + nodes * (high - low) / 2, indexing="ij")
        density = np.outer(weights * 5, weights * (high - low) / 2) * np.exp(-(r**2) / 2) * r / (2 * np.pi)
        x = (np.stack([np.cos(angle), np.sin(angle)], -1) * r[..., None]) @ inside.T
    value = f(x[..., 0], x[..., -1]) * density
    if signs:
        gain = C[np.ix_(signs, which)] @ np.linalg.inv(C[np.ix_(which, which)])
        rest = C[np.ix_(signs, signs)] - gain @ C[np.ix_(which, signs)]
        deviation = np.sqrt(np.diag(rest))
        height = (x @ gain.T) / deviation
        correlation = rest / np.outer(deviation, deviation)
        value = value * (norm.cdf(height[..., 0]) if len(signs) == 1 else multivariate_normal.cdf(height, cov=correlation))
    return float(value.sum())


def relu_by_quadrants(problem, stats, some):
    C, c, p = fields(problem, stats), coefficients(problem, stats), problem.network.width
    n, first = len(C), 2 * problem.loss.weight * np.asarray(stats.a) / p
    noise = float(problem.target.noise)

    def three(j, y, m):
        which = [j] if m == j else [j, m]
        gain = C[y, which] @ np.linalg.inv(C[np.ix_(which, which)])
        return positive_mean(lambda a, b: (gain[0] * a + (gain[-1] * b if m != j else 0)) * b, C, j, m, [])

    cross = np.array([[sum(c[m] * three(j, y, m) for m in range(n)) for y in range(n)] for j in range(p)])

    def four(j, l):
        total = noise * positive_mean(lambda a, b: 1.0, C, j, l, [])
        for m, q in itertools.combinations_with_replacement(range(n), 2):
            signs = sorted({j, l} - {m, q})
            total += c[m] * c[q] * positive_mean(lambda a, b: a * b, C, m, q, signs) * (1 if m == q else 2)
        return first[j] * first[l] * total

    return first[:, None] * cross, np.array([four(j, l) for j, l in some])


def test_relu_moments_agree_with_quadrants():
    problem, stats = sl.presets.committee(6, 3, "relu", lr=0.7, noise=0.2), state(6, 3, seed=4)
    got = moments(problem, stats)
    some = [(0, 0), (1, 4)]
    cross, squares = relu_by_quadrants(problem, stats, some)
    np.testing.assert_allclose(np.hstack([got.gradient_field, got.gradient_fixed]), cross, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose([got.gradient_gradient[pair] for pair in some], squares, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loadings", [(0.9, -0.5, 0.7, 0.3), (0.9999, 0.999, 0.4, -0.9995), (0.999, 0.9995, 0.998, 0.9999)])
def test_signs_and_absolute_values_of_four_fields_agree_with_one_factor(loadings):
    """Fields that share one factor are independent given it: one integral, at strong correlations too."""
    a = np.array(loadings)
    rest = np.sqrt(1 - a**2)
    wide = np.concatenate([-np.geomspace(1e-6, 9, 4000)[::-1], np.geomspace(1e-6, 9, 4000)])
    nodes, weights = leggauss(8)
    z = ((wide[1:] + wide[:-1])[:, None] + np.diff(wide)[:, None] * nodes).ravel() / 2
    density = np.repeat(np.diff(wide) / 2, 8) * np.tile(weights, wide.size - 1) * norm.pdf(z)
    height = a[:, None] * z / rest[:, None]
    sign = erf(height / np.sqrt(2))
    absolute = rest[:, None] * (2 * norm.pdf(height) + height * sign)
    got = np.asarray(of_four((np.outer(a, a) + np.diag(rest**2))[:, :, None]))[:, 0]
    for value, j, l in zip(got, *np.triu_indices(4, 1), strict=True):
        m, n = sorted({0, 1, 2, 3} - {int(j), int(l)})
        np.testing.assert_allclose(value, density @ (sign[j] * sign[l] * absolute[m] * absolute[n]), atol=2e-6)


@pytest.mark.parametrize("name", ["relu", "erf", pytest.param("tanh", marks=pytest.mark.full)])
def test_moments_of_twenty_units_agree_with_samples(name):
    """The squares of gradients of 20 units over 4 x 10^5 samples, within 5 standard errors (false alarms: 2e-4)."""
    s, slope = {
        "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
        "erf": SMOOTH["erf"][:2],
        "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    }[name]
    problem, stats = sl.presets.committee(20, 4, name, noise=0.1), state(20, 4, seed=1, size=1.2)
    got = moments(problem, stats).gradient_gradient
    rng = np.random.default_rng(3)
    sums, squares, rounds, count = 0.0, 0.0, 20, 20_000
    values, vectors = np.linalg.eigh(fields(problem, stats))
    for _ in range(rounds):
        x = (vectors * np.sqrt(values.clip(0))) @ rng.normal(size=(24, count))
        residual = coefficients(problem, stats) @ s(x) + np.sqrt(0.1) * rng.normal(size=count)
        G = np.asarray(stats.a)[:, None] / 20 * slope(x[:20]) * residual
        sums, squares = sums + G @ G.T, squares + (G**2) @ (G**2).T
    mean = sums / (rounds * count)
    error = np.sqrt((squares / (rounds * count) - mean**2) / (rounds * count))
    assert (np.abs(mean - got) < 5 * error).all()


# --- One step of SGD in R^d, for functions of which nothing is known. --------------------------------------------------------


@pytest.mark.parametrize(("student", "teacher"), [("tanh", "relu_like"), ("bump", "tanh"), ("leaky", "abs")])
def test_drift_agrees_with_one_step_in_high_dimension(student, teacher):
    """Mean of d times the change of the statistics over one step, numpy in R^d, within 5 sigma."""
    functions = {
        "tanh": (jnp.tanh, np.tanh, lambda x: 1 - np.tanh(x) ** 2),
        "bump": (bump, lambda x: x * np.exp(-(x**2) / 4) + 0.3 * np.cos(x), None),
        "relu_like": (softplus, lambda x: np.log1p(np.exp(x)), None),
        "leaky": (sl.PiecewiseLinear(0.2), lambda x: np.where(x > 0, x, 0.2 * x), lambda x: np.where(x > 0, 1, 0.2)),
        "abs": (jnp.abs, np.abs, None),
    }
    s, s_numpy, slope = functions[student]
    slope = slope or (lambda x: (1 - x**2 / 2) * np.exp(-(x**2) / 4) - 0.3 * np.sin(x))
    g, g_numpy, _ = functions[teacher]
    p, k, d, lr, samples = 3, 2, 800, 0.6, 24_000
    problem = sl.presets.committee(p, k, s, lr=lr, noise=0.1, train_second=0.5, teacher_activation=g)
    assert isinstance(problem.expectation, FieldIntegrals)
    stats = state(p, k, seed=7)
    rng = np.random.default_rng(8)
    W, a = np.zeros((p, d)), np.asarray(stats.a)
    W[:, :k] = stats.M
    W[:, k : k + p] = np.linalg.cholesky(stats.Q - stats.M @ stats.M.T)
    x = rng.normal(size=(samples, d))
    fields, fixed = x @ W.T, x[:, :k]
    error = (a * s_numpy(fields)).mean(1) - g_numpy(fixed).mean(1) - np.sqrt(0.1) * rng.normal(size=samples)
    G = error[:, None] * a / p * slope(fields)
    length = (x**2).sum(1) / d
    change = {
        "a": -0.5 * lr * error[:, None] * s_numpy(fields) / p,
        "M": -lr * G[:, :, None] * fixed[:, None],
        "Q": -lr * (G[:, :, None] * fields[:, None] + G[:, None] * fields[:, :, None])
        + lr**2 * length[:, None, None] * G[:, :, None] * G[:, None],
    }
    drift = eqx.filter_jit(lambda problem, stats: problem.drift(stats))(problem, stats)
    for name, sample in change.items():
        sigma = sample.std(0) / np.sqrt(samples)
        assert (np.abs(sample.mean(0) - getattr(drift, name)) < 5 * sigma + 5 / d * np.abs(sample).mean(0)).all(), name


# --- The rest. ----------------------------------------------------------------------------------------------------------------


def test_other_teachers_and_quadrature_agree_with_a_grid_over_all_fields():
    """tanh learns He_3: integrals over pairs and fours against the product rule over all fields and the label noise."""
    make = lambda rule: sl.presets.committee(1, 1, "tanh", noise=0.2, teacher_activation="he3", expectation=rule)
    stats = state(1, 1, seed=3, size=0.7)
    value, error = make(FieldIntegrals(order=48)).moments(stats)
    for got, expected, spread in zip(value, moments(make(sl.GaussHermite(72)), stats), error, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert (np.abs(got - expected) <= spread + 1e-9).all()


@pytest.mark.full
def test_quadrature_reaches_the_closed_form_of_erf():
    stats = state(2, 2, seed=1)
    closed = sl.presets.committee(2, 2, "erf", noise=0.1)
    unknown = FunctionActivation(lambda x: jax.scipy.special.erf(x / np.sqrt(2)))
    assert unknown.smooth
    numerical = sl.presets.committee(2, 2, unknown, noise=0.1, expectation=FieldIntegrals(order=40))
    assert numerical.expectation.accuracy(numerical.model)
    value, error = numerical.moments(stats)
    expected = moments(closed, stats)
    for got, sure, spread in zip(value, expected, error, strict=True):
        np.testing.assert_allclose(got, sure, rtol=1e-9, atol=1e-9)
        assert (np.abs(got - sure) <= spread + 1e-12).all()


def test_covariance_of_erf_increments_agrees_with_samples():
    problem = sl.presets.committee(1, 1, "erf", lr=0.5, noise=0.1)
    stats = state(1, 1, seed=2)
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(fields(problem, stats))
    x, y = root @ rng.normal(size=(2, 400_000))
    a, s = float(stats.a[0]), SMOOTH["erf"][0]
    G = (a * s(x) - s(y) - np.sqrt(0.1) * rng.normal(size=x.size)) * a * SMOOTH["erf"][1](x)
    sample = np.cov(np.stack([-0.5 * G * y, -2 * 0.5 * G * x + 0.25 * G**2]))
    np.testing.assert_allclose(covariance(problem, stats), sample, rtol=0.02, atol=0.02 * np.abs(sample).max())


@pytest.mark.parametrize("name", ["erf", "relu", "he3"])
def test_perfect_recovery_is_a_fixed_point_with_finite_slopes(name):
    problem = sl.presets.committee(2, 2, name, lr=0.5)
    stats = sl.Overlaps(jnp.ones(2), jnp.eye(2), jnp.eye(2))
    risk, drift, slopes = jax.jit(lambda s: (problem.risk(s), problem.drift(s), jax.jacfwd(problem.drift)(s)))(stats)
    assert abs(risk) < 1e-14
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(drift)) < 1e-12
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_jacobian_of_relu_agrees_with_differences():
    problem, stats = sl.presets.committee(2, 1, "relu", lr=0.5, noise=0.1), state(2, 1, seed=5)
    along = sl.Overlaps([0.3, -0.2], [[0.1], [0.4]], [[0.2, 0.1], [0.1, -0.3]])
    moved = jax.jit(lambda h: problem.drift(jax.tree.map(lambda x, v: x + h * v, stats, along)))
    slope = jax.jit(jax.jacfwd(moved))(0.0)
    for leaf, plus, minus in zip(*map(jax.tree.leaves, (slope, moved(1e-5), moved(-1e-5))), strict=True):
        np.testing.assert_allclose(leaf, (plus - minus) / 2e-5, rtol=1e-6, atol=1e-8)


def test_kinks_are_noticed_and_named_functions_recognised():
    rule = lambda s: sl.presets.committee(2, 1, s).expectation
    assert isinstance(rule(bump), FieldIntegrals)
    assert isinstance(rule(jnp.abs), FieldIntegrals)
    assert not isinstance(rule(lambda x: jnp.clip(x, -1, 1)), FieldIntegrals)
    assert isinstance(rule(jnp.square), sl.ClosedForm)


@pytest.mark.full
def test_an_expectation_that_does_not_converge_says_so():
    kinked = sl.presets.committee(1, 1, lambda x: jnp.clip(x, -1, 1), lr=0.2)
    start = sl.FixedInit(0.2).one(kinked)
    with pytest.warns(
        sl.AccuracyWarning, match=r"error of about .*e-0\d, above the requested 1.0e-09. Give the problem expectation=Sobol"
    ):
        kinked.moments(start, tolerance=1e-9)
    tanh = sl.presets.committee(1, 1, "tanh", lr=0.2)
    with pytest.warns(sl.AccuracyWarning, match=r"expectation=FieldIntegrals\(order=48\)"):
        sl.simulate(tanh, sl.ODE(rtol=1e-12), start, t_max=0.1, save=2, progress=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.presets.committee(2, 1, "gelu"), "unknown activation 'gelu'. Give one of erf"),
        (lambda: sl.presets.committee(2, 1, 3.0), "must be a name or a function"),
        (lambda: sl.presets.committee(2, 1, batch=0), "batch must be"),
        (lambda: sl.Polynomial([0.0, 0.0]), "finite coefficients"),
        (lambda: FieldIntegrals(order=1), "order must be"),
        (
            lambda: sl.presets.committee(1, 1, lambda x: jnp.clip(x, -1, 1), expectation=FieldIntegrals()),
            "FieldIntegrals needs",
        ),
    ],
)
def test_bad_input_is_answered_in_a_sentence(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()
