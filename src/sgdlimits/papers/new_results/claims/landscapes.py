"""Claims of this package beyond the papers: landscapes, conserved quantities, mixtures, finite d, other algorithms."""

from __future__ import annotations

import numpy as np
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq, root
from scipy.stats import kstest, norm

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.effective import recovery, theory as effective
from sgdlimits.papers.effective.claims.mixtures import simulate_shared_ring
from sgdlimits.papers.mediocrity.claims.times import chain_times
from sgdlimits.papers.one_step import random_weights
from sgdlimits.papers.quadratic import theory as theory
from sgdlimits.papers.quadratic.claims.landscape import gradient, hessian, risk
from sgdlimits.papers.shorthand import make_overlaps, make_spike, mean_and_error, simulate, simulate_chain, start_at

# --- quadratic networks ------------------------------------------------------------------------------------------------------


@claim(
    "quadratic networks",
    "all critical points",
    r"$s$ teacher directions and $r$ others; risk $\frac{2(p^*-s)(p^*+r+2)}{p^{*2}(s+r+2)}$",
    proof="[critical points](critical_points.md#all-of-them)",
)
def compare_critical_points(effort: Effort) -> Comparison:
    """Compare gradient and risk at random points of all critical families of a quadratic network with 0 and closed forms."""
    rows = []
    for p in range(1, 5):
        for k in range(1, 4):
            for family in theory.critical_points(sl.presets.quadratic_network(p, k)):
                W, s, r = family.weights(9, seed=3), family.s, family.r
                rows += [np.abs(gradient(W, k)).max(), risk(W, k) - 2 * (k - s) * (k + r + 2) / (k**2 * (s + r + 2))]
    return compare(rows, 0.0, atol=1e-12)


@claim(
    "quadratic networks",
    "index of critical points",
    r"$(p-s-r)(d-s-r)+r(p^*-s)$ negative directions: no minima but the global ones",
    proof="[critical points](critical_points.md#no-other-minima)",
)
def compare_hessian_index(effort: Effort) -> Comparison:
    """Compare numbers of negative eigenvalues of a quadratic network's Hessians in R^9, one per family, with a formula."""
    p, k, d, rows = 3, 2, 9, []
    for family in theory.critical_points(sl.presets.quadratic_network(p, k)):
        s, r = family.s, family.r
        negative = int((np.linalg.eigvalsh(hessian(family.weights(d, seed=1), k)) < -1e-9).sum())
        rows.append((negative, (p - s - r) * (d - s - r) + r * (k - s) if s < k else 0))
    return compare(*np.transpose(rows))


@claim(
    "quadratic networks",
    "teachers that are not orthonormal",
    r"Risk $2(s+r+2)b^2 + 2\sum_{i\notin S}t_i^2$; minima learn the strongest",
    proof="[critical points](critical_points.md#teachers-that-are-not-orthonormal)",
)
def compare_uneven_critical_points(effort: Effort) -> Comparison:
    """Compare a quadratic network's drift at critical points, for teachers that are not orthonormal, with the prediction 0.

    The risk there is compared with its closed form.
    """
    gram = np.array([[1.0, 0.6], [0.6, 1.5]])
    target = sl.Target(sl.CommitteeReadout("square"), 2, gram=gram)
    problem = sl.ProjectionProblem(target, sl.TwoLayer(2, "square"), sl.SquaredLoss(1.0), sl.OnePassSGD(0.1))
    rows = []
    for family in theory.uneven_critical_points(problem):
        drift, stats = problem.drift_parts(family.statistics())[0], family.statistics()
        rows += [float(np.abs(drift.Q).max()), float(np.abs(drift.M).max()), float(problem.risk(stats)) - family.risk]
    return compare(rows, 0.0, atol=1e-10)


@claim(
    "quadratic networks",
    "what is conserved at any rate",
    r"$S = M(M^\top M)^{-1/2}$ if and only if $Q$ commutes with $MM^\top$",
    proof="[implicit bias](implicit_bias.md#when-s-is-conserved)",
)
def compare_conserved_polar_factor(effort: Effort) -> Comparison:
    """Compare the largest change of S = M (M^T M)^(-1/2) in a quadratic network's ODE, at two learning rates, with 0.

    Here M has the overlaps with the teachers.
    """
    changes = []
    for lr, noise in ((0.35, 0.0), (0.1, 0.5)):
        problem = sl.presets.quadratic_network(3, 2, lr=lr, noise=noise)
        start = sl.OrthogonalInit(0.01).sample(problem, runs=4)
        runs = simulate(problem, sl.ODE(), start, 35 / lr, runs=4, save=3)
        changes.append(float(sl.conserved.polar(runs).drift.max()))
    return compare(changes, 0.0, atol=1e-9)


@claim(
    "quadratic networks",
    "approach to the solution",
    r"$\tau\lVert M-\bar M\rVert \to kp^{3/2}(p-k)/(32(p+2))$ at every rate",
    proof="[implicit bias](implicit_bias.md#how-the-end-is-reached)",
)
def compare_approach_to_solution(effort: Effort) -> Comparison:
    """Compare the paper's time multiplied by a quadratic network's late distance from its solution, in the ODE, with the limit.

    Here tau is the paper's time, at two late values.
    """
    p, k, lr, tau = 3, 2, 0.2, np.array([1e3, 2e3])
    problem = sl.presets.quadratic_network(p, k, lr=lr)
    start = sl.OrthogonalInit(0.05).sample(problem, runs=2)
    # tau = lr t is the paper's time
    runs = simulate(problem, sl.ODE(), start, tau[1] / lr, runs=2, save=np.append(0.0, tau / lr))
    far = sl.conserved.distance(runs, sl.conserved.end_point(problem, start)).M.values[:, 1:]
    return compare(tau * far, k * p**1.5 * (p - k) / (32 * (p + 2)), rtol=0.01)


@claim(
    "quadratic networks",
    "norm learning in closed form",
    r"$Q = e^{8\eta t/p}Q_0(1+bQ_0)^{-1}/D(b)$ from any $Q_0$",
    proof="[phases](phases.md#the-quadratic-network-in-closed-form)",
)
def compare_norm_learning(effort: Effort) -> Comparison:
    """Compare student overlaps of a quadratic network in norm learning, by a numerical solution, with their closed form."""
    p, lr, t = 3, 0.1, np.array([0.5, 4.0, 40.0])
    Q = random_weights(p, 5, seed=2) @ random_weights(p, 5, seed=2).T

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        """Return the right-hand side of equation (9) of Bocchi et al. at the flattened matrix of student overlaps."""
        now = y.reshape(p, p)
        return lr * 8 / p * ((1 - np.trace(now) / p) * now - 2 / p * now @ now).ravel()

    # another solver than the package's
    found = solve_ivp(slope, (0, t[-1]), Q.ravel(), "LSODA", t, rtol=1e-10, atol=1e-13).y.T.reshape(-1, p, p)
    return compare(found, theory.student_overlaps(sl.presets.quadratic_network(p, 2, lr=lr), t, Q), rtol=1e-7)


@claim(
    "quadratic networks",
    "plateau at any rate",
    r"$1-s+\kappa(c+\Delta-2s+bs^2)=0$, $\omega_\rho=\frac{4\eta}p(c-s)$, $\omega_Q=\frac{16\eta}{p(p+2)}s\sqrt\delta$",
    proof="[phases](phases.md#the-quadratic-network-in-closed-form)",
)
def compare_plateau_rates(effort: Effort) -> Comparison:
    """Compare eigenvalues of a quadratic network's ODE on its plateau with the closed rates of `plateau_rates`.

    The learning rate is finite, and the labels are noisy.
    """
    p, k = 3, 2
    problem = sl.presets.quadratic_network(p, k, lr=0.2, noise=0.5)
    rates = theory.plateau_rates(problem)
    point = make_overlaps(np.ones(p), np.zeros((p, k)), theory.plateau_norm(problem) * np.eye(p))
    found = sl.linearise(problem, point)
    right = np.sort([rates.rho] * p * k + [-rates.Q] * (p * (p + 1) // 2 - 1) + [-rates.norm])
    return compare([*np.sort(found.rates.real), np.abs(found.drift).max()], [*right, 0.0])


@claim(
    "quadratic networks",
    "largest rate of zero risk",
    r"$pp^*/(4(p^*+2))$",
    proof="[phases](phases.md#the-quadratic-network-in-closed-form)",
)
def compare_largest_lr(effort: Effort) -> Comparison:
    """Compare the learning rate at which zero risk of a quadratic network becomes unstable with p p*/(4 (p* + 2)).

    Here p is the number of students and p* that of teachers; the eigenvalues are those of the linearised ODE.
    """
    point = make_overlaps(np.ones(2), np.eye(2), np.eye(2))
    # minus 1e-7: rotations leave eigenvalues that are zero up to rounding
    growth = lambda lr: float(sl.linearise(sl.presets.quadratic_network(2, 2, lr=lr), point).rates.real.max()) - 1e-7
    return compare(brentq(growth, 0.15, 0.4), 2 * 2 / (4 * 4), rtol=1e-4)


@claim(
    "quadratic networks",
    "end of learning from noisy labels",
    r"Risk $\Delta + 4\eta\Delta/p$ to first order",
    proof="[phases](phases.md#the-end-of-learning)",
)
def compare_noisy_end_state(effort: Effort) -> Comparison:
    """Compare the final risk of a quadratic network with noisy labels, in the simulated ODE, with `stationary_risk`."""
    problem = sl.presets.quadratic_network(2, 2, lr=0.02, noise=0.4)
    start = make_overlaps(np.ones(2), np.eye(2), np.eye(2) + 0.01)
    found = float(simulate(problem, sl.ODE(), start, 3e4, save=2).risk[0, -1])
    return compare(found, theory.stationary_risk(problem), rtol=1e-6)


# --- spikes and mixtures -----------------------------------------------------------------------------------------------------


@claim(
    "matrix PCA",
    "time of recovery with its constant",
    r"$\frac1{8(\lambda-\mathtt{lr})}[\log d + \log\frac{f^2(\lambda-\mathtt{lr})^2}{(1-f^2)\mathtt{lr}\lambda} - "
    r"\log\chi^2_1]$",
    proof="[spiked tensors](spiked_tensor.md#from-a-random-start)",
)
def compare_recovery_time(effort: Effort) -> Comparison:
    """Compare the mean recovery time in matrix PCA, by the exact chain at two learning rates, with `recovery_time`."""
    d, runs, rows = 2000, effort.runs(1024, 256), []
    for snr, lr in ((2.0, 1.0), (1.5, 0.5)):
        problem, end = sl.presets.spiked_tensor(2, snr, lr), 0.5 * np.sqrt(snr - lr)
        until = lambda stats, end=end: abs(stats.m) - end
        found = simulate_chain(problem, d, 60, runs=runs, seed=1, until=until)
        rows.append((*mean_and_error(found.t_end.values), recovery.recovery_time(snr, d, 0.5, lr).mean))
    number, sigma, right = np.transpose(rows)
    return compare(number, right, rtol=0.005, sigma=sigma)


@claim(
    "spiked tensors",
    "time over the barrier",
    r"The double integral of $e^{V(y)-V(z)}$ with $V = u^2/2-\Lambda u^k/k$",
    proof="[spiked tensors](spiked_tensor.md#tensors-with-a-growing-ratio)",
)
def compare_crossing_time(effort: Effort) -> Comparison:
    """Compare the mean time in which a tensor's overlap crosses its barrier, by quadrature and chain, with `crossing_time`."""
    L, k, end, d = 0.4, 3, 6.0, 4000
    V = lambda y: y**2 / 2 - L * y**k / k
    # -12 stands for minus infinity: the integrand is a Gaussian there
    inner = lambda y: quad(lambda z: np.exp(V(y) - V(z)), -12.0, y, limit=200)[0]
    until = lambda stats: stats.m - end * d**-0.5
    problem = sl.presets.spiked_tensor(k, effective.scaled_snr(L, k, d))
    found = simulate_chain(problem, d, 80, make_spike(m=0.0, r2=1.0), runs=effort.runs(512, 256), seed=2, until=until)
    number, sigma = mean_and_error(found.t_end.values)
    right = recovery.crossing_time(L, k, 0.0, end)
    return compare([quad(inner, 0.0, end)[0] / (2 * k), number], right, rtol=end**2 / d, sigma=[0.0, sigma])


@claim(
    "mixtures",
    "where a good classifier exists",
    r"Binary: $\alpha<\frac14$ at every snr; XOR: a closed line below $\frac18$",
    proof="[mixtures](mixtures.md#where-a-good-classifier-exists)",
)
def compare_classifier_ridge(effort: Effort) -> Comparison:
    """Compare the ridge at which infinitesimal weights on a mixture are stationary, as a root, with `classifier_ridge`."""
    rows = []
    for preset, classes in (("binary_mixture", [(1, 1), (-1, -1)]), ("xor_mixture", [(1, 1), (-1, 1), (0, -1), (0, -1)])):
        guess = effective.classifier_ridge(preset, 5.0)
        rows.append((_balancing_ridge(5.0, classes, guess), guess))
    return compare(*np.transpose(rows), rtol=2e-3)


def _balancing_ridge(snr: float, classes: list, guess: float) -> float:
    """Return the ridge at which a small unit's second layer, overlap and norm are stationary.

    The errors of the prediction are +1/2 or -1/2, as at zero output. `classes` has for each class the component of its mean
    along the unit's direction and its label as a sign; `guess` is the ridge at which the root search begins. The field of a
    unit is Gaussian for each class.
    """
    # standard deviation of the field of a unit of norm 1
    s = snr**-0.5

    def pushes(c: float) -> np.ndarray:
        """Return three quantities of a unit of norm 1 whose overlap with the class mean is c.

        They are its mean output and its force along the mean, both weighted by the labels, and the share of inputs at which it
        is active.
        """
        total = np.zeros(3)
        for b, sign in classes:
            x = b * c / s
            on, density = norm.cdf(x), norm.pdf(x)
            push = np.array([sign * (b * c * on + s * density), sign * (b * on + c * s * density), on / 2])
            total += push / (2 * len(classes))
        return total

    def balance(z: np.ndarray) -> list[float]:
        """Return the drifts of second layer, overlap and squared norm, which vanish at the solution.

        The unknowns z are the ratio of the norm to the second layer, the cosine with the mean, and the ridge.
        """
        ratio, c, ridge = z  # length over second layer, cosine
        relu, along, active = pushes(c)
        return [ratio * relu - ridge, along - ridge * c * ratio, 2 * ratio * relu + s**2 * active - 2 * ridge * ratio**2]

    found = root(balance, [1.0, 0.95, guess], tol=1e-12)
    return float(found.x[2]) if found.success else float("nan")


# --- finite d, and other algorithms ------------------------------------------------------------------------------------------


@claim(
    "mixtures",
    "angle of units that share a ring",
    r"Parallel units repel each other: they settle at $\theta=\frac{\mathtt{lr}}{8\pi\alpha\lambda}(v/\lvert W\rvert)^2"
    r"e^{-\lambda\cos^2\varphi/2}$, $\cos\varphi=m/\lvert W\rvert$",
    proof="[effective dynamics](effective_dynamics.md#on-longer-times-the-rings-at-a-finite-snr)",
)
def compare_ring_angle(effort: Effort) -> Comparison:
    """Compare the stationary angle between two relu units that share a ring of the binary mixture with a closed formula.

    The angle is measured in the exact chain.

    The chain has signal-to-noise ratio 2, ridge 0.1 and d = 1000, and starts from far smaller and far larger angles. The
    tolerance of 10 % covers the next order in the angle.
    """
    snr, ridge, rows = 2.0, 0.1, []
    for angle in (0.01, 0.3):
        found = simulate_shared_ring(ridge, angle, 60.0, d=1000, runs=effort.runs(64, 32)).isel(t=slice(-3, None))
        v, Q = found.a.values, found.Q.values
        norms = np.sqrt(np.diagonal(Q, axis1=2, axis2=3))
        between = np.arccos(np.clip(Q[..., 0, 1] / norms.prod(-1), -1, 1)).mean(1)
        cos = (v * found.M.values[..., 0]).sum(-1) / np.sqrt(np.einsum("rti,rtij,rtj->rt", v, Q, v))
        formula = ((v / norms) ** 2).mean(-1) * np.exp(-snr * cos**2 / 2) / (8 * np.pi * ridge * snr)
        rows.append((*mean_and_error(between), formula.mean()))
    number, sigma, right = np.transpose(rows)
    return compare(number, right, rtol=0.1, sigma=sigma)


@claim(
    "any problem",
    "first correction in 1/d",
    r"$E[X] = x + x_1/d$ and covariance $C/d$ along the ODE",
    proof="[trust](trust.md#where-the-terms-come-from)",
)
def compare_finite_d_expansion(effort: Effort) -> Comparison:
    """Compare the 1/d corrections of the exact chain's mean and variance to the ODE, both times d, with `expansion`."""
    problem, start, d, runs = sl.presets.phase_retrieval(lr=0.1, noise=0.5), start_at(0.5), 200, effort.runs(65_536, 16_384)
    path = sl.expansion(problem, start, 3.0, save=2).isel(t=-1)
    m = simulate_chain(problem, d, 3.0, start, runs=runs, save=[3.0], seed=1).M.values[:, 0, 0, 0]
    first, spread = float(path["first"].values.ravel()[0]), float(np.ravel(path.covariance.values)[0])
    # per run, so that the variance has a standard error
    square = d * (m - m.mean()) ** 2
    number = [d * (m.mean() - float(path.ode.values.ravel()[0])), square.mean()]
    sigma = [d * m.std(ddof=1) / np.sqrt(runs), square.std(ddof=1) / np.sqrt(runs)]
    # terms of the next order in 1/d
    return compare(number, [first, spread], atol=0.15 * max(abs(first), spread), sigma=sigma)


@claim(
    "phase retrieval",
    "law of the exit time",
    "The backward equation has the whole law, not its mean only",
    proof="[exit times](exit_times.md)",
)
def compare_exit_law(effort: Effort) -> Comparison:
    """Compare the distance of phase retrieval's exit times, in the chain, from `exit_law` with the bound 2.3/sqrt(runs).

    The distance is that of Kolmogorov and Smirnov.

    The bound is exceeded by chance with probability 5e-5.
    """
    problem, d, T = sl.presets.phase_retrieval(lr=1 / 12), 1000, 0.2
    times = chain_times(problem, d, T, effort.runs(1024, 512)) / float(problem.rate)
    distance = kstest(times, sl.theory.mediocrity.exit_law(problem, d, T).cdf).statistic
    return compare(distance * np.sqrt(times.size), 2.3, rtol=0, relation="<")


@claim(
    "other algorithms",
    "chains of other algorithms",
    "Momentum, clipping and Muon have exact chains too",
    proof="[algorithms](algorithms.md)",
)
def compare_algorithms(effort: Effort) -> Comparison:
    """Compare a committee's mean risk after 40 steps of SGD in R^20 with the exact chain's, for three algorithms."""
    d, runs, rows = 20, effort.runs(2048, 1024), []
    start = make_overlaps(np.ones(2), [[0.3, 0.1], [0.0, 0.2]], [[1.0, 0.2], [0.2, 0.8]])
    for algorithm in (sl.HeavyBall(0.8, 0.5), sl.Clipped(sl.OnePassSGD(2.0), 0.3), sl.Muon(1.0, 0.5)):
        problem = sl.presets.committee(2, 2, algorithm=algorithm)
        (one, e), (two, f) = (
            mean_and_error(simulate(problem, level, start, 2.0, save=[2.0], runs=runs, seed=seed).risk.values[:, 0])
            for seed, level in enumerate((sl.SGD(d), sl.Chain(d)))
        )
        rows.append((one, two, np.hypot(e, f)))
    number, right, sigma = np.transpose(rows)
    return compare(number, right, sigma=sigma)


@claim(
    "committees",
    "Muon leaves the plateau first",
    "Two erf units, batches of 16, $d = 1000$: about twice as soon as SGD",
    proof="measured",
)
def compare_muon_exit_times(effort: Effort) -> Comparison:
    """Compare the ratio of a committee's median exit times with SGD and with Muon, at tuned learning rates, with 1.5.

    The exit times are those of the exact chain; a run exits when each teacher has a unit of squared cosine 1/2.
    """
    d, batch, runs, medians = 1000, 16, effort.runs(64, 32), []
    margin = lambda stats: (stats.M**2 / stats.Q.diagonal()[:, None]).max(0).min() - 0.5
    for algorithm in (sl.OnePassSGD(batch * 8.0, batch=batch), sl.Muon(0.5, batch=batch)):
        problem = sl.presets.committee(2, 2, algorithm=algorithm)
        found = simulate_chain(problem, d, 200, sl.RandomInit(d, scale=0.5), runs=runs, seed=1, until=margin)
        medians.append(float(np.median(found.t_end.values)))
    return compare(medians[0] / medians[1], 1.5, rtol=0, relation=">")
