r"""Optimal order of easy and hard samples: at a fixed learning rate, and with a free one.

The setting is that of Mignacco and Mori [19]_, who take the task of Saglietti, Sarao Mannelli and Saxe [20]_: half of the
inputs are irrelevant, and have the variance 0 in easy samples and 2 in hard ones; the learning rate is 3. Of 12 samples per
dimension exactly half are easy, in any order. The objective is the mean of the final risks on easy and on hard samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.ticker import NullLocator

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
    standard_error,
    tabulate,
)

SPAN, RATE = 12.0, 3.0
"""Samples per dimension, half of which are easy, and the fixed learning rate of [19]_."""
MAX_LR = 12.0
"""Upper bound of a free learning rate, which no optimal schedule reaches."""
ORDERS = {"easy first": sl.Steps([SPAN / 2], [1.0, 0.0]), "hard first": sl.Steps([SPAN / 2], [0.0, 1.0]), "mixed": 0.5}
"""Share of easy samples over time in three simple orders."""
BINDING = 1e-6
"""Distance of the share of easy samples from one half up to which half of the samples count as easy."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    pieces=("pieces of a schedule", 24, 12),
    rates=("learning rates with an optimal order", (0.5, 1.0, 1.5, 2.0, RATE, 4.0), (RATE,)),
    grid=("learning rates of the simple orders", (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, RATE, 3.5, 4.0), (1.0, 2.0, RATE, 4.0)),
    starts=("starts of the search", 3),
    gradients=("gradients of a search", 1200, 400),
    d=("dimension of the chain", 1000, 300),
    runs=("runs of the chain", 200, 60),
)


def problem(lr: Any, easy: Any) -> sl.ProjectionProblem:
    """Build the problem at a learning rate and a share of easy samples, each a number or a schedule."""
    return sl.presets.easy_and_hard(weights=np.array([0.0, 1.0]) + np.array([1.0, -1.0]) * easy, lr=lr)


def mean_risk(problem: sl.Problem, stats: sl.Overlaps):
    """Return the mean of the risks on easy and on hard samples."""
    return problem.observables(stats)["task_risk"].mean()


def first_weights(seed: int) -> sl.Overlaps:
    """Draw the statistics of random initial weights, from which the ODE starts under every schedule."""
    return sl.RandomInit(d=1000).one(problem(RATE, 0.5), seed=seed)


def search(size: Size, seed: int, lr: Any = None, easy: Any = None) -> sl.Optimum:
    """Find the schedules that minimise the final risk: of the share of easy samples and of the learning rate.

    One that is given is fixed. A free share is one half on average.
    """
    rate = {} if lr is not None else {"lr": sl.Control(size.pieces, 0.0, MAX_LR)}

    def find(make_figure: Any, controls: dict[str, sl.Control], budgets: tuple[sl.Budget, ...] = ()) -> sl.Optimum:
        return sl.optimise(
            make_figure,
            first_weights(seed),
            SPAN,
            controls | rate,
            objective=mean_risk,
            constraints=budgets,
            starts=size.starts,
            gradients=size.gradients,
            seed=seed,
            progress=False,
        )

    if easy is not None:
        return find(lambda lr: problem(lr, easy), {})
    share, half = sl.Control(size.pieces, 0.0, 1.0), SPAN / 2
    found = find(lambda easy, lr=lr: problem(lr, easy), {"easy": share}, (sl.Budget("easy", half),))
    if easy_shares(found).mean() > 0.5 - BINDING:
        return found
    # fewer easy samples than allowed are better here, so that the bound that binds is that on hard samples
    return find(lambda hard, lr=lr: problem(lr, 1.0 - hard), {"hard": share}, (sl.Budget("hard", half),))


def easy_shares(best: sl.Optimum) -> np.ndarray:
    """Return the share of easy samples in each piece of an optimal schedule."""
    found = best.controls
    return np.asarray(found["easy"].values) if "easy" in found else 1 - np.asarray(found["hard"].values)


def final_risk(lr: float, easy: Any, seed: int) -> float:
    """Return the final risk of the ODE at a constant learning rate, with a given share of easy samples over time."""
    own = problem(lr, easy)
    found = sl.simulate(own, sl.ODE(), first_weights(seed), t_max=SPAN, save=2, progress=False)
    return float(found.task_risk.values[0, -1].mean())


# --- the figure --------------------------------------------------------------------------------------------------------------


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Find the optimal orders at fixed and at free learning rates, check their gains by the exact chain, and draw them."""
    at_rate = {lr: search(size, seed, lr=lr) for lr in bar(size.rates, desc="learning rates")}
    both = search(size, seed)
    orders = {name: search(size, seed, easy=easy) for name, easy in bar(ORDERS.items(), desc="orders")}
    simple = [
        {"lr": lr} | {_key(name): final_risk(lr, easy, seed) for name, easy in ORDERS.items()}
        for lr in bar(size.grid, desc="simple orders")
    ]
    fixed, mixed = at_rate[RATE].check(size.d, size.runs, seed=seed, progress=False), orders["mixed"]
    # another seed: the runs of the two must be independent
    free, other = (best.check(size.d, size.runs, seed=seed + i, progress=False).optimum for i, best in ((2, both), (4, mixed)))
    chain = [
        {"case": "fixed", "ode": at_rate[RATE].gain, "chain": fixed.gain, "error": fixed.standard_error},
        {
            "case": "free",
            "ode": mixed.value - both.value,
            "chain": float(other.mean() - free.mean()),
            "error": float(np.hypot(standard_error(other), standard_error(free))),
        },
    ]
    tables = {
        "simple": tabulate(simple),
        "rates": tabulate([{"lr": lr} | _row(best) for lr, best in at_rate.items()]),
        "free": tabulate([{"order": name} | _row(best) for name, best in {"free": both, **orders}.items()]),
        "schedules": _schedules(at_rate[RATE], both, orders, size),
        "chain": tabulate(chain),
    }
    for name, table in tables.items():
        save_dataset(name, table)
    return DrawnFigure(_draw_figure(tables, size), _write_caption(tables, size))


def _key(order: str) -> str:
    """Return the name, in tables, of an order of easy and hard samples."""
    return order.replace(" ", "_")


def _row(best: sl.Optimum) -> dict[str, float]:
    """Return a table row that summarises an optimum: its value, the best constants' value and rate, and its evidence."""
    return {
        "optimal": best.value,
        "constant": best.baseline,
        "constant_lr": best.constants.get("lr", np.nan),
        "spread": best.spread,
        "certificate": best.certificate,
        "easy": float(easy_shares(best).mean()) if {"easy", "hard"} & set(best.controls) else 0.5,
    }


def _schedules(fixed: sl.Optimum, both: sl.Optimum, orders: dict[str, sl.Optimum], size: Size) -> xr.Dataset:
    """Return a table of the optimal schedules, evaluated at the middles of their pieces."""
    middles = (np.arange(size.pieces) + 0.5) * SPAN / size.pieces
    found = {"easy_fixed": easy_shares(fixed), "easy_free": easy_shares(both)}
    found |= {f"lr_{_key(name)}": np.asarray(best.controls["lr"].values) for name, best in {"free": both, **orders}.items()}
    return xr.Dataset({name: ("t", values) for name, values in found.items()}, {"t": middles})


COLOURS = dict(zip(("mixed", "easy first", "hard first", "optimal"), OKABE_ITO_COLOURS, strict=False))
"""Colour of each order."""


def _draw_figure(tables: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(1, 3, figsize=(12.0, 3.9))
    _draw_shares(axes[0], tables["schedules"], size)
    _draw_risks(axes[1], tables)
    _draw_rates(axes[2], tables["schedules"], size)
    return figure


def _draw_shares(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the optimal share of easy samples over time, at the fixed learning rate and with a free one."""
    edges = np.linspace(0.0, SPAN, size.pieces + 1)
    for name, label, colour, dashes in (
        ("easy_fixed", f"learning rate {RATE:g}", COLOURS["optimal"], "-"),
        ("easy_free", "learning rate free", "black", "--"),
    ):
        values = table[name].values
        ax.step(edges, [*values, values[-1]], where="post", color=colour, linestyle=dashes, label=label)
    ax.set(xlabel="$t$, samples per dimension", ylabel="share of easy samples", ylim=(-0.04, 1.3))
    ax.set_yticks((0.0, 0.25, 0.5, 0.75, 1.0))
    ax.set_title("(a) the optimal order, half of the samples easy", loc="left")
    ax.legend(loc="upper center", ncols=2)


def _draw_risks(ax: Axes, tables: dict[str, xr.Dataset]) -> None:
    """Draw the final risk of each order against a fixed learning rate, and with optimal learning rates beside it."""
    simple, rates, free = (tables[name] for name in ("simple", "rates", "free"))
    for name in ORDERS:
        ax.plot(simple.lr, simple[_key(name)], color=COLOURS[name], label=name)
    ax.plot(rates.lr, rates.optimal, "^-", color=COLOURS["optimal"], markersize=4, label="optimal order")
    ax.axvline(RATE, color="0.8", linewidth=0.8, zorder=0)
    for name in ORDERS:
        ax.axhline(_risk_of(free, name), color=COLOURS[name], linestyle="--", linewidth=1.0)
    ax.axhline(_risk_of(free, "free"), color="black", linestyle=(0, (2, 4)))
    for name, text in (("mixed", "mixed"), ("hard first", "hard first"), ("easy first", "easy first, and order free")):
        ax.text(0.5, _risk_of(free, name) + 0.0012, rf"{text}, rate $\mathrm{{lr}}(t)$", fontsize="small", color=COLOURS[name])
    ax.set(xscale="log", xlabel="fixed learning rate", ylabel="final risk", ylim=(0.088, 0.225))
    ticks = (0.5, 1.0, 2.0, 3.0, 4.0)
    ax.xaxis.set_ticks(list(ticks), [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title(r"(b) risk; dashed: optimal rate $\mathrm{lr}(t)$", loc="left")
    ax.legend(loc="upper left")


def _draw_rates(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the optimal learning rate over time, for each simple order and for the optimal one."""
    edges = np.linspace(0.0, SPAN, size.pieces + 1)
    for name in ORDERS:
        values = table[f"lr_{_key(name)}"].values
        ax.step(edges, [*values, values[-1]], where="post", color=COLOURS[name], label=name)
    values = table.lr_free.values
    ax.step(edges, [*values, values[-1]], where="post", color="black", linestyle="--", label="order free")
    ax.axhline(RATE, color="0.8", linewidth=0.8, zorder=0)
    ax.set(xlabel="$t$, samples per dimension", ylabel="learning rate", ylim=(0.0, None))
    ax.set_title("(c) optimal learning rates", loc="left")
    ax.legend(loc="upper right")


def _risk_of(free: xr.Dataset, order: str) -> float:
    """Return the final risk of an order of easy and hard samples with the learning rate that is optimal for it."""
    return float(free.optimal[free.order.values == order][0])


def _write_caption(tables: dict[str, xr.Dataset], size: Size) -> list[str]:
    simple, rates, free, chain = (tables[name] for name in ("simple", "rates", "free", "chain"))
    at = lambda table, name: float(table[name][int(np.argmin(np.abs(table.lr.values - RATE)))])
    named = {name: free.isel(point=i) for i, name in enumerate(free.order.values.tolist())}
    spread = max(float(rates.spread.max()), float(free.spread.max()))
    gains = {str(row): chain.isel(point=i) for i, row in enumerate(chain.case.values)}
    describe = lambda row: f"{float(row.chain):.5f} ± {2 * float(row.error):.5f} (ODE {float(row.ode):.5f})"
    certificate = float(max(rates.certificate.max(), free.certificate.max()))
    return [
        f"Easy and hard samples: half of the inputs are irrelevant, with variance 0 or 2. Of {SPAN:g} samples per dimension",
        f"exactly half are easy. Schedules have {size.pieces} pieces, and each optimum is the best of {size.starts} starts of",
        "the search. Risks are means of the final risks on easy and on hard samples.",
        f"(a, b) At the learning rate {RATE:g}: mixed {at(simple, 'mixed'):.4f}, easy first {at(simple, 'easy_first'):.4f},",
        f"hard first {at(simple, 'hard_first'):.4f}, optimal order {at(rates, 'optimal'):.4f}.",
        "With the best constant learning rate:",
        ", ".join(f"{name} {float(named[name].constant):.4f} ({float(named[name].constant_lr):.2f})" for name in ORDERS) + ".",
        "(b, c) With the best schedule of the learning rate:",
        ", ".join(f"{name} {float(named[name].optimal):.5f}" for name in ORDERS)
        + f", order free {float(named['free'].optimal):.5f}.",
        f"Largest spread between starts {spread:.1g}, largest certificate {certificate:.1g}.",
        f"Exact chain at d = {size.d}, {size.runs} runs, with two standard errors: gain of the optimal order over mixing",
        f"{describe(gains['fixed'])} at the learning rate {RATE:g},",
        f"and {describe(gains['free'])} with an optimal learning rate for each.",
    ]
