"""Plot of the overlaps against time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from sgdlimits.analysis.origin import name_of_overlap
from sgdlimits.analysis.plot import curves
from sgdlimits.analysis.plot.curves import PlottableDatasets, QuantileBand, SingleRunCount
from sgdlimits.analysis.plot.style import curve_styles
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput

MAX_DETAILED_CURVES = 6
"""Maximum number of overlaps that are drawn with mean, band and single runs; of more overlaps only the means are drawn."""
STATISTIC_LABELS = {
    "M": ("overlap", "jr"),
    "m": ("overlap", ""),
    "r2": ("squared orthogonal norm", ""),
    "Q": ("overlap of students", "jl"),
    "q": ("squared norm", "j"),
    "a": ("second layer", "j"),
}
"""Label of the vertical axis for each statistic, and the letters of the statistic's indices."""


@checked
def overlaps(
    datasets: PlottableDatasets,
    ax: Axes | None = None,
    *,
    what: str | None = None,
    absolute: bool | None = None,
    clock: str = "t",
    singles: SingleRunCount = 20,
    band: QuantileBand = (0.1, 0.9),
    legend: bool = True,
) -> Axes:
    """Plot overlaps against time: for each overlap a thick line for the mean over runs, thin lines for single runs, and a band.

    With more than six overlaps, each has only a thin line for its mean over runs. A single dataset has one colour per overlap;
    several datasets have one colour each. Diverged runs are left out, and the label says how many diverged.

    Parameters
    ----------
    datasets, ax, clock, singles, band, legend : as in `risk`
    what : the variable to plot: "M", overlaps with the fixed directions (the default); "Q", overlaps between trained
        directions; "a", the second layer; or another statistic; for a spiked tensor "m" or "r2", by default both
    absolute : whether to plot absolute values; None does so for "M" and "m" only, whose sign is arbitrary in many problems

    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(width=2, lr=0.05), sl.FixedInit([[0.1], [0.2]])
    >>> ax = sl.plot.overlaps(sl.simulate(problem, sl.ODE(), start, t_max=20))
    >>> [line.get_label() for line in ax.lines]
    ['$|M_{1,1}|$', '$|M_{2,1}|$']
    """
    named = curves.label_datasets(datasets)
    x = curves.scaled_times(named, clock)
    first = next(iter(named.values()))
    overlap = name_of_overlap(first)
    # a spiked tensor has two numbers, drawn together
    usual = (overlap, "r2") if overlap == "m" and "r2" in first else (overlap,)
    others = {name_of_overlap(dataset): dataset.attrs["problem_name"] for dataset in named.values()}
    if what is None and len(others) > 1:
        each = " and ".join(f"{name} of {problem}" for name, problem in others.items())
        raise BadInput(f"plot.overlaps cannot draw {each} on the same axes. Use plot.risk, or plot.overlaps for each.")
    variables: tuple[Any, ...] = usual if what is None else (what,)
    signless = {name: name == overlap if absolute is None else absolute for name in variables}
    pairs = {label: dict(_iterate_entries(dataset, signless)) for label, dataset in named.items()}
    ax = curves.axes_or_new(ax)
    # colours tell pairs apart for one dataset, datasets otherwise
    by_pair = len(named) == 1 and 1 < len(next(iter(pairs.values()))) <= MAX_DETAILED_CURVES
    style = curve_styles(MAX_DETAILED_CURVES if by_pair else len(named))
    for order, (label, entries) in enumerate(pairs.items()):
        many = len(entries) > MAX_DETAILED_CURVES
        for place, (name, values) in enumerate(entries.items()):
            look = style[place if by_pair else order]
            text = name if by_pair else label if place == 0 else "_other"
            text = curves.label_with_divergences(text, named[label]) if place == 0 else text
            if many:
                mean = values.mean(0) if values.size else np.full(x[label].size, np.nan)
                ax.plot(x[label], mean, color=look.colour, linestyle=look.dashes, linewidth=0.8, label=text)
            else:
                few = curves.count_single_runs(singles, label) // len(entries)
                curves.draw_run_curves(ax, x[label], values, look, text, singles=few, band=band, order=order)
    # indices on the axis only if there is more than one entry
    several = len(next(iter(pairs.values()))) > len(variables)
    ax.set_ylabel(", ".join(_axis_label(name, several, signless[name]) for name in variables))
    return curves.finish_axes(ax, clock, legend)


def _iterate_entries(dataset: xr.Dataset, signless: dict[str, bool]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the LaTeX symbol and the values, shape (run, t), of each entry of variables; of Q only the upper triangle.

    `signless` says for each variable whether absolute values are plotted.
    """
    for what, absolute in signless.items():
        if what not in dataset.data_vars or what == "risk":
            known = ", ".join(str(name) for name in dataset.data_vars if name != "risk")
            raise BadInput(
                f"what must be one of {known}, the dataset's statistics; got {what!r}. Choose a name from this list."
            )
        variable = curves.drop_diverged(dataset)[what]
        values = np.abs(variable.values) if absolute else variable.values
        for index in np.ndindex(variable.shape[2:]):
            if variable.dims[2:] == ("student", "student_other") and index[0] > index[1]:
                continue
            yield _entry_symbol(what, ",".join(str(i + 1) for i in index), absolute), values[(..., *index)]


def _entry_symbol(what: str, index: str, absolute: bool) -> str:
    """Return the LaTeX symbol of one entry of a statistic, such as an overlap with its indices."""
    name = f"{what}_{{{index}}}" if index else {"r2": r"r_\perp^2"}.get(what, what)
    return f"$|{name}|$" if absolute else f"${name}$"


def _axis_label(what: str, several: bool, absolute: bool) -> str:
    """Return the label of the vertical axis for a statistic, with indices if it has several entries."""
    name, index = STATISTIC_LABELS.get(what, ("statistic", ""))
    return f"{name} {_entry_symbol(what, index if several else '', absolute)}"
