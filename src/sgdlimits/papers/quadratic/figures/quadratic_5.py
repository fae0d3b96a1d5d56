"""Quadratic networks, figure 5: degrees of freedom of the student against its width [3]_.

The output depends on the weights through W^T W alone. The points are ranks of the differential of W -> W^T W at random weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, curve_styles, make_panels
from sgdlimits.papers.quadratic.theory.critical import degrees_of_freedom

MIN_SINGULAR_VALUE = 1e-10
"""Singular values below this share of the largest count as zero."""
FULL_SIZE = Size(dimensions=(4, 8, 12), widest=16)
QUICK_SIZE = FULL_SIZE.with_changes(dimensions=(3, 5), widest=7)
PARAMETER_WORDS = dict(dimensions="dimensions N", widest="largest width")


class NumericalRank(NamedTuple):
    """Numerical rank of a matrix, with two singular values as shares of the largest.

    They are the smallest singular value that is counted, and the largest one that is neglected.
    """

    rank: int
    smallest_kept: float
    largest_dropped: float


def compute_rank(matrix: Float[np.ndarray, "rows columns"]) -> NumericalRank:
    """Compute the numerical rank of a matrix by singular values, with a relative cutoff."""
    values = np.linalg.svd(matrix, compute_uv=False)
    # relative to the largest singular value
    share = values / values[0]
    above = share > MIN_SINGULAR_VALUE
    return NumericalRank(int(above.sum()), float(share[above].min()), float(share[~above].max(initial=0.0)))


def compute_differential(W: Float[np.ndarray, "p d"]) -> Float[np.ndarray, "pd dd"]:
    """Return the differential of W^T W, for weights W, as a matrix with one row per weight.

    It is the linear map V -> W^T V + V^T W.
    """
    p, d = W.shape
    half = np.einsum("ia,ij,bc->jcab", W, np.eye(p), np.eye(d))
    return (half + half.swapaxes(2, 3)).reshape(p * d, d * d)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Count the student's degrees of freedom by formula and by numerical ranks, and draw them against the width."""
    rng, widths = np.random.default_rng(seed), np.arange(1, size.widest + 1)
    ranks = [[compute_rank(compute_differential(rng.normal(size=(p, d)))) for p in widths] for d in size.dimensions]
    formula = np.array([[degrees_of_freedom(int(p), d) for p in widths] for d in size.dimensions])
    counts = {name: np.array([[getattr(each, name) for each in row] for row in ranks]) for name in NumericalRank._fields}
    coords = {"d": list(size.dimensions), "width": widths}
    data = xr.Dataset({name: (tuple(coords), each) for name, each in (counts | {"formula": formula}).items()}, coords)
    save_dataset("counts", data)
    return DrawnFigure(_draw_figure(data), _write_caption(data))


def _draw_figure(data: xr.Dataset) -> Figure:
    figure, ax = make_panels(figsize=(5.2, 3.6))
    for d, look in zip(data.d.values, curve_styles(data.sizes["d"]), strict=True):
        one = data.sel(d=d)
        ax.plot(one.width, one.formula, color=look.colour, linestyle=look.dashes, label=f"$N = {d}$")
        ax.plot(one.width, one["rank"], "o", color=look.colour, markersize=4, markerfacecolor="white")
        ax.plot(d, int(one.formula.sel(width=d)), "o", color=look.colour, markersize=6)
    ax.plot([], [], "o", color="grey", markersize=4, markerfacecolor="white", label="rank at random weights")
    ax.plot([], [], "o", color="grey", markersize=6, label="$p = N$")
    ax.set(xlabel="width $p$", ylabel="degrees of freedom", xlim=(0, data.width.values[-1] + 0.5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    ax.legend(loc="upper left", fontsize=8, ncols=2)
    ax.set_ylim(0, 1.3 * float(data.formula.max()))
    return figure


def _write_caption(data: xr.Dataset) -> list[str]:
    full = [f"{int(data.formula.sel(d=d, width=d))} at N = {d}" for d in data.d.values]
    shares = [f"{float(data.formula.sel(d=d, width=d)) / d**2:.2f}" for d in data.d.values]
    wide = [f"{float(data.formula.sel(d=d)[-1] / (d * data.width[-1])):.2f}" for d in data.d.values]
    same = int((data["rank"] == data.formula).sum())
    return [
        f"Figure 5 of the paper, which does not say its N: here N = {', '.join(map(str, data.d.values))} and p up to",
        f"{int(data.width[-1])}. Lines: Np - p(p-1)/2 up to p = N, then N(N+1)/2. Open circles: the rank of the differential",
        f"of W -> W^T W at Gaussian weights; it is the formula in {same} of {data.formula.size} cases. Singular values that",
        f"count are at least {float(data.smallest_kept.min()):.1e} of the largest, the others at most",
        f"{float(data.largest_dropped.max()):.1e}. From p = N on (full circles) nothing is added: "
        f"{', '.join(full)}. Degrees of",
        f"freedom are {', '.join(shares)} of the weights there, and {', '.join(wide)} at the largest p.",
    ]
