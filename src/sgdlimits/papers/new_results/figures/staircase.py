"""Leaps of multi-index targets: the order in which one unit finds their directions, and the growth of the samples with d.

The leaps are computed from the Hermite tensors of the target (`leaps`), the times are those of the exact chain. One unit on the
sphere starts at the overlap 2/sqrt(d) with each direction, of the sign that learns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.ticker import NullFormatter
from numpy.polynomial.hermite_e import herme2poly

import sgdlimits as sl
from sgdlimits.model import Leap
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

ACTIVATION = sl.Polynomial(herme2poly([0.0, 1 / 2, 1 / 2, 1 / 3]))
"""Activation with the Hermite coefficients 1/2, 1 and 2 of order 1, 2, 3."""
SECOND_LAYER = 0.1
"""Second-layer weight, small so that the residual is nearly the label."""
FOUND_OVERLAP, START_FACTOR = 0.3, 2.0
"""Overlap at which a direction counts as found, and sqrt(d) times the initial overlap."""


class StaircaseTarget(NamedTuple):
    """Multi-index target, with the learning rate times the second layer at which it is learnt.

    The target is a function of k directions. For a leap of order 3, the product of rate and second layer is given times
    sqrt(d).
    """

    fn: Callable
    k: int
    lr: float


# targets by the names that the figure prints
TARGETS = {
    "x1 + x1 x2": StaircaseTarget(lambda x: x[0] + x[0] * x[1], 2, 0.08),
    "x1 x2": StaircaseTarget(lambda x: x[0] * x[1], 2, 0.08),
    "x1 + x1 x2 x3": StaircaseTarget(lambda x: x[0] + x[0] * x[1] * x[2], 3, 0.02),
    "x1 x2 x3": StaircaseTarget(lambda x: x[0] * x[1] * x[2], 3, 0.4),
}
ORDINALS = ("first", "second", "third")
FULL_SIZE = Size(d=(2000, 8000, 32_000), harder=(1000, 2000, 4000), runs=64, names=tuple(TARGETS))
QUICK_SIZE = FULL_SIZE.with_changes(d=(2000, 8000), harder=(800, 2400), runs=32)
PARAMETER_WORDS = dict(
    d="dimensions for leaps of at most 2", harder="dimensions for a leap of 3", runs="runs of the chain", names="targets"
)


def build_target(name: str) -> sl.Target:
    """Build the multi-index target with a name of `TARGETS`, such as "x1 + x1 x2"."""
    return sl.Target(TARGETS[name].fn, TARGETS[name].k)


def build_problem(name: str, d: int) -> sl.ProjectionProblem:
    """Build the problem in which one unit on the sphere learns a target, at the learning rate for its largest leap."""
    # at a constant rate the corrector would outgrow the signal of a leap of 3
    lr = TARGETS[name].lr * (d**-0.5 if max(leap.order for leap in sl.leaps(build_target(name))) > 2 else 1.0)
    algorithm = sl.OnePassSGD(lr / SECOND_LAYER, sphere=True)
    initial = sl.InitialWeights(unit=True, second=SECOND_LAYER)
    return sl.ProjectionProblem(build_target(name), sl.TwoLayer(1, ACTIVATION), sl.SquaredLoss(), algorithm, initial=initial)


def measure_leaps(name: str, sizes: tuple[int, ...], runs: int, seed: int = 0) -> list[dict]:
    """Simulate the chain, and return a table row for each leap and dimension.

    A row has the median time at which the directions of the leap are found; `sizes` are the dimensions.
    """
    rows = []
    for stage, leap in enumerate(sl.leaps(build_target(name))):
        found = overlap_margin(leap.directions)
        for d in sizes:
            # a leap of 3 takes d^2 samples, t of order d
            how: dict = dict(t_max=40 * d if leap.order > 2 else 3000, runs=runs, seed=seed, until=found, progress=False)
            each = sl.exit_times(
                sl.simulate(build_problem(name, d), sl.Chain(d), sl.FixedInit(START_FACTOR * d**-0.5), **how), found
            )
            time = float(np.median(each.t))
            row = {"name": name, "stage": stage, "leap": leap.order, "d": d, "t": time, "lost": int(each.censored.sum())}
            rows.append(row | {"way": _find_path_factor(leap, d), "error": estimate_log_median_error(each.t.values)})
    return rows


def estimate_log_median_error(times: np.ndarray) -> float:
    """Return the standard error of the logarithm of the median of times, from 400 bootstrap samples."""
    drawn = np.random.default_rng(0).choice(times, (400, times.size))
    return float(np.log(np.median(drawn, axis=1)).std(ddof=1))


def overlap_margin(directions: np.ndarray) -> Callable:
    """Return a stop margin, the norm of the first unit's overlap with given directions less `FOUND_OVERLAP`.

    Each row of `directions` has the coefficients of one direction along the fixed directions.
    """
    D = jnp.asarray(directions)
    return lambda stats: jnp.linalg.norm(D @ stats.M[0]) - FOUND_OVERLAP


def _find_path_factor(leap: Leap, d: int) -> float:
    r"""Return the factor of a leap of order n in the number of samples, without its power of d.

    It is the integral of m^(1-n) over the overlap m: a logarithm for n = 2, and nearly 1 otherwise.
    """
    begin = START_FACTOR * (len(leap.directions) / d) ** 0.5
    return float(np.log(FOUND_OVERLAP / begin) if leap.order == 2 else 1 - begin / FOUND_OVERLAP)


def fit_exponent(rows: xr.Dataset) -> float:
    """Fit the exponent of d in the number of samples for one leap, after division by the leap's path factor."""
    return float(np.polyfit(np.log(rows.d), np.log(rows.t * rows.d / rows.way), 1)[0])


def estimate_exponent_error(rows: xr.Dataset) -> float:
    """Return the standard error of the fitted `fit_exponent`, from the errors of the logarithms of the medians."""
    x = np.log(rows.d) - np.log(rows.d).mean()
    return float(np.sqrt((x**2 * rows.error**2).sum()) / (x**2).sum())


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the chain for each target and dimension, and draw the samples and the order of the leaps."""
    rows = []
    for name in bar(size.names, desc="targets"):
        hard = max(leap.order for leap in sl.leaps(build_target(name))) > 2
        rows += measure_leaps(name, size.harder if hard else size.d, size.runs, seed)
    table = save_dataset("table", tabulate(rows))
    return DrawnFigure(_draw_figure(table, size), _write_caption(table, size))


def _select_stages(table: xr.Dataset, size: Size):
    """Yield, for each leap of each target, the target's name, the leap's index, and the leap's rows of the table."""
    for name in size.names:
        for stage in np.unique(select_rows(table, name=name).stage):
            yield name, int(stage), select_rows(table, name=name, stage=stage)


def _draw_figure(table: xr.Dataset, size: Size) -> Figure:
    figure, axes = make_panels(1, 2, figsize=(10.0, 4.4))
    _draw_growth(axes[0], table, size)
    _draw_order(axes[1], table, size)
    return figure


def _draw_growth(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the median samples of each leap against the dimension, with the theoretical growth."""
    for name, stage, rows in _select_stages(table, size):
        colour, leap = OKABE_ITO_COLOURS[size.names.index(name)], int(rows.leap[0])
        n = rows.t.values * rows.d.values
        ax.plot(rows.d, n, "os^"[stage], color=colour, markersize=5, label=f"{name}: leap {leap}, {ORDINALS[stage]}")
        law = rows.way.values * rows.d.values.astype(float) ** max(1, leap - 1)
        ax.plot(rows.d, law * n[-1] / law[-1], "-", color=colour, linewidth=1, alpha=0.7)
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel="samples (median)")
    ax.set_title("(a) lines: $d$, $d\\,\\log d$, $d^2$, through the last point", loc="left")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def _draw_order(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the median time of each leap at the largest dimension, one line per target."""
    for name, stage, rows in _select_stages(table, size):
        ax.plot(
            float(rows.t[-1]),
            -size.names.index(name),
            "os^"[stage],
            color=OKABE_ITO_COLOURS[size.names.index(name)],
            markersize=8,
        )
    for i, name in enumerate(size.names):
        ends = select_rows(table, name=name, d=select_rows(table, name=name).d.values.max())
        ax.plot([float(ends.t.min()), float(ends.t.max())], [-i, -i], "-", color=OKABE_ITO_COLOURS[i], linewidth=1, alpha=0.5)
    ax.set(xscale="log", xlabel="$t$, samples per dimension, at the largest $d$", ylim=(-len(size.names) + 0.4, 0.6))
    ax.set_yticks([-i for i in range(len(size.names))], size.names)
    ax.set_title("(b) when each leap is taken", loc="left")


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    sentences = [
        "Which directions of a multi-index target one unit finds when, in the exact chain: the median over",
        f"{size.runs} runs of the time at which its overlap with those of a leap is {FOUND_OVERLAP:g}, from",
        f"{START_FACTOR:g}/sqrt(d). Leaps and directions are computed from the target's Hermite tensors; a leap n should take",
        "d^max(1, n - 1) samples,",
        "times a factor from the ends of the way, a logarithm for n = 2, which the fit divides out.",
    ]
    for name, stage, rows in _select_stages(table, size):
        leap, lost = int(rows.leap[0]), int(rows.lost.sum())
        sentences.append(
            f"{name}, {ORDINALS[stage]} leap ({leap}): "
            f"exponent {fit_exponent(rows):.2f} +- {estimate_exponent_error(rows):.2f}, "
            f"expected {max(1, leap - 1)}; "
            f"t = {float(rows.t[-1]):.4g} at d = {int(rows.d[-1])}{f'; {lost} runs not done' if lost else ''}."
        )
    return sentences
