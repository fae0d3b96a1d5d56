"""Claims of Escaping mediocrity on the noise of SGD: the covariance of one sample, and the SDE."""

from __future__ import annotations

import numpy as np

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.mediocrity.claims.process import DRIFT_TESTS, sample_units
from sgdlimits.papers.one_step import SquaredUnits, sphere_drift, step_on_sphere
from sgdlimits.papers.shorthand import make_overlaps


def increment_covariances(m: float, lr: float, noise: float) -> np.ndarray:
    """Compute Var M, Cov(M, Q) and Var Q of the one-sample changes of a unit of norm 1, by Gauss-Hermite quadrature.

    Here M is the change of the overlap m, Q that of the squared norm, and `noise` the variance of the label noise.
    """
    s = SquaredUnits(np.array([[m, np.sqrt(1 - m**2)]]), np.eye(1, 2), noise, nodes=7)  # products have degree 12
    C = s.covariance(s.M, s.Q(lr))
    return np.array([C[0, 0], C[0, 1], C[1, 1]])


def evaluate_55(m: float, g: float, D: float) -> np.ndarray:
    """Evaluate Var M, Cov(M, Q) and Var Q as printed in (55), at overlap m, learning rate g and noise variance D.

    Here M and Q are the one-sample changes of the overlap and of the squared norm.
    """
    q = 576 * g**2 * D * m**4 - 2496 * g**2 * D * m**2 - 11520 * g**2 * m**6 + 54144 * g**2 * m**4 - 73728 * g**2 * m**2
    q += 544 * g * D * m**2 - 11136 * g * m**4 + 22272 * g * m**2 + 320 * m**4 - 1600 * m**2 + 32 * g**2 * D**2
    q += 1920 * g**2 * D + 31104 * g**2 - 544 * g * D - 11136 * g + 48 * D + 1280
    c = 72 * g * D * m**3 - 72 * g * D * m - 1440 * g * m**5 + 2880 * g * m**3 - 1440 * g * m
    c = c + 24 * D * m - 480 * m**3 + 480 * m
    return np.array([8 * D * m**2 - 192 * m**4 + 144 * m**2 + 4 * D + 48, c, q])


@claim(
    "(55)", "covariance of one sample", r"$\mathrm{Var}[\mathcal{Q}_{11}]$ and $\mathrm{Cov}[\mathcal{M}_1, \mathcal{Q}_{11}]$",
    right=r"The printed ones are the true ones at $\gamma/2$: replace $\gamma$ by $2\gamma$. $\mathrm{Var}[\mathcal{M}_1]$ is "
    r"right. All hold at $q = \rho = 1$.",
    tests=f"`test_covariance_of_one_unit_is_equation_55_of_escaping_mediocrity_with_twice_its_rate` {DRIFT_TESTS}",
)  # fmt: skip
def compare_covariance_55(effort: Effort) -> Comparison:
    """Compare the covariance of one-sample changes of a unit's overlap and squared norm, by quadrature, with (55).

    The right formula is (55) at twice the learning rate.
    """
    m, lr, noise = 0.3, 0.1, 0.2
    return compare(increment_covariances(m, lr, noise), evaluate_55(m, 2 * lr, noise), evaluate_55(m, lr, noise))


@claim("(53), (54)", "covariance of two units", "The SDE of any width has the covariance of all increments")
def compare_covariance_54(effort: Effort) -> Comparison:
    """Compare the package's closed covariance of M and Q of two units with (54), averaged by quadrature.

    Here M and Q are the one-sample changes of the overlaps with the teacher and between units.
    """
    # 7 nodes: the variance of the corrector has degree 12
    s, lr = sample_units(p=2, noise=0.2, nodes=7), 0.2
    problem = sl.presets.phase_retrieval(2, lr=lr, noise=0.2, sphere=False)
    found = np.asarray(problem.covariance(make_overlaps(np.ones(2), s.W[:, :1], s.W @ s.W.T))) / (lr / 2) ** 2
    Q = s.Q(lr / 2)
    return compare(found, s.covariance(s.M, np.stack([Q[0, 0], Q[0, 1], Q[1, 1]])))


@claim("(50), (51)", "linear SDE at the saddle", r"Drift $4(1-6\gamma)-2\gamma\Delta$, noise $\frac\gamma d(48+4\Delta)$")
def compare_linear_sde(effort: Effort) -> Comparison:
    """Compare the mean and variance of one exact step near zero overlap, by quadrature, with the linear SDE (50), (51)."""
    lr, noise, m = 0.09, 0.6, 1e-4
    number = [sphere_drift(m, lr, noise) / m, increment_covariances(0.0, lr, noise)[0]]
    return compare(number, [4 * (1 - 6 * lr) - 2 * lr * noise, 48 + 4 * noise], rtol=2e-4)


@claim("(34)", "noise on the sphere", r"$\sigma_m - \frac m2\sigma_Q$")
def compare_sphere_noise(effort: Effort) -> Comparison:
    """Compare the variance of one exact step on the sphere at d = 10^6, by quadrature, with the projected noise of (34)."""
    m, lr, noise, d = 0.5, 0.1, 0.3, 1e6
    after, weights = step_on_sphere(m, lr, noise, d, nodes=16)
    # the mean is of order 1/d, and its square must be subtracted
    mean = (after - m) @ weights
    number = d**2 * ((after - m) ** 2 @ weights - mean**2) / lr**2
    one, mixed, two = increment_covariances(m, lr, noise)
    return compare(number, one - m * mixed + m**2 / 4 * two, rtol=1e-3)


@claim(
    "D.2, Itô's rule", "square of dq", r"$dq^2 = \frac\gamma d \sigma_m^2\,dt$", right=r"$dq^2 = \frac\gamma d \sigma_Q^2\,dt$",
    tests=f"`test_closed_covariance_agrees_with_isserlis` {DRIFT_TESTS}",
)  # fmt: skip
def compare_ito_variance(effort: Effort) -> Comparison:
    """Compare the variance of the change of the squared norm q in one step, by quadrature, with that of (55).

    The paper prints the variance of the change of the overlap m.
    """
    m, lr, noise = 0.3, 0.1, 0.2
    one, _, two = increment_covariances(m, lr, noise)
    return compare(two, evaluate_55(m, 2 * lr, noise)[2], one)
