"""Claims of Escape dynamics and implicit bias of one-pass SGD in overparameterized quadratic networks."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import polar
from scipy.optimize import brentq, root

import sgdlimits as sl
from sgdlimits.claims.base import Effort, Found, claim, compare
from sgdlimits.claims.one_step import Squares, weights_in
from sgdlimits.theory import quadratic as theory

DRIFT, THEORY, CRITICAL, CONSERVED, PHASES = (
    f"in `tests/{name}.py`"
    for name in (
        "unit/problem/test_drift", "unit/theory/test_quadratic", "laws/test_critical_points", "laws/test_conserved", "laws/test_phases"
    )
)  # fmt: skip
P, K = 3, 2


def sample(noise: float = 0.0) -> Squares:
    """Three students and two teachers in R^5."""
    return Squares(weights_in(P, 5, seed=3), np.eye(K, 5), noise)


def on_plateau(p: int = P, k: int = K, corrector: bool = False, lr: float = 0.01) -> Any:
    """The linearised ODE on the plateau."""
    problem = sl.presets.quadratic_network(p, k, lr=lr)
    norm = theory.plateau_norm(problem, corrector=corrector)
    return sl.linearise(problem, sl.Overlaps(np.ones(p), np.zeros((p, k)), norm * np.eye(p)), corrector=corrector)


# --- the dynamics ------------------------------------------------------------------------------------------------------------


def risk_23(s: Squares) -> float:
    p, k, Q, q = len(s.W), len(s.E), s.W @ s.W.T, (s.W**2).sum(1)
    pairs = sum(q[i] * q[j] + 2 * Q[i, j] ** 2 for i in range(p) for j in range(i + 1, p))
    rho = s.W @ s.E.T
    return (k + 2) / k - 2 / p * q.sum() - 4 / (p * k) * (rho**2).sum() + (3 * (q**2).sum() + 2 * pairs) / p**2


@claim("(23)", "population risk", r"$\frac{p^*+2}{p^*} - \frac2p\sum_kQ_{kk} - \frac4{pp^*}\sum\rho_{kl}^2 + \dots$")
def risk(effort: Effort) -> Found:
    s = sample()
    return compare(2 * s.risk, risk_23(s))


@claim("(33), (38)", "ODE of the overlaps with teachers", r"$\frac{d\rho_{kl}}{d\alpha} = \frac{4\eta}p\rho_{kl}[\dots] - \frac{8\eta}{p^2}\sum_{r\ne k}Q_{kr}\rho_{rl}$")
def overlaps(effort: Effort) -> Found:
    s, Q = sample(), sample().W @ sample().W.T
    rho, q = s.W @ s.E.T, Q.diagonal()
    own = 4 / P * rho * (1 + 2 / K - (q.sum() + 2 * q) / P)[:, None]
    return compare(2 / P * s.mean(s.M)[:, :], own - 8 / P**2 * (Q - np.diag(q)) @ rho)


def equation_34(s: Squares, eta: float, bracket: float) -> np.ndarray:
    """dQ/dalpha with this bracket beside Q at second order."""
    Q, rho = s.W @ s.W.T, s.W @ s.E.T
    q, T, RR = Q.diagonal(), np.trace(Q), rho @ rho.T
    off = Q - np.diag(q)
    first = 8 / P * Q * (1 - (T + q[:, None] + q) / P) + 16 / (P * K) * RR - 8 / P**2 * (off @ Q + Q @ off)
    second = Q * bracket + (4 / K + 8 / K**2) * RR + 4 / P**2 * T * Q @ Q + 8 / P**2 * Q @ Q @ Q - 4 / P * Q @ Q
    second = second - 4 / (P * K) * T * RR - 8 / (P * K) * (RR @ Q + Q @ RR)
    return eta * first + 16 * eta**2 / P**2 * second


@claim(
    r"(34), bracket of $Q_{kk'}$ at order $\eta^2$", "ODE of the overlaps between students",
    r"$1 + \frac{2}{p^*} - \frac{2p - 1}{p^2} (\mathrm{Tr}\, Q)^2 - \frac{1}{p p^*} \sum \rho^2$",
    right=r"$1 + \frac{2}{p^*} - \frac{2}{p} \mathrm{Tr}\, Q - \frac{4}{p p^*} \sum \rho^2 + \frac{1}{p^2}\big[(\mathrm{Tr}\, Q)^2 "
    r"+ 2\, \mathrm{Tr}\, Q^2\big]$, which is the risk",
    kind="misprint",
    tests="`test_risk_of_a_quadratic_network_is_the_corrected_bracket_of_its_paper`, `test_closed_drift_agrees_with_isserlis` "
    f"{DRIFT}",
)  # fmt: skip
def students(effort: Effort) -> Found:
    s, eta = sample(), 0.2
    T, rho2 = (s.W**2).sum(), ((s.W @ s.E.T) ** 2).sum()
    printed = 1 + 2 / K - (2 * P - 1) / P**2 * T**2 - rho2 / (P * K)
    number = 2 * eta / P * s.mean(s.Q(2 * eta / P))
    return compare(number, equation_34(s, eta, risk_23(s)), equation_34(s, eta, printed))


@claim("(9)", "norm learning", r"$\frac{dQ_{kk}}{dt} = \frac8pQ_{kk}[1-\frac1p(\sum_rQ_{rr}+2Q_{kk})]$, to first order in small overlaps")
def norm_learning(effort: Effort) -> Found:
    """Students of norms 0.5 to 1.2 with overlaps of 1e-5 among them and with the teachers."""
    h, W = 1e-5, np.zeros((P, 5))
    W[:, 2:] = np.diag(np.sqrt([0.5, 0.9, 1.2]))
    W[0, 0], W[0, 3] = h, h
    s = Squares(W, np.eye(K, 5))
    q, T = np.array([0.5, 0.9, 1.2]), 2.6
    found = 2 / P * s.mean(s.Q(0.0))
    number = [*found.diagonal(), found[0, 1] / (W @ W.T)[0, 1], 2 / P * s.mean(s.M)[0, 0] / h]
    between = 8 / P * (1 - (T + q[0] + q[1]) / P) - 8 / P**2 * (q[0] + q[1])
    return compare(number, [*(8 / P * q * (1 - (T + 2 * q) / P)), between, 4 / P * (1 + 2 / K - (T + 2 * q[0]) / P)], rtol=1e-6)


@claim("(10)", "norm on the plateau", r"$\bar Q = p/(p+2)$")
def plateau_norm(effort: Effort) -> Found:
    """Where gradient flow of orthogonal students without overlaps comes to rest."""
    at = lambda q: Squares(np.sqrt(q) * np.eye(P, 5, 2), np.eye(K, 5))
    number = brentq(lambda q: float(at(q).mean(at(q).Q(0.0))[0, 0]), 0.1, 2.0)
    return compare(number, P / (P + 2))


@claim("(11), (12)", "growth on the plateau", r"$\omega_\rho = 8/(pp^*)$")
def growth(effort: Effort) -> Found:
    return compare(on_plateau().rates.real[: P * K] / 0.01, 8 / (P * K))


@claim(
    "(11), (35)", "overlaps between students on the plateau", r"$dQ_{kk'}/dt = +\omega_Q Q_{kk'}$",
    right="Minus: overlaps between students decay on the plateau.", kind="misprint",
    tests=f"`test_plateau_is_a_fixed_point_with_the_rates_of_its_jacobian` {THEORY}, "
    f"`test_overlaps_between_students_decay_on_the_plateau` {PHASES}",
)  # fmt: skip
def decay(effort: Effort) -> Found:
    found, rate = on_plateau(), 16 / (P * (P + 2))
    return compare(found.matrix[found.names.index("Q[0,1]"), found.names.index("Q[0,1]")] / 0.01, -rate, rate)


@claim(
    "(13)", "loss below the plateau", r"$t = \eta \alpha$", right=r"There $t$ is $\eta \alpha/p$; in $t = \eta \alpha$ the exponent "
    r"is $16 t/(p p^*)$.",
    kind="misprint", tests=f"`test_risk_on_the_plateau_is_13_with_the_exponent_of_its_appendix` {THEORY}",
)  # fmt: skip
def loss_13(effort: Effort) -> Found:
    """The relative loss of gradient flow at lr alpha = 1.5, over the squared spread of the overlaps, averaged over starts."""
    t, lr, runs = 1.5, 0.01, 8
    M = 1e-4 * np.random.default_rng(0).normal(size=(runs, P, K))
    Q = np.tile(P / (P + 2) * np.eye(P), (runs, 1, 1))
    problem, level = sl.presets.quadratic_network(P, K, lr=lr), sl.ODE(corrector=False, rtol=1e-11, atol=1e-16)
    start = sl.Overlaps(np.ones((runs, P)), M, Q)
    found = sl.simulate(problem, level, start, t_max=t / lr, runs=runs, save=2, progress=False).risk.values.mean(0)
    spread = (M**2).mean()
    form = lambda exponent: 4 * (np.exp(exponent) - 1) / (1 + 2 / K - P / (P + 2))
    return compare((1 - found[1] / found[0]) / spread, form(16 * t / (P * K)), form(16 * t / K), rtol=1e-4)


@claim("figure 2", "best learning rate", "It is linear in the width", tests=f"`test_optimal_rate_is_linear_in_the_width` {THEORY}")
def optimal(effort: Effort) -> Found:
    """Rates that halve the risk soonest for widths 3 to 12: the share of their variance that a line leaves is below 0.001."""
    widths = np.array([3, 6, 9, 12])
    rates = np.array([theory.optimal_lr(int(p), 3, starts=2) for p in widths])
    rest = rates - np.polyval(np.polyfit(widths, rates, 1), widths)
    return compare(rest.var() / rates.var(), 1e-3, rtol=0, relation="<")


@claim("figure 1", "SGD follows the ODE", "Norms of SGD on average are the ODE's")
def follows_ode(effort: Effort) -> Found:
    """The chain at d = 2000 from orthogonal students of norm 0.2 against the closed curve of norm learning."""
    problem, runs = sl.presets.quadratic_network(P, K, lr=0.2), effort.runs(256, 64)
    start = sl.Overlaps(np.ones(P), np.zeros((P, K)), 0.2 * np.eye(P))
    how: dict[str, Any] = {"t_max": 4, "runs": runs, "save": np.array([2.0, 4.0]), "progress": False}
    norms = np.trace(sl.simulate(problem, sl.Chain(2000), start, **how).Q.values, axis1=2, axis2=3) / P
    return compare(norms.mean(0), theory.norm_learning(problem, [2.0, 4.0], 0.2), sigma=norms.std(0, ddof=1) / np.sqrt(runs), rtol=1e-3)


# --- the landscape -----------------------------------------------------------------------------------------------------------


def gradient(W: np.ndarray, k: int) -> np.ndarray:
    """(24), with the teachers along the first k axes."""
    p, Q, teachers = len(W), W @ W.T, np.eye(k, W.shape[1])
    return -4 / p * (W + 2 / k * (W @ teachers.T) @ teachers - (np.trace(Q) * W + 2 * Q @ W) / p)


def hessian(W: np.ndarray, k: int) -> np.ndarray:
    """(25), as a matrix of p d rows."""
    (p, d), Q = W.shape, W @ W.T
    outer = np.einsum("na,mb->manb", W, W) + np.einsum("ma,nb->manb", W, W)
    between = -2 / p * (np.einsum("nm,ab->manb", Q, np.eye(d)) + outer)
    own = (1 - np.trace(Q) / p) * np.eye(d) + 2 / k * np.diag(np.arange(d) < k) - 2 / p * W.T @ W
    return -4 / p * (between + np.einsum("mn,ab->manb", np.eye(p), own)).reshape(p * d, p * d)


@claim("(24)", "gradient", r"$-\frac4p[w_m + \frac2{p^*}\sum_l\rho_{ml}w^*_l - \frac1p\sum_k(Q_{kk}w_m + 2Q_{km}w_k)]$")
def gradient_24(effort: Effort) -> Found:
    s = sample()
    return compare(-4 / P * (s.error * s.weights * s.fields) @ s.x.T, gradient(s.W, K))


@claim("(25)", "Hessian", r"$-\frac4p\{-\frac2p(Q_{nm} + w_nw_m^\top + w_mw_n^\top) + \delta_{mn}[\dots]\}$")
def hessian_25(effort: Effort) -> Found:
    """Eigenvalues at random weights in R^9."""
    W = weights_in(P, 9, seed=1)
    found = sl.hessian_spectrum(sl.presets.quadratic_network(P, K), sl.Overlaps(np.ones(P), W[:, :K], W @ W.T), 9)
    return compare(np.repeat(*found), np.linalg.eigvalsh(hessian(W, K)), rtol=1e-8)


def tables(p: int, k: int, d: int) -> Any:
    """The tables of section 7.2.2: (s, r), eigenvalues and their multiplicities."""
    yield (0, 0), [(-4 / p * (1 + 2 / k), p * k), (-4 / p, p * (d - k))]
    plateau = [(-8 / (p * k), p * k), (8 / p, 1), (16 / (p * (p + 2)), p * (p - 1) // 2 + p - 1)]
    yield (0, p), [*plateau, (0, p * (d - k - p)), (0, p * (p - 1) // 2)]
    solution = [(8 / (p * k), k * (d - k)), (16 / (p * k), k * (k + 1) // 2 - 1), (8 / (p * k) * (2 + k), 1)]
    yield (k, 0), [*solution, (0, (d - k) * (p - k)), (0, k * (p - k)), (0, k * (k - 1) // 2)]
    aligned = [(-8 * (k - 1) / (3 * p * k), (d - k) * (p - 1)), (-8 * (k + 2) / (3 * p * k), (k - 1) * (p - 1))]
    yield (1, 0), [*aligned, (8 / (p * k), d - k), (8 * (2 + k) / (p * k), 1), (0, p - 1), (0, k - 1)]


@claim("section 7.2.2", "spectra at critical points", "Tables for tabula rasa, plateau, zero error, and all students on one teacher")
def spectra(effort: Effort) -> Found:
    """All eigenvalues in R^12 of the package's Hessian at the four kinds of points."""
    d, problem = 12, sl.presets.quadratic_network(P, K)
    points, rows = theory.critical_points(problem), []
    for (s, r), table in tables(P, K, d):
        found = np.repeat(*sl.hessian_spectrum(problem, points.family(s, r).statistics(seed=d), d))
        printed = np.sort(np.repeat(*np.transpose([(value, int(count)) for value, count in table]).astype(object).tolist()))
        rows += list(zip(found, printed.astype(float), strict=True))
    return compare(*np.transpose(rows), rtol=1e-8)


@claim(
    "(28), (30)", "rotations of the students", r"$M M^\top = I$, and in (30) $W = \sqrt{\cdot}\, M W^{*\top}$",
    right=r"$M^\top M = I$; for $s < p^*$ the teachers stand for any $s$ orthonormal vectors in their span.", kind="misprint",
    tests=f"`test_rotations_have_orthonormal_columns` {CRITICAL}",
)  # fmt: skip
def rotations(effort: Effort) -> Found:
    """The eigenvalues of M M^T at a critical point of three students in a plane outside the teachers' span, found by Newton steps."""
    start = np.array([[0.9, 0.1], [0.0, 0.8], [0.2, -0.1]])
    found = root(lambda w: gradient(np.pad(w.reshape(3, 2), ((0, 0), (2, 0))), 2)[:, 2:].ravel(), start.ravel(), method="lm")
    M = found.x.reshape(3, 2) / np.sqrt(3 / 4)
    return compare(np.linalg.eigvalsh(M @ M.T), [0, 1, 1], [1, 1, 1], atol=1e-6)


@claim(
    "critical points", "families of critical points", "Families of rank $r$ (uncorrelated) and $s$ (correlated)",
    right=r"Also mixed ones: $s$ teacher directions with weight $\beta + p/p^*$ and $r \ge 1$ orthogonal ones with $\beta = p (p^* - "
    r"s)/(p^* (s + r + 2))$, $s < p^*$",
    kind="misprint",
    tests=f"`test_gradient_vanishes_at_every_family_and_the_risk_is_the_closed_one`, `test_every_search_ends_in_a_family` {CRITICAL}",
)  # fmt: skip
def families(effort: Effort) -> Found:
    """How many risks roots of the gradient of two students and two teachers in R^5 have, over 80 searches."""
    rng, met = np.random.default_rng(0), set()
    for _ in range(80):
        start = rng.normal(size=(2, 5)) * rng.choice([0.0, 0.3, 1.0], size=(2, 1)) * np.repeat(rng.choice([0.02, 1.0], size=2), [2, 3])
        slope = lambda w: (gradient(w.reshape(2, 5), 2).ravel(), hessian(w.reshape(2, 5), 2))
        W = root(slope, start.ravel(), jac=True, method="lm", options={"xtol": 1e-12, "ftol": 1e-12}).x.reshape(2, 5)
        if np.abs(gradient(W, 2)).max() < 1e-10:
            values = np.linalg.eigvalsh(W.T @ W / 2 - np.diag([0.5, 0.5, 0, 0, 0]))
            met.add(round(values.sum() ** 2 + 2 * (values**2).sum(), 6))
    return compare(len(met), 6, 5)


@claim(
    r"section 7.2.1, equations for $\alpha$", "weight of critical points",
    r"$1 - \frac1p \mathrm{rank}(W) - \frac2p \alpha = 0$, with $+ \frac2{p^*}$ for correlated students",
    right=r"$\frac\alpha p\, \mathrm{rank}(W)$ in both; the printed solutions $\alpha$ are right.", kind="misprint",
    tests=f"`test_gradient_vanishes_at_every_family_and_the_risk_is_the_closed_one` {CRITICAL}",
)  # fmt: skip
def weights_of_families(effort: Effort) -> Found:
    """Where the gradient vanishes along three students of rank 2 outside, and of rank 1 inside the teachers' span."""
    outside = lambda q: gradient(np.sqrt(q) * np.eye(3, 6, 2) * (np.arange(3) < 2)[:, None], 2)[0, 2]
    inside = lambda q: gradient(np.sqrt(q) * np.eye(3, 6) * (np.arange(3) < 1)[:, None], 2)[0, 0]
    number = [brentq(f, 0.1, 5.0) for f in (outside, inside)]
    return compare(number, [3 / 4, 3 * 4 / (2 * 3)], [1 / 2, (3 - 1 + 3) / 2])


@claim(
    "section 7.2.2, Hessian on the plateau", "Hessian on the plateau", r"$-\frac1p w_k w_k^\top$",
    right=r"$-\frac1p \sum_k w_k w_k^\top$", kind="misprint", tests=f"`test_hessian_on_the_plateau_sums_over_the_students` {CRITICAL}",
)  # fmt: skip
def plateau_hessian(effort: Effort) -> Found:
    """By differences of the gradient of the risk; printed, with the unit of the block alone."""
    p, k, d = 3, 2, 6
    W = np.sqrt(p / (p + 2)) * np.eye(p, d, 2)
    h = 1e-5
    number = [(gradient(W + h * e, k) - gradient(W - h * e, k)).ravel() / (2 * h) for e in np.eye(p * d).reshape(-1, p, d)]
    outer = np.einsum("na,mb->manb", W, W) + np.einsum("ma,nb->manb", W, W)
    form = lambda own: (-8 / p * (-outer / p + np.einsum("mn,mab->manb", np.eye(p), np.diag(np.arange(d) < k) / k - own / p))).reshape(
        p * d, p * d
    )
    every, each = np.tile(W.T @ W, (p, 1, 1)), np.einsum("ma,mb->mab", W, W)
    return compare(number, form(every), form(each), rtol=1e-7)


@claim("(29)", "negative over null directions", r"$p^*/(N-p^*-p/2-1/2)$ on the plateau")
def ratio(effort: Effort) -> Found:
    d, problem = 30, sl.presets.quadratic_network(P, K)
    point = theory.critical_points(problem).family(0, P).statistics(seed=0)
    negative, null, _ = sl.hessian_spectrum(problem, point, d).index
    return compare(negative / null, K / (d - K - P / 2 - 1 / 2))


@claim(
    "after (29) in section 7.2.2", "largest ratio of negative to null directions",
    r"The ratio grows up to $p = N$, where it is $p^*/(N/2 - p^* - 1/2)$.",
    right=r"Up to $p = N - p^*$, where it is $2p^*/(N - p^* - 1)$: the plateau needs $p$ directions orthogonal to the teachers.",
    kind="misprint", tests=f"`test_largest_ratio_of_negative_to_null_directions_is_at_as_many_units_as_fit` {CRITICAL}",
)  # fmt: skip
def largest_ratio(effort: Effort) -> Found:
    """Counted in dense Hessians in R^9 for all widths that have a plateau."""
    k, d, ratios = 2, 9, []
    for p in range(1, d - k + 1):
        values = np.linalg.eigvalsh(hessian(np.sqrt(p / (p + 2)) * np.eye(p, d, k), k))
        ratios.append((values < -1e-9).sum() / (np.abs(values) < 1e-9).sum())
    return compare(max(ratios), 2 * k / (d - k - 1), k / (d / 2 - k - 1 / 2))


@claim("section 7.5", "degrees of freedom", r"$Np - p(p-1)/2$ for $p\le N$, then $N(N+1)/2$; solutions $pp^*-p^*(p^*+1)/2$")
def degrees(effort: Effort) -> Found:
    """Ranks of the differential of W^T W at random weights, and of rotations at a solution."""
    rng, rows = np.random.default_rng(0), []
    for d, p in ((4, 2), (4, 4), (4, 6)):
        W, basis = rng.normal(size=(p, d)), np.eye(p * d).reshape(p * d, p, d)
        half = np.einsum("ia,vib->vab", W, basis)
        rank = np.linalg.matrix_rank((half + half.swapaxes(1, 2)).reshape(p * d, d * d))
        rows.append((rank, d * p - p * (p - 1) // 2 if p <= d else d * (d + 1) // 2))
    p, k = 4, 2
    W = np.linalg.qr(rng.normal(size=(p, k)))[0] @ np.eye(k, 5)
    turns = [np.outer(np.eye(p)[i], np.eye(p)[j]) - np.outer(np.eye(p)[j], np.eye(p)[i]) for i in range(p) for j in range(i)]
    rows.append((np.linalg.matrix_rank(np.array([A @ W for A in turns]).reshape(-1, 5 * p)), p * k - k * (k + 1) // 2))
    return compare(*np.transpose(rows))


# --- where learning ends -----------------------------------------------------------------------------------------------------


@claim("(15), (16)", "solutions of zero error", r"$\bar W_S = \sqrt{p/p^*}\,SW^*$ with $S^\top S = 1$")
def solutions(effort: Effort) -> Found:
    S = np.linalg.qr(np.random.default_rng(0).normal(size=(P, K)))[0]
    return compare(2 * Squares(np.sqrt(P / K) * S @ np.eye(K, 5), np.eye(K, 5)).risk, 0.0, atol=1e-13)


@claim("(19)–(21)", "closest solution", r"$\bar S = \rho_0(\rho_0^\top\rho_0)^{-1/2}$ is the closest to the start")
def closest(effort: Effort) -> Found:
    """Its distance over the least of 2000 random solutions is below 1, and is that of SciPy's polar decomposition."""
    rng, W = np.random.default_rng(3), weights_in(P, 9, seed=3)
    end = sl.conserved.end_point(sl.presets.quadratic_network(P, K), sl.Overlaps(np.ones(P), W[:, :K], W @ W.T))
    far = lambda S: np.linalg.norm(np.sqrt(P / K) * S @ np.eye(K, 9) - W)
    others = [far(np.linalg.qr(rng.normal(size=(P, K)))[0]) for _ in range(2000)]
    own = float(far(polar(W[:, :K])[0]))
    return compare([float(end.distance) / min(others), abs(float(end.distance) - own)], [1.0, 1e-9], rtol=0, relation="<")


def flow_in_rd(U: np.ndarray, time: float) -> np.ndarray:
    """Gradient flow of weights in R^d, teachers along the first two axes."""
    slope = lambda t, y: -gradient(y.reshape(U.shape), 2).ravel()
    return solve_ivp(slope, (0, time), U.ravel(), method="DOP853", rtol=1e-10, atol=1e-13).y[:, -1].reshape(U.shape)


def uneven_start() -> np.ndarray:
    """Two orthogonal students of different norms in R^9."""
    return np.diag([1.4, 0.5]) @ np.linalg.qr(np.random.default_rng(2).normal(size=(9, 9)))[0][:2]


@claim(
    "(22), $S(t)$ conserved", "what is conserved", r"For small $\eta$, under an assumption",
    right=r"Exactly, for every $\eta$, when $Q(0)$ commutes with $\rho_0 \rho_0^\top$; not otherwise", kind="misprint",
    tests="`test_orthogonal_part_is_conserved_at_every_learning_rate_from_orthogonal_starts`, "
    f"`test_orthogonal_part_stands_still_where_Q_commutes_and_nowhere_else` {CONSERVED}",
)  # fmt: skip
def conserved(effort: Effort) -> Found:
    """The largest change of S by gradient flow in R^9 from orthogonal students of equal and of different norms.

    For the second, right is what the ODE of the overlaps has.
    """
    U, lr, changes = uneven_start(), 0.1, []
    even = U / np.linalg.norm(U, axis=1, keepdims=True)
    for start in (even, U):
        end = flow_in_rd(start, 4.0)
        changes.append(np.abs(polar(end[:, :2])[0] - polar(start[:, :2])[0]).max())
    problem = sl.presets.quadratic_network(2, 2, lr=lr)
    stats, level = sl.Overlaps(np.ones(2), U[:, :2], U @ U.T), sl.ODE(corrector=False)
    found = sl.simulate(problem, level, stats, t_max=4.0 / lr, save=2, progress=False)
    return compare(changes, [0.0, float(sl.conserved.polar(found).drift.max())], [0.0, 0.0], atol=1e-6)


@claim(
    '"converges to the zero-error solution that is closest"', "is the end the closest solution?", "From any start",
    right="True for orthogonal starts of equal norms, false in general", kind="misprint",
    tests="`test_equal_widths_end_at_the_closest_solution`, "
    f"`test_students_of_different_norms_end_at_a_solution_that_is_not_the_closest` {CONSERVED}",
)  # fmt: skip
def end_is_closest(effort: Effort) -> Found:
    """The distance in M of the end of gradient flow in R^9 from the closest solution; right is that of the ODE's end."""
    U, lr = uneven_start(), 0.1
    problem, stats = sl.presets.quadratic_network(2, 2, lr=lr), sl.Overlaps(np.ones(2), U[:, :2], U @ U.T)
    closest_M = np.asarray(sl.conserved.end_point(problem, stats).stats.M)
    found = sl.simulate(problem, sl.ODE(corrector=False), stats, t_max=600.0, save=2, progress=False).M.values[0, -1]
    even = U / np.linalg.norm(U, axis=1, keepdims=True)
    ours = np.linalg.norm(found - closest_M)
    number = [np.linalg.norm(flow_in_rd(U, 60.0)[:, :2] - closest_M), np.linalg.norm(flow_in_rd(even, 60.0)[:, :2] - polar(even[:, :2])[0])]
    return compare(number, [ours, 0.0], [0.0, 0.0], atol=1e-5)


@claim(
    r"end of learning, $p > p^*$", "end of learning", "On a much shorter timescale than the escape",
    right=r"Algebraic: risk $\cdot\, t^2$ tends to $p^2 (p - p^*)(p^* + 2)/(128 (p + 2))$ in $t = \eta \alpha$ for small $\eta$.",
    kind="misprint", tests=f"`test_more_students_than_teachers_end_algebraically` {PHASES}",
)  # fmt: skip
def terminal(effort: Effort) -> Found:
    """Risk t^2 of gradient flow in R^6 of three students and one teacher at t = 10^4; printed, of a risk that ends exponentially."""
    p, k, t = 3, 1, 1e4
    start = 0.3 * weights_in(p, 6, seed=1) + np.pad(np.eye(p, 1), ((0, 0), (0, 5)))
    slope = lambda t, y: -gradient(y.reshape(p, 6), k).ravel()
    jacobian = lambda t, y: -hessian(y.reshape(p, 6), k)
    W = solve_ivp(slope, (0, t), start.ravel(), method="Radau", jac=jacobian, rtol=1e-9, atol=1e-12).y[:, -1].reshape(p, 6)
    values = np.linalg.eigvalsh(W.T @ W / p - np.diag(np.arange(6) < k) / k)
    return compare((values.sum() ** 2 + 2 * (values**2).sum()) * t**2, p**2 * (p - k) * (k + 2) / (128 * (p + 2)), 0.0, rtol=0.01)
