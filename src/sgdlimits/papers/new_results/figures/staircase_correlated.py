r"""Leaps between correlated directions: the order in which one unit finds three teachers of equal pairwise correlation.

The label is :math:`x_1x_2x_3` of three teachers whose pairs have the correlation :math:`\rho`. Orthogonal teachers are found
together by a leap of 3. At any other correlation :math:`E[\partial_i y] = \rho` makes a leap of 1 along their sum; once the
sum is known, their differences are a leap of 2. One unit on the sphere starts at overlaps :math:`\pm 2/\sqrt d`, with the
signs from which it learns.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.ticker import NullFormatter
from numpy.polynomial.hermite_e import herme2poly

import sgdlimits as sl
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    make_panels,
    select_rows,
    tabulate,
)
from sgdlimits.papers.new_results.figures.staircase import (
    FOUND_OVERLAP,
    ORDINALS,
    SECOND_LAYER,
    START_FACTOR,
    estimate_exponent_error,
    estimate_log_median_error,
    fit_exponent,
    overlap_margin,
)

ACTIVATION = sl.Polynomial(herme2poly([0.0, 1 / 2, 0.0, -1 / 6]))
"""Activation with the Hermite coefficients 1/2 and -1 of order 1 and 3; the negative one makes the differences grow."""
SIGNS = np.array([1.0, 1.0, -1.0])
"""Signs of the initial overlaps; their product is negative, as the third Hermite coefficient is."""
LR, LR_HARD = 0.02, 0.4
"""Learning rate times the second layer, and the same times sqrt(d) for a leap of 3."""
FULL_SIZE = Size(correlations=(0.0, 0.1, 0.3, 0.5), d=(1000, 4000, 16_000), harder=(1000, 2000, 4000), runs=32)
QUICK_SIZE = FULL_SIZE.with_changes(correlations=(0.0, 0.3), d=(1000, 4000), harder=(800, 2400), runs=16)
PARAMETER_WORDS = dict(
    correlations="correlations", d="dimensions with a correlation", harder="dimensions without", runs="runs of the chain"
)


def build_target(correlation: float) -> sl.Target:
    """Return the target x1 x2 x3 of three directions with equal pairwise correlation."""
    return sl.Target(lambda x: x[0] * x[1] * x[2], gram=(1 - correlation) * np.eye(3) + correlation)


def build_problem(correlation: float, d: int) -> sl.ProjectionProblem:
    """Build the problem of one unit on the sphere, at the learning rate for the target's largest leap."""
    # at a constant rate the corrector would outgrow the signal of a leap of 3
    lr = LR_HARD * d**-0.5 if correlation == 0 else LR
    algorithm = sl.OnePassSGD(lr / SECOND_LAYER, sphere=True)
    initial = sl.InitialWeights(unit=True, second=SECOND_LAYER)
    return sl.ProjectionProblem(
        build_target(correlation), sl.TwoLayer(1, ACTIVATION), sl.SquaredLoss(), algorithm, initial=initial
    )


def measure_leaps(correlation: float, sizes: tuple[int, ...], runs: int, seed: int = 0) -> list[dict]:
    """Simulate the chain, and return a table row for each leap and dimension.

    A row has the median time at which the directions of the leap are found; `sizes` are the dimensions.
    """
    rows, labels = [], build_target(correlation)
    frame = np.linalg.cholesky(np.asarray(labels.gram))
    for stage, leap in enumerate(sl.leaps(labels)):
        found = overlap_margin(np.linalg.solve(frame.T, leap.directions.T).T)
        for d in sizes:
            # a leap of 3 takes d^2 samples, t of order d
            t_max = 40.0 * d if leap.order > 2 else 3000 / max(correlation, 0.1) ** 0.5
            how: dict = dict(t_max=t_max, runs=runs, seed=seed, until=found, progress=False)
            start = sl.FixedInit(START_FACTOR * d**-0.5 * SIGNS[None])
            each = sl.exit_times(sl.simulate(build_problem(correlation, d), sl.Chain(d), start, **how), found)
            begin = np.linalg.norm(leap.directions @ np.linalg.solve(frame, START_FACTOR * d**-0.5 * SIGNS))
            way = np.log(FOUND_OVERLAP / begin) if leap.order == 2 else 1 - begin / FOUND_OVERLAP
            row = {"correlation": correlation, "stage": stage, "leap": leap.order, "d": d, "t": float(np.median(each.t))}
            rows.append(
                row | {"way": float(way), "error": estimate_log_median_error(each.t.values), "lost": int(each.censored.sum())}
            )
    return rows


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the chain at each correlation and dimension, fit the exponents of d, and draw samples and order of the leaps."""
    rows = []
    for correlation in bar(size.correlations, desc="correlations"):
        rows += measure_leaps(correlation, size.d if correlation else size.harder, size.runs, seed)
    table = save_dataset("table", tabulate(rows))
    return DrawnFigure(_draw_figure(table, size), _write_caption(table, size))


def _select_stages(table: xr.Dataset, size: Size):
    """Yield, for each leap of each target, the index and value of the correlation, the leap's index, and its rows."""
    for i, correlation in enumerate(size.correlations):
        for stage in np.unique(select_rows(table, correlation=correlation).stage):
            yield i, correlation, int(stage), select_rows(table, correlation=correlation, stage=stage)


def _draw_figure(table: xr.Dataset, size: Size) -> Figure:
    figure, axes = make_panels(1, 2, figsize=(10.0, 4.4))
    _draw_growth(axes[0], table, size)
    _draw_order(axes[1], table, size)
    return figure


def _draw_growth(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the median number of samples of each leap against d, with the predicted growth through the last point."""
    for i, correlation, stage, rows in _select_stages(table, size):
        n, leap = rows.t.values * rows.d.values, int(rows.leap[0])
        label = rf"$\rho = {correlation:g}$: leap {leap}, {ORDINALS[stage]}"
        ax.plot(rows.d, n, "os"[stage], color=OKABE_ITO_COLOURS[i], markersize=5, label=label)
        law = rows.way.values * rows.d.values.astype(float) ** max(1, leap - 1)
        ax.plot(rows.d, law * n[-1] / law[-1], "-", color=OKABE_ITO_COLOURS[i], linewidth=1, alpha=0.7)
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel="samples (median)")
    ax.set_title("(a) lines: $d$, $d\\,\\log d$, $d^2$, through the last point", loc="left")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _draw_order(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the time of each leap at the largest d, one line per correlation.

    The directions that the leap finds are written beside it.
    """
    for i, correlation, stage, rows in _select_stages(table, size):
        ax.plot(float(rows.t[-1]), -i, "os"[stage], color=OKABE_ITO_COLOURS[i], markersize=8)
        names = ", ".join(_format_directions(correlation)[stage])
        place = (0, -15 if stage else 8)  # two leaps at nearby times keep their words apart
        ax.annotate(names, (float(rows.t[-1]), -i), place, textcoords="offset points", ha="center", fontsize=7)
    ax.set(xscale="log", xlabel="$t$, samples per dimension, at the largest $d$", ylim=(0.6 - len(size.correlations), 0.6))
    ax.set_yticks([-i for i in range(len(size.correlations))], [rf"$\rho = {each:g}$" for each in size.correlations])
    ax.margins(x=0.2)
    ax.set_title("(b) when each leap is taken, and what it finds", loc="left")


def _format_directions(correlation: float) -> list[list[str]]:
    """Return the directions of each leap as text, as linear combinations of the teachers."""
    return [leap.sums for leap in sl.leaps(build_target(correlation))]


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    sentences = [
        "When one unit finds the directions of the product of three teachers whose pairs have the correlation rho, in the",
        f"exact chain: the median over {size.runs} runs of the time at which its overlap with those of a leap is",
        f"{FOUND_OVERLAP:g}, from {START_FACTOR:g}/sqrt(d). Leaps are computed from the Hermite tensors; a leap n should take",
        "d^max(1, n - 1) samples, times a factor from the ends of the way, a logarithm for n = 2, which the fit divides out.",
    ]
    for _, correlation, stage, rows in _select_stages(table, size):
        leap, lost = int(rows.leap[0]), int(rows.lost.sum())
        names = ", ".join(_format_directions(correlation)[stage])
        sentences.append(
            f"rho = {correlation:g}, {ORDINALS[stage]} leap ({leap}: {names}): exponent "
            f"{fit_exponent(rows):.2f} ± {estimate_exponent_error(rows):.2f}, expected {max(1, leap - 1)}; "
            f"t = {float(rows.t[-1]):.4g} at d = {int(rows.d[-1])}{f'; {lost} runs not done' if lost else ''}."
        )
    return sentences
