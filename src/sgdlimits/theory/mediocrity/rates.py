r"""Learning rates of phase retrieval: how fast the plateau is left, and which rates need the fewest samples [1]_.

:math:`p` is the width, :math:`\gamma` the learning rate `lr`, :math:`\Delta` the variance `noise` of the label noise. The
second layer is fixed at 1 and the weights are on the sphere. All functions broadcast over their arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sgdlimits.errors import BadInput


class LinearRates(NamedTuple):
    """Growth of the overlaps with the teacher and decay of those between students at the saddle, in the paper's time."""

    M: np.ndarray
    Q: np.ndarray


def linear_rates(width, lr, noise=0.0) -> LinearRates:
    r"""Rates at the saddle M = 0, Q = 1: :math:`\dot m_j = \omega_M m_j` and :math:`\dot Q_{jl} = -\omega_Q Q_{jl}`, (38)-(40).

    .. math:: \omega_M = 4\Big[1 - \frac{\gamma}{p}\Big(1 + \frac1p + \frac4{p^2} + \frac\Delta2\Big)\Big], \qquad
              \omega_Q = \frac8p\Big[1 - \frac{8\gamma}{p^2}\Big]

    in the paper's time :math:`\gamma t/p`; at p = 1 the first is :math:`\mu` of (50). `sgdlimits.linearise` gives the rates of
    any problem at any point.

    >>> rates = linear_rates(width=[1, 10], lr=1 / 12)
    >>> rates.M.round(3)
    array([2.   , 3.962])
    """
    p, lr, noise = as_numbers(width, lr, noise)
    return LinearRates(4 - 2 * lr / p * crowding(p, noise), 8 / p * (1 - 8 * lr / p**2))


def noise_gain(width, lr, noise=0.0) -> np.ndarray:
    r"""By how much SGD's own noise adds to the variance of the start's overlap: :math:`1/d` becomes :math:`(1 + \kappa)/d`.

    .. math:: \kappa = \frac{\gamma}{p}\,\frac{\mathrm{Var}\,\mathcal M_j}{2\,\omega_M}, \qquad
              \mathrm{Var}\,\mathcal M_j = 4\Big(10 - \frac6p + \frac8{p^2} + \Delta\Big) \text{ at the saddle.}

    Near the saddle :math:`dm_j = \omega_M m_j\,dt + \sqrt{\gamma/(pd)}\,\sigma\,dB`, so that
    :math:`m_j e^{-\omega_M t}` tends to the start plus a normal number of variance :math:`\kappa/d`. The increments of the
    :math:`m_j` are uncorrelated with each other and with those of Q there, by parity. Infinite where the saddle is stable.

    >>> float(noise_gain(1, lr=1 / 12.5, noise=0.5))        # one at the optimal rate of one unit, whatever the noise
    1.0
    """
    p, lr, noise = as_numbers(width, lr, noise)
    rate = linear_rates(p, lr, noise).M
    variance = 4 * (10 - 6 / p + 8 / p**2 + noise)
    return np.where(rate > 0, lr / p * variance / (2 * np.where(rate > 0, rate, 1.0)), np.inf)


def max_lr(width, noise=0.0) -> np.ndarray:
    r"""The learning rate from which on the saddle is stable and nothing is learnt, :math:`\omega_M = 0`.

    :math:`2/(12+\Delta)` at p = 1, where the paper's text has 1/6 for any noise.

    >>> float(max_lr(1, noise=4.0))
    0.125
    """
    p, noise = as_numbers(width, noise)
    return 2 * p / crowding(p, noise)


def optimal_lr(width, noise=0.0) -> np.ndarray:
    r"""The learning rate that leaves the saddle after the fewest samples, appendix E.4: half of `max_lr`.

    .. math:: \gamma_{\rm opt} = \frac{p^3}{8 + 2p + (2+\Delta)p^2}

    It says nothing of what comes after the saddle: see `usable_lr`.

    >>> float(1 / optimal_lr(1, noise=0.5))
    12.5
    """
    return max_lr(width, noise) / 2


def minimal_samples(width, noise, d, threshold) -> np.ndarray:
    r"""Samples to exit at `optimal_lr` by the annealed formula, appendix E.4.

    .. math:: s_{\min} = d\,\frac{8 + 2p + (2+\Delta)p^2}{4p^2}\,\log\frac{T(p+1)d + (p+1)(1-T)}{2p}

    >>> round(float(minimal_samples(1, 0.0, d=1000, threshold=0.1)))
    13842
    """
    p, noise, d, T = as_numbers(width, noise, d, threshold)
    return d * crowding(p, noise) / 4 * np.log((p + 1) * (T * d + 1 - T) / (2 * p))


def overparametrisation_gain(width, noise=0.0) -> np.ndarray:
    r"""How many times fewer samples width p needs than width 1, each at its `optimal_lr`, as :math:`d\to\infty`; E.4.

    It tends to :math:`(12+\Delta)/(2+\Delta)` for large widths.

    >>> float(overparametrisation_gain(np.inf))
    6.0
    """
    p, noise = as_numbers(width, noise)
    return crowding(1.0, noise) / crowding(p, noise)


def crowding(p, noise) -> np.ndarray:
    r""":math:`2 + 2/p + 8/p^2 + \Delta`: :math:`\omega_M` is 4 less :math:`2\gamma/p` times this."""
    return 2 + 2 / p + 8 / p**2 + noise


def as_numbers(*values: Any) -> list[np.ndarray]:
    """Arguments as arrays of numbers, or `BadInput`."""
    try:
        return [np.asarray(value, float) for value in values]
    except (TypeError, ValueError):
        raise BadInput(f"numbers or arrays of numbers are needed; got {values!r}. Give such.") from None
