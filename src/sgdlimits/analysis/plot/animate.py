"""Runs that grow with time, for talks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sgdlimits.analysis.plot.curves import Datasets, clock_values, labelled
from sgdlimits.analysis.plot.overview import overview
from sgdlimits.domain import Count, Positive, checked

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.figure import Figure


@checked
def animate(
    datasets: Datasets, *, frames: Count = 60, seconds: Positive = 6.0, clock: str = "t", **options: Any
) -> FuncAnimation:
    """Risk and overlaps of the same runs as `overview` draws them, uncovered from left to right.

    What it returns has `save`: ``animate(runs).save("escape.gif")``, with any writer of matplotlib's.

    Parameters
    ----------
    datasets : one dataset of `simulate`, several, or a dict from labels to datasets
    frames, seconds : how many pictures there are, and how long they last together
    clock, **options : of `overview`

    >>> import sgdlimits as sl
    >>> run = sl.simulate(sl.presets.phase_retrieval(lr=0.05), sl.ODE(), sl.FixedInit(0.1), t_max=20)
    >>> film = sl.plot.animate(run, frames=3)
    >>> film.save("escape.gif")  # doctest: +SKIP
    """
    from matplotlib.animation import FuncAnimation
    from matplotlib.patches import Rectangle

    named = labelled(datasets)
    times = np.concatenate(list(clock_values(named, clock).values()))
    axes = overview(named, clock=clock, **options)
    covers: list[tuple[Rectangle, list]] = []
    for ax in axes:
        ax.set_xlim(times.min(), times.max())
        ax.set_ylim(ax.get_ylim())
        window = Rectangle((0, -0.1), 0, 1.2, transform=ax.transAxes, visible=False)
        ax.add_artist(window)
        covers.append((window, [*ax.lines, *ax.collections]))

    def show(frame: int) -> list:
        for window, artists in covers:
            window.set_width((frame + 1) / frames)
            for artist in artists:
                artist.set_clip_path(window)
        return [artist for _, artists in covers for artist in artists]

    show(frames - 1)
    film: Any = FuncAnimation(cast("Figure", axes[0].figure), show, frames=frames, interval=1000 * seconds / frames, blit=False)
    film._draw_was_started = True  # a film that no one saved is not worth a warning
    return film
