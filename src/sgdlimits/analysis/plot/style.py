"""How lines look, and the clocks of the horizontal axis."""

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
"""Settings for `matplotlib.rc_context` that suit a paper's column."""

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours for all kinds of colour vision (Okabe and Ito), without the yellow, which fades on white."""

DASHES: tuple[LineStyleType, ...] = ("-", (0, (4.5, 1.6)), (0, (6, 1.5, 1.2, 1.5)), (0, (1.2, 1.2)), (0, (9, 2)))
"""Line styles that can be told apart in grey. Five of them and seven colours make 35 different looks."""

CLOCKS = {"t": r"$t$, samples per dimension", "paper": "time of the paper", "samples": "samples"}


class Look(NamedTuple):
    """The colour and the dashes of one curve."""

    colour: str
    dashes: LineStyleType


def looks(count: int) -> list[Look]:
    """As many different looks as asked for (up to 35), always in the same order.

    >>> len(set(looks(35)))
    35
    """
    return [Look(*pair) for pair in islice(zip(cycle(OKABE_ITO), cycle(DASHES), strict=False), count)]


@checked
def samples_axis(ax: Axes, d: Count) -> SecondaryAxis:
    """Add an axis of samples n = t d above an axis of t, and return it."""
    check_number("d", d, above=0)
    above = ax.secondary_xaxis("top", functions=(lambda t: np.multiply(t, d), lambda n: np.divide(n, d)))
    above.set_xlabel(r"$n$, samples")
    above.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    above.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    above.spines["top"].set_visible(True)
    return above
