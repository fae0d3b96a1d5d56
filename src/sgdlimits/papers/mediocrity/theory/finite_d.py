r"""Corrections of order 1/d for one unit on the sphere: to the drift, and to the final plateau.

A step takes m to :math:`(m + C\lambda_\star/d)\,(1 + 2C\lambda/d + C^2|x|^2/d^2)^{-1/2}` with
:math:`C = 2\gamma\mathcal E\lambda`. To second order in 1/d its mean is a polynomial, by Wick's theorem; appendices D.2 and G.2
of the paper have the terms before the average.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from sgdlimits.checks import number
from sgdlimits.domain import NotNegative, checked
from sgdlimits.papers.mediocrity.theory.rates import as_float_arrays, max_lr


@checked  # that is, at most 1
def drift_correction(
    m: Annotated[float, number(at_least=-1, below=math.nextafter(1, 2))] | ArrayLike,
    lr: NotNegative | ArrayLike,
    noise: NotNegative | ArrayLike = 0.0,
) -> np.ndarray:
    r"""Coefficient f of 1/d in the drift of one unit's overlap m with the teacher, per unit of t.

    Here :math:`\gamma` is the learning rate `lr` and :math:`\Delta` the variance `noise` of the label noise.

    The drift is :math:`\gamma m\,[4(1-6\gamma)(1-y) - 2\gamma\Delta] + f/d` with :math:`y = m^2` and

    .. math:: \frac fm = 2\gamma^2\,[\Delta + 12(1-y)(5-6y)] - 360\gamma^3(1-y)\,[\Delta + 20(1-y)]
              + 54\gamma^4\,[\Delta^2 + 8\Delta(1-y)(7-2y) + 80(1-y)^2(11-4y)].

    >>> float(drift_correction(0.1, lr=1 / 12).round(6))
    -0.103075
    """
    m, g, noise = as_float_arrays(m, lr, noise)
    y = m**2
    second = 2 * g**2 * (noise + 12 * (1 - y) * (5 - 6 * y))
    third = 360 * g**3 * (1 - y) * (noise + 20 * (1 - y))
    fourth = 54 * g**4 * (noise**2 + 8 * noise * (1 - y) * (7 - 2 * y) + 80 * (1 - y) ** 2 * (11 - 4 * y))
    return m * (second - third + fourth)


@checked
def plateau_correction(lr: NotNegative | ArrayLike, noise: NotNegative | ArrayLike) -> np.ndarray:
    r"""Relative correction, times d, to the final excess risk of one unit on the sphere in dimension d.

    Here :math:`\gamma` is the learning rate `lr` and :math:`\Delta` the variance `noise` of the label noise.

    It is the coefficient c in the mean excess risk :math:`R\,(1 + c/d)`.

    With :math:`R = \gamma\Delta/(1-6\gamma)`, (8),

    .. math:: c = \frac{-2(1-12\gamma) + 2R\,(1 + 36\gamma + 144\gamma^2 - 1008\gamma^3)
              - 6\gamma R^2\,(7 + 48\gamma - 72\gamma^2) + 72\gamma^2R^3\,(1+4\gamma)}{(1-6\gamma)\,(2-R)},

    which is :math:`-1 + \gamma\,(6 + \Delta/2)` for small rates and diverges where the plateau meets the saddle. In samples per
    dimension :math:`y = m^2` has the drift :math:`b(y) + b_1(y)/d` and the variance :math:`a(y)/d`. In the stationary state the
    mean drift is zero, so :math:`E y` differs from the root :math:`y_\star` of b by

    .. math:: \frac1{d\,|b'|}\Big(b_1 + \frac{b''}2\,\frac a{2|b'|}\Big) \quad\text{at } y_\star.

    The result is NaN where nothing is learnt.

    >>> plateau_correction([0.03, 0.1], [2.0, 1.0]).round(3)
    array([-0.613,  3.595])
    """
    lr, noise = np.broadcast_arrays(*as_float_arrays(lr, noise))
    # above max_lr nothing is learnt, and there is no plateau
    g = np.where(lr < max_lr(1, noise), lr, np.nan)
    R = g * noise / (1 - 6 * g)
    first = 2 * R * (1 + 36 * g + 144 * g**2 - 1008 * g**3)
    second = 6 * g * R**2 * (7 + 48 * g - 72 * g**2)
    return (-2 * (1 - 12 * g) + first - second + 72 * g**2 * R**3 * (1 + 4 * g)) / ((1 - 6 * g) * (2 - R))
