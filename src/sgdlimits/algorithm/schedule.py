"""Learning rates that change with time."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.algorithm.base import Wrapper, of_base
from sgdlimits.checks import array
from sgdlimits.domain import NotNegative, Positive, checked
from sgdlimits.schedule import Time, value_at
from sgdlimits.statistics.trees import as_floats


@checked
class Scheduled(Wrapper):
    r"""Another algorithm, with learning rates that rise and then fall with time.

    At time t all learning rates of the base are multiplied by

    .. math:: f(t) = \min\Big(1, \frac{t}{\text{warmup}}\Big)\, \Big(1 + \frac{t}{\text{span}}\Big)^{-\text{power}} ,

    where t counts samples per dimension, at all levels. What is no learning rate, such as momentum, stays. Another schedule is
    a subclass with its own `factor`, a JAX function of t.

    Parameters
    ----------
    base : the algorithm
    power : of time by which rates fall in the end; 0 holds them
    span : the time from which on they fall
    warmup : the time over which they rise from zero; 0 begins with all of them

    Notes
    -----
    As d grows, drift and covariance at time t are those of the base at its rates of that time. The clock of the papers, `rate`,
    has the rates of the base. An analysis at one time, such as `fixed_points`, is at t = 0 unless it is given `t`.

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
    """The time of the rates: a schedule, and a number where the algorithm stands at a time."""

    uses_gram = of_base("uses_gram")
    linear = of_base("linear")

    def factor(self, t: Float[Array, ""] | float) -> Float[Array, ""]:
        """The factor of the rates at time t."""
        array(at_least=0)("t", t)
        rising = jnp.where(t < self.warmup, t / jnp.where(self.warmup > 0, self.warmup, 1.0), 1.0)
        return rising * jnp.exp(-self.power * jnp.log1p(t / self.span))

    def step(self, now):
        return self.base.at_rates(self.factor(value_at(self.time, now.t))).step(now)
