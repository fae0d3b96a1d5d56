"""Claims of High-dimensional limit theorems for SGD on mixtures, and on the conditions of its theorem."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
from scipy.optimize import brentq

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.mediocrity.claims.noise import evaluate_55, increment_covariances
from sgdlimits.papers.shorthand import make_overlaps, simulate, simulate_chain

# files of the tests named by misprints
FIXED_POINT_TESTS, LOCAL_LIMIT_TESTS = (f"in `tests/laws/test_{name}.py`" for name in ("fixed_points", "local_limit"))
INFINITE_SNR = float("inf")
COARSE_QUADRATURE = sl.Sobol(3, 2)
"""Quadrature rule with few nodes, for chains whose risk is not used: their paths do not depend on the rule."""

# --- mixtures ----------------------------------------------------------------------------------------------------------------


def compare_dynamics(preset: str, runs: int) -> Comparison:
    """Compare mean one-step changes of a mixture's statistics, from gradients in R^200, with the drift f and corrector g.

    The corrector is the part of the drift quadratic in the learning rate. `preset` names the mixture, and `runs` is the number
    of sampled inputs.
    """
    snr, ridge, lr, N, rng = 2.0, 0.1, 0.7, 200, np.random.default_rng(5)
    units, k = {"binary_mixture": (2, 1), "xor_mixture": (4, 2)}[preset]
    a, W = rng.normal(size=units), np.zeros((units, N))
    W[:, :3] = rng.normal(size=(units, 3)) / np.sqrt(2)
    sign, which = rng.choice([-1.0, 1.0], runs), rng.integers(k, size=runs)
    y = sign > 0 if k == 1 else which == 0
    # the noise has variance 1/snr in each direction, the means have norm 1
    x = rng.normal(size=(runs, N)) / np.sqrt(snr)
    x[np.arange(runs), which] += sign
    fields = x @ W.T
    # derivative of the cross-entropy
    error = 1 / (1 + np.exp(-np.maximum(fields, 0) @ a)) - y
    G = error[:, None] * (fields > 0) * a
    cross = G[:, :, None] * fields[:, None]
    each = [lr * (G[:, :, None] * x[:, None, :k] + ridge * W[:, :k]).reshape(runs, -1)]
    each.append(lr * (error[:, None] * np.maximum(fields, 0) + ridge * a))
    each.append((lr * (cross + cross.swapaxes(1, 2) + 2 * ridge * W @ W.T)).reshape(runs, -1))
    # |x|^2/d tends to 1/snr
    each.append((lr**2 * G[:, :, None] * G[:, None] / snr).reshape(runs, -1))
    found, stats = sl.effective_dynamics(getattr(sl.presets, preset)(snr, ridge, lr)), make_overlaps(a, W[:, :k], W @ W.T)
    f, g = found.f(stats), found.g(stats)
    values = np.concatenate(each, 1)
    right = np.concatenate([np.ravel(part) for part in (f.M, f.a, f.Q, g.Q)])
    return compare(values.mean(0), right, rtol=1e-4, sigma=values.std(0, ddof=1) / np.sqrt(runs))


@claim(
    "Proposition 4.1, (4.3)",
    "effective dynamics of the binary mixture",
    r"$f$ and $g$ by the integrals $A^\mu$, $A^\perp$, $B$",
)
def compare_mixture_dynamics(effort: Effort) -> Comparison:
    """Compare mean changes of the binary mixture's statistics, sampled in R^200, with the drift (4.3) of Ben Arous et al.

    The drift has the parts f and g, of which the corrector g is quadratic in the learning rate.
    """
    return compare_dynamics("binary_mixture", effort.runs(20_000, 10_000))


@claim(
    "Proposition F.2, Lemma F.1",
    "effective dynamics of XOR",
    "$f$ and $g$ of 22 statistics at any snr, by integrals like those of (4.3)",
)
def compare_xor_dynamics(effort: Effort) -> Comparison:
    """Compare mean changes of the XOR mixture's statistics, sampled in R^200, with Proposition F.2 of Ben Arous et al.

    The drift is f, and the corrector g is its part quadratic in the learning rate.
    """
    return compare_dynamics("xor_mixture", effort.runs(20_000, 10_000))


@claim("(4.2), Lemma E.1", "seven statistics suffice", "The law of the loss depends on $v$, $m$ and $R^\\perp$ only")
def compare_seven_statistics(effort: Effort) -> Comparison:
    """Compare means of three statistics of the binary mixture, after 60 steps of SGD in R^20, with those of the exact chain.

    The statistics are the risk, the second-layer weight v_1 and the overlap m_1 with the class mean.
    """
    d, runs, rows = 20, effort.runs(1024, 256), []
    problem = sl.presets.binary_mixture(snr=4.0, ridge=0.1)
    start = make_overlaps([0.9, -0.5], [[0.3], [0.2]], [[1.0, 0.1], [0.1, 0.7]])
    for seed, level in enumerate((sl.SGD(d), sl.Chain(d))):
        found = simulate(problem, level, start, 3.0, save=[3.0], runs=runs, seed=seed)
        values = np.stack([found.risk.values[:, 0], found.a.values[:, 0, 0], found.M.values[:, 0, 0, 0]])
        rows.append((values.mean(1), values.std(1, ddof=1) / np.sqrt(runs)))
    (weights, e), (reduced, f) = rows
    return compare(weights, reduced, sigma=np.hypot(e, f))


def noiseless_drift(a: Any, M: Any, ridge: float, preset: str = "binary_mixture") -> sl.Overlaps:
    """Return the ODE's drift without noise inside the classes, for second layer a and weights M along the class means.

    `ridge` is the strength of the ridge penalty, and `preset` the name of the mixture.
    """
    M = np.asarray(M, float).reshape(len(a), -1)
    return getattr(sl.presets, preset)(snr=INFINITE_SNR, ridge=ridge).drift(make_overlaps(np.asarray(a, float), M, M @ M.T))


@claim(
    "Proposition 4.2",
    "mixture without noise",
    r"$\dot m_i = \frac{v_i}2\sigma(-v\cdot m) - \alpha m_i$ if $m_1m_2>0$, else with $v_im_i$; "
    r"$\dot R^\perp = -2\alpha R^\perp$",
)
def compare_noiseless_mixture(effort: Effort) -> Comparison:
    """Compare the binary mixture's drift at infinite signal-to-noise ratio with Proposition 4.2 of Ben Arous et al.

    The states compared have two units on the same side or on opposite sides of the origin along the class mean.
    """
    ridge, rows, R = 0.1, [], np.array([[0.5, 0.2], [0.2, 0.3]])
    problem = sl.presets.binary_mixture(snr=INFINITE_SNR, ridge=ridge)
    for v, m in np.array([[[0.8, 0.5], [0.7, 0.9]], [[0.8, -0.5], [0.7, -0.9]]]):
        drift = problem.drift(make_overlaps(v, m[:, None], np.outer(m, m) + R))
        inside = np.outer(drift.M, m)
        # units on the same side share their output
        gate = 1 / (1 + np.exp(np.full(2, v @ m) if m.prod() > 0 else v * m))
        rows += list(zip(np.ravel(drift.M), v / 2 * gate - ridge * m, strict=True))
        rows += list(zip(np.ravel(drift.a), m / 2 * gate - ridge * v, strict=True))
        rows += list(zip(np.ravel(drift.Q - inside - inside.T), np.ravel(-2 * ridge * R), strict=True))
    return compare(*np.transpose(rows))


@claim(
    "Proposition 4.2, section 5",
    "radius of the rings and threshold of the ridge",
    r"$C_\alpha = \log(1-2\alpha)-\log 2\alpha$ for $\alpha<\frac14$; XOR $-\mathrm{logit}(4\alpha)$ for $\alpha<\frac18$",
)
def compare_ring_radius(effort: Effort) -> Comparison:
    """Compare ring radii and critical ridges, as zeros of the noiseless drift, with Proposition 4.2 of Ben Arous et al."""
    ridge, number = 0.1, []
    for preset, units, clusters in (("binary_mixture", 2, 1), ("xor_mixture", 4, 2)):
        M = np.zeros((units, clusters))

        def growth(v: float, preset: str = preset, M: np.ndarray = M) -> float:
            """Return the growth rate of a relu unit on the binary mixture whose second layer and overlap both equal v."""
            a = np.zeros(len(M))
            a[0] = M[0, 0] = v
            return float(noiseless_drift(a, M, ridge, preset).a[0]) / v

        # the ridge is added back to get the rate without penalty
        number += [brentq(growth, 0.05, 3.0) ** 2, growth(1e-4) + ridge]
    return compare(number, [np.log(0.8 / 0.2), 1 / 4, np.log(0.6 / 0.4), 1 / 8], rtol=1e-4)


@claim(
    "Proposition 4.2 (2)", "ends of the rings", "Open quarter circles",
    right="The end points on the axes are fixed points too.",
    tests=f"`test_binary_mixture_has_two_stable_points_and_two_rings` {FIXED_POINT_TESTS}",
)  # fmt: skip
def compare_ring_ends(effort: Effort) -> Comparison:
    """Compare the number of end points of the binary mixture's rings at which the drift vanishes with 4 (in the paper 0)."""
    radius, drifts = np.sqrt(np.log(4)), []
    for a in radius * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]]):
        drift = noiseless_drift(a, a, 0.1)
        drifts.append(max(np.abs(drift.a).max(), np.abs(drift.M).max()))
    return compare(sum(np.array(drifts) < 1e-9), 4, 0)


@claim(
    "Proposition 4.2 (1), (3)",
    "optima of the binary mixture",
    r"$\pm(\sqrt{C_\alpha}, -\sqrt{C_\alpha})$ are stable fixed points; $0$ is stable for $\alpha > \frac14$",
)
def compare_rates_at_optima(effort: Effort) -> Comparison:
    """Compare the binary mixture's rates at an optimum and at zero weights with Proposition 4.2 of Ben Arous et al.

    The rates, of decay at the optimum and of growth at zero weights, are eigenvalues of the differentiated drift. With v the
    second layer, m the overlap and alpha the ridge, the rates of v - m at the optimum are -2 alpha, and those of v + m follow
    from the slope of the sigmoid.
    """
    alpha, top, h = 0.1, np.sqrt(np.log(4)), 1e-6
    flat_drift = lambda y, ridge: np.concatenate(
        [np.ravel(leaf) for leaf in jax.tree.leaves(noiseless_drift(y[0], y[1], ridge))[:2]]
    )
    point = top * np.array([[1.0, -1.0], [1.0, -1.0]])
    slopes = [(flat_drift(point + h * e, alpha) - flat_drift(point, alpha)) / h for e in np.eye(4).reshape(4, 2, 2)]
    # slopes are rows: the eigenvalues of the transpose are the same
    rates = np.sort(np.linalg.eigvals(slopes).real)
    out = -2 * (alpha - 2 * alpha**2) * top**2
    number = [*rates, np.abs(flat_drift(point, alpha)).max(), flat_drift(np.full((2, 2), h), 0.3)[0] / h]
    return compare(number, [out, out, -2 * alpha, -2 * alpha, 0.0, 1 / 4 - 0.3], atol=1e-5)


@claim(
    "after Proposition 4.1",
    "limit of large snr",
    r"$f$ and $g$ depend on $\lambda^{-1}$ in a Lipschitz way: the limit is reached as $1/\lambda$",
)
def compare_large_snr(effort: Effort) -> Comparison:
    """Compare the exponents of 1/snr in the distance of both mixtures' drifts from their noiseless limits with the value 1.

    Here snr is the signal-to-noise ratio; the drifts are those of the second layer v, the overlaps m and the overlaps Q between
    units.
    """
    m, R, gaps = np.array([[0.7], [-0.9]]), np.array([[0.5, 0.2], [0.2, 0.3]]), []
    stats = make_overlaps([0.8, 0.5], m, m @ m.T + R)
    end = sl.presets.binary_mixture(snr=INFINITE_SNR).drift(stats)
    for snr in (1e3, 1e4):
        drift = sl.presets.binary_mixture(snr=snr).drift(stats)
        # M, a and Q, each by its largest entry
        gaps.append(jax.tree.leaves(jax.tree.map(lambda part, last: float(np.abs(part - last).max()), drift, end)))
    return compare(np.log10(np.divide(gaps[0], gaps[1])), [1.0, 1.0, 1.0], atol=0.01)


@claim(
    "introduction", "limit of the snr", "Theoretically in the limit where the SNR tends to zero",
    right=r"To infinity, as in section 4: $\lambda\to\infty$ after $n\to\infty$.",
)  # fmt: skip
def compare_snr_tends_to_infinity(effort: Effort) -> Comparison:
    """Compare a mixture's noiseless drift of the second layer with its drift at a signal-to-noise ratio of 10^4.

    As printed the ratio tends to 0 instead: the printed value is the drift at 10^-4.
    """
    stats = make_overlaps([0.8, 0.5], [[0.7], [-0.9]], [[0.99, -0.43], [-0.43, 1.11]])
    near, far, limit = (np.asarray(sl.presets.binary_mixture(snr=snr).drift(stats).a) for snr in (1e4, 1e-4, INFINITE_SNR))
    return compare(limit, near, far, rtol=1e-2)


@claim("Proposition 4.2", "half of the runs are optimal", "The basin of the stable points has probability 1/2")
def compare_binary_success_share(effort: Effort) -> Comparison:
    """Compare the share of runs of the binary mixture's exact chain that end at an optimum, at d = 250, with 1/2."""
    runs, d = effort.runs(1024, 256), 250
    problem = sl.presets.binary_mixture(snr=100.0, ridge=0.1).with_expectation(COARSE_QUADRATURE)
    end = simulate_chain(problem, d, 30.0, runs=runs, save=[30.0], seed=2)
    # one unit for each label, both away from zero
    good = (end.a.values[:, -1].prod(1) < 0) & (np.abs(end.M.values[:, -1, :, 0]).min(1) > 0.3)
    return compare(good.mean(), 0.5, sigma=0.5 / np.sqrt(runs))


def detects_all_clusters(a: np.ndarray, M: np.ndarray) -> bool:
    """Return whether each of the four clusters of XOR has a unit along its mean, for second layer a and overlaps M."""
    own = np.argmax(np.abs(M), 1)
    # units that have not decayed
    large = np.abs(a) > 0.1
    detected = {(int(r), float(np.sign(M[j, r]))) for j, r in enumerate(own) if large[j]}
    return detected == set(itertools.product((0, 1), (-1.0, 1.0)))


@claim(
    "after Proposition 4.3", "rings at a finite snr",
    r"From a ring runs cross into the quadrants of the optima on a much larger time scale at finite $\lambda$. We observed no "
    "crossing, which does not exclude any; the number is the ratio of the second-layer weights, which begins at 4/3: see "
    "[Effective dynamics](effective_dynamics.md#on-longer-times-the-rings-at-a-finite-snr).",
    kind="open",
)  # fmt: skip
def compare_rings_at_finite_snr(effort: Effort) -> Comparison:
    """Measure the ratio of two units' second-layer weights on the binary mixture at signal-to-noise ratio 2 and t = 100.

    The ratio starts at 4/3.
    """
    end = simulate_shared_ring(0.01, 0.02, 100.0, d=300, runs=effort.runs(32, 16)).a.values[:, -1]
    return compare((end[:, 1] / end[:, 0]).mean())


def simulate_shared_ring(ridge: float, angle: float, t: float, d: int, runs: int, seed: int = 0) -> Any:
    """Simulate two units that share a ring, at signal-to-noise ratio 2.

    Their second-layer weights start in the ratio 3 to 4, with the given angle between the units. `ridge` is the strength of the
    ridge penalty, `t` the final time and `d` the dimension.
    """
    v = sl.theory.effective.ring_radius(ridge, weight=0.5) * np.array([0.6, 0.8])
    aside = angle * np.array([0.64, -0.36])  # the mean of the units weighted by v^2 is along the mean of the class
    W = v[:, None] * np.stack([np.cos(aside), np.sin(aside)], 1)
    problem = sl.presets.binary_mixture(snr=2.0, ridge=ridge).with_expectation(COARSE_QUADRATURE)
    return simulate_chain(problem, d, t, make_overlaps(v, W[:, :1], W @ W.T), runs=runs, save=9, seed=seed)


@claim(
    "section 5", "3/32 of the runs are optimal", "The probability $3/32$ follows from the limiting ODE.",
    right=r"The signs of $m$ at order $N^{-1/2}$ decide: start the ODE from the random start at finite $N$.",
    tests=f"`test_xor_mixture_has_39_components_of_which_24_are_stable` {FIXED_POINT_TESTS}, "
    "`test_fraction_of_runs_at_the_optimum_and_where_runs_end` in `tests/laws/test_mixtures.py`",
)  # fmt: skip
def compare_xor_success_share(effort: Effort) -> Comparison:
    """Compare the share of runs that end at an optimum, in the exact chain of XOR in d = 250, with the predicted value 3/32.

    The printed share is 0, because the ODE that starts from the limit m = 0 of the overlaps keeps m = 0 by symmetry.
    """
    runs = effort.runs(1024, 512)
    problem = sl.presets.xor_mixture(snr=1000.0, ridge=0.05).with_expectation(COARSE_QUADRATURE)
    end = simulate_chain(problem, 250, 30.0, runs=runs, save=[30.0], seed=2)
    number = np.mean([detects_all_clusters(a, M) for a, M in zip(end.a.values[:, -1], end.M.values[:, -1], strict=True)])
    return compare(number, 3 / 32, 0.0, sigma=np.sqrt(3 / 32 * 29 / 32 / runs))


@claim(
    "section 5, Proposition F.3",
    "39 components of fixed points",
    "39 connected components for XOR, of which $4! = 24$ are stable",
)
def compare_fixed_point_components(effort: Effort) -> Comparison:
    """Compare the numbers of all and of stable connected components of XOR's fixed points with 39 and 24, by enumeration.

    The enumeration assigns each unit to a cluster or to none. An assignment is a fixed point in the span of the cluster means;
    orthogonal to that span the kinks of relu keep the units fixed. Assignments that detect the same clusters are connected
    through unused units, and in 24 assignments each unit detects a different cluster. At full effort the fixed points are found
    by numerical search.
    """
    problem = sl.presets.xor_mixture(snr=INFINITE_SNR, ridge=0.1)
    if effort.name == "full":
        table = sl.fixed_points(problem, count=128, progress=False)
        return compare([table.components, sum(each.copies for each in table.stable)], [39, 24])
    radius, detected, stable = np.sqrt(np.log(1.5)), set(), 0
    clusters = [None, (0, 1), (0, -1), (1, 1), (1, -1)]
    for assignment in itertools.combinations_with_replacement(range(5), 4):
        a, M = np.zeros(4), np.zeros((4, 2))
        for j, cluster in enumerate(assignment):
            if cluster:
                r, s = clusters[cluster]  # type: ignore[misc]
                # units that share a cluster share its squared radius
                a[j] = (1 if r == 0 else -1) * radius / np.sqrt(assignment.count(cluster))
                M[j, r] = s * abs(a[j])
        drift = noiseless_drift(a, M, 0.1, "xor_mixture")
        # along other directions relu has a kink at zero overlap
        if max(np.abs(drift.a).max(), np.abs(drift.M * (M != 0)).max()) < 1e-9:
            used = frozenset(assignment) - {0}
            detected.add(used)
            stable += 24 if len(used) == 4 else 0  # the permutations of the units
    # the full set of clusters is one entry of `detected`, and 24 components
    return compare([len(detected) - 1 + stable, stable], [39, 24])


# --- limits at fixed points --------------------------------------------------------------------------------------------------


def select_block(limit: Any, matrix: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return the block of a local limit's matrix whose rows and columns belong to the named statistics."""
    which = [limit.names.index(name) for name in names]
    return matrix[np.ix_(which, which)]


def ring_drift_matrix(a: np.ndarray, alpha: float, weight: float, sign: float) -> np.ndarray:
    """Return the drift matrix of overlaps m and second layer v on a ring, as in Propositions 4.3 and 5.1 of Ben Arous et al.

    Here `a` is the second layer, `alpha` the ridge, `weight` the inverse probability of a cluster, and `sign` the sign of the
    first term.
    """
    # acts along the radius only: the ring is neutral along itself
    outward = sign * (alpha - weight * alpha**2) * np.outer(a, a)
    return np.kron(np.ones((2, 2)), outward) + alpha * np.kron(np.array([[-1, 1], [1, -1]]), np.eye(len(a)))


@claim(
    "Propositions 4.3 and 5.1", "drift on the rings",
    r"$+ a_i (\alpha - 2\alpha^2) \sum_k a_k (\tilde v_k + \tilde m_k)$ in the drift",
    right=r"Minus (XOR: $\alpha - 4\alpha^2$, minus). The rings are neutral along themselves and stable across.",
    tests=f"`test_ring_of_the_binary_mixture_has_the_published_limit`, `test_double_ring_of_xor_has_the_published_limit` "
    f"{LOCAL_LIMIT_TESTS}",
)  # fmt: skip
def compare_ring_drift(effort: Effort) -> Comparison:
    """Compare the package's local drift matrices on rings of both mixtures with Propositions 4.3 and 5.1 of Ben Arous et al.

    The right matrices are the corrected ones; the printed matrices are those of the propositions.
    """
    alpha, turn, rows = 0.1, np.array([np.cos(0.6), np.sin(0.6)]), []
    a = np.sqrt(np.log(4)) * turn
    binary = sl.local_limit(
        sl.presets.binary_mixture(snr=INFINITE_SNR, ridge=alpha), make_overlaps(a, a[:, None], np.outer(a, a))
    )
    for limit, radius, weight in ((binary, np.log(4), 2), (xor_rings(alpha)[0], np.log(1.5), 4)):
        found = select_block(limit, limit.drift_matrix, ("M[0,0]", "M[1,0]", "a[0]", "a[1]"))
        rows.append([found, *(ring_drift_matrix(np.sqrt(radius) * turn, alpha, weight, sign) for sign in (-1, 1))])
    return compare(*(np.stack(each) for each in zip(*rows, strict=True)))


def xor_rings(alpha: float) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the local limit of XOR at two rings of two units each, and the second layers of both pairs.

    One ring lies along each class direction, mu or nu; `alpha` is the ridge.
    """
    radius = sl.theory.effective.ring_radius(alpha, 0.25)
    mu, nu = radius * np.array([np.cos(0.6), np.sin(0.6)]), -radius * np.array([np.cos(0.8), np.sin(0.8)])
    M = np.zeros((4, 2))
    M[:2, 0], M[2:, 1] = mu, nu
    point = make_overlaps(np.concatenate([mu, nu]), M, M @ M.T)
    return sl.local_limit(sl.presets.xor_mixture(snr=INFINITE_SNR, ridge=alpha), point), mu, nu


@claim(
    "Propositions 4.3 and 5.1",
    "noise on the rings",
    r"$\tilde\Sigma = \alpha^2a_ia_j$, of rank 1; XOR $3\alpha^2a_ia_j$ and $-\alpha^2a_ia_j$, of rank 2",
)
def compare_ring_noise(effort: Effort) -> Comparison:
    """Compare the local noise matrices and ranks on rings of both mixtures with Propositions 4.3 and 5.1 of Ben Arous et al."""
    alpha, a = 0.05, np.sqrt(np.log(9)) * np.array([np.cos(0.6), np.sin(0.6)])
    binary = sl.local_limit(
        sl.presets.binary_mixture(snr=INFINITE_SNR, ridge=alpha), make_overlaps(a, a[:, None], np.outer(a, a))
    )
    xor, mu, nu = xor_rings(alpha)
    own = select_block(binary, binary.noise_matrix, ("a[0]", "a[1]", "M[0,0]", "M[1,0]"))
    across = select_block(xor, xor.noise_matrix, ("a[0]", "a[1]", "a[2]", "a[3]"))
    right = alpha**2 * np.block([[3 * np.outer(mu, mu), -np.outer(mu, nu)], [-np.outer(nu, mu), 3 * np.outer(nu, nu)]])
    one = alpha**2 * np.tile(np.outer(a, a), (2, 2))
    return compare([*own.ravel(), *across.ravel(), binary.rank, xor.rank], [*one.ravel(), *right.ravel(), 1, 2])


@claim(
    "(2.2) for magnified statistics", "noise of statistics with a Hessian", r"$\Sigma = \lim\delta_n J_n V J_n^\top$",
    right=r"A statistic with a Hessian, magnified by $\sqrt n$, also has the fluctuations of the second-order term of a "
    "step. The paper magnifies linear statistics only, for which (2.2) is right.", kind="remark",
    tests=f"`test_chain_and_local_fluctuate_around_a_stable_point_as_the_limit_says` {LOCAL_LIMIT_TESTS}",
)  # fmt: skip
def compare_magnified_increment_variance(effort: Effort) -> Comparison:
    """Compare the variance of a squared norm's one-sample increment, by quadrature, with equation (55) of Arnaboldi et al.

    The printed value is the first-order term of the variance.
    """
    m, lr, noise = 0.3, 0.1, 0.2
    return compare(increment_covariances(m, lr, noise)[2], evaluate_55(m, 2 * lr, noise)[2], evaluate_55(m, 0.0, noise)[2])


@claim(
    "Definition 2.1 (3)", "second condition of localizability",
    r"$\mathbb{E}\langle\nabla^2 u_i, \nabla H\otimes\nabla H - V\rangle^2 = o(\delta_n^{-1})$",
    right=r"$o(\delta_n^{-3})$. For an overlap $W_i\cdot W_j$ of the mixtures the left-hand side is the variance of "
    r"$G_iG_j\lvert x\rvert^2$, of order $N^2$; for $r_\perp^2$ of spiked matrices and tensors it is the variance of "
    r"$\lvert\nabla H\rvert^2$ of a Gaussian gradient, of order $N$, which is not $o(N)$ either. The variance of "
    r"$\delta_n^{-1}$ steps, each $\delta_n^4$ times the left-hand side, must vanish.",
    tests="`test_presets_meet_the_conditions_and_are_critical_at_one_over_d` in `tests/laws/test_effective.py`",
)  # fmt: skip
def compare_localizability_condition(effort: Effort) -> Comparison:
    """Compare the measured exponent of d in the second localizability condition with its corrected and its printed bound."""
    report = sl.effective_dynamics(sl.presets.binary_mixture()).localizability()
    return compare(report.conditions[-1].measured, 2.9, 1.0, rtol=0, relation="<")


@claim("sections 2.1, 3, 4", "critical step size", r"$\delta_n = \Theta(1/n)$ is critical: there the corrector appears")
def compare_critical_step(effort: Effort) -> Comparison:
    """Compare the measured exponent of 1/n in the step size at which matrix PCA's corrector appears with the predicted value 1.

    The corrector is the part of the drift quadratic in the learning rate.
    """
    report = sl.effective_dynamics(sl.presets.spiked_tensor(2, 1.2)).localizability()
    return compare(report.critical_exponent, 1.0, atol=0.02)
