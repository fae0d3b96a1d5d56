"""Learning rates that change with time."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Wrapper, delegate_to_base
from sgdlimits.checks import array
from sgdlimits.domain import NotNegative, Positive, checked
from sgdlimits.schedule import Time, value_at
from sgdlimits.statistics.trees import as_floats


@checked
class Scheduled(Wrapper):
    r"""A wrapper with which the learning rates of another algorithm rise and then fall with time.

    At time t all learning rates of the base are multiplied by

    .. math:: f(t) = \min\Big(1, \frac{t}{\text{warmup}}\Big)\, \Big(1 + \frac{t}{\text{span}}\Big)^{-\text{power}} ,

    where t counts samples per dimension, at all levels. Other parameters, such as momentum, do not change. For another
    schedule, write a subclass with its own `factor`, a JAX function of t.

    Parameters
    ----------
    base : the algorithm whose learning rates are scheduled
    power : exponent of the decay of the rates at long times; 0 keeps them constant
    span : time at which the decay sets in
    warmup : duration of the linear rise from zero; 0 begins at the full rates

    Notes
    -----
    As d grows, drift and covariance at time t are those of the base with its rates at that time. The clock of the papers,
    `rate`, uses the rates of the base. An analysis at one time, such as `fixed_points`, is at t = 0 unless it is given `t`.

    >>> import sgdlimits as sl
    >>> algorithm = Scheduled(sl.OnePassSGD(0.1, sphere=True), power=1.0, span=20.0)
    >>> float(algorithm.factor(20.0))
    0.5
    >>> problem = sl.presets.phase_retrieval(algorithm=algorithm)
    >>> half = sl.presets.phase_retrieval(lr=0.05)
    >>> stats = sl.Overlaps([1.0], [[0.1]], [[1.0]])
    >>> bool(abs(problem.drift(stats, 20.0).M - half.drift(stats).M) < 1e-15)
    True
    """

    power: NotNegative = eqx.field(converter=as_floats, default=0.5)
    span: Positive = eqx.field(converter=as_floats, default=1.0)
    warmup: NotNegative = eqx.field(converter=as_floats, default=0.0)
    time: Any = eqx.field(init=False, default_factory=Time)
    """Time at which the factor is evaluated: a schedule, which `at(t)` replaces by a number."""

    linear = delegate_to_base("linear")

    def factor(self, t: Float[Array, ""] | float) -> Float[Array, ""]:
        """Return the factor of the learning rates at time t."""
        array(at_least=0)("t", t)
        # the divisor is replaced for warmup = 0, where the branch is not used but would give NaN derivatives
        rising = jnp.where(t < self.warmup, t / jnp.where(self.warmup > 0, self.warmup, 1.0), 1.0)
        return rising * jnp.exp(-self.power * jnp.log1p(t / self.span))  # log1p is accurate for t much smaller than span

    def step(self, now):
        return self.base.at_rates(self.factor(value_at(self.time, now.t))).step(now)
