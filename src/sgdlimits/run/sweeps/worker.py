"""Computation of work units of a sweep (some runs at one point), whose results are written to its folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from sgdlimits.errors import BadInput
from sgdlimits.files import WriteError
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit, compute_unit, compute_units

DONE, FAILED, REFUSED, NOT_WRITTEN = "done", "failed", "refused", "unwritten"
"""Statuses of a work unit: its file exists; its computation failed but may succeed in another attempt; its parameters are
invalid; its file could not be written."""


class UnitOutcome(NamedTuple):
    """Result of an attempt at a work unit: its status, such as `DONE` or `FAILED`, and the error message or ""."""

    unit: Unit
    status: str
    error: str


def attempt_units(recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[UnitOutcome]:
    """Compute the work units that have no result file, write their files, and yield the outcome of each when known.

    Several units are computed in shared batches. If that raises an error, all units not yet done are `FAILED`, since any of
    them may be the cause; the caller then tries each alone.
    """
    existing = {unit.name: unit for unit in units if (folder.path / unit.name).exists()}
    yield from (UnitOutcome(unit, DONE, "") for unit in existing.values())
    left = {unit.name: unit for unit in units if unit.name not in existing}
    todo = list(left.values())
    alone = len(left) == 1
    why = ("", "")
    computing = ((unit, compute_unit(recipe, unit)) for unit in todo) if alone else compute_units(recipe, todo)
    while left:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the file has the status of diverged runs
                unit, dataset = next(computing)
            folder.store(unit, dataset)
        except Exception as reason:
            why = _outcome_of_error(reason) if alone else (FAILED, "the unit could not be computed in a shared batch")
            break
        yield UnitOutcome(left.pop(unit.name), DONE, "")
    yield from (UnitOutcome(unit, *why) for unit in left.values())


def _outcome_of_error(reason: Exception) -> tuple[str, str]:
    """Return the status and the message for an error raised by a single work unit."""
    if isinstance(reason, BadInput):
        return NOT_WRITTEN if isinstance(reason, WriteError) else REFUSED, str(reason)
    return FAILED, f"{type(reason).__name__}: {reason}"


def attempt_units_json(recipe: str, folder: str, units: list[str]) -> Iterator[tuple[str, str, str]]:
    """Call `attempt_units` with arguments in JSON from another process; yield name, status and error of each work unit."""
    for unit, status, error in attempt_units(_parse_recipe(recipe), Folder(folder), [Unit.from_json(unit) for unit in units]):
        yield unit.name, status, error


@lru_cache(maxsize=4)
def _parse_recipe(text: str) -> Recipe:
    """Return the recipe in a JSON string; a cache lets a worker parse it once and not for each task."""
    return Recipe.from_json(text)
