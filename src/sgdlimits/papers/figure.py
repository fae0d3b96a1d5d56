"""Parts shared by all figures: sizes, panels, tables of rows, and captions."""

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
from sgdlimits.analysis.plot.style import OKABE_ITO_COLOURS as OKABE_ITO_COLOURS, curve_styles as curve_styles
from sgdlimits.papers.index import QUICK_NOTE
from sgdlimits.progress import bar as bar

SaveDataset = Callable[[str, xr.Dataset], xr.Dataset]
"""Callback that stores a finished dataset under its name and returns it, so that an interruption loses no dataset."""


class Size(SimpleNamespace):
    """Parameters that set the cost of a figure, such as numbers of runs, dimensions and final times."""

    def with_changes(self, **changes: Any) -> Size:
        """Return a copy of the size with some parameters changed to the given values."""
        return Size(**vars(self) | changes)


def sizes(**rows: tuple[Any, ...]) -> tuple[Size, Size, dict[str, str]]:
    """Return the full size, the quick size and the words of a figure for its parameters.

    Each parameter is given as `name=(word, full value, quick value if it differs)`.

    >>> full, quick, words = sizes(d=("dimension", 3000, 300), runs=("runs of SGD", 16))
    >>> quick, words["d"]
    (Size(d=300, runs=16), 'dimension')
    """
    full, quick = (Size(**{name: row[place] for name, row in rows.items()}) for place in (1, -1))
    return full, quick, {name: row[0] for name, row in rows.items()}


def describe_reduction(size: Size, full: Size, words: dict[str, str]) -> str:
    """Describe which parameters of a figure are smaller than at its full size; an empty string if none is.

    >>> full = Size(d=3000, dimensions=(100, 1000, 10**6), runs={2: 64}, widths={1: (512, 8)}, many=(9,))
    >>> words = dict(d="dimension", dimensions="all of (b)", runs="runs by width", widths="runs of a point", many="noises")
    >>> describe_reduction(full.with_changes(d=300, dimensions=(100,)), full, words)
    'Made with --quick: dimension (300 instead of 3000), all of (b) (100 instead of 100, 1000, 1e6).'
    >>> describe_reduction(full.with_changes(runs={2: 8, 3: 4}, widths={1: (64, 8)}, many=()), full, words)
    'Made with --quick: runs by width (8 at 2, 4 at 3 instead of 64 at 2), fewer runs of a point, no noises.'
    """
    changes = []
    for name, word in words.items():
        new, old = getattr(size, name), getattr(full, name)
        if format_parameter(new) == format_parameter(old):
            continue
        if new is None or np.size(new) == 0:
            changes.append(f"no {word}")
        elif isinstance(old, dict) and any(np.ndim(value) or isinstance(value, dict) for value in old.values()):
            changes.append(f"fewer {word}")
        else:
            changes.append(f"{word} ({format_parameter(new)} instead of {format_parameter(old)})")
    return f"{QUICK_NOTE} {', '.join(changes)}." if changes else ""


def format_parameter(value: Any) -> str:
    """Format the value of a size parameter as a string.

    Of six or more values only the first, the last and their number are given.
    """
    if isinstance(value, dict):
        return ", ".join(f"{format_parameter(number)} at {format_parameter(key)}" for key, number in value.items())
    if isinstance(value, (tuple, list, np.ndarray)):
        # long lists are shortened to their ends
        few = [format_parameter(each) for each in value]
        return ", ".join(few) if len(few) < 6 else f"{few[0]} to {few[-1]}, {len(few)} of them"
    return "all" if value is None else value if isinstance(value, str) else f"{value:g}".replace("e+0", "e").replace("e+", "e")


@dataclass
class DrawnFigure:
    """Matplotlib figure with the sentences of its caption, and the lines that the command line prints before them."""

    figure: Figure
    caption: list[str]
    lines: list[str] = field(default_factory=list)


def make_panels(*shape: int, **more: Any) -> tuple[Figure, Any]:
    """Create a figure and its axes, with the given numbers of rows and columns of panels."""
    return plt.subplots(*shape, layout="constrained", **more)


def tabulate(rows: Sequence[dict], over: str = "point", coords: dict[str, Any] | None = None, **attrs: Any) -> xr.Dataset:
    """Build a dataset from dicts with equal keys, one dict per point along the dimension `over`.

    `coords` are coordinates along the same dimension, and `attrs` the attributes of the dataset.
    """
    along = {name: (over, list(values)) for name, values in (coords or {}).items()}
    return xr.Dataset({name: (over, [row[name] for row in rows]) for name in rows[0]}, along, attrs)


def select_rows(table: xr.Dataset, **values: Any) -> xr.Dataset:
    """Select the points of a table at which the named variables equal the given values."""
    return table.isel(point=np.all([table[name].values == value for name, value in values.items()], axis=0))


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of independent values."""
    return float(values.std(ddof=1) / np.sqrt(values.size))


def half_overlap_margin(stats: sl.Overlaps):
    """Return the largest overlap minus 1/2, a stop margin, which is positive once a unit has left the plateau."""
    return jnp.abs(stats.M).max() - 0.5


def participation_ratio(a: np.ndarray) -> np.ndarray:
    """Return the participation ratio of p entries, divided by p.

    It is 1 if all entries are equal, and 1/p if only one entry is nonzero.
    """
    return np.abs(a).sum(-1) ** 2 / (a**2).sum(-1) / a.shape[-1]


def strip_markup(text: str) -> str:
    """Strip LaTeX markup from a formula, for use in captions."""
    for mark, word in {"$": "", "\\,": " ", "\\log": "log", "\\cos": "cos", "\\mathrm{He}": "He"}.items():
        text = text.replace(mark, word)
    return text
