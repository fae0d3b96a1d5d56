"""Dimension-free limits, high-dimensional regime: eight erf units learn four; plateau and specialisation [5]_.

At constant width and learning rate the corrector stays as d grows (Saad and Solla). From random weights all students first
learn what the teachers have in common, and wait on a plateau where each overlaps about equally with all teachers. Small
differences grow there exponentially, until each student has found one teacher.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, Axes, DrawnFigure, Figure, SaveDataset, Size, make_panels
from sgdlimits.papers.slides.figures import committee_classical as classical
from sgdlimits.papers.slides.figures.committee_classical import NOISE, draw_risk, excess_risk, noise_floor, simulate_levels

# the slides' value
LEARNING_RATE = 0.1
FULL_SIZE = Size(width=8, teachers=4, d=1000, runs=4, end=400.0, end_ode=3e4)
QUICK_SIZE = FULL_SIZE.with_changes(d=100, end=500.0, end_ode=1e4)
PARAMETER_WORDS = classical.PARAMETER_WORDS | {"runs": "runs of the chain"}


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the chain, the ODE and gradient flow from one random start, and draw risk and overlaps."""
    problem = sl.presets.committee(size.width, size.teachers, "erf", lr=2 * LEARNING_RATE, noise=NOISE)
    levels = simulate_levels(problem, "chain", sl.Chain(size.d), size, seed, count=120)
    datasets = {name: save_dataset(name.lower(), found) for name, found in levels}
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(9.2, 3.9))
    chain, ode, flow = (datasets[name] for name in ("chain", "ODE", "flow"))
    draw_risk(left, chain, f"exact chain, $d = {size.d}$, {size.runs} runs", ode, flow, noise_floor(size.width, LEARNING_RATE))
    left.set(ylabel="excess risk")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    _draw_overlaps(ode.isel(run=0), chain.isel(run=0), right)
    figure.suptitle(rf"$k = {size.teachers}$, $p = {size.width}$, $\gamma = {LEARNING_RATE:g}$, one random start", fontsize=10)
    return figure


def _draw_overlaps(ode: xr.Dataset, chain: xr.Dataset, ax: Axes) -> None:
    """Draw each student's overlaps with all teachers against time, in colour for the teacher that it finally learns."""
    # the teacher with which a student finally overlaps most
    own = np.abs(ode.M.values[-1]).argmax(1)
    for student, teacher in np.ndindex(ode.M.shape[1:]):
        mine = own[student] == teacher
        colour = OKABE_ITO_COLOURS[teacher] if mine else "0.7"
        width, order = (1.3, 3) if mine else (0.7, 1)
        ax.plot(ode.tau, ode.M[:, student, teacher], color=colour, linewidth=width, zorder=order)
        if mine:
            ax.plot(chain.tau[::3], chain.M[::3, student, teacher], "o", color=colour, markersize=2.2, zorder=2)
    for teacher in sorted(set(own)):
        ax.plot([], [], color=OKABE_ITO_COLOURS[teacher], linewidth=1.3, label=f"own teacher, no. {teacher + 1}")
    ax.plot([], [], color="0.7", linewidth=0.7, label="other teachers")
    ax.plot([], [], "o", color="0.3", markersize=2.2, label="one run of the chain")
    ax.set(xscale="log", xlabel=r"time of the slides, $\gamma t/p$", ylabel=r"overlap $M_{jr}$")
    ax.legend(loc="upper left", fontsize=8)


def find_plateau(ode: xr.Dataset) -> int:
    """Return the index of the saved time on the plateau at which the ODE's log excess risk is flattest in log time."""
    x, y = np.log(ode.tau.values), np.log(excess_risk(ode).values[0])
    # a factor e away from the first and the last risk
    waiting = (y < y[0] - 1) & (y > y[-1] + 1)
    return int(np.where(waiting, np.abs(np.gradient(y, x)), np.inf).argmin())


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    chain, ode, flow = (datasets[name] for name in ("chain", "ODE", "flow"))
    at, risk = find_plateau(ode), excess_risk(ode).values[0]
    # interp needs increasing abscissae: minus the log risk
    half = lambda found: [np.interp(-np.log(risk[at] / 2), -np.log(run), found.tau) for run in excess_risk(found).values]
    runs = ", ".join(f"{each:.1f}" for each in half(chain))
    M, floor = np.abs(ode.M.values[0]), noise_floor(size.width, LEARNING_RATE)
    own, others = np.sort(M[-1], axis=1)[:, -1], np.sort(M[-1], axis=1)[:, :-1]
    last = float(np.interp(size.end, ode.tau, risk)), float(excess_risk(chain)[:, -1].mean())
    return [
        f"The slides show the plateau and the specialisation of p = {size.width} erf units that learn k = {size.teachers},",
        f"at gamma = {LEARNING_RATE} and noise {NOISE:g}, s(x) = erf(x/sqrt 2). Their loss has no 1/2, so that lr =",
        f"{2 * LEARNING_RATE:g} here; their time is gamma t/p. Here d = {size.d}. On the plateau, flattest at",
        f"{float(ode.tau[at]):.1f}, the excess risk is {risk[at]:.2e} and students overlap with teachers by",
        f"{M[at].min():.2f} to {M[at].max():.2f}. The ODE has lost half of that risk at",
        f"{half(ode)[0]:.1f}, the runs of the chain at {runs}.",
        f"At {size.end:g} the excess risk is {last[0]:.1e} in the ODE and {last[1]:.1e} in the chain's mean, at",
        f"{size.end_ode:g} it is {risk[-1]:.2e} in the ODE, {risk[-1] / floor:.2f} times what label noise leaves to first",
        f"order in lr, and {float(excess_risk(flow)[0, -1]):.1e} in gradient flow. By then students overlap with their own",
        f"teacher by {own.min():.2f} to {own.max():.2f} and with others by at most {others.max():.2f}.",
    ]
