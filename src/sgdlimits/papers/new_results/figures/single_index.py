"""Single-index targets: samples that one unit needs against the dimension, for the information exponents 1, 2 and 3.

A target with the exponent n needs of the order of d samples for n = 1, d log d for n = 2 and :math:`d^{n-1}` for
:math:`n \\ge 3`, at a learning rate that falls as :math:`d^{-(n-2)/2}` there [15]_. The exact chain follows one unit, student
and target alike, from the typical overlap of random weights, :math:`1/\\sqrt d`, to 1/2, at the learning rate `recommended_lr`.
The target of exponent 3 is a cubic that is bounded, which is learnt after a seventh of the samples that He_3 needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.lines import Line2D

import sgdlimits as sl
from sgdlimits.analysis.single_index import exit_time, samples
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    half_overlap_margin,
    make_panels,
    select_rows,
    strip_markup,
    tabulate,
)

END_OVERLAP, MAX_TIME_FACTOR = 0.5, 40
"""Final overlap, and the end of a run as a multiple of its theoretical mean time."""
RATE_FACTORS = {1: 1.0, 2: 1.0, 3: 4.0}
"""Learning rate over the recommended one: for exponent 3 noise makes a larger rate faster, by a factor independent of d."""


def soft_cubic(x):
    """Evaluate a bounded cubic activation of information exponent 3."""
    return (x**3 - 3 * x / 1.3) * jnp.exp(-0.15 * x**2)


TARGETS: dict[int, tuple[str | Callable, str, str]] = {
    1: ("linear", r"$x$", "d"),
    2: ("he2", r"$x^2 - 1$", r"d\,\log d"),
    3: (soft_cubic, r"$(x^3 - 3x/1.3)\,e^{-0.15\,x^2}$", "d^2"),
}
"""For each exponent a target, its formula, and the growth of its samples in LaTeX."""
# runs by exponent and dimension: fewer where a run takes longer
RUNS_BY_DIMENSION = {
    1: {100: 256, 1000: 256, 10**4: 128, 10**5: 64, 10**6: 16},
    2: {100: 512, 316: 512, 1000: 256, 3162: 128, 10**4: 64, 31623: 32, 10**5: 16},
    3: {100: 256, 316: 128, 1000: 64, 2000: 32},
}
FULL_SIZE = Size(runs=RUNS_BY_DIMENSION)
QUICK_SIZE = FULL_SIZE.with_changes(
    runs={1: {100: 64, 1000: 64, 10**4: 64}, 2: {100: 128, 1000: 64, 4000: 64}, 3: {60: 64, 120: 64}}
)
PARAMETER_WORDS = dict(runs="runs and dimensions of each exponent")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate learning times for information exponents 1, 2 and 3, and draw the samples against the dimension."""
    points = [(n, d, runs) for n, row in size.runs.items() for d, runs in row.items()]
    rows = [measure_point(n, d, runs, seed) for n, d, runs in bar(points, desc="points")]
    exponents, dimensions, _ = zip(*points, strict=True)
    table = save_dataset("table", tabulate(rows, coords={"exponent": exponents, "d": dimensions}, overlap=END_OVERLAP))
    stuck = save_dataset("constant", constant_rate_times(select_rows(table, exponent=3)))
    return DrawnFigure(_draw_figure(table, stuck), _write_caption(table, stuck))


def measure_point(n: int, d: int, runs: int, seed: int) -> dict[str, float]:
    """Return a table row with the chain's mean time from overlap 1/sqrt(d) to 1/2, and the times of ODE and diffusion.

    The target has the information exponent n.
    """
    fn = TARGETS[n][0]
    lr = RATE_FACTORS[n] * sl.recommended_lr(sl.presets.single_index(fn), d, END_OVERLAP)
    problem = sl.presets.single_index(fn, lr=lr)
    ode, noisy = (exit_time(problem, d, END_OVERLAP, noise=noise) for noise in (False, True))
    # 40 mean times: censoring would be rare
    how: dict = dict(t_max=MAX_TIME_FACTOR * noisy, runs=runs, seed=seed, until=half_overlap_margin, progress=False)
    found = sl.exit_times(sl.simulate(problem, sl.Chain(d), sl.FixedInit(d**-0.5), **how), half_overlap_margin)
    mean = sl.summarise(found, quantiles=()).mean
    return {"lr": lr, "t": mean.value, "low": mean.low, "high": mean.high, "ode": ode, "noisy": noisy, "runs": runs}


def constant_rate_times(rows: xr.Dataset) -> xr.Dataset:
    """Return the diffusion's mean learning time for exponent 3, at growing d and a constant learning rate.

    The rate is that of the smallest dimension in the simulated `rows`.
    """
    # the rate of the smallest dimension
    lr, d = float(rows.lr[0]), np.unique(np.geomspace(rows.d[0], 100 * rows.d[0], 30).astype(int))
    t = exit_time(sl.presets.single_index(TARGETS[3][0], lr=lr), d, END_OVERLAP, noise=True)
    return xr.Dataset({"t": ("d", t)}, coords={"d": d}, attrs={"lr": lr, "exponent": 3})


def standard_errors(rows: xr.Dataset) -> np.ndarray:
    """Return the standard errors of the mean times in a table, each at least 1/d, the resolution of one sample."""
    # from the 95 % interval, and at least one sample, the resolution of exit times
    return np.maximum((rows.high - rows.low).values / (2 * 1.96), 1 / rows.d.values)


def fit_slope(rows: xr.Dataset, logarithm: bool) -> tuple[float, float]:
    """Fit the exponent of d in the number of samples, and return it with its standard error.

    With `logarithm` the slope of the time in log d is fitted instead.
    """
    d, t, error = rows.d.values, rows.t.values, standard_errors(rows)
    # errors of log(t d) are relative ones
    y, error = (t, error) if logarithm else (np.log(t * d), error / t)
    line, covariance = np.polyfit(np.log(d), y, 1, w=1 / error, cov="unscaled")
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def _draw_figure(table: xr.Dataset, stuck: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(8.2, 4.2))
    for colour, (n, (_, text, growth)) in zip(OKABE_ITO_COLOURS, TARGETS.items(), strict=False):
        rows = select_rows(table, exponent=n)
        d, last = rows.d.values, rows.isel(point=-1)
        _draw_samples(left, rows, d, colour, f"exponent {n}: {text}")
        _draw_samples(right, rows, d / samples(n, d), colour, rf"samples / ${growth}$")
        how: dict = dict(xytext=(7, -3), textcoords="offset points", color=colour, va="top")
        left.annotate(rf"$d^{{\,{fit_slope(rows, logarithm=False)[0]:.2f}}}$", (float(last.d), float(last.t * last.d)), **how)
    left.plot(stuck.d, stuck.t * stuck.d, color=OKABE_ITO_COLOURS[2], linestyle="-.", linewidth=0.9)
    counts = (table.t * table.d).values
    left.set(xscale="log", yscale="log", ylim=(counts.min() / 3, counts.max() * 4))
    left.set_ylabel(f"samples to the overlap {END_OVERLAP:g}")
    right.set(xscale="log", ylim=(0, None), ylabel="samples over their growth in theory")
    for ax, place in ((left, "lower right"), (right, "center right")):
        ax.set_xlabel("$d$")
        ax.legend(loc=place, handlelength=1.2, fontsize=8)
    styles: dict[str, Any] = {"full ODE": "--", "with SGD's noise": "-", "exponent 3 at a constant rate": "-."}
    handles = [Line2D([], [], color="0.3", linestyle=dashes, label=words) for words, dashes in styles.items()]
    dots = Line2D([], [], color="0.3", marker="o", linestyle="", markersize=4, label="exact chain, mean, 95 %")
    figure.legend(handles=[dots, *handles], loc="outside lower center", ncols=4)
    return figure


def _draw_samples(ax: Axes, rows: xr.Dataset, factor: np.ndarray, colour: str, label: str) -> None:
    """Draw the mean times of chain, ODE and diffusion against d, each multiplied by the `factor` of its dimension."""
    bars = np.abs(np.stack([rows.low - rows.t, rows.high - rows.t])) * factor
    ax.plot(rows.d, rows.ode * factor, "--", color=colour, linewidth=0.9)
    ax.plot(rows.d, rows.noisy * factor, "-", color=colour, linewidth=1.2)
    ax.errorbar(rows.d, rows.t * factor, bars, fmt="o", color=colour, markersize=4, capsize=2, label=label)


def _write_caption(table: xr.Dataset, stuck: xr.Dataset) -> list[str]:
    sentences = [
        "One unit learns a single-index target with its own activation on the sphere, without label noise: samples from the",
        f"overlap 1/sqrt(d), typical of random weights, to {END_OVERLAP:g}, at the learning rate recommended_lr, for exponent",
        f"3 at {RATE_FACTORS[3]:g} times it, which scales in the same way and where the ODE does not learn. Dots are means of",
        "the exact chain, which has the law of SGD; lines are the ODE (dashed) and the diffusion, which has SGD's noise",
        "(solid). Numbers at the lines are exponents of d in fits of a power to the dots.",
    ]
    for n, (_, text, growth) in TARGETS.items():
        rows = select_rows(table, exponent=n)
        (power, error), last = fit_slope(rows, logarithm=False), rows.isel(point=-1)
        away = np.sqrt((((rows.t - rows.noisy) / standard_errors(rows)) ** 2).mean())
        sentences.append(
            f"Exponent {n}, {strip_markup(text)}: lr from {float(rows.lr[0]):.3g} at d = {int(rows.d[0])} to "
            f"{float(last.lr):.3g} at d = {int(last.d)}. Samples grow as d^({power:.3f} ± {error:.1g}) in a fit of a power; "
            f"theory {strip_markup(growth)}. At the last d t = {float(last.t):.4g} ({int(last.runs)} runs), by the diffusion "
            f"{float(last.noisy):.4g}, by the ODE {float(last.ode):.4g}; over all d the diffusion is {float(away):.1f} "
            "standard errors from the chain (root mean square)."
        )
        if n == 2:
            rise, error = fit_slope(rows, logarithm=True)
            sentences.append(f"Against log d, t rises by {rise:.2f} ± {error:.2f}; by the linear ODE 1/(2 rate) = 3.00.")
    late = int(stuck.d[np.flatnonzero(stuck.t.values > 10 * stuck.d.values)[0]])
    sentences.append(
        f"At the rate of the smallest d, {stuck.attrs['lr']:.3g}, kept constant (dash-dotted, diffusion), the barrier that the "
        f"corrector makes grows with d, and from d = {late} on more than 10 d^2 samples are needed."
    )
    return sentences
