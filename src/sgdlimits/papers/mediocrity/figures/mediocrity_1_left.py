"""Escaping mediocrity, figure 1 (left): runs of SGD and SDE and the ODE from one start, one unit [1]_.

The paper shows the population risk at d = 3000 with the exit times marked, and concludes that the SDE has the spread of SGD
while the exit times hardly change.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, curve_styles, make_panels, standard_error
from sgdlimits.papers.mediocrity.theory import noise_delay
from sgdlimits.papers.mediocrity.theory.times import exit_horizon, read_parameters

FULL_SIZE = Size(d=3000, t_max=60.0, sgd=16, sde=30, chain=1000)
QUICK_SIZE = FULL_SIZE.with_changes(d=300, sgd=8, sde=16, chain=200)
PARAMETER_WORDS = dict(
    d="dimension", t_max="end in t", sgd="runs of SGD", sde="runs of the SDE", chain="runs of the chain behind the numbers"
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate one unit by SGD, SDE, ODE and chain from one start, and draw the risk against time with the exit times."""
    return simulate_and_draw(width=1, lr=1 / 12, noise=0.0, threshold=0.5, size=size, seed=seed, save_dataset=save_dataset)


def simulate_and_draw(
    width: int, lr: float, noise: float, threshold: float, size: Size, seed: int, save_dataset: SaveDataset
) -> DrawnFigure:
    """Simulate SGD, SDE, ODE and chain from one random start, and draw the risk against time with exit times.

    A run exits when its excess risk has fallen by the fraction `threshold`.
    """
    problem = sl.presets.phase_retrieval(width=width, lr=lr, noise=noise)
    start = sl.RandomInit(size.d).one(problem, seed=seed)
    levels = {"SGD": (sl.SGD(size.d), size.sgd), "SDE": (sl.SDE(size.d), size.sde), "ODE": (sl.ODE(), 1)}
    datasets = {}
    for name, (level, runs) in levels.items():
        datasets[name] = save_dataset(
            level.name, sl.simulate(problem, level, start, t_max=size.t_max, runs=runs, seed=seed, save=400)
        )
    # the chain is followed until nearly all runs have exited
    end = exit_horizon(read_parameters(problem, size.d, threshold))
    chain, until = sl.Chain(size.d), sl.exits(threshold)
    datasets["chain"] = save_dataset(
        "chain", sl.simulate(problem, chain, start, t_max=end, runs=size.chain, seed=seed, until=until)
    )
    exits = {name: sl.exit_times(dataset, threshold) for name, dataset in datasets.items()}
    return DrawnFigure(_draw_figure(datasets, exits, threshold), _write_caption(problem, datasets, exits, threshold))


def _draw_figure(datasets: dict[str, xr.Dataset], exits: dict[str, xr.Dataset], threshold: float) -> Figure:
    figure, ax = make_panels(figsize=(5.6, 3.8))
    shown = {name: datasets[name] for name in ("SGD", "SDE", "ODE")}
    runs = {name: dataset.sizes["run"] for name, dataset in shown.items()}
    labels = {name: f"{name}, {count} runs and mean" if count > 1 else name for name, count in runs.items()}
    sl.plot.risk({labels[name]: each for name, each in shown.items()}, ax, clock="paper", singles=30, band=None, legend=False)
    rate, floor = datasets["ODE"].attrs["rate"], datasets["ODE"].attrs["floor"]
    first = float(datasets["ODE"].risk[0, 0])
    level = first - threshold * (first - floor)
    ax.axhline(level, color="0.6", linewidth=0.8, zorder=0)
    for name, look, marker in zip(shown, curve_styles(3), "ov*", strict=True):
        t = exits[name].t.values[~exits[name].censored.values] * rate
        if t.size > 1:
            ax.plot(t, np.full(t.size, level), "|", color=look.colour, markersize=7, markeredgewidth=0.8, zorder=5)
        if t.size:
            how: dict = dict(color=look.colour, markeredgewidth=1.6, fillstyle="full" if marker == "*" else "none")
            ax.plot(t.mean(), level, marker, markersize=9, zorder=6, **how)
            ax.plot([], [], marker, label=rf"{name}: $t_{{\rm ext}}$ = {t.mean():.2f}", markersize=7, **how)
    where: dict = dict(transform=ax.get_yaxis_transform(), va="bottom", ha="right", color="0.4", fontsize=8)
    ax.text(0.99, level, f"exit at T = {threshold:g}", **where)
    end = 1.8 * rate * max(float(each.t.max()) for name, each in exits.items() if name in shown)
    ax.set(xlim=(0, min(end, rate * float(datasets["ODE"].t[-1]))), ylim=(0, None), xlabel=r"time of the paper, $\gamma t/p$")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    ax.set_title(rf"$p = {datasets['SGD'].sizes['student']}$, $d = {datasets['SGD'].attrs['d']}$: one random start")
    return figure


def _write_caption(problem, datasets: dict[str, xr.Dataset], exits: dict[str, xr.Dataset], threshold: float) -> list[str]:
    rate, words = float(problem.rate), {name: _describe_exits(each, float(problem.rate)) for name, each in exits.items()}
    ode, t = float(exits["ODE"].t[0]) * rate, exits["chain"].t.values * rate
    gap, width = t.mean() - ode, datasets["SGD"].sizes["student"]
    far = np.sqrt(datasets["SGD"].attrs["d"]) * float(np.linalg.norm(datasets["ODE"].M.values[0, 0]))
    delay = float(noise_delay(width, float(problem.algorithm.lr), float(problem.target.noise), far))
    paper = "Figure 1 (left)" if width == 1 else "Figure 3"
    overlaps = ", ".join(f"{m:.3g}" for m in datasets["ODE"].M.values[0, 0, :, 0])
    return [
        f"{paper} of the paper shows runs of SGD and of the SDE from one start at p = {width}, d = 3000, and finds that the",
        "SDE has the spread that the ODE lacks while the exit times do not change considerably. It does not give the",
        f"learning rate, the noise and the threshold; here they are {float(problem.algorithm.lr):.4g},",
        f"{float(problem.target.noise):g} and T = {threshold:g}, with d = {datasets['SGD'].attrs['d']} and",
        f"overlap{'s' if width > 1 else ''} {overlaps} at the start. Times are the paper's. Thin lines are runs, thick lines",
        f"means, strokes the exit times of runs, and markers their means. The ODE exits at {ode:.3f}; {words['SGD']};",
        f"{words['SDE']}; {words['chain']}, which has the law of SGD. The chain's mean differs from the ODE's time by",
        f"{gap:+.3f} ({100 * gap / ode:+.1f} %, {abs(gap) / standard_error(t):.1f} standard errors);",
        "a single run differs from it by",
        f"{t.std(ddof=1):.2f} ({100 * t.std(ddof=1) / ode:.0f} %), the standard deviation. SGD's noise near the saddle",
        f"explains {delay:+.3f} of the mean difference, from a start of {far:.2f} times d^-1/2.",
    ]


def _describe_exits(exits: xr.Dataset, rate: float) -> str:
    """Describe the mean and spread of the exit times of SGD, SDE or chain in words.

    The factor `rate` converts t to the paper's time.
    """
    names = {"sgd": "SGD", "sde": "the SDE", "chain": "the chain", "ode": "the ODE"}
    name, runs = names[exits.attrs["level"]], exits.sizes["run"]
    late, t = int(exits.censored.sum()), exits.t.values * rate
    if late:
        return f"{name} at {np.median(t):.3f}, the median over {runs} runs, of which {late} are later than the end"
    spread = f" ± {standard_error(t):.3f} (standard deviation {t.std(ddof=1):.3f})" if t.size > 1 else ""
    return f"{name} at {t.mean():.3f}{spread} over {runs} runs"
