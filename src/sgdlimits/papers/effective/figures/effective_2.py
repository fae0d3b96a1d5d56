"""Effective dynamics, figure 2: two Gaussian classes, half of the runs at the optimum, the others on a ring [2]_.

The signs of the second layer at the start decide between the two. On the ring the noise has rank one: it moves the two overlaps
together, along the radius.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy.stats import binomtest

import sgdlimits as sl
from sgdlimits.analysis.summary import IntervalEstimate
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels, sizes

# signal-to-noise ratio and ridge of the mixture
SNR, RIDGE = 100.0, 0.1
RING_RADIUS = sl.theory.effective.ring_radius(RIDGE, weight=0.5)
START_ANGLE = np.pi / 6
"""Angle on the ring of fixed points at which the runs of panels (c) and (d) start."""
MIN_SHARE_OF_RADIUS = 0.5
"""Overlap, relative to the radius of the ring, above which a unit is taken to have found its class."""
MAX_END_POINTS = 200
"""Maximum number of end points of runs that the figure draws."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 250),
    runs=("runs of the chain", 1000, 100),
    end=("their end in t", 100.0, 50.0),
    ring_runs=("runs that start on a ring", 400, 60),
    ring_end=("their end in t", 60.0, 20.0),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the binary mixture from random starts and from a ring, and draw success rates and fluctuations.

    The ring is one of fixed points of the noiseless ODE.
    """
    v = RING_RADIUS * jnp.array([np.cos(START_ANGLE), np.sin(START_ANGLE)])
    point = sl.Overlaps(v, v[:, None], jnp.outer(v, v))
    problem, noiseless = (sl.presets.binary_mixture(snr, RIDGE) for snr in (SNR, np.inf))
    datasets = simulate_all(problem, noiseless, point, size, seed, save_dataset, count=26)
    return DrawnFigure(_draw_figure(datasets, point, size), _write_caption(datasets, noiseless, point, size))


def has_found_optimum(data: xr.Dataset) -> xr.DataArray:
    """Return for each run and time whether the two units lie along opposite class means, each with the right label."""
    m, v, size = data.M[..., 0], data.a, MIN_SHARE_OF_RADIUS * RING_RADIUS
    # each unit has its own label's sign, and both classes have a unit
    right = (m * v > 0).all("student") & (m.prod("student") < 0)
    return right & (np.abs(m) > size).all("student") & (np.abs(v) > size).all("student")


def _draw_figure(datasets: dict[str, xr.Dataset], point: sl.Overlaps, size: Size) -> Figure:
    figure, axes = make_four_panels()
    draw_fraction(axes[0], datasets["chain"], has_found_optimum(datasets["chain"]), 0.5, "1/2")
    _draw_end_points(axes[1], datasets["chain"].isel(run=slice(MAX_END_POINTS)))
    _draw_paths(axes[2], datasets["ring"], datasets["local"], point, size.d)
    draw_fluctuations(axes[3], datasets, point, size.d, (1, 0), (r"$\tilde m_1$", r"$\tilde m_2$"))
    return figure


def _draw_end_points(ax: Axes, data: xr.Dataset) -> None:
    """Draw the final overlaps of both units in each run, with the rings of fixed points and the predicted optima."""
    m, best = data.M.values[:, -1, :, 0], has_found_optimum(data).values[:, -1]
    draw_end_points(ax, m, {"optimal": best, "not": ~best}, RING_RADIUS)
    ax.plot(
        [RING_RADIUS, -RING_RADIUS],
        [-RING_RADIUS, RING_RADIUS],
        "kx",
        markersize=9,
        markeredgewidth=1.6,
        label="predicted optimum",
    )
    ax.set(xlabel="$m_1$", ylabel="$m_2$", xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    add_legend_below(ax)


def _draw_paths(ax: Axes, ring: xr.Dataset, local: xr.Dataset, point: sl.Overlaps, d: int) -> None:
    """Draw sqrt(N) times an overlap's distance from its start on the ring, in six runs, with the local limit's band.

    Here N is the dimension `d`.
    """
    centre = float(point.M[0, 0])
    for run in range(min(6, ring.sizes["run"])):
        ax.plot(ring.t, np.sqrt(d) * (ring.M[run, :, 0, 0] - centre), color=OKABE_ITO_COLOURS[run], linewidth=0.7)
    # the local limit is centred at the point, as its drift vanishes there
    width = 2 * np.sqrt(d) * local.M[:, :, 0, 0].std("run")
    ax.fill_between(local.t, -width, width, color="0.85", zorder=0, label="local limit, two standard deviations")
    ax.set(xlabel="$t$, samples per dimension", ylabel=r"$\tilde m_1 = \sqrt{N}\,(m_1 - a_1)$")
    add_headroom(ax, 0.15)
    ax.legend(loc="upper left", fontsize=7)


def _write_caption(datasets: dict[str, xr.Dataset], noiseless: sl.Problem, point: sl.Overlaps, size: Size) -> list[str]:
    data, best = datasets["chain"], has_found_optimum(datasets["chain"]).values[:, -1]
    m, share = np.abs(data.M.values[:, -1, :, 0]), estimate_fraction(best)
    on_ring, limit = np.sqrt((m[~best] ** 2).sum(1)), sl.local_limit(noiseless, point)
    measured, predicted = (principal_deviations(datasets[name], point, size.d) for name in ("ring", "local"))
    return [
        f"Figure 2 of the paper: two classes, N = {size.d}, snr {SNR:g}, ridge {RIDGE:g}, {size.runs} runs of the",
        f"chain to t = {size.end:g}. (a) The fraction of runs at the optimum ends at {share.value:.3f}, interval",
        f"[{share.low:.3f}, {share.high:.3f}]; theory says 1/2. (b) End points of {min(MAX_END_POINTS, size.runs)} runs. At",
        f"the optimum both overlaps are {format_mean(m[best])} on average in absolute value, and {RING_RADIUS:.3f} for snr =",
        f"inf (crosses); the other runs end at the radius {format_mean(on_ring)} on average, the ring has",
        f"{RING_RADIUS:.3f}. (c) Six runs of the chain from a point of the ring, magnified by sqrt(N); grey: the",
        "local limit for snr = inf.",
        f"(d) Both overlaps of {size.ring_runs} runs at t = {size.ring_end:g}: the noise matrix has rank {limit.rank} and",
        f"moves them along the radius (dashed). The chain's principal standard deviations are {measured[0]:.2f} and",
        f"{measured[1]:.2f}, those of the local limit {predicted[0]:.2f} and {predicted[1]:.2f}:",
        f"{describe_variance_share(measured)}.",
    ]


def estimate_fraction(which: np.ndarray) -> IntervalEstimate:
    """Estimate the fraction of true entries of a boolean array, with its 95 % Wilson interval."""
    low, high = binomtest(int(which.sum()), which.size).proportion_ci(method="wilson")
    return IntervalEstimate(float(which.mean()), float(low), float(high))


def format_mean(values: np.ndarray) -> str:
    """Format the mean of an array with three decimals, or say that no run has a value if the array is empty."""
    return f"{values.mean():.3f}" if values.size else "not reached by any run"


def simulate_all(
    problem: sl.Problem, noiseless: sl.Problem, point: sl.Overlaps, size: Size, seed: int, save_dataset: SaveDataset, count: int
) -> dict[str, xr.Dataset]:
    """Simulate the chain from random starts and from `point`, and the local limit at `point`, a fixed point of `noiseless`."""
    d, random = size.d, sl.RandomInit(size.d)
    ring: dict = dict(t_max=size.ring_end, runs=size.ring_runs, seed=seed, save=41)
    chain: dict = dict(t_max=size.end, runs=size.runs, seed=seed, save=count)
    plan = (("chain", problem, sl.Chain(d), random, chain), ("ring", problem, sl.Chain(d), point, ring))
    datasets = {}
    for name, each, level, start, how in (*plan, ("local", noiseless, sl.Local(point, d), point, ring)):
        datasets[name] = save_dataset(name, sl.simulate(each, level, start, **how))
    return datasets


def make_four_panels() -> tuple[Figure, Any]:
    """Create a figure with four panels in a row, titled (a) to (d)."""
    figure, axes = make_panels(1, 4, figsize=(13.0, 3.3))
    for ax, letter in zip(axes, "abcd", strict=True):
        ax.set_title(f"({letter})", loc="left")
    return figure, axes


def principal_deviations(data: xr.Dataset, point: sl.Overlaps, d: int) -> np.ndarray:
    """Return the principal standard deviations of two units' final overlaps, times sqrt(d), largest first."""
    cloud = np.sqrt(d) * (data.M.values[:, -1, :2, 0] - np.asarray(point.M)[:2, 0])
    return np.sqrt(np.maximum(np.linalg.eigvalsh(np.cov(cloud.T))[::-1], 0.0))


def describe_variance_share(spread: np.ndarray) -> str:
    """Describe in words the share of the chain's variance along the first principal direction.

    `spread` has the principal standard deviations, largest first.
    """
    return f"{100 * spread[0] ** 2 / (spread**2).sum():.1f} % of the variance of the chain is along one direction"


def draw_fraction(
    ax: Axes, data: xr.Dataset, which: xr.DataArray, predicted: float, label: str, others: str | None = None
) -> None:
    """Draw the fraction of runs at the optimum against time, with its interval and the theoretical final value.

    If `others` is given, the fraction of all other runs is drawn too, with `others` as its label.
    """
    estimates = [estimate_fraction(which.values[:, i]) for i in range(which.shape[1])]
    ax.plot(data.t, [each.value for each in estimates], color=OKABE_ITO_COLOURS[0], label=f"chain, {data.sizes['run']} runs")
    low, high = [each.low for each in estimates], [each.high for each in estimates]
    ax.fill_between(data.t, low, high, color=OKABE_ITO_COLOURS[0], alpha=0.2, linewidth=0)
    ax.axhline(predicted, color="0.4", linestyle="--", linewidth=0.8)
    ax.plot(float(data.t[-1]), predicted, "kx", markersize=9, markeredgewidth=1.6, label=f"predicted, {label}", clip_on=False)
    if others is not None:
        ax.plot(data.t, [1 - each.value for each in estimates], color=OKABE_ITO_COLOURS[1], label="all other runs")
        ax.fill_between(data.t, np.subtract(1, high), np.subtract(1, low), color=OKABE_ITO_COLOURS[1], alpha=0.2, linewidth=0)
        ax.axhline(1 - predicted, color="0.4", linestyle="--", linewidth=0.8)
        how: dict = dict(markersize=9, markeredgewidth=1.6, label=f"predicted, {others}", clip_on=False)
        ax.plot(float(data.t[-1]), 1 - predicted, "k+", **how)
    ylabel = "fraction of runs" if others else "fraction of runs at the optimum"
    ax.set(xlabel="$t$, samples per dimension", ylabel=ylabel, ylim=(0, 1))
    ax.legend(loc="center left" if others else "upper left")


def draw_end_points(ax: Axes, ends: np.ndarray, groups: dict[str, np.ndarray], radius: float) -> None:
    """Draw the final overlaps of two units, one dot per run coloured by group, and two quarters of a ring of fixed points."""
    for quarter in (0, 2):
        angle = np.linspace(quarter, quarter + 1, 60) * np.pi / 2
        ax.plot(radius * np.cos(angle), radius * np.sin(angle), color="0.4", linewidth=1.0, zorder=0)
    for label, which in groups.items():
        colour = OKABE_ITO_COLOURS[0 if label == "optimal" else 1]
        ax.plot(*ends[which].T, "o", color=colour, markersize=3, alpha=0.6, label=f"{label}, {which.sum()} runs")


def draw_fluctuations(
    ax: Axes, datasets: dict[str, xr.Dataset], point: sl.Overlaps, d: int, entry: tuple, names: tuple
) -> None:
    """Draw two final overlaps, centred and times sqrt(d), against each other: chain, local limit and the ring's radius."""
    centre, first = np.asarray(point.M), (0, 0)
    for name, colour, label in (("local", "0.6", "local limit"), ("ring", OKABE_ITO_COLOURS[0], "chain")):
        cloud = [np.sqrt(d) * (datasets[name].M.values[:, -1, *index] - centre[index]) for index in (first, entry)]
        ax.plot(*cloud, "o", color=colour, markersize=2.2, alpha=0.6, label=label)
    if entry[1] == 0:
        line = 0.9 * np.abs(cloud[0]).max() * np.array([-1, 1])
        ax.plot(line, line * centre[entry] / centre[first], "k--", linewidth=0.8, label="radius")
    ax.set(xlabel=names[0], ylabel=names[1])
    add_headroom(ax, 0.3)
    ax.legend(loc="upper left", fontsize=7)


def add_legend_below(ax: Axes) -> None:
    """Add a legend of three columns below a panel."""
    how: dict = dict(ncols=3, fontsize=6.5, handlelength=1, handletextpad=0.6, columnspacing=0.9)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), **how)


def add_headroom(ax: Axes, share: float) -> None:
    """Extend the vertical axis upwards by a share of its length, to make room for a legend above the data."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + share * (high - low))
