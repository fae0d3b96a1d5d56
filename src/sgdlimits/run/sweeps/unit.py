"""A unit of work: some runs of one point. Its name and its seed follow from what it is, not from the sweep it is in."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import xarray as xr

from sgdlimits.run.simulate import simulate_runs, simulate_together
from sgdlimits.run.sweeps.design import Point
from sgdlimits.run.sweeps.keep import reduced
from sgdlimits.run.sweeps.recipe import Recipe, decoded, encoded

NAME = re.compile(r"([0-9a-f]{24})-(\d+)-(\d+)\.nc")
"""The names of files: a hash of all that the runs depend on, the first run, and the one after the last."""


class Unit(NamedTuple):
    """Runs by number of a point; `key` is the hash of its parameters and its seed, and `whole` what was hashed."""

    key: str
    first: int
    last: int
    point: Point
    whole: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.key}-{self.first}-{self.last}.nc"

    def to_json(self) -> str:
        point = {name: encoded(value) for name, value in self.point.items()}
        return json.dumps([self.key, self.first, self.last, point, self.whole])

    @classmethod
    def from_json(cls, text: str) -> Unit:
        key, first, last, point, whole = json.loads(text)
        return cls(key, first, last, {name: decoded(value) for name, value in point.items()}, whole)


def unit_of(recipe: Recipe, point: Point, first: int, last: int) -> Unit:
    """The unit of a point's runs.

    The seed is a hash of the problem, the algorithm, the level and the start with all their parameters, and of the sweep's
    seed: it is that of no other point, and not another one in a larger sweep.
    """
    found = recipe.arguments(point)
    model: dict[str, Any] = {"build": recipe.build}
    model |= {f"{part}_name": recipe.parts[part].make.__name__ for part in ("level", "start")}
    parts = {"problem": "problem", "rule": "optimiser", "level": "level", "start": "start"}  # by the keys that are hashed
    model |= {key: {name: encoded(value) for name, value in found[part].items()} for key, part in parts.items()}
    seed = recipe.seed if recipe.common else int(hash_of([recipe.seed, model])[:16], 16)
    how = {"t_max": found["simulate"]["t_max"], "save": encoded(recipe.save), "until": recipe.until, "keep": recipe.keep}
    whole = {**model, **how, "kernel": recipe.kernel, "seed": seed}
    return Unit(hashed(whole), first, last, point, whole)


def hashed(thing: Any) -> str:
    """24 hexadecimal digits that follow from a thing made of numbers, texts, lists and dictionaries."""
    text = json.dumps(thing, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def computed(recipe: Recipe, unit: Unit) -> xr.Dataset:
    """The dataset of a unit, with what it is in its attributes."""
    return _kept(recipe, unit, simulate_runs(**_asked(recipe, unit)))


def compute_units(recipe: Recipe, units: Sequence[Unit]) -> Iterator[tuple[Unit, xr.Dataset]]:
    """Those of units of few runs, bit by bit, as they are done: points that differ in numbers alone are one batch."""
    for index, dataset in simulate_together([_asked(recipe, unit) for unit in units]):
        yield units[index], _kept(recipe, units[index], dataset)


def _asked(recipe: Recipe, unit: Unit) -> dict[str, Any]:
    how = {"save": recipe.save, "until": recipe.until_condition, "kernel": recipe.kernel, "seed": unit.whole["seed"]}
    return {**recipe.simulation(unit.point), "numbers": range(unit.first, unit.last), **how}


def _kept(recipe: Recipe, unit: Unit, dataset: xr.Dataset) -> xr.Dataset:
    kept = reduced(dataset, recipe.keep)
    point = {name: encoded(value) for name, value in unit.point.items()}
    kept.attrs = {**kept.attrs, "unit": json.dumps(unit.whole, sort_keys=True), "point": json.dumps(point)}
    return kept
