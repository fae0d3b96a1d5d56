"""Claims of Escape dynamics and implicit bias on the landscape, and on the solution at which learning ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import polar
from scipy.optimize import brentq, root

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.one_step import SquaredUnits, random_weights
from sgdlimits.papers.quadratic import theory as theory
from sgdlimits.papers.quadratic.claims.dynamics import PHASE_TESTS, K, P, sample_units
from sgdlimits.papers.shorthand import make_overlaps, simulate

# files of the tests named by misprints
CRITICAL_POINT_TESTS, CONSERVATION_TESTS = (f"in `tests/laws/test_{name}.py`" for name in ("critical_points", "conserved"))

# --- the landscape -----------------------------------------------------------------------------------------------------------


def risk(W: np.ndarray, k: int) -> float:
    """Evaluate the population risk (23) of Bocchi et al. at weights W of shape (p, d), with k teachers along the first axes.

    It is (Tr D)^2 + 2 Tr D^2, where D is the difference of the quadratic forms of student and teacher.
    """
    values = np.linalg.eigvalsh(W.T @ W / len(W) - np.diag(np.arange(W.shape[1]) < k) / k)
    return values.sum() ** 2 + 2 * (values**2).sum()


def gradient(W: np.ndarray, k: int) -> np.ndarray:
    """Evaluate the gradient (24) of Bocchi et al. at weights W of shape (p, d), with k teachers along the first axes."""
    p, Q, teachers = len(W), W @ W.T, np.eye(k, W.shape[1])
    return -4 / p * (W + 2 / k * (W @ teachers.T) @ teachers - (np.trace(Q) * W + 2 * Q @ W) / p)


def hessian(W: np.ndarray, k: int) -> np.ndarray:
    """Evaluate the Hessian (25) of Bocchi et al. at weights W of shape (p, d), as a matrix of p d rows.

    The k teachers lie along the first axes.
    """
    (p, d), Q = W.shape, W @ W.T
    outer = np.einsum("na,mb->manb", W, W) + np.einsum("ma,nb->manb", W, W)
    between = -2 / p * (np.einsum("nm,ab->manb", Q, np.eye(d)) + outer)
    own = (1 - np.trace(Q) / p) * np.eye(d) + 2 / k * np.diag(np.arange(d) < k) - 2 / p * W.T @ W
    return -4 / p * (between + np.einsum("mn,ab->manb", np.eye(p), own)).reshape(p * d, p * d)


@claim("(24)", "gradient", r"$-\frac4p[w_m + \frac2{p^*}\sum_l\rho_{ml}w^*_l - \frac1p\sum_k(Q_{kk}w_m + 2Q_{km}w_k)]$")
def compare_gradient_24(effort: Effort) -> Comparison:
    """Compare the mean gradient of the loss, by Gauss-Hermite quadrature, with equation (24) of Bocchi et al."""
    s = sample_units()
    return compare(-4 / P * (s.error * s.weights * s.fields) @ s.x.T, gradient(s.W, K))


@claim("(25)", "Hessian", r"$-\frac4p\{-\frac2p(Q_{nm} + w_nw_m^\top + w_mw_n^\top) + \delta_{mn}[\dots]\}$")
def compare_hessian_25(effort: Effort) -> Comparison:
    """Compare eigenvalues of the Hessian at random weights in R^9 with those of the dense matrix (25) of Bocchi et al."""
    W = random_weights(P, 9, seed=1)
    found = sl.hessian_spectrum(sl.presets.quadratic_network(P, K), make_overlaps(np.ones(P), W[:, :K], W @ W.T), 9)
    return compare(np.repeat(*found), np.linalg.eigvalsh(hessian(W, K)), rtol=1e-8)


def published_spectra(p: int, k: int, d: int) -> Any:
    """Yield the published spectrum of each family of critical points in section 7.2.2 of Bocchi et al.

    Each item has the numbers (s, r) of learnt teacher directions and of other directions, and the pairs (eigenvalue,
    multiplicity).
    """
    # tabula rasa, plateau, solution, and all students on one teacher
    yield (0, 0), [(-4 / p * (1 + 2 / k), p * k), (-4 / p, p * (d - k))]
    plateau = [(-8 / (p * k), p * k), (8 / p, 1), (16 / (p * (p + 2)), p * (p - 1) // 2 + p - 1)]
    yield (0, p), [*plateau, (0, p * (d - k - p)), (0, p * (p - 1) // 2)]
    solution = [(8 / (p * k), k * (d - k)), (16 / (p * k), k * (k + 1) // 2 - 1), (8 / (p * k) * (2 + k), 1)]
    yield (k, 0), [*solution, (0, (d - k) * (p - k)), (0, k * (p - k)), (0, k * (k - 1) // 2)]
    aligned = [(-8 * (k - 1) / (3 * p * k), (d - k) * (p - 1)), (-8 * (k + 2) / (3 * p * k), (k - 1) * (p - 1))]
    yield (1, 0), [*aligned, (8 / (p * k), d - k), (8 * (2 + k) / (p * k), 1), (0, p - 1), (0, k - 1)]


@claim(
    "section 7.2.2",
    "spectra at critical points",
    "Tables for tabula rasa, plateau, zero error, and all students on one teacher",
)
def compare_hessian_spectra(effort: Effort) -> Comparison:
    """Compare eigenvalues of the Hessian in R^12, at four kinds of critical points, with section 7.2.2 of Bocchi et al."""
    d, problem = 12, sl.presets.quadratic_network(P, K)
    points, rows = theory.critical_points(problem), []
    for (s, r), table in published_spectra(P, K, d):
        found = np.repeat(*sl.hessian_spectrum(problem, points.family(s, r).statistics(seed=d), d))
        # as objects, so that multiplicities stay integers beside float eigenvalues
        printed = np.sort(np.repeat(*np.transpose([(value, int(count)) for value, count in table]).astype(object).tolist()))
        rows += list(zip(found, printed.astype(float), strict=True))
    return compare(*np.transpose(rows), rtol=1e-8)


@claim(
    "section 7.2.2, zero error", "null directions of solutions", r"$x\in\{$null eigenvalues of $SS^\top\}$",
    right=r"Null eigenvectors of $SS^\top$, and likewise positive ones",
)  # fmt: skip
def compare_null_directions(effort: Effort) -> Comparison:
    """Compare the norm of H u with 0, for the Hessian H of a quadratic network's solution and a published null direction u.

    Here u is the product of x, a vector over the students, with a direction orthogonal to the teachers; S is the matrix of
    orthonormal columns in the solution (15). In the right form x is a null eigenvector of S S^T, in the printed one the vector
    of its eigenvalues.
    """
    S, d = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 2)))[0], 5
    values, vectors = np.linalg.eigh(S @ S.T)
    H = hessian(np.sqrt(3 / 2) * S @ np.eye(2, d), 2)
    size = lambda x: np.linalg.norm(H @ np.outer(x, np.eye(d)[-1]).ravel())
    return compare(size(vectors[:, 0]), 0.0, size(values), atol=1e-9)


@claim(
    "(28), (30)", "rotations of the students", r"$M M^\top = I$, and in (30) $W = \sqrt{\cdot}\, M W^{*\top}$",
    right=r"$M^\top M = I$; for $s < p^*$ the teachers stand for any $s$ orthonormal vectors in their span.",
    tests=f"`test_rotations_have_orthonormal_columns` {CRITICAL_POINT_TESTS}",
)  # fmt: skip
def compare_rotated_critical_points(effort: Effort) -> Comparison:
    """Compare the eigenvalues of M M^T at a critical point of a quadratic network with the prediction 0, 1, 1 (paper: 1, 1, 1).

    The network has three students.

    Here M has the scaled overlaps with two directions orthogonal to the teachers; the point is found numerically.
    """
    start = np.array([[0.9, 0.1], [0.0, 0.8], [0.2, -0.1]])
    found = root(lambda w: gradient(np.pad(w.reshape(3, 2), ((0, 0), (2, 0))), 2)[:, 2:].ravel(), start.ravel(), method="lm")
    M = found.x.reshape(3, 2) / np.sqrt(3 / 4)
    return compare(np.linalg.eigvalsh(M @ M.T), [0, 1, 1], [1, 1, 1], atol=1e-6)


@claim(
    "critical points", "families of critical points", "Families of rank $r$ (uncorrelated) and $s$ (correlated)",
    right=r"Also mixed ones: $s$ teacher directions with weight $\beta + p/p^*$ and $r \ge 1$ orthogonal ones with $\beta "
    r"= p (p^* - s)/(p^* (s + r + 2))$, $s < p^*$",
    tests=f"`test_gradient_vanishes_at_every_family_and_the_risk_is_the_closed_one`, `test_every_search_ends_in_a_family` "
    f"{CRITICAL_POINT_TESTS}",
)  # fmt: skip
def compare_critical_families(effort: Effort) -> Comparison:
    """Compare the number of distinct risks at a quadratic network's critical points, by 80 root searches, with 6.

    The paper prints 5.
    """
    rng, met = np.random.default_rng(0), set()
    for _ in range(80):
        start = rng.normal(size=(2, 5)) * rng.choice([0.0, 0.3, 1.0], size=(2, 1))
        # starts near all invariant subspaces, where the saddles are
        start *= np.repeat(rng.choice([0.02, 1.0], size=2), [2, 3])
        slope = lambda w: (gradient(w.reshape(2, 5), 2).ravel(), hessian(w.reshape(2, 5), 2))
        W = root(slope, start.ravel(), jac=True, method="lm", options={"xtol": 1e-12, "ftol": 1e-12}).x.reshape(2, 5)
        # a search may end before it converges
        if np.abs(gradient(W, 2)).max() < 1e-10:
            # families differ in their risk
            met.add(round(risk(W, 2), 6))
    return compare(len(met), 6, 5)


@claim(
    r"section 7.2.1, equations for $\alpha$", "weight of critical points",
    r"$1 - \frac1p \mathrm{rank}(W) - \frac2p \alpha = 0$, with $+ \frac2{p^*}$ for correlated students",
    right=r"$\frac\alpha p\, \mathrm{rank}(W)$ in both; the printed solutions $\alpha$ are right.",
    tests=f"`test_gradient_vanishes_at_every_family_and_the_risk_is_the_closed_one` {CRITICAL_POINT_TESTS}",
)  # fmt: skip
def compare_weights_of_families(effort: Effort) -> Comparison:
    """Compare squared norms at which the gradient vanishes, by root finding, with section 7.2.1 of Bocchi et al.

    The formula is taken both corrected and as printed.
    """
    outside = lambda q: gradient(np.sqrt(q) * np.eye(3, 6, 2) * (np.arange(3) < 2)[:, None], 2)[0, 2]
    inside = lambda q: gradient(np.sqrt(q) * np.eye(3, 6) * (np.arange(3) < 1)[:, None], 2)[0, 0]
    number = [brentq(f, 0.1, 5.0) for f in (outside, inside)]
    return compare(number, [3 / 4, 3 * 4 / (2 * 3)], [1 / 2, (3 - 1 + 3) / 2])


@claim(
    "section 7.2.2, Hessian on the plateau", "Hessian on the plateau", r"$-\frac1p w_k w_k^\top$",
    right=r"$-\frac1p \sum_k w_k w_k^\top$",
    tests=f"`test_hessian_on_the_plateau_sums_over_the_students` {CRITICAL_POINT_TESTS}",
)  # fmt: skip
def compare_plateau_hessian(effort: Effort) -> Comparison:
    """Compare the Hessian on the plateau, by differences of the gradient, with section 7.2.2 of Bocchi et al.

    The formula is taken both corrected and as printed.
    """
    p, k, d = P, K, 6
    W = np.sqrt(p / (p + 2)) * np.eye(p, d, 2)
    outer = np.einsum("na,mb->manb", W, W) + np.einsum("ma,nb->manb", W, W)
    form = lambda own: (
        -8 / p * (-outer / p + np.einsum("mn,mab->manb", np.eye(p), np.diag(np.arange(d) < k) / k - own / p))
    ).reshape(p * d, p * d)
    every, each = np.tile(W.T @ W, (p, 1, 1)), np.einsum("ma,mb->mab", W, W)
    return compare(hessian_by_differences(W), form(every), form(each), rtol=1e-7)


def hessian_by_differences(W: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Compute the Hessian of the risk at weights W by central differences of the gradient (24) of Bocchi et al."""
    # one weight at a time
    moves = np.eye(W.size).reshape(-1, *W.shape)
    return np.stack([(gradient(W + h * e, K) - gradient(W - h * e, K)).ravel() / (2 * h) for e in moves])


@claim(
    "section 7.2.2, Hessian at solutions",
    "Hessian at solutions",
    r"$\frac8{pp^*}\{\sum_lS_{ql}S_{pl} + \sum_{l,l'}S_{ql}S_{pl'}(w^*_lw_{l'}^{*\top}+w^*_{l'}w_l^{*\top})\}$",
)
def compare_solution_hessian(effort: Effort) -> Comparison:
    """Compare the Hessian at a random solution in R^6, by differences of the gradient, with section 7.2.2 of Bocchi et al."""
    d, S = 6, np.linalg.qr(np.random.default_rng(0).normal(size=(P, K)))[0]
    V = S @ np.eye(K, d)
    outer = np.einsum("na,mb->manb", V, V) + np.einsum("ma,nb->manb", V, V)
    printed = 8 / (P * K) * (np.einsum("nm,ab->manb", S @ S.T, np.eye(d)) + outer)
    return compare(hessian_by_differences(np.sqrt(P / K) * V), printed.reshape(P * d, P * d), rtol=1e-7)


@claim(
    "section 7.2.2, students on one teacher",
    "Hessian where all students have one teacher",
    r"$-\frac8p\{-\frac1p\vec Q_q\vec Q_p(1+2w^*_1w_1^{*\top}) + \delta_{qp}[\frac{p^*-1}{3p^*} + \dots]\}$",
)
def compare_aligned_hessian(effort: Effort) -> Comparison:
    """Compare the Hessian at students along one teacher, by differences, with section 7.2.2 of Bocchi et al.

    All students lie along the same teacher; the differences are those of the gradient.
    """
    d, lengths = 6, np.array([0.5, -0.3, 0.7])
    # the norm at which the gradient along the teacher vanishes
    lengths *= np.sqrt(P * (2 + K) / (3 * K)) / np.linalg.norm(lengths)
    first, own = np.outer(np.eye(d)[0], np.eye(d)[0]), np.diag(np.arange(d) < K) / K
    own = own + (K - 1) / (3 * K) * np.eye(d) - (2 + K) / (3 * K) * first
    between = np.einsum("m,n,ab->manb", lengths, lengths, np.eye(d) + 2 * first) / P
    printed = -8 / P * (np.einsum("mn,ab->manb", np.eye(P), own) - between)
    return compare(hessian_by_differences(np.outer(lengths, np.eye(d)[0])), printed.reshape(P * d, P * d), rtol=1e-7)


@claim("(29)", "negative over null directions", r"$p^*/(N-p^*-p/2-1/2)$ on the plateau")
def compare_negative_to_null_ratio(effort: Effort) -> Comparison:
    """Compare the ratio of negative to null eigenvalues of the Hessian on the plateau with (29) of Bocchi et al.

    The ratio is that of the numbers of eigenvalues, at d = 30.

    The numbers are those of the package's Hessian.
    """
    d, problem = 30, sl.presets.quadratic_network(P, K)
    point = theory.critical_points(problem).family(0, P).statistics(seed=0)
    negative, null, _ = sl.hessian_spectrum(problem, point, d).index
    return compare(negative / null, K / (d - K - P / 2 - 1 / 2))


@claim(
    "after (29) in section 7.2.2", "largest ratio of negative to null directions",
    r"The ratio grows up to $p = N$, where it is $p^*/(N/2 - p^* - 1/2)$.",
    right=r"Up to $p = N - p^*$, where it is $2p^*/(N - p^* - 1)$: the plateau needs $p$ directions orthogonal to the "
    r"teachers.",
    tests=f"`test_largest_ratio_of_negative_to_null_directions_is_at_as_many_units_as_fit` {CRITICAL_POINT_TESTS}",
)  # fmt: skip
def compare_largest_negative_to_null_ratio(effort: Effort) -> Comparison:
    """Compare the largest ratio of negative to null eigenvalues, over widths in R^9, with section 7.2.2 of Bocchi et al.

    The numbers are those of dense Hessians on the plateau. The section is taken in its corrected and its printed form.
    """
    k, d, ratios = 2, 9, []
    for p in range(1, d - k + 1):
        values = np.linalg.eigvalsh(hessian(np.sqrt(p / (p + 2)) * np.eye(p, d, k), k))
        ratios.append((values < -1e-9).sum() / (np.abs(values) < 1e-9).sum())
    return compare(max(ratios), 2 * k / (d - k - 1), k / (d / 2 - k - 1 / 2))


@claim("section 7.5", "degrees of freedom", r"$Np - p(p-1)/2$ for $p\le N$, then $N(N+1)/2$; solutions $pp^*-p^*(p^*+1)/2$")
def compare_degrees_of_freedom(effort: Effort) -> Comparison:
    """Compare numerical ranks of the differential of W^T W, and of rotations at a solution, with section 7.5 of Bocchi et al.

    Here W is the weight matrix; the section counts the degrees of freedom of W^T W and the dimension of the solutions.
    """
    rng, rows = np.random.default_rng(0), []
    for d, p in ((4, 2), (4, 4), (4, 6)):
        W, basis = rng.normal(size=(p, d)), np.eye(p * d).reshape(p * d, p, d)
        half = np.einsum("ia,vib->vab", W, basis)
        rank = np.linalg.matrix_rank((half + half.swapaxes(1, 2)).reshape(p * d, d * d))
        rows.append((rank, d * p - p * (p - 1) // 2 if p <= d else d * (d + 1) // 2))
    p, k = 4, 2
    turns = [np.outer(np.eye(p)[i], np.eye(p)[j]) - np.outer(np.eye(p)[j], np.eye(p)[i]) for i in range(p) for j in range(i)]
    for d in (5, k):  # more dimensions than teachers, and as many or fewer
        W = np.linalg.qr(rng.normal(size=(p, k)))[0] @ np.eye(k, d)
        rows.append((np.linalg.matrix_rank(np.array([A @ W for A in turns]).reshape(-1, d * p)), p * k - k * (k + 1) // 2))
    return compare(*np.transpose(rows))


# --- where learning ends -----------------------------------------------------------------------------------------------------


@claim("(15), (16)", "solutions of zero error", r"$\bar W_S = \sqrt{p/p^*}\,SW^*$ with $S^\top S = 1$")
def compare_solution_dimension(effort: Effort) -> Comparison:
    """Compare the risk of a random solution (15) of Bocchi et al., by Gauss-Hermite quadrature, with the predicted value 0."""
    S = np.linalg.qr(np.random.default_rng(0).normal(size=(P, K)))[0]
    return compare(2 * SquaredUnits(np.sqrt(P / K) * S @ np.eye(K, 5), np.eye(K, 5)).risk, 0.0, atol=1e-13)


@claim("(19)–(21)", "closest solution", r"$\bar S = \rho_0(\rho_0^\top\rho_0)^{-1/2}$ is the closest to the start")
def compare_closest_solution(effort: Effort) -> Comparison:
    """Compare the distance of a quadratic network's closest solution from the start with that of 2000 random solutions.

    The ratio to the smallest of their distances is below 1. The closest solution's distance agrees to 1e-9 with that of the
    solution from SciPy's polar factor of M.
    """
    rng, W = np.random.default_rng(3), random_weights(P, 9, seed=3)
    end = sl.conserved.end_point(sl.presets.quadratic_network(P, K), make_overlaps(np.ones(P), W[:, :K], W @ W.T))
    far = lambda S: np.linalg.norm(np.sqrt(P / K) * S @ np.eye(K, 9) - W)
    # random solutions
    others = [far(np.linalg.qr(rng.normal(size=(P, K)))[0]) for _ in range(2000)]
    own = float(far(polar(W[:, :K])[0]))
    return compare([float(end.distance) / min(others), abs(float(end.distance) - own)], [1.0, 1e-9], rtol=0, relation="<")


def solve_gradient_flow(U: np.ndarray, time: float) -> np.ndarray:
    """Solve gradient flow from weights U for a time, with two teachers along the first axes, and return its end."""
    slope = lambda t, y: -gradient(y.reshape(U.shape), 2).ravel()
    return solve_ivp(slope, (0, time), U.ravel(), method="DOP853", rtol=1e-10, atol=1e-13).y[:, -1].reshape(U.shape)


def build_uneven_start() -> np.ndarray:
    """Build the weights of two orthogonal students of norms 1.4 and 0.5 in R^9."""
    return np.diag([1.4, 0.5]) @ np.linalg.qr(np.random.default_rng(2).normal(size=(9, 9)))[0][:2]


@claim(
    "(22), $S(t)$ conserved", "what is conserved", r"For small $\eta$, under an assumption",
    right=r"Exactly, for every $\eta$, when $Q(0)$ commutes with $\rho_0 \rho_0^\top$; not otherwise",
    tests="`test_orthogonal_part_is_conserved_at_every_learning_rate_from_orthogonal_starts`, "
    f"`test_orthogonal_part_stands_still_where_Q_commutes_and_nowhere_else` {CONSERVATION_TESTS}",
)  # fmt: skip
def compare_conserved_polar_factor(effort: Effort) -> Comparison:
    """Compare the change of S = M (M^T M)^(-1/2) in a quadratic network's gradient flow in R^9 with that in its ODE.

    The printed value is 0.

    Here M has the overlaps with the teachers. The starts are orthogonal students, first of equal norms, for which the right
    value is 0, and then of different norms, for which it is the change in the ODE of the overlaps.
    """
    U, lr, changes = build_uneven_start(), 0.1, []
    even = U / np.linalg.norm(U, axis=1, keepdims=True)
    for start in (even, U):
        end = solve_gradient_flow(start, 4.0)
        changes.append(np.abs(polar(end[:, :2])[0] - polar(start[:, :2])[0]).max())
    problem = sl.presets.quadratic_network(2, 2, lr=lr)
    stats, level = make_overlaps(np.ones(2), U[:, :2], U @ U.T), sl.ODE(corrector=False)
    found = simulate(problem, level, stats, 4.0 / lr, save=2)
    return compare(changes, [0.0, float(sl.conserved.polar(found).drift.max())], [0.0, 0.0], atol=1e-6)


@claim(
    '"converges to the zero-error solution that is closest"', "is the end the closest solution?", "From any start",
    right="True for orthogonal starts of equal norms, false in general",
    tests="`test_equal_widths_end_at_the_closest_solution`, "
    f"`test_students_of_different_norms_end_at_a_solution_that_is_not_the_closest` {CONSERVATION_TESTS}",
)  # fmt: skip
def compare_end_point_is_closest(effort: Effort) -> Comparison:
    """Compare the distance from the closest solution at which a quadratic network's gradient flow and its ODE end.

    The flow is in R^9. The printed value is 0.
    """
    U, lr = build_uneven_start(), 0.1
    problem, stats = sl.presets.quadratic_network(2, 2, lr=lr), make_overlaps(np.ones(2), U[:, :2], U @ U.T)
    closest_M = np.asarray(sl.conserved.end_point(problem, stats).stats.M)
    found = simulate(problem, sl.ODE(corrector=False), stats, 600.0, save=2).M.values[0, -1]
    even = U / np.linalg.norm(U, axis=1, keepdims=True)
    ours = np.linalg.norm(found - closest_M)
    number = [
        np.linalg.norm(solve_gradient_flow(U, 60.0)[:, :2] - closest_M),
        np.linalg.norm(solve_gradient_flow(even, 60.0)[:, :2] - polar(even[:, :2])[0]),
    ]
    return compare(number, [ours, 0.0], [0.0, 0.0], atol=1e-5)


@claim(
    r"end of learning, $p > p^*$", "end of learning", "On a much shorter timescale than the escape",
    right=r"Algebraic: risk $\cdot\, t^2$ tends to $p^2 (p - p^*)(p^* + 2)/(128 (p + 2))$ in $t = \eta \alpha$ for small "
    r"$\eta$.",
    tests=f"`test_more_students_than_teachers_end_algebraically` {PHASE_TESTS}",
)  # fmt: skip
def compare_terminal_decay(effort: Effort) -> Comparison:
    """Compare a quadratic network's late risk times t^2, with three students and one teacher, with its limit (in the paper 0).

    Here t is the time; the limit is that of the algebraic law of decay.
    """
    p, k, t = 3, 1, 1e4
    start = 0.3 * random_weights(p, 6, seed=1) + np.pad(np.eye(p, 1), ((0, 0), (0, 5)))
    slope = lambda t, y: -gradient(y.reshape(p, 6), k).ravel()
    jacobian = lambda t, y: -hessian(y.reshape(p, 6), k)
    # stiff: the decay is algebraic while other directions decay exponentially
    W = solve_ivp(slope, (0, t), start.ravel(), method="Radau", jac=jacobian, rtol=1e-9, atol=1e-12).y[:, -1].reshape(p, 6)
    return compare(risk(W, k) * t**2, p**2 * (p - k) * (k + 2) / (128 * (p + 2)), 0.0, rtol=0.01)
