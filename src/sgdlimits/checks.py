"""Validation of arguments: a check takes the name of an argument and its value, and returns the value or raises `BadInput`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from sgdlimits.errors import BadInput, check_count, check_number, check_share, is_traced, shorten
from sgdlimits.schedule import as_schedule
from sgdlimits.size import describe_excess
from sgdlimits.text import SCHEDULE_TEXT

Check = Callable[[str, Any], Any]
"""Function of an argument's name and value that returns the value to use, or raises `BadInput`."""


def number(**bounds: Any) -> Check:
    """Make a check that an argument is one finite real number in a range; the check returns it unchanged.

    `bounds` are the keyword arguments of `check_number`, such as `above=0`.
    """

    def check(name: str, value: Any) -> Any:
        check_number(name, value, **bounds)
        return value

    return check


SCHEDULE_TEXT_MODULE = "sgdlimits.schedule_text"
"""Name of the module that parses schedules from strings. It is imported late, since it imports this module itself."""


class ScheduleCheck:
    """Check of a number that may also be given as a schedule, as a schedule in a string, or as a function of time.

    Parameters
    ----------
    check : check of a number
    values : check of the schedule's values at a few times; None for `check`
    """

    def __init__(self, check: Check, values: Check | None = None) -> None:
        self.check, self.values = check, values or check

    def __call__(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and SCHEDULE_TEXT.search(value):
            value = _parse_schedule(name, value)
        schedule = as_schedule(name, value)
        if schedule is None:
            return self.check(name, value)
        for example in schedule.examples():
            self.values(name, example)
        return schedule


def _parse_schedule(name: str, value: str) -> Any:
    """Parse the string given for the argument `name` as a schedule or a number; raise `BadInput` if it is neither."""
    try:
        return import_module(SCHEDULE_TEXT_MODULE).read_schedule(value)
    except BadInput as reason:
        raise BadInput(f"{name} must be a number or a schedule; {reason}") from None


def integer(**bounds: Any) -> Check:
    """Make a check that an argument is an integer in a range; the check returns an int: 3e3 becomes 3000.

    `bounds` are the keyword arguments of `check_count`, such as `at_least=0`.
    """
    return partial(check_count, **bounds)


def memory_bounded_count(each: float = 1.0, **bounds: Any) -> Check:
    """Make a check that an argument is a number of objects which fit into the machine's memory together.

    Each object has `each` floats; `bounds` are the keyword arguments of `check_count`.
    """

    def check(name: str, value: Any) -> int:
        count = check_count(name, value, **bounds)
        if words := describe_excess(each * float(count)):
            raise BadInput(f"{name} = {count} takes at least {words}. Give a smaller number.")
        return count

    return check


def flag(name: str, value: Any) -> bool:
    """Check that an argument is True or False, and return it; other values, even 0 and 1, raise `BadInput`."""
    if not isinstance(value, (bool, np.bool_)):
        raise BadInput(f"{name} must be True or False; got {shorten(value)}. Give True or False.")
    return bool(value)


def string(name: str, value: Any) -> str:
    """Check that an argument is a string, and return it."""
    if not isinstance(value, str):
        raise BadInput(f"{name} must be a string; got {shorten(value)}. Put it in quotes.")
    return value


def function(name: str, value: Any) -> Any:
    """Check that an argument is a function or another callable, but not a class, and return it."""
    if not callable(value) or isinstance(value, type):
        raise BadInput(f"{name} must be a function; got {shorten(value)}. Give a JAX function.")
    return value


def mapping(name: str, value: Any) -> Any:
    """Check that an argument is a dictionary whose keys are strings, and return it."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadInput(
            f"{name} must be a dictionary with names as its keys; got {shorten(value)}. Give, for instance, {{'a': 1.0}}."
        )
    return value


def by_name(check: Check) -> Check:
    """Make a check that an argument is a dictionary whose keys are strings and whose values pass `check`."""

    def all_of(name: str, value: Any) -> Any:
        return {key: check(f"{name}[{key!r}]", each) for key, each in mapping(name, value).items()}

    return all_of


def path(name: str, value: Any) -> Any:
    """Check that an argument is a path of a file or folder, which need not exist, and return it."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise BadInput(f"{name} must be a path; got {shorten(value)}. Give a string or a pathlib.Path.")
    return value


def as_numbers(name: str, value: Any) -> Any:
    """Convert an argument to an array of real numbers; raise `BadInput` if it is anything else.

    Strings, complex numbers, None, and rows of different lengths are refused.
    """
    if is_traced(value):
        return value
    try:
        # Arrays of JAX stay on their device; lists become NumPy's.
        array = value if hasattr(value, "dtype") and hasattr(value, "ndim") else np.asarray(value)
        real_numbers = array.dtype.kind in "iufb" or str(array.dtype) == "bfloat16"
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{name} must be an array of numbers; got {shorten(value)}. Give rows of equal lengths.") from None
    if not real_numbers or isinstance(value, bool):
        raise BadInput(f"{name} must be real numbers; got {shorten(value)}. Give numbers, or an array of them.")
    return array


def array(*, finite: bool = True, ndim: int | None = None, at_least: float = -math.inf) -> Check:
    """Make a check that an argument is an array of real numbers, or one number; the check returns it unchanged.

    Parameters
    ----------
    finite : whether all numbers must be finite
    ndim : required number of axes; None for any
    at_least : lower bound of all numbers
    """

    def check(name: str, value: Any) -> Any:
        numbers = as_numbers(name, value)
        if ndim is not None and numbers.ndim != ndim:
            example = np.ones((2,) * ndim).tolist()
            raise BadInput(f"{name} must have {ndim} axes; got shape {tuple(numbers.shape)}. Give, for instance, {example}.")
        if is_traced(numbers) or not (finite or at_least > -math.inf):
            return value
        if not numbers.size:
            raise BadInput(f"{name} is empty. Give at least one number.")
        # The first entry that is wrong, or any entry if none is.
        worst = np.asarray(numbers).flat[int(np.argmax(~np.isfinite(numbers) | (np.asarray(numbers) < at_least)))]
        if not (math.isfinite(worst) and worst >= at_least):
            low = f" of at least {at_least:g}" if at_least > -math.inf else ""
            raise BadInput(f"{name} must be finite numbers{low}; got {worst:g}. Replace this value by a finite number{low}.")
        return value

    return check


def probabilities(name: str, value: Any) -> Any:
    """Check that an array holds probabilities along its last axis: none is negative, and their sum is 1."""
    numbers = np.asarray(as_numbers(name, value), float)
    rows = numbers.reshape(-1, numbers.shape[-1])
    wrong = ~((rows >= 0).all(1) & np.isclose(rows.sum(1), 1.0, rtol=0.0, atol=1e-9))
    if wrong.any():
        worst = rows[wrong][0].tolist()
        raise BadInput(
            f"{name} must be probabilities, at least 0, that sum to 1; got {worst}. Divide them by their "
            f"sum, once none is negative."
        )
    return value


def many(check: Check) -> Check:
    """Make a check that an argument is one number that passes `check`, or an array of such numbers."""

    def check_each(name: str, value: Any) -> Any:
        if is_traced(value) or not getattr(value, "shape", isinstance(value, (list, tuple))) or hasattr(value, "data_vars"):
            return check(name, value)
        array = as_numbers(name, value)
        if not array.size:
            raise BadInput(f"{name} is empty. Give at least one number.")
        # A check tests a range or integrality: if these three entries pass, all do.
        for worst in (np.argmin(array), np.argmax(array), np.argmax(array != np.rint(array))):
            check(name, array.flat[int(worst)])
        return value

    return check_each


def optional(check: Check) -> Check:
    """Make a check that an argument is None or passes `check`."""
    return lambda name, value: None if value is None else check(name, value)


def check_each(check: Check) -> Check:
    """Make a check that an argument is a sequence of values that pass `check`; the check returns a tuple."""

    def all_of(name: str, value: Any) -> Any:
        if isinstance(value, (str, bytes, set, frozenset, Mapping)) or not np.iterable(value):
            raise BadInput(f"{name} must be a sequence; got {shorten(value)}. Put the values in brackets.")
        return tuple(check(name, one) for one in value)

    return all_of


def instance(module: str, name: str, says: str, remedy: str) -> Check:
    """Make a check that an argument is an instance of a class, which is given by name and is not imported.

    Parameters
    ----------
    module, name : module and name of the class; before its module is imported there are no instances
    says : noun phrase for the class in the error message, such as "a Problem"
    remedy : last sentence of the error message
    """

    def check(argument: str, value: Any) -> Any:
        cls = getattr(sys.modules.get(module), name, ())  # an empty tuple of classes has no instances
        if not isinstance(value, cls):
            what = f"the class {value.__name__}" if isinstance(value, type) else f"{shorten(value)}"
            raise BadInput(f"{argument} must be {says}; got {what}. {remedy}")
        return value

    return check


def either(says: str, remedy: str, *checks: Check) -> Check:
    """Make a check that an argument passes one of several checks; the check returns the result of the first that passes.

    The error message is "NAME must be", then `says`, the value, and the sentence `remedy`.
    """

    def check(name: str, value: Any) -> Any:
        for each in checks:
            try:
                return each(name, value)
            except BadInput:
                continue
        raise BadInput(f"{name} must be {says}; got {shorten(value)}. {remedy}")

    return check


def statistics(name: str, value: Any) -> Any:
    """Check that an argument is the statistics of a problem, such as `Overlaps`, for one run or a batch of runs."""
    if (
        isinstance(value, type)
        or not (hasattr(value, "overlap") and hasattr(type(value), "dims"))
        or hasattr(value, "data_vars")
    ):
        raise BadInput(f"{name} must be statistics; got {shorten(value)}. Give, for instance, Overlaps(a, M, Q).")
    return value


def quantile_pair(name: str, value: Any) -> tuple[float, float]:
    """Check that an argument is a pair of numbers between 0 and 1, the smaller one first, and return it."""
    low, high = pair if len(pair := check_each(check_share)(name, value)) == 2 else (1.0, 0.0)
    if not low < high:
        raise BadInput(
            f"{name} must be two numbers between 0 and 1, the smaller one first; got {shorten(value)}. Give, say, (0.1, 0.9)."
        )
    return low, high


positive, not_negative, real = number(above=0), number(at_least=0), number()
problem = instance(
    "sgdlimits.problem.base", "Problem", "a Problem", "Take one from sgdlimits.presets, or build a ProjectionProblem."
)
algorithm = instance(
    "sgdlimits.algorithm.base",
    "Algorithm",
    "an algorithm such as OnePassSGD(lr=0.1)",
    "Give an instance, with its learning rate.",
)
level = instance("sgdlimits.level.base", "Level", "a level such as Chain(d=3000) or ODE()", "Give, for instance, ODE().")
dataset = instance("xarray", "Dataset", "a dataset", "Give a dataset that simulate or load returned.")

target = instance("sgdlimits.model.target", "Target", "a Target", "Give, for instance, Target(CommitteeReadout('erf'), 2).")
name_or_function = either("a name or a function", "Give, for instance, 'erf' or jnp.abs.", string, function)
"""Check of an activation, given as a function or by name; unknown names are refused when it is looked up."""
target_or_name = either("a name, a function, a Target or a problem", "Give, say, 'he3'.", name_or_function, target, problem)
expectation = either(
    "a rule such as GaussHermite(32), or an Expectation such as ClosedForm()",
    "Leave it out to choose one automatically.",
    instance("sgdlimits.expectation.gaussian.base", "Rule", "", ""),
    instance("sgdlimits.expectation.base", "Expectation", "", ""),
)
start = either(
    "RandomInit, OrthogonalInit, FixedInit or statistics",
    "Give, for instance, RandomInit(d=3000) or Overlaps(a, M, Q).",
    instance("sgdlimits.start", "Start", "", ""),
    statistics,
    dataset,
)
"""Check of the argument `start` of a simulation; of a dataset, the last states of the runs are taken."""
one_or_more_datasets = either(
    "datasets", "Give one dataset, several, or a dictionary of them.", dataset, check_each(dataset), mapping
)
axes = instance("matplotlib.axes", "Axes", "axes of matplotlib", "Leave it out for a new figure.")
learning_rate_or_schedule = ScheduleCheck(positive, not_negative)
"""Check of a learning rate: above 0, or a schedule whose values are at least 0."""
rate_or_rates_by_name = ScheduleCheck(
    either(
        "a learning rate above 0, or a dictionary of rates",
        "Give, for instance, 0.1.",
        positive,
        by_name(optional(learning_rate_or_schedule)),
    ),
    not_negative,
)
second_layer_law = instance("sgdlimits.start", "Bernoulli", "a law of random numbers", "Give Bernoulli(0.5).")
second_layer = either(
    "one number, one for each unit, a law, or numbers by name", "Give, say, 1.0.", array(), by_name(array()), second_layer_law
)
flag_or_rate = either("True, False or a learning rate above 0", "Give, for instance, 0.1.", flag, positive)
point_or_weights = either(
    "statistics, or weights (an array)",
    "Give Overlaps(a, M, Q), or an array of shape (p, d).",
    statistics,
    instance("sgdlimits.analysis.landscape", "Weights", "", ""),
    array(ndim=2),
)
any_numbers = array(finite=False)
scalars = either("numbers, or a dictionary of numbers", "Give an array.", any_numbers, by_name(any_numbers))
"""Check of a network's scalars, such as its second layer: an array, or a dict of arrays; finiteness is checked elsewhere."""
finite_scalars = either("finite numbers, or a dictionary of numbers", "Give an array.", array(), by_name(array()))
