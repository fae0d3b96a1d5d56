"""Work units of a sweep: some runs at one point. A unit's name and seed depend on its parameters, not on the sweep."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import xarray as xr

from sgdlimits.run.simulate import simulate_batched, simulate_runs
from sgdlimits.run.sweeps.design import Point
from sgdlimits.run.sweeps.keep import reduce_dataset
from sgdlimits.run.sweeps.recipe import Recipe, decode_value, encode_value

FILE_NAME = re.compile(r"([0-9a-f]{24})-(\d+)-(\d+)\.nc")
"""Pattern of result file names: a hash of all that the runs depend on, the first run, and one after the last."""


class Unit(NamedTuple):
    """Work unit of a sweep: the runs `first` to `last` (exclusive) at one point.

    `point` has the parameters that the sweep varies, `whole` everything on which the results depend, and `key` is the hash of
    `whole`.
    """

    key: str
    first: int
    last: int
    point: Point
    whole: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the work unit's result file."""
        return f"{self.key}-{self.first}-{self.last}.nc"

    def to_json(self) -> str:
        """Return the work unit as a JSON string, to send it to another process."""
        point = {name: encode_value(value) for name, value in self.point.items()}
        return json.dumps([self.key, self.first, self.last, point, self.whole])

    @classmethod
    def from_json(cls, text: str) -> Unit:
        """Return the work unit from the JSON string that `to_json` returned."""
        key, first, last, point, whole = json.loads(text)
        return cls(key, first, last, {name: decode_value(value) for name, value in point.items()}, whole)


def make_unit(recipe: Recipe, point: Point, first: int, last: int) -> Unit:
    """Return the work unit of the runs `first` to `last` at a point of a sweep, with its key and its seed.

    The seed is a hash of the problem, the algorithm, the level and the start with all their parameters, and of the sweep's
    seed, unless the sweep has common random numbers. Different points therefore have independent random numbers, and a point
    has the same ones in every sweep that contains it.
    """
    found = recipe.arguments(point)
    model: dict[str, Any] = {"build": recipe.build}
    model |= {f"{part}_name": recipe.constructors[part].make.__name__ for part in ("level", "start")}
    # These keys are hashed: "rule", the old name of optimisers, stays, so that sweeps of earlier versions find their files.
    parts = {"problem": "problem", "rule": "optimiser", "level": "level", "start": "start"}
    model |= {key: {name: encode_value(value) for name, value in found[part].items()} for key, part in parts.items()}
    seed = recipe.seed if recipe.common else int(hash_json([recipe.seed, model])[:16], 16)
    # What does not change the results, such as the engine and the number of runs, is left out of the key.
    how = {"t_max": found["simulate"]["t_max"], "save": encode_value(recipe.save), "until": recipe.until, "keep": recipe.keep}
    whole = {**model, **how, "kernel": recipe.kernel, "seed": seed}
    return Unit(hash_json(whole), first, last, point, whole)


def hash_json(thing: Any) -> str:
    """Return 24 hexadecimal digits of the SHA-256 hash of a JSON value, the same in every process and on every machine."""
    text = json.dumps(thing, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def compute_unit(recipe: Recipe, unit: Unit) -> xr.Dataset:
    """Simulate the runs of a work unit, and return what the sweep stores of them."""
    return _reduce_and_label(recipe, unit, simulate_runs(**_simulate_arguments(recipe, unit)))


def compute_units(recipe: Recipe, units: Sequence[Unit]) -> Iterator[tuple[Unit, xr.Dataset]]:
    """Simulate several work units with few runs in shared batches; yield each with its dataset as it is done.

    The datasets are, bit for bit, those of `compute_unit`. Units share a batch if they differ only in values of parameters.
    """
    for index, dataset in simulate_batched([_simulate_arguments(recipe, unit) for unit in units]):
        yield units[index], _reduce_and_label(recipe, units[index], dataset)


def _simulate_arguments(recipe: Recipe, unit: Unit) -> dict[str, Any]:
    """Return the keyword arguments of `simulate_runs` for a work unit."""
    how = {"save": recipe.save, "until": recipe.until_condition, "kernel": recipe.kernel, "seed": unit.whole["seed"]}
    return {**recipe.build_simulation(unit.point), "indices": range(unit.first, unit.last), **how}


def _reduce_and_label(recipe: Recipe, unit: Unit, dataset: xr.Dataset) -> xr.Dataset:
    """Reduce a dataset to the values that the sweep stores, with the work unit's parameters as attributes."""
    kept = reduce_dataset(dataset, recipe.keep)
    point = {name: encode_value(value) for name, value in unit.point.items()}
    kept.attrs = {**kept.attrs, "unit": json.dumps(unit.whole, sort_keys=True), "point": json.dumps(point)}
    return kept
