"""Effective dynamics, figure 3: the XOR mixture, where three runs in 32 find the optimum, and noise of rank two [2]_.

The signs of the second layer and of the overlaps at the start decide: the four units can find the four classes only if two are
positive and two negative, and the two of each kind point in opposite directions.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.effective.figures import effective_2 as rings
from sgdlimits.papers.figure import Axes, DrawnFigure, Figure, SaveDataset, Size

# signal-to-noise ratio and ridge of the mixture
SNR, RIDGE = 1000.0, 0.1
RING_RADIUS = sl.theory.effective.ring_radius(RIDGE, weight=0.25)
# positions on the two rings, away from symmetric points
ANGLES = (np.pi / 6, np.pi / 4)
FULL_SIZE = rings.FULL_SIZE.with_changes(end=250.0)
QUICK_SIZE = rings.QUICK_SIZE.with_changes(runs=60, end=120.0)
PARAMETER_WORDS = rings.PARAMETER_WORDS


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the XOR mixture from random starts and from two rings, and draw success rates and fluctuations.

    The rings are of fixed points of the noiseless ODE.
    """
    point = build_point()
    problem, noiseless = (sl.presets.xor_mixture(snr, RIDGE) for snr in (SNR, np.inf))
    datasets = rings.simulate_all(problem, noiseless, point, size, seed, save_dataset, count=16)
    return DrawnFigure(_draw_figure(datasets, point, size), _write_caption(datasets, noiseless, point, size))


def build_point() -> sl.Overlaps:
    """Build the fixed point of Proposition 5.1: two units share a ring along each direction, with labels 1 and 0."""
    first, second = (RING_RADIUS * jnp.array([np.cos(angle), np.sin(angle)]) for angle in ANGLES)
    # without noise all weights lie along the means, so Q = M M^T
    M = jnp.zeros((4, 2)).at[:2, 0].set(first).at[2:, 1].set(second)
    return sl.Overlaps(jnp.concatenate([first, -second]), M, M @ M.T)


def has_found_optimum(data: xr.Dataset) -> xr.DataArray:
    """Return for each run and time whether each of the four classes has a unit along its mean with the right label."""
    m, v, size = data.M, data.a, rings.MIN_SHARE_OF_RADIUS * RING_RADIUS
    looks = [(sign * m[..., teacher] > size) & (label * v > size) for teacher, label in ((0, 1), (1, -1)) for sign in (1, -1)]
    return xr.concat([each.any("student") for each in looks], "look").all("look")


def _draw_figure(datasets: dict[str, xr.Dataset], point: sl.Overlaps, size: Size) -> Figure:
    figure, axes = rings.make_four_panels()
    rings.draw_fraction(axes[0], datasets["chain"], has_found_optimum(datasets["chain"]), 3 / 32, "3/32", "29/32")
    _draw_end_points(axes[1], datasets["chain"].isel(run=slice(rings.MAX_END_POINTS)))
    rings.draw_fluctuations(axes[2], datasets, point, size.d, (1, 0), (r"$\tilde m_1^\mu$", r"$\tilde m_2^\mu$"))
    rings.draw_fluctuations(axes[3], datasets, point, size.d, (2, 1), (r"$\tilde m_1^\mu$", r"$\tilde m_3^\nu$"))
    return figure


def _draw_end_points(ax: Axes, data: xr.Dataset) -> None:
    """Draw the final overlaps of the first two units with the first class direction.

    The rings of fixed points and the predicted optima are drawn with them.
    """
    m, best = data.M.values[:, -1, :2, 0], has_found_optimum(data).values[:, -1]
    rings.draw_end_points(ax, m, {"not": ~best, "optimal": best}, RING_RADIUS)
    points = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x * y <= 0])
    ax.plot(*(RING_RADIUS * points.T), "kx", markersize=8, markeredgewidth=1.4, label="predicted optima")
    reach = 1.35 * RING_RADIUS
    ax.set(xlabel=r"$m_1^\mu$", ylabel=r"$m_2^\mu$", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    rings.add_legend_below(ax)


def _write_caption(datasets: dict[str, xr.Dataset], noiseless: sl.Problem, point: sl.Overlaps, size: Size) -> list[str]:
    data, best = datasets["chain"], has_found_optimum(datasets["chain"]).values[:, -1]
    share, limit, norms = rings.estimate_fraction(best), sl.local_limit(noiseless, point), np.abs(data.a.values[:, -1])
    measured, predicted = (rings.principal_deviations(datasets[name], point, size.d) for name in ("ring", "local"))
    return [
        f"Figure 3 of the paper: four classes, N = {size.d}, snr {SNR:g}, ridge {RIDGE:g}, {size.runs} runs of the",
        f"chain to t = {size.end:g}. (a) The fraction of runs at the optimum ends at {share.value:.3f}, interval",
        f"[{share.low:.3f}, {share.high:.3f}]; theory says 3/32 = {3 / 32:.3f}, and 29/32 for the others. (b)",
        "End points of the overlaps of two units with the first direction in",
        f"{min(rings.MAX_END_POINTS, size.runs)} runs, their positions at the optima for snr = inf (crosses), and",
        f"rings of radius {RING_RADIUS:.3f}; the second layer at the optimum is {rings.format_mean(norms[best])} on average in",
        "absolute value.",
        f"(c), (d) {size.ring_runs} runs from a point where two units share each direction, at t = {size.ring_end:g},",
        f"magnified by sqrt(N): the noise matrix has rank {limit.rank}. Units on the same ring move together along",
        "the radius (dashed), units on different rings against each other. The chain's principal standard deviations in",
        f"(c) are {measured[0]:.2f} and {measured[1]:.2f}, those of the local limit for snr = inf {predicted[0]:.2f} and",
        f"{predicted[1]:.2f}: {rings.describe_variance_share(measured)}.",
        "At a finite snr the rings are smaller, which shifts the chain.",
    ]
