r"""Exponents of least squares with power laws, and the problem in which they are measured.

The eigenvalues are :math:`\lambda_j = j^{-b}` and the teacher has the squares :math:`\lambda_j w_j^2 = j^{-a}`, so that its
coefficient is :math:`w_j = j^{-(a-b)/2}`. Paquette et al. write :math:`b = 2\alpha` and :math:`a = 2\alpha + 2\beta`; Bordelon
and Mori, and Li et al., have a and b as here. The learning rate :math:`\gamma` of a step is our lr/d.
"""

from __future__ import annotations

import numpy as np

import sgdlimits as sl


def problem(spectrum: sl.spectrum.PowerLaw, a: float, algorithm: sl.Algorithm, noise: float = 0.0) -> sl.ProjectionProblem:
    """Return least squares on a power law, with a teacher for which the squares times the eigenvalues are j^-a."""
    return sl.presets.least_squares(spectrum, spectrum.source((a - spectrum.exponent) / 2), noise=noise, algorithm=algorithm)


def trace(spectrum: sl.spectrum.PowerLaw) -> float:
    """Return the sum of all eigenvalues of the inputs' covariance; for small eigenvalues SGD is stable up to lr = 2 / sum."""
    return spectrum.d * float(spectrum.eigenvalues @ np.array(spectrum.shares))


def excess_risk(problem: sl.ProjectionProblem, d: int, steps: np.ndarray, pieces: int | None = None) -> np.ndarray:
    """Return the expected risk minus the floor of the label noise, after the given numbers of steps from zero weights."""
    times = np.asarray(steps, float) / d
    level = sl.SecondMoments(d, pieces=pieces)
    data = sl.simulate(problem, level, sl.RandomInit(d), t_max=times[-1], save=times, progress=False)
    return data.risk.values[0] - float(problem.floor)


def sgd_exponent(b, a):
    r"""Return the exponent of the risk of SGD at a constant rate without label noise, in the number of steps.

    Gradient flow on the teacher gives (a-1)/b, and the noise of SGD itself 2 - 1/b; the smaller one is seen.
    """
    return np.minimum((a - 1) / b, 2 - 1 / b)


def frontier_exponent(b, a):
    r"""Return the exponent of the smallest risk at a given compute, steps times model size, for diagonal features.

    A model of size m has the first m features, and reaches its floor :math:`m^{1-a}` after :math:`m^b` steps. If the noise of
    SGD dominates before, this takes :math:`m^b\log m` steps, so that the exponent is approached logarithmically.
    """
    return (a - 1) / (1 + b)


def momentum_exponents(b, a):
    r"""Return the exponents of SGD, DANA-constant after d steps, and DANA-decaying, where the teacher dominates.

    A mode of eigenvalue :math:`\lambda` is learnt once :math:`\lambda\tau` is of order 1, with :math:`\tau = t` for SGD,
    :math:`t^2/d` for DANA-constant and :math:`t^{2-1/b}` for DANA-decaying.
    """
    return {"SGD": (a - 1) / b, "DANA-constant": 2 * (a - 1) / b, "DANA-decaying": (2 - 1 / b) * (a - 1) / b}


def schedule_exponents(b, a):
    r"""Return xi and delta of the best rates :math:`T^{-\xi}(1 - t/T)^\delta` with label noise, and the exponent of the risk.

    With the time :math:`s = \int_t^T\gamma` that is left, the noise costs :math:`\int\gamma K\,ds` with the kernel
    :math:`K(s) \sim s^{-(2-1/b)}`, at fixed :math:`T = \int ds/\gamma`: by Cauchy and Schwarz :math:`\gamma \sim K^{-1/2}`.
    """
    return 1 - b / a, 2 * b - 1, (a - 1) / a


def plateau_time(n: int, lr: float, second: float, d: float) -> float:
    r"""Return the time in which a unit on the sphere learns He_n, n = 2 or 3, with the loss -yf, from the lowest order in lr.

    The cosine h of the unit with Se obeys :math:`\dot h = n\,n!\,\text{lr}\,\sigma^{n/2} h^{n-1}(1-h^2)`, where
    :math:`\sigma`, the argument `second`, is the mean squared eigenvalue at mean eigenvalue 1. It starts at
    :math:`h = 1/\sqrt d`, and has learnt at h of order 1.
    """
    return np.log(d) / (8 * lr * second) if n == 2 else np.sqrt(d) / (18 * lr * second**1.5)
