"""Escaping mediocrity, figure 1, at four levels of description: phase retrieval from one random start [1]_.

The paper does not give the learning rate and the noise of its figure. Here the noise is 0.1 and the learning rate
1/(12 + noise), which leaves the start after the fewest samples.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, sizes
from sgdlimits.papers.quadratic.phases.find import find_crossing
from sgdlimits.text import format_table

NOISE, THRESHOLD = 0.1, 0.5
# the fastest rate of one unit with this noise
LR = 1 / (12 + NOISE)
MAX_FINAL_RISK = 0.2
"""Final risk above which a run counts as late; the ODE ends near 0.066."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 3000, 300),
    t_max=("end in t", 50.0, 30.0),
    sgd=("runs of SGD", 12, 256),
    shown=("runs of SGD that are drawn", 12, 8),
    many=("runs of chain and SDE", 256, 256),
    exits=("runs behind the exit times", 96, 64),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate phase retrieval at four levels of description from one random start, and draw risk and overlap against time."""
    problem = sl.presets.phase_retrieval(lr=LR, noise=NOISE)
    start = sl.RandomInit(size.d).one(problem, seed=seed)
    levels = {"SGD": sl.SGD(size.d), "chain": sl.Chain(size.d), "SDE": sl.SDE(size.d), "ODE": sl.ODE()}
    datasets, seconds = {}, {}
    for (name, level), runs in zip(levels.items(), (size.sgd, size.many, size.many, 1), strict=True):
        begin = time.perf_counter()
        datasets[name] = sl.simulate(problem, level, start, t_max=size.t_max, runs=runs, seed=seed)
        # with compilation, as a user sees it
        seconds[name] = time.perf_counter() - begin
        save_dataset(level.name, datasets[name])
    exits = sl.exit_table(problem, size.d, THRESHOLD, runs=size.exits, seed=seed)
    save_dataset("exit-times", exits.data)
    lines = [  # seconds go to the terminal only, since the files must not differ between equal runs
        f"Phase retrieval, d = {size.d}, lr = 1/{1 / LR:g}, noise = {NOISE:g}, up to t = {size.t_max:g}.", "",
        *compare_costs(datasets, seconds), "",
        f"Mean exit times from random starts at threshold {THRESHOLD:g}, with the paper's formulas:", "",
        repr(exits), "", *textwrap.wrap(exits.reading(), width=110, break_on_hyphens=False), "",
    ]  # fmt: skip
    return DrawnFigure(draw_figure(datasets, size.shown), write_caption(datasets, size.shown), lines)


def draw_figure(datasets: dict[str, xr.Dataset], shown: int) -> Figure:
    """Draw risk and overlap against time for SGD, chain, SDE and ODE, with `shown` single runs of SGD."""
    words = {"SGD": "SGD on the weights", "chain": "exact chain", "SDE": "SDE", "ODE": r"ODE, $d\to\infty$"}
    runs = {name: dataset.sizes["run"] for name, dataset in datasets.items()}
    labels = {name: words[name] + (f", {runs[name]} runs" if runs[name] > 1 else "") for name in datasets}
    left, right = sl.plot.overview(
        {labels[name]: dataset for name, dataset in datasets.items()}, singles={labels["SGD"]: shown}
    )
    left.set_ylim(bottom=0)
    right.set_ylim(0, 1.02)
    drawn = left.get_figure(root=True)
    assert drawn is not None
    drawn.suptitle(rf"Phase retrieval, $d = {datasets['SGD'].attrs['d']}$: one random start, four descriptions of SGD")
    return drawn


def compare_costs(datasets: dict[str, xr.Dataset], seconds: dict[str, float]) -> Iterator[str]:
    """Yield the lines of a table of the four levels of description, with their cost.

    Its columns are runs, final risk, time at which the excess risk has halved, and seconds.
    """
    rows = [("level", "runs", "final risk", "t at half", "seconds", "cost of a run")]
    per_run = {name: seconds[name] / dataset.sizes["run"] for name, dataset in datasets.items()}
    for name, dataset in datasets.items():
        final, runs = dataset.risk.values[:, -1], dataset.sizes["run"]
        error = f" ± {final.std(ddof=1) / runs**0.5:.4f}" if runs > 1 else ""
        half = _format_time(half_times(dataset.mean("run").expand_dims("run"))[0])
        cost = (f"{seconds[name]:.1f}", f"{per_run[name] / per_run['SGD']:.2g}")
        rows.append((name, str(runs), f"{final.mean():.4f}{error}", half, *cost))
    yield format_table(rows, "<>")
    yield "(final risk: mean over runs ± standard error; t at half: when the mean excess risk has fallen by half;"
    yield " seconds: with compilation; cost of a run: seconds per run, relative to SGD)"


def half_times(dataset: xr.Dataset) -> np.ndarray:
    """Return for each run the time at which its excess risk first falls to half, by interpolation; infinity if never."""
    return np.array([find_crossing(dataset.t.values, each, each[0] / 2, 0) for each in dataset.risk.values - NOISE / 2])


def write_caption(datasets: dict[str, xr.Dataset], shown: int) -> list[str]:
    """Write the caption: setting, times at which the excess risk halves at each level, final risks, and late runs.

    The levels are SGD, chain, SDE and ODE.
    """
    half = {name: half_times(dataset) for name, dataset in datasets.items()}
    # nearest: interpolation between a finite and an infinite time would be infinite
    low, high = (_format_time(time) for time in np.quantile(half["chain"], [0.1, 0.9], method="nearest"))
    median = {name: _format_time(np.median(times)) for name, times in half.items()}
    final = {name: dataset.risk.values[:, -1] for name, dataset in datasets.items()}
    late = {name: f"{(risks > MAX_FINAL_RISK).sum()} of {risks.size}" for name, risks in final.items()}
    overlap = abs(float(datasets["ODE"].M.values[0, 0, 0, 0]))
    return [
        f"Phase retrieval by one unit on the sphere, d = {datasets['SGD'].attrs['d']}, learning rate 1/{1 / LR:g}, label",
        f"noise {NOISE:g}. All levels start from the same weights, with overlap {overlap:.3g}. Thick lines are means over",
        f"runs, thin lines {shown} runs of SGD; bands hold 80 % of the runs. Half of the excess risk is lost at t =",
        f"{median['ODE']} in the ODE, and at a random time in the chain, which has the law of SGD: median {median['chain']},",
        f"and 80 % of the runs between {low} and {high}; the median is {median['SGD']} for the {half['SGD'].size} runs of",
        f"SGD and {median['SDE']} for the SDE. The mean risk at the end is {final['SGD'].mean():.3f} for SGD,",
        f"{final['chain'].mean():.3f} for the chain, {final['SDE'].mean():.3f} for the SDE and {final['ODE'].mean():.3f} for",
        f"the ODE, including {NOISE / 2:g} from label noise. Late runs, with a risk above {MAX_FINAL_RISK:g}, raise the means:",
        f"there are {late['SGD']} for SGD, {late['chain']} for the chain and {late['SDE']} for the SDE.",
    ]


def _format_time(t: float | np.floating) -> str:
    """Format a time, or "later" if it is infinite."""
    return f"{t:.2f}" if np.isfinite(t) else "later"
