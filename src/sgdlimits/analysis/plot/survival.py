"""Plot of the share of runs that have not exited against time."""

from __future__ import annotations

from matplotlib.axes import Axes

from sgdlimits.analysis.plot.curves import PlottableDatasets, axes_or_new, clock_factors, finish_axes, label_datasets
from sgdlimits.analysis.plot.style import curve_styles
from sgdlimits.analysis.summary import OrderedExitTimes, check_exits, survival_curve
from sgdlimits.domain import Fraction, checked


@checked
def survival(
    exits: PlottableDatasets,
    ax: Axes | None = None,
    *,
    clock: str = "t",
    confidence: Fraction | None = 0.95,
    legend: bool = True,
) -> Axes:
    """Plot the share of runs that have not exited against time: Kaplan-Meier curves with bands of confidence intervals.

    A curve ends at the last time at which a run was observed. Small strokes mark the ends of censored runs (those that ended
    before an exit), and the label gives the number of censored runs. `sgdlimits.summarise` computes summary statistics.

    Parameters
    ----------
    exits : one dataset of `exit_times`, several, or a dict from labels to datasets; by default the levels, such as `SGD` and
        `ODE`, are the labels
    ax : axes to draw in; by default those of a new figure
    clock : "t" for samples per dimension, "paper" for the time of the problem's paper, "samples" for t d
    confidence : pointwise coverage of the band; None draws no band
    legend : whether to draw a legend

    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.08), sl.RandomInit(d=50)
    >>> runs = sl.simulate(problem, sl.Chain(d=50), start, t_max=20, runs=20)
    >>> ax = sl.plot.survival({f"T = {T}": sl.exit_times(runs, T) for T in (0.1, 0.5)})
    >>> ax.get_ylabel()
    'share of runs not exited'
    """
    named = label_datasets(exits, check_exits)
    factors = clock_factors(named, clock)
    ax = axes_or_new(ax)
    for order, ((label, dataset), look) in enumerate(zip(named.items(), curve_styles(len(named)), strict=True)):
        times = OrderedExitTimes.from_exits(dataset)
        line = survival_curve(times, confidence or 0.95)
        t, lost = line.t * factors[label], int((~times.exited).sum())
        text = f"{label} ({lost} of {times.t.size} censored)" if lost else label
        # S is constant until the next exit
        how: dict = dict(color=look.colour, drawstyle="steps-post", zorder=3 + order / 100)
        ax.plot(t, line.share, linestyle=look.dashes, linewidth=1.9, label=text, **how)
        if confidence is not None:
            ax.fill_between(t, line.low, line.high, step="post", color=look.colour, alpha=0.13, linewidth=0, zorder=1)
        ax.plot(t[line.ended], line.share[line.ended], "|", color=look.colour, markersize=7, zorder=4)
    ax.set(ylabel="share of runs not exited", ylim=(0, 1.02))
    return finish_axes(ax, clock, legend)
