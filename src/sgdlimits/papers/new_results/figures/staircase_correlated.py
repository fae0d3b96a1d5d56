r"""Leaps between correlated directions: how the correlation of three teachers changes what one unit finds when.

The label is :math:`x_1x_2x_3` of three teachers whose pairs have the correlation :math:`\rho`. Orthogonal teachers are found
together by a leap of 3. At any other correlation :math:`E[\partial_i y] = \rho` makes a leap of 1 along their sum, and given
that their differences are a leap of 2. One unit on the sphere starts at overlaps :math:`\pm 2/\sqrt d`, with the signs that
learn.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.ticker import NullFormatter
from numpy.polynomial.hermite_e import herme2poly

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO, Axes, DrawnFigure, Figure, Keep, Size, bar, make_panels, select_rows, tabulate
from sgdlimits.papers.new_results.figures.staircase import (
    BEGIN,
    FOUND,
    ORDINALS,
    SECOND,
    exponent,
    exponent_error,
    find_condition,
    median_error,
)

UNIT = sl.Polynomial(herme2poly([0.0, 1 / 2, 0.0, -1 / 6]))
"""Hermite coefficients 1/2 and -1 of order 1 and 3: after the sum, the negative one makes the differences grow."""
SIGNS = np.array([1.0, 1.0, -1.0])
"""Signs of the overlaps at the start, whose product is negative."""
LR, LR_HARD = 0.02, 0.4
"""Learning rate times the second layer, and for a leap of 3 that times sqrt(d)."""
FULL = Size(correlations=(0.0, 0.1, 0.3, 0.5), d=(1000, 4000, 16_000), harder=(1000, 2000, 4000), runs=32)
QUICK = FULL.but(correlations=(0.0, 0.3), d=(1000, 4000), harder=(800, 2400), runs=16)
WORDS = dict(
    correlations="correlations", d="dimensions with a correlation", harder="dimensions without", runs="runs of the chain"
)


def target(correlation: float) -> sl.Target:
    """Return the product of three directions with equal correlations."""
    return sl.Target(lambda x: x[0] * x[1] * x[2], gram=(1 - correlation) * np.eye(3) + correlation)


def problem(correlation: float, d: int) -> sl.ProjectionProblem:
    """Return one unit on the sphere, at the learning rate that suits the largest leap."""
    lr = LR_HARD * d**-0.5 if correlation == 0 else LR
    first = sl.InitialWeights(unit=True, second=SECOND)
    rule = sl.OnePassSGD(lr / SECOND, sphere=True)
    return sl.ProjectionProblem(target(correlation), sl.TwoLayer(1, UNIT), sl.SquaredLoss(), rule, initial=first)


def measure(correlation: float, sizes: tuple[int, ...], runs: int, seed: int = 0) -> list[dict]:
    """Return the median time at which each leap is taken, at each d."""
    rows, labels = [], target(correlation)
    frame = np.linalg.cholesky(np.asarray(labels.gram))
    for stage, leap in enumerate(sl.leaps(labels)):
        found = find_condition(np.linalg.solve(frame.T, leap.directions.T).T)
        for d in sizes:
            t_max = 40.0 * d if leap.order > 2 else 3000 / max(correlation, 0.1) ** 0.5
            how: dict = dict(t_max=t_max, runs=runs, seed=seed, until=found, progress=False)
            start = sl.FixedInit(BEGIN * d**-0.5 * SIGNS[None])
            each = sl.exit_times(sl.simulate(problem(correlation, d), sl.Chain(d), start, **how), found)
            begin = np.linalg.norm(leap.directions @ np.linalg.solve(frame, BEGIN * d**-0.5 * SIGNS))
            way = np.log(FOUND / begin) if leap.order == 2 else 1 - begin / FOUND
            row = {"correlation": correlation, "stage": stage, "leap": leap.order, "d": d, "t": float(np.median(each.t))}
            rows.append(row | {"way": float(way), "error": median_error(each.t.values), "lost": int(each.censored.sum())})
    return rows


def make(size: Size, seed: int, keep: Keep) -> DrawnFigure:
    """Run the chain at each correlation and dimension, and fit the exponents."""
    rows = []
    for correlation in bar(size.correlations, desc="correlations"):
        rows += measure(correlation, size.d if correlation else size.harder, size.runs, seed)
    table = keep("table", tabulate(rows))
    return DrawnFigure(_draw_figure(table, size), _write_caption(table, size))


def _stages(table: xr.Dataset, size: Size):
    for i, correlation in enumerate(size.correlations):
        for stage in np.unique(select_rows(table, correlation=correlation).stage):
            yield i, correlation, int(stage), select_rows(table, correlation=correlation, stage=stage)


def _draw_figure(table: xr.Dataset, size: Size) -> Figure:
    figure, axes = make_panels(1, 2, figsize=(10.0, 4.4))
    _growth(axes[0], table, size)
    _times(axes[1], table, size)
    return figure


def _growth(ax: Axes, table: xr.Dataset, size: Size) -> None:
    for i, correlation, stage, rows in _stages(table, size):
        n, leap = rows.t.values * rows.d.values, int(rows.leap[0])
        label = rf"$\rho = {correlation:g}$: leap {leap}, {ORDINALS[stage]}"
        ax.plot(rows.d, n, "os"[stage], color=OKABE_ITO[i], markersize=5, label=label)
        law = rows.way.values * rows.d.values.astype(float) ** max(1, leap - 1)
        ax.plot(rows.d, law * n[-1] / law[-1], "-", color=OKABE_ITO[i], linewidth=1, alpha=0.7)
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel="samples (median)")
    ax.set_title("(a) lines: $d$, $d\\,\\log d$, $d^2$, through the last point", loc="left")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _times(ax: Axes, table: xr.Dataset, size: Size) -> None:
    for i, correlation, stage, rows in _stages(table, size):
        ax.plot(float(rows.t[-1]), -i, "os"[stage], color=OKABE_ITO[i], markersize=8)
        names = ", ".join(_words(correlation)[stage])
        place = (0, -15 if stage else 8)  # two leaps at nearby times keep their words apart
        ax.annotate(names, (float(rows.t[-1]), -i), place, textcoords="offset points", ha="center", fontsize=7)
    ax.set(xscale="log", xlabel="$t$, samples per dimension, at the largest $d$", ylim=(0.6 - len(size.correlations), 0.6))
    ax.set_yticks([-i for i in range(len(size.correlations))], [rf"$\rho = {each:g}$" for each in size.correlations])
    ax.margins(x=0.2)
    ax.set_title("(b) when each leap is taken, and what it finds", loc="left")


def _words(correlation: float) -> list[list[str]]:
    """Return the directions of each leap as combinations of the teachers."""
    return [leap.sums for leap in sl.leaps(target(correlation))]


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    sentences = [
        "When one unit finds the directions of the product of three teachers whose pairs have the correlation rho, in the",
        f"exact chain: the median over {size.runs} runs of the time at which its overlap with those of a leap is {FOUND:g},",
        f"from {BEGIN:g}/sqrt(d). Leaps are computed from the Hermite tensors; a leap n should take d^max(1, n - 1) samples,",
        "times a factor from the ends of the way, a logarithm for n = 2, which the fit divides out.",
    ]
    for _, correlation, stage, rows in _stages(table, size):
        leap, lost = int(rows.leap[0]), int(rows.lost.sum())
        sentences.append(
            f"rho = {correlation:g}, {ORDINALS[stage]} leap ({leap}: {', '.join(_words(correlation)[stage])}): exponent "
            f"{exponent(rows):.2f} ± {exponent_error(rows):.2f}, expected {max(1, leap - 1)}; "
            f"t = {float(rows.t[-1]):.4g} at d = {int(rows.d[-1])}{f'; {lost} runs not done' if lost else ''}."
        )
    return sentences
