"""Quadratic networks, figure 6: the dimension of the manifold of solutions against the student's width [3]_.

Any two solutions differ by a rotation of the units. The points are ranks of the generators of rotations at random solutions,
and numbers of weights less the rank of the equations of the manifold.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Float

from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, curve_styles, make_panels
from sgdlimits.papers.quadratic.figures.quadratic_5 import NumericalRank, compute_differential, compute_rank
from sgdlimits.papers.quadratic.theory.critical import solution_dimension

FULL_SIZE = Size(d=6, teachers=(1, 2, 4, 9), widest=12)
QUICK_SIZE = FULL_SIZE.with_changes(d=3, teachers=(1, 2, 5), widest=6)
PARAMETER_WORDS = dict(d="dimension N", teachers="numbers of teachers", widest="largest width")


def sample_solution(p: int, n: int, d: int, rng: np.random.Generator) -> Float[np.ndarray, "p d"]:
    """Draw random weights of p units in R^d that fit a teacher of rank n along the first n axes without error."""
    # a teacher's matrix that is not a multiple of the identity
    rotation, teacher = np.linalg.qr(rng.normal(size=(p, n)))[0], np.linalg.cholesky(np.eye(n) + 0.2)
    return rotation @ np.pad(teacher.T, ((0, 0), (0, d - n)))


def rotation_generators(W: Float[np.ndarray, "p d"]) -> Float[np.ndarray, "pairs pd"]:
    """Return the directions in weight space of rotations of two units into each other, one row per pair of units."""
    first, second = np.triu_indices(len(W), 1)
    moves, pair = np.zeros((len(first), *W.shape)), np.arange(len(first))
    moves[pair, first], moves[pair, second] = W[second], -W[first]
    return moves.reshape(len(first), W.size)


def zero_error_differential(W: Float[np.ndarray, "p d"], n: int) -> Float[np.ndarray, "pd c"]:
    """Return the differential of the equations of zero error at weights W and a teacher of rank n.

    The equations are on W^T W inside the teacher's span, and on W outside.
    """
    p, d = W.shape
    within = compute_differential(W).reshape(p * d, d, d)[:, :n, :n].reshape(p * d, n * n)
    return np.concatenate([within, np.eye(p * d)[:, np.tile(np.arange(d) >= n, p)]], axis=1)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Count the dimension of the manifold of solutions by formula and by numerical ranks, and draw it against the width."""
    rng, widths, over = np.random.default_rng(seed), np.arange(1, size.widest + 1), ("teachers", "width")
    names = ("formula", "rotations", "equations", "smallest_kept", "largest_dropped")
    coords, empty = {"teachers": list(size.teachers), "width": widths}, np.full((len(size.teachers), widths.size), np.nan)
    data = xr.Dataset({name: (over, empty.copy()) for name in names}, coords, {"d": size.d})
    for k in size.teachers:
        n = min(k, size.d)
        for p in widths[widths >= n]:
            W = sample_solution(p, n, size.d, rng)
            turned, fixed = (
                compute_rank(rotation_generators(W)) if p > 1 else NumericalRank(0, 1.0, 0.0),
                compute_rank(zero_error_differential(W, n)),
            )
            values = (solution_dimension(p, k, size.d), turned.rank, W.size - fixed.rank)
            ends = (min(turned.smallest_kept, fixed.smallest_kept), max(turned.largest_dropped, fixed.largest_dropped))
            for name, value in zip(names, (*values, *ends), strict=True):
                data[name].loc[{"teachers": k, "width": p}] = value
    save_dataset("counts", data)
    return DrawnFigure(_draw_figure(data), _write_caption(data))


def _draw_figure(data: xr.Dataset) -> Figure:
    figure, ax = make_panels(figsize=(5.2, 3.6))
    for k, look in zip(data.teachers.values, curve_styles(data.sizes["teachers"]), strict=True):
        one = data.sel(teachers=k)
        ax.plot(one.width, one.formula, color=look.colour, linestyle=look.dashes, label=f"$p^* = {k}$")
        ax.plot(one.width, one.rotations, "o", color=look.colour, markersize=6, markerfacecolor="white", clip_on=False)
        ax.plot(one.width, one.equations, ".", color=look.colour, markersize=4, clip_on=False)
    ax.plot([], [], "o", color="grey", markersize=6, markerfacecolor="white", label="rank of rotations")
    ax.plot([], [], ".", color="grey", markersize=4, label="left by equations")
    ax.set(xlabel="width $p$", ylabel="dimension of the solutions", xlim=(0, data.width.values[-1] + 0.5), ylim=(0, None))
    ax.legend(loc="upper left", fontsize=8)
    return figure


def _write_caption(data: xr.Dataset) -> list[str]:
    last, d = data.isel(width=-1), int(data.attrs["d"])
    ends = [f"{int(last.formula.sel(teachers=k))} at p* = {k}" for k in data.teachers.values]
    shares = [f"{float(last.formula.sel(teachers=k) / (d * last.width)):.2f}" for k in data.teachers.values]
    there = data.formula.notnull()
    same = int(((data.rotations == data.formula) & (data.equations == data.formula)).sum())
    return [
        f"Figure 6 of the paper, which does not say its sizes: here N = {d}, teachers p* =",
        f"{', '.join(map(str, data.teachers.values))} and p up to {int(last.width)}. Lines: pn - n(n+1)/2 with n = min(p*,",
        "N), from p = n on, where solutions begin. Circles: rank of the rotations of units at a random solution; dots:",
        f"weights less the rank of the solutions' equations. Both are the formula in {same} of {int(there.sum())} cases;",
        f"singular values that count are at least {float(data.smallest_kept.min()):.2f} of the largest, the others at most",
        f"{float(data.largest_dropped.max()):.1e}.",
        "Lines have slope n: one teacher leaves p - 1 dimensions, and more than N teachers",
        f"count as N. At the largest p the dimension is {', '.join(ends)}, or {', '.join(shares)} of the weights.",
    ]
