"""What all figures share: their sizes, what `make` returns, panels, and tables of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.axes import Axes as Axes
from matplotlib.figure import Figure as Figure

Keep = Callable[[str, xr.Dataset], Any]
"""Takes each dataset with its name as soon as it is finished, so that an interruption does not lose it."""


class Size(SimpleNamespace):
    """How large a figure is: numbers of runs, dimensions, times and the like, each under its name."""

    def but(self, **changes: Any) -> Size:
        """The same size with some of its numbers changed."""
        return Size(**vars(self) | changes)


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
