"""Escaping mediocrity, figure 2: the ODE and many runs of SGD at widths 5 and 20, d = 5000 [1]_.

The paper shows that runs of SGD remain random at a large but finite dimension while the ODE describes their average. The exact
chain has the same law as SGD at a lower cost; the figure has many runs of the chain and a few of SGD.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, make_panels, standard_error

LR_PER_UNIT, THRESHOLD = 1 / 12, 0.5
FULL_SIZE = Size(widths=(5, 20), d=5000, t_max=36.0, sgd=4, chain=48)
QUICK_SIZE = FULL_SIZE.with_changes(d=300, t_max=30.0, chain=24)
PARAMETER_WORDS = dict(widths="widths", d="dimension", t_max="end in t", sgd="runs of SGD", chain="runs of the chain")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate SGD, chain and ODE at two widths, each from one random start, and draw the risk against time."""
    datasets = {}
    for width in size.widths:
        problem = sl.presets.phase_retrieval(width=width, lr=LR_PER_UNIT * width)
        start = sl.RandomInit(size.d).one(problem, seed=seed)
        levels = {"SGD": (sl.SGD(size.d), size.sgd), "chain": (sl.Chain(size.d), size.chain), "ODE": (sl.ODE(), 1)}
        for name, (level, runs) in levels.items():
            found = sl.simulate(problem, level, start, t_max=size.t_max, runs=runs, seed=seed, save=200)
            datasets[f"{name}-{width}"] = found
            # p^2 values at each time, which the figure does not show
            save_dataset(f"{level.name}-{width}", found.drop_vars("Q"))
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(1, 2, figsize=(8.4, 3.6), sharey=False)
    for ax, width in zip(axes, size.widths, strict=True):
        labels = {"SGD": f"SGD, {size.sgd} runs", "chain": f"exact chain, {size.chain} runs", "ODE": "ODE"}
        named = {label: datasets[f"{name}-{width}"] for name, label in labels.items()}
        sl.plot.risk(named, ax, clock="paper", singles=100, band=None, legend=False)
        ax.set(title=rf"$p = {width}$, $d = {size.d}$", ylim=(0, None), xlabel=r"time of the paper, $\gamma t/p$")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    sentences = [
        "Figure 2 of the paper compares the ODE with many runs of SGD at p = 5 and p = 20, d = 5000, and finds that the ODE",
        f"describes them on average. It does not give lr and noise; here they are p/12 and 0, and d = {size.d}. Thin lines",
        "are runs from one random start and thick lines means; the chain has the law of SGD at a lower cost.",
    ]
    for width in size.widths:
        chain, sgd, ode = (datasets[f"{name}-{width}"] for name in ("chain", "SGD", "ODE"))
        times = lambda dataset: sl.exit_times(dataset, THRESHOLD).t.values * dataset.attrs["rate"]
        exits = {name: times(each) for name, each in (("chain", chain), ("SGD", sgd), ("ODE", ode))}
        mean, spread, error = exits["chain"].mean(), exits["chain"].std(ddof=1), standard_error(exits["chain"])
        limit, gap = exits["ODE"][0], mean - exits["ODE"][0]
        worst = float(np.abs(chain.risk.mean("run").values - ode.risk.values[0]).max())
        sentences.append(
            f"p = {width}: half of the excess risk is lost at {limit:.3f} in the ODE, at {mean:.3f} ± {error:.3f} in the chain "
            f"(standard deviation {spread:.3f}; {100 * gap / limit:+.1f} %, {gap / error:+.1f} sigma from "
            f"the ODE), and at {exits['SGD'].mean():.3f} in the {size.sgd} runs of SGD; the mean risk of the chain is within "
            f"{worst:.3f} of the ODE's."
        )
    return sentences
