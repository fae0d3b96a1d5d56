"""Schedules: numbers of a problem, its data, its network or its algorithm that change with time.

A schedule stands where a number stands, as in `OnePassSGD(lr=Steps(...))`. `Part.at(t)` replaces every schedule of a part by
its value at time t, in samples per dimension. Levels read a problem that way before each step, and whenever they look at it.
The forms that schedules have are in `schedule_forms`.
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
from sgdlimits.errors import BadInput, in_short, is_traced
from sgdlimits.part import Part, argument, is_schedule
from sgdlimits.trial import tried

ROUNDING = 2.0**-44
"""Times are sums of steps: one that is smaller than a knot by this share of it, or of 1, is at the knot."""
EXAMPLE_TIMES = (0.0, 0.01, 0.1, 1.0)
"""At which a schedule that may be anything is looked at before the end of a simulation is known."""
OPERATIONS: dict[str, Callable] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow")
}  # by name, so that files can hold them
SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}
"""How the operations are typed."""


class Schedule(Part):
    """A number, or an array of numbers, as a function of time. Its arithmetic with numbers and schedules gives schedules.

    Implement `__call__`, a pure JAX function of one time, and `knots` where it jumps or bends.
    """

    is_schedule: ClassVar[bool] = True
    __array_ufunc__ = None  # leaves `array * schedule` to the schedule

    @abc.abstractmethod
    def __call__(self, t: Float[Array, ""] | float) -> Float[Array, "..."]:
        """The value at time t."""

    @property
    def knots(self) -> Float[Array, " knots"] | Float[np.ndarray, " knots"]:
        """Times at which it is not smooth; solvers end a step there. It is continuous from the right."""
        return np.zeros(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its values."""
        return jax.eval_shape(self.__call__, 0.0).shape

    @property
    def ndim(self) -> int:
        """The number of axes of its values."""
        return len(self.shape)

    def shift(self, t: float) -> Schedule:
        """Return the same schedule later by `t`: before that time it has the value of its start.

        >>> from sgdlimits import Cosine
        >>> lr = Cosine(0.4, 0.1, 10.0).shift(5.0)
        >>> [float(lr(t)) for t in (0.0, 5.0, 10.0, 15.0)]
        [0.4, 0.4, 0.25, 0.1]
        """
        return Shifted(self, t)

    def examples(self) -> Iterator[Float[np.ndarray, "..."]]:
        """Values by which its range is checked: at the start and at each knot; none where it is traced."""
        if not any(map(is_traced, jax.tree.leaves(self))):
            yield from self.values_at((*EXAMPLE_TIMES, *np.asarray(self.knots).tolist()))

    def values_at(self, times: Any) -> Float[np.ndarray, "times ..."]:
        """The values at several times, as NumPy's array."""
        with jax.ensure_compile_time_eval():
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
        return self if isinstance(other, (bool, int, float)) and other == 1 else Combined("mul", self, other)

    def __rmul__(self, other: Any) -> Schedule:
        return self * other

    def __truediv__(self, other: Any) -> Schedule:
        return Combined("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Schedule:
        return Combined("truediv", other, self)

    def __pow__(self, other: Any) -> Schedule:
        return Combined("pow", self, other)

    def __neg__(self) -> Schedule:
        return Combined("mul", self, -1.0)


class Time(Schedule):
    """The time itself."""

    def __call__(self, t):
        return jnp.asarray(t, float)

    def as_argument(self):
        return "t"


class FunctionOfTime(Schedule):
    """A user's own JAX function of t."""

    fn: Callable = eqx.field(static=True)

    def __call__(self, t):
        return jnp.asarray(self.fn(t), float)

    def as_argument(self):
        return argument(self.fn)


def operand(value: Any) -> Any:
    """A schedule, or numbers as an array, from what stands beside a schedule in arithmetic."""
    if is_schedule(value) or isinstance(value, jax.Array) or is_traced(value):
        return value
    return FunctionOfTime(value) if is_function(value) else np.asarray(value, float)


class Combined(Schedule):
    """Two schedules, or a schedule and a number, combined by an operation."""

    operation: str = eqx.field(static=True)
    left: Any = eqx.field(converter=operand)
    right: Any = eqx.field(converter=operand)

    def __check_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise BadInput(f"schedules are combined by {', '.join(OPERATIONS)}; got {self.operation!r}. Give one of these.")

    def __call__(self, t):
        return jnp.asarray(OPERATIONS[self.operation](value_at(self.left, t), value_at(self.right, t)))

    @property
    def knots(self):
        return knots_of((self.left, self.right))

    def as_argument(self):
        typed = lambda side: f"({argument(side)})" if isinstance(side, Combined) else argument(side)
        return f"{typed(self.left)} {SIGNS[self.operation]} {typed(self.right)}"

    def __repr__(self) -> str:
        return self.as_argument()


class Shifted(Schedule):
    """A schedule later by a time."""

    base: Schedule
    by: Any = eqx.field(converter=operand)

    def __check_init__(self) -> None:
        if not is_traced(self.by) and (np.ndim(self.by) or not np.isfinite(self.by)):
            raise BadInput(f"a schedule is shifted by one time; got {in_short(self.by)}. Give a number.")

    def __call__(self, t):
        return self.base(jnp.maximum(t - self.by, 0.0))

    @property
    def knots(self):
        """Those of the base, and where it sets out."""
        xp = jnp if is_traced(self.by) or is_traced(self.base.knots) else np
        moved = self.base.knots + self.by
        late = ROUNDING / 32 * xp.maximum(abs(moved), 1.0)  # the sum may be rounded down, to before the change
        return xp.concatenate([xp.ravel(xp.asarray(self.by, float)), moved + late])

    def as_argument(self):
        inside = argument(self.base)
        return f"{f'({inside})' if isinstance(self.base, Combined) else inside}.shift({argument(self.by)})"

    def __repr__(self) -> str:
        return self.as_argument()


def is_function(value: Any) -> bool:
    """Whether a value is a function that could be one of time."""
    return callable(value) and not isinstance(value, (type, Part, np.ndarray, np.generic, jax.Array))


def as_schedule(name: str, value: Any) -> Schedule | None:
    """A schedule, or one from a user's function of time, tried; None for what is none of these."""
    if is_schedule(value) or not is_function(value):
        return value if is_schedule(value) else None
    schedule = FunctionOfTime(value)
    tried(name, schedule, "a time", np.asarray(0.0), shape=None)
    return schedule


def value_at(number: Any, t: Any) -> Any:
    """A number, or the value of a schedule at time t."""
    return number(t) if is_schedule(number) else number


def schedules_in(tree: PyTree) -> dict[tuple[str, ...], Schedule]:
    """The schedules in a tree by the names on the way to them."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_schedule)[0]
    word = lambda key: str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))
    return {tuple(map(word, path)): leaf for path, leaf in leaves if is_schedule(leaf)}


def knots_of(tree: PyTree) -> Any:
    """The knots of all schedules in a tree, those after the start in order; an array of JAX where some are traced."""
    found = [leaf.knots for leaf in jax.tree.leaves(tree, is_leaf=is_schedule) if is_schedule(leaf)]
    if any(map(is_traced, found)):
        return jnp.sort(jnp.concatenate([jnp.asarray(each, float) for each in found]))
    known = np.unique(np.concatenate([np.zeros(0), *map(np.asarray, found)]))
    return known[known > 0]


def early(times: Any, xp: Any) -> Any:
    """Times less what rounding may have taken from a sum of steps; the product is exact, so that host and device agree."""
    times = xp.asarray(times, float)
    return times - ROUNDING * xp.maximum(times, 1.0)
