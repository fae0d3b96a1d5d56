"""Quadratic networks, figure 2: samples that halve the loss against the learning rate, and the best rate against width [3]_.

The best rate is nearly proportional to the number of students, as on the plateau only lr/p and (p+4)/(p+2) matter.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size
from sgdlimits.papers.quadratic.theory.learning_rate import halving_time, optimal_lr
from sgdlimits.papers.quadratic.theory.plateau import fastest_escape_lr, largest_lr

# p*, and the standard deviation of the initial overlaps
TEACHERS, OVERLAP_DEVIATION = 3, 0.01
FULL_SIZE = Size(rates=60, starts=20, widths=(3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16))
QUICK_SIZE = FULL_SIZE.with_changes(rates=30, starts=8, widths=(3, 4, 6, 8))
PARAMETER_WORDS = dict(rates="learning rates in (a)", starts="random starts", widths="widths in (b)")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Solve the ODE over learning rates and starts, and draw when the loss is halved, and the best rate against width."""
    # slightly beyond the largest rate, to show where escape ends
    lrs = np.linspace(0, 1.1 * largest_lr(TEACHERS, TEACHERS).escape, size.rates + 1)[1:]
    times = halving_time(TEACHERS, TEACHERS, lrs, spread=OVERLAP_DEVIATION, starts=size.starts, seed=seed)
    attrs = {"teachers": TEACHERS, "spread": OVERLAP_DEVIATION}
    t = (("lr", "start"), np.where(np.isfinite(times), times, np.nan), {"long_name": "t at which the loss is halved"})
    left = save_dataset("times", xr.Dataset({"t": t}, {"lr": lrs}, attrs | {"width": TEACHERS, "seed": str(seed)}))
    best = [optimal_lr(width, TEACHERS, spread=OVERLAP_DEVIATION, starts=size.starts, seed=seed) for width in size.widths]
    right = xr.Dataset({"lr": ("width", best)}, {"width": list(size.widths)}, attrs)
    slope, offset = np.polyfit(right.width, right.lr, 1)
    right["residual"] = right.lr - (slope * right.width + offset)
    right.attrs.update(slope=float(slope), offset=float(offset))
    save_dataset("optimal", right)
    return DrawnFigure(_draw_figure(left, right), _write_caption(left, right))


def _draw_figure(left: xr.Dataset, right: xr.Dataset) -> Figure:
    figure, axes = plt.subplot_mosaic("ab;ac", figsize=(9.2, 3.8), layout="constrained", height_ratios=[2.6, 1])
    _draw_times(axes["a"], left)
    p = right.width.values
    line = right.attrs["slope"] * p + right.attrs["offset"]
    axes["b"].plot(p, line, color="0.5", linewidth=1.0, label=rf"${right.attrs['slope']:.3f}\,p {right.attrs['offset']:+.3f}$")
    axes["b"].plot(p, right.lr, "o", color=OKABE_ITO_COLOURS[0], label=r"$\eta_{\rm opt}$")
    axes["b"].plot(
        p, [fastest_escape_lr(int(n), TEACHERS) for n in p], "--", color=OKABE_ITO_COLOURS[1], label="fastest growth"
    )
    axes["b"].plot(p, [largest_lr(int(n), TEACHERS).solution for n in p], ":", color="black", label="zero risk is stable below")
    axes["b"].set(ylabel=r"learning rate $\eta$", title=rf"(b) $p^* = {TEACHERS}$")
    axes["b"].legend(loc="upper left", fontsize=8)
    axes["b"].tick_params(labelbottom=False)
    axes["c"].axhline(0, color="0.5", linewidth=1.0)
    axes["c"].plot(p, right.residual, "o", color=OKABE_ITO_COLOURS[0], markersize=4)
    axes["c"].set(xlabel="students $p$", ylabel="residual")
    axes["c"].margins(y=0.25)
    return figure


def _draw_times(ax: Axes, left: xr.Dataset) -> None:
    """Draw the mean time at which the loss is halved against the learning rate, with its range over starts."""
    mean = left.t.mean("start", skipna=False)
    ax.fill_between(left.lr, left.t.min("start"), left.t.max("start"), color=OKABE_ITO_COLOURS[0], alpha=0.15, linewidth=0)
    ax.plot(left.lr, mean, color=OKABE_ITO_COLOURS[0], label=f"mean of {left.sizes['start']} starts, and their range")
    lowest = int(np.argmin(mean.fillna(np.inf).values))
    ax.plot(left.lr[lowest], mean[lowest], "o", color=OKABE_ITO_COLOURS[1])
    ax.axvline(largest_lr(TEACHERS, TEACHERS).escape, color="black", linestyle=":", label="overlaps grow below")
    ax.set(xlabel=r"learning rate $\eta$", ylabel=r"$\alpha_c$, samples per dimension", yscale="log", xlim=(0, None))
    ax.set_title(rf"(a) $p = p^* = {TEACHERS}$, $\epsilon = {OVERLAP_DEVIATION:g}$")
    ax.legend(loc="upper center", fontsize=8)


def _write_caption(left: xr.Dataset, right: xr.Dataset) -> list[str]:
    mean = left.t.mean("start", skipna=False)
    lowest, largest = int(np.argmin(mean.fillna(np.inf).values)), largest_lr(TEACHERS, TEACHERS)
    p, best, widest, offset = right.width.values, right.lr.values, int(right.width[-1]), right.attrs["offset"]
    return [
        "Figure 2 of the paper. (a) Samples per dimension until the ODE's loss is half of its first value, p = p* =",
        f"{TEACHERS}, from {left.sizes['start']} orthonormal starts with overlaps "
        f"N(0, {OVERLAP_DEVIATION:g}^2). The fewest are",
        f"{float(mean[lowest]):.1f}, at the learning rate {float(left.lr[lowest]):.3f}. From {largest.escape:.3f} on,",
        f"dotted, overlaps do not grow on the plateau; from {largest.plateau:.3f} on norms diverge. (b) The rate with the",
        f"fewest samples for p* = {TEACHERS} and p = {int(p[0])} to {widest}: it is {right.attrs['slope']:.4f} p",
        f"{'-+'[offset > 0]} {abs(offset):.4f}, with residuals (below) of at most {float(np.abs(right.residual).max()):.4f}.",
        f"The line does not go through zero: the best rate over p rises from {best[0] / p[0]:.3f} to {best[-1] / p[-1]:.3f},",
        "as the rate of fastest growth on the plateau (dashed) does, from",
        f"{fastest_escape_lr(int(p[0]), TEACHERS) / p[0]:.3f} to {fastest_escape_lr(widest, TEACHERS) / widest:.3f}. Zero",
        f"risk is unstable above {largest.solution / TEACHERS:.2f} p (dotted): at p = {widest} above",
        f"{largest_lr(widest, TEACHERS).solution:.2f}, where the best rate is {best[-1]:.2f} and that of fastest",
        f"growth {fastest_escape_lr(widest, TEACHERS):.2f}.",
    ]
