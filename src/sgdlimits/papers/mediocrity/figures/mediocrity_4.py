"""Escaping mediocrity, figure 4: the landscape on the sphere is a golf course, flat in all directions but one [1]_.

The paper has a drawing. Here the landscape is computed: the risk on the sphere in three dimensions with lines of gradient flow,
and the spectrum of the Hessian where the unit is orthogonal to the signal and at random starts as the dimension grows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize

import sgdlimits as sl
from sgdlimits.analysis.landscape import Weights, gradient, hessian_spectrum
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, sizes

SPECTRUM_DIMENSIONS = (3, 30, 3000, 10**9)
"""Dimensions of the spectra in the middle panel."""
SMALL_OVERLAP = 0.1
"""Size of the overlap below which the caption counts random starts."""
DENT_DEPTH = 0.22
"""Depth of the dents of the drawn surface at the signal and its opposite, relative to the radius."""
RISK_COLOURS = ("#b9d77a", "#58a55c", "#1f6f78", "#12304a")
"""Colours of the golf course, from high to low risk."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    points=("points of the sphere a quarter turn", 40, 20),
    lines=("lines of gradient flow", 9, 6),
    steps=("their steps", 90, 60),
    dimensions=("dimensions", (3, 10, 30, 100, 300, 1000, 3000, 10**4, 10**5, 10**6)),
    starts=("random starts in each dimension", 400, 60),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute the risk on the sphere and the spectrum of its Hessian, and draw the landscape and the eigenvalues."""
    problem = sl.presets.phase_retrieval()
    datasets = {
        "sphere": _compute_sphere(problem, size, seed),
        "spectrum": _compute_spectra(problem),
        "starts": _compute_starts(problem, size, seed),
    }
    for name, dataset in datasets.items():
        save_dataset(name, dataset)
    return DrawnFigure(_draw_figure(datasets), _write_caption(datasets))


def _compute_sphere(problem: sl.ProjectionProblem, size: Size, seed: int) -> xr.Dataset:
    """Compute the risk over the sphere in R^3, with the signal at the pole, and gradient-flow lines from the equator.

    The lines start near the equator, not on it.
    """
    polar, azimuth = np.linspace(0, np.pi, 2 * size.points + 1), np.linspace(0, 2 * np.pi, 4 * size.points + 1)
    m = np.cos(polar)
    risk = np.asarray(jax.jit(jax.vmap(lambda m: problem.risk(_unit_statistics(m))))(m))
    random = np.random.default_rng(seed)
    angle = 2 * np.pi * (np.arange(size.lines) + random.uniform(0.2, 0.8, size.lines)) / size.lines
    # starts near the equator, alternately above and below
    height = random.uniform(0.02, 0.12, size.lines) * np.where(np.arange(size.lines) % 2, -1, 1)
    on_sphere = lambda points: points / np.linalg.norm(points, axis=1, keepdims=True)
    lines = [on_sphere(np.stack([height, np.cos(angle), np.sin(angle)], axis=1))]
    for _ in range(size.steps):
        slope = np.stack([gradient(problem, Weights(w[None]))[0] for w in lines[-1]])
        # a small Euler step, projected back to the sphere
        lines.append(on_sphere(lines[-1] - 0.02 * slope))
    surface = ("polar", "azimuth"), np.broadcast_to(risk[:, None], (m.size, azimuth.size))
    flow = ("step", "line", "axis"), np.stack(lines)
    return xr.Dataset({"risk": surface, "flow": flow}, {"polar": polar, "azimuth": azimuth})


def _compute_spectra(problem: sl.ProjectionProblem) -> xr.Dataset:
    """Compute eigenvalues and multiplicities of the risk's Hessian where the unit is orthogonal to the signal."""
    spectra = [hessian_spectrum(problem, _unit_statistics(0.0), d) for d in SPECTRUM_DIMENSIONS]
    counts = np.stack([spectrum.multiplicities for spectrum in spectra])
    coords = {"d": list(SPECTRUM_DIMENSIONS), "eigenvalue": spectra[0].eigenvalues}
    return xr.Dataset({"multiplicity": (("d", "eigenvalue"), counts)}, coords)


def _compute_starts(problem: sl.ProjectionProblem, size: Size, seed: int) -> xr.Dataset:
    """Sample random starts in each dimension, and compute their overlaps and the Hessian's two distinct eigenvalues."""
    law = [sl.RandomInit(d).sample(problem, runs=size.starts, seed=seed + i) for i, d in enumerate(size.dimensions)]
    m = np.stack([starts.M[:, 0, 0] for starts in law])
    # at large d the eigenvalues approach those at m = 0, and the default tolerance would merge them
    extremes = lambda m, d: hessian_spectrum(problem, _unit_statistics(m), d, tolerance=1e-14).eigenvalues[[0, -1]]
    values = [[extremes(each, d) for each in row] for d, row in zip(size.dimensions, m, strict=True)]
    coords = {"d": list(size.dimensions), "which": ["once", "d - 2 times"]}
    return xr.Dataset({"m": (("d", "run"), m), "eigenvalue": (("d", "run", "which"), np.array(values))}, coords)


def _unit_statistics(m: float) -> sl.Overlaps:
    """Return the overlaps of one unit of norm 1 whose overlap with the signal is m."""
    return sl.Overlaps(jnp.ones(1), jnp.full((1, 1), m), jnp.ones((1, 1)))


def _draw_figure(datasets: dict[str, xr.Dataset]) -> Figure:
    figure = plt.figure(figsize=(10.2, 3.7), layout="constrained")
    grid = figure.add_gridspec(1, 3, width_ratios=(1.25, 1, 1.1))
    _draw_sphere(figure, figure.add_subplot(grid[0], projection="3d"), datasets["sphere"])
    _draw_spectra(figure.add_subplot(grid[1]), datasets["spectrum"])
    _draw_starts(figure.add_subplot(grid[2]), datasets["starts"])
    return figure


def _draw_sphere(figure: Figure, ax, data: xr.Dataset) -> None:
    """Draw the risk on the sphere in R^3 as colour and relief, with the signal on top and lines of gradient flow."""
    top = float(data.risk.max())
    radius = lambda m: 1 - DENT_DEPTH * m**2
    polar, azimuth = np.meshgrid(data.polar, data.azimuth, indexing="ij")
    m = np.cos(polar)
    place = [radius(m) * np.sin(polar) * np.cos(azimuth), radius(m) * np.sin(polar) * np.sin(azimuth), radius(m) * m]
    norm, colours = Normalize(0, top), LinearSegmentedColormap.from_list("course", RISK_COLOURS[::-1])
    how: dict = dict(rstride=1, cstride=1, linewidth=0, antialiased=False, shade=False)
    ax.plot_surface(*place, facecolors=colours(norm(data.risk.values)), **how)
    view = np.deg2rad([18.0, -60.0])
    eye = np.array([np.sin(view[0]), np.cos(view[0]) * np.cos(view[1]), np.cos(view[0]) * np.sin(view[1])])
    for line in np.moveaxis(data.flow.values, 1, 0):
        hidden = line @ eye < 0.05  # matplotlib does not hide lines behind a surface
        # slightly outside of the surface, which would cover the line
        drawn = np.where(hidden[:, None], np.nan, 1.012 * radius(line[:, :1]) * line)
        ax.plot(drawn[:, 1], drawn[:, 2], drawn[:, 0], color="white", linewidth=1.1, zorder=10)
        if not hidden[0]:
            ax.plot(*drawn[0, [1, 2, 0]], "o", color="white", markeredgecolor="black", markersize=4, zorder=11)
    here, along = np.array([0.5, -0.866, 0.0]), np.array([0.866, 0.5, 0.0])
    for direction, colour, text, shift in (
        (np.array([0.0, 0.0, 1.0]), OKABE_ITO_COLOURS[1], "down", (0.05, 0.03, 0.26)),
        (along, "black", "flat", (0.3, 0.17, -0.13)),
        (-along, "black", "", (0, 0, 0)),
    ):
        ax.quiver(*(1.04 * here), *direction, length=0.42, color=colour, linewidth=1.8, zorder=20, arrow_length_ratio=0.28)
        ax.text(*(1.08 * here + np.array(shift)), text, color=colour, fontsize=9, zorder=21)
    ax.quiver(0, 0, radius(1.0), 0, 0, 1, length=0.3, color="black", linewidth=1.4, arrow_length_ratio=0.25, zorder=20)
    ax.text(0.07, 0.04, radius(1.0) + 0.17, "$w_*$", fontsize=12, zorder=21)
    ax.set(xlim=(-0.75, 0.75), ylim=(-0.75, 0.75), zlim=(-0.68, 0.82))
    ax.text2D(0.5, 1.02, "the risk on the sphere, $d = 3$", transform=ax.transAxes, ha="center", fontsize=10)
    ax.set_box_aspect((1, 1, 1), zoom=1.12)
    ax.view_init(elev=18, azim=-60)
    ax.set_axis_off()
    figure.colorbar(ScalarMappable(norm, colours), ax=ax, shrink=0.6, pad=0.05, aspect=16, label="population risk")


def _draw_spectra(ax: Axes, data: xr.Dataset) -> None:
    """Draw the multiplicities of the Hessian's two eigenvalues at zero overlap as bars, for several dimensions."""
    width = 0.8 / data.sizes["d"]
    for i, (d, colour) in enumerate(zip(data.d.values, RISK_COLOURS, strict=True)):
        counts = data.multiplicity.sel(d=d).values
        x = np.arange(counts.size) + (i - (data.sizes["d"] - 1) / 2) * width
        size = f"10^{{{round(np.log10(d))}}}" if d > 10**4 else str(d)
        ax.bar(x, counts, width * 0.92, bottom=0.0, color=colour, label=f"$d = {size}$")
    ax.set_yscale("log")
    ax.set(ylim=(0.3, 3e11), xticks=np.arange(2), ylabel="multiplicity", xlabel="eigenvalue", title="Hessian where $m = 0$")
    ax.set_xticklabels(["$-4$\ndown", "$0$\nflat"])
    ax.legend(loc="upper left", handlelength=1.2, labelspacing=0.25, fontsize=8)


def _draw_starts(ax: Axes, data: xr.Dataset) -> None:
    """Draw how far the Hessian's eigenvalues at random starts are from those at zero overlap, against the dimension."""
    gap = data.eigenvalue - np.array([-4.0, 0.0])
    low, high = gap[:, :, 1].quantile([0.05, 0.95], dim="run").values
    for i, colour, factor, label in (
        (0, OKABE_ITO_COLOURS[1], 8, "the one at $-4$"),
        (1, RISK_COLOURS[2], 4, "the $d - 2$ at $0$"),
    ):
        ax.plot(data.d, gap[:, :, i].mean("run"), "o", color=colour, markersize=4, label=label)
        ax.plot(data.d, factor / data.d, color=colour, linewidth=0.8, label=f"${factor}/d$")
    ax.fill_between(data.d, low, high, color=RISK_COLOURS[2], alpha=0.18, linewidth=0, label="90 % of these")
    ax.set(xscale="log", yscale="log", xlabel="$d$", ylabel="mean eigenvalue less its limit")
    ax.set_title("Hessian at random starts")
    ax.legend(loc="lower left", handlelength=1.6, labelspacing=0.25, fontsize=8)


def _write_caption(datasets: dict[str, xr.Dataset]) -> list[str]:
    sphere, spectrum, starts = datasets.values()
    ends, low, high = np.abs(sphere.flow.values[-1, :, 0]), float(sphere.risk.min()), float(sphere.risk.max())
    first, last = starts.isel(d=0), starts.isel(d=-1)
    share = lambda part: 100 * float((np.abs(part.m) < SMALL_OVERLAP).mean())
    counts = ", ".join(f"{int(each)} at d = {int(each.d)}" for each in spectrum.multiplicity[:, 1])
    (one, flat), (one_last, flat_last) = ([float(each) for each in part.eigenvalue.median("run")] for part in (first, last))
    mean = float((starts.d * starts.m**2).mean())
    return [
        "Figure 4 of the paper, computed: phase retrieval by one unit on the sphere, without noise. Left: in three",
        f"dimensions the risk is {high:.1f} on the equator, which is flat, and {abs(low):.1f} at the signal and its",
        f"opposite, where the surface has dents. White: {sphere.sizes['line']} lines of gradient flow from |m| below",
        f"0.12, some of them hidden; all end at |m| of at least {ends.min():.3f}. Middle: where the unit is orthogonal",
        f"to the signal, the Hessian has the eigenvalue {float(spectrum.eigenvalue[0]):.1f} once, towards the signal, and",
        f"{float(spectrum.eigenvalue[1]):.1f} in all other directions of the tangent space, {counts}: d - 2 of them, not",
        f"d - 1 as printed. Right: at {starts.sizes['run']} random starts in each dimension the eigenvalues differ from",
        f"these by 8 m^2 and 4 m^2, and d m^2 is {mean:.2f} on average, 1 in theory. The medians of the eigenvalues are",
        f"{one:.2f} and {flat:.2f} at d = {int(first.d)}, {one_last:.6f} and {flat_last:.1e} at d = {int(last.d)}; |m| is",
        f"below {SMALL_OVERLAP:g} for {share(first):.0f} % and {share(last):.0f} % of starts.",
    ]
