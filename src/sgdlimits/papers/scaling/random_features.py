r"""Random features of a power law, by their deterministic equivalent: Paquette et al. [21]_.

The inputs have the variances :math:`\lambda_j = j^{-2\alpha}`, j = 1, ..., v, the target is :math:`\sum_j j^{-\beta}x_j`, and
the d features are :math:`W^\top x` with Gaussian W of variance 1/d. SGD on them is least squares with the covariance
:math:`K = W^\top HW`, where H has the variances of the inputs, and the part of the target out of reach is label noise.

With :math:`g(z) = \frac1d\operatorname{tr}(K - z)^{-1}` and :math:`u = -1/g`, the equation of the deterministic equivalent is
explicit in u, and so is the Stieltjes transform of the target's part along the eigenvectors of K:

.. math::
    z(u) = u + \frac ud\sum_j\frac{\lambda_j}{u - \lambda_j}, \qquad
    T(z) = -\frac uz\sum_j\frac{\lambda_jj^{-2\beta}}{u - \lambda_j} .

The real line of z is the curve :math:`\sum_j\lambda_j^2/|u-\lambda_j|^2 = d` of u, above the axis or on it. The masses of bins
are integrals of g and T over paths in u between two of its points, so that no density is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float

import sgdlimits as sl
from sgdlimits.errors import BadInput

PATH_POINTS = 32
"""Number of Gauss-Legendre points on each of the three lines of a path; the trace is then correct to 1e-11, up to d = 1e5."""
BISECTIONS = 100
"""Number of bisections for the height of the curve; more than double precision resolves, from any first interval."""
MIN_COUNT = 1e-8
"""Number of eigenvalues below which a bin is empty."""


@dataclass(frozen=True)
class RandomFeatures:
    r"""Binned eigenvalues of the covariance of d random features, and the parts of the target along them and out of reach.

    Parameters
    ----------
    d : number of features
    eigenvalues : mean eigenvalue of each bin
    counts : number of eigenvalues in each bin, not an integer in general; they sum to d
    target : variance of the target along the eigenvectors of each bin, :math:`\sum_is_i\theta_{*,i}^2`
    unreachable : variance of the target outside the span of the features
    """

    d: int
    eigenvalues: Float[np.ndarray, " bins"]
    counts: Float[np.ndarray, " bins"]
    target: Float[np.ndarray, " bins"]
    unreachable: float

    def problem(self, gamma: float) -> sl.ProjectionProblem:
        """Return least squares on the features with steps of size gamma; its risk is half the loss of Paquette et al."""
        return sl.presets.least_squares(
            sl.spectrum.Spectrum(self.eigenvalues, self.counts / self.counts.sum()),
            np.sqrt(self.target / self.eigenvalues),
            lr=gamma * self.d,
            noise=self.unreachable,
        )


def random_features(d: int, v: int, alpha: float, beta: float, blocks: int = 256, bins_per_fold: float = 10) -> RandomFeatures:
    r"""Bin the spectrum of d random features of v inputs, and the target, by the deterministic equivalent.

    Parameters
    ----------
    d : number of features
    v : number of inputs, more than d
    alpha, beta : exponents of the inputs, of variance :math:`j^{-2\alpha}`, and of the target's coefficients
    blocks : largest number of nodes into which the v variances are binned for sums over inputs
    bins_per_fold : number of bins of the result while the rank grows by the factor e; at the top each rank has its bin
    """
    if not 1 <= d < v:
        raise BadInput(f"v must be above d, the number of features; got v={v}, d={d}. Give more inputs.")
    inputs = sl.spectrum.power_law(v, 2 * alpha, blocks)
    sums = _Sums(d, np.array(inputs.eigenvalues), v * np.array(inputs.shares), np.array(inputs.source(beta)) ** 2)
    ends = _ends_of_bins(sums, d, alpha, bins_per_fold)
    heights = sums.heights(ends)
    counts, moments, target = (np.array(each) for each in zip(*map(sums.integrate, *_pairs(ends, heights)), strict=True))
    filled = d * counts > MIN_COUNT
    return RandomFeatures(
        d, (moments / np.where(filled, counts, 1))[filled], d * counts[filled], target[filled], sums.unreachable()
    )


@dataclass(frozen=True)
class _Sums:
    """Sums over the inputs, binned into variances with counts, and the squared coefficients of the target in each bin."""

    d: int
    variances: Float[np.ndarray, " n"]
    counts: Float[np.ndarray, " n"]
    squares: Float[np.ndarray, " n"]

    def excess(self, u: Complex[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """Return the sum that is 1 on the curve of u, smaller above it, minus 1."""
        return self.counts / self.d @ (self.variances[:, None] / np.abs(u - self.variances[:, None])) ** 2 - 1

    def heights(self, s: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """Return the imaginary part of the curve at the real parts s, 0 where no eigenvalue is."""
        low, high = np.zeros_like(s), np.full_like(s, 2 * np.sqrt(self.counts @ self.variances**2 / self.d))
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.excess(s + 1j * middle) > 0
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.where(high < 1e-12 * np.abs(s), 0.0, high)

    def lower_edge(self) -> float:
        """Return the negative u of the smallest eigenvalue."""
        low, high = -self.variances[0] * np.sqrt(self.counts.sum() / self.d), 0.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.excess(np.array([middle + 0j]))[0] > 0 else (middle, high)
        return high

    def unreachable(self) -> float:
        """Return the variance of the target outside the span, minus the residue of T at z = 0."""
        low, high = np.log(1e-12 * self.variances[-1]), np.log(self.counts @ self.variances / self.d)
        for _ in range(BISECTIONS):  # u = -1/kappa at z = 0, where d modes are resolved
            u = np.exp((low + high) / 2)
            resolved = self.counts @ (self.variances / (u + self.variances))
            low, high = ((low + high) / 2, high) if resolved > self.d else (low, (low + high) / 2)
        return float(self.squares @ (self.variances * u / (u + self.variances)))

    def integrate(self, start: complex, end: complex) -> tuple[float, float, float]:
        """Return the share of eigenvalues, their first moment and the target's part between two points of the curve."""
        height = max(start.imag, end.imag) + abs(end.real - start.real)
        corners = [start.real + 1j * height, end.real + 1j * height]
        nodes, weights = np.polynomial.legendre.leggauss(PATH_POINTS)
        nodes, weights = (1 + nodes) / 2, weights / 2
        # points are dense at both ends, which may be near a pole
        lines = [(start, corners[0] - start), (corners[0], corners[1] - corners[0]), (end, corners[1] - end)]
        shares = [nodes**3, nodes, nodes**3]
        lengths = [3 * nodes**2 * weights, weights, -3 * nodes**2 * weights]  # the last line is walked downwards
        u = np.concatenate([origin + step * share for (origin, step), share in zip(lines, shares, strict=True)])
        du = np.concatenate([step * length for (_, step), length in zip(lines, lengths, strict=True)])
        ratio = self.variances[:, None] / (u - self.variances[:, None])
        z = u * (1 + self.counts / self.d @ ratio)
        dz = (1 - self.counts / self.d @ ratio**2) * du
        transforms = -1 / u, -z / u, -u / z * (self.squares @ ratio)
        share, moment, target = (float((each * dz).sum().imag / np.pi) for each in transforms)
        return share, moment, target


def _ends_of_bins(sums: _Sums, d: int, alpha: float, bins_per_fold: float) -> Float[np.ndarray, " ends"]:
    """Return the real parts of u between bins: between ranks, geometric in the rank, and linear at the smallest eigenvalues."""
    ranks = [1.5]
    while ranks[-1] < d:
        ranks.append(ranks[-1] + max(1.0, round(ranks[-1] / bins_per_fold)))
    top = 2 * (sums.variances[0] + np.sqrt(sums.counts @ sums.variances**2 / d))  # far from all eigenvalues
    inner = np.array(ranks) ** (-2 * alpha)
    bottom = np.linspace(inner[-1], sums.lower_edge(), int(2 * bins_per_fold) + 1)[1:]
    return np.concatenate([[top], inner, bottom])[::-1]


def _pairs(ends: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    curve = ends + 1j * heights
    return curve[:-1], curve[1:]


def loss_terms(alpha: float, beta: float) -> dict[str, tuple[float, float]]:
    r"""Return the exponents (p, q) of the terms :math:`d^{-p}r^{-q}` of the loss after r steps, for :math:`2\alpha > 1`.

    The teacher's modes, the distortion of the features (for :math:`2\beta > 1`), the noise of SGD, and the floor.
    """
    terms = {
        "teacher": (0.0, (2 * alpha + 2 * beta - 1) / (2 * alpha)),
        "distortion": (1.0, 1 - 1 / (2 * alpha)),
        "noise of SGD": (0.0, 2 - 1 / (2 * alpha)),
        "floor": (2 * alpha - max(0.0, 1 - 2 * beta), 0.0),
    }
    return terms if 2 * beta > 1 else {name: each for name, each in terms.items() if name != "distortion"}


def frontier_exponents(alpha: float, beta: float) -> tuple[str, float, float]:
    r"""Return the phase of Paquette et al., and the exponents of the best loss and model size in the compute.

    The compute is d times the number of steps, and :math:`2\alpha > 1`. The best model stops where the teacher's modes meet the
    floor (phase I) or the distortion (phase II), or where the noise of SGD meets the distortion (phase III).
    """
    if 2 * beta < 1:
        return "I", (2 * alpha + 2 * beta - 1) / (2 * alpha + 1), 1 / (2 * alpha + 1)
    if beta < alpha:
        return "II", (2 * alpha + 2 * beta - 1) / (2 * (alpha + beta)), beta / (alpha + beta)
    return "III", 1 - 1 / (4 * alpha), 0.5
