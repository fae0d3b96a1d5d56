"""Forms of schedules: `Steps`, `Linear`, `Cosine`, `Power` and `Warmup`."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import ScheduleCheck, as_numbers
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, is_traced, shorten
from sgdlimits.part import is_schedule
from sgdlimits.schedule import Schedule, subtract_rounding, value_at

MAX_UNROLLED = 64
"""Maximum number of knots for which a schedule's value is selected by comparisons instead of by an index.

Every kernel (implementation of simulation steps) supports comparisons.
"""


def _as_numbers(name: str, value: Any) -> Any:
    """Convert an argument to an array of finite floats, of JAX if the argument is one, otherwise of NumPy."""
    if is_traced(value) or isinstance(value, jax.Array):
        return jnp.asarray(value, float)
    rows = value if isinstance(value, (list, tuple)) else ()
    if any(map(is_traced, rows)):
        return jnp.stack(rows)
    numbers = np.asarray(as_numbers(name, value), float)
    if not np.isfinite(numbers).all():
        raise BadInput(f"{name} must be finite; got {numbers[~np.isfinite(numbers)][0]}. Give finite numbers.")
    return numbers


def _as_span(name: str, value: Any) -> Any:
    """Convert an argument to one duration above 0."""
    numbers = _as_numbers(name, value)
    if not is_traced(numbers) and (np.ndim(numbers) or not numbers > 0):
        raise BadInput(f"{name} must be one time above 0; got {shorten(value)}. Give a number.")
    return numbers


def _check_times_and_values(form: str, times: Any, values: Any, more: int, example: str) -> None:
    """Raise `BadInput` unless the times of a schedule increase and the schedule has as many values as times, plus `more`.

    `form` and `example` are the name of the schedule and an example of it, for the message.
    """
    if np.ndim(times) != 1 or np.ndim(values) < 1:
        shapes = f"times of shape {np.shape(times)} and values of shape {np.shape(values)}"
        raise BadInput(f"{form} takes a row of times and a row of values; got {shapes}. Give {example}.")
    if len(values) != len(times) + more or not len(values):
        counts = f"{len(times)} times and {len(values)} values"
        if more:
            raise BadInput(
                f"{form} has one value more than times; got {counts}. "
                "Give the value before the first time, then one for each time."
            )
        raise BadInput(f"{form} has one value for each time, and at least one; got {counts}. Give {example}.")
    least = "above 0" if more else "at least 0"
    gaps = np.zeros(0) if is_traced(times) else np.diff(np.concatenate([[0.0 if more else -1e-300], times]))
    if not (np.isfinite(gaps).all() and np.greater(gaps, 0).all()):
        raise BadInput(f"times must be {least} and increase; got {np.asarray(times).tolist()}. Sort the times.")


RealValues = Annotated[Any, _as_numbers]
Span = Annotated[Any, _as_span]


@checked
class Steps(Schedule):
    """Piecewise constant schedule, which has the value `values[i]` from time `times[i - 1]` to `times[i]`.

    Parameters
    ----------
    times : times of the changes, increasing, in samples per dimension
    values : values, one more than times; each may be an array, such as the weights of classes

    At one of the times a step of SGD uses the new value.

    >>> lr = Steps([10.0, 20.0], [0.1, 0.05, 0.01])
    >>> [float(lr(t)) for t in (0.0, 9.999, 10.0, 25.0)]
    [0.1, 0.1, 0.05, 0.01]
    """

    times: Float[Array, " n"]
    values: Float[Array, " n+1 ..."]

    def __init__(self, times: RealValues, values: RealValues) -> None:
        self.times = _as_numbers("times", times)
        self.values = _as_numbers("values", values)
        _check_times_and_values("Steps", self.times, self.values, 1, "Steps([10.0], [0.1, 0.01])")

    @property
    def knots(self):
        """Times at which the value jumps, reduced by the rounding error of a sum of time steps."""
        return subtract_rounding(self.times, jnp if is_traced(self.times) else np)

    @property
    def shape(self):
        return np.shape(self.values)[1:]

    def __call__(self, t):
        values, passed = jnp.asarray(self.values), t >= subtract_rounding(self.times, jnp)
        if len(values) > MAX_UNROLLED:
            return values[passed.sum()]
        now = values[0]
        for i in range(1, len(values)):
            now = jnp.where(passed[i - 1], values[i], now)
        return now

    def examples(self):
        yield from () if is_traced(self.values) else np.asarray(self.values)


@checked
class Linear(Schedule):
    """Piecewise linear schedule, through `values[i]` at `times[i]`, constant before the first time and after the last.

    Parameters
    ----------
    times : increasing times in samples per dimension; the first may be 0
    values : one value for each time; each may be an array, such as the weights of classes

    >>> lr = Linear([0.0, 10.0, 30.0], [0.0, 0.2, 0.1])
    >>> [round(float(lr(t)), 3) for t in (0.0, 5.0, 20.0, 99.0)]
    [0.0, 0.1, 0.15, 0.1]
    """

    times: Float[Array, " n"]
    values: Float[Array, " n ..."]

    def __init__(self, times: RealValues, values: RealValues) -> None:
        self.times = _as_numbers("times", times)
        self.values = _as_numbers("values", values)
        _check_times_and_values("Linear", self.times, self.values, 0, "Linear([0.0, 10.0], [0.2, 0.1])")

    @property
    def knots(self):
        return self.times

    @property
    def shape(self):
        return np.shape(self.values)[1:]

    def __call__(self, t):
        times, values = jnp.asarray(self.times), jnp.asarray(self.values)
        if len(values) > MAX_UNROLLED:
            # The segment of t, or the first or last one beyond the ends, where the share is clipped to 0 or 1.
            last = jnp.clip((t >= times).sum() - 1, 0, len(times) - 2)
            share = jnp.clip((t - times[last]) / (times[last + 1] - times[last]), 0.0, 1.0)
            return values[last] + share * (values[last + 1] - values[last])
        slopes = jnp.diff(values, axis=0) / jnp.diff(times).reshape(-1, *(1 for _ in self.shape))
        now = values[0]
        for i in range(len(slopes)):
            now = jnp.where(t >= times[i], values[i] + slopes[i] * (t - times[i]), now)
        return jnp.where(t >= times[-1], values[-1], now)

    def examples(self):
        yield from () if is_traced(self.values) else np.asarray(self.values)


@checked
class Cosine(Schedule):
    r"""Cosine decay from `first` at the start to `last` at `span`, constant from then on.

    .. math:: \text{last} + (\text{first} - \text{last})\, \tfrac12\big(1 + \cos(\pi t/\text{span})\big)

    Parameters
    ----------
    first : value at the start
    last : value from `span` on
    span : duration of the change, in samples per dimension

    >>> lr = Cosine(0.1, 0.0, 50.0)
    >>> [round(float(lr(t)), 3) for t in (0.0, 25.0, 50.0, 99.0)]
    [0.1, 0.05, 0.0, 0.0]
    """

    first: Float[Array, ""]
    last: Float[Array, ""]
    span: Float[Array, ""]

    def __init__(self, first: RealValues, last: RealValues, span: Span) -> None:
        self.first = _as_numbers("first", first)
        self.last = _as_numbers("last", last)
        self.span = _as_span("span", span)

    @property
    def knots(self):
        return (jnp if is_traced(self.span) else np).ravel(self.span)

    @property
    def shape(self):
        return np.broadcast_shapes(np.shape(self.first), np.shape(self.last))

    def __call__(self, t):
        half = (1 + jnp.cos(jnp.pi * jnp.minimum(t / self.span, 1.0))) / 2
        return jnp.asarray(self.last + (self.first - self.last) * half)


@checked
class Power(Schedule):
    r"""Power-law decay in time, :math:`\text{value}\,(1 + t/\text{span})^{-\text{power}}`.

    Parameters
    ----------
    value : value at the start
    power : exponent of the decay at late times; 1 is the decay 1/t, 0 a constant
    span : time at which the decay sets in, in samples per dimension

    >>> lr = Power(0.2, 1.0, 10.0)
    >>> [round(float(lr(t)), 3) for t in (0.0, 10.0, 30.0)]
    [0.2, 0.1, 0.05]
    """

    value: Float[Array, ""]
    power: Float[Array, ""]
    span: Float[Array, ""]

    def __init__(self, value: RealValues, power: float, span: Span) -> None:
        self.value = _as_numbers("value", value)
        self.power = _as_numbers("power", power)
        self.span = _as_span("span", span)

    @property
    def shape(self):
        return np.shape(self.value)

    def __call__(self, t):
        # log1p keeps the digits of small t/span, which 1 + t/span would round.
        return jnp.asarray(self.value * jnp.exp(-self.power * jnp.log1p(t / self.span)))


@checked
class Warmup(Schedule):
    """Schedule that multiplies another one, or a number, by a factor that rises linearly from 0 to 1 over `span`.

    Parameters
    ----------
    schedule : a schedule, a JAX function of t, or a number; from `span` on the factor is 1
    span : duration of the rise, in samples per dimension

    >>> lr = Warmup(Power(0.2, 1.0, 10.0), span=10.0)
    >>> [round(float(lr(t)), 3) for t in (0.0, 5.0, 10.0, 30.0)]
    [0.0, 0.067, 0.1, 0.05]
    """

    schedule: Any
    span: Float[Array, ""]

    def __init__(self, schedule: Annotated[Any, ScheduleCheck(_as_numbers)], span: Span) -> None:
        self.schedule = schedule if is_schedule(schedule) else _as_numbers("schedule", schedule)
        self.span = _as_span("span", span)

    @property
    def knots(self):
        inside = self.schedule.knots if is_schedule(self.schedule) else np.zeros(0)
        xp = jnp if is_traced(self.span) or is_traced(inside) else np
        return xp.concatenate([xp.ravel(xp.asarray(self.span, float)), inside])

    def __call__(self, t):
        return jnp.asarray(value_at(self.schedule, t) * jnp.minimum(t / self.span, 1.0))
