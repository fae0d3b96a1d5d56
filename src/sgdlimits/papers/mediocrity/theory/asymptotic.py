r"""The end of learning when norms are free or the second layer is trained: the plateau of the excess risk, and the way there.

With :math:`g = \gamma/p` and label noise of variance :math:`\Delta` the end of learning has all students alike up to a rotation
among them, and its excess risk is

.. math:: R = g\Delta + g^2\,[6\Delta + c\,\Delta^2] + O(g^3), \qquad
          c = -\frac{p-1}{4p}, \quad \frac{p-1}{4(p+2)}, \quad -\frac{p+5}{4(p+2)}

for weights on the sphere (`asymptotic_excess_risk`), for weights that are free, and for weights on the sphere with a trained
second layer. For one unit on the sphere, or free, R is :math:`g\Delta/(1-6g)` exactly, (8).

The network is :math:`x^\top A x` with :math:`A = \frac1p\sum_j a_j u_j u_j^\top`, and with :math:`K = e e^\top - A` and
:math:`\epsilon = \mathrm{tr} K` the moments of the error D are :math:`E[D x x^\top] = \epsilon + 2K` and
:math:`E[D^2 x x^\top] = \epsilon^2 + 2\,\mathrm{tr} K^2 + 4\epsilon K + 8 K^2`. At the end :math:`Q/p` has the eigenvalue
:math:`\alpha` along M and :math:`\kappa` across it, and :math:`\mu = |M|^2/p`.

Without label noise learning on the sphere ends on a manifold: every unit with :math:`a_j \ne 0` is :math:`\pm w_\star` and the
mean of a is 1. What is left of the students across the teacher, :math:`v_j`, falls as :math:`\tau^{-1/2}` in the paper's time
:math:`\tau = \gamma t/p`: of it the network sees :math:`B = \frac1p\sum_j a_j v_j v_j^\top` only, and to first order

.. math:: \dot v_j = -4 a_j\,\big(B + \theta\,\mathrm{tr} B\big)\,v_j, \qquad \theta = 1 \text{ (fixed)}, \quad
          \tfrac13 \text{ (trained)},

at :math:`\sum_j a_j v_j = 0`. A trained layer lets the mean of a give way to B, and so pushes less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import root

from sgdlimits.domain import array, checked, many, not_negative
from sgdlimits.errors import BadInput
from sgdlimits.papers.mediocrity.theory.rates import as_numbers, formula, max_lr

STEPS = 24
"""Steps in which the solution is followed from small learning rates on."""


class EndState(NamedTuple):
    """Second layer, overlap with the teacher, norm, overlap with each other student, and excess risk: all students alike."""

    a: np.ndarray
    m: np.ndarray
    norm: np.ndarray
    q: np.ndarray
    excess_risk: np.ndarray


@formula
def free_end(width, lr, noise) -> EndState:
    r"""Where the ODE ends when norms are free and the second layer is fixed at 1.

    At p = 1 the norm is 1 and the overlap the one on the sphere, so that (8) holds off the sphere as it stands. NaN where the
    state cannot be followed from small learning rates; see `free_max_lr` for its stability.

    >>> float(free_end(1, lr=0.1, noise=0.4).excess_risk.round(9)), float(free_end(3, lr=0.15, noise=1.0).excess_risk.round(9))
    (0.1, 0.071388992)
    """
    return EndState(*np.vectorize(_free, otypes=[float] * 5)(*as_numbers(width, lr, noise)))


@formula
def trained_end(width, lr, noise) -> EndState:
    r"""Where the ODE ends on the sphere when the second layer is trained too, at whatever rate.

    From some learning rate on all students are parallel, q = 1, and the network is one unit at the rate g.

    >>> state = trained_end(3, lr=0.15, noise=1.0)
    >>> float(state.a.round(4)), float(state.excess_risk.round(4))
    (0.9811, 0.0678)
    """
    return EndState(*np.vectorize(_trained, otypes=[float] * 5)(*as_numbers(width, lr, noise)))


@formula
def free_max_lr(noise=0.0) -> np.ndarray:
    r"""The learning rate from which on one unit whose norm is free has no stable learnt state.

    It is `max_lr` for :math:`\Delta \ge 4`, where the plateau rises to the saddle's risk continuously as on the sphere. For
    less noise norm and overlap start to oscillate before, at the smaller root of
    :math:`(6\Delta-72)\gamma^2 + (42+\Delta)\gamma - 5 = 0`.

    >>> free_max_lr([0.0, 1.0, 4.0, 8.0]).round(4)
    array([0.1667, 0.1515, 0.125 , 0.1   ])
    """
    (noise,) = as_numbers(noise)
    linear, square = 42 + noise, 6 * noise - 72
    oscillates = 10 / (linear + np.sqrt(linear**2 + 20 * square))
    return np.where(noise < 4, oscillates, max_lr(1, noise))


@formula
def plateau_series(width, lr, noise) -> tuple[np.ndarray, ...]:
    r"""The excess risk to second order in g: on the sphere, free, and on the sphere with a trained second layer.

    >>> [float(each.round(6)) for each in plateau_series(2, lr=0.02, noise=1.0)]
    [0.010588, 0.010606, 0.010556]
    """
    p, lr, noise = as_numbers(width, lr, noise)
    g = lr / p
    curves = -(p - 1) / (4 * p), (p - 1) / (4 * (p + 2)), -(p + 5) / (4 * (p + 2))
    return tuple(g * noise + g**2 * (6 * noise + c * noise**2) for c in curves)


def _free(p: float, lr: float, noise: float) -> tuple[float, ...]:
    def state(x):
        kappa, mu = x
        epsilon = -2 / 3 * (p - 1) * kappa
        alpha = 1 + epsilon / 2
        return epsilon, alpha, epsilon**2 / 2 + 1 - 2 * mu + alpha**2 + (p - 1) * kappa**2

    def equations(x, g):
        (kappa, mu), (epsilon, alpha, risk) = x, state(x)
        square = noise + 2 * risk
        across = epsilon - 2 * kappa + g * (square - 4 * epsilon * kappa + 8 * kappa**2)
        far = mu - alpha**2
        along = epsilon * alpha + 2 * far + g * (square * alpha + 4 * epsilon * far + 8 * (mu - 2 * alpha * mu + alpha**3))
        return across, along

    kappa, mu = _follow(equations, [0.0, 1.0], lr / p)
    _, alpha, risk = state((kappa, mu))
    norm = alpha + (p - 1) * kappa
    return 1.0, np.sqrt(mu), norm, alpha - kappa if p > 1 else norm, risk


def _trained(p: float, lr: float, noise: float) -> tuple[float, ...]:
    def state(x):
        a, kappa, mu = x
        eigenvalues, count = np.array([1 - (p - 1) * kappa, kappa]), np.array([1, p - 1])
        square, cube = count @ eigenvalues**2, count @ eigenvalues**3
        return eigenvalues[0], square, cube, (1 - a) ** 2 / 2 + 1 - 2 * a * mu + a**2 * square

    def equations(x, g):
        (a, kappa, mu), (alpha, square, cube, risk) = x, state(x)
        epsilon, spread = 1 - a, noise + 2 * risk
        far = mu - a * square
        radial = spread + 4 * epsilon * far + 8 * (mu - 2 * a * alpha * mu + a**2 * cube)
        second = epsilon + 2 * far
        along = epsilon + 2 - 2 * a * alpha - g * a * radial
        across = epsilon - 2 * a * kappa + g * a * (spread - 4 * epsilon * a * kappa + 8 * (a * kappa) ** 2 - radial)
        return second, along, across

    a, kappa, mu = _follow(equations, [1.0, 0.0, 1.0], lr / p)
    if p > 1 and kappa < 0:
        return _trained(1.0, lr / p, noise)
    alpha, _, _, risk = state((a, kappa, mu))
    return a, np.sqrt(mu), 1.0, alpha - kappa if p > 1 else 1.0, risk


def _follow(equations: Callable, start: list[float], g: float) -> np.ndarray:
    """The solution of equations(x, g) = 0 that begins at `start` for g = 0, NaN where it is lost or its last entry negative."""
    x = np.array(start)
    for step in np.linspace(0, g, STEPS + 1)[1:]:
        found = root(equations, x, args=(step,), tol=1e-14)
        x = found.x
        if not np.abs(found.fun).max() < 1e-9 or x[-1] < 0:
            return np.full(x.size, np.nan)
    return x


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


@checked(lr=many(not_negative), a=array(ndim=1))
def terminal_risk(a, lr: float, trained: bool = True) -> float:
    r"""The limit of :math:`\tau^2` times the risk without label noise: learning ends as a power law.

    With a fixed second layer, :math:`a_j = 1`,

    .. math:: \frac{p-1}{64\,p}\Big[1 + \frac{2g\,(5 - 4/p)}{1-6g}\Big].

    With a trained one that ends at :math:`a`, of mean 1, and :math:`s_k = \sum_j a_j^{-k}`,
    :math:`T = \frac{3\,(s_1-1)}{8\,(p+2)}`, :math:`\alpha = \frac1p\sum_j a_j^2`,

    .. math:: \Big[\frac{T^2}3 + \frac{s_2 - \frac2p s_1 + 1}{64} - \frac{T(s_1-1)}{12} + \frac{(p-1)T^2}9\Big]
              \frac{1-4g\alpha}{1-6g\alpha},

    which is :math:`\frac{3(p-1)}{64(p+2)}` where a is homogeneous and g small: up to 3 times the risk with a fixed one. NaN
    where an entry of `a` is not positive, or `a` so uneven that not all directions fall as slowly.

    Parameters
    ----------
    a : the second layer at the end, positive and of mean 1; shape (p,)
    lr : the learning rate of the first layer, below :math:`p/6\alpha`
    trained : whether the second layer is trained, or fixed; `a` is then its size only

    >>> round(terminal_risk([1, 1, 1], lr=0.0, trained=False) * 64, 9), round(terminal_risk([1, 1, 1], lr=0.0) * 64, 9)
    (0.666666667, 1.2)
    """
    (a,) = as_numbers(a)
    p, g = a.size, lr / a.size
    limit = p / (6 * float(np.mean(a**2))) if trained else p / 6
    if lr >= limit:
        raise BadInput(f"lr must be below {limit:.4g} there, where learning ends at all; got {lr:g}. Give a smaller rate.")
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


@formula
def end_rates(width, lr, noise, ratio=0.0) -> EndRates:
    r"""How fast the end is approached with label noise, :math:`g\Delta \ll 1`.

    The mean of a decays at the rate 3r and the common part of the students at 4. All else is slow, of order :math:`g\Delta`:
    differences between the entries of a at :math:`2rg\Delta/(1-6g)`, and for small g what students have apart at
    :math:`\frac43 g\Delta` and :math:`\frac{4}{p+2} g\Delta`, with a fixed layer at :math:`4g\Delta` and
    :math:`\frac4p g\Delta`. So noise makes the second layer homogeneous in the end.

    Parameters
    ----------
    width, lr, noise : of the problem
    ratio : r, the learning rate of the second layer over that of the first; zero for a fixed second layer

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


@formula
def second_only_risk(width) -> np.ndarray:
    r"""The excess risk when only the second layer is trained, as :math:`d\to\infty`.

    It is :math:`(p+3)/(p+2)`, at :math:`a = p/(p+2)`. The features of random units do not know the teacher,
    and their best combination is the plateau.

    >>> float(second_only_risk(1))
    1.3333333333333333
    """
    (p,) = as_numbers(width)
    return (p + 3) / (p + 2)
