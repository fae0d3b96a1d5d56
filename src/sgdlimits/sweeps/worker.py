"""One unit: computed, and its file written."""

from __future__ import annotations

import warnings
from functools import lru_cache

from sgdlimits.errors import BadInput
from sgdlimits.files import Unwritten
from sgdlimits.sweeps.recipe import Recipe
from sgdlimits.sweeps.store import Folder
from sgdlimits.sweeps.unit import Unit, computed

DONE, FAILED, REFUSED, UNWRITTEN = "done", "failed", "refused", "unwritten"
"""What became of a unit: its file is there; it raised an error, which may not come again; it can never be computed; its file
could not be written."""


def attempt(recipe: Recipe, folder: Folder, unit: Unit) -> tuple[str, str]:
    """Compute a unit and write its file, unless it is there: what became of it, and the error."""
    try:
        if not (folder.path / unit.name).exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # runs that diverged are in the file
                dataset = computed(recipe, unit)
            folder.put(unit, dataset)
    except Unwritten as reason:
        return UNWRITTEN, str(reason)
    except BadInput as reason:
        return REFUSED, str(reason)
    except Exception as reason:
        return FAILED, f"{type(reason).__name__}: {reason}"
    return DONE, ""


def attempt_text(recipe: str, folder: str, unit: str) -> tuple[str, str]:
    """`attempt`, told in text."""
    return attempt(_recipe(recipe), Folder(folder), Unit.from_json(unit))


@lru_cache(maxsize=4)
def _recipe(text: str) -> Recipe:
    return Recipe.from_json(text)
