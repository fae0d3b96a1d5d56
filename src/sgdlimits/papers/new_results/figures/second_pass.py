"""Population and training risk of several passes over n samples, beside one pass over as many fresh samples.

Two erf units learn two orthogonal teachers with label noise. The dataset of each run is drawn once (`Reused(n, "shuffled")`),
and the statistics follow the exact chain. A further pass lowers the training risk; whether it lowers the population risk
depends on the noise and on n/d.
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

PASSES = (1, 2, 4, 10)
"""Numbers of passes after which risks are compared."""
WIDTH, LR = 2, 1.0
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 200, 40),
    noises=("noises", (0.0, 0.01, 0.1), (0.0, 0.1)),
    ratios=("samples over d", (2, 4, 8, 16, 32), (2, 8)),
    shown=("samples over d of the curves", (2, 8, 32), (2, 8)),
    runs=("runs", 32, 8),
    times=("saved times", 40, 12),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate several passes for each noise and dataset size, and draw both risks beside one-pass SGD."""
    curves, rows = {}, []
    for noise in bar(size.noises, desc="noises"):
        fresh = sl.presets.committee(WIDTH, WIDTH, "erf", lr=LR, noise=noise)
        longest = PASSES[-1] * max(size.ratios)
        times = np.unique(np.concatenate([np.geomspace(0.5, longest, size.times), size.ratios]))
        once = _simulate(fresh, size, times, seed)
        for ratio in size.ratios:
            times = np.unique(np.concatenate([np.geomspace(0.5, PASSES[-1] * ratio, size.times), np.multiply(PASSES, ratio)]))
            found = _simulate(fresh.replace(data=sl.Reused(ratio * size.d, "shuffled")), size, times, seed)
            rows += [
                {"noise": noise, "ratio": ratio, "passes": passes} | _compare(found, once, passes * ratio, ratio, noise / 2)
                for passes in PASSES
            ]
            curves[noise, ratio] = save_dataset(f"reused-{noise:g}-{ratio}", _means(found))
        curves[noise, None] = save_dataset(f"fresh-{noise:g}", _means(once))
    table = save_dataset("table", tabulate(rows, d=size.d, runs=size.runs))
    return DrawnFigure(_draw_figure(curves, table, size), _write_caption(table))


def _simulate(problem: sl.ProjectionProblem, size: Size, times: np.ndarray, seed: int) -> xr.Dataset:
    """Simulate the exact chain of SGD over a dataset from random weights, and save it at the given times."""
    how: dict = dict(t_max=times[-1], save=times, runs=size.runs, seed=seed, progress=False)
    return sl.simulate(problem, sl.Chain(size.d), sl.RandomInit(size.d), **how)


def _means(found: xr.Dataset) -> xr.Dataset:
    """Return the means over runs of population and training risk."""
    return found[[name for name in ("risk", "train_risk") if name in found]].mean("run")


def _compare(found: xr.Dataset, once: xr.Dataset, t: float, first: float, floor: float) -> dict[str, float]:
    """Return excess population risk and training risk at time t, and their changes since the end of the first pass.

    The change is a mean over runs, with its standard error. `once` is one-pass SGD, with fresh samples.
    """
    at = lambda data, t: data.sel(t=t, method="nearest")
    before, after = (at(found, time).risk.values - floor for time in (first, t))
    change = np.log(after / before)
    return {
        "excess": after.mean(),
        "train": float(at(found, t).train_risk.mean()),
        "fresh": float((at(once, first).risk - floor).mean()),
        "change": change.mean(),
        "error": change.std(ddof=1) / np.sqrt(len(change)),
    }


def _draw_figure(curves: dict, table: xr.Dataset, size: Size) -> Figure:
    noises = (size.noises[0], size.noises[-1])
    figure, axes = make_panels(1, 3, figsize=(11.0, 3.6))
    looks = curve_styles(len(size.shown) + 1)
    for ax, noise, letter in zip(axes, noises, "ab", strict=False):
        once = curves[noise, None]
        ax.plot(once.t, once.risk, color="0.5", linewidth=3, alpha=0.5, label="fresh samples")
        for look, ratio in zip(looks, size.shown, strict=False):
            found = curves[noise, ratio]
            ax.plot(found.t, found.risk, color=look.colour, label=rf"$n = {ratio}\,d$")
            ax.plot(found.t, found.train_risk, color=look.colour, linestyle="--", linewidth=1)
            end = found.sel(t=ratio, method="nearest")
            ax.plot(end.t, end.risk, "o", color=look.colour, markersize=5)
        ax.set(xscale="log", yscale="log", xlabel="$t$, steps over $d$", title=rf"({letter}) noise $\Delta = {noise:g}$")
    axes[0].set_ylabel("population risk (dashed: training risk)")
    axes[0].legend()
    last = axes[2]
    for look, noise in zip(curve_styles(len(size.noises)), size.noises, strict=True):
        for passes, mark in ((2, "o"), (PASSES[-1], "s")):
            rows = select_rows(table, noise=noise, passes=passes)
            how: dict = dict(color=look.colour, linestyle="-" if passes == 2 else ":", marker=mark, markersize=4, capsize=2)
            label = rf"$\Delta = {noise:g}$, {passes} passes"
            last.errorbar(rows.ratio, np.exp(rows.change), np.exp(rows.change) * rows.error, label=label, **how)
    last.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    last.set(
        xscale="log", yscale="log", xlabel="$n/d$", ylabel="excess risk over that after one pass", title="(c) further passes"
    )
    last.set_xticks(size.ratios, [f"{ratio}" for ratio in size.ratios])
    last.minorticks_off()
    last.legend(fontsize="x-small")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = [
        f"Two erf units learn two teachers, lr {LR:g}, d = {table.attrs['d']}, {table.attrs['runs']} runs of the exact chain",
        "over shuffled passes of n samples. (a), (b) population risk (lines) and training risk (dashed), means over runs; a",
        "dot ends the first pass. (c) excess population risk after 2 and 10 passes, relative to that after the first",
        "(geometric mean over runs).",
    ]
    for noise in dict.fromkeys(table.noise.values.tolist()):
        rows = select_rows(table, noise=noise, passes=PASSES[-1])
        words = ", ".join(
            f"{np.exp(float(row.change)):.3g} at n = {int(row.ratio)} d"
            for row in (rows.isel(point=i) for i in range(rows.sizes["point"]))
        )
        sentences.append(f"Noise {noise:g}: after {PASSES[-1]} passes the excess is {words}.")
    return sentences
