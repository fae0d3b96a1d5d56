"""Escaping mediocrity, figure 1 (right): exit time against the dimension for several widths at constant lr/p [1]_.

The paper compares SGD with its annealed and quenched formulas, (47) and (46), and concludes that the noise of SGD is
negligible. The exact chain shows an effect at any dimension: SGD's own noise near the plateau shortens the quenched time by
:math:`\\log(1+\\kappa)/2\\omega_M`.

The number of steps of the chain grows with d and the number of runs falls, so that all points take equally many samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.lines import Line2D

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, DrawnFigure, Figure, SaveDataset, Size, bar, make_panels
from sgdlimits.papers.mediocrity.theory.times import exit_horizon, ode, read_parameters

LR_PER_UNIT = 1 / 12
"""Learning rate over width, lr/p."""
THRESHOLD = 0.1
"""Relative decrease T of the excess risk, small because the formulas belong to the linear ODE."""
FORMULA_STYLES: dict[str, Any] = {"annealed": ":", "quenched": "--", "noisy_ode": "-"}
"""Line styles by formula."""
MIN_GRID_WIDTH = 8
"""Width from which exits are read off a grid of saved times: a check after each step would cost more than the step."""
FULL_SIZE = Size(
    dimensions=(100, 316, 1000, 3162, 10**4, 10**5, 10**6),
    widths={1: (512, 32, 1e7), 2: (384, 16, 6e6), 5: (256, 8, 3e6), 20: (64, 4, 3e5)},
)
QUICK_WIDTHS = {1: (128, 64, 1e6), 2: (64, 64, 1e6), 5: (64, 32, 3e5), 20: (16, 8, 8e4)}
"""Most runs, fewest runs, and samples per point over d, by width, at the quick size."""
QUICK_SIZE = FULL_SIZE.with_changes(dimensions=(100, 1000, 10_000), widths=QUICK_WIDTHS)
PARAMETER_WORDS = dict(dimensions="dimensions", widths="runs of a point")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate mean exit times at several widths and dimensions, and draw them against d with the paper's formulas."""
    points = [(width, d) for width in size.widths for d in size.dimensions]
    rows = []
    for width, d in bar(points, desc="points"):
        most, fewest, samples = size.widths[width]
        # a constant budget of samples at each width
        runs = int(np.clip(samples / d, fewest, most))
        problem = sl.presets.phase_retrieval(width=width, lr=LR_PER_UNIT * width)
        mean = sl.summarise(simulate_exits(problem, d, runs, seed), quantiles=()).mean.scaled(float(problem.rate))
        formulas = {name: LR_PER_UNIT * sl.theory.mediocrity.exit_time(problem, d, THRESHOLD, name) for name in FORMULA_STYLES}
        rows.append({"simulated": mean.value, "low": mean.low, "high": mean.high, "runs": runs, **formulas})
    shape, coords = (len(size.widths), len(size.dimensions)), {"width": list(size.widths), "d": list(size.dimensions)}
    columns = {name: (("width", "d"), np.reshape([row[name] for row in rows], shape)) for name in rows[0]}
    table = xr.Dataset(columns, coords, {"lr_per_unit": LR_PER_UNIT, "threshold": THRESHOLD, "time": "that of the paper"})
    save_dataset("table", table)
    return DrawnFigure(_draw_figure(table), _write_caption(table))


def simulate_exits(problem: sl.ProjectionProblem, d: int, runs: int, seed: int) -> xr.Dataset:
    """Simulate the chain from random starts, and return its exit times.

    For wide networks they are interpolated between saved times.
    """
    at = read_parameters(problem, d, THRESHOLD)
    if problem.network.width < MIN_GRID_WIDTH:
        how: dict = {"t_max": exit_horizon(at), "until": sl.exits(THRESHOLD)}
    else:
        # exits are interpolated between saved times
        how = {"t_max": ode(at) + 3 * at.time_per_log, "save": 300}
    found = sl.simulate(problem, sl.Chain(d), sl.RandomInit(d), runs=runs, seed=seed, progress=False, **how)
    return sl.exit_times(found, THRESHOLD)


def _draw_figure(table: xr.Dataset) -> Figure:
    figure, ax = make_panels(figsize=(5.6, 4.3))
    for colour, width in zip(OKABE_ITO_COLOURS, table.width.values, strict=False):
        row = table.sel(width=width)
        for name, dashes in FORMULA_STYLES.items():
            ax.plot(row.d, row[name], color=colour, linestyle=dashes, linewidth=1.2 if name == "noisy_ode" else 0.9)
        bars = np.abs(np.stack([row.low - row.simulated, row.high - row.simulated]))
        ax.errorbar(row.d, row.simulated, bars, fmt="o", color=colour, markersize=4, capsize=2)
    ax.set(xscale="log", xlabel=r"$d$", ylabel=r"exit time of the paper, $\gamma t/p$", ylim=(0, None))
    words = {"annealed": "annealed (47)", "quenched": "quenched (46)", "noisy_ode": "full ODE with SGD's noise at the saddle"}
    handles = [Line2D([], [], color="0.3", linestyle=FORMULA_STYLES[name], label=words[name]) for name in FORMULA_STYLES]
    handles += [Line2D([], [], color="0.3", marker="o", linestyle="", markersize=4, label="exact chain, 95 %")]
    colours = zip(OKABE_ITO_COLOURS, table.width.values, strict=False)
    widths = [Line2D([], [], color=colour, linewidth=3, label=f"p = {p}") for colour, p in colours]
    ax.add_artist(ax.legend(handles=widths, loc="upper left", handlelength=1.5))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    ax.set_title(rf"$T = {THRESHOLD:g}$, $\gamma/p = 1/{1 / LR_PER_UNIT:.0f}$, no label noise")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    error = (table.high - table.low) / 2 / 1.96
    sentences = [
        "Figure 1 (right) of the paper shows exit times of SGD against d beside its annealed and quenched formulas at constant",
        "lr/p, and suggests that stochasticity can be neglected. It does not give lr/p, the noise and the threshold; here they",
        f"are 1/{1 / LR_PER_UNIT:.0f}, 0 and T = {THRESHOLD:g}. Dots are means over random starts of the exact chain, which",
        "has the law of SGD; bars are 95 % intervals.",
    ]
    for width in table.width.values:
        row, bars = table.sel(width=width), error.sel(width=width)
        last, bar = row.isel(d=-1), float(bars.isel(d=-1))
        gap = lambda name, row=row: float(100 * (row[name] / row.simulated - 1).mean())
        far = {name: ((row[name] - row.simulated) / bars).values for name in ("quenched", "noisy_ode")}
        worst = {name: np.sqrt((each**2).mean()) for name, each in far.items()}
        sentences.append(
            f"p = {width}: at d = {int(last.d)} the chain ({int(last.runs)} runs) exits at {float(last.simulated):.3f} ± "
            f"{bar:.3f}; quenched {float(last.quenched):.3f}, full ODE with noise {float(last.noisy_ode):.3f}. Over all d "
            f"the annealed formula is {gap('annealed'):+.1f} % from the chain, the quenched one {gap('quenched'):+.1f} % (root "
            f"mean square {worst['quenched']:.1f} standard errors) and the full ODE with noise {gap('noisy_ode'):+.1f} % "
            f"({worst['noisy_ode']:.1f})."
        )
    return sentences
