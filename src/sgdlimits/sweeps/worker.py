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

    They are computed together, and each alone where that fails.
    """
    todo = [unit for unit in units if not (folder.path / unit.name).exists()]
    computing = computed_together(recipe, todo) if len(todo) > 1 else iter(())
    alone = {unit.name: unit for unit in units}
    while unit := _next(folder, computing):
        del alone[unit.name]
        yield Outcome(unit, DONE, "")
    for unit in alone.values():
        yield Outcome(unit, *_attempt(recipe, folder, unit))


def _next(folder: Folder, computing: Iterator[tuple[Unit, xr.Dataset]]) -> Unit | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # runs that diverged are in the file
            unit, dataset = next(computing)
        folder.put(unit, dataset)
    except Exception:  # the end, or what each of those that are left will say
        return None
    return unit


def _attempt(recipe: Recipe, folder: Folder, unit: Unit) -> tuple[str, str]:
    try:
        if not (folder.path / unit.name).exists():
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
