"""Problems whose parameters change with time: their schedules, checks of the schedules, and the problem at one time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from sgdlimits.checks import Check, ScheduleCheck, array, many, not_negative, probabilities
from sgdlimits.domain import Checks
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.part import as_source, is_schedule
from sgdlimits.schedule import Schedule, Time

AnyPart = TypeVar("AnyPart", bound=Any)
CHECK_TIME = array(at_least=0, ndim=0)
"""Check of a time argument: one number of at least 0."""
CHECKED_TIME_COUNT = 1025
"""Number of equally spaced times at which `simulate` checks a schedule, beside its knots; a short excursion may be missed."""
SCHEDULE_NAMES = {"spread": "sigma"}
"""Names of schedules in results, by the name of the attribute that holds the schedule, where these names differ."""
VALUE_CHECKS: dict[str, Check] = {"sigma": not_negative, "weights": probabilities}
"""Checks of a schedule's values where the check of the constructor argument does not apply.

For example, mixtures store sigma, while users give a variance or an snr.
"""


def find_schedules(problem: Any) -> dict[str, Schedule]:
    """Return the schedules in a problem, by the names of the parameters that they replace.

    >>> import sgdlimits as sl
    >>> find_schedules(sl.presets.committee(2, 1, lr=sl.Cosine(0.1, 0.0, 50.0), noise=0.1))
    {'lr': Cosine(first=0.1, last=0, span=50)}
    """
    return {name: schedule for name, schedule, _ in _scheduled_parameters(problem)}


def evaluate_schedule(schedule: Schedule, times: Any) -> np.ndarray:
    """Return the values of a schedule at several times, with times on the first axis."""
    return schedule.values_at(np.asarray(times, float))


def check_schedules(problem: Any, t_max: float) -> None:
    """Raise `BadInput` if the values of a problem's schedules are not valid at all times from 0 to `t_max`."""
    for name, schedule, check in _scheduled_parameters(problem):
        if any(map(is_traced, jax.tree.leaves(schedule))):  # its values are not known
            continue
        times = _times_to_check(schedule, t_max)
        values = evaluate_schedule(schedule, times)
        try:
            check(name, values)
        except BadInput:
            _raise_at_first_time(name, check, times, values)


def evaluate_at_time_if_needed(problem: AnyPart, t: Any, remedy: str = "Give t, in samples per dimension.") -> AnyPart:
    """Return a problem with its schedules replaced by their values at time t.

    The time t may be None only if no parameter changes with time; otherwise `BadInput` says `remedy`.
    """
    if t is not None:
        return problem.at(CHECK_TIME("t", t))
    for name, schedule in find_schedules(problem).items():
        raise BadInput(f"{name} changes with time, as {as_source(schedule)}, and so does this result. {remedy}")
    return problem


def _scheduled_parameters(problem: Any) -> Iterator[tuple[str, Schedule, Check]]:
    """Yield the name, the schedule and the check of its values, for each parameter of a problem that changes with time.

    The name is that of the attribute, with the names of its owners in front if another schedule has the same name.
    """
    taken: set[str] = set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(problem, is_leaf=is_schedule)[0]:
        if not is_schedule(leaf) or isinstance(leaf, Time):  # a bare time is the clock of an algorithm, such as an average
            continue
        words = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
        last = max(i for i, key in enumerate(path) if isinstance(key, jax.tree_util.GetAttrKey))
        name = "_".join([SCHEDULE_NAMES.get(words[last], words[last]), *words[last + 1 :]])
        while name in taken and last > 0:  # the name of the owner in front tells equal names apart
            last -= 1
            name = f"{words[last]}_{name}"
        taken.add(name)
        yield name, leaf, _schedule_value_check(problem, path, words, name)


def _schedule_value_check(problem: Any, path: tuple, words: list[str], name: str) -> Check:
    """Return the check of the values of a schedule: that of the constructor argument for which the schedule was given.

    If the argument has no check, values must be finite.
    """
    owner, attribute = problem, next(word for word, key in zip(words[::-1], path[::-1], strict=True) if hasattr(key, "name"))
    for key in path[: words.index(attribute)]:
        owner = getattr(owner, key.name) if hasattr(key, "name") else owner[getattr(key, "key", getattr(key, "idx", None))]
    if name in VALUE_CHECKS:
        return VALUE_CHECKS[name]
    found = Checks(type(owner).__init__, type(owner)).get(attribute)
    return many(found.values) if isinstance(found, ScheduleCheck) else array()


def _times_to_check(schedule: Schedule, t_max: float) -> np.ndarray:
    """Return the times at which a schedule is checked: equally spaced ones, its knots, and the middles between knots."""
    knots = np.asarray(schedule.knots, float)
    knots = np.unique(knots[(knots > 0) & (knots < t_max)])
    ends = np.concatenate([[0.0], knots, [t_max]])
    return np.unique(np.concatenate([np.linspace(0.0, t_max, CHECKED_TIME_COUNT), knots, (ends[1:] + ends[:-1]) / 2]))


def _raise_at_first_time(name: str, check: Check, times: np.ndarray, values: np.ndarray) -> None:
    """Raise `BadInput` for the first time at which the value of a schedule fails a check."""
    for t, value in zip(times, values, strict=True):
        try:
            check(name, value)
        except BadInput as reason:
            raise BadInput(f"at t = {t:.4g} the schedule of {name} leaves its domain: {reason}") from None
