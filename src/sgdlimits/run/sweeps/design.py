"""Points of a sweep in parameter space: a grid, a list, or points drawn at random."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Annotated, Any

import numpy as np

from sgdlimits.checks import mapping, memory_bounded_count
from sgdlimits.domain import Seed, checked
from sgdlimits.errors import BadInput, check_number, shorten
from sgdlimits.renamed import present_parameter_name

Point = dict[str, Any]
MAX_POINTS = 10**6
"""Maximum number of points in a sweep: each point has a file, and folders of more files are slow everywhere."""


@dataclass(frozen=True)
class Design:
    """Points of a sweep: a dictionary of parameter values for each point, and the values along each axis if it is a grid."""

    points: tuple[Point, ...]
    axes: Mapping[str, tuple] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the parameters that the sweep varies."""
        return tuple(self.points[0])

    def values(self, name: str) -> list:
        """Return the distinct values of a parameter over all points, in the order of the points."""
        return list({repr(point[name]): point[name] for point in self.points}.values())


def grid(**axes: Iterable) -> Design:
    """Return the points of a grid: all combinations of the values of parameters, for the argument `over` of `sweep`.

    >>> import sgdlimits as sl
    >>> len(sl.grid(lr=[0.05, 0.1], noise=[0.0, 0.5, 1.0]))
    6
    """
    if not axes:
        raise BadInput("a grid needs parameters. Give, for instance, lr=[0.05, 0.1].")
    values = {present_parameter_name(name): _check_axis(name, each) for name, each in axes.items()}
    check_size(math.prod(map(len, values.values())))
    return Design(tuple(dict(zip(values, point, strict=True)) for point in product(*values.values())), values)


@checked
def random_points(count: Annotated[int, memory_bounded_count(16)], *, seed: Seed = 0, **ranges: Sequence) -> Design:
    """Draw points at random: each parameter uniform between two values, or uniform in its logarithm.

    A larger `count` with the same seed begins with the points of a smaller one.

    Parameters
    ----------
    count : number of points
    seed : seed of the draw
    **ranges : (lowest, highest) or (lowest, highest, "log") for each parameter; two integers give integers

    >>> import sgdlimits as sl
    >>> points = sl.random_points(5, lr=(0.01, 1.0, "log"), noise=(0.0, 1.0), d=(100, 200)).points
    >>> len(points), all(0.01 <= point["lr"] <= 1 and isinstance(point["d"], int) for point in points)
    (5, True)
    """
    if not ranges:
        raise BadInput('random points need ranges. Give, for instance, lr=(0.01, 1.0, "log").')
    check_size(count)
    uniform = np.random.default_rng(seed).random((count, len(ranges)))  # row by row, so that a larger count adds rows
    columns = {
        present_parameter_name(name): _draw_values(name, each, uniform[:, i]) for i, (name, each) in enumerate(ranges.items())
    }
    return Design(tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)))


def design_of_points(points: Iterable[Mapping[str, Any]]) -> Design:
    """Return the design of a sweep from a list of points, after checking that all have the same parameters."""
    rows = tuple(dict(mapping("a point of over", point)) for point in islice(points, MAX_POINTS + 1))
    check_size(len(rows))
    if not rows or not rows[0]:
        raise BadInput("a sweep needs points. Give, for instance, grid(lr=[0.05, 0.1]).")
    for row in rows:
        if set(row) != set(rows[0]):
            raise BadInput(
                f"all points must have the parameters {', '.join(rows[0])}; got {shorten(row)}. Give each point all of them."
            )
    names = {name: present_parameter_name(name) for name in rows[0]}
    return Design(tuple({new: to_plain(row[name]) for name, new in names.items()} for row in rows))


def as_design(over: Any) -> Design:
    """Convert the argument `over` of `sweep` (a design, a mapping from parameters to values, or points) to a design."""
    if isinstance(over, Design):
        return over
    if isinstance(over, Mapping):
        return grid(**mapping("over", over))
    if isinstance(over, Iterable) and not isinstance(over, str):
        return design_of_points(over)
    raise BadInput(f"over must be a grid or a list of points; got {shorten(over)}. Give, for instance, grid(lr=[0.05, 0.1]).")


def check_size(points: int) -> None:
    """Raise `BadInput` if a sweep would have more than `MAX_POINTS` points."""
    if points > MAX_POINTS:
        raise BadInput(
            f"a sweep has at most {MAX_POINTS} points, each with a file; got {points:.7g}. Give fewer points, or "
            f"split them into several sweeps."
        )


def to_plain(value: Any) -> Any:
    """Convert a parameter value to hashable Python objects: NumPy scalars to numbers, lists to tuples, 1.0 to 1."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(to_plain(each) for each in value)
    # 1.0 and 1 are the same point, and must have the same text, from which its file is named.
    return int(value) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else value


def _check_axis(name: str, given: Any) -> tuple:
    """Return the values of one axis of a grid as a tuple; raise `BadInput` if there is no value or two values are equal."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise BadInput(f"{name} must be a list of values; got {shorten(given)}. Put the values in brackets.")
    if isinstance(given, range):  # len() of a range fails beyond 2^63
        check_size((given.stop - given.start) // given.step)
    check_size(len(given) if isinstance(given, Sized) else 0)
    values = tuple(to_plain(each) for each in islice(given, MAX_POINTS + 1))  # an iterator may be endless
    check_size(len(values))
    if not values:
        raise BadInput(f"{name}, a parameter of the sweep, has no values. Give at least one value.")
    if len({repr(value) for value in values}) < len(values):
        raise BadInput(f"{name}, a parameter of the sweep, has a value twice: {shorten(values)}. Give each value once.")
    return values


def _draw_values(name: str, given: Any, uniform: np.ndarray) -> list:
    """Map uniform variates in [0, 1) to the range of a parameter, linearly or on a logarithmic scale."""
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 3) or given[2:] not in ((), [], ("log",), ["log"]):
        raise BadInput(
            f'{name} must be (lowest, highest) or (lowest, highest, "log"); got {shorten(given)}. Give (0.01, 1.0), say.'
        )
    low, high = given[0], given[1]
    log = len(given) == 3
    check_number(name, low, above=0 if log else None)
    check_number(name, high, above=low)
    value = low * (high / low) ** uniform if log else low + (high - low) * uniform
    whole = isinstance(low, int) and isinstance(high, int)
    return [to_plain(round(each)) if whole else float(each) for each in value]
