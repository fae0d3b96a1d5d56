"""Claims of Escaping mediocrity on the landscape of one unit, appendix H."""

from __future__ import annotations

import numpy as np

import sgdlimits as sl
from sgdlimits.papers.claim import Comparison, Effort, claim, compare
from sgdlimits.papers.mediocrity.claims.process import DRIFT_TESTS, saddle_overlaps
from sgdlimits.papers.one_step import SquaredUnits
from sgdlimits.papers.shorthand import make_overlaps

# file of the tests named by misprints
LANDSCAPE_TESTS = "in `tests/laws/test_landscape.py`"
# squared norm of the teacher away from 1, so that misplaced factors show
RHO, NOISE = 0.7, 0.3


def build_unit(rho: float = RHO) -> sl.ProjectionProblem:
    """Build phase retrieval by one unit off the sphere, with label noise 0.3 and a teacher of squared norm rho."""
    target = sl.Target(sl.CommitteeReadout("square"), noise=NOISE, gram=[[rho]])
    return sl.ProjectionProblem(target, sl.TwoLayer(1), sl.SquaredLoss(), sl.OnePassSGD(0.1))


def hessian_eigenvalues(m: float, q: float, d: int = 5, problem: sl.ProjectionProblem | None = None) -> np.ndarray:
    """Return all eigenvalues of the risk's Hessian for one unit in R^d, at overlap m and squared norm q.

    Whether the unit is restricted to the sphere depends on `problem`.
    """
    return np.repeat(*sl.hessian_spectrum(problem or build_unit(), make_overlaps([1.0], [[m]], [[q]]), d))


def make_sample() -> tuple[np.ndarray, np.ndarray, SquaredUnits]:
    """Return one unit's weights, a teacher, and both as `SquaredUnits`, on a Gauss-Hermite grid of inputs in R^3."""
    w, star = np.array([0.3, -0.8, 0.5]), np.sqrt(RHO) * np.eye(3)[0]
    return w, star, SquaredUnits(w[None], star[None])


@claim(
    "(61)", "Hessian of the loss", r"$2(3\lambda^2 - \lambda_\star^2 + \sqrt\Delta z)xx^\top$",
    right=r"$2(3\lambda^2 - \lambda_\star^2 - \sqrt\Delta z)xx^\top$",
    tests=f"`test_spectrum_is_that_of_the_dense_hessian` {LANDSCAPE_TESTS}",
)  # fmt: skip
def compare_loss_hessian(effort: Effort) -> Comparison:
    """Compare the second derivative of one sample's loss in the unit's field with equation (61) of Arnaboldi et al.

    The formula is taken both corrected and as printed.

    The derivative is computed by finite differences.
    """
    own, star, z, h = 0.7, 1.1, 0.5, 1e-3
    loss = lambda field: (star**2 + z - field**2) ** 2 / 2
    # x x^T along the field: a second derivative in one variable
    number = (loss(own + h) - 2 * loss(own) + loss(own - h)) / h**2
    return compare(number, 2 * (3 * own**2 - star**2 - z), 2 * (3 * own**2 - star**2 + z), rtol=1e-5)


@claim(
    "(63)", "risk off the sphere", r"$3\rho^2 + 3q^2 - 4m^2 - 2\rho q$, beside $\Delta/2$",
    right=r"Half of it, beside $\Delta/2$", tests=f"`test_risk_is_equation_6_of_escaping_mediocrity` {DRIFT_TESTS}",
)  # fmt: skip
def compare_risk_63(effort: Effort) -> Comparison:
    """Compare the risk of one unit of free norm, by Gauss-Hermite quadrature, with equation (63) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    w, star, s = make_sample()
    whole = 3 * RHO**2 + 3 * (w @ w) ** 2 - 4 * (w @ star) ** 2 - 2 * RHO * w @ w
    return compare(s.risk, whole / 2, whole)


@claim(
    "(64)", "moments behind the gradient", r"$\mathbb{E}[\lambda_\star^3 x] = 3 q w$",
    right=r"$\mathbb{E}[\lambda^3 x] = 3 q w$. $\mathbb{E}[\lambda_\star^2 \lambda x] = \rho w + 2 m w_\star$ is right.",
    tests=f"`test_drift_of_the_statistics_is_that_of_descent_along_the_gradient` {LANDSCAPE_TESTS}",
)  # fmt: skip
def compare_moments_64(effort: Effort) -> Comparison:
    """Compare means of cubic products of fields times the input x with equation (64) of Arnaboldi et al.

    The formula is taken both corrected and as printed.

    The means are computed by Gauss-Hermite quadrature.
    """
    w, star, s = make_sample()
    number = np.stack([s.mean(s.fixed[0] ** 2 * s.fields[0] * s.x), s.mean(s.fields[0] ** 3 * s.x)])
    mixed = RHO * w + 2 * (w @ star) * star
    return compare(number, [mixed, 3 * (w @ w) * w], [mixed, s.mean(s.fixed[0] ** 3 * s.x)])


@claim("(65), (74)", "gradient", r"$-2((\rho-3q)w + 2mw_\star)$; at random weights $4w^0$")
def compare_sample_gradient(effort: Effort) -> Comparison:
    """Compare the mean gradient of one unit's loss, by quadrature, with equations (65) and (74) of Arnaboldi et al."""
    w, star, s = make_sample()
    return compare(s.mean(-2 * s.error * s.fields[0] * s.x), -2 * ((RHO - 3 * w @ w) * w + 2 * (w @ star) * star))


@claim(
    "(66)", "moments behind the Hessian", r"$\mathbb{E}[\lambda_\star^2 x x^\top] = \rho I + w_\star w_\star^\top$",
    right=r"$\rho I + 2 w_\star w_\star^\top$, and likewise for $w$",
    tests=f"`test_moments_behind_the_hessian_carry_a_factor_two_at_rank_one_terms` {LANDSCAPE_TESTS}",
)  # fmt: skip
def compare_moments_66(effort: Effort) -> Comparison:
    """Compare the mean of x x^T times the squared teacher field, with x the input, with equation (66) of Arnaboldi et al.

    The formula is taken both corrected and as printed.

    The mean is computed by Gauss-Hermite quadrature.
    """
    _, star, s = make_sample()
    one, outer = RHO * np.eye(3), np.outer(star, star)
    return compare((s.weights * s.fixed[0] ** 2 * s.x) @ s.x.T, one + 2 * outer, one + outer)


@claim(
    "(67)", "Hessian", "Rank-one terms of the Hessian without the factor 2",
    right=r"$H = 2\big[(3q - \rho) I + 6 w w^\top - 2 w_\star w_\star^\top\big]$",
    tests=f"`test_moments_behind_the_hessian_carry_a_factor_two_at_rank_one_terms` {LANDSCAPE_TESTS}",
)  # fmt: skip
def compare_mean_hessian(effort: Effort) -> Comparison:
    """Compare the mean Hessian of one unit's loss, by Gauss-Hermite quadrature, with equation (67) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    w, star, s = make_sample()
    # factor 2 is right, 1 as printed
    form = lambda factor: 2 * ((3 * w @ w - RHO) * np.eye(3) + factor * (3 * np.outer(w, w) - np.outer(star, star)))
    return compare((s.weights * 2 * (3 * s.fields[0] ** 2 - s.fixed[0] ** 2) * s.x) @ s.x.T, form(2), form(1))


CORRECTED_EIGENVALUES_TEST = f"`test_eigenvalues_of_phase_retrieval_are_those_of_68_to_72_corrected` {LANDSCAPE_TESTS}"
"""Test of the corrected equations (68) to (72) of Arnaboldi et al."""


@claim(
    "(68)", "Hessian at zero", r"At $w = 0$: $-2\rho$ ($d - 1$ times), $-2(\rho + 1)$",
    right=r"$-2\rho$ ($d - 1$ times), $-6\rho$", tests=CORRECTED_EIGENVALUES_TEST,
)  # fmt: skip
def compare_hessian_zero(effort: Effort) -> Comparison:
    """Compare the package's Hessian eigenvalues in R^5 at zero weights with equation (68) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    rest = [-2 * RHO] * 4
    return compare(hessian_eigenvalues(0.0, 0.0), [-6 * RHO, *rest], [-2 * (RHO + 1), *rest])


@claim(
    "(69)", "risk at zero", r"Risk at $w = 0$: $\Delta/2 + 3\rho^2$", right=r"$\Delta/2 + 3\rho^2/2$, as (63) corrected has it",
    tests=CORRECTED_EIGENVALUES_TEST,
)  # fmt: skip
def compare_risk_zero(effort: Effort) -> Comparison:
    """Compare the risk at zero weights, by Gauss-Hermite quadrature, with equation (69) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    s = SquaredUnits(np.zeros((1, 2)), np.sqrt(RHO) * np.eye(1, 2), NOISE)
    return compare(s.risk, NOISE / 2 + 1.5 * RHO**2, NOISE / 2 + 3 * RHO**2)


@claim(
    "(70), (71)", "Hessian and risk at the saddle",
    r"At the saddle: $2(3 w w^\top - w_\star w_\star^\top)$, risk $\Delta/2 + 10\rho^2/3$",
    right=r"Eigenvalues $+4\rho$, $-4\rho$, and $0$ ($d - 2$ times); risk $\Delta/2 + 4\rho^2/3$",
    tests=CORRECTED_EIGENVALUES_TEST,
)  # fmt: skip
def compare_hessian_saddle(effort: Effort) -> Comparison:
    """Compare the Hessian's eigenvalues in R^5 and the risk at the saddle with equations (70) and (71) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    # at the saddle the unit is orthogonal to the teacher, with q = rho/3
    height = SquaredUnits(np.array([[0.0, np.sqrt(RHO / 3)]]), np.sqrt(RHO) * np.eye(1, 2), NOISE).risk - NOISE / 2
    right = [-4 * RHO, 0, 0, 0, 4 * RHO, 4 / 3 * RHO**2]
    return compare([*hessian_eigenvalues(0.0, RHO / 3), height], right, [-2 * RHO, 0, 0, 0, 2 * RHO, 10 / 3 * RHO**2])


@claim(
    "(72)", "Hessian at the minimum", r"At the minimum: $4(\rho I + w_\star w_\star^\top)$",
    right=r"$4(\rho I + 2 w_\star w_\star^\top)$", tests=CORRECTED_EIGENVALUES_TEST,
)  # fmt: skip
def compare_hessian_minimum(effort: Effort) -> Comparison:
    """Compare the package's Hessian eigenvalues in R^5 at the minimum with equation (72) of Arnaboldi et al.

    The formula is taken both corrected and as printed.
    """
    rest = [4 * RHO] * 4
    return compare(hessian_eigenvalues(RHO, RHO), [*rest, 12 * RHO], [*rest, 8 * RHO])


@claim(
    "(79)", "Hessian of the loss on the sphere",
    r"$(3\lambda^2 - \lambda_\star^2)(xx^\top - \lambda w x^\top) + \mathcal E\lambda^2 I$",
    right=r"$2(3\lambda^2 - \lambda_\star^2 - \sqrt\Delta z)(xx^\top - \lambda w x^\top) + 2\mathcal E\lambda^2 I$ "
    "on the tangent space",
    tests=f"`test_eigenvalues_of_phase_retrieval_on_the_sphere_are_those_of_84_and_85` {LANDSCAPE_TESTS}",
)  # fmt: skip
def compare_sphere_hessian(effort: Effort) -> Comparison:
    """Compare derivatives of one sample's loss along a great circle with equations (78) and (79) of Arnaboldi et al.

    The formula is taken both corrected and as printed.

    The derivatives are computed by finite differences.
    """
    own, across, star, z, h = 0.7, -1.4, 1.1, 0.5, 1e-3
    # a great circle keeps the norm
    loss = lambda s: (star**2 + z - (np.cos(s) * own + np.sin(s) * across) ** 2) ** 2 / 2
    error, rest = star**2 + z - own**2, 3 * own**2 - star**2
    number = [(loss(h) - loss(-h)) / (2 * h), (loss(h) - 2 * loss(0) + loss(-h)) / h**2]
    first = -2 * error * own * across
    right = 2 * (rest - z) * across**2 + 2 * error * own**2
    return compare(number, [first, right], [first, rest * across**2 + error * own**2], rtol=1e-5)


@claim(
    "(82)–(85)",
    "landscape on the sphere",
    r"Gradient $4m(mw-w_\star)$; Hessian $-4w_\star w_\star^\top$ at $m=0$, $4I$ at $m=\pm1$",
)
def compare_sphere_landscape(effort: Effort) -> Comparison:
    """Compare the slope and the Hessian's eigenvalues of the risk on the sphere with (82) to (85) of Arnaboldi et al.

    The slope is computed by finite differences.
    """
    m, h = 0.6, 1e-4
    at = lambda m: SquaredUnits(np.array([[m, np.sqrt(1 - m**2)]]), np.eye(1, 2)).risk
    slope = (at(m + h) - at(m - h)) / (2 * h)  # the gradient 4m(mw - w*) times dw/dm, whose overlap with w* is 1
    problem = sl.presets.phase_retrieval()
    number = [slope, *hessian_eigenvalues(m, 1.0, problem=problem), *hessian_eigenvalues(1.0, 1.0, problem=problem)]
    return compare(number, [-4 * m, 4 * m**2 - 4 * (1 - m**2), *[4 * m**2] * 3, *[4.0] * 4], rtol=1e-7)


@claim(
    "after (84)", "flat directions on the sphere", r"$d - 1$ eigenvalues 0 of a $d\times d$ matrix",
    right=r"$d - 2$ flat directions on the tangent space: the normal direction is one of the $d - 1$.", kind="remark",
    tests=f"`test_eigenvalues_of_phase_retrieval_on_the_sphere_are_those_of_84_and_85` {LANDSCAPE_TESTS}",
)  # fmt: skip
def compare_flat_directions(effort: Effort) -> Comparison:
    """Compare the number of zero eigenvalues of phase retrieval's Hessian on the sphere at zero overlap with d - 2.

    The paper prints d - 1.
    """
    d = 50
    index = sl.hessian_spectrum(sl.presets.phase_retrieval(), saddle_overlaps(1), d).index
    return compare(index[1], d - 2, d - 1)


@claim("appendix B", "flat directions of several units", r"$d-p-1$ flat directions for each of $p$ units")
def compare_flat_network_directions(effort: Effort) -> Comparison:
    """Compare the number of null directions per unit of phase retrieval's Hessian at the saddle with d - p - 1.

    Here d is the dimension and p the number of units.
    """
    p, d = 2, 50
    # rotations among the units add p (p - 1)/2 null directions
    index = sl.hessian_spectrum(sl.presets.phase_retrieval(p), saddle_overlaps(p), d).index
    return compare((index[1] - p * (p - 1) // 2) / p, d - p - 1)
