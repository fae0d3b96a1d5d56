r"""Momentum adapted to the dimension changes the exponent of the risk: SGD, DANA-constant and DANA-decaying [22]_.

The memory of DANA reaches back over a fraction of the time since the start. Its weight in a step is 1/d, or falls with the
number of steps; coefficients that change with time are held constant in pieces of a decade.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, DrawnFigure, Figure, SaveDataset, bar, make_panels, sizes, tabulate
from sgdlimits.papers.scaling import theory

CASES = ((2.0, 2.0), (2.0, 3.0), (3.0, 2.5))
"""Exponents b and a of the spectrum and of the teacher's squares."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 10**9, 10**6),
    decades=("decades of steps", 13, 8),
    pieces=("pieces of a decade", 24, 8),
    blocks=("blocks", 80, 48),
)
WINDOWS = {"SGD": (0.5, 0.7), "DANA-constant": (1.33, 1.4), "DANA-decaying": (0.7, 0.8)}
"""Window in which exponents are measured, in decades of steps over those of d: for DANA-constant well after d steps."""


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute the risk of the three algorithms and draw it with its local exponent."""
    log_d = np.log10(size.d)
    steps = 10 ** np.arange(2, size.decades + 0.01, 0.25)
    curves, rows = {}, []
    for b, a in bar(CASES, desc="cases"):
        spectrum = sl.spectrum.power_law(size.d, b, size.blocks)
        lr = 0.25 * size.d / theory.trace(spectrum)
        expected = theory.momentum_exponents(b, a)
        algorithms = {
            "SGD": sl.OnePassSGD(lr),
            "DANA-constant": sl.DANA(lr),
            "DANA-decaying": sl.DANA(lr, decay=1 / b),
        }
        for name, algorithm in algorithms.items():
            risk = theory.excess_risk(theory.problem(spectrum, a, algorithm), size.d, steps, size.pieces)
            slope = -np.gradient(np.log(risk), np.log(steps))
            low, high = (place * log_d for place in WINDOWS[name])
            inside = (np.log10(steps) >= low) & (np.log10(steps) <= high)
            rows.append({"case": f"b = {b}, a = {a}", "name": name, "slope": slope[inside].mean(), "theory": expected[name]})
            curves[f"{name}, {b}, {a}"] = ("steps", risk)
    data = save_dataset("risk", xr.Dataset(curves, {"steps": steps}, {"d": size.d}))
    table = save_dataset("table", tabulate(rows, d=size.d))
    return DrawnFigure(_draw(data, table), _write_caption(table))


def _draw(data: xr.Dataset, table: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(10.5, 4.4))
    b, a = CASES[0]
    for name, colour in zip(WINDOWS, OKABE_ITO_COLOURS, strict=False):
        risk = data[f"{name}, {b}, {a}"]
        left.loglog(data.steps, risk, color=colour, label=name)
        right.semilogx(data.steps, -np.gradient(np.log(risk), np.log(data.steps)), color=colour, label=name)
        right.axhline(theory.momentum_exponents(b, a)[name], color=colour, linestyle="--", linewidth=0.8)
    for ax in (left, right):
        ax.axvline(data.attrs["d"], color="0.6", linewidth=0.8, zorder=0)
        ax.set_xlabel("steps; the line is at $d$")
    left.set_ylabel("risk")
    right.set(ylabel="local exponent; theory dashed", ylim=(0, 1.3 * theory.momentum_exponents(b, a)["DANA-constant"]))
    left.set_title(f"(a) the risk, $b = {b}$, $a = {a}$", loc="left")
    right.set_title("(b) its exponent", loc="left")
    left.legend()
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = [
        f"Risk of SGD and of two forms of DANA at d = {table.attrs['d']:.0e}, without label noise, from exact expectations.",
        "Exponents are measured from d^0.5 to d^0.7 steps for SGD, d^1.33 to d^1.4 for DANA-constant, and d^0.7 to d^0.8",
        "for DANA-decaying.",
    ]
    for i in range(table.sizes["point"]):
        row = table.isel(point=i)
        sentences.append(f"{row.case.item()}, {row['name'].item()}: {float(row.slope):.3f}; theory {float(row.theory):.3f}.")
    return sentences
