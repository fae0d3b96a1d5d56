"""Quadratic networks, figure 1: the ODE against simulations from the same start, through all phases of learning [3]_.

Norms settle, all overlaps wait on a plateau and grow there from small values, and the risk falls when they are of order one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels
from sgdlimits.papers.quadratic.phases import Phases, phases

FULL_SIZE = Size(width=6, teachers=3, d=10_000, lr=0.01, end=1400.0, runs=10)
QUICK_SIZE = FULL_SIZE.with_changes(d=2000, lr=0.1, end=200.0)
PARAMETER_WORDS = dict(
    width="students", teachers="teachers", d="dimension", lr="learning rate", end="end in t", runs="runs of the chain"
)
# enough times on the plateau for `phases`
SAVED_TIMES = 301


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate ODE and chain from one orthonormal start, and draw overlaps, norms and risk through all phases of learning."""
    problem = sl.presets.quadratic_network(size.width, size.teachers, size.lr)
    start = sl.OrthogonalInit(size.d**-0.5).one(problem, seed=seed)
    datasets = {"ode": save_dataset("ode", sl.simulate(problem, sl.ODE(), start, t_max=size.end, save=SAVED_TIMES))}
    datasets["chain"] = save_dataset("chain", _simulate_chain(problem, size, start, seed))
    found = {name: phases(dataset) for name, dataset in datasets.items()}
    return DrawnFigure(_draw_figure(datasets, found["ode"]), _write_caption(datasets, found, size))


def _simulate_chain(problem: sl.ProjectionProblem, size: Size, start: sl.Overlaps, seed: int) -> xr.Dataset:
    """Simulate the chain from `start`, half of the runs on each of two threads, with a seed for each thread."""

    def simulate_half(which: int) -> xr.Dataset:
        """Simulate half of the runs; `which` (0 or 1) sets the seed."""
        how: dict = dict(t_max=size.end, runs=size.runs // 2, seed=2 * seed + which, save=SAVED_TIMES, progress=False)
        return sl.simulate(problem, sl.Chain(size.d), start, **how)

    with ThreadPoolExecutor(2) as threads:
        parts = list(threads.map(simulate_half, range(2)))
    return xr.concat(parts, "run", combine_attrs="override").assign_coords(run=np.arange(2 * (size.runs // 2)))


def _draw_figure(datasets: dict[str, xr.Dataset], found: Phases) -> Figure:
    figure, axes = make_panels(2, 2, figsize=(9.2, 6.2), sharex=True)
    students, teachers = (range(datasets["ode"].sizes[name]) for name in ("student", "teacher"))
    shown: dict[str, tuple[str, list[tuple[int, ...]]]] = {
        r"overlaps with teachers $M_{jr}$": ("M", [(j, r) for j in students for r in teachers]),
        r"overlaps of students $Q_{jl}$": ("Q", [(j, i) for j in students for i in students if j < i]),
        r"norms $Q_{jj}$": ("Q", [(j, j) for j in students]),
        "population risk": ("risk", [()]),
    }
    for ax, letter, (label, (name, entries)) in zip(axes.flat, "abcd", shown.items(), strict=True):
        _draw_curves(ax, datasets, name, entries)
        _shade_phases(ax, found, words=letter in "ab")
        ax.set_ylabel(label)
        ax.text(-0.13, 1.03, f"({letter})", transform=ax.transAxes, fontsize=10)
        ax.margins(x=0)
    for ax in axes[1]:
        ax.set_xlabel(r"$t = \alpha$, samples per dimension")
    axes[1, 1].plot([], [], color="black", label="ODE")
    runs = datasets["chain"].sizes["run"]
    axes[1, 1].plot([], [], color="black", linestyle="--", label=f"chain, mean of {runs} runs, with its error")
    axes[1, 1].legend(loc="upper right")
    return figure


def _draw_curves(ax: Axes, datasets: dict[str, xr.Dataset], name: str, entries: list[tuple[int, ...]]) -> None:
    """Draw the entries of one statistic against time: the ODE, and the chain's mean over runs with its standard error."""
    ode, chain = datasets["ode"], datasets["chain"]
    for order, entry in enumerate(entries):
        colour = OKABE_ITO_COLOURS[(entry[0] if entry else order) % len(OKABE_ITO_COLOURS)]
        values = np.moveaxis(chain[name].values, (0, 1), (-2, -1))[entry]
        limit = np.moveaxis(ode[name].values[0], 0, -1)[entry]
        mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
        ax.plot(ode.t, limit, color=colour, linewidth=1.0)
        ax.plot(chain.t, mean, color=colour, linewidth=1.0, linestyle="--")
        ax.fill_between(chain.t, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)


def _shade_phases(ax: Axes, found: Phases, words: bool) -> None:
    """Shade every second phase of learning, and optionally write the names of the phases above the panel."""
    spans = zip(found.data.phase.values, found.data.begin[0], found.data.end[0], strict=True)
    for place, (phase, begin, end) in enumerate(spans):
        if not (np.isfinite(begin) and np.isfinite(end) and end > begin):
            continue
        if place % 2:
            ax.axvspan(float(begin), float(end), color="0.94", linewidth=0, zorder=0)
        if words:
            how: dict = dict(transform=ax.get_xaxis_transform(), ha="center", va="bottom", fontsize=7.5, color="0.35")
            narrow = end - begin < 0.06 * float(found.data.end[0].max())  # its words stand above those of the next phase
            ax.text(float(begin + end) / 2, 1.06 if narrow else 1.01, phase.replace(" ", "\n"), **how)


def _write_caption(datasets: dict[str, xr.Dataset], found: dict[str, Phases], size: Size) -> list[str]:
    ode, chain = datasets["ode"], datasets["chain"]
    width = np.sqrt(chain.risk.var("run", ddof=1) / chain.sizes["run"])
    gap = np.abs(chain.risk.mean("run") - ode.risk[0])
    worst = int(np.argmax(gap.values))
    theory, one = found["ode"].theory, found["ode"].data.isel(run=0)
    begins = [(str(phase), float(begin)) for phase, begin in zip(one.phase.values, one.begin.values, strict=True)]
    parts = [f"{phase} from {begin:.1f}" for phase, begin in begins if np.isfinite(begin) and phase != "norm learning"]
    words = (
        f"In t: {', '.join(parts)}. The risk on the plateau is {float(one.level):.4f}, in theory {theory['level']:.4f}, and "
        f"overlaps grow there at {float(one.growth):.5f}, in theory {theory['growth']:.5f} (small learning rates: "
        f"{8 * size.lr / (size.width * size.teachers):.5f})."
    )
    return [
        f"Figure 1 of the paper: p = {size.width}, p* = {size.teachers}, learning rate {size.lr:g}, N = {size.d}.",
        f"Solid: the ODE. Dashed: the mean of {size.runs} runs of the exact chain from the same start, which have the law of",
        "SGD in R^N, with a band of one standard error. Colours are students. (a) overlaps with teachers, (b) between",
        "students, (c) norms, (d) population risk. Shaded are the plateau and the descent that `phases` finds in the ODE.",
        words if parts else f"It finds no plateau up to t = {size.end:.1f}.",
        f"The mean risk of the chain departs most from the ODE at t = {float(ode.t[worst]):.1f}, by",
        f"{float(gap[worst]):.3f} or {float((gap / width)[worst]):.1f} of its standard errors.",
    ]
