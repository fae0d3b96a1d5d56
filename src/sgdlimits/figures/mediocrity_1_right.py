"""Escaping mediocrity, figure 1 (right): exit time against the dimension for several widths at constant lr/p [1]_.

The paper compares SGD with its annealed and quenched formulas, (47) and (46), and reads off that the noise of SGD can be
neglected. The exact chain shows what remains: SGD's own noise near the plateau makes it exit sooner than the quenched time by
:math:`\\log(1+\\kappa)/2\\omega_M`, at any dimension.

The number of the chain's steps grows with d: above a dimension that depends on the width, the SDE stands for it.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tqdm.auto import tqdm

import sgdlimits as sl
from sgdlimits.figures.base import Drawn, Keep, ignore
from sgdlimits.plot.style import OKABE_ITO
from sgdlimits.theory.mediocrity.table import horizon
from sgdlimits.theory.mediocrity.times import ode, setting

PER_UNIT, THRESHOLD = 1 / 12, 0.1
"""lr/p, and T: small, since the formulas are those of the linear ODE."""
FORMULAS: dict[str, Any] = {"annealed": ":", "quenched": "--", "noisy_ode": "-"}
WATCHED = 8
"""From this width on runs are followed on a grid of times: asking after each step whether they exit costs "
"more than the step."""


class Size(NamedTuple):
    """Dimensions, and for each width the runs and the largest dimension of the chain."""

    dimensions: tuple[int, ...]
    widths: dict[int, tuple[int, int]]


FULL = Size(
    tuple(round(10**power) for power in np.arange(2, 6.1, 0.5)),
    {1: (384, 100_000), 2: (320, 100_000), 5: (256, 31_623), 20: (64, 10_000)},
)
QUICK = Size((100, 1000, 10_000), {1: (128, 10_000), 2: (64, 10_000), 5: (64, 10_000), 20: (16, 10_000)})


def make(size: Size = FULL, seed: int = 0, keep: Keep = ignore) -> Drawn:
    """Simulate all points and tabulate the formulas."""
    points = [(width, d) for width in size.widths for d in size.dimensions]
    rows = []
    for width, d in tqdm(points, desc="points", delay=1.0, leave=False):
        runs, largest = size.widths[width]
        problem = sl.presets.phase_retrieval(width=width, lr=PER_UNIT * width)
        level = sl.Chain(d) if d <= largest else sl.SDE(d)
        mean = sl.summarise(exits_of(problem, level, d, runs, seed), quantiles=()).mean.scaled(float(problem.rate))
        formulas = {name: PER_UNIT * sl.theory.mediocrity.exit_time(problem, d, THRESHOLD, name) for name in FORMULAS}
        rows.append({"simulated": mean.value, "low": mean.low, "high": mean.high, "exact": d <= largest, **formulas})
    shape = (len(size.widths), len(size.dimensions))
    table = xr.Dataset(
        {name: (("width", "d"), np.reshape([row[name] for row in rows], shape)) for name in rows[0]},
        coords={
            "width": list(size.widths),
            "d": list(size.dimensions),
            "runs": ("width", [r for r, _ in size.widths.values()]),
        },
        attrs={"lr_per_unit": PER_UNIT, "threshold": THRESHOLD, "time": "that of the paper"},
    )
    keep("table", table)
    return Drawn(_figure(table), _caption(table), {"table": table})


def exits_of(problem: sl.ProjectionProblem, level, d: int, runs: int, seed: int) -> xr.Dataset:
    """Exit times from random starts, at each step or, for wide networks, between the points of a fine grid."""
    at = setting(problem, d, THRESHOLD)
    if problem.network.width < WATCHED:
        how: dict = {"t_max": horizon(at), "until": sl.exits(THRESHOLD)}
    else:
        how = {"t_max": 2 * ode(at) + 4 * at.slow, "save": 300}
    found = sl.simulate(problem, level, sl.RandomInit(d), runs=runs, seed=seed, progress=False, **how)
    return sl.exit_times(found, THRESHOLD)


def _figure(table: xr.Dataset) -> Figure:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5.6, 4.3), layout="constrained")
    for colour, width in zip(OKABE_ITO, table.width.values, strict=False):
        row = table.sel(width=width)
        for name, dashes in FORMULAS.items():
            ax.plot(row.d, row[name], color=colour, linestyle=dashes, linewidth=1.2 if name == "noisy_ode" else 0.9)
        for exact, marker in ((True, "o"), (False, "s")):
            some = row.isel(d=(row.exact == exact).values)
            bars = np.abs(np.stack([some.low - some.simulated, some.high - some.simulated]))
            face = colour if exact else "white"
            ax.errorbar(some.d, some.simulated, bars, fmt=marker, color=colour, markerfacecolor=face, markersize=4, capsize=2)
    ax.set(xscale="log", xlabel=r"$d$", ylabel=r"exit time of the paper, $\gamma t/p$", ylim=(0, None))
    words = {"annealed": "annealed (47)", "quenched": "quenched (46)", "noisy_ode": "full ODE with SGD's noise at the saddle"}
    handles = [Line2D([], [], color="0.3", linestyle=FORMULAS[name], label=words[name]) for name in FORMULAS]
    handles += [Line2D([], [], color="0.3", marker="o", linestyle="", markersize=4, label="exact chain, 95 %")]
    if not bool(table.exact.all()):
        hollow: dict = dict(marker="s", markerfacecolor="white", markersize=4)
        handles += [Line2D([], [], color="0.3", linestyle="", label="SDE", **hollow)]
    widths = [
        Line2D([], [], color=c, linewidth=3, label=f"p = {p}") for c, p in zip(OKABE_ITO, table.width.values, strict=False)
    ]
    ax.add_artist(ax.legend(handles=widths, loc="upper left", handlelength=1.5))
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    ax.set_title(rf"$T = {THRESHOLD:g}$, $\gamma/p = 1/{1 / PER_UNIT:.0f}$, no label noise")
    return figure


def _caption(table: xr.Dataset) -> str:
    error = (table.high - table.low) / 2 / 1.96
    sentences = [
        "Figure 1 (right) of the paper shows exit times of SGD against d beside its annealed and quenched formulas at constant",
        "lr/p, and suggests that stochasticity can be neglected. It does not give lr/p, the noise and the",
        "threshold; here they are",
        f"1/{1 / PER_UNIT:.0f}, 0 and T = {THRESHOLD:g}. Dots are means over random starts of the exact",
        "chain, which has the law of",
        "SGD, and squares of the SDE, whose cost is free of d; bars are 95 % intervals.",
    ]
    for width in table.width.values:
        row, bars = table.sel(width=width), error.sel(width=width)
        exact = row.isel(d=row.exact.values)
        last = exact.isel(d=-1)
        gap = lambda name, row=last: 100 * (float(row[name] / row.simulated) - 1)  # noqa: E731
        sigma = float((last.quenched - last.simulated) / bars.sel(d=int(last.d)))
        far = ((row.noisy_ode - row.simulated) / bars).values
        sentences.append(
            f"p = {width}: at d = {int(last.d)} the chain ({int(row.runs)} runs) exits at {float(last.simulated):.3f} ± "
            f"{float(bars.sel(d=int(last.d))):.3f}; quenched {gap('quenched'):+.1f} % ({sigma:+.1f} sigma), annealed "
            f"{gap('annealed'):+.1f} %, full ODE with noise {gap('noisy_ode'):+.1f} %, whose distance from "
            f"the {far.size} simulated "
            f"points has a root mean square of {np.sqrt((far**2).mean()):.1f} sigma."
        )
    return " ".join(sentences)
