r"""Exit times of one-pass SGD from the plateau of phase retrieval: every formula of [1]_, with and without SGD's own noise.

Times are in t, samples per dimension: t d samples, and :math:`\gamma t/p` in the paper's time. A run exits when its excess risk
has fallen by the fraction T, (9), which for one unit happens at :math:`m^2 = T + (1-T)\,m_0^2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sgdlimits.analysis.first_passage import FirstPassage, PassageTimeLaw, mean_exit_time, ode_exit_times
from sgdlimits.analysis.single_index import drift_parts, increment_variance as exact_increment_variance
from sgdlimits.checks import integer, number
from sgdlimits.domain import Count, Positive, checked
from sgdlimits.errors import BadInput, check_count, check_number, check_share
from sgdlimits.expectation.gaussian.quadrature import overlap_rule
from sgdlimits.papers.mediocrity import noisy_start
from sgdlimits.papers.mediocrity.theory.rates import increment_variance, linear_rates, noise_gain, optimal_lr
from sgdlimits.papers.mediocrity.theory.start import draw_start_sums, mean_log_overlap
from sgdlimits.problem.over_time import evaluate_at_time_if_needed
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.recognise import PhaseRetrieval, recognise_phase_retrieval
from sgdlimits.start import RandomInit
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import to_batch

ODE_STARTS = 256
"""Number of random starts over which the full ODE is averaged at p > 1."""
MIN_START_WEIGHT = 1e-12
"""Starts of less quadrature weight are dropped: no run begins there in practice, and some of them never exit."""


class ExitParameters(NamedTuple):
    """Parameters of a phase retrieval problem, with the dimension d and the threshold T of an exit time."""

    problem: ProjectionProblem
    p: int
    lr: float
    noise: float
    d: int
    T: float

    @property
    def time_per_log(self) -> float:
        r"""Time :math:`p/(2\gamma\omega_M)` in which squared overlaps grow by a factor e, in samples per dimension.

        Here p is the width, :math:`\gamma` the learning rate and :math:`\omega_M` the growth rate of teacher overlaps.
        """
        rate = float(linear_rates(self.p, self.lr, self.noise).M)
        return self.p / (2 * self.lr * rate) if rate > 0 else np.inf


@checked
def exit_time(
    problem: ProjectionProblem,
    d: Count | ArrayLike,
    threshold: Positive | ArrayLike,
    average: str = "quenched",
    start: float | ArrayLike | None = None,
):
    r"""Mean exit time of phase retrieval, in samples per dimension: a float, or an array if an argument is one.

    Parameters
    ----------
    problem : `presets.phase_retrieval` of any width on the sphere with a fixed second layer; for "noisy_ode" any problem that
        `exit_law` supports
    d : dimension; broadcasts with `threshold`
    threshold : T, the relative decrease of the excess risk, (9)
    average : name of the theory:

        - "annealed", (47): linear ODE from the mean square overlap of the start
        - "quenched", (46), (48): linear ODE, averaged over the exact law of the random start at dimension d
        - "noisy": "quenched" with SGD's own noise near the saddle, which shortens it by
          :math:`\log(1+\kappa)/2\omega_M` (`noise_gain`)
        - "ode": full ODE, averaged over random starts
        - "noisy_ode": "ode" with SGD's own noise near the saddle; for other problems than the paper's, the mean of `exit_law`
        - "sde", (52), generalised to any width: linear SDE from m = 0, or from `start`
        - "sde_quenched": linear SDE, averaged over random starts
        - "backward": full SDE by its backward equation, averaged over random starts, or from `start`; width 1
    start : overlap at the start, for "ode" and "backward" at width 1, and for "sde", where it is the norm of the vector of
        overlaps of mutually orthogonal students; broadcasts too

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=1 / 12)
    >>> for average in ("annealed", "quenched", "noisy"):
    ...     time = sl.theory.mediocrity.exit_time(problem, d=1000, threshold=0.1, average=average)
    ...     print(average, round(problem.rate * time, 3))
    annealed 1.154
    quenched 1.471
    noisy 1.298
    """
    if average not in AVERAGES:
        raise BadInput(f"average must be one of {', '.join(AVERAGES)}; got {average!r}. Give one of these names.")
    if start is not None and average not in ("ode", "sde", "backward"):
        raise BadInput(f"start needs average 'ode', 'sde' or 'backward'; got average {average!r}. Leave out start=.")

    evaluate_at_time_if_needed(problem, None, "Use Chain(d) and exit_times.")

    def one(d, T, m):
        """Return the mean exit time at one dimension, threshold and initial overlap (None for random starts)."""
        if average == "noisy_ode" and not _match_paper(problem):
            return noisy_start.exit_law(problem, check_count("d", d), T).mean
        at = read_parameters(problem, d, T)
        formula = AVERAGES[average]
        if m is None:
            return formula(at)
        check_number("start", m)
        return formula(at, start=float(m)) if m**2 < at.p else 0.0  # from perfect overlaps the exit is immediate

    times = np.vectorize(one, otypes=[float])(d, threshold, start)
    return times if times.ndim else float(times)


@checked
def exit_law(
    problem: ProjectionProblem,
    d: Annotated[int, integer(at_least=2)],
    threshold: Positive,
    start: Annotated[float, number(above=-1, below=1)] | None = None,
) -> PassageTimeLaw:
    """Distribution of the exit time of a two-layer network from random starts, or of one unit from the overlap `start`.

    For one unit of phase retrieval on the sphere it is computed from the backward equation, with full drift and noise. For any
    other two-layer network for which zero overlap is a saddle (any width, on or off the sphere, second layer trained or fixed)
    SGD's noise near the saddle is added to the random start, from which the full ODE is solved (`theory.noisy_start`). The
    error is of order 1/(threshold d), and the cost does not depend on d.

    >>> import sgdlimits as sl
    >>> law = sl.theory.mediocrity.exit_law(sl.presets.phase_retrieval(lr=1 / 12), d=1000, threshold=0.1)
    >>> print(law.quantile([0.1, 0.5, 0.9]).round(1))
    [ 9.1 14.4 24.5]
    >>> law = sl.theory.mediocrity.exit_law(sl.presets.phase_retrieval(width=2, lr=1 / 6), d=10**12, threshold=0.1)
    >>> print(law.quantile([0.1, 0.5, 0.9]).round(1))
    [45.4 47.7 51.3]
    """
    found = _match_paper(problem)
    if start is None and (found is None or found.p > 1):
        return noisy_start.exit_law(problem, d, threshold)
    passage, m, weights, end = _set_up_first_passage(read_parameters(problem, d, threshold), start, "exit_law")
    return passage.law(m, end, weights)


@checked
def ode_exit_time(problem: ProjectionProblem, stats: Overlaps, threshold: Positive, t_max: Positive = 1e4) -> np.ndarray:
    """Exit time of the full ODE from the statistics of one or many runs (runs first).

    A run exits when its excess risk has fallen by the fraction `threshold`; the time is infinite if that does not happen before
    `t_max`.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=1 / 12)
    >>> time = sl.theory.mediocrity.ode_exit_time(problem, sl.Overlaps([1.0], [[0.1]], [[1.0]]), threshold=0.5)
    >>> round(float(time), 2)
    13.85
    """
    many = np.ndim(stats.a) > 1
    starts = stats if many else to_batch(stats)
    problem.coordinates.check(starts)
    times = ode_exit_times(problem, starts, check_share("threshold", threshold), float(t_max))
    return times if many else times[0]


def _match_paper(problem: ProjectionProblem) -> PhaseRetrieval | None:
    """Return the parameters of phase retrieval on the sphere with a fixed second layer; None for any other problem."""
    found = recognise_phase_retrieval(problem)
    return found if found is not None and found.sphere and not found.trains_second else None


def read_parameters(problem: ProjectionProblem, d, threshold) -> ExitParameters:
    """Return the parameters of the paper's problem with checked d and threshold, or raise `BadInput` for another problem."""
    found = _match_paper(problem)
    if found is None:
        raise BadInput(
            "theory.mediocrity needs phase retrieval on the sphere with a fixed second layer. "
            "Give presets.phase_retrieval(width, lr, noise), use exit_law or average='noisy_ode', or simulate."
        )
    check_number("threshold", threshold, above=0)
    if threshold >= 1:
        raise BadInput(f"threshold must be below 1; got {threshold:g}. Give the relative decrease of the excess risk.")
    return ExitParameters(problem, found.p, found.lr, found.noise, check_count("d", d), float(threshold))


def annealed(at: ExitParameters) -> float:
    r"""Return the exit time by the annealed formula (47), for one unit (10), in samples per dimension.

    In the paper's time it is :math:`\frac{1}{2\omega_M}\log\frac{(p+1)(Td + 1 - T)}{2p}`, with p the width, d the dimension, T
    the threshold and :math:`\omega_M` the growth rate of teacher overlaps.
    """
    return at.time_per_log * max(0.0, np.log((at.p + 1) * (at.T * at.d + 1 - at.T) / (2 * at.p)))


def quenched(at: ExitParameters) -> float:
    r"""Return the mean exit time over random starts by the quenched formula (46), for one unit (48).

    It is the mean over random starts, with :math:`\mu_0` and :math:`\tau_0` of (43), of

    .. math:: \frac{1}{2\omega_M} \log\frac{T p(p+1) d + (2\mu_0 p - \tau_0)(1-T)}{2\mu_0 p}.

    The mean of :math:`\log\mu_0` is exact. The mean of the other logarithm is computed by Gauss quadrature at p = 1; otherwise
    its terms up to second order in :math:`\mu_0, \tau_0` are exact, and the remainder is averaged over random starts. Starts
    whose risk falls by T as soon as the overlaps between students decay exit at once.
    """
    p, d, T = at.p, at.d, at.T
    if not np.isfinite(at.time_per_log):
        return np.inf
    way = T * p * (p + 1) * d
    if p == 1:
        m, weights = overlap_rule(d)
        mean_log = float(weights @ np.log(way + 2 * d * m**2 * (1 - T)))
        return at.time_per_log * (mean_log - np.log(2) - mean_log_overlap(1, d))
    # control variates: subtract the second-order expansion from each draw, and add its exact mean
    random = draw_start_sums(p, d)
    x = (2 * p * random.mu - random.tau) * (1 - T)
    centre = way + (2 * p * random.mean[0] - random.mean[1]) * (1 - T)
    variance = (4 * p**2 * random.variance[0] + random.variance[1]) * (1 - T) ** 2
    small = (way + x) / centre - 1
    exact = np.log(centre / (2 * p)) - variance / centre**2 / 2 - mean_log_overlap(p, d)
    # way + x can be negative for a start whose risk is below the threshold already
    log_ratio = np.log(np.maximum(way + x, 1e-300)) - np.log(2 * p * random.mu)
    rest = np.maximum(log_ratio, 0) - log_ratio + np.log(np.maximum(1 + small, 1e-300)) - small + small**2 / 2
    return at.time_per_log * float(exact + rest.mean())


def noisy(at: ExitParameters) -> float:
    r"""Return the quenched exit time less :math:`\log(1+\kappa)/2\omega_M`, the effect of SGD's noise near the saddle.

    Here :math:`\kappa` is the gain `noise_gain`, and :math:`\omega_M` the growth rate of teacher overlaps.
    """
    return _subtract_noise(at, quenched(at))


def ode(at: ExitParameters, start: float | None = None) -> float:
    r"""Return the exit time of the full ODE, from one overlap or averaged over random starts.

    At p = 1, (7) is :math:`\dot m = m(\alpha - \beta m^2)` with :math:`\beta = 4(1-6\gamma)` and
    :math:`\alpha = \beta - 2\gamma\Delta`, which reaches m after :math:`\frac1{2\alpha}\log\frac{m^2(\alpha - \beta m_0^2)}
    {m_0^2(\alpha - \beta m^2)}`; at other widths it is solved from random starts.
    """
    if not np.isfinite(at.time_per_log):
        return np.inf
    if at.p > 1:
        if start is not None:
            raise BadInput(f"start= needs width 1; got width {at.p}. Use ode_exit_time(problem, stats, threshold).")
        # a fixed seed: the formula is a function of its arguments
        starts = RandomInit(at.d).sample(at.problem, runs=ODE_STARTS, seed=0)
        return float(ode_exit_time(at.problem, starts, at.T, t_max=max(1.0, 20 * quenched(at))).mean())
    m, weights = _start_overlaps(at, start)
    end = at.T + (1 - at.T) * m**2
    # squared overlap of the stable fixed point
    ceiling = 1 - 2 * at.lr * at.noise / (4 * (1 - 6 * at.lr))
    if (end >= ceiling).any():
        return np.inf
    logarithm = np.log(end) + np.log((ceiling - m**2) / (ceiling - end))
    first = mean_log_overlap(1, at.d) - np.log(at.d) if start is None else np.log(max(start**2, 1e-300))
    return np.inf if start == 0 else at.time_per_log * float(weights @ logarithm - first)


def noisy_ode(at: ExitParameters) -> float:
    r"""Return the full ODE's exit time less :math:`\log(1+\kappa)/2\omega_M`, the effect of SGD's noise near the saddle.

    Here :math:`\kappa` is the gain `noise_gain`, and :math:`\omega_M` the growth rate of teacher overlaps.
    """
    return _subtract_noise(at, ode(at))


def sde(at: ExitParameters, start: float = 0.0) -> float:
    r"""Return the mean exit time (52) of the linear SDE, from any initial overlap and at any width.

    It is the exit time of the expansive Ornstein-Uhlenbeck process :math:`dm = \mu m\,dt + \sigma\,dB` of p overlaps,

    .. math:: \mu = \omega_M, \qquad \sigma^2 = \frac{\gamma}{pd}\,4\Big(10 - \frac6p + \frac8{p^2} + \Delta\Big),

    until :math:`|m|^2 = \frac{p+1}2T + (1-T)\,|m_0|^2`. At p = 1 these are :math:`4(1-6\gamma) - 2\gamma\Delta` and
    :math:`\frac\gamma d(48 + 4\Delta)`.
    """
    return float(_linear_exit_times(at, np.abs(start)))


def sde_quenched(at: ExitParameters) -> float:
    r"""Return the mean exit time of the linear SDE, averaged over random starts.

    At p > 1 it is averaged over draws, with :math:`\log\mu_0`, whose mean is known exactly, as a control variate.
    """
    if at.p == 1:
        m, weights = _start_overlaps(at)
        return float(weights @ _linear_exit_times(at, np.abs(m)))
    random = draw_start_sums(at.p, at.d)
    times = _linear_exit_times(at, np.sqrt(random.mu / at.d), random.tau / at.d)
    log = np.log(random.mu)
    # regression on the control variate minimises the variance
    slope = np.cov(times, log)[0, 1] / log.var() if np.isfinite(times).all() else 0.0
    return float(times.mean() - slope * (log.mean() - mean_log_overlap(at.p, at.d)))


def backward(at: ExitParameters, start: float | None = None) -> float:
    """Return the mean exit time of one unit under the SDE with full drift and noise, by its backward equation."""
    passage, m, weights, end = _set_up_first_passage(at, start, "backward")
    mean = float(weights @ passage.mean(m, end))
    return mean if 0 < mean < np.inf else np.inf


AVERAGES: dict[str, Callable[..., float]] = {
    formula.__name__: formula for formula in (annealed, quenched, noisy, ode, noisy_ode, sde, sde_quenched, backward)
}
"""Formulas of the mean exit time by the name that `exit_time` takes."""
ONE_UNIT_AVERAGES = ("backward",)
"""Names of averages whose state is a single overlap."""


def exit_horizon(at: ExitParameters) -> float:
    r"""Return a time by which nearly all runs have exited: twice the ODE's mean exit time plus :math:`15\,p/\gamma\omega_M`.

    A start of overlap m exits :math:`\log(1/dm^2)\,p/2\gamma\omega_M` later than a typical one, so without SGD's noise a share
    of about :math:`e^{-15}` of the runs exits later. If the full ODE does not reach the threshold, only rare fluctuations do,
    and the horizon ignores them. If the plateau is stable, the horizon is ten times the exit time at the optimal rate.
    """
    if not np.isfinite(at.time_per_log):
        return max(1.0, 10 * annealed(at._replace(lr=float(optimal_lr(at.p, at.noise)))))
    full = ode(at)
    return 2 * (full if np.isfinite(full) else quenched(at)) + 30 * at.time_per_log


def _subtract_noise(at: ExitParameters, time: float) -> float:
    """Subtract from a mean exit time the effect of SGD's noise near the saddle."""
    if time == np.inf:
        return np.inf
    return max(0.0, time - at.time_per_log * float(np.log1p(noise_gain(at.p, at.lr, at.noise))))


def _start_overlaps(at: ExitParameters, start: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return initial overlaps of one unit and their weights, which are a quadrature over random starts.

    If `start` is given, it is the only overlap.
    """
    if start is not None:
        return np.array([start]), np.ones(1)
    m, weights = overlap_rule(at.d)
    # drop nodes of negligible weight, and those at perfect overlap
    kept = (weights > MIN_START_WEIGHT) & (np.abs(m) < 1 - 1e-9)
    return m[kept], weights[kept] / weights[kept].sum()


def _linear_exit_times(at: ExitParameters, m: np.ndarray, pairs: np.ndarray | float = 0.0) -> np.ndarray:
    """Return mean exit times of the linear SDE from starts with the given overlaps, in samples per dimension.

    `m` is the norm of the overlaps with the teacher, `pairs` the sum of the squared overlaps between students, which are taken
    to decay at once.
    """
    mu = float(linear_rates(at.p, at.lr, at.noise).M)
    sigma2 = at.lr / (at.p * at.d) * float(increment_variance(at.p, at.noise))
    # the linearised risk depends on the sum of squared overlaps only
    end = at.T * (at.p + 1) / 2 + (1 - at.T) * (m**2 - pairs / (2 * at.p))
    return mean_exit_time(m, np.sqrt(np.maximum(end, m**2)), mu, sigma2, at.p) * at.p / at.lr


def _set_up_first_passage(
    at: ExitParameters, start: float | None, name: str
) -> tuple[FirstPassage, np.ndarray, np.ndarray, np.ndarray]:
    """Set up one unit's backward equation of the mean exit time.

    Return it with the initial overlaps, their weights, and the overlaps at the exit; `name` is the theory's name in an error.
    """
    if at.p > 1:
        raise BadInput(
            f"{name} needs width 1, where the state is one overlap; got width {at.p}. Use average='noisy_ode', or exit_law."
        )
    m, weights = _start_overlaps(at, start)
    end = np.sqrt(at.T + (1 - at.T) * m**2)
    drift = lambda m: np.sum(drift_parts(at.problem, m), axis=0)
    variance = lambda m: np.asarray(exact_increment_variance(at.problem, m)) / at.d
    growth = at.lr * float(linear_rates(1, at.lr, at.noise).M)
    return FirstPassage(drift, variance, float(end.max()), growth), m, weights, end
