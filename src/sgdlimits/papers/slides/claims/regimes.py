"""Claims of the slides on dimension-free limits: the gap to the ODE, the regimes, Saad and Solla, and sample complexities."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import erf

import sgdlimits as sl
from sgdlimits.analysis.single_index import exit_time
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.one_step import SquaredUnits, gauss_grid, random_weights
from sgdlimits.papers.shorthand import log_slope, make_overlaps, simulate, simulate_chain, start_at
from sgdlimits.papers.slides import theory as regimes

# files of the tests named by misprints and remarks
REGIME_TESTS, SINGLE_INDEX_TESTS = "in `tests/laws/test_regimes.py`", "in `tests/laws/test_single_index.py`"
SAAD_AND_SOLLA_TEST = "`test_drift_and_risk_are_those_of_saad_and_solla` in `tests/laws/test_committee.py`"


@claim(
    "one step of SGD", "loss without 1/2", "The gradient of $(y - f)^2$, beside a risk with the factor 1/2",
    right=r"With the loss $\frac12 (y - f)^2$ of [1] time runs half as fast: the slides' $\gamma$ is half of `lr`.",
    kind="remark", tests=SAAD_AND_SOLLA_TEST,
)  # fmt: skip
def compare_loss_normalisation(effort: Effort) -> Comparison:
    """Compare the ratio of a step on (y - f)^2 to a descent step on the risk, in the overlaps' change, with the prediction 2.

    Here y is the label and f the network's output. The paper prints 1.
    """
    s, h = SquaredUnits(random_weights(2, 3), np.eye(1, 3)), 1e-5
    # central differences in each weight
    risk = lambda e: SquaredUnits(s.W + e, s.E).risk
    descent = -np.array([risk(h * e) - risk(-h * e) for e in np.eye(6).reshape(-1, 2, 3)]).reshape(2, 3)[:, 0] / (2 * h)
    step = 2 * s.mean(s.M)[:, 0] / len(s.W)
    return compare(step / descent, [2.0, 2.0], [1.0, 1.0], rtol=1e-6)


@claim(
    "sample complexity", "exponent 1", r"$n = O(1)$ for $\kappa = 1$; $n = O(d^{k - 1})$ for $\kappa \ge 2$",
    right=r"$n = O(d)$ for $\kappa = 1$; $O(d^{\kappa - 1})$, with $\kappa$ for $k$, for $\kappa \ge 3$",
    tests="`test_exponent_one_needs_samples_in_proportion_to_d`, "
    f"`test_exponent_three_needs_the_square_of_d_at_a_rate_that_falls_as_its_root` {SINGLE_INDEX_TESTS}",
)  # fmt: skip
def compare_exponent_one(effort: Effort) -> Comparison:
    """Compare the exponent of d in the samples that one unit needs to learn a linear target with the prediction 1 (paper: 0).

    The samples are counted in the exact chain.
    """
    sizes = (1024, 20_000)
    (low, e), (high, f) = (learning_time("linear", d, effort.runs(128, 32), 10.0) for d in sizes)
    step = np.log(sizes[1] / sizes[0])
    return compare(1 + np.log(high / low) / step, 1.0, 0.0, atol=0.02, sigma=np.hypot(e / low, f / high) / step)


def learning_time(activation: Any, d: int, runs: int, t_max: float, median: bool = False) -> tuple[float, float]:
    """Return the time that the exact chain of one unit takes from overlap 1/sqrt(d) to 1/2, with its standard error.

    The time is the mean or, with `median`, the median over runs. The unit learns its own activation at the recommended learning
    rate, in runs of length `t_max` at most.
    """
    problem = sl.presets.single_index(activation, lr=sl.recommended_lr(sl.presets.single_index(activation), d, 0.5))
    until = lambda stats: jnp.abs(stats.M[0, 0]) - 0.5
    found = simulate_chain(problem, d, t_max, start_at(d**-0.5), runs=runs, seed=d, until=until)
    times = np.where(found.status.values == "stopped", found.t_end.values, np.inf)
    if not median:
        return float(times.mean()), float(times.std(ddof=1) / np.sqrt(runs))
    # one standard deviation of the rank of the median
    low, middle, high = np.quantile(times, [0.5 - 0.5 / np.sqrt(runs), 0.5, 0.5 + 0.5 / np.sqrt(runs)])
    return float(middle), float(high - low) / 2


@claim("sample complexity", "exponent 2", r"$n = O(d\log d)$ for $\kappa = 2$")
def compare_exponent_two(effort: Effort) -> Comparison:
    """Compare the slope in log d of one unit's learning time, for a target of information exponent 2, with the prediction 3.

    The time is that of the exact chain.

    The learning rate is the best one.
    """
    sizes = (256, 8192)
    number, sigma = log_slope(sizes, [learning_time("he2", d, effort.runs(512, 256), 300.0) for d in sizes])
    return compare(number, 3.0, atol=0.1, sigma=sigma)


def soft_cubic(x):
    """Evaluate a bounded cubic activation of information exponent 3, which is learnt from fewer samples than He_3."""
    return (x**3 - 3 * x / 1.3) * jnp.exp(-0.15 * x**2)


@claim("sample complexity", "exponent 3", r"$n = O(d^{\kappa-1})$ for $\kappa = 3$")
def compare_exponent_three(effort: Effort) -> Comparison:
    """Compare the exponent of d in the samples that one unit needs for a target of information exponent 3 with 2.

    The samples are the median over runs of the exact chain.
    """
    sizes = (80, 320)
    (low, e), (high, f) = (learning_time(soft_cubic, d, effort.runs(256, 256), 2.5 * d, median=True) for d in sizes)
    step = np.log(sizes[1] / sizes[0])
    return compare(1 + np.log(high / low) / step, 2.0, sigma=np.hypot(e / low, f / high) / step)


@claim(
    "information exponent",
    "diffusion of hard targets",
    "Hard targets are found from the typical overlap after a mean time of the SDE",
)
def compare_hard_learning_times(effort: Effort) -> Comparison:
    """Compare the exact chain's mean learning time for a quadratic target with the SDE's, by its backward equation."""
    d = 1024
    problem = sl.presets.single_index("he2", lr=sl.recommended_lr(sl.presets.single_index("he2"), d, 0.5))
    number, sigma = learning_time("he2", d, effort.runs(1024, 256), 300.0)
    return compare(number, float(exit_time(problem, d, 0.5, noise=True)), rtol=0.02, sigma=sigma)


# --- the theorems ------------------------------------------------------------------------------------------------------------


def log_gap(width: int, d: int, lr: float, runs: int) -> np.ndarray:
    """Return the logarithm of the mean gap between chain and ODE at the paper's time 1, and its standard error.

    The gap of a run is the largest distance of an entry of the teacher overlaps M or of the student overlaps Q.
    """
    M = 0.3 * np.cos(1 + np.arange(width)[:, None] + 2 * np.arange(2))
    start = make_overlaps(np.ones(width), M, M @ M.T + np.diag(1 - (M**2).sum(1)))
    problem, t, rows = sl.presets.committee(width, 2, lr=lr, noise=0.1), width / lr, []
    # both from the same statistics
    for level, count in ((sl.Chain(d), runs), (sl.ODE(), 1)):
        found = simulate(problem, level, start, t, runs=count, save=[t], seed=d)
        entries = found.Q.values[:, 0][:, *np.triu_indices(width)]
        rows.append(np.concatenate([found.M.values.reshape(count, -1), entries], axis=1))
    off = np.abs(rows[0] - rows[1]).max(1)
    return np.array([np.log(off.mean()), off.std(ddof=1) / np.sqrt(runs) / off.mean()])


@claim(
    r"theorem on $\Omega$",
    "gap to the ODE",
    r"$E\,\lVert\Omega-\bar\Omega\rVert_\infty \le e^{Ct}\sqrt{\gamma/(dp)}$ in $d$ and $\gamma$",
)
def compare_gap_to_ode(effort: Effort) -> Comparison:
    """Compare the exponents, in d and lr, of the gap between an erf committee's chain and ODE with -1/2 and 1/2."""
    runs = effort.runs(192, 96)
    (base, e), (far, f), (slow, g) = log_gap(4, 256, 1.6, runs), log_gap(4, 4096, 1.6, runs), log_gap(4, 256, 0.2, runs)
    sigma = np.hypot(e, [f, g]) / np.log([16, 8])
    return compare([(far - base) / np.log(16), (base - slow) / np.log(8)], [-0.5, 0.5], atol=0.02, sigma=sigma)


@claim(
    r"theorem on $\Omega$", "gap to the ODE and width",
    r"$E\,\lVert\Omega - \bar\Omega\rVert_\infty \le e^{Ct}\sqrt{\gamma/(dp)}$",
    right=r"Entry by entry. The largest of about $p^2/2$ entries is larger by a factor that grows as $\sqrt{\log p}$.",
    tests=f"`test_gap_to_ode_falls_with_the_root_of_the_width_entry_by_entry` {REGIME_TESTS}",
)  # fmt: skip
def compare_gap_and_width(effort: Effort) -> Comparison:
    """Compare the exponent in the width p of an erf committee's gap between chain and ODE with that of sqrt(log n / p).

    Here n is the number of overlaps; the gap is the largest of their distances. The paper prints -1/2.
    """
    runs, widths = effort.runs(192, 96), np.array([1, 8])
    number, sigma = log_slope(widths, [log_gap(int(p), 512, 0.8, runs) for p in widths])
    # the largest of n normal variables grows as sqrt(2 log n)
    entries = widths * (widths + 1) / 2 + 2 * widths
    right = np.log(np.sqrt(np.log(entries[1]) / np.log(entries[0]) / 8)) / np.log(8)
    return compare(number, right, -0.5, atol=0.08, sigma=sigma)


# --- regimes -----------------------------------------------------------------------------------------------------------------


@claim(
    "the different regimes",
    "phase diagram",
    r"$p = d^\kappa$, $\gamma = d^{-\delta}$: gradient flow, Saad and Solla, noise, no limit",
)
def compare_phase_diagram(effort: Effort) -> Comparison:
    """Compare the exponents of d in the ratio of an erf committee's corrector to its drift with -(kappa + delta).

    The corrector is the part of the drift quadratic in the learning rate; the width is d^kappa and the learning rate d^-delta.
    """
    deltas = np.array([-1.2, -0.8, -0.3, 0.0, 0.3, 0.6, 1.0])
    found = regimes.phase_diagram([0.5], deltas, widths=(4, 12))
    return compare((found.corrector - found.population).values.ravel(), -(0.5 + deltas), atol=0.1)


@claim(
    "classical regime",
    "small learning rates are gradient flow",
    r"$\gamma\to0$: the noise term is $\gamma/p$ times the population's",
)
def compare_classical_corrector_growth(effort: Effort) -> Comparison:
    """Compare the growth, from lr = 0.02 to 0.5, of the ratio of an erf committee's corrector to its drift with 25.

    The corrector is the part of the drift quadratic in the learning rate lr; both parts are those of the student overlaps Q.
    """
    stats = make_overlaps(np.ones(2), [[0.3], [0.1]], [[1.0, 0.2], [0.2, 0.8]])
    ratio = []
    for lr in (0.02, 0.5):
        population, corrector = sl.presets.committee(2, 1, lr=lr, noise=0.1).drift_parts(stats)
        ratio.append(np.asarray(corrector.Q) / np.asarray(population.Q))
    return compare(ratio[1] / ratio[0], 25.0)


@claim(
    "algorithm: SGD",
    "gradient descent on the empirical risk",
    r"$\dot\Theta = -\nabla\hat{\mathcal R}_n$ as $\gamma\to0$, where the batch is all $n$ samples",
)
def compare_gradient_descent(effort: Effort) -> Comparison:
    """Compare the order in lr of the distance between full-batch SGD on 40 samples and gradient flow with the order 1.

    The order is measured by simulation at three learning rates.
    """
    ends = []
    for lr in (0.4, 0.2, 0.1):
        problem, t = sl.presets.committee(2, 1, lr=lr, batch=40), 4 / lr
        found = simulate(problem, sl.SGD(20, reuse=40), sl.RandomInit(20), t, save=[t], runs=2, seed=1)
        ends.append(np.concatenate([found.M.values.ravel(), found.Q.values.ravel()]))
    # same starts and samples at all rates, so that only the rate differs
    far, near = (np.abs(np.diff(ends, axis=0)[i]).max() for i in (0, 1))
    return compare(np.log2(far / near), 1.0, atol=0.05)


@claim(
    "activation", "error function", r"$\sigma = \mathrm{erf}(x)$", right=r"Saad and Solla [6] use $\mathrm{erf}(x/\sqrt 2)$.",
    kind="remark",
    tests=f"{SAAD_AND_SOLLA_TEST}; `test_closed_moments_agree_with_grids` in `tests/unit/expectation/test_units.py` for both",
)  # fmt: skip
def compare_erf_product_mean(effort: Effort) -> Comparison:
    """Compare Saad and Solla's closed mean of g(u) g(v) with quadrature for g(x) = erf(x/sqrt(2)) (in the paper erf(x)).

    Here u and v are correlated Gaussian fields.
    """
    (u, z), weights = gauss_grid(60, 60)
    Q, P, C = 0.8, 1.0, 0.5
    one, two = np.sqrt(Q) * u, C / np.sqrt(Q) * u + np.sqrt(P - C**2 / Q) * z
    mean = lambda scale: (erf(one / scale) * erf(two / scale)) @ weights
    published = 2 / np.pi * np.arcsin(C / np.sqrt((1 + Q) * (1 + P)))
    return compare(published, mean(np.sqrt(2)), mean(1.0), rtol=1e-6)


def integral_3(C: np.ndarray, u: Any, v: Any, w: Any) -> np.ndarray:
    """Evaluate Saad and Solla's integral I_3 = <g'(u) v g(w)>, where g(x) = erf(x/sqrt(2)).

    Here u, v and w are indices of Gaussian fields with covariance C.
    """
    root = np.sqrt((1 + C[u, u]) * (1 + C[w, w]) - C[u, w] ** 2)
    return 2 / np.pi / root * (C[v, w] * (1 + C[u, u]) - C[u, v] * C[u, w]) / (1 + C[u, u])


@claim(
    "high-dimensional regime", "Saad and Solla's equations", r"$\dot R = \eta\langle\delta\,y\rangle$ by the integrals $I_3$"
)
def compare_saad_and_solla(effort: Effort) -> Comparison:
    """Compare the package's drift of M, for three students and two teachers, with Saad and Solla's closed equation."""
    U = random_weights(3, 9, seed=0)
    C = np.block([[U @ U.T, U[:, :2]], [U[:, :2].T, np.eye(2)]])
    sign = np.array([-1, -1, -1, 1, 1])
    printed = 0.7 * integral_3(C, *np.ix_(np.arange(3), np.arange(5), np.arange(5))) @ sign
    problem = sl.presets.committee(3, 2, lr=0.7 * 4)
    return compare(problem.drift(make_overlaps(np.full(3, 1.5), U[:, :2], U @ U.T)).M, printed[:, 3:])


@claim(
    "high-dimensional regime",
    "symmetric plateau of a committee",
    r"Rate of escape $\frac2\pi K(2K-1)^{-1/2}(2K+1)^{-3/2}$ in $\eta\alpha$ [6]",
)
def compare_symmetric_plateau(effort: Effort) -> Comparison:
    """Compare the escape rate from three erf students' symmetric plateau, by linearised gradient flow, with a closed form."""
    K, eta = 3, 0.01
    point = make_overlaps(np.ones(K), np.full((K, K), 1 / np.sqrt(K * (2 * K - 1))), np.full((K, K), 1 / (2 * K - 1)))
    found = sl.linearise(sl.presets.committee(K, K, lr=eta * K**2), point, corrector=False)
    right = 2 / np.pi * K * (2 * K - 1) ** -0.5 * (2 * K + 1) ** -1.5
    return compare([found.rates[0].real / eta, np.abs(found.drift).max()], [right, 0.0], rtol=1e-6)
