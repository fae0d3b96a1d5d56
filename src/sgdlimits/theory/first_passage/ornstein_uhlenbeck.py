"""The mean exit time of a linear diffusion."""

from __future__ import annotations

import numpy as np
from scipy.integrate import quad_vec
from scipy.special import dawsn


def mean_exit_time(start, end, growth: float, variance: float) -> np.ndarray:
    r"""Mean time that :math:`dm = \mu m\,dt + \sigma\,dB` takes from m to :math:`\pm\ell`.

    .. math:: E\tau = \frac2\mu\int_{y(m)}^{y(\ell)} D(u)\,du, \quad y(m) = m\sqrt\mu/\sigma, \qquad
              \int_0^y D(u)\,du = \frac{y^2}2\,{}_2F_2(1, 1; \tfrac32, 2; -y^2),

    where D is Dawson's function: the derivative of :math:`E\tau` satisfies a first-order equation, which integrates to D. For
    :math:`\mu < 0`, D is replaced by its value at imaginary argument; for :math:`\mu = 0` the time is
    :math:`(\ell^2-m^2)/\sigma^2`.

    Parameters
    ----------
    start, end : m and :math:`\ell`, with :math:`|m| \le \ell`; they broadcast
    growth, variance : :math:`\mu` and :math:`\sigma^2`

    >>> float(mean_exit_time(0.0, 1.0, growth=0.0, variance=1.0))
    1.0
    """
    start, end = np.broadcast_arrays(np.abs(start), np.abs(end))
    if growth == 0:
        return (end**2 - start**2) / variance
    scale = np.sqrt(abs(growth) / variance)
    D = dawsn if growth > 0 else lambda u: dawsn(1j * u).imag
    along = lambda share: D(scale * (start + share * (end - start)))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = quad_vec(along, 0, 1, epsabs=0, epsrel=1e-12, norm="max")[0]
        return 2 / abs(growth) * scale * (end - start) * np.where(np.isnan(mean), np.inf, mean)
