"""Diffusive limits near fixed points: the published ones, and the chain's own fluctuations.

Variances are averaged over runs and late times. Their standard errors are below 1 %, so that each bound of 3 % fails by
chance with less than 3e-3; seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.kernel.base import StepTime
from sgdlimits.level.local import compute_transition

INF = float("inf")


def ring(radius, angle):
    return radius * np.array([np.cos(angle), np.sin(angle)])


def binary_ring(lr=1.0):
    """The binary mixture without noise inside the clusters, and a point of its ring."""
    a = ring(np.sqrt(np.log(4)), 0.6)
    return sl.presets.binary_mixture(snr=INF, ridge=0.1, lr=lr), sl.Overlaps(a, a[:, None], np.outer(a, a))


def block(limit, matrix, names):
    which = [limit.names.index(name) for name in names]
    return matrix[np.ix_(which, which)]


def published_drift(a, alpha, weight):
    """Propositions 4.3 and 5.1 with minus for the second term, in the order m, v; `weight` is 2 and 4."""
    n, pull = len(a), (alpha - weight * alpha**2) * np.outer(a, a)
    return np.kron(np.ones((2, 2)), -pull) + alpha * np.kron(np.array([[-1, 1], [1, -1]]), np.eye(n))


# --- the published limits -----------------------------------------------------------------------------------------------


def test_ring_of_the_binary_mixture_has_the_published_limit():
    lr, alpha = 0.7, 0.1
    problem, point = binary_ring(lr)
    limit, a = sl.local_limit(problem, point), np.asarray(point.a)
    names = ("M[0,0]", "M[1,0]", "a[0]", "a[1]")
    np.testing.assert_allclose(block(limit, limit.drift_matrix, names) / lr, published_drift(a, alpha, 2), atol=1e-14)
    noise = alpha**2 * np.kron(np.ones((2, 2)), np.outer(a, a))
    np.testing.assert_allclose(block(limit, limit.noise_matrix, names) / lr**2, noise, atol=1e-14)
    assert (limit.rank, limit.stable, limit.neutral, limit.unstable) == (1, 6, 1, 0)
    assert limit.is_stationary
    tangent = np.kron([1.0, 1.0], [-a[1], a[0]])
    np.testing.assert_allclose(block(limit, limit.drift_matrix, names) @ tangent, 0, atol=1e-14)
    assert "6 stable, 1 neutral, 0 unstable; noise of rank 1, in stable directions only" in repr(limit)


def test_double_ring_of_xor_has_the_published_limit():
    alpha = 0.05
    radius = sl.theory.effective.ring_radius(alpha, weight=1 / 4)
    mu, nu = ring(radius, 0.6), -ring(radius, 0.8)
    M = np.zeros((4, 2))
    M[:2, 0], M[2:, 1] = mu, nu
    limit = sl.local_limit(sl.presets.xor_mixture(snr=INF, ridge=alpha), sl.Overlaps(np.concatenate([mu, nu]), M, M @ M.T))
    for a, names in ((mu, ("M[0,0]", "M[1,0]", "a[0]", "a[1]")), (nu, ("M[2,1]", "M[3,1]", "a[2]", "a[3]"))):
        np.testing.assert_allclose(block(limit, limit.drift_matrix, names), published_drift(a, alpha, 4), atol=1e-14)
        noise = 3 * alpha**2 * np.kron(np.ones((2, 2)), np.outer(a, a))
        np.testing.assert_allclose(block(limit, limit.noise_matrix, names), noise, atol=1e-14)
    across = block(limit, limit.noise_matrix, ("a[0]", "a[1]", "a[2]", "a[3]"))[:2, 2:]
    np.testing.assert_allclose(across, -(alpha**2) * np.outer(mu, nu), atol=1e-14)
    assert (limit.rank, limit.neutral, limit.unstable) == (2, 2, 0)


# --- the chain's fluctuations -------------------------------------------------------------------------------------------


CHAIN_BIAS = {"chain": 0.02, "local": 0.0}
"""How far finite d may take a variance from its limit, as a share of it. Beyond that five standard errors are allowed, so that
each comparison below fails by chance with probability 6e-7, whatever its seed."""


def variance(values, d):
    """d times the variance around the mean over runs and times, and its standard error from the runs."""
    each = d * ((values - values.mean()) ** 2).mean(1)
    return each.mean(), each.std() / np.sqrt(len(each))


@pytest.mark.full
def test_chain_and_local_fluctuate_across_the_ring_as_the_limit_says(say):
    r"""The coordinate across the ring in dimension 250. In the limit its rate is 2 (alpha - 2 alpha^2) C and its noise
    2 alpha^2 C, so that its variance is alpha/(2 (1 - 2 alpha)) = 1/16. Along the ring there is no noise.
    """
    problem, point = binary_ring()
    limit, d = sl.local_limit(problem, point), 250
    across = np.concatenate([point.a, point.a]) / np.sqrt(2 * np.log(4))
    expected = across @ block(limit, limit.stationary, ("M[0,0]", "M[1,0]", "a[0]", "a[1]")) @ across
    assert abs(expected - 1 / 16) < 1e-12
    for level in (sl.Chain(d), sl.Local(point, d=d)):
        how = dict(t_max=90.0, runs=1200, seed=1, save=np.linspace(10, 90, 33), progress=False)
        data = sl.simulate(problem, level, point, **how)
        values = np.concatenate([data.M.values[..., 0], data.a.values], axis=-1) @ across
        measured, error = variance(values, d)
        say(f"{level.name}: variance across the ring {measured:.5f} ± {error:.5f}, Lyapunov {expected:.5f}")
        assert abs(measured / expected - 1) < CHAIN_BIAS[level.name] + 5 * error / expected
        along = np.concatenate([data.M.values[..., 0], data.a.values], axis=-1) @ np.array([-across[1], across[0]] * 2)
        assert d * along.var() < 0.03 * expected


def spike():
    """Matrix PCA above its threshold, and the stable point m^2 = snr - 1, r2 = 1 at lr = 1."""
    return sl.presets.spiked_tensor(order=2, snr=2.0), sl.Spike(m=1.0, r2=1.0)


@pytest.mark.full
def test_chain_and_local_fluctuate_around_a_stable_point_as_the_limit_says(say):
    """Both statistics of matrix PCA, and their covariance."""
    problem, point = spike()
    limit, d = sl.local_limit(problem, point), 1000
    assert (limit.stable, limit.rank, limit.is_stationary) == (2, 2, True)
    for level in (sl.Chain(d), sl.Local(point, d=d)):
        data = sl.simulate(problem, level, point, t_max=12.0, runs=2000, seed=2, save=np.linspace(2, 12, 21), progress=False)
        mixed = [data.m.values, data.r2.values, data.m.values + data.r2.values]
        measured, errors = np.transpose([variance(values, d) for values in mixed])
        C = limit.stationary
        expected = np.array([C[0, 0], C[1, 1], C.sum()])
        say(f"{level.name}: ratios to Lyapunov {(measured / expected).round(4)} ± {(errors / expected).round(4)}")
        assert (np.abs(measured / expected - 1) < CHAIN_BIAS[level.name] + 5 * errors / expected).all()


@pytest.mark.full
@pytest.mark.parametrize("level", [sl.Chain(50), sl.SGD(50)], ids=["chain", "sgd"])
def test_exactly_parallel_units_stay_parallel(level):
    """Second layers and overlaps move by the same factor, to rounding: the set is invariant, which says nothing of its
    stability."""
    problem, ratio = sl.presets.binary_mixture(snr=4.0, ridge=0.1), np.array([0.6, 0.8])
    weights = np.outer(ratio, [1.2, 0.5])  # along the mean and across it
    start = sl.Overlaps(a=1.1 * ratio, M=weights[:, :1], Q=weights @ weights.T)
    end = sl.simulate(problem, level, start, t_max=40, runs=4, save=2, progress=False).isel(t=-1)
    assert end.a.values.std(0).min() > 1e-3
    np.testing.assert_allclose(end.a[:, 1] / end.a[:, 0], 4 / 3, rtol=1e-9)
    np.testing.assert_allclose(end.M[:, 1, 0] / end.M[:, 0, 0], 4 / 3, rtol=1e-9)


def mixture_sgd(rng, v, W, steps, snr, ridge):
    """Plain NumPy SGD at lr 1 of two relu units on the binary mixture, with a run in each row."""
    runs, _, d = W.shape
    for _ in range(steps):
        y, x = rng.integers(0, 2, runs), rng.standard_normal((runs, d)) / np.sqrt(snr)
        x[:, 0] += 2 * y - 1
        field = np.einsum("rid,rd->ri", W, x)
        g = (y - 1 / (1 + np.exp(-(v * np.maximum(field, 0)).sum(1))))[:, None]
        push = (g * v * (field > 0))[:, :, None] * x[:, None, :]
        v, W = v + (g * np.maximum(field, 0) - ridge * v) / d, W + (push - ridge * W) / d
    return v, W


def angle_between(W):
    unit = W / np.linalg.norm(W, axis=2, keepdims=True)
    return 2 * np.arcsin(np.linalg.norm(unit[:, 0] - unit[:, 1], axis=1) / 2)


def test_units_on_a_ring_settle_at_an_angle_from_both_sides(say):
    r"""Weights in R^300 at snr 2 and ridge 0.1, from an angle far below and far above
    :math:`(v/|W|)^2 e^{-snr \cos^2\varphi/2}/(8\pi\,ridge\,snr)`.

    Twelve runs, averaged over five times, have a standard error of about 4 %; 20 % leave room for d = 300 and for the next
    order in the angle.
    """
    rng, d, runs, ridge, snr = np.random.default_rng(0), 300, 12, 0.1, 2.0
    v0 = np.sqrt(np.log((0.5 - ridge) / ridge)) * np.array([0.6, 0.8])
    for angle in (0.01, 0.3):
        v, W = np.tile(v0, (runs, 1)), np.zeros((runs, 2, d))
        W[:, :, 0], W[:, :, 1] = v0 * np.cos(angle * np.array([0.64, 0.36])), v0 * np.sin(angle * np.array([0.64, -0.36]))
        v, W = mixture_sgd(rng, v, W, 40 * d, snr, ridge)
        seen, expected = [], []
        for _ in range(5):
            v, W = mixture_sgd(rng, v, W, 4 * d, snr, ridge)
            mean = np.einsum("ri,rid->rd", v, W)
            cos, ratio = mean[:, 0] / np.linalg.norm(mean, axis=1), v**2 / (W**2).sum(2)
            seen.append(angle_between(W).mean())
            expected.append((ratio.mean(1) * np.exp(-snr * cos**2 / 2) / (8 * np.pi * ridge * snr)).mean())
        say(f"from {angle}: the angle settles at {np.mean(seen):.4f}, the formula has {np.mean(expected):.4f}")
        assert abs(np.mean(seen) / np.mean(expected) - 1) < 0.2


def test_large_angle_between_units_on_a_ring_fades_at_the_rate_of_the_ridge(say):
    """Weights in R^40 at snr 20, where the angle at which it would settle is 1e-6: the median of 24 runs falls as
    exp(-ridge t), within 10 %."""
    rng, d, runs, ridge = np.random.default_rng(0), 40, 24, 0.1
    ring = np.sqrt(np.log((0.5 - ridge) / ridge)) * np.array([0.6, 0.8])
    v, W = np.tile(ring, (runs, 1)), 0.2 * rng.standard_normal((runs, 2, d)) / np.sqrt(d)
    W[:, :, 0] += ring
    angles = []
    for _ in range(2):
        v, W = mixture_sgd(rng, v, W, 20 * d, 20.0, ridge)
        angles.append(np.median(angle_between(W)))
    rate = np.log(angles[0] / angles[1]) / 20
    say(f"the angle fades at the rate {rate:.4f}, the ridge is {ridge}")
    assert abs(rate / ridge - 1) < 0.1
    assert (v > 0).all()


# --- linear algebra -----------------------------------------------------------------------------------------------------


def test_transition_solves_the_moment_equations():
    """Against many small Euler steps of the covariance, with a neutral and an unstable direction and degenerate noise."""
    rng = np.random.default_rng(0)
    J, root = rng.normal(size=(4, 4)), rng.normal(size=(4, 2))
    J[:, 3] = 0
    Sigma, h, steps = root @ root.T, 1.3, 20000
    factor, kick = compute_transition(J, Sigma, h)
    F, C = np.eye(4), np.zeros((4, 4))
    A = np.eye(4) + h / steps * J + (h / steps) ** 2 / 2 * J @ J
    for _ in range(steps):
        F, C = A @ F, A @ (C + h / steps / 2 * Sigma) @ A.T + h / steps / 2 * Sigma
    np.testing.assert_allclose(factor, F, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(kick @ kick.T, C, rtol=1e-5, atol=1e-5)


def test_stationary_covariance_is_that_of_long_times_on_the_stable_part():
    """A defective unstable block beside a stable one, mixed by a random basis: the stable part forgets its start."""
    from sgdlimits.analysis.local_limit import stable_covariance

    rng = np.random.default_rng(1)
    V = rng.normal(size=(4, 4))
    J = V @ np.array([[-1.0, 2, 0, 0], [-2, -1, 0, 0], [0, 0, 0.3, 1], [0, 0, 0, 0.3]]) @ np.linalg.inv(V)
    root = rng.normal(size=(4, 3))
    C, quiet = stable_covariance(J, root @ root.T, 1e-9)
    project = V @ np.diag([1.0, 1, 0, 0]) @ np.linalg.inv(V)
    _, kick = compute_transition(project @ J, project @ root @ root.T @ project.T, 40.0)
    np.testing.assert_allclose(C, kick @ kick.T, atol=1e-9)
    assert not quiet


# --- the level ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_local_runs_do_not_depend_on_the_batch_and_stop_where_asked():
    """About 57 % of runs stop, so that all or none of 40 do with probability 2e-10."""
    problem, point = spike()
    how = dict(t_max=3.0, runs=40, seed=4, save=4, progress=False)
    whole, parts = (sl.simulate(problem, sl.Local(point), sl.RandomInit(200), batch=batch, **how) for batch in (40, 20))
    assert whole.attrs["d"] == 200
    np.testing.assert_allclose(whole.m, parts.m, rtol=1e-12)
    stopped = sl.simulate(problem, sl.Local(point, d=200), point, until=lambda one: one.m - 1.2, **how)
    ended = stopped.status == "stopped"
    assert 0 < ended.sum() < 40
    assert (stopped.m.isel(t=-1).where(ended, 2) >= 1.2).all()
    assert (stopped.m.isel(t=-1).where(~ended, 0) < 1.2).all()


def test_what_the_algorithm_holds_stays_at_the_point():
    problem, saddle = sl.presets.phase_retrieval(lr=0.1, noise=0.5), sl.Overlaps([1.0], [[0.0]], [[1.0]])
    engine = sl.Local(saddle, d=100).make_engine(problem, sl.FixedInit(0.0), saddle)
    process = engine._process(np.array([0.01]), 1)
    stats = process.statistics(process.step(np.zeros((1, 3)), np.arange(3.0)[None], StepTime(0.0, 0.01)))
    np.testing.assert_array_equal(stats.Q, np.ones((3, 1, 1)))
    np.testing.assert_array_equal(stats.a, np.ones((3, 1)))
    assert len(np.unique(stats.M)) == 3


def test_bad_points_are_answered_with_the_remedy():
    problem, point = spike()
    with pytest.raises(sl.BadInput, match="Give a point that fixed_points returns"):
        sl.local_limit(problem, sl.Spike(m=1.0, r2=1.1))
    with pytest.raises(sl.BadInput, match=r"Give Local\(point, d=...\)"):
        sl.simulate(problem, sl.Local(point), point, t_max=1.0)
    with pytest.raises(sl.BadInput, match="dt must be"):
        sl.Local(point, dt=-1.0)
