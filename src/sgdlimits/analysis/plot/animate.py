"""Animations of plots of risk and overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sgdlimits.analysis.plot.curves import PlottableDatasets, label_datasets, scaled_times
from sgdlimits.analysis.plot.overview import overview
from sgdlimits.domain import Count, Positive, checked

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.figure import Figure


@checked
def animate(
    datasets: PlottableDatasets, *, frames: Count = 60, seconds: Positive = 6.0, clock: str = "t", **options: Any
) -> FuncAnimation:
    """Animate plots of risk and overlaps (see `overview`), revealing the curves from left to right.

    Save the result by ``animate(runs).save("escape.gif")``, with any writer of matplotlib.

    Parameters
    ----------
    datasets : one dataset of `simulate`, several, or a dict from labels to datasets
    frames : number of frames
    seconds : duration of the animation
    clock, **options : as in `overview`

    >>> import sgdlimits as sl
    >>> run = sl.simulate(sl.presets.phase_retrieval(lr=0.05), sl.ODE(), sl.FixedInit(0.1), t_max=20)
    >>> film = sl.plot.animate(run, frames=3)
    >>> film.save("escape.gif")  # doctest: +SKIP
    """
    from matplotlib.animation import FuncAnimation
    from matplotlib.patches import Rectangle

    named = label_datasets(datasets)
    times = np.concatenate(list(scaled_times(named, clock).values()))
    axes = overview(named, clock=clock, **options)
    windows: list[tuple[Rectangle, list]] = []
    for ax in axes:
        # fixed limits: curves must not rescale while they appear
        ax.set_xlim(times.min(), times.max())
        ax.set_ylim(ax.get_ylim())
        # a clip path in axes coordinates, taller than the axes so that markers are not cut
        window = Rectangle((0, -0.1), 0, 1.2, transform=ax.transAxes, visible=False)
        ax.add_artist(window)
        windows.append((window, [*ax.lines, *ax.collections]))

    def show_frame(frame: int) -> list:
        """Show all curves of the animation up to the time of one frame."""
        for window, artists in windows:
            window.set_width((frame + 1) / frames)
            for artist in artists:
                artist.set_clip_path(window)
        return [artist for _, artists in windows for artist in artists]

    show_frame(frames - 1)
    film: Any = FuncAnimation(
        cast("Figure", axes[0].figure), show_frame, frames=frames, interval=1000 * seconds / frames, blit=False
    )
    film._draw_was_started = True  # suppresses matplotlib's warning about animations that are never saved
    return film
