"""Helpers of all plots: labels of datasets, the unit of time, and the curves of many runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdlimits.analysis.plot.style import TIME_UNITS, CurveStyle
from sgdlimits.checks import either, integer, mapping, one_or_more_datasets, optional, quantile_pair
from sgdlimits.errors import BadInput, check_count
from sgdlimits.level.base import RUN_DIVERGED
from sgdlimits.run.schema import check_form

# types of arguments with their checks, shared by all plots
PlottableDatasets = Annotated[xr.Dataset | Sequence[xr.Dataset] | Mapping[str, xr.Dataset], one_or_more_datasets]
SingleRunCount = Annotated[
    int | Mapping[str, int], either("an integer, or integers by label", "Give, say, 20.", integer(at_least=0), mapping)
]
QuantileBand = Annotated[tuple[float, float] | None, optional(quantile_pair)]


def label_datasets(datasets: PlottableDatasets, check: Callable = check_form) -> dict[str, xr.Dataset]:
    """Return datasets by label: the given labels, or the levels' names, preceded by the problems' names if these differ."""
    if isinstance(datasets, Mapping) and not isinstance(datasets, xr.Dataset):
        named = {str(label): check(dataset) for label, dataset in datasets.items()}
    else:
        named, every = {}, [check(dataset) for dataset in (datasets if isinstance(datasets, Sequence) else [datasets])]
        # the level alone would be ambiguous
        several = len({dataset.attrs["problem_name"] for dataset in every}) > 1
        for dataset in every:
            default = f"{dataset.attrs['problem_name']}, " * several + dataset.attrs["level"]
            name, count = default, 2
            while name in named:
                name, count = f"{default} {count}", count + 1
            named[name] = dataset
    if not named:
        raise BadInput("there is no dataset to plot; got an empty collection. Give at least one dataset.")
    return named


def drop_diverged(dataset: xr.Dataset) -> xr.Dataset:
    """Return the runs of a dataset that did not diverge."""
    return dataset.isel(run=dataset.status.values != RUN_DIVERGED)


def label_with_divergences(label: str, dataset: xr.Dataset) -> str:
    """Return the label of a curve with the number of diverged runs, which the plot leaves out, appended."""
    runs = dataset.sizes["run"]
    lost = runs - drop_diverged(dataset).sizes["run"]
    return f"{label} ({lost} of {runs} runs diverged)" if lost else label


def common_dimension(named: Mapping[str, xr.Dataset]) -> int | None:
    """Return the dimension d that all datasets with a dimension have in common, or None if their dimensions differ."""
    found = {int(dataset.attrs["d"]) for dataset in named.values()} - {0}
    return found.pop() if len(found) == 1 else None


def clock_factors(named: Mapping[str, xr.Dataset], clock: str) -> dict[str, float]:
    """Return the factor from t to the time of a clock for each dataset, by label.

    It is 1 for the clock "t", the problem's rate for "paper", and d for "samples". An ODE has no dimension; its samples are
    counted with the d of the other datasets.
    """
    if clock not in TIME_UNITS:
        raise BadInput(f"clock must be one of {', '.join(TIME_UNITS)}; got {clock!r}. Give, for instance, clock='t'.")
    factors = {}
    for label, dataset in named.items():
        # attrs["d"] is 0 for levels without a dimension
        factor = {"t": 1.0, "paper": dataset.attrs["rate"], "samples": dataset.attrs["d"] or common_dimension(named)}[clock]
        if factor is None:
            raise BadInput(
                f"clock='samples' needs a dimension d, which the level {dataset.attrs['level']} does not have. "
                "Use clock='t', or plot it beside a dataset with a d."
            )
        factors[label] = float(factor)
    return factors


def scaled_times(named: Mapping[str, xr.Dataset], clock: str) -> dict[str, np.ndarray]:
    """Return the times of each dataset on a clock: t for "t", the time of the problem's paper for "paper", or "samples"."""
    return {label: named[label].t.values * factor for label, factor in clock_factors(named, clock).items()}


def count_single_runs(singles: SingleRunCount, label: str) -> int:
    """Return how many single runs of a dataset to draw: `singles`, or its entry for the dataset's label if it is a dict."""
    return check_count("singles", singles.get(label, 0) if isinstance(singles, Mapping) else singles, at_least=0)


def draw_run_curves(
    ax: Axes,
    x: np.ndarray,
    values: np.ndarray,
    look: CurveStyle,
    label: str,
    *,
    singles: int,
    band: QuantileBand,
    order: int = 0,
) -> None:
    """Draw values of shape (run, t): a thick line for the mean, thin lines for single runs, and a band between quantiles.

    If every run has a thin line, the band is omitted, as it would hide the lines.

    Parameters
    ----------
    x : the times
    look : colour and dashes of the lines
    label : label of the mean
    singles : number of runs with a thin line
    band : quantiles between which the band lies, or None
    order : position among curves, of which later ones are drawn on top
    """
    # the order keeps the means of all datasets above bands and single runs
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


def finish_axes(ax: Axes, clock: str, legend: bool) -> Axes:
    """Add the label of the horizontal axis to axes and, if wanted, the legend."""
    ax.set_xlabel(TIME_UNITS[clock])
    ax.margins(x=0)
    if legend:
        ax.legend()
    return ax


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the given axes, or new axes in a new figure if None."""
    if ax is not None:
        return ax
    # pyplot selects a backend when imported, which importing this package must not do
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(4.6, 3.2), layout="constrained")[1]
