"""Escaping mediocrity from given starts: SGD's own noise delays the exit from most starts but shortens the mean [1]_.

The paper's figure 1 (left) shows one start. Here the exact chain starts from several overlaps at several dimensions, and its
mean exit time is compared with that of the ODE.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    make_panels,
    select_rows,
    standard_error,
    tabulate,
)
from sgdlimits.papers.mediocrity.theory import delayed_share, exit_time, max_lr, noise_delay, noise_gain
from sgdlimits.papers.mediocrity.theory.times import exit_horizon, read_parameters

# a small rate, and the fastest one
LEARNING_RATES = (0.03, 1 / 12)
THRESHOLD = 0.1
FULL_SIZE = Size(dimensions={1000: 4096, 4000: 1024, 16_000: 256}, starts=(0.125, 0.25, 0.5, 1.0, 2.0, 3.0))
QUICK_SIZE = Size(dimensions={500: 1024, 2000: 1024}, starts=(0.25, 1.0, 2.0))
PARAMETER_WORDS = dict(dimensions="runs by dimension", starts="starts, as the root of d times the overlap")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate mean exit times of one unit from several starts, and draw their delay by SGD's noise against the start."""
    cases = [(lr, d, y) for lr in LEARNING_RATES for d in size.dimensions for y in size.starts]
    rows = [
        {"lr": lr, "d": d, "start": y} | measure_delay(lr, d, y, size.dimensions[d], seed + number)
        # a seed for each case, so that their errors are independent
        for number, (lr, d, y) in enumerate(bar(cases, desc="starts"))
    ]
    table = save_dataset("table", tabulate(rows, threshold=THRESHOLD))
    return DrawnFigure(_draw_figure(table, size), _write_caption(table, size))


def measure_delay(lr: float, d: int, y: float, runs: int, seed: int) -> dict[str, float]:
    """Return the mean exit time of chain minus ODE from the overlap y/sqrt(d), its standard error, and two theoretical values.

    The theoretical values are those of the delay by SGD's noise: by formula, and with the noise along the whole path.
    """
    problem, m, until = sl.presets.phase_retrieval(lr=lr), y * d**-0.5, sl.exits(THRESHOLD)
    end = exit_horizon(read_parameters(problem, d, THRESHOLD))
    found = sl.simulate(problem, sl.Chain(d), sl.FixedInit(m), t_max=end, runs=runs, seed=seed, until=until, progress=False)
    t = sl.exit_times(found, THRESHOLD).t.values * lr
    ode, backward = (lr * exit_time(problem, d, THRESHOLD, which, start=m) for which in ("ode", "backward"))
    return {
        "delay": t.mean() - ode, "error": standard_error(t),
        "backward": backward - ode, "theory": float(noise_delay(1, lr, 0.0, y)),
    }  # fmt: skip


def _draw_figure(table: xr.Dataset, size: Size) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(9.0, 3.9))
    _draw_delays(left, table, size)
    _draw_shares(right)
    return figure


def _draw_delays(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the delay of the mean exit by SGD's noise against the initial overlap, for the chain and by the formula."""
    y = np.linspace(0.06, 1.1 * max(size.starts), 300)
    for lr, colour in zip(LEARNING_RATES, OKABE_ITO_COLOURS, strict=False):
        ax.plot(y, noise_delay(1, lr, 0.0, y), color=colour, linewidth=1.2, label=rf"$\kappa = {noise_gain(1, lr):.2f}$")
        for (number, d), marker in zip(enumerate(size.dimensions), "osv", strict=False):
            here = select_rows(table, lr=lr, d=d)
            aside = here.start * 1.03 ** (number - (len(size.dimensions) - 1) / 2)
            ax.errorbar(aside, here.delay, 1.96 * here.error, fmt=marker, color=colour, markersize=3.5, linewidth=0.9)
    for d, marker in zip(size.dimensions, "osv", strict=False):
        ax.plot([], [], marker, color="0.3", markersize=3.5, label=f"chain, $d = {d}$")
    ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(xscale="log", xlabel=r"overlap at the start, $\sqrt{d}\,|m_0|$", ylabel="delay after the ODE, paper's time")
    ax.set_title("(a) the delay from given starts", loc="left")
    ax.legend(loc="lower right")


def _draw_shares(ax: Axes) -> None:
    """Draw the share of random starts that noise delays, and the mean delay, against kappa.

    Here kappa is the gain of the variance of a random start by SGD's noise.
    """
    # kappa diverges at max_lr
    lr = np.linspace(1e-3, 0.98 * float(max_lr(1)), 200)
    kappa = noise_gain(1, lr)
    ax.plot(kappa, delayed_share(lr), color=OKABE_ITO_COLOURS[2], label="share of starts delayed")
    ax.plot(kappa, -np.log1p(kappa) / (4 - 24 * lr) / 2, color=OKABE_ITO_COLOURS[3], linestyle="--", label="mean delay")
    ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(xscale="log", xlabel=r"noise over start, $\kappa$", ylabel="share; paper's time", xlim=(0.02, 10), ylim=(-1.0, 1.0))
    ax.set_title("(b) random starts: share delayed, mean delay", loc="left")
    ax.legend(loc="lower left")


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    off = (table.delay - table.theory) / table.error
    runs = ", ".join(f"{count} at d = {d}" for d, count in size.dimensions.items())
    sentences = [
        "Whether SGD's own noise delays the exit depends on the start; the paper's figure 1 (left) shows one. One unit",
        f"on the sphere without label noise, T = {THRESHOLD:g}, times of the paper. (a) Mean exit of the exact chain less that",
        f"of the ODE from the same overlap, with 95 % intervals, runs: {runs} (dots are shifted horizontally);",
        f"lines: linear noise near the saddle. They are {float(np.sqrt((off**2).mean())):.1f} standard errors apart, root mean",
        f"square, {float(np.abs(off).max()):.1f} at most. The backward equation differs from the lines by at most",
        f"{float(np.abs(table.backward - table.theory).max()):.3f}.",
    ]
    for lr in LEARNING_RATES:
        one = select_rows(table, lr=lr, start=1.0).isel(point=-1)
        sentences.append(
            f"At kappa = {noise_gain(1, lr):.2f} (lr {lr:.4g}) and the typical start 1 the chain at d = {int(one.d)} exits "
            f"{float(one.delay):+.3f} ± {float(one.error):.3f} later, in theory {float(one.theory):+.3f}; "
            f"{100 * float(delayed_share(lr)):.0f} % of random starts are delayed."
        )
    return [*sentences, "(b) Starts with a small overlap gain so much from noise that the mean over random starts is negative."]
