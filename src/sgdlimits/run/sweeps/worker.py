"""Some units: computed, and their files written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from sgdlimits.errors import BadInput
from sgdlimits.files import WriteError
from sgdlimits.run.sweeps.recipe import Recipe
from sgdlimits.run.sweeps.store import Folder
from sgdlimits.run.sweeps.unit import Unit, computed, compute_units

DONE, FAILED, REFUSED, UNWRITTEN = "done", "failed", "refused", "unwritten"
"""What became of a unit: its file is there; it raised an error, which may not come again; it can never be computed; its file
could not be written."""


class Outcome(NamedTuple):
    """What became of a unit, and why it could not be computed, or nothing."""

    unit: Unit
    what: str
    error: str


def attempts(recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
    """Compute units and write their files, unless they are there: what became of each, when it is done.

    Several are computed together. Where that fails, all that are left have failed, and each is to be tried alone.
    """
    there = {unit.name: unit for unit in units if (folder.path / unit.name).exists()}
    yield from (Outcome(unit, DONE, "") for unit in there.values())
    left = {unit.name: unit for unit in units if unit.name not in there}
    todo, alone, why = list(left.values()), len(left) == 1, ("", "")
    computing = ((unit, compute_unit(recipe, unit)) for unit in todo) if alone else compute_units(recipe, todo)
    while left:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # runs that diverged are in the file
                unit, dataset = next(computing)
            folder.put(unit, dataset)
        except Exception as reason:
            why = _why(reason) if alone else (FAILED, "it could not be computed with others")
            break
        yield Outcome(left.pop(unit.name), DONE, "")
    yield from (Outcome(unit, *why) for unit in left.values())


def _why(reason: Exception) -> tuple[str, str]:
    if isinstance(reason, BadInput):
        return UNWRITTEN if isinstance(reason, WriteError) else REFUSED, str(reason)
    return FAILED, f"{type(reason).__name__}: {reason}"


def attempts_text(recipe: str, folder: str, units: list[str]) -> Iterator[tuple[str, str, str]]:
    """`attempts`, told in text and by the names of units."""
    for unit, what, error in attempts(_recipe(recipe), Folder(folder), [Unit.from_json(unit) for unit in units]):
        yield unit.name, what, error


@lru_cache(maxsize=4)
def _recipe(text: str) -> Recipe:
    return Recipe.from_json(text)
