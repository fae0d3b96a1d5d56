"""Effective dynamics, figure 2: two Gaussian classes, half of the runs at the optimum, the others on a ring [2]_.

Which of the two happens is decided by the signs of the second layer at the start. On the ring the noise has rank one: it
moves the two overlaps together, along the radius.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.figures import rings
from sgdlimits.figures.base import Axes, Drawn, Figure, Keep, Size, ignore, panels
from sgdlimits.plot.style import OKABE_ITO

SNR, RIDGE = 100.0, 0.1
ANGLE = np.pi / 6
FULL = Size(d=250, runs=1000, end=100.0, ring_runs=400, ring_end=60.0)
QUICK = FULL.but(runs=100, end=50.0, ring_runs=60, ring_end=20.0)
"""Dimension, runs of the chain and their time, runs that start on a ring and their time."""


def make(size: Size = FULL, seed: int = 0, keep: Keep = ignore) -> Drawn:
    """Simulate the chain from random starts, and from a point of the ring together with the local limit there."""
    radius = sl.theory.effective.ring_radius(RIDGE, weight=0.5)
    v = radius * jnp.array([np.cos(ANGLE), np.sin(ANGLE)])
    point = sl.Overlaps(v, v[:, None], jnp.outer(v, v))
    problem, noiseless = (sl.presets.binary_mixture(snr, RIDGE) for snr in (SNR, np.inf))
    datasets = rings.simulate_all(problem, noiseless, point, size, seed, keep, count=26)
    return Drawn(_figure(datasets, point, size), _caption(datasets, noiseless, point, size), datasets)


def optimal(data: xr.Dataset) -> xr.DataArray:
    """Whether a run tells all four quarters apart: its two units look in opposite directions, each with its own label."""
    m, v = data.M[..., 0], data.a
    return (m * v > 0).all("student") & (m.prod("student") < 0)


def _figure(datasets: dict[str, xr.Dataset], point: sl.Overlaps, size: Size) -> Figure:
    figure, axes = panels(1, 4, figsize=(13.0, 3.3))
    rings.draw_fraction(axes[0], datasets["chain"], optimal(datasets["chain"]), 0.5, "1/2")
    _end_points(axes[1], datasets["chain"].isel(run=slice(200)))
    _paths(axes[2], datasets["ring"], datasets["local"], point, size.d)
    rings.draw_spread(
        axes[3], datasets["ring"], datasets["local"], point, size.d, (0, 0), (1, 0), (r"$\tilde m_1$", r"$\tilde m_2$")
    )
    for ax, letter in zip(axes, "abcd", strict=True):
        ax.set_title(f"({letter})", loc="left")
    return figure


def _end_points(ax: Axes, data: xr.Dataset) -> None:
    m, best = data.M.values[:, -1, :, 0], optimal(data).values[:, -1]
    radius = sl.theory.effective.ring_radius(RIDGE, weight=0.5)
    rings.draw_ring(ax, radius, quarters=(0, 2))
    for which, colour, label in ((best, OKABE_ITO[0], "optimal"), (~best, OKABE_ITO[1], "not")):
        ax.plot(*m[which].T, "o", color=colour, markersize=3, alpha=0.6, label=f"{label}, {which.sum()} runs")
    ax.plot([radius, -radius], [-radius, radius], "kx", markersize=9, markeredgewidth=1.6, label="predicted optimum")
    ax.set(xlabel="$m_1$", ylabel="$m_2$", xlim=(-1.9, 1.9), ylim=(-1.9, 1.9), aspect="equal")
    ax.legend(loc="upper right", fontsize=6.5)


def _paths(ax: Axes, ring: xr.Dataset, local: xr.Dataset, point: sl.Overlaps, d: int) -> None:
    centre = float(point.M[0, 0])
    for run in range(min(6, ring.sizes["run"])):
        ax.plot(ring.t, np.sqrt(d) * (ring.M[run, :, 0, 0] - centre), color=OKABE_ITO[run], linewidth=0.7)
    width = 2 * np.sqrt(d) * local.M[:, :, 0, 0].std("run")
    ax.fill_between(local.t, -width, width, color="0.85", zorder=0, label="local limit, two standard deviations")
    ax.set(xlabel="$t$, samples per dimension", ylabel=r"$\tilde m_1 = \sqrt{N}\,(m_1 - a_1)$")
    ax.legend(loc="upper left", fontsize=7)


def _caption(datasets: dict[str, xr.Dataset], noiseless: sl.Problem, point: sl.Overlaps, size: Size) -> list[str]:
    data, best = datasets["chain"], optimal(datasets["chain"]).values[:, -1]
    m, share = np.abs(data.M.values[:, -1, :, 0]), rings.fraction(best)
    radius, limit = sl.theory.effective.ring_radius(RIDGE, weight=0.5), sl.local_limit(noiseless, point)
    on_ring = np.sqrt((m[~best] ** 2).sum(1))
    measured, predicted = rings.spread_of(datasets["ring"], point, size.d), rings.spread_of(datasets["local"], point, size.d)
    return [
        f"Figure 2 of the paper: two classes, N = {size.d}, snr {SNR:g}, ridge {RIDGE:g}, {size.runs} runs of the chain to",
        f"t = {size.end:g}. (a) The fraction of runs at the optimum ends at {share.value:.3f}, interval",
        f"[{share.low:.3f}, {share.high:.3f}]; theory says 1/2. (b) End points of 200 runs. At the optimum",
        f"both overlaps are {rings.average(m[best])} on average in absolute value, and {radius:.3f} for snr = inf (crosses);",
        f"the others end at the radius {rings.average(on_ring)} on average, the ring has {radius:.3f}. (c) From a",
        "point of the ring, six runs of the chain, magnified by the root of N; grey: the local limit for snr = inf.",
        f"(d) Both overlaps of {size.ring_runs} runs at t = {size.ring_end:g}: the noise matrix has rank {limit.rank} and",
        f"moves them along the radius (dashed). The chain's principal standard deviations are {measured[0]:.2f} and",
        f"{measured[1]:.2f}, those of the local limit {predicted[0]:.2f} and {predicted[1]:.2f}: {rings.shares(measured)}.",
    ]
