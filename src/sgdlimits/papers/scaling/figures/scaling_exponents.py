r"""Exponents of the risk of SGD over a plane of spectra and teachers, against Paquette et al. [21]_.

The risk of least squares at a constant rate is the exact expectation, so that exponents are slopes of one curve. They are
measured over the last decade of steps. They have not converged where the slope has changed over the four decades before, as
where the teacher's tail decays so slowly that the last eigenvalues matter; nor near the line on which the exponents of the two
terms of the theory are equal, where the smaller term has not died out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, bar, make_panels, sizes
from sgdlimits.papers.scaling import theory

FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    points=("exponents on each axis", 20, 4),
    steps=("steps", 10**12, 10**9),
    blocks=("blocks", 96, 60),
)
MAX_DIMENSION = 10**15
"""Largest dimension; slow spectra would need more, for their tail not to matter."""
MARGIN = 10**4
"""Dimension over that of the features learnt at the end, unless it exceeds `MAX_DIMENSION`."""
DECADES = 5
"""Number of decades of steps whose slopes are compared, the last one included."""
CONVERGED = 0.005
"""Largest range of the slopes of these decades that counts as converged."""
SMALL_TERM = 0.01
"""Ratio of the two terms of the theory, without their constants, above which the exponent does not count as converged."""


def measure(b: float, ratios: np.ndarray, size: Any) -> np.ndarray:
    """Return the risk's slopes over the last decades of steps, the last decade first, for teachers with (a-1)/b in `ratios`."""
    d = int(min(MAX_DIMENSION, MARGIN * size.steps ** (1 / b)))
    spectrum = sl.spectrum.power_law(d, b, size.blocks)
    rate = sl.OnePassSGD(0.5 * d / theory.trace(spectrum))
    steps = size.steps // 10 ** np.arange(DECADES, -1, -1)
    risks = [theory.excess_risk(theory.problem(spectrum, 1 + b * ratio, rate), d, steps) for ratio in ratios]
    return -np.diff(np.log10(risks))[:, ::-1]


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Measure the plane of exponents and draw it beside its difference from theory."""
    exponents, ratios = np.linspace(1.1, 3.0, size.points), np.linspace(0.1, 2.0, size.points)
    slopes = np.array([measure(float(b), ratios, size) for b in bar(exponents, desc="spectra")])
    gap = np.abs(ratios - 2 + 1 / exponents[:, None])
    converged = (np.ptp(slopes, axis=-1) < CONVERGED) & (float(size.steps) ** -gap < SMALL_TERM)
    expected = theory.sgd_exponent(exponents[:, None], 1 + exponents[:, None] * ratios)
    axes = ("spectrum", "teacher")
    plane = save_dataset(
        "plane",
        xr.Dataset(
            {
                "measured": (axes, slopes[..., 0]),
                "range": (axes, np.ptp(slopes, axis=-1)),
                "theory": (axes, expected),
                "converged": (axes, converged),
            },
            {"spectrum": exponents, "teacher": ratios},
            {"steps": float(size.steps)},
        ),
    )
    return DrawnFigure(_draw(plane), _write_caption(plane))


def _draw(plane: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(10.5, 4.4), sharey=True)
    difference = plane.measured - plane.theory
    shown = left.pcolormesh(plane.spectrum, plane.teacher, plane.measured.values.T, cmap="cividis", shading="nearest")
    figure.colorbar(shown, ax=left, label="exponent of the risk")
    limit = 0.05
    shown = right.pcolormesh(
        plane.spectrum, plane.teacher, difference.values.T, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="nearest"
    )
    figure.colorbar(shown, ax=right, label="measured minus theory", extend="both")
    b, ratio = np.meshgrid(plane.spectrum, plane.teacher, indexing="ij")
    open_points = ~plane.converged.values
    right.plot(b[open_points], ratio[open_points], "x", color="0.25", markersize=4, label="not converged", linestyle="none")
    fine = np.linspace(float(plane.spectrum[0]), float(plane.spectrum[-1]), 200)
    for ax in (left, right):
        ax.plot(fine, 2 - 1 / fine, color="white" if ax is left else "black", linewidth=1.5)
        ax.set(xlabel="$b$, of the eigenvalues $j^{-b}$")
    left.set_ylabel("$(a-1)/b$, of the teacher's squares $j^{-a}$")
    left.set_title(f"(a) SGD, $10^{{{np.log10(plane.attrs['steps']):.0f}}}$ steps", loc="left")
    right.set_title("(b) difference from $\\min((a-1)/b, 2-1/b)$", loc="left")
    if open_points.any():
        right.legend(loc="center")
    return figure


def _write_caption(plane: xr.Dataset) -> list[str]:
    difference = np.abs(plane.measured - plane.theory)
    settled = plane.converged
    worst = float(difference.where(settled).max()) if bool(settled.any()) else float("nan")
    return [
        "Exponent of the risk of SGD in the number of steps, for eigenvalues j^-b and a teacher whose squares times the",
        f"eigenvalues are j^-a, at {plane.sizes['spectrum']} times {plane.sizes['teacher']} points: the slope of the exact",
        f"expectation over the last decade of {plane.attrs['steps']:.0e} steps at half the inverse trace. The line separates",
        "teacher and noise. Theory is min((a-1)/b, 2-1/b).",
        f"At {int(settled.sum())} of {settled.size} points the slope changes by less than {CONVERGED} over {DECADES} decades",
        f"and the smaller term of the theory is below {SMALL_TERM:g} of the larger one, without constants;",
        f"there the largest difference from theory is {worst:.4f}, and the median",
        f"{float(difference.where(settled).median()):.1e}.",
        f"Of all points, {int((difference < 0.01).sum())} are within 0.01; the largest difference is",
        f"{float(difference.max()):.3f}.",
    ]
