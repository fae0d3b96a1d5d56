r"""Effect of SGD's own noise on the exit time from a given start: small overlaps exit sooner, large ones later.

Near the saddle :math:`y = \sqrt d\,(m_1, \dots, m_p)` follows :math:`dy = \omega_M y\,dt + \sqrt{2\omega_M\kappa}\,dB`
(`noise_gain`). At late times a run therefore equals a solution of the ODE from :math:`y_0 + \sqrt\kappa\,\xi`, with a vector
:math:`\xi` of p standard normal variates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import gammaincc

from sgdlimits.domain import NotNegative, RealWidth, checked
from sgdlimits.papers.mediocrity.theory.rates import as_float_arrays, linear_rates, noise_gain
from sgdlimits.papers.mediocrity.theory.start import LOG_GRID, LOG_STEP


@checked
def noise_delay(
    width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike, start: NotNegative | ArrayLike
) -> np.ndarray:
    r"""Delay of the mean exit by SGD's noise, from a given start, in the paper's time.

    It is negative if noise speeds up the exit. Here p is the width, :math:`\omega_M` the growth rate of teacher overlaps,
    :math:`\kappa` the gain `noise_gain`, and :math:`\xi` a vector of p standard normal variates.

    With :math:`y` the norm of :math:`\sqrt d` times the overlaps at the start, and :math:`x = y^2/\kappa`,

    .. math:: \frac{1}{2\omega_M}\Big[\log\frac x2 - \psi\Big(\frac p2\Big)
              - \frac xp\;{}_2F_2\Big(1, 1; 2, 1+\frac p2; -\frac x2\Big)\Big]
              = \frac1{2\omega_M}\big(\log x - E\log|\sqrt x + \xi|^2\big):

    which is :math:`-\infty` at y = 0 and :math:`(2-p)/(2\omega_M x)` at large x, so for one unit it is positive above some y.
    The mean over random starts is :math:`-\log(1+\kappa)/2\omega_M` for every width. The formula includes only the noise near
    the saddle, so the overlap at the exit must be large compared with :math:`d^{-1/2}`.

    Parameters
    ----------
    width, lr, noise : parameters of the problem; the delay is NaN if `lr` is above `max_lr`
    start : y, which for one unit is :math:`\sqrt d\,|m_0|`

    >>> noise_delay(1, lr=1 / 12, noise=0.0, start=[0.25, 1.0, 4.0]).round(3)
    array([-0.391,  0.104,  0.018])
    """
    p, lr, noise, start = np.broadcast_arrays(*as_float_arrays(width, lr, noise, start))
    rate = linear_rates(p, lr, noise).M
    # log 0 at y = 0, and rates of a stable saddle, which are replaced
    with np.errstate(divide="ignore", invalid="ignore"):
        x = start**2 / noise_gain(p, lr, noise)
        return np.where(rate > 0, _log_loss(p, x) / (2 * rate), np.nan)


@checked
def delayed_share(lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Share of the random starts of one unit whose mean exit is delayed by SGD's own noise, as :math:`d\to\infty`.

    Here :math:`m_0` is the initial overlap and :math:`\kappa` the gain `noise_gain`.

    These are the starts with :math:`d\,m_0^2 > 0.413\,\kappa`. For two or more units noise never delays the mean exit, because
    the logarithm of the norm of their overlaps is subharmonic and noise raises its mean.

    >>> delayed_share(lr=[0.03, 1 / 12]).round(2)
    array([0.76, 0.52])
    """
    return gammaincc(0.5, noise_gain(1, lr, noise) * NEUTRAL_START / 2)


def _log_loss(p: np.ndarray, x: np.ndarray) -> np.ndarray:
    r"""Return :math:`\log x - E\log|\sqrt x + \xi|^2`, for a vector :math:`\xi` of p standard normal variates.

    The mean follows from :math:`E\log X = \int_0^\infty (e^{-s} - E e^{-sX})\,ds/s`.
    """
    s = LOG_GRID  # equally spaced in log s, on which the trapezoidal rule converges exponentially
    transform = np.exp(-np.multiply.outer(x, s / (1 + 2 * s)) - np.multiply.outer(p, np.log1p(2 * s)) / 2)
    return np.where(x > 0, np.log(x) - LOG_STEP * (np.exp(-s) - transform).sum(-1), -np.inf)


NEUTRAL_START = float(brentq(lambda x: float(_log_loss(np.array(1.0), np.array(x))), 0.1, 1.0))
"""Value d m²/kappa = 0.413 of a start with overlap m at which SGD's noise, of gain kappa, does not delay one unit's exit."""
