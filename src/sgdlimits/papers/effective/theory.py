r"""Thresholds and fixed points of the effective dynamics of spiked tensors and of Gaussian mixtures [2]_.

Section 3 of the paper is about spiked tensors. Without ridge the ODE has the fixed points (0, 0) and (0, lr), and at
:math:`r_\perp^2 = \text{lr}` those with

.. math:: \lambda m^{k-2} = (m^2 + \text{lr})^{k-1}.

Sections 4 and 5 are about two-layer relu networks on binary and XOR mixtures, here without noise inside the clusters.

.. [2] Ben Arous, Gheissari, Jagannath, *High-dimensional limit theorems for SGD: effective dynamics and critical scaling*.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from scipy.optimize import brentq

from sgdlimits.checks import integer
from sgdlimits.domain import Count, Fraction, NotNegativeInTime, Positive, Rate, SignalToNoise, checked
from sgdlimits.errors import BadInput, check_share

MAX_IMAGINARY_PART = 1e-6
"""Imaginary part, relative to the modulus, up to which a root counts as real: a double root is accurate to about 1e-8."""
SUCCESS_PROBABILITIES = {"binary_mixture": 1 / 2, "xor_mixture": 3 / 32}
"""Probability that SGD finds a good classifier, by preset."""


class FixedOverlaps(NamedTuple):
    """Overlaps of fixed points of the ODE correlated with the spike: `m_dagger` (unstable) and `m_star` (stable, larger)."""

    m_dagger: float
    m_star: float


@checked
def critical_snr(order: Annotated[int, integer(at_least=2)], lr: Rate = 1.0) -> float:
    r"""Signal-to-noise ratio above which the ODE of spiked tensors of order k has a fixed point with a nonzero overlap.

    .. math:: \lambda_c(k) = \Big(\frac{(2k-2)\,\text{lr}}k\Big)^{k-1} \Big(\frac{(k-2)\,\text{lr}}k\Big)^{-(k-2)/2},

    which is lr for matrices. It is the minimum of :math:`(m^2+\text{lr})^{k-1}/m^{k-2}`, at :math:`m^2 = (k-2)\,\text{lr}/k`.

    Parameters
    ----------
    order : k, the order of the tensor
    lr : learning rate, :math:`c_\delta` of the paper

    >>> critical_snr(2), round(critical_snr(3), 6)
    (1.0, 3.079201)
    """
    k = order
    return float(((2 * k - 2) * lr / k) ** (k - 1) * ((k - 2) * lr / k) ** (-(k - 2) / 2)) if k > 2 else float(lr)


@checked
def overlaps(
    order: Annotated[int, integer(at_least=2, below=102)], snr: SignalToNoise, lr: Rate = 1.0, ridge: NotNegativeInTime = 0.0
) -> FixedOverlaps:
    r"""Positive overlaps :math:`m_\dagger \le m_\star` of the fixed points of the ODE of spiked tensors.

    Here k is the order of the tensor and :math:`\lambda` the signal-to-noise ratio.

    With :math:`\rho = \text{ridge}/2k` they solve

    .. math:: \lambda m^{k-2} - \rho = R^{2k-2}, \qquad r_\perp^2 = \text{lr}\,\Big(1 - \frac\rho{\lambda m^{k-2}}\Big):

    the largest is stable, and the next one is a saddle on the boundary of its basin. For matrices there is a single overlap
    :math:`\sqrt{(\lambda-\rho)(1-\text{lr}/\lambda)}`, which is :math:`\sqrt{\lambda-\text{lr}}` without ridge, and both fields
    have it. For even k the negatives of these overlaps are fixed points too; for odd k they are not (in the paper they are for
    every k). Both fields are NaN if there is no such fixed point. The parameters are those of `presets.spiked_tensor`.

    >>> [round(m, 6) for m in overlaps(order=4, snr=8.0)]
    [0.485868, 1.0]
    >>> overlaps(order=3, snr=3.0)
    FixedOverlaps(m_dagger=nan, m_star=nan)
    """
    k = order
    m, rho = Polynomial([0.0, 1.0]), ridge / (2 * k)
    signal = snr * m ** (k - 2)
    # both conditions, with r_perp^2 eliminated and denominators cleared
    equation = (signal - rho) * signal ** (k - 1) - (m**2 * signal + lr * (signal - rho)) ** (k - 1)
    roots = np.roots(equation.coef[::-1])
    # double roots come with small imaginary parts
    real = np.sort(roots.real[(np.abs(roots.imag) < MAX_IMAGINARY_PART * np.abs(roots)) & (roots.real > 0)])
    real = real[snr * real ** (k - 2) > rho]  # elsewhere r_perp^2 would be negative
    if not real.size:
        return FixedOverlaps(np.nan, np.nan)
    return FixedOverlaps(float(real[-2] if k > 2 else real[-1]), float(real[-1]))


@checked
def scaled_snr(Lambda: Positive, order: Annotated[int, integer(at_least=2)], d: Count) -> float:
    r"""Signal-to-noise ratio :math:`\lambda = \Lambda d^{(k-2)/2}` at which the spike affects random starts.

    Here k is the order of the tensor, d the dimension, and :math:`\Lambda` a number of order one.

    >>> scaled_snr(0.5, order=4, d=1000)
    500.0
    """
    return float(Lambda * d ** ((order - 2) / 2))


@checked
def barrier(Lambda: Positive, order: Annotated[int, integer(at_least=3)]) -> float:
    r"""Scaled overlap :math:`\Lambda^{-1/(k-2)}` beyond which the drift of spiked tensor PCA points to recovery, for lr = 1.

    The scaled overlap is :math:`u = \sqrt d\, m`, and k the order of the tensor.

    The signal-to-noise ratio is `scaled_snr`.

    As :math:`d\to\infty`, once :math:`r_\perp^2` is 1, in the time of the paper,

    .. math:: du = 2k\,(\Lambda u^{k-1} - u)\,dt + 2\sqrt k\,dB.

    For k of at least 3 the origin is stable for every :math:`\Lambda`, and the drift changes sign at the barrier. The scale
    function of this diffusion has :math:`s' = \exp(u^2/2 - \Lambda u^k/k)`: the probability to reach b before a is
    :math:`(s(u) - s(a))/(s(b) - s(a))`.

    >>> barrier(0.25, order=4)
    2.0
    """
    return float(Lambda ** (-1 / (order - 2)))


@checked
def ring_radius(ridge: Positive, weight: Fraction) -> float:
    r"""Radius :math:`\sqrt C` of the rings of fixed points of a Gaussian mixture without noise.

    Here `weight` is the probability of one cluster, :math:`v_j` the second layer, :math:`W_j` the weights of unit j and
    :math:`\mu` the mean of the cluster.

    .. math:: C = \log\frac{\text{weight} - \text{ridge}}{\text{ridge}}.

    The units that detect one cluster have :math:`\sum_j v_j^2 = \sum_j (W_j\cdot\mu)^2 = C`, where the gradient of the
    cross-entropy, :math:`\text{weight}/(1 + e^C)`, balances the penalty. At `critical_ridge` or more the radius is zero.

    Parameters
    ----------
    ridge : :math:`\alpha`, the strength of the ridge penalty
    weight : probability of one cluster: 1/2 in the binary mixture, 1/4 in XOR

    >>> ring_radius(ridge=0.1, weight=0.5) ** 2 == math.log(4)
    True
    """
    if ridge >= critical_ridge(weight):
        return 0.0
    return math.sqrt(math.log((weight - ridge) / ridge))


@checked
def critical_ridge(weight: Fraction) -> float:
    r"""Ridge penalty :math:`\text{weight}/2` above which zero is a mixture's only fixed point, without noise.

    Here `weight` is the probability of one cluster; the ridge is 1/4 for the binary mixture and 1/8 for XOR.

    >>> critical_ridge(weight=1/4)
    0.125
    """
    return check_share("weight", weight) / 2


@checked
def classifier_ridge(preset: str, snr: Positive, lr: Positive = 1.0) -> float:
    r"""Ridge penalty below which the ODE of a mixture has a good classifier as a fixed point.

    The signal-to-noise ratio :math:`\lambda` is arbitrary. Below, v is the second layer, m the overlap with a class mean, s the
    standard deviation of a unit's field inside a class, and f the network.

    At this ridge the weights of the good classifier shrink to zero, so it follows from the drift at :math:`f\to0`. For the
    binary mixture it is 1/4 at every snr, because :math:`E[\mathrm{relu}]` differs between the classes by exactly m. For XOR
    let x be the overlap of a unit over the standard deviation of its field inside a class. With
    :math:`F = x\,\mathrm{erf}\frac x{\sqrt2} - \sqrt{2/\pi}\,(1 - e^{-x^2/2})` and
    :math:`H = \mathrm{erf}\frac x{\sqrt2} - \sqrt{2/\pi}\,\frac x\lambda\,(1 - e^{-x^2/2})`

    .. math:: \alpha_c^2 = \frac{F H}{64\,x}, \qquad \lambda H = x F\,\Big(1 + \frac{\text{lr}}{16\,\alpha_c\lambda}\Big):

    second layer and overlap are balanced with the ridge, :math:`8\alpha v = sF` and :math:`8\alpha xs = vH`, and the squared
    norm of the weights is :math:`\lambda s^2 = v^2(1 + \text{lr}/16\alpha\lambda)`. For large snr the ridge tends to
    `critical_ridge`, 1/8.

    >>> [round(classifier_ridge(preset, snr=20.0), 4) for preset in SUCCESS_PROBABILITIES]
    [0.25, 0.1027]
    """
    if preset not in SUCCESS_PROBABILITIES:
        raise BadInput(
            f"preset must be one of {', '.join(SUCCESS_PROBABILITIES)}; got {preset!r}. Choose a name from this list."
        )
    if preset == "binary_mixture":
        return 0.25

    def terms_at(x: float) -> tuple[float, float, float]:
        r"""Return F, H and the ridge :math:`\alpha_c` at the ratio x of overlap to standard deviation."""
        step = math.erf(x / math.sqrt(2))
        bend = math.sqrt(2 / math.pi) * -math.expm1(-(x**2) / 2)
        F, H = x * step - bend, step - x / snr * bend
        return F, H, math.sqrt(max(F * H, 0.0) / (64 * x))

    def balance(x: float) -> float:
        """Return the logarithm of the ratio of the two sides of the equation for x, which is zero at the solution."""
        F, H, alpha = terms_at(x)
        return math.inf if alpha == 0 else math.log(x * F / (snr * H) * (1 + lr / (16 * alpha * snr)))

    # the overlap grows as the root of the ratio
    grid = np.geomspace(1e-3, 2 * math.sqrt(snr) + 10, 400)
    values = np.array([balance(x) for x in grid])
    rising = np.flatnonzero((values[:-1] < 0) & (values[1:] >= 0))  # the last crossing is that of the stable classifier
    if not rising.size:
        return 0.0
    x = brentq(lambda x: min(balance(x), 1e3), grid[rising[-1]], grid[rising[-1] + 1], xtol=1e-14)
    return terms_at(float(x))[2]


@checked
def success_probability(preset: str) -> float:
    r"""Probability that SGD from random weights finds a good classifier, at the paper's width and a small ridge.

    For the binary mixture with two units, one :math:`v_j` must start positive and the other negative, with probability 1/2. For
    XOR with four units, two must be positive and two negative, with probability 6/16, and in each pair the overlaps with the
    means of the pair's label must start with opposite signs, with probability 1/2 each: in all 3/32. These overlaps are of
    order :math:`d^{-1/2}`, so the limit of the start does not contain their signs.

    >>> success_probability("xor_mixture")
    0.09375
    """
    if preset not in SUCCESS_PROBABILITIES:
        raise BadInput(
            f"preset must be one of {', '.join(SUCCESS_PROBABILITIES)}; got {preset!r}. Choose a name from this list."
        )
    return SUCCESS_PROBABILITIES[preset]
