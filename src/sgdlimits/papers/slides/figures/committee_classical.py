"""Dimension-free limits, classical regime: ten erf units learn two or five at a small rate in few dimensions [5]_.

The slides show that at a fixed dimension and a small learning rate SGD follows gradient flow on the population risk. The ODE
with the corrector departs from gradient flow only at the end of learning, where label noise leaves the excess risk

.. math:: \\frac{\\text{lr}\\,\\Delta}{4p}\\,E[s'(\\lambda)^2], \\qquad E[s'(\\lambda)^2] = \\frac{2}{\\pi\\sqrt3}

to first order in the rate, for students of norm 1 and s(x) = erf(x/sqrt 2). The slides write erf(x); that of Saad and Solla,
whose curves they show, is the one with the root (docs/errata.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.level.base import Level
from sgdlimits.papers.figure import Axes, DrawnFigure, Figure, SaveDataset, Size, curve_styles, make_panels, sizes

# the slides' values
LEARNING_RATE, NOISE = 0.05, 1e-3
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    width=("width", 10),
    teachers=("teachers", (2, 5)),
    d=("dimension", 20),
    runs=("runs of SGD", 8),
    end=("end in the time of the slides", 1000.0, 120.0),
    end_ode=("end of the ODE in that time", 6e4, 6e3),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate SGD, ODE and gradient flow for two numbers of teachers, and draw the excess risk against time."""
    datasets = {}
    for teachers in size.teachers:
        problem = sl.presets.committee(size.width, teachers, "erf", lr=2 * LEARNING_RATE, noise=NOISE)
        for name, found in simulate_levels(problem, "SGD", sl.SGD(size.d), size, seed, count=80):
            datasets[f"{name}-{teachers}"] = found
            save_dataset(f"{name.lower()}-{teachers}", found.drop_vars("Q"))
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def simulate_levels(problem, name: str, level: Level, size: Size, seed: int, count: int) -> Iterator[tuple[str, xr.Dataset]]:
    """Simulate a level (SGD or chain), the ODE and gradient flow from one random start, and yield (name, dataset) pairs.

    The coordinate `tau` is the slides' time, gamma t/p with gamma = lr/2 and the width p.
    """
    start, rate = sl.RandomInit(size.d).one(problem, seed=seed), float(problem.rate) / 2
    ode, flow = sl.ODE(rtol=1e-7), sl.ODE(corrector=False, rtol=1e-7)
    ends = {name: (level, size.runs, size.end), "ODE": (ode, 1, size.end_ode), "flow": (flow, 1, size.end_ode)}
    for key, (each, runs, end) in ends.items():
        times = np.geomspace(0.1, end, count) / rate
        found = sl.simulate(problem, each, start, t_max=times[-1], runs=runs, seed=seed, save=times)
        yield key, found.assign_coords(tau=found.t * rate)


def excess_risk(found: xr.Dataset) -> xr.DataArray:
    """Return the risk of each run above the noise floor, as a function of the slides' time tau."""
    return (found.risk - found.attrs["floor"]).swap_dims(t="tau")


def noise_floor(width: int, gamma: float) -> float:
    """Return the excess risk that label noise leaves, to first order in the slides' learning rate gamma."""
    return 2 * gamma * NOISE / (4 * width) * 2 / (np.pi * np.sqrt(3))


def draw_risk(ax: Axes, runs: xr.Dataset, label: str, ode: xr.Dataset, flow: xr.Dataset, floor: float) -> None:
    """Draw the excess risk of runs, ODE and gradient flow against time, and the floor that label noise leaves.

    Here `runs`, `ode` and `flow` are their datasets.
    """
    light, dashed = curve_styles(2)
    ax.plot(runs.tau, excess_risk(runs).T, color=light.colour, linewidth=2.2, alpha=0.3)
    ax.plot([], [], color=light.colour, linewidth=2.2, alpha=0.5, label=label)
    ax.plot(ode.tau, excess_risk(ode)[0], color="black", linewidth=1.2, label="ODE")
    ax.plot(flow.tau, excess_risk(flow)[0], color=dashed.colour, linestyle=dashed.dashes, linewidth=1.4, label="gradient flow")
    ax.axhline(floor, color="0.4", linestyle=":", linewidth=1, label="label noise, first order in lr")
    ax.set(xscale="log", yscale="log", xlabel=r"time of the slides, $\gamma t/p$", ylim=(floor / 20, None))


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(1, len(size.teachers), figsize=(8.8, 3.7), sharey=True, squeeze=False)
    for ax, teachers in zip(axes[0], size.teachers, strict=True):
        sgd, ode, flow = (datasets[f"{name}-{teachers}"] for name in ("SGD", "ODE", "flow"))
        draw_risk(ax, sgd, f"SGD, {size.runs} runs", ode, flow, noise_floor(size.width, LEARNING_RATE))
        ax.set_title(rf"$k = {teachers}$, $p = {size.width}$, $\gamma = {LEARNING_RATE:g}$, $d = {size.d}$")
    axes[0, 0].set_ylabel("excess risk")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    sentences = [
        f"The slides show SGD on gradient flow at p = {size.width}, gamma = {LEARNING_RATE}, noise {NOISE:g} "
        "and s(x) = erf(x/sqrt 2),",
        f"for k = 2 and k = 5. Their loss has no 1/2, so that lr = {2 * LEARNING_RATE:g} here; "
        "their time is gamma t/p. They do not",
        f"give d; here it is {size.d}. All levels start from the same random weights. The risk waits on a plateau where the",
        "students are alike, then they specialise.",
    ]
    floor = noise_floor(size.width, LEARNING_RATE)
    for teachers in size.teachers:
        sgd, ode, flow = (excess_risk(datasets[f"{name}-{teachers}"]) for name in ("SGD", "ODE", "flow"))
        apart = np.abs(np.log(sgd.mean("run").values / np.interp(sgd.tau, ode.tau, ode[0]))).max()
        # within the time of SGD
        parted = np.abs(np.log(flow / ode))[0][ode.tau <= size.end].max()
        sentences.append(
            f"k = {teachers}: up to the time {size.end:g} gradient flow is within a factor of {np.exp(float(parted)):.2f} of "
            f"the ODE and the mean of {size.runs} runs of SGD within {np.exp(apart):.2f}; at {size.end_ode:g} the excess risk "
            f"is {float(ode[0, -1]):.2e} in the ODE, {float(ode[0, -1]) / floor:.2f} times the first order in lr, and "
            f"{float(flow[0, -1]):.1e} in gradient flow."
        )
    return sentences
