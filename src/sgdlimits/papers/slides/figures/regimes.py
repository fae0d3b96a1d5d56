"""Dimension-free limits: which limit holds at width p = d^kappa and learning rate d^-delta, computed and by formula [5]_.

At each point of the plane erf committees are built at growing dimension, and the sizes of the population drift, of the
corrector and of the noise are measured in a unit of the paper's time. Their exponents of d decide the regime
(`theory.regimes`). By formula only :math:`\\kappa + \\delta` matters, with lines at 0 and at -1/2.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.colors import ListedColormap

from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels
from sgdlimits.papers.slides import theory as regimes

# all four regimes lie within these
MIN_DELTA, MAX_DELTA = -1.5, 1.0
EXPONENT_TOLERANCE = 0.03
"""Difference of two exponents of d below which they count as equal."""
REGIME_COLOURS = ("#A6CEE3", "#0072B2", "#F9C784", "#E8998D")
"""Colours of the regimes in the phase diagram, in the order of `theory.regimes.REGIMES`."""
FULL_SIZE = Size(kappas=41, deltas=101, widths=(4, 8, 16))
QUICK_SIZE = FULL_SIZE.with_changes(kappas=11, deltas=26, widths=(4, 12))
PARAMETER_WORDS = dict(kappas="points along kappa", deltas="points along delta", widths="widths behind the fits")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute the limit of SGD over exponents of width and learning rate, and draw the phase diagram with its formula."""
    kappas, deltas = np.linspace(0, 1, size.kappas), np.linspace(MIN_DELTA, MAX_DELTA, size.deltas)
    found = regimes.phase_diagram(kappas.tolist(), deltas.tolist(), widths=size.widths, tolerance=EXPONENT_TOLERANCE)
    formula = np.array([[regimes.regime(kappa, delta).name for delta in deltas] for kappa in kappas])
    found = save_dataset("diagram", found.assign(formula=(("kappa", "delta"), formula)))
    return DrawnFigure(_draw_figure(found), _write_caption(found))


def relative_exponents(found: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the exponents of d of the ratio of corrector to population drift, and of the noise.

    The corrector is the part of the drift quadratic in the learning rate. The noise is measured on the time scale of the larger
    part of the drift.
    """
    return found.corrector - found.population, found.fluctuation - np.maximum(found.population, found.corrector) / 2


def _draw_figure(found: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(9.2, 4.0))
    _draw_regimes(found, left)
    _draw_exponents(found, right)
    return figure


def _draw_regimes(found: xr.Dataset, ax: Axes) -> None:
    """Draw the computed regimes over the exponents kappa of the width and delta of the learning rate, with the formula."""
    # a regime's number selects its colour
    values, colours = np.vectorize(list(regimes.REGIMES).index)(found.regime.values), ListedColormap(REGIME_COLOURS)
    ax.pcolormesh(found.kappa, found.delta, values.T, cmap=colours, vmin=0, vmax=3, shading="nearest", rasterized=True)
    kappa = np.array([0.0, 1.0])
    ax.plot(kappa, -kappa, color="black", linewidth=1.4)
    ax.plot(kappa, -kappa - 0.5, color="black", linewidth=1.4, linestyle="--")
    along_line: dict = dict(rotation=-45, rotation_mode="anchor", transform_rotates_text=True, ha="center")
    ax.text(0.55, -0.44, r"$\kappa+\delta=0$: high-dimensional (Saad and Solla)", va="bottom", fontsize=8, **along_line)
    ax.text(0.5, -0.76, "noise-dominated", va="center", fontsize=10, **along_line)
    ax.text(0.5, -1.06, r"$\kappa+\delta=-1/2$", va="top", fontsize=8, **along_line)
    ax.text(0.55, 0.45, "gradient flow", ha="center", fontsize=10)
    ax.text(0.55, 0.31, r"mean field where $\kappa > 0$", ha="center", fontsize=8)
    ax.text(0.2, -1.28, "no limit", ha="center", fontsize=10)
    ax.plot(0, 0, "o", color="black", markersize=6, clip_on=False, zorder=5)
    ax.text(0.03, 0.07, "constant width and rate", fontsize=8, va="bottom")
    ax.set(xlim=(0, 1), ylim=(MIN_DELTA, MAX_DELTA), xlabel=r"$\kappa$, width $p = d^\kappa$")
    ax.set(ylabel=r"$\delta$, learning rate $\gamma = d^{-\delta}$", title="computed regime")


def _draw_exponents(found: xr.Dataset, ax: Axes) -> None:
    """Draw the measured exponents of corrector and noise against kappa + delta, with the formula.

    Here kappa and delta are the exponents of the width and of the inverse learning rate in d.
    """
    total = np.add.outer(found.kappa.values, found.delta.values)
    line = np.linspace(MIN_DELTA, MAX_DELTA + 1, 200)
    formula = -line, -(1 + np.minimum(line, 2 * line)) / 2
    labels = "corrector / population", "noise on the faster clock"
    for exponent, expected, colour, label in zip(relative_exponents(found), formula, OKABE_ITO_COLOURS, labels, strict=False):
        ax.plot(total.ravel(), exponent.values.ravel(), ".", color=colour, markersize=2.5, alpha=0.5, rasterized=True)
        ax.plot([], [], "o", color=colour, markersize=4, label=label)
        ax.plot(line, expected, color="black", linewidth=0.9)
    ax.plot([], [], color="black", linewidth=0.9, label="formula")
    for place in (-0.5, 0):
        ax.axvline(place, color="0.6", linewidth=0.7, zorder=0)
    ax.axhline(0, color="0.6", linewidth=0.7, zorder=0)
    ax.set(xlim=(MIN_DELTA, MAX_DELTA + 1), xlabel=r"$\kappa+\delta$", ylabel="exponent of $d$", title="measured exponents")
    ax.legend()


def _write_caption(found: xr.Dataset) -> list[str]:
    total = found.kappa + found.delta
    # distance of each point from the closer line
    near = np.minimum(abs(total), abs(total + 0.5)).values
    wrong = near[found.regime.values != found.formula.values]
    ratio, noise = relative_exponents(found)
    off = float(abs(ratio + total).max()), float(abs(noise + (1 + np.minimum(total, 2 * total)) / 2).max())
    widths = ", ".join(str(width) for width in found.attrs["widths"])
    differ = f"they differ at {wrong.size}, all within {wrong.max():.3f} of a line" if wrong.size else "they differ at none"
    return [
        "Left: which limit holds when the width is d^kappa and the learning rate d^-delta, from measured sizes of the",
        "population drift, the corrector and the noise; lines are the formula's, kappa + delta = 0.0 and -0.5 (dashed).",
        f"Committees of {found.attrs['teachers']} teachers, erf units, label noise {found.attrs['noise']:.1f} and every",
        f"overlap {found.attrs['overlap']:.1f} are built at widths {widths} in d = p^(1/kappa) dimensions; at kappa = 0 the",
        "width stays and d grows. Each size is the largest entry in a unit of the paper's time, its exponent the slope of a",
        "fit. The loss has the factor 1/2, which changes no exponent. Right: the exponents depend on kappa + delta alone, up",
        "to what small widths leave. Above 0.0 the corrector vanishes beside the population drift, below it outgrows it;",
        f"from -0.5 on the noise does not vanish on any clock. Of {found.regime.size} points computed and by formula,",
        f"{differ} (exponents that differ by {found.attrs['tolerance']:g} count as equal). The exponents are within",
        f"{off[0]:.3f} and {off[1]:.3f} of the formula's.",
    ]
