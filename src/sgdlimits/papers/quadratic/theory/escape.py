r"""Escape of a quadratic network from its plateau: the mean risk and the escape time [3]_.

From students :math:`Q = \bar Q\, 1` with :math:`M_{jr} \sim N(0, \epsilon^2)`, to second order in :math:`\epsilon`,

.. math:: \langle R(t)\rangle = \bar R - 4\epsilon^2\big[\chi\, e^{2\omega_\rho t} + (1-\chi)\, e^{-\omega_q t}\big], \qquad
          \chi = 1 - \frac{(s-1)\,(1 + 2\kappa(c - 2s))}{s\sqrt\delta + c - s},

with the notation of `plateau`. The overlaps change the norms, on which the risk depends to first order. For small learning
rates this effect vanishes: :math:`\chi = 1`, and the formula is (13) with the exponent :math:`16\,\eta t/(pp^*)`.
"""

from __future__ import annotations

from math import exp, log

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, roots_genlaguerre

from sgdlimits.domain import Fraction, NotNegative, Positive, PositiveInTime, Times, checked
from sgdlimits.errors import BadInput, shorten
from sgdlimits.papers.quadratic.theory.plateau import Coefficients, plateau_rates, plateau_risk, read_coefficients
from sgdlimits.problem.projection import ProjectionProblem

# values of the argument `average`
AVERAGES = ("annealed", "quenched")
LAGUERRE_NODES = 32
"""Number of nodes of the Gauss-Laguerre rule for the mean over starts."""


@checked
def risk_on_plateau(problem: ProjectionProblem, t: Times, spread: NotNegative, *, corrector: bool = True) -> np.ndarray | float:
    r"""Mean risk at time t after a start on the plateau with normal overlaps of standard deviation `spread`.

    Valid while the overlaps are small, which is until the risk is a few percent below the plateau's. A random start in
    :math:`R^d` has the spread :math:`d^{-1/2}`, to which SGD's own noise adds (see `docs/noise.md` for phase retrieval).

    Parameters
    ----------
    problem : `presets.quadratic_network`
    t : samples per dimension since the start; any shape
    spread : :math:`\epsilon`
    corrector : whether terms of second order in the learning rate are included, as in `ODE`; without them this is (13)

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=3, teachers=3, lr=0.01)
    >>> risk = risk_on_plateau(problem, [0.0, 300.0], spread=0.01, corrector=False)
    >>> print((1 - risk / risk[0]).round(4))                       # (13): 4e-4 (exp(16 * 3 / 9) - 1) / (16/15)
    [0.     0.0773]
    """
    at, rates, t = read_coefficients(problem, corrector), plateau_rates(problem, corrector=corrector), np.asarray(t, float)
    chi = compute_norm_response(at)
    # the norms respond to the overlaps at the rate of the norms
    grown = chi * np.exp(2 * rates.rho * t) + (1 - chi) * np.exp(-rates.norm * t)
    risk = plateau_risk(problem, corrector=corrector) - 4 * spread**2 * grown
    return risk if risk.ndim else float(risk)


@checked
def escape_time(
    problem: ProjectionProblem,
    spread: Positive,
    reduction: Fraction | ArrayLike = 0.5,
    *,
    average: str = "annealed",
    norm: PositiveInTime | None = None,
    corrector: bool = True,
) -> np.ndarray | float:
    r"""Time until the risk has fallen below the plateau's by a given fraction, in samples per dimension, inverting (13).

    The time is infinite if the plateau is stable. The overlaps are assumed to grow exponentially until the end. From a start
    off the plateau they change by the factor `norm_gain` while the norms settle; the reduction still refers to the plateau.

    Parameters
    ----------
    problem : `presets.quadratic_network`
    spread : standard deviation of the overlaps with teachers at the start
    reduction : fraction of the excess risk that is lost; any shape
    average : "annealed" for the time at which the mean risk has fallen, or "quenched" for the mean time over Gaussian starts
    norm : squared norm of the students at the start, such as 1 for `OrthogonalInit`; None for a start on the plateau
    corrector : whether terms of second order in the learning rate are included, as in `ODE`

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=3, teachers=3, lr=0.01)
    >>> for average in ("annealed", "quenched"):
    ...     print(average, round(escape_time(problem, 0.01, 0.1, average=average), 1))
    annealed 318.1
    quenched 324.6
    """
    if average not in AVERAGES:
        raise BadInput(f"average must be one of {', '.join(AVERAGES)}; got {average!r}. Give one of these names.")
    share = np.asarray(reduction, float)
    if not ((share > 0) & (share <= 1)).all():
        raise BadInput(f"reduction must be above 0 and at most 1; got {shorten(reduction)}. Use a fraction such as 0.5.")
    at, rate = read_coefficients(problem, corrector), plateau_rates(problem, corrector=corrector).rho
    if rate <= 0:
        return np.full(share.shape, np.inf) if share.ndim else np.inf
    chi = compute_norm_response(at)
    # the norms' response outweighs the overlaps' effect
    if chi <= 0:
        raise BadInput(
            f"at lr = {at.lr:g} and noise = {at.noise:g} the students' norms grow and the risk rises before it falls. "
            "Use a smaller lr, or simulate the ODE."
        )
    if norm is not None:
        spread = spread * norm_gain(problem, norm, corrector=corrector)
    excess = plateau_risk(problem, corrector=corrector) - at.noise
    if 4 * spread**2 >= excess:
        raise BadInput(
            f"spread must be below {(excess / 4) ** 0.5:.3g}, where the start is no longer on the plateau; got {spread:g}. "
            "Use a smaller spread."
        )
    way = share * (excess / (4 * spread**2) - 1)
    logs = np.log1p(way) if average == "annealed" else _mean_log_gain(way, at.p * at.k)
    times = (logs - log(chi)) / (2 * rate)
    return times if times.ndim else float(times)


@checked
def norm_gain(problem: ProjectionProblem, norm: PositiveInTime = 1.0, *, corrector: bool = True) -> float:
    r"""Factor g by which relaxation of the norms changes the overlaps with teachers.

    The overlaps also grow by :math:`e^{\omega_\rho t}` on the plateau, with the growth rate :math:`\omega_\rho` of
    `plateau_rates`; :math:`\bar Q` below is `plateau_norm`. The corrector is the part of the drift quadratic in the learning
    rate.

    The growth is :math:`e^{\omega_\rho t}`.

    Students with the squared norm :math:`q_0` and overlaps :math:`\rho_0` at the start have the overlaps
    :math:`\rho_0\, g\, e^{\omega_\rho t}` once their norms have settled. Without the corrector :math:`g = \sqrt{\bar Q/q_0}`:
    the cosines grow as on the plateau.

    >>> import sgdlimits as sl
    >>> problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
    >>> round(norm_gain(problem, 1.0), 4), round(norm_gain(problem, 1.0, corrector=False), 4)
    (0.7129, 0.7071)
    """
    at = read_coefficients(problem, corrector)
    first, last = norm * (at.p + 2) / at.p, at.s
    # the limit of the formula below, which is 0/0
    if at.kappa == 0:
        return float((last / first) ** 0.5)
    other = at.larger_root(first)
    power = last / (2 * (1 + at.kappa * (at.c + at.noise)))
    return exp(power * log(last * (other - first) / (first * (other - last))))


def compute_norm_response(at: Coefficients) -> float:
    r"""Return :math:`\chi`, the share of the overlaps' effect on the risk that remains once norms have responded."""
    return 1 - (at.s - 1) * (1 + 2 * at.kappa * (at.c - 2 * at.s)) / (at.s * at.slope + at.c - at.s)


def _mean_log_gain(way: np.ndarray, entries: int) -> np.ndarray:
    """Return the mean of log(1 + n way/y), where y is a chi-square variable with n = `entries` degrees of freedom."""
    nodes, weights = roots_genlaguerre(LAGUERRE_NODES, entries / 2 - 1)
    mean = lambda values: values @ (weights / weights.sum())
    # log(1 + L/y) = log L - log y + log(1 + y/L), whose last term is smooth
    large = entries * way
    return np.log(large / 2) - digamma(entries / 2) + mean(np.log1p(2 * nodes / large[..., None]))
