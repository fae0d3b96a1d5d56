"""Schedules: numbers of a problem, its data, its network or its algorithm that change with time.

A schedule stands where a number stands, as in `OnePassSGD(lr=Steps(...))`. `Part.at(t)` replaces every schedule of a part by
its value at time t, in samples per dimension. Levels read a problem that way before each step, and whenever they look at it.
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

from sgdlimits.domain import as_numbers, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import Part, is_schedule

ROUNDING = 2.0**-44
"""Times are sums of steps: one that is smaller than a knot by this share of it, or of 1, is at the knot."""
MAX_UNROLLED = 64
"""With at most this many knots a value is chosen by comparisons, which every kernel translates; by its index otherwise."""
OPERATIONS: dict[str, Callable] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow")
}  # by name, so that files can hold them


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
    def knots(self) -> Float[np.ndarray, " knots"]:
        """Times at which it is not smooth, in order; solvers end a step there. It is continuous from the right."""
        return np.zeros(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its values."""
        return jax.eval_shape(self.__call__, 0.0).shape

    @property
    def ndim(self) -> int:
        """The number of axes of its values."""
        return len(self.shape)

    def examples(self) -> Iterator[Float[np.ndarray, "..."]]:
        """Values by which its range is checked: at the start and at each knot; none where it is traced."""
        if not any(map(is_traced, jax.tree.leaves(self))):
            with jax.ensure_compile_time_eval():
                yield from (np.asarray(self(t)) for t in (0.0, *self.knots.tolist()))

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
        if np.ndim(self.times) != 1 or np.ndim(self.values) < 1:
            shapes = f"times of shape {np.shape(self.times)} and values of shape {np.shape(self.values)}"
            raise BadInput(f"Steps takes a row of times and a row of values; got {shapes}. Give Steps([10.0], [0.1, 0.01]).")
        if len(self.values) != len(self.times) + 1:
            raise BadInput(
                f"Steps has one value more than times; got {len(self.times)} times and {len(self.values)} values. "
                "Give the value before the first time, then one for each time."
            )
        if not is_traced(self.times) and not (np.isfinite(self.times).all() and (np.diff([0.0, *self.times]) > 0).all()):
            raise BadInput(f"times must be above 0 and increase; got {np.asarray(self.times).tolist()}. Sort them.")

    @property
    def knots(self):
        """The times, each early by the rounding of the steps that lead there."""
        return np.asarray(_early(self.times, np))

    @property
    def shape(self):
        return np.shape(self.values)[1:]

    def __call__(self, t):
        values, passed = jnp.asarray(self.values), t >= _early(self.times, jnp)
        if len(values) > MAX_UNROLLED:
            return values[passed.sum()]
        now = values[0]
        for i in range(1, len(values)):
            now = jnp.where(passed[i - 1], values[i], now)
        return now

    def examples(self):
        yield from () if is_traced(self.values) else np.asarray(self.values)


class Time(Schedule):
    """The time itself."""

    def __call__(self, t):
        return jnp.asarray(t, float)


class Combined(Schedule):
    """Two schedules, or a schedule and a number, combined by an operation."""

    operation: str = eqx.field(static=True)
    left: Any
    right: Any

    def __check_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise BadInput(f"schedules are combined by {', '.join(OPERATIONS)}; got {self.operation!r}. Give one of these.")

    def __call__(self, t):
        return jnp.asarray(OPERATIONS[self.operation](value_at(self.left, t), value_at(self.right, t)))

    @property
    def knots(self):
        return knots_of((self.left, self.right))


def value_at(number: Any, t: Any) -> Any:
    """A number, or the value of a schedule at time t."""
    return number(t) if is_schedule(number) else number


def knots_of(tree: PyTree) -> Float[np.ndarray, " knots"]:
    """The knots of all schedules in a tree, in order; those whose times are traced are left out."""
    found = [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_schedule) if is_schedule(leaf)]
    known = [each.knots for each in found if not any(map(is_traced, jax.tree.leaves(each)))]
    return np.unique(np.concatenate([np.zeros(0), *known]))


def _early(times: Any, xp: Any) -> Any:
    """Times less what rounding may have taken from a sum of steps; the product is exact, so that host and device agree."""
    times = xp.asarray(times, float)
    return times - ROUNDING * xp.maximum(times, 1.0)
