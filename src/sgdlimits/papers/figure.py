"""What all figures share: their sizes, what `make` returns, panels, tables of rows, and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from sgdlimits.analysis.plot.style import OKABE_ITO as OKABE_ITO, looks as looks
from sgdlimits.papers.index import QUICKLY
from sgdlimits.progress import bar as bar

Keep = Callable[[str, xr.Dataset], xr.Dataset]
"""Takes each dataset with its name as soon as it is finished, so that an interruption does not lose it, and gives it back."""


class Size(SimpleNamespace):
    """How large a figure is: numbers of runs, dimensions, times and the like, each under its name."""

    def but(self, **changes: Any) -> Size:
        """The same size with some of its numbers changed."""
        return Size(**vars(self) | changes)


def sizes(**rows: tuple[Any, ...]) -> tuple[Size, Size, dict[str, str]]:
    """The full size, the quick one and the words of a figure with many numbers: a row has the word, and one value or two.

    >>> full, quick, words = sizes(d=("dimension", 3000, 300), runs=("runs of SGD", 16))
    >>> quick, words["d"]
    (Size(d=300, runs=16), 'dimension')
    """
    full, quick = (Size(**{name: row[place] for name, row in rows.items()}) for place in (1, -1))
    return full, quick, {name: row[0] for name, row in rows.items()}


def smaller(size: Size, full: Size, words: dict[str, str]) -> str:
    """What is smaller than at the full size, as a sentence; nothing where they are equal.

    >>> full = Size(d=3000, dimensions=(100, 1000, 10**6), runs={2: 64}, widths={1: (512, 8)}, many=(9,))
    >>> words = dict(d="dimension", dimensions="all of (b)", runs="runs by width", widths="runs of a point", many="noises")
    >>> smaller(full.but(d=300, dimensions=(100,)), full, words)
    'Made with --quick: dimension (300 instead of 3000), all of (b) (100 instead of 100, 1000, 1e6).'
    >>> smaller(full.but(runs={2: 8, 3: 4}, widths={1: (64, 8)}, many=()), full, words)
    'Made with --quick: runs by width (8 at 2, 4 at 3 instead of 64 at 2), fewer runs of a point, no noises.'
    """
    changes = []
    for name, word in words.items():
        new, old = getattr(size, name), getattr(full, name)
        if _shown(new) == _shown(old):
            continue
        if new is None or np.size(new) == 0:
            changes.append(f"no {word}")
        elif isinstance(old, dict) and any(np.ndim(value) or isinstance(value, dict) for value in old.values()):
            changes.append(f"fewer {word}")
        else:
            changes.append(f"{word} ({_shown(new)} instead of {_shown(old)})")
    return f"{QUICKLY} {', '.join(changes)}." if changes else ""


def _shown(value: Any) -> str:
    """The numbers of a size, the first and last of many."""
    if isinstance(value, dict):
        return ", ".join(f"{_shown(number)} at {_shown(key)}" for key, number in value.items())
    if isinstance(value, (tuple, list, np.ndarray)):
        few = [_shown(each) for each in value]
        return ", ".join(few) if len(few) < 6 else f"{few[0]} to {few[-1]}, {len(few)} of them"
    return "all" if value is None else value if isinstance(value, str) else f"{value:g}".replace("e+0", "e").replace("e+", "e")


@dataclass
class Drawn:
    """A figure, the sentences that say what it shows, and lines to print before them."""

    figure: Figure
    caption: list[str]
    lines: list[str] = field(default_factory=list)


def panels(*shape: int, **more: Any) -> tuple[Figure, Any]:
    """A new figure, and its axes in so many rows and columns."""
    return plt.subplots(*shape, layout="constrained", **more)


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
