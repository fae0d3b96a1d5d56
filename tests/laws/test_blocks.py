"""Inputs with variances by block and class: levels against weights in R^d, written out in NumPy, and against each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats as st
from scipy.special import erf

import sgdlimits as sl

RUNS, D, STEPS = 3000, 10, 16
SHARES, V, WEIGHTS = (0.4, 0.6), np.array([[1.5, 0.3], [0.4, 2.0]]), np.array([0.3, 0.7])
GRAM = np.array([[[0.6]], [[0.4]]])
M = np.array([[[0.3], [-0.2]], [[0.1], [0.2]]])
Q = np.array([[[0.5, 0.1], [0.1, 0.4]], [[0.6, 0.0], [0.0, 0.3]]])
A = np.array([1.0, -0.7])
MEANS = np.array([[0.5], [-0.5]])
FEW = sl.Sobol(6, 2)


def problem(algorithm=None, means=MEANS, variance=V, expectation=FEW, gram=GRAM, shares=SHARES, unit="tanh", **network):
    return sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("erf"), noise=0.2, gram=gram),
        network=sl.TwoLayer(2, unit, **network),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(1.5, lr_second=0.5, ridge=0.2) if algorithm is None else algorithm,
        data=sl.mixture(means, WEIGHTS, variance, shares),
        expectation=expectation,
    )


START = sl.Overlaps(A, M, Q)


def in_space(batch=1, seed=0, lr=1.5, lr_second=0.5, ridge=0.2, beta=0.0, clip=np.inf):
    """Overlaps in each block, and second layers, after SGD with weights in R^d."""
    rng, sizes = np.random.default_rng(seed), (4, 6)
    ends = np.cumsum(sizes)
    e, u = np.zeros(D), np.zeros((RUNS, 2, D))
    for b, end in enumerate(ends):
        first = end - sizes[b]
        root = np.sqrt(GRAM[b, 0, 0])
        e[first] = root
        m = M[b] / root
        u[:, :, first] = m[:, 0]
        u[:, :, first + 1 : first + 3] = np.linalg.cholesky(Q[b] - m @ m.T)
    a, velocity = np.tile(A, (RUNS, 1)), np.zeros_like(u)
    for _ in range(STEPS):
        c = (rng.random((RUNS, batch)) > WEIGHTS[0]).astype(int)
        x = MEANS[c] * e + rng.normal(size=(RUNS, batch, D)) * np.sqrt(np.repeat(V, sizes, axis=1))[c]
        fields = np.einsum("rjd,rid->rij", u, x)
        label = erf(x @ e / np.sqrt(2)) + np.sqrt(0.2) * rng.normal(size=(RUNS, batch))
        error = (a[:, None] * np.tanh(fields)).mean(2) - label
        G = error[:, :, None] * a[:, None] * (1 - np.tanh(fields) ** 2) / 2
        slope = np.einsum("rij,rid->rjd", G, x) / batch
        size = np.sqrt((slope**2).sum((1, 2)) / D)[:, None, None]
        push = -lr / D * (slope * np.minimum(1, clip / np.maximum(size, 1e-300)) + ridge * u)
        velocity = beta * velocity + push
        a = a - lr_second / D * ((error[:, :, None] * np.tanh(fields)).mean(1) / 2 + ridge * a)
        u = u + velocity
    blocks = np.split(u, ends[:-1], axis=2), np.split(e, ends[:-1])
    M_end = np.stack([U @ E for U, E in zip(*blocks, strict=True)], axis=1)[..., None]
    return a, M_end, np.stack([U @ U.swapaxes(1, 2) for U in blocks[0]], axis=1)


PLAIN = {"ridge": 0.0, "lr_second": 0.0}
CASES = {
    "one sample": (None, {}),
    "momentum, batches": (sl.HeavyBall(1.0, 0.6, batch=3), {"batch": 3, "lr": 1.0, "beta": 0.6, **PLAIN}),
    "clipped batches": (sl.Clipped(sl.OnePassSGD(2.0, batch=3), 0.15), {"batch": 3, "lr": 2.0, "clip": 0.15, **PLAIN}),
}


def assert_same_law(ours, theirs):
    """KS and the first two moments of each statistic; a false alarm at 4 standard errors has p below 1e-4."""
    for one, other in zip(ours, theirs, strict=True):
        for x, y in zip(one.reshape(RUNS, -1).T, other.reshape(RUNS, -1).T, strict=True):
            if np.ptp(x) < 1e-12 and np.ptp(y) < 1e-12:
                np.testing.assert_allclose(x[0], y[0], atol=1e-12)
                continue
            assert st.ks_2samp(x, y).pvalue > 1e-4
            for f in (lambda u: u, lambda u: (u - u.mean()) ** 2):
                gap = abs(f(x).mean() - f(y).mean()) / np.sqrt((f(x).var() + f(y).var()) / RUNS)
                assert gap < 4.0


LEVELS = [(name, sl.Chain(D)) for name in CASES] + [(name, sl.SGD(D)) for name in list(CASES)[:2]]


@pytest.mark.parametrize(("name", "level"), LEVELS, ids=lambda part: getattr(part, "name", part))
def test_levels_have_the_law_of_weights_in_r_d(name, level):
    algorithm, numpy = CASES[name]
    t = STEPS * numpy.get("batch", 1) / D
    runs = sl.simulate(problem(algorithm), level, START, t_max=t, runs=RUNS, seed=3, save=2, progress=False)
    assert runs.M.dims == ("run", "t", "block", "student", "teacher")
    ours = [runs[each].values[:, -1] for each in ("a", "M", "Q")]
    assert_same_law(ours, in_space(seed=1, **numpy))


def test_blocks_smaller_than_the_number_of_units():
    """Blocks of one and of two dimensions: T has fewer columns there, and inputs no further components."""
    shares, d, t = (0.2, 0.4, 0.4), 5, 2.0
    own = problem(gram=None, means=np.zeros((2, 1)), variance=np.array([[1.0, 0.5, 2.0], [0.3, 0.0, 1.0]]), shares=shares)
    start = sl.RandomInit(d)
    ours, theirs = (
        sl.simulate(own, level, start, t_max=t, runs=RUNS, seed=seed, save=2, progress=False)
        for seed, level in enumerate((sl.Chain(d), sl.SGD(d)))
    )
    assert_same_law(*([runs[each].values[:, -1] for each in ("M", "Q")] for runs in (ours, theirs)))


DRIFTS = {
    "means, second layer, ridge": (problem(expectation=None), START),
    "averages": (problem(sl.Averaged(sl.OnePassSGD(1.0), decay=0.5), expectation=None), START),
    "units that coincide": (
        problem(expectation=None, unit="erf", means=0 * MEANS),
        sl.Overlaps([1.0, 1.0], [[[0.2], [0.2]], [[0.0], [0.0]]], [np.full((2, 2), 0.5), np.zeros((2, 2))]),
    ),
    "relu, dropout": (problem(expectation=None, unit="relu", dropout=0.2), START),
    "one block": (problem(variance=[1.5, 0.3], gram=None, shares=None, expectation=None), sl.Overlaps(A, M[0], Q[0] + Q[1])),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_drift_is_the_mean_increment_of_the_chain(name):
    """One step of many runs of the exact chain at large d, minus the start, times d."""
    own, start = DRIFTS[name]
    d, runs = 10**7, 40_000
    chain = own.with_expectation(FEW)  # the same paths; the risk of many runs is not compared
    step = sl.simulate(chain, sl.Chain(d), start, t_max=1 / d, runs=runs, seed=2, save=[1 / d], progress=False)
    drift = own.drift(own.coordinates.in_limit(start))
    for each in ("a", "M", "Q"):
        change = d * (step[each].values[:, -1] - np.asarray(getattr(start, each)))
        error = change.std(0) / np.sqrt(runs)
        gap = np.abs(change.mean(0) - np.asarray(own_students(drift, each, start)))
        assert (gap < 4.5 * error + 1e-4).all(), (each, gap, error)


def own_students(drift, each, start):
    students = drift.of("student")
    return getattr(students, each)


def test_ode_is_the_limit_of_the_chain():
    """The gap of the mean over runs falls as 1/d; it is compared at d = 4000 with its standard error and this bias."""
    own = problem(expectation=None)
    theory = sl.simulate(own, sl.ODE(), START, t_max=2, save=2, progress=False)
    chain = sl.simulate(own, sl.Chain(20_000), START, t_max=2, runs=256, save=2, progress=False)
    for each in ("a", "M", "Q", "risk", "task_risk"):
        x = chain[each].values[:, -1]
        assert (np.abs(x.mean(0) - theory[each].values[0, -1]) < 5 * x.std(0) / 16 + 2e-3).all()


@pytest.mark.parametrize("one_block", [False, True])
def test_covariance_is_that_of_increments_of_the_chain(one_block):
    variance = [1.5, 0.3] if one_block else V
    shares, gram = (None, None) if one_block else (SHARES, GRAM)
    own = problem(sl.OnePassSGD(1.5), 0 * MEANS, variance, None, gram, shares, unit="erf")
    start = sl.Overlaps(A, M[0], Q[0] + Q[1]) if one_block else START
    d, runs = 10**7, 40_000
    chain = own.with_expectation(FEW)  # the same paths
    step = sl.simulate(chain, sl.Chain(d), start, t_max=1 / d, runs=runs, seed=2, save=[1 / d], progress=False)
    ends = sl.Overlaps(*(step[each].values[::4, -1] for each in ("a", "M", "Q")))
    vectors = np.asarray(jax.vmap(own.vector)(ends))
    change = d * (vectors - np.asarray(own.vector(start)))
    scale = np.sqrt(np.outer(change.var(0), change.var(0)))
    np.testing.assert_allclose(own.covariance(start) / scale, np.cov(change.T) / scale, atol=0.15)


@pytest.mark.full
def test_sde_has_the_moments_of_the_chain():
    own, d, runs = problem(expectation=sl.Sobol(9), unit="erf"), 400, 200
    ours, theirs = (
        sl.simulate(own, level, START, t_max=0.25, runs=runs, seed=seed, save=2, progress=False)
        for seed, level in enumerate((sl.SDE(d, dt=0.025), sl.Chain(d)))
    )
    for each in ("M", "Q"):
        x, y = (data[each].values[:, -1].reshape(runs, -1) for data in (ours, theirs))
        assert (np.abs(x.mean(0) - y.mean(0)) < 4.5 * np.sqrt((x.var(0) + y.var(0)) / runs) + 2e-3).all()
        np.testing.assert_allclose(x.std(0), y.std(0), rtol=0.3)  # the ratio has a standard error of 7%


@pytest.mark.full
def test_flow_is_differentiable_in_variances():
    """Without class means all expectations are closed; over points, derivatives are as accurate as the points are."""

    def end(hard):
        variance = jnp.array([[1.0, 0.0], [1.0, 1.0]]) * jnp.stack([1.0, hard])
        own = problem(means=np.zeros((2, 1)), variance=variance, expectation=None, unit="erf")
        return sl.flow(own, START, 1.0).M[0, 0, 0]

    slope = jax.grad(end)(2.0)
    np.testing.assert_allclose(slope, (end(2.0 + 0.01) - end(2.0 - 0.01)) / 0.02, rtol=1e-5)  # curvature: 2e-6


def test_a_spectrum_of_one_value_is_isotropic():
    assert sl.inputs.gaussian(sl.Spectrum([1.0], [1.0])) == sl.inputs.gaussian()


def test_equal_variances_give_the_drift_without_blocks():
    """Blocks of equal variance are no blocks: the sums over blocks have the drift of isotropic inputs."""
    plain = sl.presets.committee(2, 1, "erf", lr=0.7, noise=0.1)
    blocks = sl.ProjectionProblem(
        plain.target, plain.network, plain.loss, plain.algorithm, data=sl.inputs.gaussian(sl.Spectrum([1.0, 1.0], SHARES))
    )
    start = sl.RandomInit(30).one(blocks)
    total = sl.Overlaps(start.a, start.M.sum(0), start.Q.sum(0))
    one, other = plain.drift(total), blocks.drift(start)
    for ours, theirs in ((other.M.sum(0), one.M), (other.Q.sum(0), one.Q), (blocks.risk(start), plain.risk(total))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
