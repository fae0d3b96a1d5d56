"""The forms of schedules: steps, lines, a cosine, a power of time and a warmup; and schedules as they are typed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.domain import OverTime, as_numbers, checked, real
from sgdlimits.errors import BadInput, in_short, is_traced
from sgdlimits.part import is_schedule
from sgdlimits.schedule import OPERATIONS, Schedule, Time, early, value_at

MAX_UNROLLED = 64
"""With at most this many knots a value is chosen by comparisons, which every kernel translates; by its index otherwise."""
FAR_TIME = 1e9
"""At which a schedule that never ends is looked at for the value it tends to, in samples per dimension."""


def _numbers(name: str, value: Any) -> Any:
    """An array of finite floating-point numbers, on the host unless it is one of JAX."""
    if is_traced(value) or isinstance(value, jax.Array):
        return jnp.asarray(value, float)
    rows = value if isinstance(value, (list, tuple)) else ()
    if any(map(is_traced, rows)):
        return jnp.stack(rows)
    numbers = np.asarray(as_numbers(name, value), float)
    if not np.isfinite(numbers).all():
        raise BadInput(f"{name} must be finite; got {numbers[~np.isfinite(numbers)][0]}. Give finite numbers.")
    return numbers


def _span(name: str, value: Any) -> Any:
    numbers = _numbers(name, value)
    if not is_traced(numbers) and (np.ndim(numbers) or not numbers > 0):
        raise BadInput(f"{name} must be one time above 0; got {in_short(value)}. Give a number.")
    return numbers


def _check_rows(form: str, times: Any, values: Any, more: int, example: str) -> None:
    """Raise `BadInput` unless there is a row of increasing times and a row of values with so many more entries."""
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
        raise BadInput(f"times must be {least} and increase; got {np.asarray(times).tolist()}. Sort them.")


@checked(times=_numbers, values=_numbers)
class Steps(Schedule):
    """A piecewise constant schedule: `values[i]` from `times[i - 1]` on.

    Parameters
    ----------
    times : when the value changes, increasing, in samples per dimension
    values : one more than times; each may be an array, such as the weights of classes

    A step of SGD that is made at a time of `times` has the new value already.

    >>> lr = Steps([10.0, 20.0], [0.1, 0.05, 0.01])
    >>> [float(lr(t)) for t in (0.0, 9.999, 10.0, 25.0)]
    [0.1, 0.1, 0.05, 0.01]
    """

    times: Float[Array, " n"]
    values: Float[Array, " n+1 ..."]

    def __init__(self, times, values) -> None:
        self.times, self.values = _numbers("times", times), _numbers("values", values)
        _check_rows("Steps", self.times, self.values, 1, "Steps([10.0], [0.1, 0.01])")

    @property
    def knots(self):
        """The times, each early by the rounding of the steps that lead there."""
        return early(self.times, jnp if is_traced(self.times) else np)

    @property
    def shape(self):
        return np.shape(self.values)[1:]

    def __call__(self, t):
        values, passed = jnp.asarray(self.values), t >= early(self.times, jnp)
        if len(values) > MAX_UNROLLED:
            return values[passed.sum()]
        now = values[0]
        for i in range(1, len(values)):
            now = jnp.where(passed[i - 1], values[i], now)
        return now

    def examples(self):
        yield from () if is_traced(self.values) else np.asarray(self.values)


@checked(times=_numbers, values=_numbers)
class Linear(Schedule):
    """A piecewise linear schedule, through `values[i]` at `times[i]`, constant before the first time and after the last.

    Parameters
    ----------
    times : increasing, in samples per dimension; the first may be 0
    values : one for each time; each may be an array, such as the weights of classes

    >>> lr = Linear([0.0, 10.0, 30.0], [0.0, 0.2, 0.1])
    >>> [round(float(lr(t)), 3) for t in (0.0, 5.0, 20.0, 99.0)]
    [0.0, 0.1, 0.15, 0.1]
    """

    times: Float[Array, " n"]
    values: Float[Array, " n ..."]

    def __init__(self, times, values) -> None:
        self.times, self.values = _numbers("times", times), _numbers("values", values)
        _check_rows("Linear", self.times, self.values, 0, "Linear([0.0, 10.0], [0.2, 0.1])")

    @property
    def knots(self):
        return self.times

    @property
    def shape(self):
        return np.shape(self.values)[1:]

    def __call__(self, t):
        times, values = jnp.asarray(self.times), jnp.asarray(self.values)
        if len(values) > MAX_UNROLLED:
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


@checked(first=_numbers, last=_numbers, span=_span)
class Cosine(Schedule):
    r"""Half a cosine from `first` at the start to `last` at `span`, and `last` from then on.

    .. math:: \text{last} + (\text{first} - \text{last})\, \tfrac12\big(1 + \cos(\pi t/\text{span})\big)

    Parameters
    ----------
    first : value at the start
    last : value from `span` on
    span : how long it takes, in samples per dimension

    >>> lr = Cosine(0.1, 0.0, 50.0)
    >>> [round(float(lr(t)), 3) for t in (0.0, 25.0, 50.0, 99.0)]
    [0.1, 0.05, 0.0, 0.0]
    """

    first: Float[Array, ""]
    last: Float[Array, ""]
    span: Float[Array, ""]

    def __init__(self, first, last, span) -> None:
        self.first, self.last, self.span = _numbers("first", first), _numbers("last", last), _span("span", span)

    @property
    def knots(self):
        return (jnp if is_traced(self.span) else np).ravel(self.span)

    @property
    def shape(self):
        return np.broadcast_shapes(np.shape(self.first), np.shape(self.last))

    def __call__(self, t):
        half = (1 + jnp.cos(jnp.pi * jnp.minimum(t / self.span, 1.0))) / 2
        return jnp.asarray(self.last + (self.first - self.last) * half)


@checked(value=_numbers, power=real, span=_span)
class Power(Schedule):
    r"""A power of time, :math:`\text{value}\,(1 + t/\text{span})^{-\text{power}}`.

    Parameters
    ----------
    value : value at the start
    power : how fast it falls in the end; 1 is the decay 1/t, 0 holds the value
    span : the time from which on it falls, in samples per dimension

    >>> lr = Power(0.2, 1.0, 10.0)
    >>> [round(float(lr(t)), 3) for t in (0.0, 10.0, 30.0)]
    [0.2, 0.1, 0.05]
    """

    value: Float[Array, ""]
    power: Float[Array, ""]
    span: Float[Array, ""]

    def __init__(self, value, power, span) -> None:
        self.value, self.power, self.span = _numbers("value", value), _numbers("power", power), _span("span", span)

    @property
    def shape(self):
        return np.shape(self.value)

    def __call__(self, t):
        return jnp.asarray(self.value * jnp.exp(-self.power * jnp.log1p(t / self.span)))


@checked(schedule=OverTime(_numbers), span=_span)
class Warmup(Schedule):
    """A schedule or a number, times a factor that rises from 0 to 1 over `span`.

    Parameters
    ----------
    schedule : what stands from `span` on: a schedule, a JAX function of t, or a number
    span : how long the factor rises, in samples per dimension

    >>> lr = Warmup(Power(0.2, 1.0, 10.0), span=10.0)
    >>> [round(float(lr(t)), 3) for t in (0.0, 5.0, 10.0, 30.0)]
    [0.0, 0.067, 0.1, 0.05]
    """

    schedule: Any
    span: Float[Array, ""]

    def __init__(self, schedule, span) -> None:
        self.schedule, self.span = schedule if is_schedule(schedule) else _numbers("schedule", schedule), _span("span", span)

    @property
    def knots(self):
        inside = self.schedule.knots if is_schedule(self.schedule) else np.zeros(0)
        xp = jnp if is_traced(self.span) or is_traced(inside) else np
        return xp.concatenate([xp.ravel(xp.asarray(self.span, float)), inside])

    def __call__(self, t):
        return jnp.asarray(value_at(self.schedule, t) * jnp.minimum(t / self.span, 1.0))


FORMS: dict[str, Callable[..., Schedule]] = {
    "steps": Steps, "linear": Linear, "cosine": Cosine, "power": Power, "warmup": Warmup,
}  # fmt: skip
"""What schedules are called where they are typed."""
TYPED = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Pow: "pow"}
EXAMPLE = "Write, for instance, 0.1, 1/12, cosine(0.1, 0, 50), steps([10], [0.1, 0.01]) or 0.1/(1 + t/20)"


def read_schedule(text: str) -> Schedule | float:
    """A number or a schedule from text, as on the command line and in files of sweeps; nothing in it is run.

    It is made of numbers, t, + - * / **, brackets, the forms `steps`, `linear`, `cosine`, `power`, `warmup`, and `.shift(t)`.

    >>> read_schedule("1/12 + 0.1")
    0.18333333333333335
    >>> read_schedule("warmup(cosine(0.1, 0, 50), 5)")
    Warmup(schedule=Cosine(first=0.1, last=0, span=50), span=5)
    >>> read_schedule("cosine(0.1, 0)")
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: 'cosine(0.1, 0)' is no schedule: cosine takes (first, last, span). Write, for instance, ...
    """
    try:
        found = _of_node(ast.parse(text.strip(), mode="eval").body)
        if isinstance(found, list):
            raise BadInput("it is a row of numbers")
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, TypeError, MemoryError) as reason:
        ours = isinstance(reason, BadInput)
        because = str(reason).split(". ")[0].rstrip(".") if ours else "it is not one expression"
        if isinstance(reason, ArithmeticError):
            because = "it divides by zero or is too large"
        raise BadInput(f"{in_short(text)} is no schedule: {because}. {EXAMPLE}.") from None
    return found


def _of_node(node: ast.expr) -> Any:
    """The value of an expression, of which each kind that is allowed has its line here."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id="t"):
            return Time()
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_of_node(part) for part in parts]
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            return operator.neg(_of_node(inside))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in TYPED:
            return OPERATIONS[TYPED[type(sign)]](_of_node(left), _of_node(right))
        case ast.Call(func=ast.Attribute(value=base, attr="shift"), args=[by], keywords=[]):
            schedule = _of_node(base)
            if not is_schedule(schedule):
                raise BadInput("only schedules are shifted")
            return schedule.shift(_of_node(by))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=named) if name.lower() in FORMS:
            form = FORMS[name.lower()]
            takes = [each for each in form.__annotations__ if each != "return"]
            more = {str(each.arg): _of_node(each.value) for each in named}
            if len(given) + len(more) != len(takes) or not set(more) <= set(takes[len(given) :]):
                raise BadInput(f"{name} takes ({', '.join(takes)})")
            return form(*map(_of_node, given), **more)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise BadInput(f"{name} is not known")
    raise BadInput(f"{in_short(ast.unparse(node))} cannot stand in it")
