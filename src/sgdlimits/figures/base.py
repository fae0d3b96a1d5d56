"""What all figures share: their sizes, what `make` returns, panels, tables of rows, and words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure

import sgdlimits as sl
from sgdlimits.plot.style import OKABE_ITO as OKABE_ITO, looks as looks
from sgdlimits.progress import bar

Keep = Callable[[str, xr.Dataset], Any]
"""Takes each dataset with its name as soon as it is finished, so that an interruption does not lose it."""


class Size(SimpleNamespace):
    """How large a figure is: numbers of runs, dimensions, times and the like, each under its name."""

    def but(self, **changes: Any) -> Size:
        """The same size with some of its numbers changed."""
        return Size(**vars(self) | changes)


def of_the_paper(number: int, size: Size, full: Size) -> str:
    """Which figure of the paper a caption is about, and whether it is made smaller than the full one here."""
    return f"Figure {number} of the paper" + ("" if size == full else ", made smaller")


@dataclass
class Drawn:
    """A figure, the sentences that say what it shows, the datasets behind it, and lines to print beside them."""

    figure: Figure
    caption: list[str]
    datasets: dict[str, xr.Dataset]
    lines: list[str] = field(default_factory=list)


def ignore(name: str, dataset: xr.Dataset) -> None:
    """Keep nothing."""


def panels(*shape: int, **more: Any) -> tuple[Figure, Any]:
    """A new figure, and its axes in so many rows and columns."""
    return plt.subplots(*shape, layout="constrained", **more)


def progress(items: Iterable, what: str) -> Any:
    """The items, with a bar that shows how many of them are done once this takes more than a second."""
    return bar(items, desc=what)


def tabulate(rows: Sequence[dict], over: str = "point", coords: dict[str, Any] | None = None, **attrs: Any) -> xr.Dataset:
    """A dataset of rows that have the same names, one for each place along a dimension; `coords` stand along it too."""
    along = {name: (over, list(values)) for name, values in (coords or {}).items()}
    return xr.Dataset({name: (over, [row[name] for row in rows]) for name in rows[0]}, along, attrs)


def rows_of(table: xr.Dataset, **values: Any) -> xr.Dataset:
    """The points of a table with these values."""
    return table.isel(point=np.all([table[name].values == value for name, value in values.items()], axis=0))


def error_of(values: np.ndarray) -> float:
    """The standard error of the mean of independent values."""
    return float(values.std(ddof=1) / np.sqrt(values.size))


def half_way(stats: sl.Overlaps):
    """By how much the largest overlap is above a half, where a unit has left the plateau."""
    return jnp.abs(stats.M).max() - 0.5


def participation(a: np.ndarray) -> np.ndarray:
    """The participation ratio over the width: 1 where all entries are equal, 1/p where one has all the weight."""
    return np.abs(a).sum(-1) ** 2 / (a**2).sum(-1) / a.shape[-1]


def plain(text: str) -> str:
    """A formula without markup."""
    for mark, word in {"$": "", "\\,": " ", "\\log": "log", "\\cos": "cos", "\\mathrm{He}": "He"}.items():
        text = text.replace(mark, word)
    return text
