r"""Forgetting against the similarity of two tasks, and the schedule of replay with the smallest final risk on both.

Two erf units with a head for each task learn one teacher and then another, the setting of Lee et al. [17]_ [18]_. After the
switch a share of the samples still comes from the first task. The objective is the mean risk on both tasks at the end:
forgetting alone is smallest where the second task is never learnt. The drift is linear in the share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from scipy.optimize import minimize_scalar

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
    sizes,
    tabulate,
)

LR = 1.0
REPLAY_SHARE = 0.5
"""Share of the first task in the second stage of the protocol of two stages."""
MIN_GAIN = 0.01
"""Smallest relative gain of the optimum over the best constant share of which the caption gives shares."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    similarities=("similarities", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0), (0.1, 0.5)),
    shown=("similarities whose schedule is drawn", (0.1, 0.5, 0.9), (0.5,)),
    first=("time on the first task", 100.0),
    span=("time after the switch", 20.0),
    pieces=("pieces of a schedule", 40, 10),
    starts=("starts of the search", 3),
    gradients=("gradients of a search", 240, 60),
    draws=("random starts without replay", 16, 4),
    d=("dimension", 1000, 300),
    runs=("runs of the chain", 100, 20),
)


def problem(similarity: float, replay: Any) -> sl.ProjectionProblem:
    """Build the problem of two tasks, in which a share of samples comes from the first.

    Here `similarity` is that of the two tasks, and `replay` the share, a number or a schedule.
    """
    weights = np.array([0.0, 1.0]) + np.array([1.0, -1.0]) * replay
    return sl.presets.two_tasks(similarity=similarity, weights=weights, lr=LR)


def mean_task_risk(problem: sl.Problem, stats: sl.Overlaps):
    """Return the mean of the risks on the two tasks, with equal weights whatever the share of samples from each."""
    return problem.observables(stats)["task_risk"].mean()


def after_first_task(size: Size, seed: int) -> tuple[sl.Overlaps, float]:
    """Return the statistics and the risk at the end of the first task, by the ODE from one random start.

    The start has the dimension of the chain.
    """
    found = sl.simulate(problem(0.0, 1.0), sl.ODE(), sl.RandomInit(size.d), t_max=size.first, save=2, seed=seed, progress=False)
    last = found.isel(run=0, t=-1)
    return sl.Overlaps({"a": last.a.values}, last.M.values, last.Q.values), float(last.task_risk[0])


def forgetting_without_replay(similarity: float, size: Size, seed: int) -> np.ndarray:
    """Return the forgetting at the end without replay, from several random starts."""
    switch = sl.Steps([size.first], [1.0, 0.0])
    how: dict = dict(t_max=size.first + size.span, save=np.array([size.first, size.first + size.span]), progress=False)
    found = sl.simulate(problem(similarity, switch), sl.ODE(), sl.RandomInit(size.d), runs=size.draws, seed=seed, **how)
    return sl.forgetting(found, switch=size.first).values[:, -1]


def final_risks(similarity: float, shares: Sequence[float], switch: float, start: sl.Overlaps, span: float) -> np.ndarray:
    """Return the final risks on the two tasks in the ODE, for two shares of samples from the first task.

    The second share begins at the time `switch`, and the run ends at `span`.
    """
    replay = sl.Steps([switch], shares)
    found = sl.simulate(problem(similarity, replay), sl.ODE(), start, t_max=span, save=2, progress=False)
    return found.task_risk.values[0, -1]


def best_two_stages(similarity: float, start: sl.Overlaps, span: float) -> tuple[float, np.ndarray]:
    """Return the best time to change from the second task alone to equal shares, and the final risks on both tasks."""
    risks = lambda t: final_risks(similarity, (0.0, REPLAY_SHARE), t, start, span)
    best = minimize_scalar(
        lambda t: risks(t).mean(), bounds=(0.01 * span, 0.99 * span), method="bounded", options={"xatol": 0.01}
    )
    return float(best.x), risks(best.x)


# --- the figure --------------------------------------------------------------------------------------------------------------


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Find the optimal schedule of replay at each similarity, check it by the chain, and draw simpler protocols beside it."""
    (start, first), rows, schedules = after_first_task(size, seed), [], []
    for similarity in bar(size.similarities, desc="similarities"):
        best = optimal_replay(similarity, start, size, seed)
        constant = partial(_constant_share, similarity, start, size.span)
        switch, stages = best_two_stages(similarity, start, size.span)
        protocols = {
            "none": constant(0.0),
            "constant": constant(best.constants["replay"]),
            "stages": stages,
            "optimal": best.dataset.task_risk.values[0, -1],
        }
        spread = forgetting_without_replay(similarity, size, seed)
        rows.append(
            {"similarity": similarity, "replay_constant": best.constants["replay"], "switch": switch}
            | {f"forgotten_{name}": risks[0] - first for name, risks in protocols.items()}
            | {f"risk_{name}": risks.mean() for name, risks in protocols.items()}
            | {"least": spread.min(), "median": float(np.median(spread)), "most": spread.max()}
            | _check(best, size, seed)
        )
        schedules.append(np.asarray(best.controls["replay"].values))
    table = save_dataset("table", tabulate(rows, first=first, d=size.d))
    middles = (np.arange(size.pieces) + 0.5) * size.span / size.pieces
    replay = xr.Dataset({"replay": (("similarity", "t"), schedules)}, {"similarity": list(size.similarities), "t": middles})
    save_dataset("schedules", replay)
    return DrawnFigure(_draw_figure(table, replay, size), _write_caption(table, size))


def _constant_share(similarity: float, start: sl.Overlaps, span: float, share: float) -> np.ndarray:
    """Return the final risks on the two tasks with a constant share of samples from the first task."""
    return final_risks(similarity, (share, share), span / 2, start, span)


def optimal_replay(similarity: float, start: sl.Overlaps, size: Size, seed: int) -> sl.Optimum:
    """Find the schedule of the share of samples from the first task that minimises the final mean risk on both tasks."""
    return sl.optimise(
        lambda replay: problem(similarity, replay),
        start,
        size.span,
        {"replay": sl.Control(size.pieces, 0.0, 1.0)},
        objective=mean_task_risk,
        starts=size.starts,
        gradients=size.gradients,
        seed=seed,
        progress=False,
    )


def _check(best: sl.Optimum, size: Size, seed: int) -> dict[str, float]:
    """Return the evidence for an optimum: spread over search starts, and gain over the best constant share in the chain."""
    check = best.check(size.d, size.runs, seed=seed, progress=False)
    chain = {"gain_chain": check.gain, "gain_error": check.standard_error, "gain_ode": best.gain}
    return {"spread": best.spread, "certificate": best.certificate} | chain


def _draw_figure(table: xr.Dataset, replay: xr.Dataset, size: Size) -> Figure:
    figure, axes = make_panels(1, 3, figsize=(12.0, 3.9))
    _draw_protocols(axes[0], table, "forgotten")
    axes[0].fill_between(table.similarity, table.least, table.most, color=OKABE_ITO_COLOURS[0], alpha=0.15, linewidth=0)
    axes[0].set(ylabel="growth of the risk on the first task", ylim=(-0.01, 1.5 * float(table.most.max())))
    axes[0].set_title(rf"(a) forgetting, $t = {size.span:g}$ after the switch", loc="left")
    axes[0].legend(loc="upper right", fontsize=8)
    _draw_protocols(axes[1], table, "risk")
    axes[1].set(ylabel="mean risk on both tasks", yscale="log")
    axes[1].set_title("(b) what is minimised", loc="left")
    edges = np.linspace(0.0, size.span, size.pieces + 1)
    for similarity, colour in zip(size.shown, OKABE_ITO_COLOURS, strict=False):
        share = replay.replay.sel(similarity=similarity).values
        axes[2].step(edges, [*share, share[-1]], where="post", color=colour, label=f"similarity {similarity:g}")
    axes[2].axhline(REPLAY_SHARE, color="0.7", linewidth=0.8, zorder=0)
    axes[2].set(xlabel="$t$ since the switch", ylabel="share of the first task", ylim=(-0.02, 1.02))
    axes[2].set_title("(c) optimal replay", loc="left")
    axes[2].legend(loc="upper left")
    return figure


def _draw_protocols(ax: Axes, table: xr.Dataset, what: str) -> None:
    """Draw the quantity `what` of the table against the similarity of the tasks, one curve for each protocol."""
    curves = {
        "none": ("no replay", "o-"),
        "constant": ("best constant share", "s-"),
        "optimal": ("optimal replay", "^-"),
        "stages": ("second task alone, then half each", "D"),
    }
    for (name, (label, look)), colour in zip(curves.items(), OKABE_ITO_COLOURS, strict=False):
        # open and larger: these points are beside or on those of the optimum
        width, fill = (8, "none") if name == "stages" else (4, "full")
        ax.plot(table.similarity, table[f"{what}_{name}"], look, color=colour, markersize=width, fillstyle=fill, label=label)
    ax.set(xlabel="similarity of the tasks")


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    rows = [{name: float(table[name][i]) for name in table.data_vars} for i in range(table.sizes["point"])]
    worst, median, hard = (max(rows, key=lambda row: row[by]) for by in ("forgotten_none", "median", "risk_optimal"))
    middle = min(rows, key=lambda row: abs(row["similarity"] - 0.5))
    agree = [abs(row["gain_chain"] - row["gain_ode"]) <= 2 * row["gain_error"] for row in rows]
    # equal tasks need no replay, and nothing is gained
    gaining = [row for row in rows if row["gain_ode"] > MIN_GAIN * row["risk_constant"]]
    shares = [100 * (row["risk_constant"] - row["risk_stages"]) / row["gain_ode"] for row in gaining]
    ends = f"{min(shares):.0f} to {max(shares):.0f} %" if shares else "none"
    gains = (
        f"{row['gain_chain']:.3g} ± {2 * row['gain_error']:.2g} at {row['similarity']:g} (ODE {row['gain_ode']:.3g})"
        for row in rows
    )
    return [
        f"Two erf units, one task for {size.first:g} samples per dimension and then another for {size.span:g}; risks are those",
        f"of the ODE after one random start at d = {size.d}, and the band has {size.draws} starts. Risk on the first task at",
        f"the switch: {table.attrs['first']:.1g}.",
        f"(a) Without replay forgetting is largest at the similarity {worst['similarity']:g}, {worst['forgotten_none']:.3f};",
        f"the median over starts at {median['similarity']:g}, {median['median']:.3f}.",
        f"(b) At {middle['similarity']:g} the mean risk is {middle['risk_none']:.4f} without replay,",
        f"{middle['risk_constant']:.4f} with the best constant share ({middle['replay_constant']:.2f}),",
        f"{middle['risk_stages']:.4f} with the second task alone up to {middle['switch']:.1f} and half each from then on, and",
        f"{middle['risk_optimal']:.4f} with the optimal one, which forgets {middle['forgotten_optimal']:.4f} instead of",
        f"{middle['forgotten_none']:.4f}. With optimal replay the risk is largest at the similarity {hard['similarity']:g},",
        f"{hard['risk_optimal']:.4f}. Two stages have {ends} of the gain of the optimum over",
        f"the best constant share. Schedules have {size.pieces} pieces; the largest spread between {size.starts} starts of the",
        f"search is {max(row['spread'] for row in rows):.1g}.",
        f"Gain over the best constant share in {size.runs} runs of the exact chain at d = {size.d}, with two standard errors:",
        f"{'; '.join(gains)}. It is within two standard errors of the ODE at {sum(agree)} of {len(agree)} similarities.",
    ]
