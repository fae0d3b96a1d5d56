"""Gradient, Hessian and spectrum of the population risk against dense matrices in R^N that are built in plain NumPy."""

from __future__ import annotations

import equinox as eqx
import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.analysis import landscape
from sgdlimits.analysis.landscape import Weights, hessian_spectrum

GRAM, NOISE, RIDGE, N = np.array([[1.3, 0.4], [0.4, 0.8]]), 0.3, 0.2, 9
FIXED = np.pad(np.linalg.cholesky(GRAM), ((0, 0), (0, N - 2)))


def student_teacher(activation, width=3, weight=0.5):
    """Units learn two teachers that are not orthonormal, with noise and a ridge penalty."""
    target = sl.Target(sl.CommitteeReadout(activation), 2, noise=NOISE, gram=GRAM)
    return sl.ProjectionProblem(target, sl.TwoLayer(width, activation), sl.SquaredLoss(weight), sl.OnePassSGD(0.3, ridge=RIDGE))


def statistics(a, U, fixed):
    return sl.Overlaps(a, U @ fixed.T, U @ U.T)


def random_weights(width=3, seed=0, dimension=N):
    random = np.random.default_rng(seed)
    return 1 + 0.5 * random.normal(size=width), 1.1 * random.normal(size=(width, dimension)) / np.sqrt(dimension)


# --- references in R^N --------------------------------------------------------------------------------------------------------


def pair_square(x, y, c):
    return x * y + 2 * c**2


def pair_he2(x, y, c):
    return (x - 1) * (y - 1) + 2 * c**2


def pair_he3(x, y, c):
    """Isserlis: E[x^3 y^3] = 9 xx c yy + 6 c^3 and E[x^3 y] = 3 xx c."""
    return 9 * x * c * y + 6 * c**3 - 9 * (x + y) * c + 9 * c


def pair_erf(x, y, c):
    return 2 / np.pi * np.arcsin(c / np.sqrt((1 + x) * (1 + y)))


PAIRS = {"square": pair_square, "he2": pair_he2, "he3": pair_he3, "erf": pair_erf}
"""E[s(x) s(y)] from the variances and the covariance; analytic, so that complex steps differentiate them."""


def dense_gradient(pair, a, U, weight=0.5):
    """By complex steps of the risk, written with all fields' covariances."""
    p, c = len(U), np.concatenate([a / len(U), -np.ones(2) / 2])
    rows = np.concatenate([U, FIXED]) + 1e-30j * np.pad(np.eye(U.size).reshape(-1, *U.shape), ((0, 0), (0, 2), (0, 0)))
    C = rows @ rows.swapaxes(1, 2)
    variances = np.diagonal(C, axis1=1, axis2=2)
    loss = np.einsum("i,eij,j->e", c, pair(variances[:, :, None], variances[:, None], C), c)
    return weight * loss.imag.reshape(p, -1) / 1e-30 + RIDGE * U


def differences(gradient, U, h=1e-5):
    """The dense Hessian by central differences of a gradient."""
    steps = h * np.eye(U.size).reshape(-1, *U.shape)
    rows = np.stack([(gradient(U + step) - gradient(U - step)).ravel() for step in steps]) / (2 * h)
    return (rows + rows.T) / 2


def on_the_sphere(H, gradient, U):
    """The eigenvalues of the Riemannian Hessian on the tangent space, from a dense Euclidean one."""
    p, d = U.shape
    basis = np.zeros((p * d, p * (d - 1)))
    for j in range(p):
        basis[j * d : (j + 1) * d, j * (d - 1) : (j + 1) * (d - 1)] = np.linalg.qr(U[j][:, None], mode="complete")[0][:, 1:]
    pull = np.kron(np.diag((U * gradient).sum(1)), np.eye(d))
    return np.linalg.eigvalsh(basis.T @ (H - pull) @ basis)


def all_of(spectrum):
    return np.repeat(*spectrum)


# --- any state ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", PAIRS)
def test_spectrum_is_that_of_the_dense_hessian(activation, say):
    """Random weights, then singular ones: parallel units, all at teachers, all zero; in R^N and on the sphere.

    The reference is exact to about 1e-10: differences of 1e-5 of exact gradients.
    """
    problem, pair = student_teacher(activation), PAIRS[activation]
    a, U = random_weights()
    singular = {"parallel": U[[0, 0, 0]] * np.array([[1.0], [-0.5], [2.0]]), "teachers": FIXED[[0, 1, 0]], "zero": 0 * U}
    worst = {}
    for name, W in {"random": U, **singular}.items():
        H = differences(lambda W: dense_gradient(pair, a, W), W)
        scale = np.abs(H).max()
        point = statistics(a, W, FIXED)
        worst[name] = np.abs(all_of(hessian_spectrum(problem, point, N)) - np.linalg.eigvalsh(H)).max() / scale
        whole = landscape.hessian(problem, Weights(W, a=a)).reshape(H.shape)
        worst[name] = max(worst[name], np.abs(whole - H).max() / scale)
        assert worst[name] < 1e-9, name
    W = U / np.linalg.norm(U, axis=1, keepdims=True)
    gradient = dense_gradient(pair, a, W)
    ours = all_of(hessian_spectrum(problem, statistics(a, W, FIXED), N, sphere=True))
    theirs = on_the_sphere(differences(lambda W: dense_gradient(pair, a, W), W), gradient, W)
    worst["sphere"] = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert ours.size == 3 * (N - 1)
    assert worst["sphere"] < 1e-9
    say(f"{activation}: largest difference over the largest entry: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items()))


def equation_25(W, teachers):
    """The Hessian of Bocchi et al., with w of squared norm Q_kk, loss (y - f)^2, and all signs as printed."""
    (p, d), k = W.shape, len(teachers)
    Q, one = W @ W.T, np.eye(d)
    H = np.zeros((p, d, p, d))
    for m in range(p):
        for n in range(p):
            block = -2 / p * (Q[n, m] * one + np.outer(W[n], W[m]) + np.outer(W[m], W[n]))
            if m == n:
                block += (1 - np.trace(Q) / p) * one + 2 / k * teachers.T @ teachers - 2 / p * W.T @ W
            H[m, :, n] = -4 / p * block
    return H.reshape(p * d, p * d)


@pytest.mark.parametrize(("width", "teachers", "dimension"), [(1, 1, 40), (2, 3, 11), (4, 1, 40), (4, 3, 25)])
def test_spectrum_of_quadratic_networks_is_that_of_their_equation_25(width, teachers, dimension):
    problem = sl.presets.quadratic_network(width, teachers, noise=NOISE)
    W = random_weights(width, seed=width, dimension=dimension)[1]
    for U in (W, W[np.zeros(width, int)], 0 * W):
        H = equation_25(U, np.eye(teachers, dimension))
        point = sl.Overlaps(np.ones(width), U[:, :teachers], U @ U.T)
        spectrum = hessian_spectrum(problem, point, dimension)
        assert spectrum.size == width * dimension
        np.testing.assert_allclose(all_of(spectrum), np.linalg.eigvalsh(H), atol=1e-9)
        np.testing.assert_allclose(landscape.hessian(problem, U).reshape(H.shape), H, atol=1e-12)


def test_only_multiplicities_know_the_dimension():
    """Blocks outside the span repeat: from d = 50 to 10^9 only the eigenvalues outside gain, exactly as many as directions."""
    problem, (a, U) = student_teacher("he3"), random_weights()
    point, d = statistics(a, U, FIXED), 10**9
    small, large = (hessian_spectrum(problem, point, d) for d in (50, d))
    np.testing.assert_array_equal(small.eigenvalues, large.eigenvalues)
    gained = large.multiplicities - small.multiplicities
    outside = np.linalg.eigvalsh(landscape.hessian(problem, point).outside)
    np.testing.assert_allclose(np.repeat(large.eigenvalues[gained > 0], gained[gained > 0] // (d - 50)), outside)
    assert large.size == sum(large.index) == 3 * d
    assert all(type(count) is int for count in large.index)
    assert hessian_spectrum(problem, point, 5).size == 15  # no direction is left outside
    assert hessian_spectrum(sl.presets.phase_retrieval(), sl.Overlaps([1.0], [[0.5]], [[1.0]]), 2).size == 1


# --- the gradient is the drift ------------------------------------------------------------------------------------------------


@eqx.filter_jit
def drift_and_risk(problem, point):
    """Of the population: the drift without the corrector."""
    return problem.drift_parts(point)[0], problem.risk(point)


@pytest.mark.parametrize("activation", ["square", "he3", "erf", "relu"])
def test_drift_of_the_statistics_is_that_of_descent_along_the_gradient(activation, say):
    problem, (a, U) = student_teacher(activation), random_weights()
    point, lr = statistics(a, U, FIXED), 0.3
    drift, risk = drift_and_risk(problem, point)
    slope = landscape.gradient(problem, Weights(U, a=a))
    np.testing.assert_allclose(-lr * slope @ FIXED.T, drift.M, atol=1e-12)
    np.testing.assert_allclose(-lr * (slope @ U.T + U @ slope.T), drift.Q, atol=1e-12)
    in_frame, units = landscape.gradient(problem, point), landscape.coordinates(problem, point)
    np.testing.assert_allclose(-lr * in_frame[:, :2] @ np.linalg.cholesky(GRAM).T, drift.M, atol=1e-12)
    np.testing.assert_allclose(-lr * (in_frame @ units.T + units @ in_frame.T), drift.Q, atol=1e-12)
    for at in (point, Weights(U, a=a)):
        np.testing.assert_allclose(landscape.risk(problem, at), risk + RIDGE / 2 * (U**2).sum(), atol=1e-12)
    say(f"{activation}: drift of M differs by {np.abs(-lr * slope @ FIXED.T - drift.M).max():.1e}")


def test_projected_gradient_is_the_drift_on_the_sphere():
    """In a rotated R^N, with the teacher along any direction."""
    problem, (a, U) = sl.presets.phase_retrieval(width=3, lr=0.3, noise=NOISE), random_weights()
    axes = np.linalg.qr(np.random.default_rng(1).normal(size=(N, N)))[0]
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    point = sl.Overlaps(a, U[:, :1], U @ U.T)
    drift, _ = drift_and_risk(problem, point)
    slope = landscape.gradient(problem, Weights(U @ axes, axes[:1], a))
    np.testing.assert_allclose((slope * (U @ axes)).sum(1), 0.0, atol=1e-14)
    np.testing.assert_allclose(-0.3 * slope @ axes[:1].T, drift.M, atol=1e-12)
    np.testing.assert_allclose(-0.3 * (slope @ (U @ axes).T + U @ axes @ slope.T), drift.Q, atol=1e-12)


# --- kinks, nodes and classes -------------------------------------------------------------------------------------------------


def relu_gradient(a, U):
    """Of the arc-cosine kernel: for rows u, v at an angle t, dE[s s]/du = (|v| sin t u/|u| + (pi - t) v)/(2 pi)."""
    rows, c = np.concatenate([U, FIXED]), np.concatenate([a / len(U), -np.ones(2) / 2])
    norms = np.linalg.norm(rows, axis=1)
    cosine = np.clip(rows[: len(U)] @ rows.T / (norms[: len(U), None] * norms), -1, 1)
    t = np.arccos(cosine)
    unit = U / norms[: len(U), None]
    sines = (np.sin(t) * norms) @ c
    return c[: len(U), None] * (sines[:, None] * unit + ((np.pi - t) * c) @ rows) / (2 * np.pi) + RIDGE * U


def test_hessian_of_relu_units_has_what_is_concentrated_at_the_kink(say):
    """Against differences of the published gradient, 1e-9 at random weights; at the teachers' directions the third derivative
    jumps, and differences of 1e-5 are as far off."""
    problem, (a, U) = student_teacher("relu"), random_weights()
    for W, room in ((U, 1e-8), (FIXED[[0, 1, 0]], 1e-5)):
        H = differences(lambda W: relu_gradient(a, W), W)
        ours = landscape.hessian(problem, Weights(W, a=a)).reshape(H.shape)
        np.testing.assert_allclose(landscape.gradient(problem, Weights(W, a=a)), relu_gradient(a, W), atol=1e-7)
        np.testing.assert_allclose(ours, H, atol=room)
        say(f"relu: largest difference {np.abs(ours - H).max():.1e}")
    with pytest.raises(sl.BadInput, match="a unit with a kink has zero weights"):
        landscape.hessian(problem, Weights(0 * U, a=a))


def normal_grid(dimension, nodes=40):
    """All of R^dimension, by the trapezoidal rule."""
    line = np.linspace(-7, 7, nodes)
    weights = np.exp(-(line**2) / 2)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*[line] * dimension)])
    return points, np.prod(np.meshgrid(*[weights / weights.sum()] * dimension), axis=0).ravel()


def tanh_derivatives(x):
    t = np.tanh(x)
    return t, 1 - t**2, -2 * t * (1 - t**2)


def test_hessian_of_tanh_units_is_the_mean_over_inputs():
    """E[l_jl x x^T] over all of R^3."""
    problem, (a, U) = sl.presets.committee(2, 1, "tanh", noise=NOISE), random_weights(2, dimension=3)
    x, weights = normal_grid(3)
    s, first, second = tanh_derivatives(U @ x)
    residual = a @ s / 2 - np.tanh(x[0])
    curvature = a[:, None, None] * a[:, None] * first[:, None] * first / 4
    curvature[[0, 1], [0, 1]] += a[:, None] / 2 * second * residual
    H = np.einsum("jln,sn,tn->jslt", weights * curvature, x, x)
    np.testing.assert_allclose(landscape.hessian(problem, Weights(U, a=a)), H, atol=1e-9)


def test_hessian_of_classes_is_the_mean_over_their_inputs(say):
    """Cross-entropy of three classes in R^3: by nodes along the units; the grid of the rule is accurate to 1e-6."""
    means, labels, pi, snr = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), np.array([1.0, 0.0, 0.5]), [0.2, 0.3, 0.5], 2.0
    problem = sl.presets.gaussian_mixture(means, labels, pi, snr=snr, activation="tanh", gram=GRAM)
    a, U = random_weights(2, dimension=3)
    points, weights = normal_grid(3)
    H = np.zeros((2, 3, 2, 3))
    for b, label, share in zip(means, labels, pi, strict=True):
        x = (b @ FIXED[:, :3])[:, None] + points / np.sqrt(snr)
        s, first, second = tanh_derivatives(U @ x)
        probability = 1 / (1 + np.exp(-a @ s))
        curvature = a[:, None, None] * a[:, None] * first[:, None] * first * probability * (1 - probability)
        curvature[[0, 1], [0, 1]] += a[:, None] * second * (probability - label)
        H += share * np.einsum("jln,sn,tn->jslt", weights * curvature, x, x)
    ours = landscape.hessian(problem, Weights(U, a=a))
    np.testing.assert_allclose(ours, H, atol=1e-6)
    say(f"classes: largest difference {np.abs(ours - H).max():.1e}")


@pytest.mark.full
def test_hessian_of_relu_classes_is_the_slope_of_the_drift(say):
    """Two classes with noise inside them. The gradient is made of the drift, and the Hessian is not."""
    problem, (a, U) = sl.presets.binary_mixture(snr=3.0, ridge=RIDGE), random_weights(2, dimension=4)
    H = differences(lambda U: landscape.gradient(problem, Weights(U, a=a)), U)
    ours = landscape.hessian(problem, Weights(U, a=a)).reshape(H.shape)
    np.testing.assert_allclose(ours, H, atol=1e-6 * np.abs(H).max())
    say(f"relu classes: largest difference {np.abs(ours - H).max():.1e}")


def test_hessian_of_relu_classes_where_both_units_look_the_same_way(say):
    """Then the loss depends on one field: a line split at its kink, and the density of the field at zero."""
    snr, problem = 3.0, sl.presets.binary_mixture(snr=3.0, ridge=RIDGE)
    a, u, ratio = np.array([1.2, -0.7]), np.array([0.5, 0.4]), np.array([1.0, 0.6])
    norm, H = np.linalg.norm(u), RIDGE * np.eye(4).reshape(2, 2, 2, 2)
    points, weights = np.polynomial.legendre.leggauss(60)
    first, second = u / norm, np.array([-u[1], u[0]]) / norm
    for sign in (1.0, -1.0):
        centre = np.array([sign, 0.0])
        kink = -u @ centre / norm * np.sqrt(snr)
        z = np.concatenate([kink + 6 * (points + 1), kink - 6 * (points + 1)])
        density = np.tile(6 * weights, 2) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        on = (z > kink) * 1.0
        f = (a @ ratio) * on * (z - kink) * norm / np.sqrt(snr)
        probability = 1 / (1 + np.exp(-f))
        x, across = centre + np.outer(z, first) / np.sqrt(snr), np.outer(second, second) / snr
        curved = density * on * probability * (1 - probability)
        H += np.einsum("j,l,st->jslt", a, a, (curved * x.T) @ x + curved.sum() * across) / 2
        there, slope = centre + kink * first / np.sqrt(snr), 1 / 2 - (sign > 0)
        at_zero = np.exp(-(kink**2) / 2) / np.sqrt(2 * np.pi) * np.sqrt(snr) / norm
        H[[0, 1], :, [0, 1]] += (a / ratio)[:, None, None] * at_zero * slope * (np.outer(there, there) + across) / 2
    ours = landscape.hessian(problem, Weights(np.outer(ratio, u), a=a))
    np.testing.assert_allclose(ours, H, atol=1e-7)
    say(f"relu classes, parallel units: largest difference {np.abs(ours - H).max():.1e}")


# --- escaping mediocrity, appendix H ------------------------------------------------------------------------------------------


def one_unit(rho):
    target = sl.Target(sl.CommitteeReadout("square"), noise=NOISE, gram=[[rho]])
    return sl.ProjectionProblem(target, sl.TwoLayer(1), sl.SquaredLoss(), sl.OnePassSGD(0.1))


def unit_at(m, q):
    return sl.Overlaps([1.0], [[m]], [[q]])


def same(spectrum, eigenvalues, multiplicities):
    np.testing.assert_allclose(spectrum.eigenvalues, eigenvalues, atol=1e-9)
    assert spectrum.multiplicities.tolist() == multiplicities


@pytest.mark.parametrize("d", [3, 50, 10**9])
@pytest.mark.parametrize("rho", [1.0, 0.7])
def test_eigenvalues_of_phase_retrieval_are_those_of_68_to_72_corrected(rho, d):
    problem = one_unit(rho)
    same(hessian_spectrum(problem, unit_at(0.0, 0.0), d), [-6 * rho, -2 * rho], [1, d - 1])
    same(hessian_spectrum(problem, unit_at(0.0, rho / 3), d), [-4 * rho, 0, 4 * rho], [1, d - 2, 1])
    same(hessian_spectrum(problem, unit_at(rho, rho), d), [4 * rho, 12 * rho], [d - 1, 1])
    heights = {(0.0, 0.0): 3 * rho**2 / 2, (0.0, rho / 3): 4 * rho**2 / 3, (rho, rho): 0.0}
    for (m, q), height in heights.items():
        np.testing.assert_allclose(landscape.risk(problem, unit_at(m, q)), NOISE / 2 + height, atol=1e-12)
        np.testing.assert_allclose(landscape.gradient(problem, unit_at(m, q)), 0, atol=1e-12)


@pytest.mark.parametrize("d", [3, 50, 10**9])
def test_eigenvalues_of_phase_retrieval_on_the_sphere_are_those_of_84_and_85(d):
    """Flat directions: d - 2 on the tangent space. In between, (83) on the tangent space: 4 m^2 and 4 m^2 - 4 (1 - m^2)."""
    problem, m = sl.presets.phase_retrieval(noise=NOISE), 0.6
    start = hessian_spectrum(problem, unit_at(0.0, 1.0), d)
    same(start, [-4, 0], [1, d - 2])
    assert start.index == (1, d - 2, 0)
    same(hessian_spectrum(problem, unit_at(m, 1.0), d), [4 * m**2 - 4 * (1 - m**2), 4 * m**2], [1, d - 2])
    same(hessian_spectrum(problem, unit_at(1.0, 1.0), d), [4], [d - 1])


def test_moments_behind_the_hessian_carry_a_factor_two_at_rank_one_terms():
    """(66), (67) and (79), corrected, against the mean over a grid on R^3 that is exact for these polynomials."""
    points, line = np.polynomial.hermite_e.hermegauss(4)
    x = np.stack([axis.ravel() for axis in np.meshgrid(points, points, points)])
    weights = np.prod(np.meshgrid(line, line, line), axis=0).ravel() / line.sum() ** 3
    rho, w = 0.7, np.array([0.3, -0.8, 0.5])
    star, one = np.array([rho**0.5, 0.0, 0.0]), np.eye(3)
    mean = lambda values: (weights * values * x) @ x.T
    np.testing.assert_allclose(mean((star @ x) ** 2), rho * one + 2 * np.outer(star, star), atol=1e-12)
    H = 2 * mean(3 * (w @ x) ** 2 - (star @ x) ** 2)
    corrected = 2 * ((3 * w @ w - rho) * one + 6 * np.outer(w, w) - 2 * np.outer(star, star))
    np.testing.assert_allclose(corrected, H, atol=1e-12)
    np.testing.assert_allclose(landscape.hessian(one_unit(rho), Weights(w[None]))[0, :, 0], H, atol=1e-12)
    w /= np.linalg.norm(w)
    m, tangent = w[0], one - np.outer(w, w)
    residual = (w @ x) ** 2 - x[0] ** 2
    riemann = tangent @ (2 * mean(2 * (w @ x) ** 2 + residual)) @ tangent - (2 * weights @ (residual * (w @ x) ** 2)) * tangent
    np.testing.assert_allclose(riemann, 4 * (m**2 * tangent - np.outer(tangent[0], tangent[0])), atol=1e-12)
    np.testing.assert_allclose(landscape.hessian(one_unit(1.0), Weights(w[None]), sphere=True)[0, :, 0], riemann, atol=1e-12)


# --- bad input ----------------------------------------------------------------------------------------------------------------


def test_bad_points_are_answered_with_the_remedy():
    problem, (a, U) = student_teacher("square"), random_weights()
    point = statistics(a, U, FIXED)
    with pytest.raises(sl.BadInput, match="give d of at least 5"):
        hessian_spectrum(problem, point, 4)
    with pytest.raises(sl.BadInput, match=r"M must have shape \(3, 2\)"):
        hessian_spectrum(problem, sl.Overlaps(a, U[:, :1], U @ U.T), 9)
    with pytest.raises(sl.BadInput, match="not positive semi-definite"):
        hessian_spectrum(problem, sl.Overlaps(a, U[:, :2], 0.01 * np.eye(3)), 9)
    with pytest.raises(sl.BadInput, match="must be statistics; got Weights"):
        hessian_spectrum(problem, Weights(U, a=a), 9)
    with pytest.raises(sl.BadInput, match="on the sphere every norm is 1"):
        landscape.gradient(problem, point, sphere=True)
    with pytest.raises(sl.BadInput, match="does not fit into memory"):
        landscape.hessian(problem, Weights(np.ones((3, 4000))))
    with pytest.raises(sl.BadInput, match=r"u must be finite, of shape \(3, d\)"):
        landscape.hessian(problem, Weights(U[:2]))
    with pytest.raises(sl.BadInput, match="fixed must have shape"):
        landscape.hessian(problem, Weights(U, fixed=np.eye(2, N)))
    with pytest.raises(sl.BadInput, match="a must be 3 finite numbers"):
        landscape.hessian(problem, Weights(U, a=[1.0]))
    with pytest.raises(sl.BadInput, match="starts from a random second layer"):
        landscape.gradient(sl.presets.binary_mixture(), Weights(U[:2]))
    with pytest.raises(sl.BadInput, match="landscape needs a projection problem"):
        landscape.risk(sl.presets.spiked_tensor(), point)


def test_kinks_are_refused_where_nodes_would_miss_them():
    def problem(activation, loss):
        target = sl.Target(lambda fixed: fixed[0] ** 2)
        return sl.ProjectionProblem(
            target, sl.TwoLayer(1, activation), loss, sl.OnePassSGD(0.1), expectation=sl.GaussHermite(4)
        )

    for bad in (problem("relu", sl.SquaredLoss()), problem("tanh", lambda f, y: abs(f - y))):
        with pytest.raises(sl.BadInput, match="the activation or the loss has a kink"):
            landscape.hessian(bad, unit_at(0.5, 1.0))
    noiseless = sl.presets.binary_mixture(snr=float("inf"))
    with pytest.raises(sl.BadInput, match="class mean is at a kink"):
        landscape.hessian(noiseless, sl.Overlaps([1.0, 1.0], [[0.0], [1.0]], np.eye(2)))


def test_rough_nodes_are_warned_of():
    """Stein's lemma ties the Hessian outside the frame to the gradient: four nodes a dimension are too few for a steep tanh."""
    target = sl.Target(lambda fixed: fixed[0] ** 2)
    algorithm, rule = sl.OnePassSGD(0.1), sl.GaussHermite(4)
    problem = sl.ProjectionProblem(target, sl.TwoLayer(1, "tanh"), sl.SquaredLoss(), algorithm, expectation=rule)
    with pytest.warns(sl.AccuracyWarning, match=r"GaussHermite\(order=8\)"):
        landscape.hessian(problem, unit_at(0.5, 4.0))
