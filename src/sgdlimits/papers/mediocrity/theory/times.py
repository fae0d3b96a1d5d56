r"""How long one-pass SGD stays on the plateau of phase retrieval: every formula of [1]_, and what their noise leaves out.

Times are in t, samples per dimension: t d samples, and :math:`\gamma t/p` in the paper's time. A run exits when its excess risk
has fallen by the fraction T, (9), which for one unit is where :math:`m^2 = T + (1-T)\,m_0^2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sgdlimits.analysis.first_passage import FirstPassage, Law, mean_exit_time, ode_exit_times
from sgdlimits.analysis.single_index import drift_parts, increment_variance
from sgdlimits.domain import checked, number, real, whole
from sgdlimits.errors import BadInput, check_count, check_number, check_share
from sgdlimits.expectation.gaussian.quadrature import overlap_rule
from sgdlimits.papers.mediocrity import noisy_start
from sgdlimits.papers.mediocrity.theory.rates import kick, linear_rates, noise_gain, optimal_lr
from sgdlimits.papers.mediocrity.theory.start import mean_log_overlap, spread
from sgdlimits.problem.projection import ProjectionProblem
from sgdlimits.problem.recognise import PhaseRetrieval, phase_retrieval
from sgdlimits.start import RandomInit
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import batch_of

ODE_STARTS = 256
LOST = 1e-12
"""Starts of less weight than this in the quadrature are left out: some may never exit, and no run starts there."""


class Setting(NamedTuple):
    """A phase retrieval problem in numbers, with the dimension and the threshold asked for."""

    problem: ProjectionProblem
    p: int
    lr: float
    noise: float
    d: int
    T: float

    @property
    def slow(self) -> float:
        r""":math:`p/(2\gamma\omega_M)`: by so much t grows when the logarithm of the way grows by 1."""
        rate = float(linear_rates(self.p, self.lr, self.noise).M)
        return self.p / (2 * self.lr * rate) if rate > 0 else np.inf


@checked(arrays=True, start=real)
def exit_time(problem: ProjectionProblem, d, threshold, average: str = "quenched", start=None):
    r"""The mean exit time of phase retrieval, in samples per dimension: a float, or an array where an argument is one.

    Parameters
    ----------
    problem : `presets.phase_retrieval` of any width on the sphere, its second layer fixed; for "noisy_ode" any that `exit_law`
        is for
    d : dimension; broadcasts with `threshold`
    threshold : T, the relative decrease of the excess risk, (9)
    average : which theory:

        - "annealed", (47): linear ODE from the mean square overlap of the start
        - "quenched", (46), (48): linear ODE, averaged over the exact law of the random start at dimension d
        - "noisy": "quenched" with SGD's own noise near the saddle, which shortens it by
          :math:`\log(1+\kappa)/2\omega_M` (`noise_gain`)
        - "ode": full ODE, averaged over random starts
        - "noisy_ode": "ode" with SGD's own noise near the saddle; the mean of `exit_law` for problems beyond the paper's
        - "sde", (52) and its form at any width: linear SDE from m = 0, or from `start`
        - "sde_quenched": the same, averaged over random starts
        - "backward": full SDE by its backward equation, averaged over random starts, or from `start`; width 1
    start : the overlap at the start, for "ode" and "backward" at width 1, and for "sde", where it is the norm of all overlaps
        of students that are orthogonal to each other; broadcasts too

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
        raise BadInput(f"average must be one of {', '.join(AVERAGES)}; got {average!r}. Give one of them.")
    if start is not None and average not in ("ode", "sde", "backward"):
        raise BadInput(f"start is for the averages ode, sde and backward; got it with {average!r}. Leave it out.")

    def one(d, T, m):
        if average == "noisy_ode" and not _papers(problem):
            return noisy_start.exit_law(problem, check_count("d", d), T).mean
        at, formula = setting(problem, d, T), AVERAGES[average]
        if m is None:
            return formula(at)
        check_number("start", m)
        return formula(at, start=float(m)) if m**2 < at.p else 0.0

    times = np.vectorize(one, otypes=[float])(d, threshold, start)
    return times if times.ndim else float(times)


@checked(d=whole(at_least=2), start=number(above=-1, below=1))
def exit_law(problem: ProjectionProblem, d: int, threshold: float, start: float | None = None) -> Law:
    """The whole law of the exit time from random starts, or for one unit from `start`.

    For one unit of phase retrieval on the sphere it has full drift and noise, from the backward equation. For any other
    two-layer network whose zero overlap is a saddle, of any width, on the sphere or off it, its second layer trained or not, it
    is that of a random start with SGD's noise near the saddle, followed by the full ODE (`theory.noisy_start`): exact as d
    grows, with an error of order 1/(threshold d), at a cost without d.

    >>> import sgdlimits as sl
    >>> law = sl.theory.mediocrity.exit_law(sl.presets.phase_retrieval(lr=1 / 12), d=1000, threshold=0.1)
    >>> print(law.quantile([0.1, 0.5, 0.9]).round(1))
    [ 9.1 14.4 24.5]
    >>> law = sl.theory.mediocrity.exit_law(sl.presets.phase_retrieval(width=2, lr=1 / 6), d=10**12, threshold=0.1)
    >>> print(law.quantile([0.1, 0.5, 0.9]).round(1))
    [45.4 47.7 51.3]
    """
    found = _papers(problem)
    if start is None and (found is None or found.p > 1):
        return noisy_start.exit_law(problem, d, threshold)
    passage, m, weights, end = _passage(setting(problem, d, threshold), start, "exit_law")
    return passage.law(m, end, weights)


@checked
def ode_exit_time(problem: ProjectionProblem, stats: Overlaps, threshold: float, t_max: float = 1e4) -> np.ndarray:
    """When the full ODE exits from given statistics, of one run or of many (runs first); infinite where not before `t_max`.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.phase_retrieval(lr=1 / 12)
    >>> time = sl.theory.mediocrity.ode_exit_time(problem, sl.Overlaps([1.0], [[0.1]], [[1.0]]), threshold=0.5)
    >>> round(float(time), 2)
    13.85
    """
    many = np.ndim(stats.a) > 1
    starts = stats if many else batch_of(stats)
    problem.coordinates.check(starts)
    times = ode_exit_times(problem, starts, check_share("threshold", threshold), float(t_max))
    return times if many else times[0]


def _papers(problem: ProjectionProblem) -> PhaseRetrieval | None:
    """The numbers of phase retrieval on the sphere with a fixed second layer; None for another problem."""
    found = phase_retrieval(problem)
    return found if found is not None and found.sphere and not found.trains_second else None


def setting(problem: ProjectionProblem, d, threshold) -> Setting:
    """The numbers of a problem, or `BadInput` where it is not the paper's."""
    found = _papers(problem)
    if found is None:
        raise BadInput(
            "theory.mediocrity is about phase retrieval on the sphere with a fixed second layer. "
            "Give presets.phase_retrieval(width, lr, noise), ask for exit_law or average='noisy_ode', or simulate."
        )
    check_number("threshold", threshold, above=0)
    if threshold >= 1:
        raise BadInput(f"threshold must be below 1; got {threshold:g}. Give the relative decrease of the excess risk.")
    return Setting(problem, found.p, found.lr, found.noise, check_count("d", d), float(threshold))


def annealed(at: Setting) -> float:
    r"""(47), and (10) at p = 1: :math:`\frac{1}{2\omega_M}\log\frac{(p+1)(Td + 1 - T)}{2p}` in the paper's time."""
    return at.slow * max(0.0, np.log((at.p + 1) * (at.T * at.d + 1 - at.T) / (2 * at.p)))


def quenched(at: Setting) -> float:
    r"""The quenched exit time (46), and (48) at p = 1.

    It is the mean over random starts, with :math:`\mu_0` and :math:`\tau_0` of (43), of

    .. math:: \frac{1}{2\omega_M} \log\frac{T p(p+1) d + (2\mu_0 p - \tau_0)(1-T)}{2\mu_0 p}.

    The mean of :math:`\log\mu_0` is exact. The rest is by Gauss quadrature at p = 1; otherwise its terms up to second order in
    :math:`\mu_0, \tau_0` are exact, and what remains is averaged over exact starts. Starts whose risk falls by T as soon as
    the overlaps between students decay exit at once.
    """
    p, d, T = at.p, at.d, at.T
    if not np.isfinite(at.slow):
        return np.inf
    way = T * p * (p + 1) * d
    if p == 1:
        m, weights = overlap_rule(d)
        return at.slow * float(weights @ np.log(way + 2 * d * m**2 * (1 - T)) - np.log(2) - mean_log_overlap(1, d))
    random = spread(p, d)
    x = (2 * p * random.mu - random.tau) * (1 - T)
    centre = way + (2 * p * random.mean[0] - random.mean[1]) * (1 - T)
    variance = (4 * p**2 * random.variance[0] + random.variance[1]) * (1 - T) ** 2
    small = (way + x) / centre - 1
    exact = np.log(centre / (2 * p)) - variance / centre**2 / 2 - mean_log_overlap(p, d)
    log_ratio = np.log(np.maximum(way + x, 1e-300)) - np.log(2 * p * random.mu)
    rest = np.maximum(log_ratio, 0) - log_ratio + np.log(np.maximum(1 + small, 1e-300)) - small + small**2 / 2
    return at.slow * float(exact + rest.mean())


def noisy(at: Setting) -> float:
    r"""The quenched time less :math:`\log(1+\kappa)/2\omega_M`: SGD's noise near the saddle adds to the random start."""
    return _sooner(at, quenched(at))


def ode(at: Setting, start: float | None = None) -> float:
    r"""The exit time of the full ODE.

    At p = 1, (7) is :math:`\dot m = m(\alpha - \beta m^2)` with :math:`\beta = 4(1-6\gamma)` and
    :math:`\alpha = \beta - 2\gamma\Delta`, which is left after :math:`\frac1{2\alpha}\log\frac{m^2(\alpha - \beta m_0^2)}
    {m_0^2(\alpha - \beta m^2)}`; at other widths it is solved from random starts.
    """
    if not np.isfinite(at.slow):
        return np.inf
    if at.p > 1:
        if start is not None:
            raise BadInput("start is one overlap, for width 1. Use ode_exit_time(problem, stats, threshold).")
        starts = RandomInit(at.d).sample(at.problem, runs=ODE_STARTS, seed=0)
        return float(ode_exit_time(at.problem, starts, at.T, t_max=max(1.0, 20 * quenched(at))).mean())
    m, weights = _starts(at, start)
    end = at.T + (1 - at.T) * m**2
    ceiling = 1 - 2 * at.lr * at.noise / (4 * (1 - 6 * at.lr))
    if (end >= ceiling).any():
        return np.inf
    logarithm = np.log(end) + np.log((ceiling - m**2) / (ceiling - end))
    first = mean_log_overlap(1, at.d) - np.log(at.d) if start is None else np.log(max(start**2, 1e-300))
    return np.inf if start == 0 else at.slow * float(weights @ logarithm - first)


def noisy_ode(at: Setting) -> float:
    r"""The full ODE's mean time less :math:`\log(1+\kappa)/2\omega_M`: noise near the saddle, full drift beyond."""
    return _sooner(at, ode(at))


def sde(at: Setting, start: float = 0.0) -> float:
    r"""The exit time (52), in its form from any start and at any width.

    It is that of the expansive Ornstein-Uhlenbeck process
    :math:`dm = \mu m\,dt + \sigma\,dB` of p overlaps,

    .. math:: \mu = \omega_M, \qquad \sigma^2 = \frac{\gamma}{pd}\,4\Big(10 - \frac6p + \frac8{p^2} + \Delta\Big),

    until :math:`|m|^2 = \frac{p+1}2T + (1-T)\,|m_0|^2`. At p = 1 these are :math:`4(1-6\gamma) - 2\gamma\Delta` and
    :math:`\frac\gamma d(48 + 4\Delta)`.
    """
    return float(_linear_times(at, np.abs(start)))


def sde_quenched(at: Setting) -> float:
    r"""The mean of `sde` over random starts; at p > 1 over exact draws, of which :math:`\log\mu_0` has its exact mean."""
    if at.p == 1:
        m, weights = _starts(at)
        return float(weights @ _linear_times(at, np.abs(m)))
    random = spread(at.p, at.d)
    times, log = _linear_times(at, np.sqrt(random.mu / at.d), random.tau / at.d), np.log(random.mu)
    slope = np.cov(times, log)[0, 1] / log.var() if np.isfinite(times).all() else 0.0
    return float(times.mean() - slope * (log.mean() - mean_log_overlap(at.p, at.d)))


def backward(at: Setting, start: float | None = None) -> float:
    """Full drift and noise of one unit: the mean by the backward equation."""
    passage, m, weights, end = _passage(at, start, "backward")
    mean = float(weights @ passage.mean(m, end))
    return mean if 0 < mean < np.inf else np.inf


AVERAGES: dict[str, Callable[..., float]] = {
    formula.__name__: formula for formula in (annealed, quenched, noisy, ode, noisy_ode, sde, sde_quenched, backward)
}
ONE_UNIT = ("backward",)
"""Averages whose state is one overlap."""


def horizon(at: Setting) -> float:
    r"""A time by which nearly all runs have exited: twice the mean of the ODE, and :math:`15\,p/\gamma\omega_M` more.

    A start of overlap m exits :math:`\log(1/dm^2)\,p/2\gamma\omega_M` later than a typical one: without
    SGD's noise a share of about :math:`e^{-15}` is later than this. Where the full ODE does not come to the threshold, only
    rare fluctuations do, and they are not waited for. Where the plateau is stable it is ten times what the best rate needs.
    """
    if not np.isfinite(at.slow):
        return max(1.0, 10 * annealed(at._replace(lr=float(optimal_lr(at.p, at.noise)))))
    linear, full = quenched(at), ode(at)
    return 2 * (full if np.isfinite(full) else linear) + 30 * at.slow


def _sooner(at: Setting, time: float) -> float:
    return max(0.0, time - at.slow * float(np.log1p(noise_gain(at.p, at.lr, at.noise)))) if time < np.inf else np.inf


def _starts(at: Setting, start: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps at the start and their weights: the exact law of a random start, or one start."""
    if start is not None:
        return np.array([start]), np.ones(1)
    m, weights = overlap_rule(at.d)
    kept = (weights > LOST) & (np.abs(m) < 1 - 1e-9)
    return m[kept], weights[kept] / weights[kept].sum()


def _linear_times(at: Setting, m: np.ndarray, pairs: np.ndarray | float = 0.0) -> np.ndarray:
    """From the norm m of the overlaps and the sum of the squared overlaps between students, which fade at once."""
    mu = float(linear_rates(at.p, at.lr, at.noise).M)
    sigma2 = at.lr / (at.p * at.d) * float(kick(at.p, at.noise))
    end = at.T * (at.p + 1) / 2 + (1 - at.T) * (m**2 - pairs / (2 * at.p))
    return mean_exit_time(m, np.sqrt(np.maximum(end, m**2)), mu, sigma2, at.p) * at.p / at.lr


def _passage(at: Setting, start: float | None, name: str) -> tuple[FirstPassage, np.ndarray, np.ndarray, np.ndarray]:
    if at.p > 1:
        raise BadInput(f"{name} needs width 1, where one overlap is the whole state; got {at.p}. Use 'noisy_ode', or exit_law.")
    m, weights = _starts(at, start)
    end = np.sqrt(at.T + (1 - at.T) * m**2)
    drift = lambda m: np.sum(drift_parts(at.problem, m), axis=0)
    variance = lambda m: np.asarray(increment_variance(at.problem, m)) / at.d
    growth = at.lr * float(linear_rates(1, at.lr, at.noise).M)
    return FirstPassage(drift, variance, float(end.max()), growth), m, weights, end
