"""Effective dynamics, figure 1: matrix PCA below and above its threshold, in time and in the plane [2]_.

From a random vector the overlap is of order n^(-1/2) and diffuses: below the threshold it remains of that order, above it grows
until it follows the ODE to a fixed point.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels

# below and above the threshold 1
SNR = (0.8, 1.2)
FULL_SIZE = Size(d=1500, end=10.0, shown=8, runs=4000)
QUICK_SIZE = FULL_SIZE.with_changes(d=300, shown=4, runs=400)
PARAMETER_WORDS = dict(
    d="dimension", end="end in t", shown="runs of SGD that are drawn", runs="runs of the chain behind the bands"
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate matrix PCA below and above its threshold, and draw the runs against time and in the plane of both statistics.

    The statistics are the overlap with the spike and the squared norm orthogonal to it.
    """
    datasets = {}
    for snr in SNR:
        problem, start = sl.presets.spiked_tensor(order=2, snr=snr), sl.RandomInit(size.d)
        for name, level, runs in (("sgd", sl.SGD(size.d), size.shown), ("chain", sl.Chain(size.d), size.runs)):
            key = f"{name}-{snr:g}"
            datasets[key] = save_dataset(
                key, sl.simulate(problem, level, start, t_max=size.end, runs=runs, seed=seed, save=101)
            )
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def overlap_deviation(snr: float, t: np.ndarray) -> np.ndarray:
    """Return the standard deviation of sqrt(n) m at times t after random starts, for the Ornstein-Uhlenbeck process (3.2).

    Here m is the overlap with the spike, and `snr` the signal-to-noise ratio.
    """
    rate, noise = 4 * (snr - 1), 8.0
    # expm1 keeps digits at small rates and times
    return np.sqrt(np.exp(2 * rate * t) + noise * np.expm1(2 * rate * t) / (2 * rate))


def stable_overlaps(snr: float) -> list[float]:
    """Return the overlaps with the spike at the stable fixed points of matrix PCA at a signal-to-noise ratio."""
    star = sl.theory.effective.overlaps(2, snr)[1]
    return [0.0] if snr < sl.theory.effective.critical_snr(2) else [star, -star]


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(1, 4, figsize=(13.0, 3.3))
    for pair, letters, snr in zip((axes[:2], axes[2:]), ("ab", "cd"), SNR, strict=True):
        sgd, chain = datasets[f"sgd-{snr:g}"], datasets[f"chain-{snr:g}"]
        _draw_against_time(pair[0], sgd, chain, snr, size)
        _draw_in_plane(pair[1], sgd, snr, size)
        for ax, letter in zip(pair, letters, strict=True):
            ax.set_title(rf"({letter}) $\lambda = {snr:g}$", loc="left")
    (bands, band_labels), (points, point_labels) = (ax.get_legend_handles_labels() for ax in axes[:2])
    figure.legend(bands + points, band_labels + point_labels, loc="outside lower center", ncols=3)
    return figure


def _draw_against_time(ax: Axes, sgd: xr.Dataset, chain: xr.Dataset, snr: float, size: Size) -> None:
    """Draw sqrt(n) times the overlap of each run against time, with the band of the Ornstein-Uhlenbeck process."""
    root = np.sqrt(size.d)
    for run in range(sgd.sizes["run"]):
        ax.plot(sgd.t, root * sgd.m[run], color=OKABE_ITO_COLOURS[run % len(OKABE_ITO_COLOURS)], linewidth=0.7)
    width = root * chain.m.std("run")
    ax.fill_between(chain.t, -2 * width, 2 * width, color="0.85", label="chain, two standard deviations")
    stable = root * np.array(stable_overlaps(snr))
    reach = 1.5 * max(float(2 * width.max()), float(root * np.abs(sgd.m).max()), 0.8 * stable.max())
    ends = np.full(stable.size, float(sgd.t[-1]))
    ax.plot(ends, stable, "k_", markersize=16, markeredgewidth=2.2, clip_on=False, zorder=5)
    band = 2 * overlap_deviation(snr, sgd.t.values)
    for sign in (1, -1):
        ax.plot(sgd.t, sign * band, "k--", linewidth=1.0, label="Ornstein-Uhlenbeck" if sign == 1 else None)
    ax.set(xlabel="$t$, steps per dimension", ylabel=r"$\sqrt{n}\, m$", ylim=(-reach, reach))


def _draw_in_plane(ax: Axes, sgd: xr.Dataset, snr: float, size: Size) -> None:
    """Draw runs in the plane of overlap and squared orthogonal norm, with the stable fixed points."""
    for run in range(sgd.sizes["run"]):
        ax.plot(sgd.m[run], sgd.r2[run], color=OKABE_ITO_COLOURS[run % len(OKABE_ITO_COLOURS)], linewidth=0.7)
    stable = stable_overlaps(snr)
    ax.plot(
        stable,
        np.ones(len(stable)),
        "kx",
        markersize=9,
        markeredgewidth=1.8,
        zorder=5,
        label="stable fixed points (dashes in time)",
    )
    reach = 7.7 / np.sqrt(size.d)
    ax.set(xlabel="$m$", ylabel=r"$r_\perp^2$", xlim=(-0.72, 0.72), xticks=(-0.5, 0, 0.5), ylim=(1 - reach, 1 + reach))


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    below, above = (datasets[f"chain-{snr:g}"] for snr in SNR)
    early = float(above.t[np.searchsorted(above.t.values, 1.0)])
    spread = {snr: np.sqrt(size.d) * data.m.std("run") for snr, data in zip(SNR, (below, above), strict=True)}
    star = sl.theory.effective.overlaps(2, SNR[1])[1]
    reached = np.abs(above.m[:, -1])
    return [
        f"Figure 1 of the paper: matrix PCA, k = 2, n = {size.d}, step size 1/n, from random vectors to t = {size.end:g}.",
        f"Coloured: {size.shown} runs of SGD in R^n; grey: twice the standard deviation of {size.runs} runs of the chain;",
        "dashed: the same of the Ornstein-Uhlenbeck process (3.2); dashes at the end and crosses mark the stable fixed points.",
        "(a), (b): snr 0.8, below the threshold",
        f"{sl.theory.effective.critical_snr(2):.1f}. The standard deviation of sqrt(n) m at the end is",
        f"{float(spread[SNR[0]][-1]):.3f}, and {float(overlap_deviation(SNR[0], below.t.values)[-1]):.3f} in theory; runs stay",
        "at the cross (0, 1). (c), (d): snr 1.2, above it. The process is unstable: at",
        f"t = {early:.1f} its standard deviation is {float(spread[SNR[1]].sel(t=early)):.2f}, in theory",
        f"{float(overlap_deviation(SNR[1], np.array([early]))[0]):.2f}, until the overlap is of order one. At the end the",
        f"median of its absolute value is {float(np.median(reached)):.3f}, and that of the stable fixed points {star:.3f}.",
    ]
