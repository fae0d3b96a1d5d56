"""What the figures of both mixtures share: the fraction at the optimum, rings of fixed points, and diffusion on them."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.stats import binomtest

import sgdlimits as sl
from sgdlimits.analysis.summary import Estimate
from sgdlimits.figures.base import Axes, Keep, Size
from sgdlimits.plot.style import OKABE_ITO


def fraction(which: np.ndarray) -> Estimate:
    """The share of true entries with its 95 % interval (Wilson)."""
    low, high = binomtest(int(which.sum()), which.size).proportion_ci(method="wilson")
    return Estimate(float(which.mean()), float(low), float(high))


def average(values: np.ndarray) -> str:
    """The mean to three digits, or that there is none."""
    return f"{values.mean():.3f}" if values.size else "not reached by any run"


def simulate_all(
    problem: sl.Problem, noiseless: sl.Problem, point: sl.Overlaps, size: Size, seed: int, keep: Keep, count: int
) -> dict[str, xr.Dataset]:
    """The chain from random starts, the chain from a fixed point of the noiseless problem, and the local limit there."""
    d, random = size.d, sl.RandomInit(size.d)
    ring: dict = dict(t_max=size.ring_end, runs=size.ring_runs, seed=seed, save=41)
    datasets = {}
    for name, make in {
        "chain": lambda: sl.simulate(problem, sl.Chain(d), random, t_max=size.end, runs=size.runs, seed=seed, save=count),
        "ring": lambda: sl.simulate(problem, sl.Chain(d), point, **ring),
        "local": lambda: sl.simulate(noiseless, sl.Local(point, d), point, **ring),
    }.items():
        datasets[name] = make()
        keep(name, datasets[name])
    return datasets


def spread_of(data: xr.Dataset, point: sl.Overlaps, d: int) -> np.ndarray:
    """The principal standard deviations, magnified, of the overlaps of the first two units at the end, the larger first."""
    cloud = np.sqrt(d) * (data.M.values[:, -1, :2, 0] - np.asarray(point.M)[:2, 0])
    return np.sqrt(np.maximum(np.linalg.eigvalsh(np.cov(cloud.T))[::-1], 0.0))


def shares(spread: np.ndarray) -> str:
    """How much of the variance is along the first principal direction, in words."""
    return f"{100 * spread[0] ** 2 / (spread**2).sum():.1f} % of the variance of the chain is along one direction"


def draw_fraction(ax: Axes, data: xr.Dataset, which: xr.DataArray, predicted: float, label: str) -> None:
    """The fraction of runs at the optimum against time, with its interval, and what theory says of the end."""
    estimates = [fraction(which.values[:, i]) for i in range(which.shape[1])]
    ax.plot(data.t, [each.value for each in estimates], color=OKABE_ITO[0], label=f"chain, {data.sizes['run']} runs")
    low, high = [each.low for each in estimates], [each.high for each in estimates]
    ax.fill_between(data.t, low, high, color=OKABE_ITO[0], alpha=0.2, linewidth=0)
    ax.axhline(predicted, color="0.4", linestyle="--", linewidth=0.8)
    ax.plot(float(data.t[-1]), predicted, "kx", markersize=9, markeredgewidth=1.6, label=f"predicted, {label}", clip_on=False)
    ax.set(xlabel="$t$, samples per dimension", ylabel="fraction of runs at the optimum", ylim=(0, 1))
    ax.legend(loc="upper left")


def draw_ring(ax: Axes, radius: float, quarters: tuple[int, ...]) -> None:
    """Quarters of a circle of fixed points."""
    for quarter in quarters:
        angle = np.linspace(quarter, quarter + 1, 60) * np.pi / 2
        ax.plot(radius * np.cos(angle), radius * np.sin(angle), color="0.4", linewidth=1.0, zorder=0)


def draw_spread(
    ax: Axes, ring: xr.Dataset, local: xr.Dataset, point: sl.Overlaps, d: int, first: tuple, second: tuple, names: tuple
) -> None:
    """Two entries of the magnified overlaps at the end, in the chain and in the local limit, with the radius of the ring."""
    centre = np.asarray(point.M)
    for data, colour, label in ((local, "0.6", "local limit"), (ring, OKABE_ITO[0], "chain")):
        cloud = [np.sqrt(d) * (data.M.values[:, -1, *index] - centre[index]) for index in (first, second)]
        ax.plot(*cloud, "o", color=colour, markersize=2.2, alpha=0.6, label=label)
    if first[1] == second[1]:
        reach = 0.9 * np.abs(np.sqrt(d) * (ring.M.values[:, -1, *first] - centre[first])).max()
        line = np.array([-reach, reach])
        ax.plot(line, line * centre[second] / centre[first], "k--", linewidth=0.8, label="radius")
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.legend(loc="upper left", fontsize=7)
