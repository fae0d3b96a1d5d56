"""Some units: computed, and their files written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import xarray as xr

from sgdlimits.errors import BadInput
from sgdlimits.files import Unwritten
from sgdlimits.sweeps.recipe import Recipe
from sgdlimits.sweeps.store import Folder
from sgdlimits.sweeps.unit import Unit, computed, computed_together

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
    if len(left) == 1:
        yield from (Outcome(unit, *_attempt(recipe, folder, unit)) for unit in left.values())
        return
    computing = computed_together(recipe, list(left.values()))
    while left and (unit := _next(folder, computing)):
        yield Outcome(left.pop(unit.name), DONE, "")
    yield from (Outcome(unit, FAILED, "it could not be computed with others") for unit in left.values())


def _next(folder: Folder, computing: Iterator[tuple[Unit, xr.Dataset]]) -> Unit | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # runs that diverged are in the file
            unit, dataset = next(computing)
        folder.put(unit, dataset)
    except Exception:  # which the one who is to blame will raise again, alone
        return None
    return unit


def _attempt(recipe: Recipe, folder: Folder, unit: Unit) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = computed(recipe, unit)
        folder.put(unit, dataset)
    except Unwritten as reason:
        return UNWRITTEN, str(reason)
    except BadInput as reason:
        return REFUSED, str(reason)
    except Exception as reason:
        return FAILED, f"{type(reason).__name__}: {reason}"
    return DONE, ""


def attempts_text(recipe: str, folder: str, units: list[str]) -> Iterator[tuple[str, str, str]]:
    """`attempts`, told in text and by the names of units."""
    for unit, what, error in attempts(_recipe(recipe), Folder(folder), [Unit.from_json(unit) for unit in units]):
        yield unit.name, what, error


@lru_cache(maxsize=4)
def _recipe(text: str) -> Recipe:
    return Recipe.from_json(text)
