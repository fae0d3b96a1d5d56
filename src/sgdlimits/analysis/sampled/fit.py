"""Fitted and tabulated dynamics: problems made of functions of the statistics, from estimates at many weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import qmc

from sgdlimits.analysis.sampled.estimates import StepSizeFactors, format_with_error
from sgdlimits.analysis.sampled.lift import find_weights_near
from sgdlimits.analysis.sampled.loss import UserLoss
from sgdlimits.analysis.sampled.moments import SampleMoments, moments
from sgdlimits.checks import as_numbers
from sgdlimits.errors import BadInput
from sgdlimits.problem.basis import Basis, GridSplines, Polynomials
from sgdlimits.problem.surrogate import Surrogate
from sgdlimits.text import format_table

BATCH_COUNT = 32
"""Number of batches of samples. The spread of separate fits to them gives errors, errors common to all points included."""
MIN_ERRORS_PRINTED = 4
"""Number of standard errors from which a coefficient is printed."""
MIN_FOUND_SHARE = 0.5
"""Smallest share of the points of a region for which weights with these statistics must be found."""
DYNAMICS_PARTS = ("population", "corrector", "noise", "risk")


@dataclass(frozen=True, repr=False)
class FittedDynamics:
    """Functions of the statistics that are fitted to estimates of the dynamics, as a problem.

    Parameters
    ----------
    problem : `Surrogate` with these functions, for every level and analysis that needs drift and covariance only
    points : statistics of the weights at which the dynamics was estimated, shape (P, k)
    coefficients, errors : coefficients and their standard errors for each part ("population", "corrector", "noise", "risk"),
        shape (terms, components)
    misfit : root mean square of each part's residuals, relative to their standard errors: about 1 for a good fit, 0 for a
        table
    """

    problem: Surrogate
    points: np.ndarray
    coefficients: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    misfit: dict[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the statistics."""
        return self.problem.names

    def terms(self, part: str, name: str) -> dict[str, tuple[float, float]]:
        """Return the coefficient and error of each monomial, such as "m r2", in one part of the drift of the statistic `name`.

        `part` is "population" for the population drift, or "corrector" for the term quadratic in the learning rate.
        """
        if part not in ("population", "corrector") or name not in self.names:
            raise BadInput(
                f"there are no terms for part={part!r}, name={name!r}. Give part='population' or 'corrector', and name= one of "
                f"{', '.join(self.names)}."
            )
        if not isinstance(self.problem.basis, Polynomials):
            raise BadInput("tabulated dynamics have no terms. Use fit(), whose functions are polynomials.")
        i, basis = self.names.index(name), self.problem.basis
        units = np.prod(np.asarray(basis.size) ** basis.powers, axis=1)
        numbers = (self.coefficients[part][:, i] / units, self.errors[part][:, i] / units)
        return {
            self._multiply_features(powers): (value, error) for powers, value, error in zip(basis.powers, *numbers, strict=True)
        }

    def __repr__(self) -> str:
        kind = (
            f"polynomials of degree {self.problem.basis.degree}" if isinstance(self.problem.basis, Polynomials) else "a table"
        )
        head = f"FittedDynamics: {kind} through {len(self.points)} weights"
        if not isinstance(self.problem.basis, Polynomials):
            return head
        rows = [("part", "of", "terms above four standard errors")]
        for part in DYNAMICS_PARTS[:2]:
            for name in self.names:
                shown = [
                    f"({format_with_error(value, error)}) {product}".rstrip()
                    for product, (value, error) in self.terms(part, name).items()
                    if abs(value) > MIN_ERRORS_PRINTED * error
                ]
                rows.append((part, name, " + ".join(shown) or "0"))
        left = ", ".join(f"{part} {value:.2g}" for part, value in self.misfit.items())
        return f"{head}; misfit in errors: {left}\n{format_table(rows)}"

    def _multiply_features(self, powers: np.ndarray) -> str:
        factors = [name if n == 1 else f"{name}^{n}" for name, n in zip(self.names, powers, strict=True) if n]
        return " ".join(factors)


def find_weights(user: UserLoss, drawn: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find weights with target statistics, starting from drawn weights; return the weights found and their statistics."""
    rows, found = find_weights_near(user, drawn[np.arange(len(targets)) % len(drawn)], targets)
    if found.mean() < MIN_FOUND_SHARE:
        bad = ", ".join(f"{name} = {value:.3g}" for name, value in zip(user.names, targets[np.argmin(found)], strict=True))
        raise BadInput(
            f"weights were found for only {int(found.sum())} of {len(found)} points of the region, and none at {bad}. "
            "Give a smaller region."
        )
    return rows[found], targets[found]


def sample_region(names: tuple[str, ...], region: Mapping[str, tuple[float, float]], points: int, seed: int) -> np.ndarray:
    """Return Sobol points in a region, shape (points, k), from an interval for each statistic by name."""
    _check_names("region", names, region)
    each = [np.asarray(as_numbers(f"region[{name!r}]", region[name]), float) for name in names]
    for name, interval in zip(names, each, strict=True):
        if interval.shape != (2,) or not interval[0] < interval[1] or not np.isfinite(interval).all():
            raise BadInput(f"region[{name!r}] must be two increasing numbers; got {interval.tolist()}. Give (low, high).")
    bounds = np.stack(each)
    power = max(0, int(np.ceil(np.log2(points))))
    spread = qmc.Sobol(len(names), seed=seed).random_base2(power)[:points]
    return bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * spread


def grid_points(names: tuple[str, ...], grid: Mapping[str, np.ndarray]) -> tuple[GridSplines, np.ndarray]:
    """Return splines on a grid, and the points of the grid in the order of the splines, shape (points, k)."""
    _check_names("grid", names, grid)
    axes = [np.asarray(as_numbers(f"grid[{name!r}]", grid[name]), float) for name in names]
    for name, axis in zip(names, axes, strict=True):
        if axis.ndim != 1 or axis.size < 4 or not (np.diff(axis) > 0).all():
            raise BadInput(f"grid[{name!r}] must be at least four increasing numbers; got {axis.tolist()}. Give more values.")
    points = np.stack([each.ravel() for each in np.meshgrid(*axes, indexing="ij")], axis=1)
    return GridSplines(tuple(tuple(axis.tolist()) for axis in axes)), points


def _check_names(what: str, names: tuple[str, ...], given: Mapping) -> None:
    if not isinstance(given, Mapping) or set(given) != set(names):
        raise BadInput(
            f"{what}= must be a dictionary with the keys {', '.join(names)}; got {given!r}. Give one entry per statistic."
        )


def fit_dynamics(
    user: UserLoss, scales: StepSizeFactors, basis: Basis, rows: np.ndarray, u: np.ndarray, samples: int, seed: int
) -> FittedDynamics:
    """Fit functions to the dynamics estimated at rows of weights, by least squares weighted with the standard errors.

    `basis` has the functions of the statistics, `u` the statistics of the rows.
    """
    features = np.asarray(jax.vmap(basis.features)(jnp.asarray(u)))
    if len(features) < features.shape[1]:
        raise BadInput(
            f"{features.shape[1]} terms need as many points; got {len(features)}. Give a larger points= or a lower degree=."
        )
    measured = moments(user, rows, samples, jax.random.key(seed))
    coefficients, errors, misfit = {}, {}, {}
    for part, batches in _batch_means(scales, measured).items():
        mean, error = batches.mean(0), batches.std(0, ddof=1) / np.sqrt(len(batches))
        solve = np.stack([_least_squares_matrix(features, error[:, i]) for i in range(error.shape[1])])
        of_batches = np.einsum("itp,bpi->bti", solve, batches)
        coefficients[part] = of_batches.mean(0)
        errors[part] = of_batches.std(0, ddof=1) / np.sqrt(len(batches))
        left = (mean - features @ coefficients[part]) / np.where(error > 0, error, 1.0)
        spare = len(features) / max(1, len(features) - features.shape[1])
        misfit[part] = float(np.sqrt((left**2).mean() * spare))
    low, high = u.min(0), u.max(0)
    if (low == high).any():
        raise BadInput(
            f"{user.names[int(np.argmax(low == high))]} has one value at all weights. Give a region= in which it varies."
        )
    problem = Surrogate(
        user.names, basis, coefficients["population"], coefficients["corrector"], coefficients["noise"],
        coefficients["risk"][:, 0], low, high, jnp.asarray(scales.lr),
    )  # fmt: skip
    return FittedDynamics(problem, u, coefficients, errors, misfit)


def _least_squares_matrix(features: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the matrix that maps values at the points to coefficients, by least squares weighted with the standard errors."""
    typical = np.median(error)
    weight = 1 / np.maximum(error, 0.1 * typical) if typical > 0 else np.ones_like(error)
    return np.linalg.pinv(features * weight[:, None]) * weight


def _batch_means(scales: StepSizeFactors, measured: SampleMoments) -> dict[str, np.ndarray]:
    """Return the quantities to be fitted, as means over batches of samples, each of shape (batches, P, components)."""
    increments = scales.increments(measured)
    increments = increments - increments.mean(0)
    one, other = np.triu_indices(increments.shape[-1])
    batches = np.array_split(np.arange(measured.samples), BATCH_COUNT)
    means: dict[str, list[np.ndarray]] = {part: [] for part in DYNAMICS_PARTS}
    for batch in batches:
        products = increments[batch][..., one] * increments[batch][..., other]
        means["population"].append(-scales.drift * measured.first_derivatives[batch].mean(0))
        means["corrector"].append(scales.second_order_terms / 2 * measured.second_order_terms[batch].mean(0))
        means["noise"].append(scales.time * products.mean(0))
        means["risk"].append(measured.loss[batch].mean(0)[:, None])
    return {part: np.stack(each) for part, each in means.items()}
