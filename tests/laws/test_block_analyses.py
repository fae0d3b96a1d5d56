"""Analyses of inputs with variances by block or class: Hessians, fixed points and the expansion in 1/d, by other routes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import sgdlimits as sl

SHARES, V = (0.4, 0.6), np.array([[2.0, 0.5], [0.3, 1.5]])
D, SIZES = 10, (4, 6)
NOISE = 0.3


def inputs(kind):
    zeros, weights = np.zeros((2, 1)), [0.4, 0.6]
    if kind == "blocks":
        return sl.inputs.gaussian(sl.Spectrum(V[0], SHARES))
    return sl.mixture(zeros, weights, V, SHARES) if kind == "blocks by class" else sl.mixture(zeros, weights, V[:, 0])


def problem(data, unit="erf", width=2, **sgd):
    return sl.ProjectionProblem(
        data=data,
        target=sl.Target(sl.CommitteeReadout(unit), noise=NOISE),
        network=sl.TwoLayer(width, unit),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(**{"lr": 0.1, "ridge": 0.2, **sgd}),
    )


def autodiff_spectrum(own, a, u, e, sizes):
    """Eigenvalues of the Hessian of the risk in the weights themselves, on the sphere in the tangent space."""

    def stats(u):
        parts = jnp.split(u, np.cumsum(sizes)[:-1], axis=1), np.split(e, np.cumsum(sizes)[:-1])
        M, Q = jnp.stack([U @ E for U, E in zip(*parts, strict=True)])[..., None], jnp.stack([U @ U.T for U in parts[0]])
        return sl.Overlaps(a, M, Q) if len(sizes) > 1 else sl.Overlaps(a, M[0], Q[0])

    risk = lambda u: own.risk(stats(u)) + own.algorithm.ridge / 2 * (u**2).sum()
    H = np.asarray(jax.hessian(risk)(jnp.asarray(u))).reshape(u.size, u.size)
    if own.algorithm.sphere:
        pull = (u * np.asarray(jax.grad(risk)(jnp.asarray(u)))).sum(1)
        tangent = scipy.linalg.block_diag(*(np.linalg.svd(unit[None])[2][1:].T for unit in u))
        H = tangent.T @ (H - np.kron(np.diag(pull), np.eye(u.shape[1]))) @ tangent
    return np.linalg.eigvalsh(H), jax.tree.map(np.asarray, stats(u))


@pytest.mark.parametrize(
    ("kind", "unit", "sphere"),
    [
        ("blocks by class", "erf", False),
        pytest.param("blocks", "square", False, marks=pytest.mark.full),
        pytest.param("blocks", "erf", True, marks=pytest.mark.full),
        pytest.param("blocks by class", "tanh", False, marks=pytest.mark.full),
        pytest.param("one block by class", "erf", False, marks=pytest.mark.full),
    ],
)
def test_hessian_spectrum_is_that_of_the_risk_in_r_d(kind, unit, sphere):
    rng, sizes = np.random.default_rng(0), SIZES if kind.startswith("blocks") else (D,)
    own = problem(inputs(kind), unit, sphere=sphere)
    shares = SHARES if len(sizes) > 1 else (1.0,)
    parts = [(share, rng.normal(size=size)) for share, size in zip(shares, sizes, strict=True)]
    e = np.concatenate([np.sqrt(share) * x / np.linalg.norm(x) for share, x in parts])
    u = rng.normal(size=(2, D)) / np.sqrt(D)
    u = u / np.linalg.norm(u, axis=1, keepdims=True) if sphere else u
    expected, stats = autodiff_spectrum(own, np.array([1.0, 0.7]), u, e, sizes)
    found = sl.hessian_spectrum(own, stats, D)
    np.testing.assert_allclose(np.repeat(found.eigenvalues, found.multiplicities), expected, atol=1e-7)


def test_outside_eigenvalues_have_the_multiplicities_of_the_blocks():
    """One unit at teacher and noise only: outside the two directions a block of variance v has v E[l''] d_b - 2 times."""
    own = problem(sl.inputs.gaussian(sl.Spectrum([2.0, 0.5], [0.5, 0.5])), "linear", 1, ridge=0.0)
    found = sl.hessian_spectrum(own, sl.Overlaps([1.0], [[[0.1]], [[0.2]]], [[[0.5]], [[0.5]]]), 10**6)
    assert found.eigenvalues.round(12).tolist() == [0.5, 2.0]
    assert found.multiplicities.tolist() == [500_000, 500_000]


def test_fixed_point_of_a_linear_unit_is_the_exact_one():
    """M_b = P_b and Q_b - P_b = lr s_b R/2, where the variance R of the error solves R = noise + lr R sum_b s_b v_b / 2."""
    v, s, lr = np.array([2.0, 0.5, 1.0]), np.array([0.2, 0.5, 0.3]), 0.4
    own = problem(sl.inputs.gaussian(sl.Spectrum(v, s)), "linear", 1, lr=lr, ridge=0.0)
    found = sl.fixed_points(own, count=16, progress=False)
    R = NOISE / (1 - lr / 2 * (s * v).sum())
    assert len(found) == 1
    assert found[0].stability == "stable"
    np.testing.assert_allclose(found[0].point.M.ravel(), s, rtol=1e-8)
    np.testing.assert_allclose(found[0].point.Q.ravel(), s + lr / 2 * s * R, rtol=1e-8)


@pytest.mark.full
def test_silent_block_is_a_manifold_of_fixed_points():
    """In a block of variance 0, the overlaps M and Q do not move."""
    own = problem(sl.inputs.gaussian(sl.Spectrum([2.0, 0.0, 1.0], [0.2, 0.5, 0.3])), "linear", 1, ridge=0.0)
    found = sl.fixed_points(own, count=16, progress=False)
    assert [(each.dimension, each.stability) for each in found] == [(2, "neutral")]


@pytest.mark.full
def test_stable_fixed_point_is_where_the_ode_rests():
    own = problem(inputs("blocks"), "erf", 1, lr=0.5, ridge=0.2)
    found = sl.fixed_points(own, count=16, progress=False)
    theory = sl.simulate(own, sl.ODE(), sl.RandomInit(1000), t_max=200, runs=3, save=2, progress=False)
    rest = theory.Q.values[:, -1].reshape(3, -1)
    near = min(np.abs(rest - np.asarray(stable.point.Q).ravel()).max() for stable in found.stable)
    assert near < 1e-5


@pytest.mark.full
@pytest.mark.parametrize(("kind", "batch"), [("blocks", 1), ("blocks by class", 3)])
def test_expansion_has_the_mean_and_covariance_of_the_chain(kind, batch):
    """At d = 40 and for 40,000 runs, within five standard errors and a fifth of the correction, for higher orders."""
    own, d, runs = problem(inputs(kind), "erf", 1, lr=2.0, batch=batch, ridge=0.1), 40, 40_000
    start = sl.Overlaps([1.0], [[[0.1]], [[0.3]]], [[[0.6]], [[0.6]]])
    path = sl.expansion(own, start, t_max=3, save=2)
    chain = sl.simulate(own, sl.Chain(d), start, t_max=3, runs=runs, save=2, progress=False)
    x = np.concatenate([chain[name].values[:, -1].reshape(runs, -1) for name in ("M", "Q")], axis=1)
    error = d * x.std(0) / np.sqrt(runs)
    first, measured = path["first"].values[-1], d * (x.mean(0) - path.ode.values[-1])
    assert (np.abs(measured - first) < 5 * error + 0.2 * np.abs(first).max()).all()
    risk = chain.risk.values[:, -1]
    gap, error = d * (risk.mean() - path.risk.values[-1]), d * risk.std() / np.sqrt(runs)
    assert abs(gap - path.risk_first.values[-1]) < 5 * error + 0.2 * abs(gap)
    assert abs(gap) > 5 * error  # the test sees the correction
    C, scale = path.covariance.values[-1], d * np.sqrt(np.outer(x.var(0), x.var(0)))
    np.testing.assert_allclose(d * np.cov(x.T) / scale, C / scale, atol=0.1)  # higher orders at d = 40 are 0.07


@pytest.mark.full
def test_trust_of_equal_blocks_is_that_without_blocks():
    blocks, plain = (problem(data, "erf", 1, lr=0.8) for data in (sl.inputs.gaussian(sl.Spectrum([1.0, 1.0], SHARES)), None))
    start = sl.Overlaps([1.0], [[[0.1]], [[0.2]]], [[[0.2]], [[0.3]]])
    total = sl.Overlaps([1.0], start.M.sum(0), start.Q.sum(0))
    one, other = (sl.expansion(own, at, t_max=2, save=3) for own, at in ((blocks, start), (plain, total)))
    for name in ("risk", "risk_first", "risk_variance"):
        np.testing.assert_allclose(one[name], other[name], rtol=2e-3, atol=1e-8)
