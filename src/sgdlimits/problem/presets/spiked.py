"""Presets of inference: spiked matrices and tensors."""

from __future__ import annotations

from typing import Annotated

from sgdlimits.checks import integer
from sgdlimits.domain import NotNegativeInTime, PositiveInTime, Rate, checked
from sgdlimits.problem.spiked import SpikedTensor


@checked
def spiked_tensor(
    order: Annotated[int, integer(at_least=2)] = 2,
    snr: PositiveInTime = 1.2,
    lr: Rate = 1.0,
    ridge: NotNegativeInTime = 0.0,
    direct: bool = False,
) -> SpikedTensor:
    r"""Estimation of v by x from noisy tensors :math:`Y = \lambda v^{\otimes k} + W`, loss :math:`|Y - x^{\otimes k}|^2` [2]_.

    Section 3 of Ben Arous, Gheissari and Jagannath: its :math:`m, r_\perp^2` are our m, r2, its time lr t. The entries of W are
    independent, and W is not symmetric. `problem.risk` is :math:`|\lambda v^{\otimes k} - x^{\otimes k}|^2`: the constant
    :math:`E|W|^2` and the penalty are left out. `RandomInit` draws :math:`x \sim N(0, I/d)`. For a signal-to-noise ratio that
    grows as :math:`d^{(k-2)/2}`, see `theory.effective.scaled_snr`.

    Parameters
    ----------
    order : k, at least 2; 2 for matrices
    snr : :math:`\lambda`, the signal-to-noise ratio
    lr : :math:`c_\delta`, the learning rate: the step size is lr/d
    ridge : :math:`\alpha`, the strength of the ridge penalty
    direct : whether SGD draws complete tensors, for small d, instead of the gradient noise, which gives the same law

    >>> import sgdlimits as sl
    >>> problem = sl.presets.spiked_tensor(order=3, snr=4.0)
    >>> m, r2, snr, k = 0.5, 0.8, 4.0, 3
    >>> R2 = m**2 + r2
    >>> paper = 2 * m * (snr * k * m ** (k - 2) - k * R2 ** (k - 1)), -4 * k * R2 ** (k - 1) * (r2 - 1)     # equation (3.1)
    >>> ours = problem.drift(sl.Spike(m, r2))
    >>> bool(abs(ours.m - paper[0]) + abs(ours.r2 - paper[1]) < 1e-14)
    True
    """
    return SpikedTensor(order, snr, lr, ridge, direct=direct)
