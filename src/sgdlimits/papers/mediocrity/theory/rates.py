r"""Phase retrieval [1]_: escape rates from the plateau, the state at the end of learning, and the learning rates that learn.

:math:`p` is the width, :math:`\gamma` the learning rate `lr`, :math:`\Delta` the variance `noise` of the label noise. The
second layer is fixed at 1 and the weights are on the sphere. All functions broadcast over their arguments.

A learning rate that leaves the saddle quickly can be too large for learning. Let :math:`g = \gamma/p`. In a symmetric end state
all students have the same overlap m with the teacher and the same overlap q with each other, and the ODE (26), (31) reduces to
two equations for m and q. At a fixed point with :math:`m \ne 0`, :math:`q < 1`, the variable :math:`a = (1-q)/p` is a root of
the cubic

.. math:: 8g(p-1)(p+4)\,a^3 + [4 + 9p - 9p^2 + 4g(p-4)(p+1)]\,a^2 + [p(6 - 1/g) + 4g\Delta(p-1)]\,a
          + \tfrac12\Delta(1-4g) = 0,

the excess risk is :math:`pa/g - \Delta/2 - 4a^2`, and

.. math:: m^2 = (1-(p-1)a)\,(1-pa)\,\frac{1 - 4g + 4g(p-2)\,a}{1 - 4g + 8g(p-1)\,a}.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from sgdlimits.domain import Count, Fraction, NotNegative, Positive, RealWidth, checked
from sgdlimits.errors import BadInput

MIN_RATE = 1e-150
"""Learning rate over width, lr/p, below which it counts as zero, since its square underflows."""


class LinearRates(NamedTuple):
    """Growth rate of teacher overlaps and decay rate of student overlaps at the saddle, in the paper's time."""

    M: np.ndarray
    Q: np.ndarray


@checked
def linear_rates(
    width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike = 0.0
) -> LinearRates:
    r"""Growth rate of teacher overlaps M and decay rate of student overlaps Q at the saddle M = 0, Q = 1: (38)-(40).

    They are defined by :math:`\dot m_j = \omega_M m_j` and :math:`\dot Q_{jl} = -\omega_Q Q_{jl}`.

    .. math:: \omega_M = 4\Big[1 - \frac{\gamma}{p}\Big(1 + \frac1p + \frac4{p^2} + \frac\Delta2\Big)\Big], \qquad
              \omega_Q = \frac8p\Big[1 - \frac{8\gamma}{p^2}\Big]

    in the paper's time :math:`\gamma t/p`; at p = 1 the first is :math:`\mu` of (50). `sgdlimits.linearise` gives the rates of
    any problem at any point.

    >>> rates = linear_rates(width=[1, 10], lr=1 / 12)
    >>> rates.M.round(3)
    array([2.   , 3.962])
    """
    p, lr, noise = as_float_arrays(width, lr, noise)
    return LinearRates(4 - 2 * lr / p * corrector_factor(p, noise), 8 / p * (1 - 8 * lr / p**2))


@checked
def noise_gain(width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Gain :math:`\kappa` of the variance of a random start by SGD's own noise: :math:`1/d` becomes :math:`(1 + \kappa)/d`.

    Here :math:`\omega_M` is the growth rate of `linear_rates`, :math:`\mathcal M_j` the one-sample increment of the overlap
    :math:`m_j` of student j with the teacher, and :math:`\Delta` the variance of the label noise.

    .. math:: \kappa = \frac{\gamma}{p}\,\frac{\mathrm{Var}\,\mathcal M_j}{2\,\omega_M}, \qquad
              \mathrm{Var}\,\mathcal M_j = 4\Big(10 - \frac6p + \frac8{p^2} + \Delta\Big) \text{ at the saddle.}

    Near the saddle :math:`dm_j = \omega_M m_j\,dt + \sqrt{\gamma/(pd)}\,\sigma\,dB`, so that
    :math:`m_j e^{-\omega_M t}` tends to the start plus a normal variate of variance :math:`\kappa/d`. By parity, the increments
    of the :math:`m_j` are uncorrelated there with each other and with those of Q. The gain is infinite if the saddle is stable.

    >>> float(noise_gain(1, lr=1 / 12.5, noise=0.5))        # 1 at the optimal rate of one unit, for any noise
    1.0
    """
    p, lr, noise = as_float_arrays(width, lr, noise)
    rate = linear_rates(p, lr, noise).M
    growing = np.where(rate > 0, rate, 1.0)  # where evaluates both branches: avoid dividing by zero in the unused one
    return np.where(rate > 0, lr / p * increment_variance(p, noise) / (2 * growing), np.inf)


def increment_variance(p, noise):
    r"""Return the variance :math:`\mathrm{Var}\,\mathcal M_j` of a teacher overlap's one-sample increment at the saddle.

    There are p students, and `noise` is the variance of the label noise.
    """
    return 4 * (10 - 6 / p + 8 / p**2 + noise)


@checked
def max_lr(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Learning rate above which the saddle at zero overlap is stable, so that nothing is learnt.

    Here p is the width, and :math:`\Delta` the variance of the label noise.

    It is the root of :math:`\omega_M`. At p = 1 it is :math:`2/(12+\Delta)`, where the paper's text has 1/6 for any noise.

    >>> float(max_lr(1, noise=4.0))
    0.125
    """
    p, noise = as_float_arrays(width, noise)
    return 2 * p / corrector_factor(p, noise)


@checked
def optimal_lr(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Learning rate at which runs leave the saddle after the fewest samples, half of `max_lr` (appendix E.4).

    Here p is the width, and :math:`\Delta` the variance of the label noise.

    .. math:: \gamma_{\rm opt} = \frac{p^3}{8 + 2p + (2+\Delta)p^2}

    It ignores the dynamics after the saddle: see `usable_lr`.

    >>> float(1 / optimal_lr(1, noise=0.5))
    12.5
    """
    return max_lr(width, noise) / 2


@checked
def minimal_samples(
    width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike, d: Count | ArrayLike, threshold: Fraction | ArrayLike
) -> np.ndarray:
    r"""Number of samples until the exit at the learning rate `optimal_lr`, by the annealed formula (appendix E.4).

    Here p is the width, :math:`\Delta` the variance of the label noise, and T the threshold, the relative decrease of the
    excess risk.

    .. math:: s_{\min} = d\,\frac{8 + 2p + (2+\Delta)p^2}{4p^2}\,\log\frac{T(p+1)d + (p+1)(1-T)}{2p}

    >>> round(float(minimal_samples(1, 0.0, d=1000, threshold=0.1)))
    13842
    """
    p, noise, d, T = as_float_arrays(width, noise, d, threshold)
    # at half of max_lr the rate is 2 and lr/p is 1/corrector_factor
    return d * corrector_factor(p, noise) / 4 * np.log((p + 1) * (T * d + 1 - T) / (2 * p))


@checked
def overparametrisation_gain(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Ratio of samples until the exit, width 1 over width p, each at its `optimal_lr`, as :math:`d\to\infty` (appendix E.4).

    Here :math:`\Delta` is the variance of the label noise.

    It tends to :math:`(12+\Delta)/(2+\Delta)` for large widths.

    >>> float(overparametrisation_gain(np.inf))
    6.0
    """
    p, noise = as_float_arrays(width, noise)
    return corrector_factor(1.0, noise) / corrector_factor(p, noise)


def corrector_factor(p, noise) -> np.ndarray:
    r"""Return the factor :math:`2 + 2/p + 8/p^2 + \Delta` of :math:`-2\gamma/p` in the growth rate :math:`\omega_M`.

    Here p is the width, :math:`\Delta` the noise and :math:`\gamma` the learning rate.
    """
    return 2 + 2 / p + 8 / p**2 + noise


def as_float_arrays(*values: Any) -> list[np.ndarray]:
    """Convert arguments to arrays of floats, or raise `BadInput` if one is not numeric."""
    try:
        return [np.asarray(value, float) for value in values]
    except (TypeError, ValueError):
        raise BadInput(
            f"arguments must be numbers or arrays of numbers; got {values!r}. Give, for instance, [0.1, 0.2]."
        ) from None


class LearntState(NamedTuple):
    """State at the end of learning, in which all students are alike: overlap with the teacher, mutual overlap, and excess risk.

    The overlaps are those of each student with the teacher, up to sign, and between students.
    """

    m: np.ndarray
    q: np.ndarray
    excess_risk: np.ndarray


@checked
def learnt_state(
    width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike = 0.0
) -> LearntState:
    r"""Symmetric end state of the full ODE: the fixed point with teacher overlap :math:`m\ne0` at which all students are alike.

    Here m is the overlap with the teacher, p the width, :math:`\gamma` the learning rate and :math:`\Delta` the variance of the
    label noise.

    At p = 1 this is :math:`m^2 = 1 - \gamma\Delta/(2(1-6\gamma))`, with the excess risk (8). The entries are NaN where no
    symmetric fixed point exists.

    >>> state = learnt_state(width=2, lr=0.2, noise=1.0)
    >>> round(float(state.m), 6), round(float(state.excess_risk), 6)
    (0.922653, 0.226881)
    """
    return LearntState(*np.vectorize(_solve_learnt_state, otypes=[float] * 3)(*as_float_arrays(width, lr, noise)))


@checked
def asymptotic_excess_risk(
    width: RealWidth | ArrayLike, lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike = 0.0
) -> np.ndarray:
    r"""Excess risk at the end of learning on the sphere with label noise.

    For one unit it is (8), :math:`\gamma\Delta/(1-6\gamma)`, with :math:`\gamma` the learning rate and :math:`\Delta` the
    variance of the label noise; below, p is the width and :math:`g = \gamma/p`.

    For small g it is :math:`g\Delta + g^2[6\Delta - \tfrac14(1-1/p)\Delta^2]`, so width lowers it below (8) at the rate g.
    Where nothing is learnt (p = 1, :math:`\gamma \ge 2/(12+\Delta)`) it is the excess risk of the saddle, 2. It is NaN where no
    symmetric fixed point exists; above `usable_lr` that fixed point may be unstable.

    >>> float(asymptotic_excess_risk(1, lr=0.1, noise=0.4).round(12))
    0.1
    """
    return np.vectorize(_final_excess_risk, otypes=[float])(*as_float_arrays(width, lr, noise))


@checked
def usable_lr(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Largest learning rate :math:`2p/(12+\Delta)` at which a network of width p learns better than one unit.

    Here :math:`\Delta` is the variance of the label noise, and :math:`\gamma` the learning rate.

    Without noise it is p/6, above which perfect recovery is unstable and the full ODE does not reach zero risk. With noise the
    learnt state continues to exist above it, with a risk that grows smoothly. Below it, that risk is smaller than (8) for one
    unit at the rate :math:`\gamma/p`; at it, (8) reaches 2, the risk of the saddle of one unit. At p = 1 it is `max_lr`.

    >>> float(usable_lr(10))                       # the published optimum for this width is 4.39
    1.6666666666666667
    """
    p, noise = as_float_arrays(width, noise)
    return 2 * p / (12 + noise)


@checked
def pair_max_lr(noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Learning rate :math:`\gamma` above which the end state of learning with two equal units is unstable: the units separate.

    Here :math:`\Delta` is the variance of the label noise; m is the units' overlap with the teacher, and q that between them.

    A difference between their overlaps with the teacher grows at the rate :math:`4\,(q - 2m^2)`, which changes sign where
    :math:`q = 4g`, :math:`m^2 = 2g`, at the root of

    .. math:: 48g^3 - 24g^2 + (13 + \Delta)\,g - 2 = 0, \qquad g = \gamma/2.

    It is above `usable_lr` for :math:`\Delta < 12 + 8\sqrt6 = 31.6`, and at least 0.9945 of it for every noise.

    >>> (pair_max_lr([0.0, 12 + 8 * 6**0.5, 76.0]) / usable_lr(2, [0.0, 12 + 8 * 6**0.5, 76.0])).round(4)
    array([1.1843, 1.    , 0.9946])
    """
    (noise,) = as_float_arrays(noise)
    # the cubic has a single real root for every noise >= 0, since its derivative has no real roots
    real_root = lambda noise: next(each.real for each in np.roots([48, -24, 13 + noise, -2]) if abs(each.imag) < 1e-9)
    return 2 * np.vectorize(real_root, otypes=[float])(noise)


@checked
def usable_optimal_lr(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Learning rate, of all up to `usable_lr`, at which runs leave the saddle after the fewest samples.

    Here p is the width, and :math:`\Delta` the variance of the label noise.

    It is `usable_lr` where :math:`\Delta < 8 - 4/p - 16/p^2`, and `optimal_lr` elsewhere.

    >>> usable_optimal_lr([1, 2, 10]).round(4)
    array([0.0833, 0.3333, 1.6667])
    """
    return np.minimum(optimal_lr(width, noise), usable_lr(width, noise))


@checked
def usable_gain(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike = 0.0) -> np.ndarray:
    r"""Ratio of the samples to leave the saddle, width 1 over width p, each at its `usable_optimal_lr`, as :math:`d\to\infty`.

    Here :math:`\Delta` is the variance of the label noise.

    Where that rate is `usable_lr`, the ratio is :math:`8(5 - 1/p - 4/p^2)/(12+\Delta)`, which tends to 10/3 for wide networks
    without noise; the paper has 6 (`overparametrisation_gain`).

    >>> float(usable_gain(np.inf).round(12))
    3.333333333333
    """
    p, noise = as_float_arrays(width, noise)
    g = np.minimum(1 / corrector_factor(p, noise), 2 / (12 + noise))
    return corrector_factor(1.0, noise) * g * (2 - g * corrector_factor(p, noise))


@checked
def lr_for_risk(width: RealWidth | ArrayLike, noise: NotNegative | ArrayLike, excess_risk: Positive | ArrayLike) -> np.ndarray:
    """Largest learning rate, up to `usable_lr`, at which the excess risk at the end of learning is at most a given value.

    >>> float(lr_for_risk(1, noise=0.4, excess_risk=0.1).round(9))
    0.1
    """

    def one(p, noise, risk):
        """Return the largest learning rate with at most the given excess risk, at one width and noise."""
        # strictly below the largest rate considered
        top = float(usable_lr(p, noise)) * (1 - 1e-12)
        if _final_excess_risk(p, top, noise) <= risk:
            return top
        try:
            return brentq(lambda lr: _final_excess_risk(p, lr, noise) - risk, 1e-12 * top, top, xtol=1e-15, rtol=1e-12)
        except ValueError:
            raise BadInput(
                f"the risk at width {p:g} and noise {noise:g} cannot be computed because of rounding errors. "
                "Give a smaller width or noise."
            ) from None

    return np.vectorize(one, otypes=[float])(*as_float_arrays(width, noise, excess_risk))


def _solve_learnt_state(p: float, lr: float, noise: float) -> tuple[float, float, float]:
    """Return the overlaps m and q and the excess risk of `learnt_state` at one set of parameters."""
    g = lr / p
    if p == 1:
        square = 1 - g * noise / (2 * (1 - 6 * g)) if g < 1 / 6 else -1.0
        return (np.sqrt(square), 1.0, 2 * (1 - square)) if square > 0 else (np.nan,) * 3
    if g < MIN_RATE or (noise == 0 and g <= 1 / 6):
        return 1.0, 1.0, 0.0
    cubic = [
        8 * g * (p - 1) * (p + 4),
        4 + 9 * p - 9 * p**2 + 4 * g * (p - 4) * (p + 1),
        p * (6 - 1 / g) + 4 * g * noise * (p - 1),
        noise / 2 * (1 - 4 * g),
    ]
    roots = np.roots(cubic if noise else cubic[:3])  # without noise the constant term is zero, and a = 0 is perfect recovery
    for a in np.sort(roots[np.abs(roots.imag) < 1e-8].real):  # the smallest root is the one near zero risk
        risk = p * a / g - noise / 2 - 4 * a**2
        # m^2 from the stationarity of m
        square = (1 - (p - 1) * a) * (1 - p * a) * (1 - 4 * g + 4 * g * (p - 2) * a) / (1 - 4 * g + 8 * g * (p - 1) * a)
        if a > 0 and risk >= 0 and square > 0 and p * a <= 1:
            return np.sqrt(square), 1 - p * a, risk
    return (np.nan,) * 3


def _final_excess_risk(p: float, lr: float, noise: float) -> float:
    """Return the excess risk at the end of learning.

    Where one unit learns nothing it is 2, the excess risk of the saddle.
    """
    nothing = p == 1 and lr * (12 + noise) >= 2
    return 2.0 if nothing else _solve_learnt_state(p, lr, noise)[2]
