"""Escaping mediocrity: exit time against the width at constant lr/p, with the second layer fixed and trained [1]_.

The paper says that the exit time falls with the width, by a constant factor only, and that training the second layer does not
change it. Here a run exits when its largest overlap passes a level, as in appendix I. With a fixed second layer the linear ODE
gives

.. math:: t = \\frac1{\\omega_M}\\,E\\log\\frac{\\ell}{\\max_j |m_j(0)|}

in the paper's time, which SGD's own noise near the plateau shortens by :math:`\\log(1+\\kappa)/2\\omega_M`.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import (
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    curve_styles,
    half_overlap_margin,
    make_panels,
    tabulate,
)
from sgdlimits.papers.mediocrity.figures.mediocrity_5 import LR_PER_UNIT, SECOND_LAYER_KINDS

FULL_SIZE = Size(d=1000, runs={1: 512, 2: 384, 3: 256, 5: 192, 10: 128, 20: 64, 50: 32}, starts=256)
QUICK_SIZE = FULL_SIZE.with_changes(d=300, runs={1: 128, 3: 64, 10: 32}, starts=64)
PARAMETER_WORDS = dict(d="dimension", runs="runs of the chain by width", starts="starts of the ODE behind the theory")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate mean exit times with fixed and trained second layer, and draw them against the width with theory."""
    rows = []
    for width, runs in bar(size.runs.items(), desc="widths"):
        linear, noise, ode = compute_theory(width, size, seed)
        row = {"linear": linear, "noisy": linear - noise, "ode": ode, "noisy_ode": ode - noise}
        for kind, train in SECOND_LAYER_KINDS.items():
            problem = sl.presets.phase_retrieval(width=width, lr=LR_PER_UNIT * width, train_second=train)
            t_max = 3 * ode / LR_PER_UNIT + 60 / width
            how: dict = dict(t_max=t_max, runs=runs, seed=seed, save=300, progress=False)
            found = sl.simulate(problem, sl.Chain(size.d), sl.RandomInit(size.d), **how)
            mean = sl.summarise(sl.exit_times(found, half_overlap_margin), quantiles=()).mean.scaled(LR_PER_UNIT)
            row |= {kind: mean.value, f"{kind}_low": mean.low, f"{kind}_high": mean.high}
        rows.append(row)
    coords = {"width": size.runs, "runs": size.runs.values()}
    table = save_dataset(
        "table", tabulate(rows, "width", coords, d=size.d, level=0.5, lr_per_unit=LR_PER_UNIT, time="that of the paper")
    )
    return DrawnFigure(_draw_figure(table), _write_caption(table))


def compute_theory(width: int, size: Size, seed: int) -> tuple[float, float, float]:
    """Return the linear ODE's exit time, its reduction by SGD's noise, and the full ODE's exit time.

    All three are in the paper's time.
    """
    problem = sl.presets.phase_retrieval(width=width, lr=LR_PER_UNIT * width)
    omega = float(sl.theory.mediocrity.linear_rates(width, LR_PER_UNIT * width).M)
    m = np.abs(sl.RandomInit(size.d).sample(problem, runs=4096, seed=seed).M[..., 0])
    # the largest overlap passes 1/2 first
    linear = np.log(0.5 / np.asarray(m).max(1)).mean() / omega
    noise = np.log1p(float(sl.theory.mediocrity.noise_gain(width, LR_PER_UNIT * width))) / (2 * omega)
    starts = size.starts if width > 1 else 4 * size.starts  # a single overlap spreads more than the largest of several
    how = dict(t_max=20 * linear / LR_PER_UNIT, runs=starts, seed=seed, until=half_overlap_margin, progress=False)
    found = sl.exit_times(sl.simulate(problem, sl.ODE(), sl.RandomInit(size.d), **how), half_overlap_margin)
    return float(linear), float(noise), float(found.t.mean()) * LR_PER_UNIT


def _draw_figure(table: xr.Dataset) -> Figure:
    figure, ax = make_panels(figsize=(5.4, 3.9))
    ax.plot(table.width, table.linear, "--", color="0.55", linewidth=1, label="linear ODE")
    ax.plot(table.width, table.ode, ":", color="0.35", linewidth=1.2, label="full ODE")
    ax.plot(table.width, table.noisy_ode, "-", color="0.2", linewidth=1.2, label="full ODE with SGD's noise")
    for kind, look, marker, shift in zip(SECOND_LAYER_KINDS, curve_styles(2), "os", (0.97, 1.03), strict=True):
        bars = np.abs(np.stack([table[f"{kind}_low"] - table[kind], table[f"{kind}_high"] - table[kind]]))
        how: dict = dict(color=look.colour, markersize=4, capsize=2, label=f"chain, second layer {kind}, 95 %")
        ax.errorbar(table.width * shift, table[kind], bars, fmt=marker, **how)
    ax.set(xscale="log", xlabel=r"width $p$", ylabel=r"exit time of the paper, $\gamma t/p$", ylim=(0, None))
    ax.set_xticks(table.width.values, [str(p) for p in table.width.values], minor=False)
    ax.minorticks_off()
    ax.legend()
    ax.set_title(rf"$\max_j|m_j|$ passes 0.5, $d = {table.attrs['d']}$, $\gamma/p = 1/{1 / LR_PER_UNIT:.0f}$")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = [
        "The paper says that the exit time falls with the width but only by a constant factor, and that training the second",
        f"layer does not change it. Here the largest overlap passes 0.5, at d = {table.attrs['d']}, lr =",
        f"p/{1 / LR_PER_UNIT:.0f} and no noise, over random starts; times are the paper's.",
    ]
    for width in table.width.values:
        row = table.sel(width=width)
        error = {kind: float(row[f"{kind}_high"] - row[f"{kind}_low"]) / 2 / 1.96 for kind in SECOND_LAYER_KINDS}
        fixed, trained = float(row.fixed), float(row.trained)
        sigma = (float(row.noisy_ode) - fixed) / error["fixed"]
        off = lambda value, fixed=fixed: 100 * (float(value) / fixed - 1)
        sentences.append(
            f"p = {width} ({int(row.runs)} runs): fixed {fixed:.3f} ± {error['fixed']:.3f}, trained {trained:.3f} ± "
            f"{error['trained']:.3f} ({off(trained):+.1f} %), full ODE {off(row.ode):+.1f} %, with SGD's noise "
            f"{off(row.noisy_ode):+.1f} % ({sigma:+.1f} sigma)."
        )
    first, last = table.isel(width=0), table.isel(width=-1)
    ratio = float(first.fixed / last.fixed)
    return [
        *sentences,
        "On the plateau the risk as a function of a has its minimum at a = p/(p + 2), towards which a trained second layer",
        "moves. For one unit it is 1/3, and slows down the escape; for wide networks it is near 1, and has little effect.",
        f"From p = {int(first.width)} to {int(last.width)} the time falls by a factor of {ratio:.2f}.",
    ]
