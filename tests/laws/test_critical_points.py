"""All critical points of quadratic networks: where they are, their Hessians, and the manifolds that they form."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest
from scipy.optimize import least_squares, minimize, root

import sgdlimits as sl
from sgdlimits.analysis import landscape
from sgdlimits.analysis.landscape import hessian_spectrum
from sgdlimits.errors import BadInput
from sgdlimits.papers.quadratic import theory as theory
from sgdlimits.papers.quadratic.theory.critical import critical_points, degrees_of_freedom, solution_dimension
from sgdlimits.papers.quadratic.theory.family import CriticalFamily

SEARCHES = 100
SIZES = list(itertools.product(range(1, 5), range(1, 4)))


def families(p: int, k: int, noise: float = 0.0):
    return critical_points(sl.presets.quadratic_network(width=p, teachers=k, noise=noise))


@pytest.fixture(scope="module")
def every():
    """All families with p up to 4 and p* up to 3."""
    return [family for p, k in SIZES for family in families(p, k)]


def gradient(W: np.ndarray, k: int) -> np.ndarray:
    """(24) of the paper, with the teachers along the first k axes."""
    p, Q = len(W), W @ W.T
    teachers = np.eye(k, W.shape[1])
    return -4 / p * (W + 2 / k * (W @ teachers.T) @ teachers - (np.trace(Q) * W + 2 * Q @ W) / p)


def hessian(W: np.ndarray, k: int) -> np.ndarray:
    """(25) of the paper, as a matrix of p d rows."""
    (p, d), Q = W.shape, W @ W.T
    outer = np.einsum("na,mb->manb", W, W) + np.einsum("ma,nb->manb", W, W)
    between = -2 / p * (np.einsum("nm,ab->manb", Q, np.eye(d)) + outer)
    own = (1 - np.trace(Q) / p) * np.eye(d) + 2 / k * np.diag(np.arange(d) < k) - 2 / p * W.T @ W
    return -4 / p * (between + np.einsum("mn,ab->manb", np.eye(p), own)).reshape(p * d, p * d)


def risk(W: np.ndarray, k: int) -> float:
    """The mean of (y - f)^2 over Gaussian inputs, from the eigenvalues of the quadratic form y - f."""
    values = np.linalg.eigvalsh(W.T @ W / len(W) - np.diag(np.arange(W.shape[1]) < k) / k)
    return values.sum() ** 2 + 2 * (values**2).sum()


def rotations(size: int) -> list[np.ndarray]:
    """A basis of the antisymmetric matrices."""
    pairs = itertools.combinations(range(size), 2)
    unit = np.eye(size)
    return [np.outer(unit[i], unit[j]) - np.outer(unit[j], unit[i]) for i, j in pairs]


def tangent(W: np.ndarray, k: int) -> np.ndarray:
    """Directions in which the symmetries move W: rotations of units, of teachers, and of what is orthogonal to them."""
    d = W.shape[1]
    right = [np.pad(each, (0, d - k)) for each in rotations(k)] + [np.pad(each, (k, 0)) for each in rotations(d - k)]
    moves = [A @ W for A in rotations(len(W))] + [W @ B for B in right]
    return np.array(moves).reshape(len(moves), W.size)


def counted(values: np.ndarray, at: np.ndarray, atol: float = 1e-9) -> np.ndarray:
    """How many of the values are at each place, and that all of them are at one."""
    near = np.abs(values[:, None] - at) < atol
    assert (near.sum(1) == 1).all(), "an eigenvalue is at none of the closed ones"
    return near.sum(0)


def test_hessian_of_the_paper_is_the_derivative_of_its_gradient_and_that_of_the_risk():
    """The formulas that judge everything below, by central differences at random weights; quartics leave an error of 1e-8."""
    rng = np.random.default_rng(0)
    W, V, step, k = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), 1e-4, 2
    slope = (risk(W + step * V, k) - risk(W - step * V, k)) / (2 * step)
    assert slope == pytest.approx((gradient(W, k) * V).sum(), rel=1e-6)
    change = (gradient(W + step * V, k) - gradient(W - step * V, k)) / (2 * step)
    np.testing.assert_allclose(hessian(W, k) @ V.ravel(), change.ravel(), rtol=1e-6, atol=1e-6)


def test_gradient_vanishes_at_every_family_and_the_risk_is_the_closed_one(every, say):
    worst = []
    for family, seed in itertools.product(every, (None, 3)):
        W = family.weights(9, seed=seed)
        worst.append(
            (
                np.abs(gradient(W, family.teachers)).max(),
                family.gradient_norm(seed),
                abs(risk(W, family.teachers) - family.risk),
            )
        )
        stats = family.statistics(seed=seed)
        if seed is None:
            np.testing.assert_allclose(stats.Q, W @ W.T, atol=1e-12)
            np.testing.assert_allclose(stats.M, W[:, : family.teachers], atol=1e-12)
    say(f"{len(every)} families: gradient, its norm, error of the risk up to {np.max(worst, 0)}")
    assert np.max(worst) < 1e-13


def test_flow_rests_at_the_statistics_of_every_family(say):
    problem = sl.presets.quadratic_network(width=3, teachers=2, lr=0.1, noise=0.3)
    points = critical_points(problem)
    stats = jax.tree.map(lambda *leaves: np.stack(leaves), *(family.statistics(seed=1) for family in points))
    drift, found = jax.jit(jax.vmap(lambda at: (problem.drift_parts(at)[0], problem.risk(at))))(stats)
    say(f"largest drift {max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(drift)):.1e}")
    for leaf in jax.tree.leaves(drift):
        np.testing.assert_allclose(leaf, 0, atol=1e-14)
    np.testing.assert_allclose(found, [family.risk for family in points], rtol=1e-13)


def test_closed_spectrum_is_that_of_the_dense_hessian(every, say):
    """Also in the smallest dimension that has room, and at random points of the families."""
    compared, worst = 0, 0.0
    for family in every:
        for d in {family.smallest_d, 9, 40 if family.width == 4 or family.teachers == 1 else 12}:
            values, counts = family.spectrum(d)
            dense = np.linalg.eigvalsh(hessian(family.weights(d, seed=d), family.teachers))
            worst = max(worst, np.abs(np.repeat(values, counts) - dense).max())
            np.testing.assert_array_equal(counted(dense, values), counts)
            assert family.index(d) == (dense < -1e-9).sum()
            assert sum(family.null(d)) == (np.abs(dense) < 1e-9).sum()
            compared += 1
    say(f"{compared} spectra of up to {4 * 40} eigenvalues, largest difference {worst:.1e}")
    assert worst < 1e-12


def test_null_directions_split_into_the_orbit_and_flat_ones(every, say):
    """Generators of the symmetries span as many null directions as the family has dimensions; solutions alone have others."""
    for family in every:
        d = family.smallest_d + 2
        W = family.weights(d, seed=1)
        moves = tangent(W, family.teachers)
        assert np.abs(moves @ hessian(W, family.teachers)).max(initial=0) < 1e-12
        rank = np.linalg.matrix_rank(moves, tol=1e-9)
        assert rank == family.dimension(d) == family.null(d).symmetry
        G = np.array([V.reshape(W.shape).T @ W + W.T @ V.reshape(W.shape) for V in moves]).reshape(len(moves), d * d)
        assert np.linalg.matrix_rank(G, tol=1e-9) == family.degrees_of_freedom(d)
        spare = (family.width - family.teachers) * (d - family.teachers)
        assert family.null(d).flat == (spare if family.kind == "solution" else 0)
    say(f"{len(every)} families, {sum(family.kind == 'solution' for family in every)} of them solutions")


def test_risk_grows_as_the_fourth_power_along_flat_directions(say):
    """Exactly so along V, and with a smaller factor on the valley's floor, where all other directions give way."""
    p, k, d, step = 4, 2, 6, 0.1
    W, rng = CriticalFamily(p, k, s=k, r=0).weights(d, seed=2), np.random.default_rng(0)
    V = np.linalg.svd(W)[0][:, k:] @ rng.normal(size=(p - k, d)) * (np.arange(d) >= k)
    values, vectors = np.linalg.eigh(hessian(W, k))
    np.testing.assert_allclose(hessian(W, k) @ V.ravel(), 0, atol=1e-12)
    trace, square = np.trace(V.T @ V), np.trace(V.T @ V @ V.T @ V)
    for size in (step, 2 * step):
        assert risk(W + size * V, k) == pytest.approx((trace**2 + 2 * square) / p**2 * size**4, rel=1e-10)
    up = vectors[:, values > 1e-9].T.reshape(-1, p, d)
    moved = lambda x: W + step * V + np.einsum("i,ijk->jk", x, up)
    slope = lambda x: np.einsum("jk,ijk->i", gradient(moved(x), k), up)
    floor = minimize(lambda x: risk(moved(x), k), np.zeros(len(up)), jac=slope, method="BFGS", options={"gtol": 1e-12})
    closed = (2 * trace**2 / (k + 2) + 2 * square) / p**2 * step**4
    say(f"on the floor {floor.fun:.9e}, in closed form {closed:.9e}, straight ahead {risk(W + step * V, k):.3e}")
    assert floor.fun == pytest.approx(closed, rel=1e-8)


def tables(p: int, k: int, d: int):
    """The tables of section 7.2.2: (s, r), eigenvalues and their multiplicities, and the counts in the headings."""
    plateau = [(-8 / (p * k), p * k), (8 / p, 1), (16 / (p * (p + 2)), p * (p - 1) // 2 + p - 1)]
    plateau += [(0, p * (d - k - p)), (0, p * (p - 1) // 2)]
    tabula = [(-4 / p * (1 + 2 / k), p * k), (-4 / p, p * (d - k))]
    yield (0, 0), tabula, (p * d, 0, 0)
    yield (0, p), plateau, (p * k, p * (d - k - p) + p * (p - 1) // 2, p * (p + 1) // 2)
    if p >= k:
        solution = [(8 / (p * k), k * (d - k)), (16 / (p * k), k * (k + 1) // 2 - 1), (8 / (p * k) * (2 + k), 1)]
        solution += [(0, (d - k) * (p - k)), (0, k * (p - k)), (0, k * (k - 1) // 2)]
        null = (d - k) * (p - k) + k * (p - k) + k * (k - 1) // 2
        yield (k, 0), solution, (0, null, k * (d - k) + k * (k + 1) // 2)
    if k > 1:
        aligned = [(-8 * (k - 1) / (3 * p * k), (d - k) * (p - 1)), (-8 * (k + 2) / (3 * p * k), (k - 1) * (p - 1))]
        aligned += [(8 / (p * k), d - k), (8 * (2 + k) / (p * k), 1), (0, p - 1), (0, k - 1)]
        yield (1, 0), aligned, ((d - 1) * (p - 1), p + k - 2, d - k + 1)


@pytest.mark.parametrize(("p", "k", "d"), [(1, 1, 5), (2, 1, 12), (3, 2, 30), (4, 3, 11), (5, 2, 1000), (2, 3, 50), (6, 4, 10)])
def test_tables_of_the_paper_come_out_of_the_program(p, k, d):
    """Tabula rasa, plateau, zero error, all students on one teacher and the ratio (29), in closed form and by the landscape."""
    problem = sl.presets.quadratic_network(p, k)
    points = critical_points(problem)
    for (s, r), table, heading in tables(p, k, d):
        family, (eigenvalues, printed) = points.family(s, r), np.array(table).T
        assert printed.sum() == sum(heading) == p * d
        for values, counts in (family.spectrum(d), hessian_spectrum(problem, family.statistics(seed=d), d)):
            at = np.abs(eigenvalues[:, None] - values) < 1e-12
            np.testing.assert_array_equal(printed @ at, counts)
            assert tuple(counts[np.sign(values) == sign].sum() for sign in (-1, 0, 1)) == heading
    plateau = points.family(0, p)
    assert plateau.index(d) / sum(plateau.null(d)) == pytest.approx(k / (d - k - p / 2 - 1 / 2))


@pytest.mark.parametrize(("p", "k"), [(2, 1), (3, 2), (4, 3), (2, 3)])
def test_closed_spectrum_is_that_of_the_landscape_in_any_dimension(p, k):
    problem = sl.presets.quadratic_network(p, k)
    for family in critical_points(problem):
        statistics = family.statistics(seed=1)
        for d in (family.smallest_d, 3000):
            ours, theirs = family.spectrum(d), hessian_spectrum(problem, statistics, d)
            np.testing.assert_array_equal(ours.multiplicities, theirs.multiplicities)
            np.testing.assert_allclose(ours.eigenvalues, theirs.eigenvalues, atol=1e-12)
        assert np.abs(landscape.gradient(problem, statistics)).max() < 1e-12


def test_hessian_on_the_plateau_sums_over_the_students():
    """The printed form of section 7.2.2 with the sum over k that is missing before its last term."""
    p, k, d = 3, 2, 7
    W = CriticalFamily(p, k, s=0, r=p).weights(d, seed=0)
    between = np.einsum("na,mb->manb", W, W) + np.einsum("ma,nb->manb", W, W)
    own = np.diag(np.arange(d) < k) / k - W.T @ W / p
    printed = -8 / p * (-between / p + np.einsum("mn,ab->manb", np.eye(p), own))
    np.testing.assert_allclose(printed.reshape(p * d, p * d), hessian(W, k), atol=1e-14)


def test_largest_ratio_of_negative_to_null_directions_is_at_as_many_units_as_fit():
    """The plateau needs p directions beside the p* teachers: (29) ends at p = N - p*, not at p = N."""
    k, d = 2, 11
    plateaus = [families(p, k).family(0, p) for p in range(1, d - k + 1)]
    ratios = [family.index(d) / sum(family.null(d)) for family in plateaus]
    assert np.all(np.diff(ratios) > 0)
    assert ratios[-1] == pytest.approx(2 * k / (d - k - 1))
    assert not families(d - k + 1, k).family(0, d - k + 1).exists(d)


def test_only_the_last_family_down_has_no_negative_direction(every):
    """No family but s = min(p, p*), r = 0 is a minimum, and it has the least risk."""
    for family in every:
        last = (family.s, family.r) == (min(family.width, family.teachers), 0)
        assert (family.index(20) == 0) == last
        n = family.rank
        assert family.index(20) == (0 if last else (family.width - n) * (20 - n) + family.r * (family.teachers - family.s))
    for p, k in SIZES:
        points = families(p, k)
        assert (points[0].s, points[0].r) == (min(p, k), 0)
        assert points[0].risk < points[1].risk


def test_every_search_ends_in_a_family(say):
    """Roots of (24) found from random weights of all shapes have these risks and no others, and all six of (2, 2) are met."""
    p, k, d = 2, 2, 5
    rng, known = np.random.default_rng(0), np.array([family.risk for family in families(p, k)])
    met = np.zeros(known.size, int)
    for _ in range(SEARCHES):
        start = (
            rng.normal(size=(p, d))
            * rng.choice([0.0, 0.3, 1.0], size=(p, 1))
            * np.repeat(rng.choice([0.02, 1.0], size=2), [k, d - k])
        )
        slope = lambda w: (gradient(w.reshape(p, d), k).ravel(), hessian(w.reshape(p, d), k))
        found = root(slope, start.ravel(), jac=True, method="lm", options={"xtol": 1e-12, "ftol": 1e-12})
        W = found.x.reshape(p, d)
        if np.abs(gradient(W, k)).max() < 1e-10:
            near = np.abs(known - risk(W, k)) < 1e-6
            assert near.sum() == 1
            met += near
    say(f"risks {np.round(known, 4)} met {met} times, {SEARCHES - met.sum()} searches without an end")
    assert (met > 0).all()


def test_rotations_have_orthonormal_columns():
    """(28) and (30) hold with M^T M = I; M M^T = I is impossible for p above the rank, and other M give no critical point."""
    family = CriticalFamily(width=3, teachers=2, s=1, r=1)
    M = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 2)))[0]
    W = family.weights(6, rotation=M)
    np.testing.assert_allclose(M.T @ M, np.eye(2), atol=1e-14)
    assert np.abs(gradient(W, 2)).max() < 1e-14
    np.testing.assert_allclose(family.statistics(M).Q, W @ W.T, atol=1e-14)
    assert np.abs(gradient(np.sqrt(1.1) * W, 2)).max() > 0.01
    with pytest.raises(BadInput, match="orthonormal columns"):
        family.weights(6, rotation=1.1 * M)
    with pytest.raises(BadInput, match=r"shape \(3, 2\)"):
        family.statistics(M.T)


def test_degrees_of_freedom_are_the_rank_of_the_differential():
    """The rank of V -> W^T V + V^T W at random weights, below and above p = d."""
    rng = np.random.default_rng(0)
    for d, p in itertools.product((2, 4, 5), range(1, 8)):
        W, basis = rng.normal(size=(p, d)), np.eye(p * d).reshape(p * d, p, d)
        half = np.einsum("ia,vib->vab", W, basis)
        assert np.linalg.matrix_rank((half + half.swapaxes(1, 2)).reshape(p * d, d * d)) == degrees_of_freedom(p, d)


def test_dimension_of_the_solutions_is_counted_in_two_ways():
    """As the rank of the rotations, and as what the constraints W n = 0 and T^T W^T W T = const leave free."""
    rng = np.random.default_rng(0)
    for k, p, d in itertools.product((1, 2, 3, 6), range(1, 8), (3, 5)):
        n = min(k, d)
        if p < n:
            with pytest.raises(BadInput, match=f"at least {n}"):
                solution_dimension(p, k, d)
            continue
        T = np.linalg.svd(rng.normal(size=(k, d)))[2]
        W = np.linalg.qr(rng.normal(size=(p, n)))[0] * rng.uniform(0.5, 2, size=n) @ T[:n]
        moves = np.array([A @ W for A in rotations(p)]).reshape(-1, p * d)
        basis = np.eye(p * d).reshape(p * d, p, d)
        inside = np.einsum("ia,vib->vab", W @ T[:n].T, basis @ T[:n].T)
        outside = (basis @ T[n:].T).reshape(p * d, -1)
        constraints = np.concatenate([(inside + inside.swapaxes(1, 2)).reshape(p * d, -1), outside], axis=1)
        rank = np.linalg.matrix_rank(moves) if moves.size else 0
        assert rank == p * d - np.linalg.matrix_rank(constraints) == solution_dimension(p, k, d)
        if k <= d:
            assert CriticalFamily(p, k, k, 0).dimension(d) == solution_dimension(p, k, d)


def test_families_that_do_not_fit_are_flagged():
    points = families(3, 2, noise=0.5)
    family = points.family(0, 3)
    assert (family.exists(5), family.exists(4)) == (True, False)
    assert points[0].risk == pytest.approx(0.5)
    with pytest.raises(BadInput, match=r"d = 4 has only 2 of them\. Use a d of at least 5"):
        family.spectrum(4)
    lines = points.table(4).splitlines()
    assert [line.split()[0] for line in lines if "absent" in line] == ["plateau"]
    assert len(lines) == len(points) + 1
    with pytest.raises(BadInput, match="s = 2, r = 1"):
        points.family(2, 1)
    with pytest.raises(BadInput, match="search with fixed_points"):
        critical_points(sl.presets.phase_retrieval())


# --- teachers that are not orthonormal ---------------------------------------------------------------------------------------

GRAM = np.array([[1.0, 0.6, 0.0], [0.6, 1.5, 0.2], [0.0, 0.2, 0.4]])


def uneven(width, gram):
    target = sl.Target(sl.CommitteeReadout("square"), len(gram), gram=gram)
    return sl.ProjectionProblem(target, sl.TwoLayer(width, "square"), sl.SquaredLoss(1.0), sl.OnePassSGD(0.1))


def slope_of_the_risk(W, T):
    """The gradient of the risk of the quadratic form W^T W/p - T, from its two moments."""
    D = W.T @ W / len(W) - T
    return 4 / len(W) * W @ (np.trace(D) * np.eye(len(T)) + 2 * D)


@pytest.mark.parametrize("width", [2, 4])
def test_points_for_uneven_teachers_are_critical_with_their_risk_and_index(width):
    """Weights in R^7: gradient, risk of the quadratic form, and the Hessian by differences of the gradient."""
    d, problem = 7, uneven(width, GRAM)
    T = np.zeros((d, d))
    lower = np.linalg.cholesky(GRAM)
    T[:3, :3] = lower.T @ lower / 3
    families = theory.uneven_critical_points(problem)
    assert len(families) == sum(math.comb(3, s) * (width - s + 1 if s < 3 else 1) for s in range(min(3, width) + 1))
    for family in families[:: 1 if width == 2 else 3]:
        stats, rest = family.statistics(), width - len(family.learnt)
        W = np.zeros((width, d))
        W[:, :3] = np.linalg.solve(lower, np.asarray(stats.M).T).T
        across = np.asarray(stats.Q).diagonal() - (W**2).sum(1)
        W[width - rest : width - rest + family.r, 3 : 3 + family.r] = np.diag(np.sqrt(across[width - rest :][: family.r]))
        np.testing.assert_allclose(W @ W.T, stats.Q, atol=1e-12)
        np.testing.assert_allclose(slope_of_the_risk(W, T), 0, atol=1e-12)
        D = W.T @ W / width - T
        np.testing.assert_allclose(family.risk, np.trace(D) ** 2 + 2 * (D**2).sum(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(family.risk, problem.risk(stats), rtol=1e-10, atol=1e-12)
        steps = 1e-6 * np.eye(width * d).reshape(-1, width, d)
        hessian = [(slope_of_the_risk(W + e, T) - slope_of_the_risk(W - e, T)).ravel() / 2e-6 for e in steps]
        assert (np.linalg.eigvalsh(np.array(hessian)) < -1e-5).sum() == family.index(d)


def test_every_search_for_uneven_teachers_ends_in_a_family_and_descent_in_the_strongest(say):
    width, d, rng = 2, 5, np.random.default_rng(0)
    families = theory.uneven_critical_points(uneven(width, GRAM))
    T = np.zeros((d, d))
    lower = np.linalg.cholesky(GRAM)
    T[:3, :3] = lower.T @ lower / 3
    risks, seen = np.array([family.risk for family in families]), set()
    for _ in range(60):
        found = least_squares(lambda w: slope_of_the_risk(w.reshape(width, d), T).ravel(), rng.normal(size=width * d))
        if np.abs(found.fun).max() < 1e-9:
            D = found.x.reshape(width, d).T @ found.x.reshape(width, d) / width - T
            gaps = np.abs(risks - np.trace(D) ** 2 - 2 * (D**2).sum())
            assert gaps.min() < 1e-8
            seen.add(int(gaps.argmin()))
    say(f"{len(seen)} of {len(families)} families were met")
    assert len(seen) > 3
    minima = [family.learnt for family in families if family.index(d) == 0]
    assert minima == [(0, 1)]


def test_orthonormal_teachers_are_the_even_case():
    problem = sl.presets.quadratic_network(width=3, teachers=2, noise=0.1)
    even, uneven = theory.critical_points(problem), theory.uneven_critical_points(problem)
    for family in uneven:
        like = even.family(len(family.learnt), family.r)
        np.testing.assert_allclose(family.risk, like.risk, rtol=1e-12)
        assert family.index(9) == like.index(9)
