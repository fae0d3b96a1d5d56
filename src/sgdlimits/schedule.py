"""Interface and arithmetic of schedules, which are numbers that change with time.

A schedule may replace any number of a problem, its data, its network or its algorithm, as in `OnePassSGD(lr=Steps(...))`.
`Part.at(t)` replaces every schedule in an object by its value at time t, in samples per dimension. A level does so with its
problem before each step and at each saved time. `schedule_forms` has the schedules that users write, and `schedule_text`
parses them from strings.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import sgdlimits._x64  # noqa: F401  first: times are double precision
from sgdlimits.errors import BadInput, is_traced, shorten
from sgdlimits.part import Part, as_source, is_schedule
from sgdlimits.trial import try_function

TIME_ROUNDING = 2.0**-44
"""Relative rounding error of a time that is a sum of steps; a time closer to a knot (jump or kink) is taken for the knot."""
EXAMPLE_TIMES = (0.0, 0.01, 0.1, 1.0)
"""Times, beside the knots, at which constructors check a schedule's values; `simulate` checks all times up to the end."""
OPERATIONS: dict[str, Callable] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow")
}  # by name, so that files can store them
OPERATOR_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}
"""Signs with which arithmetic operations of schedules are printed, by operation."""


class Schedule(Part):
    """Number, or array of numbers, that changes with time; sums, products and powers of schedules are schedules.

    A subclass implements `__call__`, a pure JAX function of one time, and `knots`, the times at which it jumps or has a kink.
    """

    is_schedule: ClassVar[bool] = True
    __array_ufunc__ = None  # leaves `array * schedule` to the schedule

    @abc.abstractmethod
    def __call__(self, t: Float[Array, ""] | float) -> Float[Array, "..."]:
        """Return the value of the schedule at time t."""

    @property
    def knots(self) -> Float[Array, " knots"] | Float[np.ndarray, " knots"]:
        """Times at which the schedule jumps or has a kink, where solvers end a step.

        A schedule is continuous from the right.
        """
        return np.zeros(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the schedule's values."""
        return jax.eval_shape(self.__call__, 0.0).shape

    @property
    def ndim(self) -> int:
        """Number of axes of the schedule's values."""
        return len(self.shape)

    def shift(self, t: float) -> Schedule:
        """Return the schedule delayed by a time `t`, up to which it has its initial value.

        >>> from sgdlimits import Cosine
        >>> lr = Cosine(0.4, 0.1, 10.0).shift(5.0)
        >>> [float(lr(t)) for t in (0.0, 5.0, 10.0, 15.0)]
        [0.4, 0.4, 0.25, 0.1]
        """
        return Shifted(self, t)

    def examples(self) -> Iterator[Float[np.ndarray, "..."]]:
        """Yield values of the schedule, at a few times and its knots, for constructors to check; none if JAX traces it."""
        if not any(map(is_traced, jax.tree.leaves(self))):
            yield from self.values_at((*EXAMPLE_TIMES, *np.asarray(self.knots).tolist()))

    def values_at(self, times: Any) -> Float[np.ndarray, "times ..."]:
        """Return the values of the schedule at several times as a NumPy array."""
        with jax.ensure_compile_time_eval():  # constructors may run inside a traced function
            return np.asarray(jax.vmap(self.__call__)(jnp.asarray(times, float)))

    def __add__(self, other: Any) -> Schedule:
        return Combined("add", self, other)

    def __radd__(self, other: Any) -> Schedule:
        return Combined("add", other, self)

    def __sub__(self, other: Any) -> Schedule:
        return Combined("sub", self, other)

    def __rsub__(self, other: Any) -> Schedule:
        return Combined("sub", other, self)

    def __mul__(self, other: Any) -> Schedule:
        # A factor of one, a common default, leaves the schedule and its text as they are.
        return self if isinstance(other, (bool, int, float)) and other == 1 else Combined("mul", self, other)

    def __rmul__(self, other: Any) -> Schedule:
        return self * other

    def __truediv__(self, other: Any) -> Schedule:
        return self if isinstance(other, (bool, int, float)) and other == 1 else Combined("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Schedule:
        return Combined("truediv", other, self)

    def __pow__(self, other: Any) -> Schedule:
        return Combined("pow", self, other)

    def __neg__(self) -> Schedule:
        return Combined("mul", self, -1.0)


class Time(Schedule):
    """Schedule whose value is the time t itself, from which formulas of time are built."""

    def __call__(self, t):
        return jnp.asarray(t, float)

    def as_argument(self):
        return "t"


class FunctionOfTime(Schedule):
    """Schedule given by a user's JAX function of the time t."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, t):
        return jnp.asarray(self.fn(t), float)

    def as_argument(self):
        return as_source(self.fn)


def as_operand(value: Any) -> Any:
    """Convert the second operand of a schedule's arithmetic to a schedule or an array."""
    if is_schedule(value) or isinstance(value, jax.Array) or is_traced(value):
        return value
    return FunctionOfTime(value) if is_function(value) else np.asarray(value, float)


class Combined(Schedule):
    """Schedule that is the sum, difference, product, quotient or power of two schedules or numbers."""

    operation: str = eqx.field(static=True)
    left: Any = eqx.field(converter=as_operand)
    right: Any = eqx.field(converter=as_operand)

    def __check_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise BadInput(
                f"schedules are combined by {', '.join(OPERATIONS)}; got {self.operation!r}. Choose an "
                f"operation from this list."
            )

    def __call__(self, t):
        return jnp.asarray(OPERATIONS[self.operation](value_at(self.left, t), value_at(self.right, t)))

    @property
    def knots(self):
        return knots_of((self.left, self.right))

    def as_argument(self):
        bracketed = lambda side: f"({as_source(side)})" if isinstance(side, Combined) else as_source(side)
        return f"{bracketed(self.left)} {OPERATOR_SIGNS[self.operation]} {bracketed(self.right)}"

    def __repr__(self) -> str:
        return self.as_argument()


class Shifted(Schedule):
    """Schedule `base`, delayed by the time `by`, up to which it has its initial value."""

    base: Schedule
    by: Any = eqx.field(converter=as_operand)

    def __check_init__(self) -> None:
        if not is_traced(self.by) and (np.ndim(self.by) or not np.isfinite(self.by)):
            raise BadInput(f"the shift of a schedule must be one number; got {shorten(self.by)}. Give a number.")

    def __call__(self, t):
        return self.base(jnp.maximum(t - self.by, 0.0))

    @property
    def knots(self):
        """Knots of the delayed schedule: those of the base, later by the delay, and the time at which the base begins."""
        xp = jnp if is_traced(self.by) or is_traced(self.base.knots) else np
        delayed = self.base.knots + self.by
        # The sum may be rounded down, to a time before the change.
        late = TIME_ROUNDING / 32 * xp.maximum(abs(delayed), 1.0)
        return xp.concatenate([xp.ravel(xp.asarray(self.by, float)), delayed + late])

    def as_argument(self):
        inside = as_source(self.base)
        return f"{f'({inside})' if isinstance(self.base, Combined) else inside}.shift({as_source(self.by)})"

    def __repr__(self) -> str:
        return self.as_argument()


class Root(Schedule):
    """Square root of a schedule with values of at least 0; its slope is set to 0 where the value is 0."""

    square: Schedule

    def __call__(self, t):
        square = self.square(t)
        positive = square > 0
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), jnp.where(square < 0, jnp.nan, 0.0))

    @property
    def knots(self):
        return self.square.knots

    def as_argument(self):
        inside = as_source(self.square)
        return f"{f'({inside})' if isinstance(self.square, Combined) else inside} ** 0.5"


def is_function(value: Any) -> bool:
    """Return whether a value is callable, and not a class, an object of the package or an array: perhaps a function of time."""
    return callable(value) and not isinstance(value, (type, Part, np.ndarray, np.generic, jax.Array))


def as_schedule(name: str, value: Any) -> Schedule | None:
    """Return a value as a schedule, or None if it is neither a schedule nor a function of time.

    A user's function of time is called once on an example, so that mistakes in it raise `BadInput`.
    """
    if is_schedule(value) or not is_function(value):
        return value if is_schedule(value) else None
    schedule = FunctionOfTime(value)
    try_function(name, schedule, "a time", np.asarray(0.0), shape=None)
    return schedule


def value_at(number: Any, t: Any) -> Any:
    """Return the value of a schedule at time t; any other number is returned unchanged."""
    return number(t) if is_schedule(number) else number


def schedules_in(tree: PyTree) -> dict[tuple[str, ...], Schedule]:
    """Return the schedules in a pytree, by the names of the attributes on the path to each."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_schedule)[0]
    word = lambda key: str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))
    return {tuple(map(word, path)): leaf for path, leaf in leaves if is_schedule(leaf)}


def knots_of(tree: PyTree) -> Any:
    """Return the knots (kinks and jumps) after time 0 of all schedules in a pytree, sorted.

    The result is a JAX array if JAX traces any of the knots.
    """
    each = [leaf.knots for leaf in jax.tree.leaves(tree, is_leaf=is_schedule) if is_schedule(leaf)]
    if any(map(is_traced, each)):
        return jnp.sort(jnp.concatenate([jnp.asarray(knots, float) for knots in each]))
    known = np.unique(np.concatenate([np.zeros(0), *map(np.asarray, each)]))
    return known[known > 0]


def subtract_rounding(times: Any, xp: Any) -> Any:
    """Return times reduced by the rounding error that a sum of time steps may have, so that a jump at a knot is not missed.

    The factor is a power of two, so that NumPy and JAX agree to the last bit.
    """
    times = xp.asarray(times, float)
    return times - TIME_ROUNDING * xp.maximum(times, 1.0)
