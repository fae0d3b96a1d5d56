"""Styles of curves and figures, and the units of the time axis."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import LineStyleType

from sgdlimits.domain import Count, checked
from sgdlimits.errors import check_number

if TYPE_CHECKING:
    from matplotlib.axes._secondary_axes import SecondaryAxis

PAPER: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 3.4,
    "mathtext.fontset": "cm",
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "sgdlimits",
    "pdf.fonttype": 42,
}
"""Settings for `matplotlib.rc_context`, for figures that fit one column of a paper."""

OKABE_ITO_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
"""Colour-blind safe palette (Okabe and Ito), without its yellow, which has little contrast on white."""

LINE_DASHES: tuple[LineStyleType, ...] = ("-", (0, (4.5, 1.6)), (0, (6, 1.5, 1.2, 1.5)), (0, (1.2, 1.2)), (0, (9, 2)))
"""Line styles that can be told apart in grey; combined with seven colours, they give 35 styles of curves."""

# horizontal labels by the value of the argument `clock`
TIME_UNITS = {"t": r"$t$, samples per dimension", "paper": "time of the paper", "samples": "samples"}


class CurveStyle(NamedTuple):
    """Style of a curve in a plot: its colour and its dashes."""

    colour: str
    dashes: LineStyleType


def curve_styles(count: int) -> list[CurveStyle]:
    """Return `count` different styles of curves (up to 35), always in the same order.

    >>> len(set(curve_styles(35)))
    35
    """
    return [CurveStyle(*pair) for pair in islice(zip(cycle(OKABE_ITO_COLOURS), cycle(LINE_DASHES), strict=False), count)]


@checked
def samples_axis(ax: Axes, d: Count) -> SecondaryAxis:
    """Add a secondary axis of the number of samples, n = t d, above an axis of t, and return it."""
    check_number("d", d, above=0)
    above = ax.secondary_xaxis("top", functions=(lambda t: np.multiply(t, d), lambda n: np.divide(n, d)))
    above.set_xlabel(r"$n$, samples")
    # few ticks: numbers of samples are long
    above.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    above.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    above.spines["top"].set_visible(True)
    return above
