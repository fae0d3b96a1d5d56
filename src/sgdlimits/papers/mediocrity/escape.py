r"""Escape from zero overlap for activations of information exponent 2: the constants of d log d, and traps on the way.

One unit of norm 1 with activation s learns labels :math:`y = g(w_\star\cdot x) + \sqrt\Delta z`. Its overlap m moves by

.. math:: \dot m = \gamma\,\phi(m) - \gamma^2\,\psi(m), \qquad
          \phi = (1-m^2)\sum_k \frac{s_k g_k}{(k-1)!}\,m^{k-1}, \qquad \psi = \frac m2\,E[G^2],

with Hermite coefficients :math:`s_k, g_k` and :math:`G = s'(\lambda)(s(\lambda) - y)`. Near m = 0, with
:math:`s_1 g_1 = 0`, the rate is :math:`\gamma s_2 g_2 - \frac{\gamma^2}2 E[G^2]_0`. Two learning rates matter:
:math:`\Gamma_0 = 2 s_2 g_2/E[G^2]_0`, above which the unit stays at zero overlap, and for :math:`g = s` without noise
:math:`\Gamma_1 = 2E[s'^2]/E[s'^4]`, above which perfect recovery is unstable. For phase retrieval both are 1/6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from numpy.polynomial import polynomial
from scipy.optimize import brentq

from sgdlimits.checks import target_or_name
from sgdlimits.domain import NotNegativeInTime, checked
from sgdlimits.errors import BadInput
from sgdlimits.model.activation import Activation, FunctionActivation, as_activation
from sgdlimits.model.expansion import MAX_HERMITE_ORDER, expand_in_hermite

GRID_POINTS = 2001
"""Number of overlaps at which the sign of the population's drift is evaluated."""
MIN_COEFFICIENT = 1e-8
"""Products of Hermite coefficients below this share of the largest count as zero."""


class Escape(NamedTuple):
    r"""Constants of one unit's escape from zero overlap, and of the stability of perfect recovery.

    The notation is that of `theory.escape`: s is the activation, and :math:`s_2`, :math:`g_2` are Hermite coefficients.

    Parameters
    ----------
    signal : :math:`s_2 g_2`
    spread : :math:`E[G^2]` at zero overlap
    max_lr : :math:`\Gamma_0`, twice the rate of the fastest escape; not positive if there is no escape
    samples : number of samples of the ODE at the best rate over d log d, :math:`E[G^2]_0/(s_2 g_2)^2`
    final_lr : :math:`\Gamma_1`, NaN where target and activation differ
    slope : :math:`E[s'^2]`
    kick : :math:`E[G^2\lambda_\star^2]` at zero overlap
    """

    signal: float
    spread: float
    max_lr: float
    samples: float
    final_lr: float
    slope: float
    kick: float

    @property
    def best_lr(self) -> float:
        """Learning rate of the fastest escape from zero overlap, half of the largest."""
        return self.max_lr / 2

    def rate(self, lr):
        """Return the growth rate of a small overlap at a learning rate, per unit of t, samples per dimension."""
        return lr * self.signal - lr**2 * self.spread / 2

    def noise_gain(self, lr):
        r"""Return the gain :math:`\kappa` of the variance of a random start by SGD's noise, at a learning rate.

        It is :math:`\gamma^2 E[G^2\lambda_\star^2]_0/2\omega`, with :math:`\gamma` the learning rate, :math:`\omega` the growth
        rate `rate`, :math:`\lambda_\star` the teacher's field and G as in `theory.escape`, at zero overlap; the variance 1/d of
        the start becomes :math:`(1+\kappa)/d`.
        """
        return lr**2 * self.kick / (2 * self.rate(lr))

    def delay(self, lr):
        r"""Return the mean exit time from random starts minus that of the ODE from the overlap :math:`1/\sqrt d`, for large d.

        It is :math:`\frac1{2\omega}[\gamma_E + \log 2 - \log(1+\kappa)]` with the growth rate :math:`\omega`, Euler's constant
        :math:`\gamma_E` and the gain :math:`\kappa` of `noise_gain`, because the start is normal and the noise adds to it for
        every d.
        """
        return (np.euler_gamma + np.log(2 / (1 + self.noise_gain(lr)))) / (2 * self.rate(lr))

    def plateau(self, lr, noise):
        r"""Return the excess risk that label noise leaves at the end of learning, if target and activation agree.

        It is :math:`\gamma\Delta E[s'^2]/4(1-\gamma/\Gamma_1)` at the learning rate :math:`\gamma` with label noise of variance
        :math:`\Delta`, activation s and :math:`\Gamma_1` the field `final_lr`. It is exact for phase retrieval and holds to
        first order in the noise for other smooth activations.
        """
        return lr * noise * self.slope / (4 * (1 - lr / self.final_lr))


class CriticalPoint(NamedTuple):
    """Critical point of the population risk on the sphere: overlap, risk without noise, and whether it is a minimum.

    The risk is computed from Hermite coefficients up to order 64.
    """

    m: float
    risk: float
    stable: bool


@checked
def escape(
    activation: str | Callable | Activation, target: Annotated[Any, target_or_name] = None, noise: NotNegativeInTime = 0.0
) -> Escape:
    r"""Compute the constants of the escape from zero overlap, for one unit on the sphere and any activation and target.

    Parameters
    ----------
    activation : s, the student's activation, a name or a JAX function, with :math:`s_1 g_1 = 0`
    target : g, the teacher's activation; default that of the student
    noise : :math:`\Delta`, the variance of the label noise

    >>> one = escape("square")
    >>> [round(each, 9) for each in (one.max_lr, one.final_lr, one.samples, one.noise_gain(1 / 12))]
    [0.166666667, 0.166666667, 3.0, 1.0]
    """
    student, teacher = as_activation(activation), as_activation(activation if target is None else target)
    s, g = (expand_in_hermite(each, 2)[0] for each in (student, teacher))
    # with a linear part zero overlap is no critical point
    if abs(s[1] * g[1]) > MIN_COEFFICIENT:
        raise BadInput(
            f"the first Hermite coefficient of activation or target must be 0; got {s[1]:.3g} and {g[1]:.3g}. "
            "Subtract the linear part of one of the two functions."
        )
    slope = jax.vmap(jax.grad(lambda x: student(x[None])[0]))
    square = lambda x: slope(x) ** 2
    # G**2 at zero overlap factorises: moments of the student's field times moments of the labels
    first, own, both = (_gaussian_average(lambda x, k=k: student(x) ** k * square(x)) for k in (0, 1, 2))
    labels, weighted = (_gaussian_average(lambda x, k=k: teacher(x) ** 2 * x**k) + noise for k in (0, 2))
    spread = labels * first - 2 * float(g[0]) * own + both
    kick = weighted * first - 2 * float(g[0] + np.sqrt(2) * g[2]) * own + both
    signal = 2 * float(s[2] * g[2])
    # recovery needs the target to be the activation
    final = 2 * first / _gaussian_average(lambda x: slope(x) ** 4) if target is None else np.nan
    samples = spread / signal**2 if signal > 0 else np.inf
    return Escape(signal, spread, 2 * signal / spread, samples, final, first, kick)


@checked
def critical_points(
    activation: str | Callable | Activation, target: Annotated[Any, target_or_name] = None
) -> list[CriticalPoint]:
    r"""Find the critical points of one unit's population risk on the sphere, as a function of its overlap m in [0, 1].

    Here s is the student's activation, g the teacher's, and :math:`s_k`, :math:`g_k` are their Hermite coefficients.

    The risk is :math:`R(m) = \text{const} - \sum_k s_k g_k m^k/k!`.

    With g = s every term decreases with m, and there is none between 0 and 1. Other targets may have a trap: for
    :math:`s = \mathrm{He}_2 + c\,\mathrm{He}_4` and :math:`g = \mathrm{He}_2 + c_\star\mathrm{He}_4` it is at
    :math:`m^2 = -1/(24 c c_\star)` where :math:`c c_\star < -1/24`.

    >>> import jax.numpy as jnp
    >>> for point in critical_points(lambda x: x**4, lambda x: -jnp.cos(2 * x)):
    ...     print(round(point.m, 4), point.stable)
    0.0 False
    0.866 True
    1.0 False
    """
    s, g = (
        expand_in_hermite(as_activation(each), MAX_HERMITE_ORDER)[0]
        for each in (activation, activation if target is None else target)
    )
    joint = s * g
    joint = np.where(np.abs(joint) > MIN_COEFFICIENT * np.abs(joint[1:]).max(), joint, 0.0)  # quadrature leaves rounding
    drift = polynomial.polyder(joint)
    slope = lambda m: polynomial.polyval(m, drift)
    risk = lambda m: float((s @ s + g @ g) / 2 - polynomial.polyval(m, joint))
    # sign changes on a grid; both ends are critical points of their own
    m = np.linspace(0, 1, GRID_POINTS)[1:]
    signs = np.sign(slope(m))
    found = [CriticalPoint(0.0, risk(0.0), bool(signs[0] < 0))] if drift[0] == 0 else []
    for i in np.flatnonzero(signs[1:] != signs[:-1]):
        place = brentq(slope, m[i], m[i + 1])
        found.append(CriticalPoint(place, risk(place), bool(signs[i] > 0)))
    return [*found, CriticalPoint(1.0, risk(1.0), bool(signs[-1] > 0))]


def _gaussian_average(fn: Callable) -> float:
    """Average a function over a standard normal variable."""
    return float(expand_in_hermite(FunctionActivation(fn, smooth=False), 0)[0][0])
