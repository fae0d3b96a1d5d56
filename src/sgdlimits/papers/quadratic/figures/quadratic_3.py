"""Quadratic networks, figure 3: which of the solutions of zero risk a start leads to [3]_.

From orthonormal students the ODE ends at the solution closest to its start, and at no other start's. From orthogonal students
of different norms it ends at a solution that is not the closest.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.analysis import conserved
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, DrawnFigure, Figure, SaveDataset, Size, make_panels
from sgdlimits.statistics.trees import select_run

# a small rate, at which the corrector hardly matters
LR = OVERLAP_DEVIATION = 0.01
FULL_SIZE = Size(width=6, teachers=3, starts=9, end=1000.0, times=121)
QUICK_SIZE = FULL_SIZE.with_changes(starts=4, end=300.0, times=61)
PARAMETER_WORDS = dict(
    width="width", teachers="teachers", starts="starts", end="end in the time of the paper", times="saved times"
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Solve the ODE from several starts, and draw the distance to the predicted solutions and the risk against time."""
    problem = sl.presets.quadratic_network(size.width, size.teachers, lr=LR)
    start = sample_starts(problem, size, seed)
    times = np.concatenate([[0.0], np.geomspace(1.0, size.end, size.times)]) / LR
    runs = save_dataset(
        "ode", sl.simulate(problem, sl.ODE(), start, t_max=times[-1], runs=size.starts + 1, seed=seed, save=times)
    )
    ends = conserved.end_point(problem, select_run(start)), conserved.end_point(problem, start)
    first, own = (conserved.distance(runs, end) for end in ends)
    return DrawnFigure(_draw_figure(runs, first, own, size), _write_caption(runs, first, own, size))


def sample_starts(problem: sl.ProjectionProblem, size: Size, seed: int) -> sl.Overlaps:
    """Draw orthonormal students with small random overlaps; squared norms of the last run are 0.4 to 1.6 instead of 1."""
    drawn = sl.OrthogonalInit(OVERLAP_DEVIATION).sample(problem, runs=size.starts + 1, seed=seed)
    return sl.Overlaps(drawn.a, drawn.M, jnp.asarray(drawn.Q).at[-1].set(jnp.diag(jnp.linspace(0.4, 1.6, size.width))))


def scaled_distance_limit(size: Size) -> float:
    """Return the limit, for late times, of the paper's time multiplied by the distance of the overlaps M from their end."""
    p, k = size.width, size.teachers
    return k * p**1.5 * (p - k) / (32 * (p + 2))


def _draw_figure(runs: xr.Dataset, first: xr.Dataset, own: xr.Dataset, size: Size) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(9.2, 3.6))
    tau = LR * runs.t.values[1:]
    for ax, values in ((left, first.M), (right, runs.risk)):
        for run in range(1, size.starts):
            ax.plot(tau, values[run, 1:], color="0.65", linewidth=0.9, label="other starts" if run == 1 else None)
    left.plot(tau, first.M[0, 1:], "k", linewidth=1.6, label="the start of the prediction")
    left.plot(tau, own.M[-1, 1:], "--", color=OKABE_ITO_COLOURS[1], label="different norms, own prediction")
    late = tau > 0.1 * size.end
    left.plot(
        tau[late],
        1.6 * scaled_distance_limit(size) / tau[late],
        ":",
        color=OKABE_ITO_COLOURS[0],
        linewidth=1.4,
        label=r"$\propto 1/\tau$",
    )
    right.plot(tau, runs.risk[0, 1:], "k", linewidth=1.6)
    right.plot(tau, runs.risk[-1, 1:], "--", color=OKABE_ITO_COLOURS[1])
    distance = r"(a) distance of $\rho$ from a predicted end", r"$\|\rho(\tau) - \bar\rho\|$"
    for ax, (title, label) in ((left, distance), (right, ("(b) population risk", "risk"))):
        ax.set(xscale="log", yscale="log", xlabel=r"$\tau = \eta\alpha$, time of the paper", ylabel=label)
        ax.set_title(title, loc="left")
    left.legend(loc="lower left", fontsize=7)
    return figure


def _write_caption(runs: xr.Dataset, first: xr.Dataset, own: xr.Dataset, size: Size) -> list[str]:
    others = first.M.values[1 : size.starts, -1]
    ends = own.M.values[: size.starts, -1]
    change = conserved.polar(runs).drift.values.max(1)
    return [
        f"Figure 3 of the paper: p = {size.width}, p* = {size.teachers}, eta = epsilon = {LR:g}, ODE to eta alpha =",
        f"{size.end:g}. (a) Distance of the overlaps from the end predicted for one start. Black: from that start;",
        f"grey: from {size.starts - 1} others, which end {others.min():.2f} to {others.max():.2f} away from it. Each",
        f"ends at its own prediction, at most {ends.max():.1e} away, and approaches it as 1/time: time times distance is",
        f"{size.end * ends.mean():.4f} on average, in theory {scaled_distance_limit(size):.4f}. Orange: orthogonal students",
        f"of squared norms 0.4 to 1.6 stay {float(own.M[-1, -1]):.3f} away from the solution closest to their start. (b)",
        "All reach zero",
        f"risk, at the end {float(runs.risk[:, -1].min()):.1e} to {float(runs.risk[:, -1].max()):.1e}. An entry of the",
        f"orthogonal part S changes by at most {change[: size.starts].max():.1e} from orthonormal students, and by",
        f"{change[-1]:.2f} from those of different norms.",
    ]
