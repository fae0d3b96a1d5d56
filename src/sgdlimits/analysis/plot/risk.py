"""Plot of the population risk against time."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from sgdlimits.analysis.plot import curves
from sgdlimits.analysis.plot.curves import PlottableDatasets, QuantileBand, SingleRunCount
from sgdlimits.analysis.plot.style import curve_styles
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput


@checked
def risk(
    datasets: PlottableDatasets,
    ax: Axes | None = None,
    *,
    excess: float | None = None,
    log: bool = False,
    clock: str = "t",
    singles: SingleRunCount = 20,
    band: QuantileBand = (0.1, 0.9),
    legend: bool = True,
) -> Axes:
    """Plot the population risk against time: a thick line for the mean, thin lines for single runs, and a band of quantiles.

    Diverged runs are left out, and the label says how many diverged.

    Parameters
    ----------
    datasets : one dataset of `simulate`, several, or a dict from labels to datasets; by default the levels, such as `SGD` and
        `ODE`, are the labels
    ax : axes to draw in; by default those of a new figure
    excess : a floor to subtract, such as half the variance of the label noise
    log : whether the risk has a logarithmic scale
    clock : "t" for samples per dimension, "paper" for the time of the problem's paper, "samples" for t d
    singles : largest number of single runs drawn of each dataset, or a dict of these by label
    band : the quantiles between which the band lies, or None; drawn if there are more runs than thin lines
    legend : whether to draw a legend

    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.05), sl.FixedInit(0.1)
    >>> theory = sl.simulate(problem, sl.ODE(), start, t_max=20)
    >>> sl.plot.risk({"limit": theory}, log=True).get_ylabel()
    'population risk'
    """
    named = curves.label_datasets(datasets)
    x = curves.scaled_times(named, clock)
    ax = curves.axes_or_new(ax)
    if log:
        ax.set_yscale("log", nonpositive="mask")
    for order, ((label, dataset), look) in enumerate(zip(named.items(), curve_styles(len(named)), strict=True)):
        # a diverged run would take all others off the scale
        values = curves.drop_diverged(dataset).risk.values - (excess or 0.0)
        text, few = curves.label_with_divergences(label, dataset), curves.count_single_runs(singles, label)
        text += _describe_hidden_values(values, excess or 0.0) if log else ""
        curves.draw_run_curves(ax, x[label], values, look, text, singles=few, band=band, order=order)
    ax.set_ylabel("population risk" if excess is None else "excess risk")
    return curves.finish_axes(ax, clock, legend)


def _describe_hidden_values(values: np.ndarray, floor: float) -> str:
    """Return a label with the number of values that a logarithmic scale cannot show; raise `BadInput` if it can show none."""
    below = int((values <= 0).sum())
    if values.size and below == values.size:
        raise BadInput(
            f"log=True can show no value: the largest risk, {values.max() + floor:.4g}, does not exceed {floor:g}. "
            "Give a smaller excess=, or log=False."
        )
    return f" ({below} of {values.size} values are not above {floor:g})" if below else ""
