"""Full-batch gradient descent on phase retrieval: networks of several widths fit n samples, and some then generalise.

Free squared units learn one direction without label noise. Each step uses all samples of the dataset (`Reused(n)` with
`batch=n`), so that the training risk decreases to a stationary point of the empirical risk.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import (
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    curve_styles,
    make_panels,
    select_rows,
    sizes,
    tabulate,
)

STEP = 0.025
"""Learning rate divided by d, per unit of the mean over units."""
RATES = {1: 1.0, 4: 3.0, 16: 10.0}
"""Learning rate of each width, relative to that of one unit; the gradient of a unit is divided by the width."""
SHOWN = 2
"""Samples over d of the curves."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 64, 24),
    widths=("widths", (1, 4, 16), (1, 4)),
    ratios=("samples over d", (1.5, 2, 3, 4, 6), (2, 4)),
    steps=("steps", 6000, 600),
    runs=("runs", 16, 8),
    times=("saved times", 40, 12),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate gradient descent for each width and dataset size, and draw population and training risk."""
    curves, rows = {}, []
    for width in bar(size.widths, desc="widths"):
        for ratio in size.ratios:
            found = _simulate(width, round(ratio * size.d), size, seed)
            end = found.isel(t=-1)
            rows.append(
                {"width": width, "ratio": float(ratio), "train": float(end.train_risk.median())}
                | dict(zip(("low", "risk", "high"), np.quantile(end.risk.values, (0.25, 0.5, 0.75)), strict=True))
            )
            if ratio == SHOWN:
                steps = xr.DataArray(found.step.values, dims="t")
                mid = found[["risk", "train_risk"]].median("run").assign_coords(step=steps)
                curves[width] = save_dataset(f"width-{width}", mid)
    table = save_dataset("table", tabulate(rows, d=size.d, runs=size.runs, steps=size.steps))
    return DrawnFigure(_draw_figure(curves, table), _write_caption(curves, table))


def _simulate(width: int, n: int, size: Size, seed: int) -> xr.Dataset:
    """Simulate gradient descent on n samples from random weights, saved after numbers of steps that grow geometrically."""
    problem = sl.presets.phase_retrieval(
        width=width, sphere=False, algorithm=sl.OnePassSGD(STEP * RATES[width] * size.d, batch=n)
    ).replace(data=sl.Reused(n))
    times = np.unique(np.rint(np.geomspace(1, size.steps, size.times))) * (n / size.d)
    how: dict = dict(t_max=times[-1], save=times, runs=size.runs, seed=seed, progress=False)
    return sl.simulate(problem, sl.Chain(size.d), sl.RandomInit(size.d), **how)


def _draw_figure(curves: dict[int, xr.Dataset], table: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(9.0, 3.6))
    for look, (width, found) in zip(curve_styles(len(curves)), curves.items(), strict=True):
        left.plot(found.step, found.risk, color=look.colour, label=f"$p = {width}$")
        left.plot(found.step, found.train_risk, color=look.colour, linestyle="--", linewidth=1)
        rows = select_rows(table, width=width)
        arms = np.abs(np.stack([rows.low, rows.high]) - rows.risk.values)
        how: dict = dict(marker="o", markersize=4, capsize=2, label=f"$p = {width}$")
        right.errorbar(rows.ratio, rows.risk, arms, color=look.colour, **how)
        right.plot(rows.ratio, rows.train, color=look.colour, linestyle="--", linewidth=1)
    left.set(xlabel="steps of gradient descent", title=f"(a) $n = {SHOWN}\\,d$, $d = {table.attrs['d']}$")
    left.set_ylabel("population risk (dashed: training risk)")
    right.set(xlabel="$n/d$", title=f"(b) after {table.attrs['steps']} steps")
    for ax in (left, right):
        ax.set(xscale="log", yscale="log", ylim=(1e-6, 10.0))
        ax.legend()
    right.set_xticks(np.unique(table.ratio), [f"{r:g}" for r in np.unique(table.ratio)], minor=False)
    right.minorticks_off()
    return figure


def _write_caption(curves: dict[int, xr.Dataset], table: xr.Dataset) -> list[str]:
    sentences = [
        f"Phase retrieval by full-batch gradient descent in d = {table.attrs['d']} dimensions with p free units, without label",
        f"noise, {table.attrs['runs']} runs. (a) medians of the population risk (lines) and of the training risk (dashed) for",
        f"n = {SHOWN} d. (b) after {table.attrs['steps']} steps, with quartiles.",
    ]
    for width, found in curves.items():
        start, end = found.isel(t=0), found.isel(t=-1)
        sentences.append(
            f"p = {width}: training risk {float(start.train_risk):.3g} to {float(end.train_risk):.2g}, population risk"
            f" {float(start.risk):.3g} to {float(end.risk):.2g}."
        )
    return sentences
