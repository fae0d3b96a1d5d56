"""Claims of Escaping mediocrity on exit times: formulas, the best learning rate, and SGD's own noise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import dawsn, digamma
from scipy.stats import norm

import sgdlimits as sl
from sgdlimits.papers.claim import MAX_STANDARD_ERRORS, Comparison, Effort, claim, compare
from sgdlimits.papers.mediocrity import theory as theory
from sgdlimits.papers.mediocrity.claims.process import saddle_overlaps
from sgdlimits.papers.shorthand import log_slope, mean_and_error, simulate, simulate_chain, start_at

# file of the tests named by misprints
EXIT_TIME_TESTS = "in `tests/unit/papers/test_mediocrity.py`"


def chain_times(problem: Any, d: int, threshold: float, runs: int, start: Any = None, seed: int = 3) -> np.ndarray:
    """Simulate the exact chain of a phase retrieval problem, and return the runs' exit times in the paper's time.

    A run exits when its excess risk has fallen by the fraction `threshold`. Starts are random unless `start` is given.
    """
    found = simulate_chain(problem, d, 2000.0, start, runs=runs, seed=seed, until=sl.exits(threshold))
    times = sl.exit_times(found, threshold)
    # a censored run would bias the mean: fail loudly
    if times.censored.any():
        raise RuntimeError(f"{int(times.censored.sum())} of {runs} runs did not exit")
    return times.t.values * float(problem.rate)


def theory_time(problem: Any, d: int, threshold: float, average: str, **more: Any) -> float:
    """Return the mean exit time in the paper's time, by a formula of `theory.mediocrity.exit_time` named by `average`."""
    return float(theory.exit_time(problem, d, threshold, average, **more)) * float(problem.rate)


# --- formulas ----------------------------------------------------------------------------------------------------------------


def sample_start_sums(width: int, d: int, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the sums of squared overlaps mu_0 and tau_0 of equation (43) of Arnaboldi et al. from random starts in d dimensions.

    The sum mu_0 is over overlaps with the teacher, tau_0 over those between students.
    """
    start = sl.RandomInit(d).sample(sl.presets.phase_retrieval(width), runs=runs, seed=11)
    M, Q = np.asarray(start.M), np.asarray(start.Q)
    return d * (M**2).sum((1, 2)), d * ((Q**2).sum((1, 2)) - width)


@claim(
    "(44)", "risk on the plateau", r"$d \tau_0$, $d \mu_0$", right=r"$\tau_0/d$, $\mu_0/d$, as in (45)",
    tests=f"`test_quenched_time_46_is_the_mean_over_random_starts` {EXIT_TIME_TESTS}",
)  # fmt: skip
def compare_risk_44(effort: Effort) -> Comparison:
    """Compare the package's risk of three units at one random start, d = 100, with equation (44) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    p, d = 3, 100
    problem = sl.presets.phase_retrieval(p)
    start = sl.RandomInit(d).one(problem, seed=11)
    mu, tau = d * float((start.M**2).sum()), d * (float((start.Q**2).sum()) - p)
    form = lambda scale: 1 + 1 / p + tau * scale / p**2 - 2 * mu * scale / p
    return compare(float(problem.risk(start)), form(1 / d), form(d))


def linear_exit_time(p: int, lr: float, noise: float, d: int, T: float) -> float:
    """Return the time at which the linearised risk has lost the fraction T: the root of (45) of Arnaboldi et al.

    The risk is averaged over random starts.
    """
    rate = 4 - 2 * lr / p * (2 + 2 / p + 8 / p**2 + noise)
    # mean risk at the start, from the means of mu_0 and tau_0
    first = 1 + 1 / p + (p - 1) / (d * p) - 2 / d
    # tau_0 decays and is neglected
    return brentq(lambda t: (1 - T) * first - (1 + 1 / p - 2 / d * np.exp(2 * rate * t)), 0, 60)


@claim("(10), (47)", "annealed exit time", r"$\frac1{2\omega_M}\log\frac{T(p+1)d + (p+1)(1-T)}{2p}$; for one unit (10)")
def compare_annealed_exit_time(effort: Effort) -> Comparison:
    """Compare exit times at three widths, as roots of (45), with the annealed formulas (10) and (47) of Arnaboldi et al."""
    d, T, step, noise = 700, 0.2, 0.05, 0.3
    pairs = []
    for p in (1, 2, 7):
        rate = 4 - 2 * step * (2 + 2 / p + 8 / p**2 + noise)
        printed = np.log((T * (p + 1) * d + (p + 1) * (1 - T)) / (2 * p)) / (2 * rate)
        pairs.append((linear_exit_time(p, step * p, noise, d, T), printed))
    return compare(*np.transpose(pairs))


@claim(
    "section 3", "annealed time at the best rate", r"$\frac14\log\big(T(p+1)d + (p+1)(1-T)/2p\big)$",
    right=r"$\frac14\log\frac{T(p+1)d + (p+1)(1-T)}{2p}$, as in (47)",
    tests=f"`test_annealed_time_is_10_for_one_unit_and_the_linear_ode_from_the_mean_square_at_any_width` {EXIT_TIME_TESTS}",
)  # fmt: skip
def compare_annealed_best(effort: Effort) -> Comparison:
    """Compare the root of (45) for five units at the best learning rate with section 3 of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    p, d, T = 5, 700, 0.2
    number = linear_exit_time(p, p**3 / (8 + 2 * p + 2 * p**2), 0.0, d, T)
    ours = np.log((T * (p + 1) * d + (p + 1) * (1 - T)) / (2 * p)) / 4
    return compare(number, ours, np.log(T * (p + 1) * d + (p + 1) * (1 - T) / (2 * p)) / 4)


@claim("(46)", "quenched exit time", r"The mean over random starts of $\log[\dots]/2\omega_M$")
def compare_quenched_exit_time(effort: Effort) -> Comparison:
    """Compare the mean exit time over sampled random starts with the quenched formula (46) of Arnaboldi et al.

    The formula is averaged over the exact law of the start.

    Starts whose risk falls by the fraction T without any overlap exit at once.
    """
    rows = []
    for p, d, T in ((1, 50, 0.1), (2, 100, 0.05), (5, 300, 0.2)):
        problem = sl.presets.phase_retrieval(p, lr=0.08 * p, noise=0.1)
        mu, tau = sample_start_sums(p, d, effort.runs(20_000, 5000))
        rate = 4 - 0.16 * (2 + 2 / p + 8 / p**2 + 0.1)
        ratio = (T * p * (p + 1) * d + (2 * mu * p - tau) * (1 - T)) / (2 * mu * p)
        times = np.log(np.maximum(ratio, 1)) / (2 * rate)
        rows.append((*mean_and_error(times), theory_time(problem, d, T, "quenched")))
    number, sigma, right = np.transpose(rows)
    return compare(number, right, sigma=sigma)


@claim("(48)", "quenched time of one unit", r"$E_{\mu_0\sim\chi^2_1}\log[Td/\mu_0 + 1 - T]/(8(1-6\gamma)-4\gamma\Delta)$")
def compare_quenched_48(effort: Effort) -> Comparison:
    """Compare the mean exit time of one unit, in the exact chain, with the quenched formula (48) of Arnaboldi et al.

    Learning rate and threshold are small.

    Noise and curvature shorten the exit time by about 1 %, within the tolerance.
    """
    d, T, noise = 1000, 0.02, 0.5
    mean_log = quad(lambda z: 2 * norm.pdf(z) * np.log(T * d / z**2 + 1 - T), 0, np.inf, epsabs=1e-12, epsrel=1e-12)[0]
    number, sigma = mean_and_error(chain_times(sl.presets.phase_retrieval(lr=0.005, noise=noise), d, T, effort.runs(2048, 512)))
    return compare(number, mean_log / (8 * (1 - 6 * 0.005) - 4 * noise * 0.005), rtol=0.02, sigma=sigma)


@claim(
    "section 2, section 3",
    "quenched against annealed",
    "The quenched time is the larger; the gap is constant in d, and closes with width",
)
def compare_quenched_gap(effort: Effort) -> Comparison:
    """Compare phase retrieval's quenched minus annealed exit time, at width p, with log(p/2) minus the digamma function at p/2.

    The times are averaged over sampled random starts.

    Here p is the number of units and psi the digamma function. The gap is in units of 1/(2 omega_M), with omega_M the growth
    rate of overlaps, at the threshold T = 0.1 and two values of d.
    """
    rows = []
    for p in (1, 2, 10):
        for d in (2000, 20_000):
            rate = 4 - 0.16 * (2 + 2 / p + 8 / p**2)
            mu, tau = sample_start_sums(p, d, effort.runs(20_000, 5000))
            left = 1 + 1 / p + tau / (d * p**2) - 2 * mu / (d * p)  # (45): the risk at the start
            late, sigma = mean_and_error(np.log((1 + 1 / p - 0.9 * left) * d * p / (2 * mu)))
            rows.append((late - 2 * rate * linear_exit_time(p, 0.08 * p, 0.0, d, 0.1), sigma, np.log(p / 2) - digamma(p / 2)))
    number, sigma, right = np.transpose(rows)
    return compare(number, right, sigma=sigma, atol=0.01)


@claim("section 2", "monotone in rate and noise", r"Both exit times grow with $\gamma$ and with $\Delta$")
def compare_monotone_exit_times(effort: Effort) -> Comparison:
    """Compare ratios of phase retrieval's exit times at a larger and a smaller learning rate or noise with the bound 1.

    The ratios are those of roots of (45), and those of times of the exact chain less 4.5 standard errors.
    """
    d, T = 1000, 0.1
    pairs = ((0.1, 0.2), (0.08, 0.2)), ((0.1, 0.2), (0.1, 0.1))
    ratios = [linear_exit_time(1, *more, d, T) / linear_exit_time(1, *less, d, T) for more, less in pairs]
    for more, less in (((0.12, 0.0), (0.04, 0.0)), ((0.1, 2.0), (0.1, 0.0))):
        late, soon = (chain_time(1, *each, d, T, effort.runs(512, 256)) for each in (more, less))
        ratios.append(ratio_bound(late, soon, -1))
    return compare(ratios, 1.0, rtol=0, relation=">")


def chain_time(p: int, lr: float, noise: float, d: int, T: float, runs: int) -> tuple[float, float]:
    """Simulate phase retrieval's exact chain from random starts, and return the mean exit time with its standard error.

    There are p units, and T is the fraction of the excess risk that is lost at the exit.
    """
    return mean_and_error(chain_times(sl.presets.phase_retrieval(p, lr=lr, noise=noise), d, T, runs))


def ratio_bound(one: tuple[float, float], two: tuple[float, float], sign: int) -> float:
    """Return the ratio of two (mean, error) pairs, plus (sign 1) or minus (sign -1) 4.5 standard errors."""
    ratio = one[0] / two[0]
    return ratio * (1 + sign * MAX_STANDARD_ERRORS * np.hypot(one[1] / one[0], two[1] / two[0]))


@claim("section 3", "width shortens the time", r"At constant $\gamma/p$ the time falls with $p$, and $s_{\rm ext}^{\min}$ too")
def compare_exit_times_by_width(effort: Effort) -> Comparison:
    """Compare ratios of phase retrieval's exit times at successive widths with the upper bound 1.

    The ratios are those of times of the exact chain at widths 1, 2 and 5, plus 4.5 standard errors, and those of the fewest
    samples over all learning rates, by roots of (45), for widths up to 12.
    """
    times = [chain_time(p, 0.05 * p, 0.0, 1000, 0.1, effort.runs(512, 256)) for p in (1, 2, 5)]
    ratios = [ratio_bound(more, less, 1) for less, more in pairwise(times)]
    least = [least_samples(p, 0.0, 1000, 0.1) for p in range(1, 13)]
    return compare([*ratios, np.max(np.divide(least[1:], least[:-1]))], 1.0, rtol=0, relation="<")


def least_samples(p: int, noise: float, d: int, T: float) -> float:
    """Return the smallest number of samples, over learning rates, after which the linearised risk has fallen: see (45).

    Equation (45) is that of Arnaboldi et al.

    The number of units is p, and T the fraction of the excess risk that is lost.
    """
    top = 2 * p / (2 + 2 / p + 8 / p**2 + noise)
    # the paper's time times p d / lr counts samples
    steps = lambda lr: p * d / lr * linear_exit_time(p, lr, noise, d, T)
    return minimize_scalar(steps, bounds=(0.2 * top, 0.8 * top), method="bounded", options={"xatol": 1e-9 * top}).fun


@claim(
    "(49), E.4",
    "fewest samples",
    r"$s_{\rm ext}^{\min} = \frac d{4p^2}[8 + 2p + (2+\Delta)p^2]\log\frac{T(p+1)d + (p+1)(1-T)}{2p}$",
)
def compare_fewest_samples(effort: Effort) -> Comparison:
    """Compare the fewest samples until the exit, over all learning rates in (45), with equation (49) of Arnaboldi et al."""
    d, T, rows = 1000, 0.1, []
    for p, noise in ((1, 0.0), (3, 0.5), (8, 0.0)):
        log = np.log((T * (p + 1) * d + (p + 1) * (1 - T)) / (2 * p))
        rows.append((least_samples(p, noise, d, T), d / (4 * p**2) * (8 + 2 * p + (2 + noise) * p**2) * log))
    return compare(*np.transpose(rows), rtol=1e-8)


# --- the best learning rate --------------------------------------------------------------------------------------------------


def minimise_samples(p: int, noise: float) -> tuple[float, float, float]:
    """Return the learning rate of the fastest growth of p units' overlaps at the saddle, with two growth times.

    The growth times 1/(2 omega), with omega the growth rate of the linearised ODE, are in the paper's time and in samples per
    dimension.
    """
    problem = lambda lr: sl.presets.phase_retrieval(p, lr=lr, noise=noise)
    # in t, so that its inverse counts samples
    growth = lambda lr: float(sl.linearise(problem(lr), saddle_overlaps(p)).matrix[0, 0])
    top = 2 * p / (2 + 2 / p + 8 / p**2 + noise)
    # within the rates at which the saddle is unstable
    best = minimize_scalar(lambda lr: -growth(lr), bounds=(0.01 * top, 0.99 * top), method="bounded", options={"xatol": 1e-9})
    return best.x, best.x / p / (2 * growth(best.x)), 1 / (2 * growth(best.x))


@claim(
    "section 2, E.4",
    "best learning rate",
    r"$\gamma_{\rm opt} = p^3/(8 + 2p + (2+\Delta)p^2)$, $1/(12+\Delta)$ for one unit; prefactor $\frac14$",
)
def compare_best_lr(effort: Effort) -> Comparison:
    """Compare phase retrieval's learning rate of fastest escape, from the linearised ODE, with gamma_opt of Arnaboldi et al.

    The growth time 1/(2 omega) at that rate, with omega the growth rate in the paper's time, is compared with the prefactor
    1/4.
    """
    rows = []
    for p, noise in ((1, 0.5), (3, 0.2)):
        lr, prefactor, _ = minimise_samples(p, noise)
        rows += [(lr, p**3 / (8 + 2 * p + (2 + noise) * p**2)), (prefactor, 0.25)]
    return compare(*np.transpose(rows), rtol=1e-5)


@claim("E.4", "gain from width", r"Samples fall by $\frac{(12+\Delta)p^2}{8+2p+(2+\Delta)p^2} \to \frac{12+\Delta}{2+\Delta}$")
def compare_overparametrisation_gain(effort: Effort) -> Comparison:
    """Compare the ratio of the fewest samples of one and of three units with section E.4 of Arnaboldi et al.

    The numbers of samples are those of the linearised ODE.
    """
    noise, p = 0.2, 3
    number = minimise_samples(1, noise)[2] / minimise_samples(p, noise)[2]
    return compare(number, (12 + noise) * p**2 / (8 + 2 * p + (2 + noise) * p**2), rtol=1e-6)


@claim(
    "E.4", "does the best rate learn?", "Optimal learning rate and gain at any width",
    right=r"They minimise the time to leave the saddle. For $p \ge 2$ and small noise that rate is above $p/6$, beyond "
    "which the full ODE does not learn: see [Does the optimal learning rate learn?](learning_rate.md)",
    kind="disagreement",
    tests="`test_full_ode_reaches_zero_risk_below_a_sixth_of_the_width_and_not_above` in "
    "`tests/unit/papers/test_learning_rates.py`",
)  # fmt: skip
def compare_best_lr_learns(effort: Effort) -> Comparison:
    """Compare the final excess risk of phase retrieval by five units, at two learning rates in the ODE, with 2 and 0.

    They are the published rate and a smaller one.
    """
    ends = []
    for lr in (5**3 / (8 + 10 + 2 * 25), 0.15 * 5):
        problem = sl.presets.phase_retrieval(5, lr=lr)
        found = simulate(problem, sl.ODE(), sl.RandomInit(1000), 500 * 5 / lr, save=2, seed=1)
        ends.append(float(found.risk[0, -1]))
    return compare(ends, [2.0, 0.0], [0.0, 0.0], atol=1e-3)


# --- SGD's own noise ---------------------------------------------------------------------------------------------------------


def hyp2f2(x: float) -> float:
    """Return the hypergeometric function 2F2(1, 1; 3/2, 2; -x) for moderate x, by summing its series."""
    total, term = 0.0, 1.0
    for n in range(400):
        total += term
        # ratio of successive terms of the hypergeometric series
        term *= -x * (n + 1) ** 2 / ((n + 1.5) * (n + 2) * (n + 1))
    return total


@claim(
    "Appendix F", "time of the linear SDE", "(52) is the annealed exit time.",
    right=r"(52) is the time from $m_0 = 0$. From $m_0$ it is $\big[T F(-\mu T/\sigma^2) - m_0^2 F(-\mu m_0^2/\sigma^2)\big]"
    r"/\sigma^2$ with $F(\cdot) = {}_2F_2(1, 1; \tfrac32, 2; \cdot)$.",
    tests="`test_time_of_the_linear_sde_52_is_the_hypergeometric_function`, "
    f"`test_backward_equation_reduces_to_52_when_linearised` {EXIT_TIME_TESTS}",
)  # fmt: skip
def compare_linear_sde_time(effort: Effort) -> Comparison:
    """Compare the linear SDE's mean exit times, by its backward equation, with equation (52) of Arnaboldi et al.

    There are two starts.

    The right formula generalises (52) from a start at zero overlap to any start.
    """
    mu, s2, T, m0 = 2.0, 0.05, 0.3, 0.15
    # the derivative of the mean time, by Dawson's function
    inner = lambda y: 2 / np.sqrt(mu * s2) * dawsn(np.sqrt(mu / s2) * y)
    number = [quad(inner, start, np.sqrt(T))[0] for start in (0.0, m0)]
    whole = T / s2 * hyp2f2(mu * T / s2)
    return compare(number, [whole, whole - m0**2 / s2 * hyp2f2(mu * m0**2 / s2)], [whole, whole], rtol=1e-8)


@claim(
    "(52)",
    "leaving zero overlap by noise alone",
    r"$\frac T{\sigma^2}\,{}_2F_2(1,1;\frac32,2;-\frac\mu{\sigma^2}T)$ for small $T$",
)
def compare_exit_from_zero_overlap(effort: Effort) -> Comparison:
    """Compare the mean exit time from zero overlap, in the exact chain, with equation (52) of Arnaboldi et al.

    The threshold is T = 0.02.

    The formula is correct up to terms of order T.
    """
    problem, d, T = sl.presets.phase_retrieval(lr=1 / 12), 2000, 0.02
    number, sigma = mean_and_error(chain_times(problem, d, T, effort.runs(1024, 256), saddle_overlaps(1)))
    return compare(number, theory_time(problem, d, T, "sde"), rtol=0.02, sigma=sigma)


@claim("(11), (34)", "the SDE has the exit times of SGD", "Mean exit time of the spherical SDE")
def compare_sde_exit_time(effort: Effort) -> Comparison:
    """Compare the exact chain's mean exit time with that of the SDE (34) of Arnaboldi et al., by its backward equation.

    The weights are on the sphere.
    """
    problem, d, T = sl.presets.phase_retrieval(lr=0.1, noise=0.3), 1000, 0.4
    number, sigma = mean_and_error(chain_times(problem, d, T, effort.runs(2048, 512)))
    return compare(number, theory_time(problem, d, T, "backward"), rtol=0.01, sigma=sigma)


@claim("section 2", "samples grow as d log d", r"$t_{\rm ext} = O(\log d)$, with the slope $1/2\omega_M$")
def compare_logarithm_of_dimension(effort: Effort) -> Comparison:
    """Compare the slope in log d of phase retrieval's mean exit time, in the exact chain, with 1/(2 growth rate of overlaps).

    The dimensions are 256 to 16384.

    Here omega_M is the growth rate of overlaps with the teacher at the saddle.
    """
    problem, runs, sizes = sl.presets.phase_retrieval(lr=0.05), effort.runs(1024, 256), (256, 16_384)
    number, sigma = log_slope(sizes, [mean_and_error(chain_times(problem, d, 0.2, runs, seed=d)) for d in sizes])
    return compare(number, 1 / (8 * (1 - 6 * 0.05)), rtol=0.03, sigma=sigma)


@claim(
    "end of section 2 and conclusion", "does noise matter?", "Stochasticity has little effect on the exit time.",
    right=r"SGD's noise adds to the random start, whatever $d$. It shortens the mean over random starts by "
    r"$\log(1+\kappa)/2\omega_M$ where $Td \gg 1$, and delays most single starts of one unit, such as that of figure 1 (left): "
    "see [Does noise matter?](noise.md)",
    kind="disagreement",
    tests="`test_noise_adds_to_the_random_start_whatever_d`, "
    "`test_noise_delays_the_exit_from_a_typical_start_and_not_from_a_small_one` in `tests/laws/test_escape.py`",
)  # fmt: skip
def compare_noise_effect_on_exit(effort: Effort) -> Comparison:
    """Compare the mean exit time of phase retrieval at d = 1000, in the exact chain, with that of the full ODE.

    The ODE is solved from random starts, with the effect of SGD's noise (right) and without it (printed).
    """
    problem, d, T = sl.presets.phase_retrieval(lr=1 / 12), 1000, 0.1
    number, sigma = mean_and_error(chain_times(problem, d, T, effort.runs(4096, 1024)))
    return compare(number, theory_time(problem, d, T, "noisy_ode"), theory_time(problem, d, T, "ode"), rtol=0.005, sigma=sigma)


@claim("Appendix I", "training the second layer", "The escape takes the same time with a trained second layer, here up to 10 %")
def compare_second_layer_exit_times(effort: Effort) -> Comparison:
    """Compare the ratio of phase retrieval's exit times with trained and with fixed second layer, for five units, with 1.

    The exit times are those of the exact chain.

    Training delays the exit by 5.1 +- 1.0 % (2,048 runs), and by 3.0 +- 1.0 % off the sphere.
    """
    d, runs, rows = 400, effort.runs(2048, 512), []
    for train in (False, True):
        problem = sl.presets.phase_retrieval(5, lr=0.5, train_second=train)
        # overlaps rather than the risk, which a trained layer changes by itself
        until = lambda stats: abs(stats.M).max() - 0.3
        rows.append(mean_and_error(simulate_chain(problem, d, 200, runs=runs, seed=int(train), until=until).t_end.values))
    (fixed, e), (trained, f) = rows
    return compare(trained / fixed, 1.0, rtol=0.1, sigma=np.hypot(e / fixed, f / trained) * trained / fixed)


@claim("figure 2, (17)", "SGD follows the ODE on average", "The mean over runs of SGD is the ODE")
def compare_chain_follows_ode(effort: Effort) -> Comparison:
    """Compare the mean risk of SGD for phase retrieval in R^400 at three times with the ODE's, within order 1/d."""
    p, d = 2, 400
    problem, start = sl.presets.phase_retrieval(p, lr=0.2, noise=0.1), start_at(0.3)
    save = np.array([2.0, 4.0, 6.0])
    runs = simulate(problem, sl.SGD(d), start, 6.0, save=save, runs=effort.runs(64, 32), seed=1).risk.values
    limit = simulate(problem, sl.ODE(), start, 6.0, save=save).risk.values[0]
    # the mean of SGD differs from the ODE at order 1/d
    return compare(runs.mean(0), limit, rtol=10 / d, sigma=runs.std(0, ddof=1) / np.sqrt(len(runs)))


@claim("(14)–(17), figure 1", "the reduction is exact", "Overlaps are a stochastic process of their own")
def compare_reduction_to_overlaps(effort: Effort) -> Comparison:
    """Compare means of three statistics of phase retrieval, after 60 steps of SGD in R^30, with the exact chain's.

    The statistics are the overlap m, its square and the risk.
    """
    d, runs, rows = 30, effort.runs(4096, 1024), []
    problem = sl.presets.phase_retrieval(lr=0.1, noise=0.2)
    for seed, level in enumerate((sl.SGD(d), sl.Chain(d))):
        found = simulate(problem, level, start_at(0.3), 2.0, save=[2.0], runs=runs, seed=seed)
        m = found.M.values[:, 0, 0, 0]
        rows.append([mean_and_error(values) for values in (m, m**2, found.risk.values[:, 0])])
    (weights, e), (reduced, f) = (np.transpose(each) for each in rows)
    return compare(weights, reduced, sigma=np.hypot(e, f))
