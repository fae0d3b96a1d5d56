r"""Optimal dropout of two erf units that learn one: schedules at a fixed learning rate, and with a free one.

The setting is that of Mignacco and Mori [19]_: the sum of two erf units learns one erf unit from labels with Gaussian noise of
standard deviation 0.2, from zero weights. A unit that is kept counts once in training, and the sum of all units is tested
after one rescaling, which is chosen best. The objective is the excess risk after that rescaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
import xarray as xr
from matplotlib.axis import Axis
from matplotlib.ticker import NullLocator
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
    standard_error,
    tabulate,
)

UNITS, NOISE, SPAN = 2, 0.2**2, 5.0
"""Number of units, variance of the label noise, and number of samples per dimension, of the setting with dropout."""
MAX_DROPOUT, MAX_LR = 0.9, 4.0
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    pieces=("pieces of a schedule", 50, 10),
    coarse=("pieces at other numbers of samples", 20, 10),
    rates=("learning rates", (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0), (1.0, 2.0)),
    shown=("learning rates whose schedule is drawn", (0.75, 1.0, 2.0), (1.0, 2.0)),
    spans=("samples per dimension with a free learning rate", (2.0, SPAN, 10.0, 20.0, 50.0, 100.0), (SPAN, 50.0)),
    starts=("starts of the search", 3),
    gradients=("gradients of a search", 300, 60),
    d=("dimension of the chain", 1000, 300),
    runs=("runs of the chain", {"theirs": 200, "both": 200, "dropout": 50}, {"theirs": 40}),
)


class OnceCounted(sl.TwoLayer):
    """Two-layer network with dropout in which a kept unit counts once, as in [19]_, and not 1/(1 - dropout) times."""

    def apply_mask(self, a, kept):
        return a if kept is None else a * kept


def problem(lr: Any, dropout: Any) -> sl.ProjectionProblem:
    """Build the problem of two erf units that learn one, at a learning rate and a dropout rate, numbers or schedules."""
    return sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("erf"), 1, noise=NOISE),
        # mypy takes a subclass's fields for its arguments
        network=OnceCounted(UNITS, "erf", mean=False, dropout=dropout),  # type: ignore[call-arg, arg-type]
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr),
    )


def zero_weights() -> sl.Overlaps:
    """Return the statistics of units with zero weights and the second layer 1."""
    return sl.Overlaps(np.ones(UNITS), np.zeros((UNITS, 1)), np.zeros((UNITS, UNITS)))


def excess_risk(problem: sl.Problem, stats: sl.Overlaps):
    """Return the excess risk of the prediction multiplied by the factor that makes the risk smallest."""
    constant, linear, quadratic = risk_by_factor(problem, stats)
    return constant - linear**2 / (4 * quadratic) - NOISE / 2


def best_factor(problem: sl.Problem, stats: sl.Overlaps):
    """Return the factor s by which the prediction must be multiplied for the smallest risk."""
    _, linear, quadratic = risk_by_factor(problem, stats)
    return linear / (2 * quadratic)


def risk_by_factor(problem: sl.Problem, stats: sl.Overlaps) -> tuple[Any, Any, Any]:
    """Return the coefficients c0, c1 and c2 of the risk c0 - c1 s + c2 s^2 of the prediction times a factor s."""
    zero, plus, minus = (problem.risk(eqx.tree_at(lambda own: own.a, stats, factor * stats.a)) for factor in (0.0, 1.0, -1.0))
    return zero, (minus - plus) / 2, (plus + minus) / 2 - zero


def search(span: float, size: Size, seed: int, lr: Any = None, dropout: Any = None) -> sl.Optimum:
    """Find the schedules of learning rate and dropout over the time `span` that minimise the final excess risk.

    A learning rate or dropout that is given is fixed; `dropout` may be 0.
    """
    fixed = {name: value for name, value in (("lr", lr), ("dropout", dropout)) if value is not None}
    bounds = {"lr": MAX_LR, "dropout": MAX_DROPOUT}
    return sl.optimise(
        lambda **free: problem(**free, **fixed),
        zero_weights(),
        span,
        {
            name: sl.Control(size.pieces if span == SPAN else size.coarse, 0.0, high)
            for name, high in bounds.items()
            if name not in fixed
        },
        objective=excess_risk,
        starts=size.starts,
        gradients=size.gradients,
        seed=seed,
        progress=False,
    )


def final_statistics(dataset: xr.Dataset) -> sl.Overlaps:
    """Return the last statistics of the first run of a dataset."""
    return sl.Overlaps(*(dataset[name].values[0, -1] for name in ("a", "M", "Q")))


def risk_without_dropout(lr: float, span: float) -> float:
    """Return the final excess risk of the ODE at a constant learning rate after the time `span`, with all units kept."""
    own = problem(lr, 0.0)
    found = sl.simulate(own, sl.ODE(), zero_weights(), t_max=span, save=2, progress=False)
    return float(excess_risk(own, final_statistics(found)))


def floor_without_dropout() -> float:
    """Return the excess risk that equal units without dropout approach if the learning rate decays slowly."""
    own = problem(1.0, 0.0)
    equal = lambda c: sl.Overlaps(np.ones(UNITS), np.full((UNITS, 1), c), np.full((UNITS, UNITS), c * c))
    best = minimize_scalar(lambda c: float(own.risk(equal(c))), bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-10})
    return float(excess_risk(own, equal(best.x)))


# --- the figure --------------------------------------------------------------------------------------------------------------


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Find the optimal schedules at fixed and at free learning rates, check some of them by the exact chain, and draw them."""
    at_rate = {lr: search(SPAN, size, seed, lr=lr) for lr in bar(size.rates, desc="learning rates")}
    both = {span: search(span, size, seed) for span in bar(size.spans, desc="both free")}
    alone = {span: search(span, size, seed, dropout=0.0) for span in bar(size.spans, desc="no dropout")}
    # a learning rate of zero continues the schedule of a shorter time
    shorter = {span: min((alone[t] for t in size.spans if t <= span), key=lambda each: each.value) for span in size.spans}
    last = size.spans[-1]
    checks = {
        "theirs": lambda runs: _gain(at_rate[1.0], size.d, runs, seed),
        "both": lambda runs: _gain(both[SPAN], size.d, runs, seed),
        "dropout": lambda runs: _survival(both[last], shorter[last], size.d, runs, seed),
    }
    chain = [{"case": case, "runs": runs} | checks[case](runs) for case, runs in bar(size.runs.items(), desc="chain")]
    spans = [
        {"t": span} | _row(best) | {"alone": shorter[span].value, "alone_spread": alone[span].spread}
        for span, best in both.items()
    ]
    tables = {
        "rates": tabulate([{"lr": lr, "none": risk_without_dropout(lr, SPAN)} | _row(best) for lr, best in at_rate.items()]),
        "spans": tabulate(spans, floor=floor_without_dropout()),
        "schedules": _schedules(at_rate, both[SPAN], size),
        "chain": tabulate(chain),
    }
    for name, table in tables.items():
        save_dataset(name, table)
    return DrawnFigure(_draw_figure(tables, size), _write_caption(tables, size))


def _row(best: sl.Optimum) -> dict[str, float]:
    """Return a table row for an optimum: its objective, that of the best constants, its dropout rate, and its evidence."""
    dropout = np.asarray(best.controls["dropout"].values)
    return {
        "optimal": best.value,
        "constant": best.baseline,
        "dropout_constant": best.constants["dropout"],
        "dropout_mean": float(dropout.mean()),
        "dropout_first": float(dropout[0]),
        "dropout_last": float(dropout[-1]),
        "factor": float(best_factor(problem(1.0, 0.0), final_statistics(best.dataset))),
        "spread": best.spread,
        "certificate": best.certificate,
    }


def _schedules(at_rate: dict[float, sl.Optimum], free: sl.Optimum, size: Size) -> xr.Dataset:
    """Return a table of the optimal dropout schedules of the first panel, and of the optimal learning rate.

    They are evaluated at the middles of the pieces of the schedules.
    """
    found = {f"dropout_at_{lr:g}": at_rate[lr].controls["dropout"] for lr in size.shown}
    found |= {f"{name}_free": free.controls[name] for name in ("dropout", "lr")}
    middles = (np.arange(size.pieces) + 0.5) * SPAN / size.pieces
    return xr.Dataset({name: ("t", np.asarray(each.values)) for name, each in found.items()}, {"t": middles})


def _gain(best: sl.Optimum, d: int, runs: int, seed: int) -> dict[str, float]:
    """Return the gain of an optimum over the best constant rates, in the ODE and in the chain in d dimensions."""
    check = best.check(d, runs, seed=seed, progress=False)
    return {"ode": best.gain, "chain": check.gain, "error": check.standard_error}


def _survival(both: sl.Optimum, alone: sl.Optimum, d: int, runs: int, seed: int) -> dict[str, float]:
    """Return the gain of optimal dropout over no dropout, each at its optimal learning rate, in ODE and chain.

    Here `both` is the optimum with dropout, and `alone` the one without.
    """
    # other seeds: the runs of the two must be independent
    dropped, kept = (each.check(d, runs, seed=seed + shift, progress=False).optimum for each, shift in ((both, 0), (alone, 2)))
    error = float(np.hypot(standard_error(kept), standard_error(dropped)))
    return {"ode": alone.value - both.value, "chain": float(kept.mean() - dropped.mean()), "error": error}


def _draw_figure(tables: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(1, 3, figsize=(12.0, 3.9))
    _draw_schedules(axes[0], tables["schedules"], size)
    _draw_rates(axes[1], tables["rates"], tables["spans"])
    _draw_spans(axes[2], tables["spans"])
    return figure


def _draw_schedules(ax: Axes, table: xr.Dataset, size: Size) -> None:
    """Draw the probability that a unit is kept over time, at fixed learning rates and at the optimal one."""
    edges = np.linspace(0.0, SPAN, size.pieces + 1)
    curves = [(f"dropout_at_{lr:g}", f"learning rate {lr:g}", "-") for lr in size.shown]
    curves.append(("dropout_free", "learning rate free", "--"))
    for (name, label, dashes), colour in zip(curves, (*OKABE_ITO_COLOURS[: len(size.shown)], "black"), strict=True):
        kept = 1 - table[name].values
        ax.step(edges, [*kept, kept[-1]], where="post", color=colour, linestyle=dashes, label=label)
    ax.set(xlabel="$t$, samples per dimension", ylabel="probability that a unit is kept", ylim=(0.0, 1.04))
    ax.set_title(rf"(a) optimal dropout, $\alpha = {SPAN:g}$", loc="left")
    ax.legend(loc="lower left")


def _draw_rates(ax: Axes, table: xr.Dataset, spans: xr.Dataset) -> None:
    """Draw the final excess risk, with and without dropout, against a fixed learning rate."""
    curves = {"none": "no dropout", "constant": "best constant dropout", "optimal": "optimal dropout"}
    for (name, label), colour, marker in zip(curves.items(), OKABE_ITO_COLOURS, "os^", strict=False):
        ax.plot(table.lr, table[name], f"{marker}-", color=colour, markersize=4, label=label)
    free = float(spans.optimal[spans.t.values == SPAN][0])
    ax.axhline(free, color="black", linestyle="--", label="learning rate and dropout free")
    ax.set(xscale="log", yscale="log", xlabel="fixed learning rate", ylabel="final excess risk")
    _label_ticks(ax.xaxis, table.lr.values)
    _label_ticks(ax.yaxis, (0.01, 0.02, 0.03, 0.05, 0.1))
    ax.set_ylim(0.012, 0.12)
    ax.set_title(rf"(b) what dropout is worth, $\alpha = {SPAN:g}$", loc="left")
    ax.legend(loc="upper left")


def _draw_spans(ax: Axes, table: xr.Dataset) -> None:
    """Draw the final excess risk against the number of samples, with free learning rates, with and without dropout."""
    ax.plot(table.t, table.alone, "o-", color=OKABE_ITO_COLOURS[0], markersize=4, label="no dropout")
    ax.plot(table.t, table.optimal, "^-", color=OKABE_ITO_COLOURS[2], markersize=4, label="optimal dropout")
    ax.axhline(table.attrs["floor"], color="0.6", linestyle=":", label="no dropout, slow decay")
    ax.set(xscale="log", yscale="log", xlabel=r"$\alpha$, samples per dimension", ylabel="final excess risk")
    _label_ticks(ax.xaxis, table.t.values)
    _label_ticks(ax.yaxis, (0.001, 0.002, 0.005, 0.01, 0.02, 0.05))
    ax.set_title("(c) both with an optimal learning rate", loc="left")
    ax.legend(loc="lower left")


def _label_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Label the ticks of a logarithmic axis at the given values, and no others."""
    axis.set_ticks(list(values), [f"{value:g}" for value in values])
    axis.set_minor_locator(NullLocator())


def _write_caption(tables: dict[str, xr.Dataset], size: Size) -> list[str]:
    rates, spans, chain = (tables[name] for name in ("rates", "spans", "chain"))
    theirs, free = _point(rates, "lr", 1.0), _point(spans, "t", SPAN)
    schedules = tables["schedules"]
    return [
        f"The sum of two erf units learns one from zero weights, with label noise of variance {NOISE:g}. Risks are excess",
        f"risks after the best rescaling of the prediction. Schedules have {size.pieces} pieces ({size.coarse} at other",
        f"times than {SPAN:g}), and each optimum is the best of {size.starts} starts of the search.",
        f"(a, b) At {SPAN:g} samples per dimension and the learning rate 1 the optimal dropout goes from",
        f"{theirs['dropout_first']:.2f} to {theirs['dropout_last']:.2f}, and the final factor is {theirs['factor']:.3f};",
        f"the risk is {theirs['optimal']:.5f}, with the best constant dropout ({theirs['dropout_constant']:.2f})",
        f"{theirs['constant']:.5f}, without dropout {theirs['none']:.5f}.",
        "Mean optimal dropout by learning rate:",
        ", ".join(f"{rate:g}: {mean:.2f}" for rate, mean in zip(rates.lr.values, rates.dropout_mean.values, strict=True)) + ".",
        f"With both free the risk is {free['optimal']:.5f} and the largest dropout rate",
        f"{float(schedules.dropout_free.max()):.1g}; the learning rate falls from {float(schedules.lr_free[0]):.2f} to",
        f"{float(schedules.lr_free[-1]):.2f}, and the best constants ({free['constant']:.5f}) have dropout",
        f"{free['dropout_constant']:.2f}.",
        "(c) With free learning rates, no dropout and optimal dropout:",
        "; ".join(
            f"{row['alone']:.5f} and {row['optimal']:.5f} at {row['t']:g} (mean dropout {row['dropout_mean']:.2f})"
            for row in (_point(spans, "t", t) for t in spans.t.values)
        )
        + ".",
        f"Largest spread between starts {float(max(rates.spread.max(), spans.spread.max(), spans.alone_spread.max())):.1g},",
        f"and {float(max(rates.spread.max(), free['spread'])):.1g} in (a, b).",
        f"Without dropout the units stay equal, and end at {spans.attrs['floor']:.5f} if the rate vanishes slowly. Where the",
        "search without dropout found less in a shorter time, that schedule counts, followed by a rate of zero.",
        f"Exact chain at d = {size.d}, with two standard errors:",
        "; ".join(_describe_gain(chain.isel(point=i), float(spans.t[-1])) for i in range(chain.sizes["point"])) + ".",
    ]


def _point(table: xr.Dataset, name: str, value: float) -> dict[str, float]:
    """Return, by name, all variables of a table at the point where the variable `name` is closest to `value`."""
    place = int(np.argmin(np.abs(table[name].values - value)))
    return {str(key): float(table[key][place]) for key in table.data_vars}


def _describe_gain(row: xr.Dataset, last: float) -> str:
    """Return as text the gain of an optimum in the chain beside that in the ODE."""
    words = {
        "theirs": "gain over the best constant dropout at the learning rate 1",
        "both": "gain over the best constants with both free",
        "dropout": f"gain of dropout at {last:g} samples per dimension, both at the optimal learning rate,",
    }
    gain = f"{float(row.chain):.5f} ± {2 * float(row.error):.5f} (ODE {float(row.ode):.5f}, {int(row.runs)} runs)"
    return f"{words[str(row.case.values)]} {gain}"
