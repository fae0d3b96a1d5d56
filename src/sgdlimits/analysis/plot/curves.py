"""What all plots share: datasets with their labels, their clock, and the lines of many runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdlimits.analysis.plot.style import CLOCKS, Look
from sgdlimits.checks import either, integer, mapping, optional, quantile_pair, some_datasets
from sgdlimits.errors import BadInput, check_count
from sgdlimits.level.base import DIVERGED
from sgdlimits.run.schema import check_form

Datasets = Annotated[xr.Dataset | Sequence[xr.Dataset] | Mapping[str, xr.Dataset], some_datasets]
Singles = Annotated[
    int | Mapping[str, int], either("a whole number, or such numbers by label", "Give, say, 20.", integer(at_least=0), mapping)
]
Band = Annotated[tuple[float, float] | None, optional(quantile_pair)]


def labelled(datasets: Datasets, check: Callable = check_form) -> dict[str, xr.Dataset]:
    """Checked datasets by label: the one given, or the level's name, after that of its problem where there are several."""
    if isinstance(datasets, Mapping) and not isinstance(datasets, xr.Dataset):
        named = {str(label): check(dataset) for label, dataset in datasets.items()}
    else:
        named, every = {}, [check(dataset) for dataset in (datasets if isinstance(datasets, Sequence) else [datasets])]
        several = len({dataset.attrs["problem_name"] for dataset in every}) > 1
        for dataset in every:
            usual = f"{dataset.attrs['problem_name']}, " * several + dataset.attrs["level"]
            name, count = usual, 2
            while name in named:
                name, count = f"{usual} {count}", count + 1
            named[name] = dataset
    if not named:
        raise BadInput("there is no dataset to plot; got an empty collection. Give at least one.")
    return named


def good_runs(dataset: xr.Dataset) -> xr.Dataset:
    """The runs that did not diverge."""
    return dataset.isel(run=dataset.status.values != DIVERGED)


def note(label: str, dataset: xr.Dataset) -> str:
    """The label, with a word on the runs that diverged and are left out."""
    runs = dataset.sizes["run"]
    lost = runs - good_runs(dataset).sizes["run"]
    return f"{label} ({lost} of {runs} runs diverged)" if lost else label


def dimension(named: Mapping[str, xr.Dataset]) -> int | None:
    """The one dimension d of all datasets that have one, or None."""
    found = {int(dataset.attrs["d"]) for dataset in named.values()} - {0}
    return found.pop() if len(found) == 1 else None


def clock_factors(named: Mapping[str, xr.Dataset], clock: str) -> dict[str, float]:
    """What t is multiplied by for each dataset: 1, for the time of its paper the rate, for the number of samples d.

    An ODE has no dimension of its own: its samples are counted with the d of the datasets beside it.
    """
    if clock not in CLOCKS:
        raise BadInput(f"clock must be one of {', '.join(CLOCKS)}; got {clock!r}. Give one of them.")
    factors = {}
    for label, dataset in named.items():
        factor = {"t": 1.0, "paper": dataset.attrs["rate"], "samples": dataset.attrs["d"] or dimension(named)}[clock]
        if factor is None:
            raise BadInput(
                f"clock='samples' needs a dimension d, which the level {dataset.attrs['level']} does not have. "
                "Use clock='t', or plot it beside a dataset with a d."
            )
        factors[label] = float(factor)
    return factors


def clock_values(named: Mapping[str, xr.Dataset], clock: str) -> dict[str, np.ndarray]:
    """The horizontal coordinate of each dataset: t, the time of its paper, or the number of samples."""
    return {label: named[label].t.values * factor for label, factor in clock_factors(named, clock).items()}


def how_many(singles: Singles, label: str) -> int:
    """How many single runs of a dataset to draw: the same for all, or by label, and none where a label is missing."""
    return check_count("singles", singles.get(label, 0) if isinstance(singles, Mapping) else singles, at_least=0)


def draw_runs(
    ax: Axes, x: np.ndarray, values: np.ndarray, look: Look, label: str, *, singles: int, band: Band, order: int = 0
) -> None:
    """Draw `values` of shape (run, t): a thick line for the mean, thin ones for single runs, a band between quantiles.

    Where every run has its thin line, a band would only hide them, and there is none.
    """
    mean: dict = dict(color=look.colour, linestyle=look.dashes, linewidth=1.9, label=label, zorder=3 + order / 100)
    if not values.shape[0]:
        ax.plot([], [], **mean)
        return
    if values.shape[0] > 1:
        if band is not None and values.shape[0] > singles:
            low, high = np.quantile(values, band, axis=0)
            ax.fill_between(x, low, high, color=look.colour, alpha=0.13, linewidth=0, zorder=1)
            for edge in (low, high):
                ax.plot(x, edge, color=look.colour, linestyle=look.dashes, linewidth=0.8, zorder=2)
        for row in values[:singles]:
            ax.plot(x, row, color=look.colour, linewidth=0.5, alpha=0.4, zorder=1.5)
    ax.plot(x, values.mean(0), **mean)


def finish(ax: Axes, clock: str, legend: bool) -> Axes:
    """The horizontal label and the legend."""
    ax.set_xlabel(CLOCKS[clock])
    ax.margins(x=0)
    if legend:
        ax.legend()
    return ax


def new_axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(4.6, 3.2), layout="constrained")[1]
