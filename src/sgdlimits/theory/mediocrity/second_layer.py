r"""After the plateau of phase retrieval with a second layer that is trained: how the risk ends, and what becomes of the layer.

Weights are on the sphere, :math:`g = \gamma/p`, time is the paper's :math:`\tau = \gamma t/p`, and r is the learning rate of
the second layer over that of the first. Without label noise learning ends on a manifold: every unit with :math:`a_j \ne 0` is
:math:`\pm w_\star` and the mean of a is 1. What is left of the students across the teacher, :math:`v_j`, falls as
:math:`\tau^{-1/2}`: of it the network sees :math:`B = \frac1p\sum_j a_j v_j v_j^\top` only, and to first order

.. math:: \dot v_j = -4 a_j\,\big(B + \theta\,\mathrm{tr} B\big)\,v_j, \qquad \theta = 1 \text{ (fixed)}, \quad
          \tfrac13 \text{ (trained)},

at :math:`\sum_j a_j v_j = 0`. A trained layer lets the mean of a give way to B, and so pushes less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sgdlimits.theory.mediocrity.rates import as_numbers


class EndRates(NamedTuple):
    """Rates in the paper's time at which departures from the end decay, for small lr/p times the noise.

    Of the second layer's mean and its differences, of the students' common part, and of the trace of what they have apart and
    of the rest of it. NaN for the second layer where it is fixed.
    """

    mean: np.ndarray
    differences: np.ndarray
    common: np.ndarray
    trace: np.ndarray
    apart: np.ndarray


def terminal_risk(a, lr: float, trained: bool = True) -> float:
    r"""The limit of :math:`\tau^2` times the risk without label noise: learning ends as a power law.

    With a fixed second layer, :math:`a_j = 1`,

    .. math:: \frac{p-1}{64\,p}\Big[1 + \frac{2g\,(5 - 4/p)}{1-6g}\Big].

    With a trained one that ends at :math:`a`, of mean 1, and :math:`s_k = \sum_j a_j^{-k}`,
    :math:`T = \frac{3\,(s_1-1)}{8\,(p+2)}`, :math:`\alpha = \frac1p\sum_j a_j^2`,

    .. math:: \Big[\frac{T^2}3 + \frac{s_2 - \frac2p s_1 + 1}{64} - \frac{T(s_1-1)}{12} + \frac{(p-1)T^2}9\Big]
              \frac{1-4g\alpha}{1-6g\alpha},

    which is :math:`\frac{3(p-1)}{64(p+2)}` where a is homogeneous and g small: up to 3 times the risk with a fixed one.

    Parameters
    ----------
    a : the second layer at the end, positive and of mean 1; shape (p,)
    lr : the learning rate of the first layer, below :math:`p/6\alpha`
    trained : whether the second layer is trained, or fixed; `a` is then its size only

    Returns
    -------
    float, NaN where an entry of `a` is not positive, or `a` so uneven that not all directions fall as slowly

    Examples
    --------
    >>> round(terminal_risk([1, 1, 1], lr=0.0, trained=False) * 64, 9), round(terminal_risk([1, 1, 1], lr=0.0) * 64, 9)
    (0.666666667, 1.2)
    """
    (a,) = as_numbers(a)
    p, g = a.size, lr / a.size
    if not trained:
        return (p - 1) / (64 * p) * (1 + 2 * g * (5 - 4 / p) / (1 - 6 * g))
    if (a <= 0).any():
        return np.nan
    root = np.sqrt(a / p)
    across = np.eye(p) - np.outer(root, root)
    inverse = across @ np.diag(1 / a) @ across
    trace = np.trace(inverse)
    T, alpha = 3 * trace / (8 * (p + 2)), np.mean(a**2)
    B = inverse / 8 - T / 3 * across
    if np.linalg.eigvalsh(B)[0] < -1e-12:
        return np.nan
    return float((T**2 / 3 + np.trace(B @ B)) * (1 - 4 * g * alpha) / (1 - 6 * g * alpha))


def end_rates(width, lr, noise, ratio=0.0) -> EndRates:
    r"""How fast the end is approached with label noise, :math:`g\Delta \ll 1`.

    The mean of a decays at the rate 3r and the common part of the students at 4. All else is slow, of order :math:`g\Delta`:
    differences between the entries of a at :math:`2rg\Delta/(1-6g)`, and for small g what students have apart at
    :math:`\frac43 g\Delta` and :math:`\frac{4}{p+2} g\Delta`, with a fixed layer at :math:`4g\Delta` and
    :math:`\frac4p g\Delta`. So noise makes the second layer homogeneous in the end.

    Parameters
    ----------
    width, lr, noise : of the problem
    ratio : r; zero for a fixed second layer

    Examples
    --------
    >>> rates = end_rates(width=4, lr=0.04, noise=0.5, ratio=2.0)
    >>> float(rates.mean), round(float(rates.differences), 5)
    (6.0, 0.02128)
    """
    p, lr, noise, ratio = np.broadcast_arrays(*as_numbers(width, lr, noise, ratio))
    slow, trained = lr / p * noise, ratio > 0
    second = np.where(trained, ratio, np.nan)
    return EndRates(
        3 * second,
        2 * second * slow / (1 - 6 * lr / p),
        np.full(p.shape, 4.0),
        slow * np.where(trained, 4 / 3, 4.0),
        slow * np.where(trained, 4 / (p + 2), 4 / p),
    )


def second_only_risk(width) -> np.ndarray:
    r"""The excess risk when only the second layer is trained, as :math:`d\to\infty`.

    It is :math:`(p+3)/(p+2)`, at :math:`a = p/(p+2)`. The features of random units do not know the teacher,
    and their best combination is the plateau.

    >>> float(second_only_risk(1))
    1.3333333333333333
    """
    (p,) = as_numbers(width)
    return (p + 3) / (p + 2)
