"""The share of runs that have not exited against time."""

from __future__ import annotations

from matplotlib.axes import Axes

from sgdlimits.analysis.plot.curves import Datasets, clock_factors, finish, labelled, new_axes
from sgdlimits.analysis.plot.style import looks
from sgdlimits.analysis.summary import Times, check_exits, curve
from sgdlimits.domain import Fraction, checked


@checked
def survival(
    exits: Datasets, ax: Axes | None = None, *, clock: str = "t", confidence: Fraction | None = 0.95, legend: bool = True
) -> Axes:
    """Plot the share of runs that have not exited: steps of the Kaplan-Meier curve, with a band of confidence intervals.

    A curve ends at the last time at which a run was observed. Small strokes mark the ends of censored runs, and the label says
    how many there are. `sgdlimits.summarise` has the same runs in a few numbers.

    Parameters
    ----------
    exits : one dataset of `exit_times`, several, or a dict from labels to datasets; labels are levels unless given
    ax : where to draw; a new figure unless given
    clock : "t" for samples per dimension, "paper" for the time of the problem's paper, "samples" for t d
    confidence : of the band, at each time on its own; None draws no band
    legend : whether to draw a legend

    >>> import sgdlimits as sl
    >>> problem, start = sl.presets.phase_retrieval(lr=0.08), sl.RandomInit(d=50)
    >>> runs = sl.simulate(problem, sl.Chain(d=50), start, t_max=20, runs=20)
    >>> ax = sl.plot.survival({f"T = {T}": sl.exit_times(runs, T) for T in (0.1, 0.5)})
    >>> ax.get_ylabel()
    'share of runs not exited'
    """
    named = labelled(exits, check_exits)
    factors = clock_factors(named, clock)
    ax = new_axes(ax)
    for order, ((label, dataset), look) in enumerate(zip(named.items(), looks(len(named)), strict=True)):
        times = Times.of(dataset)
        line = curve(times, confidence or 0.95)
        t, lost = line.t * factors[label], int((~times.exited).sum())
        text = f"{label} ({lost} of {times.t.size} censored)" if lost else label
        how: dict = dict(color=look.colour, drawstyle="steps-post", zorder=3 + order / 100)
        ax.plot(t, line.share, linestyle=look.dashes, linewidth=1.9, label=text, **how)
        if confidence is not None:
            ax.fill_between(t, line.low, line.high, step="post", color=look.colour, alpha=0.13, linewidth=0, zorder=1)
        ax.plot(t[line.ended], line.share[line.ended], "|", color=look.colour, markersize=7, zorder=4)
    ax.set(ylabel="share of runs not exited", ylim=(0, 1.02))
    return finish(ax, clock, legend)
