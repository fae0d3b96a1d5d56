"""Claims of Escaping mediocrity on the process of overlaps and its ODE, off and on the sphere."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.one_step import SquaredUnits, random_weights, sphere_drift, step_on_sphere
from sgdlimits.papers.shorthand import make_overlaps

# file of the tests named by misprints
DRIFT_TESTS = "in `tests/unit/problem/test_drift.py`"


def sample_units(
    p: int = 2, rho: float = 1.0, noise: float = 0.4, a: np.ndarray | None = None, nodes: int = 4, n: int = 3
) -> SquaredUnits:
    """Build squared units with random weights and one teacher of squared norm rho, on a grid of inputs in R^n.

    There are p units with second layer `a`, the label noise has variance `noise`, and the Gauss-Hermite grid has `nodes` points
    per dimension.
    """
    return SquaredUnits(random_weights(p, n, seed=p), np.sqrt(rho) * np.eye(1, n), noise, a, nodes)


def risk_6(s: SquaredUnits, rho: float = 1.0) -> float:
    """Evaluate the population risk (6) of Arnaboldi et al. at the weights of `s`.

    For a teacher of squared norm rho it is generalised as in (27).
    """
    p, q, m, Q = len(s.W), (s.W**2).sum(1), (s.W @ s.E.T)[:, 0], s.W @ s.W.T
    pairs = s.a @ (np.outer(q, q) + 2 * Q**2) @ s.a
    return (s.noise + 3 * rho**2) / 2 - (s.a * (rho * q + 2 * m**2)).sum() / p + pairs / (2 * p**2)


# --- the process and its ODE -------------------------------------------------------------------------------------------------

SECOND_LAYER = np.array([0.7, 1.4])
"""Second layer of two units with different entries, so that a misplaced factor a_j changes the result."""


@claim("(6)", "population risk", r"$\mathcal R = \frac{\Delta+3}2 - \frac1p\sum_j a_j(Q_{jj}+2m_j^2) + \dots$")
def compare_risk(effort: Effort) -> Comparison:
    """Compare the risk of two units, by Gauss-Hermite quadrature over the inputs, with equation (6) of Arnaboldi et al."""
    s = sample_units(a=SECOND_LAYER)
    return compare(s.risk, risk_6(s))


@claim(
    "(16), (22) with (12)–(17)", "sign of the error", r'$\mathcal{E} = f - y$, and "+" signs in the increments',
    right=r"The signs in the increments are right with $\mathcal{E} = y - f$. With $\mathcal{E} = f - y$ all terms linear in "
    r"$\mathcal{E}$ change sign.",
    tests=f"`test_population_drift_is_minus_the_gradient_of_the_risk` {DRIFT_TESTS}",
)  # fmt: skip
def compare_sign_of_increments(effort: Effort) -> Comparison:
    """Compare mean increments of phase retrieval's overlap, for both signs of the error, with minus the risk's gradient.

    The gradient is computed by finite differences.
    """
    s, h = sample_units(a=SECOND_LAYER, noise=0.0), 1e-5
    risk = lambda e: SquaredUnits(s.W + e, s.E, 0.0, SECOND_LAYER).risk
    differences = [risk(h * e) - risk(-h * e) for e in np.eye(s.W.size).reshape(-1, *s.W.shape)]
    # times p: the paper's time has the step gamma/p
    descent = -np.reshape(differences, s.W.shape) / (2 * h) * len(s.W)
    right = s.mean(s.M)[:, 0]
    return compare((descent @ s.E.T)[:, 0], right, -right, rtol=1e-7)


@claim(
    "(13)–(15) against (17)", "increments and their clock",
    r"The increments contain $\gamma/(pd)$, and then $\delta t$ does too.",
    right=r"Increments without it: $\mathcal{M}_j = 2 \mathcal{E} a_j \lambda_j \lambda_\star$, $\mathcal{Q}_{jl} = 2 "
    r"\mathcal{E} (a_j + a_l) \lambda_j \lambda_l + \frac{4\gamma}{p} \mathcal{E}^2 \lVert x \rVert^2 a_j a_l \lambda_j "
    r"\lambda_l$, with $\delta t = \gamma/(pd)$.",
    tests=f"`test_drift_of_a_network_is_equation_26_of_escaping_mediocrity` {DRIFT_TESTS}",
)  # fmt: skip
def compare_time_step_of_increments(effort: Effort) -> Comparison:
    """Compare the change of a phase retrieval overlap per unit of the paper's time, in one exact step, with the drift.

    The step is one in d = 1000 dimensions, and the drift that of the ODE.
    """
    m, lr, d = 0.4, 0.1, 1000
    after, weights = step_on_sphere(m, lr, 0.0, d)
    right = m * 4 * (1 - 6 * lr) * (1 - m**2)
    return compare((after - m) @ weights / (lr / d), right, right * lr / d, rtol=0.02)


@claim(
    "C.2", "explicit expectations",
    r"Prefactor $16\gamma/p$; $\mathbb{E}[\mathcal{E} \lambda_j \lambda_\star]$ in the equation of $Q$; $-2\,\mathbb{E}"
    r"[\lambda_\star^2 \lambda_j \lambda_\star]$",
    right=r"$4\gamma/p$; $\mathbb{E}[\mathcal{E} \lambda_j \lambda_l]$; $-2 a_j\, \mathbb{E}[\lambda_\star^2 \lambda_j "
    r"\lambda_\star]$",
    tests=f"`test_drift_of_a_network_is_equation_26_of_escaping_mediocrity`; for any $a$, "
    f"`test_closed_drift_agrees_with_isserlis` {DRIFT_TESTS}",
)  # fmt: skip
def compare_explicit_expectations(effort: Effort) -> Comparison:
    """Compare three expectations in the ODE of two units with appendix C.2 of Arnaboldi et al., corrected and as printed.

    The expectations are computed by Gauss-Hermite quadrature.
    """
    s, step, a = sample_units(a=SECOND_LAYER), 0.1, SECOND_LAYER
    one, two, star = s.fields[0], s.fields[1], s.fixed[0]
    number = [s.mean(s.Q(step) - s.Q(0.0))[0, 1], s.mean(s.Q(0.0))[0, 1], s.mean(2 * a[0] * star**3 * one)]
    square = s.mean(s.error**2 * one * two)
    linear = s.mean(s.error * one * two)
    # E[2 l*^3 l_1] = 6 m by Wick's theorem
    third = 6 * (s.W @ s.E.T)[0, 0]
    right = [4 * step * a.prod() * square, 2 * a.sum() * linear, third * a[0]]
    printed = [4 * right[0], 2 * a.sum() * s.mean(s.error * one * star), third]
    return compare(number, right, printed)


@claim(
    "C.2, (81)",
    "moments of Gaussian fields",
    r"$E[\lambda_\alpha\lambda_\beta\lambda_\gamma^2\lambda_\delta^2] = "
    r"\omega_{\alpha\beta}\omega_{\gamma\gamma}\omega_{\delta\delta} + \dots$, and of orders 2 and 4",
)
def compare_gaussian_field_moments(effort: Effort) -> Comparison:
    """Compare moments of order 2, 4 and 6 of four Gaussian fields with appendix C.2 and (81) of Arnaboldi et al.

    The moments are computed by quadrature.
    """
    s = sample_units(p=4, noise=0.0, n=4)
    w, (a, b, c, d) = s.W @ s.W.T, s.fields
    third = w[0, 1] * w[2, 2] * w[3, 3] + 2 * w[0, 1] * w[2, 3] ** 2 + 2 * w[0, 2] * w[1, 2] * w[3, 3]
    third += 4 * (w[0, 2] * w[1, 3] + w[0, 3] * w[1, 2]) * w[2, 3] + 2 * w[0, 3] * w[1, 3] * w[2, 2]
    right = [w[0, 1], w[0, 0] * w[1, 1] + 2 * w[0, 1] ** 2, w[0, 1] * w[2, 2] + 2 * w[0, 2] * w[1, 2], third]
    return compare([s.mean(each) for each in (a * b, a**2 * b**2, a * b * c**2, a * b * c**2 * d**2)], right)


@claim(
    "(25)", "learning rate of the second layer",
    r"$\gamma/p$, in $a_j^{\nu+1} = a_j^\nu - \frac\gamma{pd}\mathcal E\lambda_j^2$",
    right=r"$\gamma/d$, as after (16)",
    tests="`test_population_drift_is_minus_the_gradient_of_the_risk` in `tests/unit/problem/test_drift.py`",
)  # fmt: skip
def compare_second_layer_rate(effort: Effort) -> Comparison:
    """Compare the size of the step (25) of Arnaboldi et al., relative to the derivative of the loss, with lr/d.

    The derivative is computed by finite differences. The paper prints lr/p, with p the number of units.
    """
    lr, d, h = 0.3, 50, 1e-6
    one, two, star = 0.7, -0.4, 1.1  # fields of the units and of the teacher
    error = lambda a: star**2 - (a * one**2 + 1.4 * two**2) / 2
    slope = (error(0.7 + h) ** 2 - error(0.7 - h) ** 2) / (4 * h)
    return compare(-lr / (2 * d) * error(0.7) * one**2 / slope, lr / d, lr / 2, rtol=1e-6)


@claim("(26a), (26b)", "ODE of a network", r"$\dot m = 2(\rho - \mathrm{Tr}Q/p)m + \dots$, for any $\rho$ and $p$")
def compare_ode_26(effort: Effort) -> Comparison:
    """Compare mean increments of the overlaps M and Q of three units with the ODE (26) of Arnaboldi et al.

    Here M has the overlaps with the teacher and Q those between units; the means are computed by Gauss-Hermite quadrature.
    """
    rho, step, D = 0.7, 0.15, 0.4
    s = sample_units(p=3, rho=rho, noise=D)
    p, Q, m = 3, s.W @ s.W.T, s.W @ s.E.T
    tr, mm = np.trace(Q), m @ m.T
    dm = 2 * (rho - tr / p) * m + 4 * (rho * m - Q @ m / p)
    cubic = ((tr**2 + 2 * np.trace(Q @ Q)) * Q + 4 * tr * Q @ Q + 8 * Q @ Q @ Q) / p**2
    mixed = (rho * tr + 2 * np.trace(mm)) * Q + 2 * tr * mm + 2 * rho * Q @ Q + 4 * (mm @ Q + Q @ mm)
    bracket = 3 * rho**2 * Q + 12 * rho * mm + cubic - 2 / p * mixed + D * Q
    dQ = 4 * (rho - tr / p) * Q + 8 * (mm - Q @ Q / p) + 4 * step * bracket
    return compare(np.concatenate([s.mean(s.M), s.mean(s.Q(step))], 1), np.concatenate([dm, dQ], 1))


@claim(
    "(27)", "risk with second layer 1", r"$(3 + \Delta)/2$", right=r"$(3\rho^2 + \Delta)/2$",
    tests=f"`test_closed_form_agrees_with_quadrature` {DRIFT_TESTS}",
)  # fmt: skip
def compare_risk_27(effort: Effort) -> Comparison:
    """Compare the risk for a teacher of squared norm 0.7, by quadrature, with equation (27) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    s, rho = sample_units(rho=0.7), 0.7
    right = risk_6(s, rho)
    return compare(s.risk, right, right + 1.5 * (1 - rho**2))


@claim("(12), (17)", "ODE of the second layer", r"$\dot a_j = E[\mathcal E\lambda_j^2]$, with $\mathcal E = y - f$")
def compare_second_layer_ode(effort: Effort) -> Comparison:
    """Compare the package's drift of a trained second layer with equation (17) of Arnaboldi et al., averaged by quadrature."""
    s, lr = sample_units(a=SECOND_LAYER), 0.3
    problem = sl.presets.phase_retrieval(2, lr=lr, noise=s.noise, sphere=False, train_second=True)
    found = problem.drift(make_overlaps(SECOND_LAYER, s.W[:, :1], s.W @ s.W.T)).a
    return compare(np.asarray(found) / (lr / 2), s.mean(s.error * s.fields**2))


@claim("(75), (76)", "one unit off the sphere", r"$\dot m = 6m(\rho-q)$, $\dot q = 4(q(\rho-3q)+2m^2) + 12\gamma(\dots)$")
def compare_one_unit_drift(effort: Effort) -> Comparison:
    """Compare mean increments of one unit off the sphere, by quadrature, with equations (75) and (76) of Arnaboldi et al.

    They are those of the overlap m with the teacher and of the squared norm q.
    """
    lr, rho = 0.1, 0.7
    s = sample_units(p=1, rho=rho, noise=0.0, n=2)
    m, q = (s.W @ s.E.T)[0, 0], (s.W**2).sum()
    corrector = q * (rho**2 + 5 * q**2 - 2 * rho * q) + 4 * m**2 * (rho - 2 * q)
    printed = [6 * m * (rho - q), 4 * (q * (rho - 3 * q) + 2 * m**2) + 12 * lr * corrector]
    return compare([s.mean(s.M)[0, 0], s.mean(s.Q(lr))[0, 0]], printed)


# --- on the sphere -----------------------------------------------------------------------------------------------------------


@claim("(7), (88)", "ODE of one unit on the sphere", r"$\dot m = m[4(1-6\gamma)(1-m^2) - 2\gamma\Delta]$")
def compare_sphere_drift(effort: Effort) -> Comparison:
    """Compare the mean change of the overlap in one exact step on the sphere with the drift (7) of Arnaboldi et al.

    The mean is computed by quadrature.
    """
    at = [(0.3, 0.1, 0.2), (0.9, 0.05, 0.0), (-0.5, 0.15, 1.0)]
    printed = [m * (4 * (1 - 6 * lr) * (1 - m**2) - 2 * lr * noise) for m, lr, noise in at]
    return compare([sphere_drift(*each) for each in at], printed, rtol=1e-5)


@claim(
    "(29)", "expansion of a step on the sphere", "Factors are missing.",
    right=r"Carry the gradient $2 \mathcal{E} a_j \lambda_j x / p$ through; $\lVert \nabla_{w_j} \ell \rVert^2 = 4 "
    r"\mathcal{E}^2 a_j^2 \lambda_j^2 \lVert x \rVert^2 / p^2$.",
    tests=f"`test_closed_drift_agrees_with_isserlis` {DRIFT_TESTS}",
)  # fmt: skip
def compare_sphere_step(effort: Effort) -> Comparison:
    """Compare the mean of one exact step on the sphere, by quadrature, with equation (29) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    m, lr, noise = 0.4, 0.1, 0.3
    s = SquaredUnits(np.array([[m, np.sqrt(1 - m**2)]]), np.eye(1, 2), noise)
    e, own, star = s.error, s.fields[0], s.fixed[0]
    right = s.mean(2 * e * own * star - m / 2 * (4 * e * own**2 + 4 * lr * e**2 * own**2))
    printed = s.mean(e * own * star - m / 2 * (2 * e * own**2 + lr * e * own**2))
    return compare(sphere_drift(m, lr, noise), right, printed, rtol=1e-5)


@claim(
    "D.2, G.2",
    "second order of a step on the sphere",
    r"$dm - \frac m2dQ - \frac12dm\,dQ + \frac38m\,dQ^2$, and the like for $Q_{jl}$",
)
def compare_second_order_term(effort: Effort) -> Comparison:
    """Compare the order in the step size of the remainder of the expansion (29) of Arnaboldi et al. with the predicted value 3.

    The order is measured at two step sizes.
    """
    m, Q, rest = 0.4, 0.3, []
    for h in (1e-3, 5e-4):
        dm, dQ, x, y = h * np.array([0.7, -0.5, 1.1, 0.4])
        # the exact normalisation minus its expansion
        one = (m + dm) / np.sqrt(1 + x) - m - (dm - m / 2 * x - dm * x / 2 + 3 / 8 * m * x**2)
        form = dQ - Q / 2 * (x + y) + Q / 8 * (3 * x**2 + 3 * y**2 + 2 * x * y) - dQ * (x + y) / 2
        rest.append([one, (Q + dQ) / np.sqrt((1 + x) * (1 + y)) - Q - form])
    return compare(np.log2(np.divide(rest[0], rest[1])), [3.0, 3.0], atol=0.01)


@claim("(42), (80)", "risk on the sphere", r"$1 + \frac1p + \frac1{p^2}\sum_{j\ne l}Q_{jl}^2 - \frac2p\sum_j m_j^2$")
def compare_sphere_risk(effort: Effort) -> Comparison:
    """Compare the excess risk of one and of three units on the sphere with equations (42) and (80) of Arnaboldi et al.

    The risk is computed by quadrature.
    """
    values = []
    for p in (1, 3):
        s = SquaredUnits(random_weights(p, 3, norm=1.0), np.eye(1, 3), 0.4)
        Q, m = s.W @ s.W.T, s.W[:, 0]
        values.append((s.risk - 0.2, 1 + 1 / p + ((Q**2).sum() - p) / p**2 - 2 / p * m @ m))
    return compare(*np.transpose(values))


@claim("(21), (30), (31)", "ODE of several units on the sphere", r"$\dot m_j = \Psi_j - \frac{m_j}2\Phi_{jj}$, and for $Q$")
def compare_sphere_network(effort: Effort) -> Comparison:
    """Compare the drift of two units on the sphere with equations (30) and (31) of Arnaboldi et al., averaged by quadrature."""
    p, step, noise = 2, 0.15, 0.3
    s = SquaredUnits(random_weights(p, 3, norm=1.0), np.eye(1, 3), noise)
    problem, stats = sl.presets.phase_retrieval(p, lr=step * p, noise=noise), make_overlaps(np.ones(p), s.W[:, :1], s.W @ s.W.T)
    found, psi, phi = problem.drift(stats), s.mean(s.M)[:, 0], s.mean(s.Q(step))
    right = np.append(psi - s.W[:, 0] / 2 * phi.diagonal(), phi[0, 1] - (s.W @ s.W.T)[0, 1] / 2 * np.trace(phi))
    return compare(np.append(found.M[:, 0], found.Q[0, 1]) / step, right)


@claim(
    "(35)–(37)",
    "linearised increments",
    r"$\Phi_{jl} = -\frac{16}pQ_{jl} + \frac{4\gamma}p(2+\frac2p+\frac{24}{p^2}+\Delta)Q_{jl}$",
)
def compare_linear_increments(effort: Effort) -> Comparison:
    """Compare mean increments of three units at small overlaps with equations (35) to (37) of Arnaboldi et al.

    The means are computed by Gauss-Hermite quadrature.
    """
    p, step, noise = 3, 0.2, 0.3
    common = 2 + 2 / p + noise
    printed = [4 * (1 - 1 / p), -16 / p + 4 * step * (common + 24 / p**2), -8 / p + 4 * step * (common + 8 / p**2)]
    return compare(small_increments(p, step, noise), printed, rtol=1e-5)


def small_increments(p: int, step: float, noise: float, h: float = 1e-4) -> tuple[Any, Any, Any]:
    """Return mean increments per step near the saddle, for small overlaps h.

    They are that of a teacher overlap m = h over h, that of an overlap Q = h between units over h, and that of the squared norm
    of another unit.
    """
    W = np.eye(p, p + 1, 1)
    # one overlap with the teacher and one between units, both of size h
    W[0, 0], W[1, 1:3] = h, (h, np.sqrt(1 - h**2))
    s = SquaredUnits(W, np.eye(1, p + 1), noise)
    phi = lambda i, j: s.mean((4 * s.error + 4 * step * s.error**2) * s.fields[i] * s.fields[j])
    return s.mean(2 * s.error * s.fields[0] * s.fixed[0]) / h, phi(0, 1) / h, phi(2, 2)


def saddle_growth_rates(p: int, step: float, noise: float) -> tuple[Any, Any]:
    """Return the growth rates of teacher overlaps m and student overlaps Q at the saddle on the sphere.

    The rates follow from mean increments at small overlaps. Here p is the number of units and `step` the learning rate over p.
    """
    m, Q, norm = small_increments(p, step, noise)
    return m - norm / 2, Q - norm


@claim(
    "(38)–(40)",
    "rates at the saddle",
    r"$\omega_M = 4[1 - \frac\gamma p(1+\frac1p+\frac4{p^2}+\frac\Delta2)]$, $\omega_Q = \frac8p(1-\frac{8\gamma}{p^2})$",
)
def compare_saddle_rates(effort: Effort) -> Comparison:
    """Compare eigenvalues of the ODE of three units at the saddle with equations (38) to (40) of Arnaboldi et al.

    The Jacobian is computed by automatic differentiation.
    """
    p, lr, noise = 3, 0.4, 0.7
    found = sl.linearise(sl.presets.phase_retrieval(p, lr=lr, noise=noise), saddle_overlaps(p)).rates.real * p / lr
    M, Q = 4 * (1 - lr / p * (1 + 1 / p + 4 / p**2 + noise / 2)), 8 / p * (1 - 8 * lr / p**2)
    return compare(np.sort(found), np.sort([M] * p + [-Q] * (p * (p - 1) // 2)))


def saddle_overlaps(p: int) -> sl.Overlaps:
    """Return the overlaps of p units of norm 1 at the saddle, orthogonal to the teacher and to each other."""
    return make_overlaps(np.ones(p), np.zeros((p, 1)), np.eye(p))


@claim("E.2", "where both rates are positive", r"For $p > 6$, $\omega_M > 0$ implies $\omega_Q > 0$")
def compare_vanishing_rates(effort: Effort) -> Comparison:
    """Compare the sign of the decay rate of Q, where the growth rate of M vanishes, with section E.2 of Arnaboldi et al.

    Here omega_M and omega_Q are the growth rate of teacher overlaps and the decay rate of student overlaps at the saddle, from
    mean increments.
    """
    rates = lambda p: np.array([saddle_growth_rates(p, step, 0.0) for step in (0.0, 1.0)])
    signs = []
    for p in (6, 7):
        (M, Q), (M1, Q1) = rates(p)
        # the decay rate of Q at the zero of the line through both rates of M
        signs.append(np.sign(-Q - (Q1 - Q) * M / (M - M1)))
    return compare(signs, [-1, 1])


@claim(
    "before (8)", "largest learning rate", r"$\gamma < 1/6$ is necessary for learning.",
    right=r"It is, and with noise more is needed: (8) and (10) hold for $\gamma < 2/(12 + \Delta)$.", kind="remark",
    tests="`test_saddle_is_stable_from_the_largest_rate_on` in `tests/unit/papers/test_mediocrity.py`; "
    "`test_nothing_is_learnt_above_the_largest_rate` in `tests/laws/test_escape.py`",
)  # fmt: skip
def compare_largest_lr(effort: Effort) -> Comparison:
    """Compare the learning rate at which phase retrieval's mean step at a small overlap changes sign with 2/(12 + noise).

    The paper prints 1/6.
    """
    noise = 0.5
    found = brentq(lambda lr: sphere_drift(1e-3, lr, noise), 0.05, 0.3)
    return compare(found, 2 / (12 + noise), 1 / 6, rtol=1e-4)


@claim("(8)", "excess risk at the end", r"$\gamma\Delta/(1-6\gamma)$")
def compare_end_risk(effort: Effort) -> Comparison:
    """Compare the excess risk at the overlap where the mean of an exact step vanishes with equation (8) of Arnaboldi et al."""
    lr, noise = 0.08, 0.6
    m = brentq(lambda m: sphere_drift(m, lr, noise), 0.5, 0.999)
    return compare(2 * (1 - m**2), lr * noise / (1 - 6 * lr), rtol=1e-4)


@claim("(18), (19)", "random starts", r"$\sqrt d\,m_j$ and $\sqrt d\,Q_{jl}$ tend to $N(0, 1)$")
def compare_start_law(effort: Effort) -> Comparison:
    """Compare mean squares of sqrt(d) m and sqrt(d) Q over random starts with 1, as in (18) and (19) of Arnaboldi et al.

    The starts are sampled at d = 1000.

    Here m is the overlap with the teacher, and Q that between two units.
    """
    d, runs = 1000, effort.runs(20_000, 5000)
    start = sl.RandomInit(d).sample(sl.presets.phase_retrieval(2), runs=runs, seed=1)
    squares = d * np.stack([np.asarray(start.M)[:, 0, 0] ** 2, np.asarray(start.Q)[:, 0, 1] ** 2])
    return compare(squares.mean(1), [1.0, 1.0], sigma=squares.std(1, ddof=1) / np.sqrt(runs))


@claim(
    "appendix B", "the stationary point of random weights", r"$m = 0$, $Q_{jl} = 0$ is a global maximum of (6).",
    right=r"For $p \ge 2$ it is a saddle: equal students orthogonal to the teacher have the excess risk 2, which is more than "
    r"$1 + \frac1p$.",
    kind="disagreement",
)  # fmt: skip
def compare_largest_excess_risk(effort: Effort) -> Comparison:
    """Compare the largest excess risk of phase retrieval by two units on the sphere with the predicted value 2.

    The risk is taken over random weights and over equal ones. The paper prints 3/2.

    The paper prints 3/2.
    """
    worst = [SquaredUnits(random_weights(2, 3, seed, norm=1.0), np.eye(1, 3)).risk for seed in range(50)]
    alike = SquaredUnits(np.eye(1, 3, 1).repeat(2, 0), np.eye(1, 3)).risk
    return compare(max(*worst, alike), 2.0, 1.5)


@claim(
    "after (6)", "number of statistics", "$a$, $m$ and $Q$ have $p(p+1)$ parameters; $a$ is called the first layer.",
    right="$p(p+5)/2$: $p$ for each of $a$, the second layer, and $m$, and $p(p+1)/2$ for the symmetric $Q$.",
)  # fmt: skip
def compare_statistics_rank(effort: Effort) -> Comparison:
    """Compare the number of independent statistics (a, m, Q) of p squared units, as a rank of a Jacobian, with p(p + 5)/2.

    The statistics are the second layer, the teacher overlaps and the student overlaps; the Jacobian is computed by finite
    differences. The paper prints p(p + 1).
    """
    p, rng, h = 4, np.random.default_rng(0), 1e-6
    start = rng.normal(size=10 * p)

    def statistics(y: np.ndarray) -> np.ndarray:
        """Return the statistics (a, m, Q) of squared units as a vector, from a vector of second layer a and weights.

        Here m has the overlaps with the teacher, and Q those between units.
        """
        W = y[p:].reshape(p, 9)
        return np.concatenate([y[:p], W[:, 0], (W @ W.T).ravel()])

    jacobian = [(statistics(start + h * e) - statistics(start - h * e)) / (2 * h) for e in np.eye(start.size)]
    return compare(np.linalg.matrix_rank(jacobian, tol=1e-4), p * (p + 5) / 2, p * (p + 1))


@claim(
    "Appendices F and I", "size of a random overlap", r"$m \sim \mathcal N(0, 1/\sqrt a)$, of order $1/\sqrt a$",
    right=r"$1/\sqrt d$ is its standard deviation; $a$ stands for $d$, and the variance is $1/d$.",
)  # fmt: skip
def compare_random_overlap(effort: Effort) -> Comparison:
    """Compare the variance of the overlap of random unit vectors in R^400, by sampling, with 1/d.

    The paper prints 1/sqrt(d).
    """
    d, runs = 400, effort.runs(4096, 1024)
    w = np.random.default_rng(0).normal(size=(runs, d))
    # by rotation invariance the other vector may be an axis
    m = w[:, 0] / np.linalg.norm(w, axis=1)
    return compare((m**2).mean(), 1 / d, 1 / np.sqrt(d), sigma=(m**2).std(ddof=1) / np.sqrt(runs))
