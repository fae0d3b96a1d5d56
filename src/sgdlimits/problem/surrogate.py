"""A problem whose drift, covariance and risk are fitted functions of a few statistics."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput, is_traced
from sgdlimits.problem.base import Problem
from sgdlimits.problem.basis import Basis
from sgdlimits.problem.coordinates import Coordinates
from sgdlimits.problem.directions import Directions, InitialWeights
from sgdlimits.statistics.overlaps import Overlaps
from sgdlimits.statistics.trees import as_floats
from sgdlimits.statistics.values import Values

REGION_MARGIN = 0.1
"""Distance by which fitted functions are continued beyond their region, as a fraction of its width."""
RESERVED_NAMES = {"u", "risk", "run", "t", "step", "status", "t_end", "accuracy", "statistic"}
"""Names that datasets reserve, which statistics cannot have."""


class Surrogate(Problem):
    r"""Problem whose drift, covariance and risk are fitted functions of a few statistics u.

    The drift is :math:`\dot u = c_f\,\phi(u) + c_g\,\phi(u)`, with features :math:`\phi(u)` and coefficients :math:`c_f` of the
    population part and :math:`c_g` of the term quadratic in the learning rate (corrector).

    `SampledDynamics.fit` and `SampledDynamics.tabulate` return surrogates. Every level and analysis that needs only drift and
    covariance works: ODE, SDE, `flow`, `fixed_points`, `local_limit`, exit times. Functions are continued a tenth of the
    region's width beyond it; a run that goes farther ends as diverged.

    Parameters
    ----------
    names : names of the statistics
    basis : the features, functions of the statistics
    population, corrector : coefficients of the two parts of the drift of the k statistics, shape (terms, k)
    noise : coefficients of the covariance's upper triangle, row by row, shape (terms, k (k + 1) / 2)
    loss : coefficients of the risk, shape (terms,)
    low, high : the region in which the functions were fitted, shape (k,)
    lr : the learning rate
    """

    names: tuple[str, ...] = eqx.field(static=True)
    basis: Basis
    population: Float[Array, "terms k"] = eqx.field(converter=as_floats)
    corrector: Float[Array, "terms k"] = eqx.field(converter=as_floats)
    noise: Float[Array, "terms pairs"] = eqx.field(converter=as_floats)
    loss: Float[Array, " terms"] = eqx.field(converter=as_floats)
    low: Float[Array, " k"] = eqx.field(converter=as_floats)
    high: Float[Array, " k"] = eqx.field(converter=as_floats)
    lr: Float[Array, ""] = eqx.field(converter=as_floats, default=1.0)
    name: str = eqx.field(static=True, default="surrogate", kw_only=True)

    def features(self, stats: Values) -> Float[Array, " terms"]:
        """Evaluate the features at the statistics; NaN outside the region and its margin."""
        u = jnp.asarray(stats.u)
        margin = REGION_MARGIN * (self.high - self.low)
        inside = ((u >= self.low - margin) & (u <= self.high + margin)).all()
        return jnp.where(inside, self.basis.features(u), jnp.nan)

    def _drift_parts(self, stats: Values) -> tuple[Values, Values]:
        features = self.features(stats)
        return Values(features @ self.population), Values(features @ self.corrector)

    def _covariance(self, stats: Values) -> Float[Array, "k k"]:
        k = len(self.names)
        upper = jnp.zeros((k, k)).at[np.triu_indices(k)].set(self.features(stats) @ self.noise)
        return upper + jnp.triu(upper, 1).T

    def _risk(self, stats: Values) -> Float[Array, ""]:
        return self.features(stats) @ self.loss

    def observables(self, stats: Values) -> dict[str, Float[Array, ""]]:
        """Return the statistics by name, as variables of the dataset."""
        names = [name if name.isidentifier() else f"u_{i}" for i, name in enumerate(self.names)]
        return {f"{name}_" if name in RESERVED_NAMES else name: stats.u[i] for i, name in enumerate(names)}

    @property
    def directions(self) -> Directions:
        return Directions(len(self.names), np.eye(1), InitialWeights())

    @property
    def coordinates(self) -> SurrogateCoordinates:
        return SurrogateCoordinates(self)

    @property
    def rate(self) -> Float[Array, ""] | float:
        return self.lr

    def state(self, **values: Any) -> Values:
        """Return the statistics with values given by name, as a start or as an argument of `drift`."""
        if set(values) != set(self.names):
            raise BadInput(f"the statistics are {', '.join(self.names)}; got {', '.join(values) or 'none'}. Give each of them.")
        return Values(jnp.stack([jnp.asarray(values[name], float) for name in self.names]))


def check_values(stats: Any, names: tuple[str, ...], remedy: str, runs: bool = False) -> None:
    """Raise `BadInput` unless statistics are `Values` of the given names, of one run or, for `runs`, with the runs first."""
    if not isinstance(stats, Values) or np.ndim(stats.u) != 1 + runs or np.shape(stats.u)[-1] != len(names):
        got = f"Values of shape {np.shape(stats.u)[runs:]}" if isinstance(stats, Values) else type(stats).__name__
        raise BadInput(f"the statistics are Values of {', '.join(names)}; got {got}. {remedy}")


class SurrogateCoordinates(Coordinates):
    """Names and checks of the statistics of a `Surrogate`, which must lie in its region."""

    problem: Surrogate

    def names(self, stats):
        return self.problem.names

    def from_overlaps(self, overlaps: Overlaps) -> Values:
        """Map random overlaps to points spread over the region, since no weights define these statistics."""
        share = 0.5 + 0.5 * lax.erf(jnp.asarray(overlaps.M[..., 0] * np.sqrt((1 + len(self.problem.names)) / 2)))
        return Values(self.problem.low + (self.problem.high - self.problem.low) * share)

    def fits(self, stats):
        check_values(stats, self.problem.names, "Give problem.state(...).")
        super().fits(stats)
        self._check_region(stats.u)

    def check(self, stats):
        check_values(stats, self.problem.names, "Give problem.state(...).", runs=True)
        self._check_region(stats.u)

    def _check_region(self, u: Any) -> None:
        """Raise `BadInput` if statistics lie outside the region in which the functions were fitted, and its margin."""
        if is_traced(u) or is_traced(self.problem.low):
            return
        low, high = np.asarray(self.problem.low), np.asarray(self.problem.high)
        margin = REGION_MARGIN * (high - low)
        bad = ~((u >= low - margin) & (u <= high + margin))
        if bad.any():
            i = int(np.nonzero(bad)[-1][0])
            raise BadInput(
                f"{self.problem.names[i]} must be from {low[i]:.4g} to {high[i]:.4g}, where the functions were fitted; "
                f"got {np.asarray(u)[bad][0]:.4g}. Fit a larger region."
            )
