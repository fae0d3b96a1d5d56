"""The table of `compare` in text, and how to read it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from sgdlimits.theory.mediocrity.rates import linear_rates


def lines(table: xr.Dataset) -> Iterator[str]:
    """One aligned row for each method, under a row of names; nothing where the plateau is stable."""
    if not table.attrs["learns"]:
        return
    simulated = int((table.runs > 0).sum())
    yield f"{'method':<15}{'runs':>6}{'samples':>12}{'t':>9}{'paper time':>12}{'95 % of t':>18}{'to the chain':>14}"
    for row, name in enumerate(table.source.values):
        t, low, high, difference = (float(table[key][row]) for key in ("t", "low", "high", "difference"))
        runs, lost = int(table.runs[row]), int(table.censored[row])
        count = f"{runs}{'*' if lost else ''}" if runs else ""
        samples = _number(t * table.attrs["d"], ".0f")
        interval = f"[{_number(low, '.2f')}, {_number(high, '.2f')}]" if row < simulated else ""
        relative = "" if name == "chain" or not np.isfinite(difference) else f"{100 * difference:+.1f} %"
        time, paper = _number(t, ".2f"), _number(t * table.attrs["rate"], ".3f")
        yield f"{name:<15}{count:>6}{samples:>12}{time:>9}{paper:>12}{interval:>18}{relative:>14}".rstrip()
    if int(table.censored.sum()):
        each = (f"{int(n)} of {int(runs)} for {name}" for name, n, runs in _columns(table, "censored", "runs") if n)
        yield f"* censored at t = {table.attrs['t_max']:.4g}: {', '.join(each)}. So t is the median in rows with runs;"
        yield "  formulas are means and are not compared with it."


def reading(table: xr.Dataset) -> str:
    """Which formula is near the chain and why, or why nothing is learnt."""
    attributes, t = table.attrs, {name: float(t) for name, t in _columns(table, "t")}
    if not attributes["learns"]:
        return stays(table)
    kappa, lr, p = attributes["noise_gain"], attributes["lr"], attributes["width"]
    omega = float(linear_rates(p, lr, attributes["noise"]).M)
    paper = np.log1p(kappa) / (2 * omega)
    text = [
        f"SGD's own noise adds kappa = {kappa:.3g} times the variance of the start's overlap. That shortens "
        "the quenched time by "
        f"log(1 + kappa)/(2 omega_M) = {paper:.3g} in the paper's time, {paper / attributes['rate']:.3g} in t; "
        "noisy and noisy_ode contain it."
    ]
    if np.isfinite(t["ode"]):
        text.append(
            f"The bend of the drift beyond the plateau adds {t['ode'] - t['quenched (46)']:.3g} in t; ode and "
            "noisy_ode contain it."
        )
    else:
        text.append(f"The ODE never loses the share {attributes['threshold']:g} of its excess risk: it comes to rest before.")
    difference = {name: float(each) for name, each in _columns(table, "difference")}
    if np.isfinite(difference["noisy_ode"]):
        low, high = (float(table[key].loc["chain"]) for key in ("low", "high"))
        inside = {name: low <= t[name] <= high for name in ("noisy_ode", "quenched (46)")}
        where = "inside" if inside["noisy_ode"] else "outside"
        text.append(f"noisy_ode has both: {100 * difference['noisy_ode']:+.1f} % from the chain, {where} its interval.")
        if inside["quenched (46)"] and kappa > 0.1:
            text.append("quenched has neither, and is near the chain here because the two cancel.")
    return " ".join(text)


def stays(table: xr.Dataset) -> str:
    """Why a learning rate is too large, with the limit and what the chain did."""
    a, (runs, lost) = table.attrs, (int(table[key].loc["chain"]) for key in ("runs", "censored"))
    formula = "2/(12 + noise)" if a["width"] == 1 else "2p/(2 + 2/p + 8/p^2 + noise)"
    large = " for large d" if lost < runs else ""
    across = " The noise at this d carried those across; it vanishes as d grows." if lost < runs else ""
    return (
        f"lr = {a['lr']:.4g} is at or above {formula} = {a['max_lr']:.4g} (max_lr for this width): the "
        "plateau is stable and the "
        f"risk stays{large}. {runs} runs of the chain up to t = {a['t_max']:.4g}: {runs - lost} exited, and "
        "the mean risk went from "
        f"{a['risk_start']:.4g} to {a['risk_end']:.4g}.{across}"
    )


def _columns(table: xr.Dataset, *names: str) -> Iterator[tuple]:
    yield from zip(table.source.values.tolist(), *(table[name].values for name in names), strict=True)


def _number(value: float, form: str) -> str:
    return "inf" if np.isinf(value) else f"{value:{form}}" if abs(value) < 1e7 else f"{value:.2e}"
