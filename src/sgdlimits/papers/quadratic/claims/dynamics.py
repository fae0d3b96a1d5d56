"""Claims of Escape dynamics and implicit bias on the ODE of the overlaps, the plateau, and the escape from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.one_step import SquaredUnits, random_weights
from sgdlimits.papers.quadratic import theory as theory
from sgdlimits.papers.shorthand import make_overlaps, simulate, simulate_chain

DRIFT_TESTS, THEORY_TESTS, PHASE_TESTS = (
    f"in `tests/{name}.py`" for name in ("unit/problem/test_drift", "unit/papers/test_quadratic", "laws/test_phases")
)
# p and p*, different so that exchanged letters show
P, K = 3, 2


def sample_units() -> SquaredUnits:
    """Build three students with random weights and two teachers in R^5, on a Gauss-Hermite grid of inputs."""
    return SquaredUnits(random_weights(P, 5, seed=3), np.eye(K, 5))


def linearise_on_plateau() -> Any:
    """Return the linearisation of gradient flow on the plateau of three students and two teachers, at lr = 0.01."""
    problem = sl.presets.quadratic_network(P, K, lr=0.01)
    norm = theory.plateau_norm(problem, corrector=False)
    return sl.linearise(problem, make_overlaps(np.ones(P), np.zeros((P, K)), norm * np.eye(P)), corrector=False)


# --- the dynamics ------------------------------------------------------------------------------------------------------------


def risk_23(s: SquaredUnits) -> float:
    """Evaluate the population risk (23) of Bocchi et al. at the weights of students and teachers in `s`."""
    p, k, Q, q = len(s.W), len(s.E), s.W @ s.W.T, (s.W**2).sum(1)
    pairs = sum(q[i] * q[j] + 2 * Q[i, j] ** 2 for i in range(p) for j in range(i + 1, p))
    rho = s.W @ s.E.T
    return (k + 2) / k - 2 / p * q.sum() - 4 / (p * k) * (rho**2).sum() + (3 * (q**2).sum() + 2 * pairs) / p**2


@claim("(23)", "population risk", r"$\frac{p^*+2}{p^*} - \frac2p\sum_kQ_{kk} - \frac4{pp^*}\sum\rho_{kl}^2 + \dots$")
def compare_risk(effort: Effort) -> Comparison:
    """Compare the risk of three students, the mean of (y - f)^2 by quadrature, with equation (23) of Bocchi et al.

    Here y is the label and f the network's output.
    """
    s = sample_units()
    return compare(2 * s.risk, risk_23(s))


@claim(
    "(33), (38)",
    "ODE of the overlaps with teachers",
    r"$\frac{d\rho_{kl}}{d\alpha} = \frac{4\eta}p\rho_{kl}[\dots] - \frac{8\eta}{p^2}\sum_{r\ne k}Q_{kr}\rho_{rl}$",
)
def compare_teacher_overlap_ode(effort: Effort) -> Comparison:
    """Compare mean increments of the overlaps with teachers, by quadrature, with equations (33) and (38) of Bocchi et al."""
    s = sample_units()
    Q, rho = s.W @ s.W.T, s.W @ s.E.T
    q = Q.diagonal()
    own = 4 / P * rho * (1 + 2 / K - (q.sum() + 2 * q) / P)[:, None]
    return compare(2 / P * s.mean(s.M), own - 8 / P**2 * (Q - np.diag(q)) @ rho)


def equation_34(s: SquaredUnits, eta: float, bracket: float) -> np.ndarray:
    """Evaluate the time derivative of the student overlaps Q by equation (34) of Bocchi et al., at learning rate eta.

    Here `bracket` is the factor of Q in the term quadratic in the learning rate, and time counts samples per dimension.
    """
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
    right=r"$1 + \frac{2}{p^*} - \frac{2}{p} \mathrm{Tr}\, Q - \frac{4}{p p^*} \sum \rho^2 + "
    r"\frac{1}{p^2}\big[(\mathrm{Tr}\, Q)^2 + 2\, \mathrm{Tr}\, Q^2\big]$, which is the risk",
    tests="`test_risk_of_a_quadratic_network_is_the_corrected_bracket_of_its_paper`, `test_closed_drift_agrees_with_isserlis` "
    f"{DRIFT_TESTS}",
)  # fmt: skip
def compare_student_overlap_ode(effort: Effort) -> Comparison:
    """Compare mean increments of the overlaps between students, by quadrature, with equation (34) of Bocchi et al.

    The formula is taken both corrected and as printed.
    """
    s, eta = sample_units(), 0.2
    T, rho2 = (s.W**2).sum(), ((s.W @ s.E.T) ** 2).sum()
    printed = 1 + 2 / K - (2 * P - 1) / P**2 * T**2 - rho2 / (P * K)
    number = 2 * eta / P * s.mean(s.Q(2 * eta / P))
    return compare(number, equation_34(s, eta, risk_23(s)), equation_34(s, eta, printed))


@claim(
    "(9)",
    "norm learning",
    r"$\frac{dQ_{kk}}{dt} = \frac8pQ_{kk}[1-\frac1p(\sum_rQ_{rr}+2Q_{kk})]$, to first order in small overlaps",
)
def compare_norm_learning(effort: Effort) -> Comparison:
    """Compare mean increments of norms and small overlaps, by quadrature, with equation (9) of Bocchi et al.

    The equation is taken to first order in the overlaps.
    """
    h, W = 1e-5, np.zeros((P, 5))
    W[:, 2:] = np.diag(np.sqrt([0.5, 0.9, 1.2]))
    # overlaps with a teacher and with the second student, to first order
    W[0, 0], W[0, 3] = h, h
    s = SquaredUnits(W, np.eye(K, 5))
    q, T = np.array([0.5, 0.9, 1.2]), 2.6
    found = 2 / P * s.mean(s.Q(0.0))
    number = [*found.diagonal(), found[0, 1] / (W @ W.T)[0, 1], 2 / P * s.mean(s.M)[0, 0] / h]
    between = 8 / P * (1 - (T + q[0] + q[1]) / P) - 8 / P**2 * (q[0] + q[1])
    return compare(number, [*(8 / P * q * (1 - (T + 2 * q) / P)), between, 4 / P * (1 + 2 / K - (T + 2 * q[0]) / P)], rtol=1e-6)


@claim("(10)", "norm on the plateau", r"$\bar Q = p/(p+2)$")
def compare_plateau_norm(effort: Effort) -> Comparison:
    """Compare the squared norm at which orthogonal students stop growing with equation (10) of Bocchi et al.

    At that norm the mean increment, by quadrature, is zero.
    """
    # students along axes 3 to 5, orthogonal to the teachers
    at = lambda q: SquaredUnits(np.sqrt(q) * np.eye(P, 5, 2), np.eye(K, 5))
    number = brentq(lambda q: float(at(q).mean(at(q).Q(0.0))[0, 0]), 0.1, 2.0)
    return compare(number, P / (P + 2))


@claim("(11), (12)", "growth on the plateau", r"$\omega_\rho = 8/(pp^*)$")
def compare_plateau_growth_rate(effort: Effort) -> Comparison:
    """Compare growth rates of teacher overlaps on the plateau with equations (11) and (12) of Bocchi et al.

    The rates are those of linearised gradient flow.
    """
    return compare(linearise_on_plateau().rates.real[: P * K] / 0.01, 8 / (P * K))


@claim(
    "(11), (35)", "overlaps between students on the plateau", r"$dQ_{kk'}/dt = +\omega_Q Q_{kk'}$",
    right="Minus: overlaps between students decay on the plateau.",
    tests=f"`test_plateau_is_a_fixed_point_with_the_rates_of_its_jacobian` {THEORY_TESTS}, "
    f"`test_overlaps_between_students_decay_on_the_plateau` {PHASE_TESTS}",
)  # fmt: skip
def compare_plateau_decay_rate(effort: Effort) -> Comparison:
    """Compare the rate of a quadratic network's student overlap Q_12 on the plateau with minus the decay rate of Bocchi et al.

    The rate is that of linearised gradient flow.

    Here omega_Q is the paper's decay rate. The printed growth rate is +omega_Q.
    """
    found, rate = linearise_on_plateau(), 16 / (P * (P + 2))
    return compare(found.matrix[found.names.index("Q[0,1]"), found.names.index("Q[0,1]")] / 0.01, -rate, rate)


@claim(
    "(13)", "loss below the plateau", r"$t = \eta \alpha$",
    right=r"There $t$ is $\eta \alpha/p$; in $t = \eta \alpha$ the exponent is $16 t/(p p^*)$.",
    tests=f"`test_risk_on_the_plateau_is_13_with_the_exponent_of_its_appendix` {THEORY_TESTS}",
)  # fmt: skip
def compare_loss_13(effort: Effort) -> Comparison:
    """Compare the relative fall of the risk on the plateau, in gradient flow, with equation (13) of Bocchi et al.

    The formula is taken both corrected and as printed.
    """
    t, lr, runs = 1.5, 0.01, 8
    M = 1e-4 * np.random.default_rng(0).normal(size=(runs, P, K))
    Q = np.tile(P / (P + 2) * np.eye(P), (runs, 1, 1))
    problem, level = sl.presets.quadratic_network(P, K, lr=lr), sl.ODE(corrector=False, rtol=1e-11, atol=1e-16)
    start = make_overlaps(np.ones((runs, P)), M, Q)
    # tight tolerances: falls of 1e-7 are compared
    found = simulate(problem, level, start, t / lr, runs=runs, save=2).risk.values.mean(0)
    spread = (M**2).mean()
    form = lambda exponent: 4 * (np.exp(exponent) - 1) / (1 + 2 / K - P / (P + 2))
    return compare((1 - found[1] / found[0]) / spread, form(16 * t / (P * K)), form(16 * t / K), rtol=1e-4)


@claim(
    "section 7.3",
    "risk below the plateau",
    r"$\mathcal R(0) - \frac{2\tau_0}{Np^2}[1-e^{-2\omega_Qt}] - \frac{4\mu_0}{Npp^*}[e^{2\omega_\rho t}-1]$",
)
def compare_risk_on_plateau(effort: Effort) -> Comparison:
    """Compare the fall of the risk in simulated gradient flow with the formula of section 7.3 of Bocchi et al.

    The flow starts from small overlaps.
    """
    rng, lr, t, off = np.random.default_rng(1), 0.01, np.array([0.3, 1.0]), 1 - np.eye(P)
    M, Q = 1e-4 * rng.normal(size=(P, K)), P / (P + 2) * np.eye(P) + 0.003 * off
    problem, level = sl.presets.quadratic_network(P, K, lr=lr), sl.ODE(corrector=False, rtol=1e-11, atol=1e-16)
    found = simulate(problem, level, make_overlaps(np.ones(P), M, Q), t[-1] / lr, save=np.append(0, t / lr)).risk.values[0]
    tau, mu = ((Q * off) ** 2).sum(), (M**2).sum()
    falls = 2 * tau / P**2 * (1 - np.exp(-32 * t / (P * (P + 2)))), 4 * mu / (P * K) * (np.exp(16 * t / (P * K)) - 1)
    return compare(found[0] - found[1:], sum(falls), rtol=0.01)


@claim(
    "figure 2",
    "best learning rate",
    "It is linear in the width",
    tests=f"`test_optimal_rate_is_linear_in_the_width` {THEORY_TESTS}",
)
def compare_optimal_learning_rate(effort: Effort) -> Comparison:
    """Compare how far a quadratic network's best learning rates are from linear in the width with the bound 0.001.

    The measure is the share of their variance that a linear fit leaves.
    """
    widths = np.array([3, 6, 9, 12])
    rates = np.array([theory.optimal_lr(int(p), 3, starts=2) for p in widths])
    rest = rates - np.polyval(np.polyfit(widths, rates, 1), widths)
    return compare(rest.var() / rates.var(), 1e-3, rtol=0, relation="<")


@claim("figure 1", "SGD follows the ODE", "The mean norms of SGD are those of the ODE")
def compare_chain_follows_ode(effort: Effort) -> Comparison:
    """Compare the mean squared norm of a quadratic network's students, in the chain at d = 2000, with the ODE's.

    There are two times.
    """
    problem, runs = sl.presets.quadratic_network(P, K, lr=0.2), effort.runs(256, 64)
    start = make_overlaps(np.ones(P), np.zeros((P, K)), 0.2 * np.eye(P))
    norms = (
        np.trace(simulate_chain(problem, 2000, 4, start, runs=runs, save=np.array([2.0, 4.0])).Q.values, axis1=2, axis2=3) / P
    )
    right = theory.norm_learning(problem, [2.0, 4.0], 0.2)
    return compare(norms.mean(0), right, sigma=norms.std(0, ddof=1) / np.sqrt(runs), rtol=1e-3)
