"""Adaptive refinement of a grid: cells in which a value varies strongly are halved, to resolve a boundary with few points."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from sgdlimits.checks import check_each, integer, real
from sgdlimits.domain import Fraction, checked
from sgdlimits.errors import BadInput, check_count, shorten
from sgdlimits.run.sweeps.collect import join_runs, read_rows
from sgdlimits.run.sweeps.design import Design, Point, to_plain
from sgdlimits.run.sweeps.unit import make_unit

if TYPE_CHECKING:
    from sgdlimits.run.sweeps.recipe import Recipe
    from sgdlimits.run.sweeps.store import Folder


@checked
@dataclass(frozen=True)
class Refine:
    """Adaptive refinement of a sweep over a grid: cells in which a result varies strongly are halved, in several rounds.

    A `Refine` is the argument `refine` of `sweep`. In each round a cell is halved along each axis if the value at its corners,
    the mean over runs, varies by more than the fraction `share` of the range of the value over all points.

    Parameters
    ----------
    value : name of a variable of the collected dataset
    rounds : number of rounds in which cells are halved
    share : variation in a cell, as a fraction of the range of the value, above which the cell is halved
    log : whether to compare logarithms of the value

    >>> Refine("final_risk", rounds=2).value
    'final_risk'
    """

    value: str
    rounds: Annotated[int, integer(at_least=0)] = 2
    share: Fraction = 0.25
    log: bool = False
    cells: Annotated[tuple, check_each(check_each(check_each(real)))] | None = None
    """Grid cells that the next round may halve, each with its lower and upper value along each axis; None for all cells."""

    def next_round(self, recipe: Recipe, design: Design, folder: Folder, runs: int) -> tuple[list[Point], Refine]:
        """Return the points that the next round of refinement adds, and the refinement for the rounds after it."""
        axes = {name: tuple(sorted(values)) for name, values in design.axes.items()}
        cells = self.cells
        if cells is None:
            cells = tuple(product(*(tuple(pairwise(values)) for values in axes.values())))
        value = self._value_by_point(recipe, design, folder, runs)
        known = [number for number in value.values() if np.isfinite(number)]  # points that failed are NaN
        least = self.share * (max(known) - min(known)) if known else np.inf
        halves: list = []
        for cell in cells:
            corners = [value.get(corner, np.nan) for corner in product(*cell)]
            if np.isfinite(corners).any() and np.nanmax(corners) - np.nanmin(corners) > least:
                halves.extend(
                    product(*(_halve_interval(low, high, axes[name]) for name, (low, high) in zip(axes, cell, strict=True)))
                )
        # Neighbouring cells share corners.
        corners_of = dict.fromkeys(corner for cell in halves for corner in product(*cell))
        points = [dict(zip(axes, corner, strict=True)) for corner in corners_of if corner not in value]
        return points, dataclasses.replace(self, rounds=self.rounds - 1, cells=tuple(halves))

    def _value_by_point(self, recipe: Recipe, design: Design, folder: Folder, runs: int) -> dict[tuple, float]:
        """Return the refined quantity, averaged over runs, by coordinates of points; NaN for points that failed."""
        keys = {tuple(point[name] for name in design.axes): make_unit(recipe, point, 0, runs).key for point in design.points}
        rows = read_rows(folder, keys.values(), runs)
        found = {}
        for corner, key in keys.items():
            kept = join_runs(rows[key], runs) if key in rows else None
            if kept is not None and self.value not in kept:
                raise BadInput(
                    f"the sweep stores no {self.value}, only {', '.join(map(str, kept.data_vars))}. Add it to keep=."
                )
            mean = np.nan if kept is None else float(kept[self.value].mean())
            found[corner] = np.log(mean) if self.log else mean
        return found


def as_refine(refine: Any, recipe: Recipe, design: Design) -> Refine:
    """Convert the argument `refine` of `sweep`, a variable's name or a `Refine`, to a `Refine` that suits the sweep."""
    found = Refine(refine) if isinstance(refine, str) else refine
    if not isinstance(found, Refine):
        raise BadInput(
            f"refine must be the name of a variable or Refine(...); got {shorten(refine)}. Give, for "
            f"instance, refine='final_risk'."
        )
    check_count("rounds", found.rounds)
    named = [*recipe.keep, "censored"] if "exit_time" in recipe.keep else list(recipe.keep)
    if named and not any(":" in each for each in named) and found.value not in named:
        raise BadInput(
            f"refine must name a stored value: {', '.join(named)}; got {shorten(found.value)}. "
            "Name one of these, or add yours to keep=."
        )
    numbers = [all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values) for values in design.axes.values()]
    if not design.axes or not all(numbers) or any(len(values) < 2 for values in design.axes.values()):
        raise BadInput("refine needs a grid of numbers, two or more on each axis. Give over=grid(...) with numbers.")
    return found


def _halve_interval(low: Any, high: Any, axis: tuple) -> list[tuple[Any, Any]]:
    """Split an interval of a grid axis at its middle; on a logarithmic axis that is the geometric mean.

    The middle is rounded for integers. An interval without a number between its ends is returned whole.
    """
    whole = isinstance(axis[0], int) and all(isinstance(value, int) for value in axis)
    middle = float(np.sqrt(low * high)) if _is_geometric(axis) else (low + high) / 2
    middle = round(middle) if whole else to_plain(middle)
    return [(low, middle), (middle, high)] if low < middle < high else [(low, high)]


def _is_geometric(axis: tuple) -> bool:
    """Return whether the values of a grid axis are spaced more evenly on a logarithmic than on a linear scale."""
    if len(axis) < 3 or min(axis) <= 0:
        return False
    logs = np.diff(np.log(axis))
    gaps = np.diff(axis)
    return bool(np.std(logs) / np.mean(logs) < np.std(gaps) / np.mean(gaps))
