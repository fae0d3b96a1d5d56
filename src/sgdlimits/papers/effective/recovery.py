r"""Time in which SGD finds a spike from a random start [2]_: a logarithm with its constant, or a barrier for tensors.

The overlap starts at order :math:`d^{-1/2}`, and :math:`u = \sqrt d\,m` is a diffusion whose law does not depend on d.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

from sgdlimits.checks import integer, number
from sgdlimits.domain import Count, Fraction, Positive, checked
from sgdlimits.errors import BadInput, check_number
from sgdlimits.papers.effective.theory import barrier

MAX_BARRIER = 700.0
"""Height of the barrier above which the crossing time, its exponential, overflows."""
INNER_REACH = 12.0
"""Distance of the inner integral's start from the lowest point of the potential, for odd orders, in standard deviations."""
DETERMINISTIC_DRIFT = 1e10
"""Size of the drift term Lambda u^k above which the noise is negligible and the path is integrated in closed form."""


class RecoveryTime(NamedTuple):
    """Mean and standard deviation of the time to recover a spike, in samples per dimension.

    They are taken over random starts and SGD's noise.
    """

    mean: float
    spread: float


@checked
def recovery_time(snr: Positive, d: Count, share: Fraction = 0.5, lr: Positive = 1.0) -> RecoveryTime:
    r"""Time until matrix PCA from a random vector reaches the share f of its final overlap :math:`\sqrt{\lambda - \text{lr}}`.

    Here :math:`\lambda` is the signal-to-noise ratio.

    In the time of the paper, lr t,

    .. math:: \tau = \frac1{8(\lambda-\text{lr})}\Big[\log d + \log\frac{f^2(\lambda-\text{lr})^2}{(1-f^2)\,\text{lr}\,\lambda}
              - \log\chi^2_1\Big], \qquad -E\log\chi^2_1 = \gamma_E + \log 2, \quad \mathrm{Var}\log\chi^2_1 = \frac{\pi^2}2.

    for large d. First the norm of the component orthogonal to the spike relaxes from 1 to lr, as
    :math:`r_\perp^2 = \text{lr}/(1 + (\text{lr}-1)e^{-8\,\text{lr}\,\tau})`. Meanwhile
    :math:`du = 4(\lambda - r_\perp^2)\,u\,d\tau + \sqrt{8\,\text{lr}\,r_\perp^2}\,dB`, which grows as
    :math:`\sqrt{\text{lr}}\;e^{4(\lambda-\text{lr})\tau}` times a normal variate of variance
    :math:`1 + \text{lr}/(\lambda-\text{lr})`: SGD's noise multiplies the variance of the start by
    :math:`\lambda/(\lambda-\text{lr})`. Then :math:`\dot m = 4m(\lambda-\text{lr}-m^2)`.

    Parameters
    ----------
    snr : :math:`\lambda`; the time is infinite up to `critical_snr`, which is lr
    d : dimension
    share : f, between 0 and 1
    lr : learning rate, :math:`c_\delta` of the paper

    >>> time = recovery_time(snr=2.0, d=10_000)
    >>> round(time.mean, 4), round(time.spread, 4)
    (1.0861, 0.2777)
    """
    gap = snr - lr
    if gap <= 0:
        return RecoveryTime(np.inf, np.nan)
    # minus the mean of log chi^2 is Euler's constant plus log 2
    constant = np.log(share**2 * gap**2 / ((1 - share**2) * lr * snr)) + np.euler_gamma + np.log(2)
    return RecoveryTime(float((np.log(d) + constant) / (8 * gap * lr)), float(np.pi / np.sqrt(2) / (8 * gap * lr)))


@checked
def crossing_time(
    Lambda: Positive,
    order: Annotated[int, integer(at_least=3)],
    start: float = 0.0,
    end: Annotated[float, number(infinite=True)] = np.inf,
) -> float:
    r"""Mean time for the scaled overlap :math:`u = \sqrt d\,m` of a tensor of order k to cross its barrier, for lr = 1.

    The time runs from u = `start` to u = `end`. The signal-to-noise ratio is `scaled_snr`, set by :math:`\Lambda`, and the
    position of the barrier is `barrier`.

    With :math:`V = u^2/2 - \Lambda u^k/k`, in the time of the paper,

    .. math:: \tau = \frac1{2k}\int_u^{e} dy\int_{\ell}^{y} dz\; e^{V(y)-V(z)}, \qquad
              \tau \simeq \frac{\pi}{k\sqrt{k-2}}\;e^{\frac{k-2}{2k}\Lambda^{-2/(k-2)}} \quad (\Lambda\to0).

    For odd k only the barrier on the right can be crossed, and :math:`\ell = -\infty`. For even k both can, :math:`\ell = 0`,
    and the second formula is halved. Beyond the barrier u diverges in a finite time, so `end` may be infinite: this gives the
    time until the overlap is of order one, to leading order in d.

    >>> round(crossing_time(0.4, order=3), 4), round(crossing_time(0.4, order=4), 4)
    (3.2984, 0.4759)
    """
    check_number("start", start)
    if not end > abs(start):
        raise BadInput(f"end must be above |start|; got end = {end:g} and start = {start:g}. Give a larger end.")
    k, top = order, barrier(Lambda, order)
    # the exponential of the barrier would overflow
    if (k - 2) / (2 * k) * top**2 > MAX_BARRIER:
        return np.inf
    slope = lambda y: y - Lambda * y ** (k - 1)
    low = abs(start) if k % 2 == 0 else start
    # beyond this the drift exceeds the noise by far
    far = max(30 * top, (DETERMINISTIC_DRIFT / Lambda) ** (1 / k))
    first = 0.0 if k % 2 == 0 else min(low, 0.0) - INNER_REACH
    w = 0.0 if k % 2 == 0 else -1 / slope(first)  # Laplace's method at the far left
    # as an ODE the double integral never forms exp(V), which overflows: the inner one is w, w' = V' w + 1
    if low > first:
        w = _solve_stiff(lambda y, x: [slope(y) * x[0] + 1], [w], first, low)[0]
    w, tau = _solve_stiff(lambda y, x: [slope(y) * x[0] + 1, x[0]], [w, 0.0], low, min(end, far))
    if end > far:  # the rest of the way without noise, in closed form
        log = lambda y: np.log1p(-1 / (Lambda * y ** (k - 2))) if y < np.inf else 0.0
        tau += (log(end) - log(far)) / (k - 2)
    return float(tau / (2 * k))


def _solve_stiff(slope: Callable, state: list[float], start: float, end: float) -> np.ndarray:
    """Return the final state of a stiff ODE with right-hand side `slope`, solved from `start` to `end`."""
    return solve_ivp(slope, (start, end), state, method="LSODA", rtol=1e-10, atol=1e-14).y[:, -1]
