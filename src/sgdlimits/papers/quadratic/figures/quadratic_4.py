"""Quadratic networks, figure 4: the orthogonal part of the overlaps stays, diffuses at finite d, and moves in general [3]_."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.analysis import conserved
from sgdlimits.level.base import Level
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels, sizes

# learning rate, different squared norms, and singular values of M
LR, SQUARED_NORMS, SINGULAR_VALUES = 0.15, (1.8, 0.4), (0.4, 0.08)
OVERLAP_DEVIATION = 0.01
"""Standard deviation of the overlaps of the random start, (8) of the paper."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    limit=("end of the ODE", 30.0),
    learnt=("end of the ODE from the random start", 400.0),
    shown=("dimensions that are drawn", (10**3, 10**5)),
    runs=("their runs", 4),
    end=("their end", 15.0),
    sizes=("dimensions that are compared", (10**3, 10**4, 10**5, 10**6, 10**7), (10**3, 10**4, 10**5)),
    compared=("their runs", 16),
    early=("their end", 0.5),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate ODE and chain from students of equal and different norms, and draw S = M (M^T M)^(-1/2).

    Here M has the overlaps with the teachers, and S is their orthogonal part.
    """
    problem = sl.presets.quadratic_network(2, 2, lr=LR)
    equal, different = build_starts(seed)
    follow: dict[str, tuple[Level, sl.Overlaps, float, int]] = {"ode": (sl.ODE(), equal, size.limit, 1)}
    random = sl.OrthogonalInit(OVERLAP_DEVIATION).one(problem, seed=seed)
    follow["random"] = (sl.ODE(), random, size.learnt, 1)
    follow["different-norms"] = (sl.ODE(), different, size.limit, 1)
    follow |= {f"chain-{d}": (sl.Chain(d), equal, size.end, size.runs) for d in size.shown}
    follow |= {f"early-{d}": (sl.Chain(d), equal, size.early, size.compared) for d in size.sizes}
    datasets = {}
    for name, (level, start, end, runs) in follow.items():
        datasets[name] = save_dataset(name, sl.simulate(problem, level, start, t_max=end, runs=runs, seed=seed, save=101))
    parts = {name: conserved.polar(data) for name, data in datasets.items()}
    return DrawnFigure(_draw_figure(parts, size), _write_caption(datasets, parts, size))


def build_starts(seed: int) -> tuple[sl.Overlaps, sl.Overlaps]:
    """Return two starts with the same overlaps M with the teachers: orthogonal students of equal and of different norms.

    M turns the students by 30 degrees and the teachers at random.
    """
    turn = np.array([[np.sqrt(3), -1], [1, np.sqrt(3)]]) / 2
    M = turn @ np.diag(SINGULAR_VALUES) @ np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 2)))[0]
    return sl.Overlaps(jnp.ones(2), M, jnp.eye(2)), sl.Overlaps(jnp.ones(2), M, jnp.diag(jnp.array(SQUARED_NORMS)))


def fit_exponent(parts: dict[str, xr.Dataset], size: Size) -> tuple[np.ndarray, float, float]:
    """Return the root mean square change of S at an early time for each dimension d, and its fitted exponent in d with error.

    Here S is the orthogonal part M (M^T M)^(-1/2) of the teacher overlaps M. The change of S is one Gaussian angle per run,
    which gives the error of a root mean square.
    """
    change = np.array([np.sqrt((parts[f"early-{d}"].frobenius[:, -1] ** 2).mean()) for d in size.sizes])
    x = np.log(size.sizes) - np.mean(np.log(size.sizes))
    return change, float(x @ np.log(change) / (x @ x)), float(np.sqrt(1 / (2 * size.compared)) / np.linalg.norm(x))


def _draw_figure(parts: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, (first, *axes) = make_panels(1, 4, figsize=(14.5, 3.5))
    _draw_entries(first, parts["random"].S[0], "ODE", linewidth=1.6)
    first.set(xlabel="$t$, samples per dimension", ylabel="entries of $S$", ylim=(-1.15, 1.15))
    first.set_title(rf"(a) random start, $\epsilon = {OVERLAP_DEVIATION:g}$", loc="left")
    low, high = size.shown
    _draw_entries(axes[0], parts["ode"].S[0], "ODE, equal norms", linewidth=1.6)
    _draw_entries(axes[0], parts["different-norms"].S[0], "ODE, different norms", linestyle="--", linewidth=1.2)
    for d, runs, style in ((low, size.runs, dict(alpha=0.45, linewidth=0.7)), (high, 1, dict(linewidth=1.6))):
        S = parts[f"chain-{d}"].S
        for run in range(runs):
            _draw_entries(axes[1], (S - S.isel(t=0))[run], f"chain, $d = {_format_power(d)}$" if run == 0 else None, **style)
    axes[1].axhline(0.0, color="k", linestyle="--", linewidth=1.0, label="ODE")
    titles = ("(b) given norms", "entries of $S$"), ("(c) finite $d$, equal norms", "entries of $S(t) - S(0)$")
    for ax, (title, label) in zip(axes[:2], titles, strict=True):
        ax.set(xlabel="$t$, samples per dimension", ylabel=label)
        ax.set_title(title, loc="left")
    axes[0].legend(loc="best", fontsize=7)
    axes[1].set_ylim(np.multiply(axes[1].get_ylim(), (1.0, 1.45)))
    axes[1].legend(loc="upper center", ncols=3, fontsize=7, handlelength=2.0)
    _draw_against_d(axes[2], parts, size)
    return figure


def _draw_entries(ax: Axes, S: xr.DataArray, label: str | None, **style) -> None:
    """Draw the four entries of the orthogonal part S in one run against time, one colour each.

    The legend shows the line style in grey.
    """
    for entry, colour in zip(S.values.reshape(S.sizes["t"], -1).T, OKABE_ITO_COLOURS, strict=False):
        ax.plot(S.t, entry, color=colour, **style)
    if label is not None:
        ax.plot([], [], color="0.3", label=label, **style)


def _format_power(d: int) -> str:
    """Format the dimension d as a power of ten if it is one, else as a number."""
    digits = len(str(d)) - 1
    return f"10^{digits}" if d == 10**digits else str(d)


def _draw_against_d(ax: Axes, parts: dict[str, xr.Dataset], size: Size) -> None:
    """Draw the root mean square change of the orthogonal part S at an early time against d, with the fitted power."""
    change, slope, _ = fit_exponent(parts, size)
    x = np.array(size.sizes, float)
    ax.loglog(x, change, "o", color=OKABE_ITO_COLOURS[0], label=f"chain, {size.compared} runs each")
    middle = np.exp(np.log(change).mean() - slope * np.log(x).mean())
    ax.loglog(x, middle * x**slope, "k--", linewidth=1.0, label=f"$d^{{{slope:.2f}}}$")
    ax.set(xlabel="$d$", ylabel=rf"$\|S({size.early:g}) - S(0)\|$")
    ax.set_title("(d) change of $S$ at finite $d$", loc="left")
    ax.legend(loc="lower left")


def _write_caption(datasets: dict[str, xr.Dataset], parts: dict[str, xr.Dataset], size: Size) -> list[str]:
    change, slope, error = fit_exponent(parts, size)
    largest = {d: float(parts[f"chain-{d}"].drift.max()) for d in size.shown}
    moved = parts["different-norms"]
    return [
        f"Figure 4 of the paper: entries of S = rho (rho^T rho)^(-1/2), p = p* = 2, eta = {LR:g}. (a) The ODE from the random",
        f"orthonormal start of the paper, overlaps of standard deviation {OVERLAP_DEVIATION:g}: while the risk falls from",
        f"{float(datasets['random'].risk[0, 0]):.2f} to {float(datasets['random'].risk[0, -1]):.1e} an entry changes by at",
        f"most {float(parts['random'].drift.max()):.1e}. In the others rho has the singular values {SINGULAR_VALUES[0]:g} and",
        f"{SINGULAR_VALUES[1]:g} at the start. (b) The ODE to t = {size.limit:g}, where its risk has fallen",
        f"from {float(datasets['ode'].risk[0, 0]):.2f} to {float(datasets['ode'].risk[0, -1]):.2f}. From orthonormal students",
        f"it keeps S: an entry changes by at most {float(parts['ode'].drift.max()):.1e}. From the same overlaps and orthogonal",
        f"students of squared norms {SQUARED_NORMS[0]} and {SQUARED_NORMS[1]} an entry changes by "
        f"{float(moved.drift[0, -1]):.2f}; there the",
        f"commutator of Q and rho rho^T at the start is {float(moved.commutator[0]):.2f} of the matrices' norms. (c) In the",
        f"exact chain from orthonormal students S diffuses: in {size.runs} runs to t = {size.end:g} an entry changes by at",
        f"most {largest[size.shown[0]]:.1e} at d = {size.shown[0]} and {largest[size.shown[1]]:.1e} at d = {size.shown[1]}, of",
        f"which one run is drawn. (d) The root mean square change at t = {size.early:g} falls as d to the {slope:.3f} +-",
        f"{error:.3f}, from {change[0]:.1e} to {change[-1]:.1e}; theory says -0.5.",
    ]
