"""Claims of High-dimensional limit theorems for SGD on spiked matrices and tensors."""

from __future__ import annotations

from functools import reduce

import numpy as np
from scipy.optimize import brentq, minimize_scalar

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.shorthand import log_slope, make_spike, simulate, simulate_chain

# file of the tests named by misprints
SPIKED_TENSOR_TESTS = "in `tests/laws/test_spiked_tensor.py`"

# --- spiked matrices and tensors ---------------------------------------------------------------------------------------------


def contract(tensors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Contract stacked tensors of order k with the vector x along all axes but one, and sum over the remaining axis."""
    parts = (np.moveaxis(tensors, axis, 1) for axis in range(1, tensors.ndim))
    return sum(reduce(lambda part, _: part @ x, range(tensors.ndim - 2), part) for part in parts)  # type: ignore[return-value]


def tensor_step(k: int, snr: float, lr: float, m: float, r: float) -> np.ndarray:
    """Return the mean and variance of one SGD step on a spiked tensor of order k, in the limit of large dimension n.

    The entries are n times the mean changes of the overlap m and of the squared orthogonal norm r^2, and n^2 times the variance
    of the change of m. The moments of a step with a real noise tensor are polynomials in 1/n. They are computed in four
    dimensions and extrapolated.
    """
    sizes, rows = np.array([3, 5, 7, 9]), []  # four dimensions determine a cubic
    for n in sizes:
        x, v = np.concatenate([[m, r], np.zeros(n - 2)]), np.eye(n)[0]
        power = lambda u: reduce(np.multiply.outer, [u] * k)
        after = x + 2 * lr / n * contract((snr * power(v) - power(x))[None], x)[0]
        # the response to each entry of the noise tensor, which is linear
        each = contract(np.eye(n**k).reshape(-1, *(n,) * k), x)
        S = (2 * lr / n) ** 2 * each.T @ each
        rows.append([n * (after[0] - m), n * (after[1:] @ after[1:] + np.trace(S[1:, 1:]) - r**2), n**2 * S[0, 0]])
    # the constant term is the limit n to infinity
    return np.polyfit(1 / sizes, rows, 3)[-1]


@claim(
    "(3.1), Proposition 3.1",
    "effective dynamics of spikes",
    r"$\dot u_1 = 2u_1(\lambda k u_1^{k-2} - kR^{2k-2})$, $\dot u_2 = -4kR^{2(k-1)}(u_2 - c_\delta)$",
)
def compare_spiked_ode(effort: Effort) -> Comparison:
    """Compare mean one-step changes of two statistics, from explicit noise tensors of order 2 and 3, with the ODE (3.1).

    The statistics are the overlap m with the spike and the squared orthogonal norm r^2.
    """
    snr, lr, m, r = 1.7, 0.6, 0.5, 0.8
    R2, rows = m**2 + r**2, []
    for k in (2, 3):
        right = [2 * m * (snr * k * m ** (k - 2) - k * R2 ** (k - 1)), -4 * k * R2 ** (k - 1) * (r**2 - lr)]
        rows += list(zip(tensor_step(k, snr, lr, m, r)[:2] / lr, right, strict=True))
    return compare(*np.transpose(rows), rtol=1e-8)


@claim("section 3", "population loss of spikes", r"$\Phi = -2\lambda m^k + (r_\perp^2+m^2)^k + c$")
def compare_spiked_risk(effort: Effort) -> Comparison:
    """Compare the squared distance between the tensors snr v^3 and x^3 in R^4, entry by entry, with the loss of section 3.

    Here v is the unit spike, x the weight vector and snr the signal-to-noise ratio.
    """
    k, snr, x = 3, 1.7, np.array([0.5, 0.3, -0.6, 0.2])
    power = lambda u: reduce(np.multiply.outer, [u] * k)
    number = ((snr * power(np.eye(4)[0]) - power(x)) ** 2).sum()
    return compare(number, snr**2 - 2 * snr * x[0] ** k + (x @ x) ** k)


@claim(
    "Proposition 3.2, (D.4)",
    "thresholds of spikes",
    r"$\lambda_c(2) = 1$, $m_\star = \sqrt{\lambda-1}$; for $k\ge3$ fixed points appear at $\lambda_c(k)$",
)
def compare_spiked_threshold(effort: Effort) -> Comparison:
    """Compare critical signal-to-noise ratios and a fixed point, by root finding, with Proposition 3.2 and (D.4)."""
    drift = lambda k, snr, m: float(sl.presets.spiked_tensor(k, snr).drift(make_spike(m, 1.0)).m)
    rate = lambda snr: float(sl.linearise(sl.presets.spiked_tensor(2, snr), make_spike(0.0, 1.0)).matrix[0, 0])
    number = [brentq(rate, 0.5, 2.0), brentq(lambda m: drift(2, 1.6, m), 0.1, 2.0)]
    number += [
        minimize_scalar(lambda m, k=k: (m**2 + 1) ** (k - 1) / m ** (k - 2), bounds=(0.1, 3), method="bounded").fun
        for k in (3, 4)
    ]
    return compare(number, [1.0, np.sqrt(0.6), *(sl.theory.effective.critical_snr(k) for k in (3, 4))], rtol=1e-8)


@claim(
    "Proposition 3.2",
    "stability of the fixed points of spikes",
    r"$(0,0)$ unstable; $(0,1)$ stable below $\lambda_c(2)$ and always for $k>2$; $m_\dagger$ unstable, $m_\star$ stable",
)
def compare_spiked_stability(effort: Effort) -> Comparison:
    """Compare the sign of the ODE's largest eigenvalue at seven fixed points of spiked tensors with Proposition 3.2."""
    top = sl.theory.effective.overlaps(3, 6.0)
    points = [(2, 0.8, 0.0, 1), (2, 1.2, 0.0, 1), (2, 1.2, np.sqrt(0.2), 1), (3, 6.0, 0.0, 1), (3, 6.0, top.m_dagger, 1)]
    points += [(3, 6.0, top.m_star, 1), (2, 0.8, 0.0, 0)]
    found = [sl.linearise(sl.presets.spiked_tensor(k, snr), make_spike(m, float(r2))).rates[0].real for k, snr, m, r2 in points]
    return compare(np.sign(found), [-1, 1, -1, -1, 1, -1, 1])


@claim(
    "Proposition 3.2", "fixed points of odd tensors", r"Fixed points at $\pm m_\dagger$ and $\pm m_\star$ for every $k \ge 3$",
    right=r"For odd $k$ only at $+m_\dagger$ and $+m_\star$",
    tests=f"`test_fixed_points_of_tensors_and_their_stability` {SPIKED_TENSOR_TESTS}",
)  # fmt: skip
def compare_odd_tensors(effort: Effort) -> Comparison:
    """Compare the final overlaps of the order-3 ODE from the starts m_star and -m_star with m_star and 0.

    Here m_star is the overlap of the stable fixed point. The paper prints -m_star for the second end.
    """
    m = sl.theory.effective.overlaps(3, 6.0).m_star
    start = make_spike(np.array([m, -m]), np.ones(2))
    end = simulate(sl.presets.spiked_tensor(3, 6.0), sl.ODE(), start, 20, runs=2, save=2)
    return compare(end.m.values[:, -1], [m, 0.0], [m, -m], atol=1e-6)


@claim("Remark 1", "barrier at small steps", r"$m_\dagger \to 0$ as $c_\delta \to 0$")
def compare_small_step_fixed_point(effort: Effort) -> Comparison:
    """Compare the smaller fixed point at order 3, by root finding, with its formula.

    Its exponent in the learning rate is compared with 2.
    """
    # the smaller root: the barrier
    root = lambda lr: brentq(lambda m: 4.0 * m - (m**2 + lr) ** 2, 1e-9, 0.5)
    found = float(sl.theory.effective.overlaps(3, 4.0, 0.01).m_dagger)
    return compare([found, np.log(root(0.02) / root(0.01)) / np.log(2)], [root(0.01), 2.0], atol=1e-3)


@claim(
    "Proposition 3.3, (3.2)",
    "diffusion of a random start",
    r"$d\tilde u_1 = 2\tilde u_1(2\lambda 1_{k=2} - k)dt + 2\sqrt k\,dB$ at $\tilde u_2 = 1$",
)
def compare_overlap_diffusion(effort: Effort) -> Comparison:
    """Compare the drift and variance of sqrt(n) m in one step, from explicit noise tensors, with the diffusion (3.2).

    Here m is the overlap with the spike, in n dimensions.
    """
    rows = []
    for k, snr in ((2, 1.3), (3, 1.3)):
        step = tensor_step(k, snr, 1.0, 1e-6, 1.0)
        rows += [(step[0] / 1e-6, 2 * (2 * snr * (k == 2) - k)), (step[2], 4 * k)]
    return compare(*np.transpose(rows), rtol=1e-4)


def variance_of_starts(snr: float, time: float, runs: int, d: int = 20_000) -> tuple[float, float]:
    """Simulate matrix PCA, and return the variance over runs of sqrt(d) m at one time, with its standard error.

    Here m is the overlap with the spike. A step at learning rate lr and signal-to-noise ratio lr snr equals a longer step at
    learning rate 1 and ratio snr, which saves steps.
    """
    lr = 3.0
    problem, t = sl.presets.spiked_tensor(order=2, snr=lr * snr, lr=lr), time / lr**2
    end = simulate_chain(problem, d, t, sl.RandomInit(d, scale=lr**0.5), save=[t], runs=runs, seed=1)
    squares = d * end.m.values[:, -1] ** 2 / lr
    return float(squares.mean()), float(squares.std(ddof=1) / np.sqrt(runs))


@claim(
    "after (3.2)",
    "transition of matrix PCA",
    r"$4(\lambda-1)\tilde u_1dt + 2\sqrt2\,dB$: stable for $\lambda<1$, unstable for $\lambda>1$",
)
def compare_variance_transition(effort: Effort) -> Comparison:
    """Compare the variance of sqrt(d) m over runs of the exact chain, below and above the threshold, with (3.2).

    Here m is the overlap with the spike.
    """
    rows = []
    for snr, time in ((0.8, 1.5), (1.2, 1.0)):
        growth = 4 * (snr - 1)
        # stationary variance of the Ornstein-Uhlenbeck process
        rest = -4 / growth
        rows.append((*variance_of_starts(snr, time, effort.runs(8192, 4096)), rest + (1 - rest) * np.exp(2 * growth * time)))
    number, sigma, right = np.transpose(rows)
    return compare(number, right, rtol=0.02, sigma=sigma)


@claim("after (3.2)", "tensors at a fixed ratio", r"For $k\ge3$ the overlap is always a stable Ornstein–Uhlenbeck process")
def compare_stable_tensor_variance(effort: Effort) -> Comparison:
    """Compare the variance of sqrt(d) m over runs of a tensor's exact chain, at twice the critical ratio, with 1.

    Here m is the overlap with the spike.
    """
    d, runs = 5000, effort.runs(4096, 1024)
    problem = sl.presets.spiked_tensor(3, 2 * sl.theory.effective.critical_snr(3))
    squares = d * simulate_chain(problem, d, 0.5, save=[0.5], runs=runs, seed=1).m.values[:, -1] ** 2
    return compare(squares.mean(), 1.0, rtol=0.02, sigma=squares.std(ddof=1) / np.sqrt(runs))


@claim("after (3.2)", "recovery takes n log n steps", r"For $\lambda>1$ SGD reaches $\pm m_\star$ in $O(n\log n)$ steps")
def compare_recovery_scaling(effort: Effort) -> Comparison:
    """Compare the slope in log d of the exact chain's mean recovery time in matrix PCA with 1/(8 (snr - 1)).

    Here snr is the signal-to-noise ratio.
    """
    problem, runs, sizes, rows = sl.presets.spiked_tensor(2, 2.0), effort.runs(1024, 256), (500, 20_000), []
    for d in sizes:
        times = simulate_chain(problem, d, 60, runs=runs, seed=d, until=lambda stats: abs(stats.m) - 0.5).t_end.values
        rows.append((times.mean(), times.std(ddof=1) / np.sqrt(runs)))
    number, sigma = log_slope(sizes, rows)
    return compare(number, 1 / 8, rtol=0.03, sigma=sigma)


@claim(
    r"SDE after (3.2), $\lambda_n = \Lambda n^{(k-2)/2}$", "tensors with a growing ratio",
    r"Drift $2\tilde u_1 (k \Lambda - k \tilde u_2^{k-1})$",
    right=r"$2\tilde u_1 (k \Lambda \tilde u_1^{k-2} - k \tilde u_2^{k-1})$: for $k \ge 3$ the origin is always linearly "
    r"stable, with a barrier at $\tilde u_1 = \Lambda^{-1/(k-2)}$.",
    tests=f"`test_scaled_tensor_has_a_barrier_at_every_strength` {SPIKED_TENSOR_TESTS}",
)  # fmt: skip
def compare_scaled_tensor(effort: Effort) -> Comparison:
    """Compare the package's drift of sqrt(d) m, at signal-to-noise ratio 2 sqrt(d), with the SDE after (3.2).

    Here m is the overlap with the spike. The SDE is taken in its corrected and its printed form.
    """
    k, Lambda, d = 3, 2.0, 10**10
    u = np.array([0.2, 1.5])
    problem = sl.presets.spiked_tensor(k, Lambda * d**0.5)
    number = [np.sqrt(d) * float(problem.drift(make_spike(each / np.sqrt(d), 1.0)).m) for each in u]
    return compare(number, 2 * u * (k * Lambda * u - k), 2 * u * (k * Lambda - k), rtol=1e-6)
