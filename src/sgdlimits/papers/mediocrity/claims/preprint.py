"""Claims of the preprint of Escaping mediocrity and of its summaries, and the questions that they leave open."""

from __future__ import annotations

import numpy as np

import sgdlimits as sl
from sgdlimits.analysis.plateau import find_plateau
from sgdlimits.analysis.plateau_exits import law_times
from sgdlimits.level.condition import RiskBelow
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.mediocrity import theory as mediocrity
from sgdlimits.papers.mediocrity.claims.noise import increment_covariances
from sgdlimits.papers.mediocrity.claims.times import chain_times, theory_time
from sgdlimits.papers.one_step import sphere_drift
from sgdlimits.papers.shorthand import log_slope, mean_and_error, simulate_chain


@claim("key results", "d log d at any width", r"$n = O(d\log d)$ regardless of width; width enters the prefactor only")
def compare_any_width(effort: Effort) -> Comparison:
    """Compare the slope in log d of the mean exit time of three units, in the exact chain, with 1/(2 growth rate of overlaps).

    Here omega_M is the growth rate of overlaps with the teacher at the saddle.
    """
    p, step, runs, sizes = 3, 0.05, effort.runs(128, 64), (300, 6000)
    problem = sl.presets.phase_retrieval(p, lr=step * p)
    number, sigma = log_slope(sizes, [mean_and_error(chain_times(problem, d, 0.05, runs, seed=d)) for d in sizes])
    return compare(number, 1 / (2 * float(mediocrity.linear_rates(p, step * p).M)), rtol=0.05, sigma=sigma)


@claim(
    "key results", "stochastic corrections of several units", "Stochastic corrections are negligible for escape times.",
    right=r"At $\gamma/p = 0.1$ the noise of five units takes 7 % off: see [Does noise matter?](noise.md)", kind="disagreement",
    tests="`test_linear_formulas_hold_near_the_saddle_at_any_width_once_noise_is_counted` in `tests/laws/test_escape.py`",
)  # fmt: skip
def compare_noise_of_networks(effort: Effort) -> Comparison:
    """Compare the mean exit time of phase retrieval by three units, in the exact chain, with that of the full ODE.

    The ODE's time is averaged over random starts: as right value with the effect of SGD's noise, as printed value without it.
    """
    p, d, T = 3, 2000, 0.05
    problem = sl.presets.phase_retrieval(p, lr=0.16 * p)
    number, sigma = mean_and_error(chain_times(problem, d, T, effort.runs(512, 256)))
    return compare(number, theory_time(problem, d, T, "noisy_ode"), theory_time(problem, d, T, "ode"), rtol=0.01, sigma=sigma)


@claim("mechanism 3", "staircases", "Directions are learnt one after the other, from lower to higher complexity")
def compare_staircase_leaps(effort: Effort) -> Comparison:
    """Compare the leaps of the target x1 + x1 x2 x3, computed by `leaps`, with those of Arnaboldi et al.

    The orders of its two leaps are 1 and 2, and the numbers of directions 1 and 2.
    """
    found = sl.leaps(sl.Target(lambda x: x[0] + x[0] * x[1] * x[2], teachers=3))
    number = [value for leap in found for value in (leap.order, len(leap.directions))]
    return compare(number, [1, 1, 2, 2])


@claim("mechanism 3", "staircases in the chain", "Samples of order d for each step of a staircase of leaps of 1")
def compare_staircase_samples(effort: Effort) -> Comparison:
    """Compare the exponents of d in the samples that one unit needs to learn x1 + x1 x2, by the exact chain, with 1.

    The exponents are those of the times at which the direction x1, and then x2, is learnt. The distance from the start to the
    threshold depends on d and is divided out; the tolerance of 0.03 covers other terms of order 1/sqrt(d).
    """
    sizes, runs = np.array([1000, 16_000]), effort.runs(64, 32)
    target, network = sl.Target(lambda x: x[0] + x[0] * x[1], 2), sl.TwoLayer(1, sl.Polynomial([-0.5, -0.5, 0.5, 1 / 3]))
    rule, first = sl.OnePassSGD(0.8, sphere=True), sl.InitialWeights(unit=True, second=0.1)
    problem = sl.ProjectionProblem(target, network, sl.SquaredLoss(), rule, initial=first)
    rows = []
    for d in sizes.tolist():
        # one simulation for each direction, as runs stop at their condition
        until = (lambda stats: stats.M[0, 0] - 0.3, lambda stats: stats.M[0, 1] - 0.3)
        found = [simulate_chain(problem, d, 300, sl.FixedInit(2 * d**-0.5), runs=runs, seed=d, until=each) for each in until]
        rows.append([mean_and_error(np.log(d * each.t_end.values)) for each in found])
    (number, sigma), way = np.moveaxis(np.array(rows), 2, 0), 1 - 2 / (0.3 * np.sqrt(sizes))
    logs = np.log(sizes[1] / sizes[0])
    exponents = (np.diff(number, axis=0)[0] - np.diff(np.log(way))) / logs
    return compare(exponents, [1.0, 1.0], atol=0.03, sigma=np.hypot(*sigma) / logs)


@claim(
    "next check 2",
    "noise of the departure",
    "ODE against SDE across geometries. Answered in [Any problem with a plateau](exit_times.md#any-problem-with-a-plateau)",
)
def compare_departure_noise(effort: Effort) -> Comparison:
    """Compare the package's noise of a phase retrieval unit's departure from the plateau with moments of one sample.

    The moments are the drift and the variance of one sample's step, averaged on a grid. The noise is relative to the variance
    of the random start.
    """
    lr, noise, m = 0.09, 0.6, 1e-4
    saddle = find_plateau(sl.presets.phase_retrieval(lr=lr, noise=noise), sl.RandomInit(1000))
    grid = lr * increment_covariances(0.0, lr, noise)[0] / (2 * sphere_drift(m, lr, noise) / m)
    return compare(float(saddle.noise[0, 0] / saddle.projection[0, 0] ** 2), grid, rtol=2e-4)


@claim("next check 2", "exit times of a quadratic network", "The linear noisy law has the exit times of the chain")
def compare_exits_of_a_network(effort: Effort) -> Comparison:
    """Compare the mean exit time of a quadratic network, in the exact chain, with that of `exit_law`, the law for large d.

    Two units learn one teacher.
    """
    problem, d = sl.presets.quadratic_network(2, 1, lr=0.1), 1000
    start = sl.RandomInit(d)
    saddle = find_plateau(problem, start)
    risk = 0.5 * saddle.risk
    expected = law_times(problem, saddle, start, d, risk).mean()
    found = simulate_chain(problem, d, 10 * expected, start, runs=effort.runs(512, 256), until=RiskBelow(risk))
    number, sigma = mean_and_error(found.t_end.values)
    return compare(number, expected, rtol=0.03, sigma=sigma)


@claim(
    "next check 3",
    "correlated directions",
    "Staircases with varying correlations. Answered in [Correlated directions](staircase.md#correlated-directions)",
)
def compare_correlated_leaps(effort: Effort) -> Comparison:
    """Compare the leaps of x1 x2 x3 for directions of correlation 0.3, computed by `leaps`, with integration by parts.

    The sum of the directions is learnt first, then their differences.
    """
    found = sl.leaps(sl.Target(lambda x: x[0] * x[1] * x[2], gram=0.7 * np.eye(3) + 0.3))
    number = [leap.order for leap in found] + [value for leap in found for value in leap.combinations.ravel()]
    return compare(number, [1, 2, 1, 1, 1, 1, 0, -1, 0, 1, -1], atol=1e-6)


@claim(
    "open question 1",
    "noise and the plateau",
    "How does label noise set the risk plateau? Answered in [How does label noise set the plateau?](open_noise.md)",
    kind="open",
)
def compare_open_noise(effort: Effort) -> Comparison:
    """Compute the final excess risk of phase retrieval by three units at lr/p = 0.05 and label noise 1, an open question.

    Here p is the number of units.
    """
    return compare(float(mediocrity.asymptotic_excess_risk(3, 0.15, 1.0)))


@claim(
    "open question 2",
    "other activations",
    "What do other activations change? Answered in [Are other activations the same up to constants?](open_activations.md)",
    kind="open",
)
def compare_open_activations(effort: Effort) -> Comparison:
    """Compute the samples, divided by d log d, to escape from zero overlap with absolute-value units: an open question."""
    return compare(sl.theory.escape.escape("abs").samples)


@claim(
    "open question 3",
    "both layers after the escape",
    "What follows the escape? Answered in [What follows the escape when both layers are trained?](open_second_layer.md)",
    kind="open",
)
def compare_open_second_layer(effort: Effort) -> Comparison:
    """Compute the ratio of phase retrieval's final risks with trained and with fixed second layer, for five units.

    The paper leaves this question open.
    """
    ones = np.ones(5)
    return compare(mediocrity.terminal_risk(ones, 0.05, True) / mediocrity.terminal_risk(ones, 0.05, False))
