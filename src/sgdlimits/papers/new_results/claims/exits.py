"""Claims of this package beyond the papers: exit times, learning rates and final risks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.polynomial import hermite_e
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq
from scipy.stats import norm

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.mediocrity import theory as theory
from sgdlimits.papers.mediocrity.claims.times import chain_times, theory_time
from sgdlimits.papers.one_step import SquaredUnits, gauss_grid, random_weights, step_on_sphere
from sgdlimits.papers.shorthand import make_overlaps, mean_and_error, simulate

# --- noise at the start ------------------------------------------------------------------------------------------------------


@claim(
    "any width",
    "noise adds to the random start",
    r"Exits come $\log(1+\kappa)/2\omega_M$ before the quenched ODE, whatever $d$",
    proof="[noise](noise.md#why)",
)
def compare_noise_gain(effort: Effort) -> Comparison:
    """Compare phase retrieval's mean exit time, exact chain minus ODE, with the predicted effect of SGD's noise.

    The prediction is -log(1 + kappa)/(2 omega_M), with kappa the noise gain and omega_M the growth rate at the saddle.
    """
    lr, T, rows = 0.12, 0.1, []
    problem = sl.presets.phase_retrieval(lr=lr)
    for d in (1000, 4000):
        number, sigma = mean_and_error(chain_times(problem, d, T, effort.runs(1024, 512), seed=d))
        rows.append((number - theory_time(problem, d, T, "ode"), sigma))
    shift = -np.log1p(float(theory.noise_gain(1, lr))) / (2 * float(theory.linear_rates(1, lr).M))
    number, sigma = np.transpose(rows)
    return compare(number, shift, sigma=sigma, atol=0.02)


@claim(
    "one unit",
    "variance that noise adds",
    r"$\kappa = \frac\gamma p\mathrm{Var}\mathcal M/2\omega_M$ with $\mathrm{Var}\mathcal M = "
    r"4(10-\frac6p+\frac8{p^2}+\Delta)$; $\kappa = 1$ at the best rate of one unit",
    proof="[noise](noise.md#why)",
)
def compare_saddle_increment_variance(effort: Effort) -> Comparison:
    """Compare the variance of a phase retrieval overlap's one-sample increments at the saddle with its formula.

    The variance is computed by quadrature.

    The noise gain of one unit at the optimal learning rate is compared with 1.
    """
    noise, rows = 0.4, []
    for p in (1, 2, 3):
        # units and teacher along different axes: the saddle
        s = SquaredUnits(np.eye(p, p + 1, 1), np.eye(1, p + 1), noise, nodes=5)
        rows.append((s.covariance(s.M)[0, 0], 4 * (10 - 6 / p + 8 / p**2 + noise)))
    rows.append((float(theory.noise_gain(1, 1 / (12 + noise), noise)), 1.0))
    return compare(*np.transpose(rows))


@claim(
    "one unit",
    "noise delays typical starts",
    r"The mean exit from $y_0=\sqrt dm_0$ moves by $\frac1{\omega_M}(\log\lvert y_0\rvert - E\log\lvert "
    r"y_0+\sqrt\kappa\xi\rvert)$",
    proof="[noise](noise.md#from-a-given-start)",
)
def compare_noise_delay(effort: Effort) -> Comparison:
    """Compare the delay of phase retrieval's mean exit by SGD's noise, from given starts, with the closed formula.

    The delay is computed by numerical integration and by the exact chain.
    """
    lr, d, T = 1 / 12, 1024, 0.1
    omega, k = float(theory.linear_rates(1, lr).M), float(theory.noise_gain(1, lr))
    starts = np.array([0.125, 0.5, 1.0, 2.0])
    # E log|y + sqrt(kappa) xi|, in two halves, as the logarithm is singular at zero
    log = lambda y, sign: quad(lambda u: norm.pdf((sign * u - y) / np.sqrt(k)) / np.sqrt(k) * np.log(u), 0, 12, limit=400)[0]
    exact = [(np.log(y) - log(y, 1) - log(y, -1)) / omega for y in starts]
    problem, m = sl.presets.phase_retrieval(lr=lr), d**-0.5
    start = make_overlaps(np.ones(1), np.full((1, 1), m), np.eye(1))
    chain, sigma = mean_and_error(chain_times(problem, d, T, effort.runs(4096, 1024), start))
    closed = theory.noise_delay(1, lr, 0.0, starts)
    number = [*exact, chain - theory_time(problem, d, T, "ode", start=m)]
    return compare(number, [*closed, closed[2]], sigma=[0, 0, 0, 0, sigma], atol=2e-3)


# --- the learning rate -------------------------------------------------------------------------------------------------------


def equal_students(p: int, a: float, m: float, norm: float, q: float) -> sl.Overlaps:
    """Build the overlaps of p equal students: second layer a, teacher overlap m, squared norm `norm`, mutual overlap q."""
    return make_overlaps(np.full(p, a), np.full((p, 1), m), q + (norm - q) * np.eye(p))


@claim(
    "any width",
    "largest rate that learns",
    r"Zero risk is stable for $\gamma < p/6$",
    proof="[learning rate](learning_rate.md#without-noise)",
)
def compare_usable_learning_rate(effort: Effort) -> Comparison:
    """Compare the learning rate above which zero risk of phase retrieval by p = 3 units is unstable with p/6.

    Here p is the number of units.
    """
    p = 3
    rate = lambda lr: (
        sl.linearise(sl.presets.phase_retrieval(p, lr=lr), equal_students(p, 1.0, 1.0 - 1e-9, 1.0, 1.0 - 1e-9)).rates.real
    )
    push = lambda lr: float(rate(lr).max() if lr > 0.5 else -1e-3)
    # shifted by 1e-4, so that a zero eigenvalue does not count as growth
    low, high = brentq(lambda lr: push(lr) - 1e-4, 0.45, 0.6), p / 6
    return compare(low, high, atol=2e-3)


@claim("any width", "excess risk that noise leaves", "The root of a cubic", proof="[learning rate](learning_rate.md#proofs)")
def compare_cubic_excess_risk(effort: Effort) -> Comparison:
    """Compare the final excess risk of three units of phase retrieval, in the simulated ODE, with the root of a cubic.

    There are two learning rates.
    """
    rows = []
    for p, lr, noise in ((3, 0.3, 1.0), (3, 0.15, 1.0)):
        problem = sl.presets.phase_retrieval(p, lr=lr, noise=noise)
        start = make_overlaps(np.ones(p), np.array([[0.5], [0.4], [0.6]]), np.eye(p) * 0.7 + 0.3)
        found = simulate(problem, sl.ODE(), start, 300 * p / lr, save=2)
        rows.append((float(found.risk[0, -1]) - noise / 2, float(theory.asymptotic_excess_risk(p, lr, noise))))
    return compare(*np.transpose(rows), rtol=1e-5)


@claim(
    "two units",
    "where two units part",
    r"At the root of $48g^3-24g^2+(13+\Delta)g-2$, $g=\gamma/2$",
    proof="[learning rate](learning_rate.md#proofs)",
)
def compare_separation_rate(effort: Effort) -> Comparison:
    """Compare the learning rate at which two equal units of phase retrieval separate with the root of a cubic."""

    def growth(g: float) -> float:
        """Return the growth rate of the difference of the two units at the learning rate over width g = lr/p."""
        problem, state = sl.presets.phase_retrieval(2, lr=2 * g, noise=0.5), theory.learnt_state(2, 2 * g, 0.5)
        found = sl.linearise(problem, equal_students(2, 1.0, float(state.m), 1.0, float(state.q)))
        return float(found.matrix[0, 0] - found.matrix[0, 1])

    roots = np.roots([48, -24, 13.5, -2])
    return compare(brentq(growth, 0.16, 0.21), float(roots[np.abs(roots.imag) < 1e-9].real.min()), rtol=1e-6)


@claim(
    "any width",
    "gain from width at usable rates",
    r"$\frac{8(5-1/p-4/p^2)}{12+\Delta}$, at most $10/3$, not $6$",
    proof="[learning rate](learning_rate.md#what-remains-of-the-gain)",
)
def compare_usable_rate_gain(effort: Effort) -> Comparison:
    """Compare the ratio of phase retrieval's escape rates, three units at lr = p/6 over one at its best, with a formula.

    The escape rates are those of the linearised ODE; p is the number of units.
    """
    growth = lambda p, lr: float(
        sl.linearise(sl.presets.phase_retrieval(p, lr=lr), equal_students(p, 1.0, 0.0, 1.0, 0.0)).matrix[0, 0]
    )
    number = [growth(3, 0.5) / growth(1, 1 / 12), float(theory.usable_gain(3, 0.0)), float(theory.usable_gain(1e6, 0.0))]
    right = 8 * (5 - 1 / 3 - 4 / 9) / 12
    return compare(number, [right, right, 10 / 3], rtol=1e-5)


# --- the plateau that noise leaves -------------------------------------------------------------------------------------------


@claim(
    "any width",
    "plateau off the sphere and with a trained layer",
    r"$R = g\Delta + g^2[6\Delta + c\Delta^2]$ with $c = \frac{p-1}{4(p+2)}$ and $-\frac{p+5}{4(p+2)}$",
    proof="[open noise](open_noise.md#why)",
)
def compare_plateau_series(effort: Effort) -> Comparison:
    """Compare the coefficient of lr^2 in the final excess risk of phase retrieval with its formula.

    The coefficient is extrapolated to small learning rates.
    """
    p, noise, rows = 3, 3.0, []
    for end, c in ((theory.free_end, (p - 1) / (4 * (p + 2))), (theory.trained_end, -(p + 5) / (4 * (p + 2)))):
        bend = [(float(end(p, g * p, noise).excess_risk) - g * noise) / g**2 for g in (1e-3, 5e-4)]
        # Richardson extrapolation to a rate of zero
        rows.append((2 * bend[1] - bend[0], 6 * noise + c * noise**2))
    lr = 0.3
    free = theory.free_end(p, lr, 0.5)
    drift = sl.presets.phase_retrieval(p, lr=lr, noise=0.5, sphere=False).drift(
        equal_students(p, *(float(x) for x in free[:4]))
    )
    rows.append((float(np.abs(drift.Q).max()), 0.0))
    return compare(*np.transpose(rows), rtol=1e-3)


@claim(
    "one unit",
    "plateau at finite d",
    r"$R(1+c/d)$ with $c = -1+\gamma(6+\frac\Delta2)+\dots$",
    proof="[open noise](open_noise.md#at-finite-d)",
)
def compare_plateau_correction(effort: Effort) -> Comparison:
    """Compare the 1/d correction of phase retrieval's final risk, from moments of one exact step, with its formula.

    The moments are computed by quadrature in dimension d.
    """
    rows = []
    for lr, noise in ((0.1, 1.0), (0.03, 2.0)):
        d, R, h = 10**5, lr * noise / (1 - 6 * lr), 1e-3

        def step_moments(y: float, lr: float = lr, noise: float = noise, d: int = d) -> tuple[float, float]:
            """Return d times the mean, and d^2 times the mean square, of the change of m^2 = y in one exact step."""
            after, weights = step_on_sphere(np.sqrt(y), lr, noise, d)
            return d * float((after**2 - y) @ weights), d**2 * float((after**2 - y) ** 2 @ weights)

        y = 1 - R / 2
        (low, _), (middle, square), (high, _) = step_moments(y - h), step_moments(y), step_moments(y + h)
        # central differences of the mean increment
        slope, bend = (high - low) / (2 * h), (high - 2 * middle + low) / h**2
        number = 2 * d / R * (middle + bend / 2 * square / (-2 * slope * d)) / slope
        rows.append((number, float(theory.plateau_correction(lr, noise))))
    return compare(*np.transpose(rows), rtol=2e-3, atol=2e-3)


@claim(
    "one unit",
    "drift at finite d",
    "The terms of order 1/d of the drift on the sphere",
    proof="[open noise](open_noise.md#at-finite-d)",
)
def compare_drift_correction(effort: Effort) -> Comparison:
    """Compare the 1/d term of the mean of one exact step of phase retrieval on the sphere with its formula.

    The mean is computed by quadrature at d = 10^4.
    """
    lr, noise, d, rows = 0.05, 1.5, 1e4, []
    for m in (0.05, 0.5, 0.95):
        after, weights = step_on_sphere(m, lr, noise, d, nodes=16)
        limit = lr * m * (4 * (1 - 6 * lr) * (1 - m**2) - 2 * lr * noise)
        rows.append((d * (d * (after - m) @ weights - limit), float(theory.drift_correction(m, lr, noise))))
    return compare(*np.transpose(rows), atol=2e-3)


@claim(
    "one unit off the sphere",
    "where norm and overlap oscillate",
    r"At the smaller root of $(6\Delta-72)\gamma^2+(42+\Delta)\gamma-5$ for $\Delta<4$",
    proof="[open noise](open_noise.md#answer)",
)
def compare_oscillation_threshold(effort: Effort) -> Comparison:
    """Compare the learning rate at which norm and overlap of one phase retrieval unit begin to oscillate with its formula.

    The rate is found from eigenvalues of the ODE.
    """
    noise = 1.0

    def growth(lr: float) -> float:
        """Return the largest real part of the ODE's eigenvalues at the end state, at a learning rate."""
        problem, end = sl.presets.phase_retrieval(lr=lr, noise=noise, sphere=False), theory.free_end(1, lr, noise)
        return float(sl.linearise(problem, equal_students(1, *(float(x) for x in end[:4]))).rates.real.max())

    roots = np.roots([6 * noise - 72, 42 + noise, -5])
    return compare(brentq(growth, 0.1, 0.152, xtol=1e-8), roots.min(), rtol=1e-5)


# --- other activations -------------------------------------------------------------------------------------------------------


def overlap_drift(student: Any, slope: Any, target: Any, m: float, lr: float, nodes: int = 60) -> float:
    """Compute the drift of one unit's overlap on the sphere, for given activations, by Gauss-Hermite quadrature."""
    # the field has a part along the teacher and one orthogonal to it
    (fixed, own), weights = gauss_grid(nodes, nodes)
    field = m * fixed + np.sqrt(1 - m**2) * own
    error = target(fixed) - student(field)
    first = lr * float((error * slope(field) * (fixed - m * field)) @ weights)
    return first - lr**2 * m / 2 * float(error**2 * slope(field) ** 2 @ weights)


@claim(
    "one unit",
    "escape with any activation",
    r"$C\,d\log d$ samples with $C = E[G^2]_0/(s_2g_2)^2$; recovery stable below $2E[s'^2]/E[s'^4]$",
    proof="[open activations](open_activations.md#answer)",
)
def compare_activation_escape_rates(effort: Effort) -> Comparison:
    """Compare the escape rate and the largest stable learning rate of a unit with cosine activation with their formulas.

    Both are obtained from the drift of the overlap, computed by quadrature.
    """
    one = sl.theory.escape.escape(lambda x: -jnp.cos(x))
    student, slope = lambda x: -np.cos(x), np.sin
    lr = 0.5 * one.max_lr
    # slightly off recovery, where the drift is exactly zero
    near = lambda share: overlap_drift(student, slope, student, 1 - 1e-5, share * one.final_lr)
    number = [overlap_drift(student, slope, student, 1e-4, lr) / 1e-4, brentq(near, 0.9, 1.1)]
    return compare(number, [float(one.rate(lr)), 1.0], rtol=2e-3)


@claim(
    "one unit",
    "traps of mismatched activations",
    r"$\mathrm{He}_2+c\,\mathrm{He}_4$ on $\mathrm{He}_2+c_\star\mathrm{He}_4$ is trapped at $m^2=-1/(24cc_\star)$",
    proof="[open activations](open_activations.md#answer)",
)
def compare_overlap_of_trapped_unit(effort: Effort) -> Comparison:
    """Compare the overlap at which a unit with other Hermite coefficients than the target is trapped with a formula.

    The overlap is a zero of the drift, computed by quadrature.
    """
    c, c_star = 0.5, -0.5
    student, target = (np.polynomial.Polynomial(hermite_e.herme2poly([0, 0, 1, 0, each])) for each in (c, c_star))
    slope = student.deriv()
    # a tiny rate removes the corrector
    found = brentq(lambda m: overlap_drift(student, slope, target, m, 1e-9, nodes=12), 0.1, 0.9)
    return compare(found**2, -1 / (24 * c * c_star), rtol=1e-5)


# --- both layers -------------------------------------------------------------------------------------------------------------


def layers_drift(a: np.ndarray, M: np.ndarray, Q: np.ndarray, step: float, ratio: float) -> tuple[np.ndarray, ...]:
    """Return the ODE's drift of both layers of squared units on the sphere, without label noise, in the paper's time.

    The drift has the parts (da, dM, dQ) of second layer, teacher overlaps and student overlaps. `step` is the first layer's
    learning rate over the width, and `ratio` the second layer's learning rate over the first's. The Gaussian moments of the
    quadratic form are written out, independently of the package.
    """
    p, k = a.size, np.append(-a / a.size, 1.0)
    S = np.block([[Q, M], [M.T, np.ones((1, 1))]])
    KS = k[:, None] * S
    SKS, trace = S @ KS, np.trace(KS)
    # Isserlis: E[D v v^T] and E[D^2 v v^T] of a quadratic form D
    linear = trace * S + 2 * SKS
    square = (trace**2 + 2 * np.trace(KS @ KS)) * S + 4 * trace * SKS + 8 * SKS @ KS
    dQ = 2 * (a[:, None] + a) * linear[:p, :p] + 4 * step * np.outer(a, a) * square[:p, :p]
    half = np.diag(dQ) / 2
    return ratio * np.diag(linear)[:p], 2 * a[:, None] * linear[:p, p:] - M * half[:, None], dQ - Q * (half[:, None] + half)


def solve_layers(a: np.ndarray, M: np.ndarray, Q: np.ndarray, step: float, ratio: float, tau: float) -> tuple[np.ndarray, ...]:
    """Solve the ODE of `layers_drift` up to the paper's time tau, and return second layer and overlaps (a, M, Q)."""
    p = a.size
    split = lambda y: (y[:p], y[p : 2 * p, None], y[2 * p :].reshape(p, p))
    slope = lambda t, y: np.concatenate([each.ravel() for each in layers_drift(*split(y), step, ratio)])
    start = np.concatenate([a, M.ravel(), Q.ravel()])
    # stiff at the end, where the risk falls as a power law
    return split(solve_ivp(slope, (0, tau), start, method="LSODA", rtol=1e-10, atol=1e-13).y[:, -1])


@claim(
    "several units",
    "power law at the end",
    r"Risk $\tau^2\to\frac{p-1}{64p}$ with a fixed layer, up to three times as much with a trained one",
    proof="[second layer](open_second_layer.md#why)",
)
def compare_power_law_decay(effort: Effort) -> Comparison:
    """Compare the late risk of three phase retrieval units times tau^2, at the paper's time tau = 10^5, with its limit.

    The risk is that of an independent solution of the ODE.
    """
    p, step, tau, s, rows = 3, 0.05, 1e5, 0.01, []
    Q = (1 - s) - s / (p - 1) + (s + s / (p - 1)) * np.eye(p)
    for first, trained in ((np.ones(p), False), (np.array([0.8, 0.9, 1.3]), True)):
        a, M, end = solve_layers(first, np.full((p, 1), np.sqrt(1 - s)), Q, step, float(trained), tau)
        KS = np.array([*(-a / p), 1.0])[:, None] * np.block([[end, M], [M.T, np.ones((1, 1))]])
        rows.append(((np.trace(KS) ** 2 / 2 + np.trace(KS @ KS)) * tau**2, float(theory.terminal_risk(a, step * p, trained))))
    return compare(*np.transpose(rows), rtol=5e-3)


@claim(
    "several units",
    "second layer alone",
    r"Its best excess risk is $(p+3)/(p+2)$",
    proof="[second layer](open_second_layer.md#answer)",
)
def compare_second_layer_only_risk(effort: Effort) -> Comparison:
    """Compare phase retrieval's risk with the best second layer of three fixed orthonormal units, with the predicted value 6/5.

    The second layer is found by least squares.
    """
    # a = 0: the error is the label itself
    s = SquaredUnits(np.eye(3, 4, 1), np.eye(1, 4), a=np.zeros(3))
    squares = s.fields**2
    a = np.linalg.solve((squares * s.weights) @ squares.T, s.mean(squares * s.error))
    return compare(float(s.mean((s.error - a @ squares) ** 2)) / 2, 6 / 5)


@claim(
    "several units",
    "sparse or homogeneous",
    "The ratio of the learning rates decides: fast second layers become sparse",
    proof="measured",
)
def compare_sparse_second_layers(effort: Effort) -> Comparison:
    """Compare how even second layers of phase retrieval end, slowly trained ones over fast trained ones, with 1.5.

    The participation ratios are those of the final second layers of the ODE from six starts: the smallest at a slow second
    layer over the median at a fast one.
    """
    rng, shares = np.random.default_rng(1), {0.1: [], 10.0: []}  # type: ignore[var-annotated]
    for _ in range(6):
        u = rng.standard_normal((3, 1000))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        for ratio, found in shares.items():
            a = solve_layers(np.ones(3), u[:, :1], u @ u.T, 1 / 24, ratio, 20.0)[0]
            found.append(a.sum() ** 2 / (a**2).sum() / 3)
    return compare(min(shares[0.1]) / np.median(shares[10.0]), 1.5, rtol=0, relation=">")


@claim(
    "homogeneous units",
    "balance of the layers",
    r"Gradient flow keeps $Q_{jj} - n\frac{\mathtt{lr}}{\mathtt{lr}_2}a_j^2$ for units of degree $n$",
    proof="[implicit bias](implicit_bias.md#any-other-function)",
)
def compare_layer_balance(effort: Effort) -> Comparison:
    """Compare the rate of change of the balance between both layers of squared units, by quadrature, with the prediction 0."""
    a, ratio = np.array([0.7, 1.4]), 0.5
    s = SquaredUnits(random_weights(2, 3), np.eye(1, 3), a=a)
    dQ, da = s.mean(s.Q(0.0)).diagonal(), ratio * s.mean(s.error * s.fields**2)
    return compare(dQ - 2 / ratio * 2 * a * da, 0.0, atol=1e-10)
