"""Where units are computed: the interface, and this process."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import NamedTuple

from sgdlimits.sweeps.recipe import Recipe
from sgdlimits.sweeps.store import Folder
from sgdlimits.sweeps.unit import Unit
from sgdlimits.sweeps.worker import FAILED, attempt

RETRIES = 2
"""How often a unit is tried again."""


class Outcome(NamedTuple):
    """What became of a unit, and why it could not be computed, or nothing."""

    unit: Unit
    what: str
    error: str


class Engine(abc.ABC):
    """Where units are computed."""

    @abc.abstractmethod
    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        """Compute units, in any order, each tried again where it failed, and say what became of each."""


class Here(Engine):
    """This process."""

    def run(self, recipe: Recipe, folder: Folder, units: list[Unit]) -> Iterator[Outcome]:
        for unit in units:
            for _ in range(1 + RETRIES):
                what, error = attempt(recipe, folder, unit)
                if what != FAILED:
                    break
            yield Outcome(unit, what, error)
