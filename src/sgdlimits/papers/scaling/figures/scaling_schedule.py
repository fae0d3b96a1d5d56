r"""The best schedule of the learning rate for power laws with label noise, against Bordelon and Mori [25]_ and Li et al. [24]_.

Rates :math:`C\,(1 - t/T)^\delta` are optimised for the exact risk after T steps, in pieces that get shorter towards the end:
many in the decades that matter, since coarse pieces change the best exponent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy.optimize import minimize

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, DrawnFigure, Figure, SaveDataset, bar, make_panels, sizes, tabulate
from sgdlimits.papers.scaling import theory

B, A, NOISE = 1.5, 2.5, 0.25
"""Exponents of the spectrum and of the teacher's squares, and variance of the label noise."""
FINE_SHARE = 1e-3
"""Share of the steps that is left where pieces become coarse; the steps after it hardly matter for the exponent."""
COARSE = 4
"""Number of pieces in each decade of the steps after that."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 10**9, 10**6),
    horizons=("numbers of steps", (1e4, 1e6, 1e8, 1e10, 1e12), (1e4, 1e6)),
    pieces=("pieces of a decade", 40, 8),
    evaluations=("evaluations of each search", 45, 12),
    blocks=("blocks", 80, 48),
)


def piece_ends(T: float, pieces: int) -> np.ndarray:
    """Return the numbers of steps left at the ends of the schedule's pieces, decreasing from T to 0.

    There are `pieces` of them in a decade down to a share `FINE_SHARE` of T, and `COARSE` in each decade below.
    """
    low = max(1.0, FINE_SHARE * T)
    fine = np.geomspace(low, T, round(pieces * np.log10(T / low)) + 1)
    coarse = np.geomspace(1.0, low, round(COARSE * np.log10(low)) + 1)
    return np.unique(np.rint(np.concatenate([[0.0], coarse, fine])))[::-1]


def best_schedule(spectrum: Any, T: float, start: np.ndarray, size: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return log C and delta of the best schedule, its excess risk, and the excess risk of the best constant rate."""
    left = piece_ends(T, size.pieces)
    share = (left[1:] + left[:-1]) / 2 / T

    def log_risk(rates: np.ndarray) -> float:
        lr = sl.Steps((T - left[1:-1]) / size.d, rates * size.d)
        problem = theory.problem(spectrum, A, sl.OnePassSGD(lr), NOISE)
        return float(np.log(theory.excess_risk(problem, size.d, np.array([T]))[-1]))

    simplex = np.vstack([start, start + np.diag([0.1, 0.1])])
    options = dict(initial_simplex=simplex, xatol=0.002, fatol=1e-9, maxfev=size.evaluations)
    found = minimize(lambda x: log_risk(np.exp(x[0]) * share ** x[1]), start, method="Nelder-Mead", options=options)
    constant = minimize(
        lambda x: log_risk(np.full(share.size, np.exp(x[0]))),
        start[:1] - 1.0,
        method="Nelder-Mead",
        options=dict(xatol=0.01, fatol=1e-6, maxfev=max(6, size.evaluations // 2)),
    )
    return found.x, np.exp([found.fun, constant.fun])


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Optimise the schedule at each number of steps and draw its shape, its rates and its risk."""
    spectrum = sl.spectrum.power_law(size.d, B, size.blocks)
    rows = []
    start = np.array([np.log(0.06), 1.5])
    for T in bar(size.horizons, desc="horizons"):
        x, risks = best_schedule(spectrum, T, start, size)
        rows.append({"T": T, "C": np.exp(x[0]), "delta": x[1], "risk": risks[0], "constant": risks[1]})
        xi, _, _ = theory.schedule_exponents(B, A)
        start = x - xi * np.log(100) * np.array([1.0, 0.0])
    table = save_dataset("table", tabulate(rows, d=size.d))
    return DrawnFigure(_draw(table), _write_caption(table))


def local_slopes(table: xr.Dataset, name: str) -> np.ndarray:
    """Return minus the slopes of a variable between neighbouring numbers of steps, on logarithmic axes."""
    return -np.diff(np.log(table[name].values)) / np.diff(np.log(table["T"].values))


def _draw(table: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(10.5, 4.4))
    xi, delta, exponent = theory.schedule_exponents(B, A)
    share = np.geomspace(1e-4, 1, 200)
    for i, T in enumerate(table["T"].values):
        row = table.isel(point=i)
        left.loglog(
            share,
            float(row.C) * share ** float(row.delta) * T**xi,
            color=OKABE_ITO_COLOURS[i + 1],
            label=f"$T = 10^{{{np.log10(T):.0f}}}$",
        )
    left.loglog(
        share,
        1.5 * float(table.C[-1] * table["T"][-1] ** xi) * share**delta,
        "--",
        color="black",
        label=rf"$\delta = {delta:g}$",
    )
    left.set(xlabel="$1 - t/T$", ylabel=rf"best rate times $T^{{{xi:g}}}$", ylim=(1e-4, None))
    left.set_title("(a) the best schedules", loc="left")
    left.legend()
    for name, label, colour in (
        ("risk", "best schedule", OKABE_ITO_COLOURS[5]),
        ("constant", "best constant rate", OKABE_ITO_COLOURS[1]),
    ):
        right.loglog(table["T"], table[name], "o-", color=colour, label=label)
    T = table["T"].values
    right.loglog(T, 0.6 * table.risk.values[-1] * (T / T[-1]) ** -exponent, "--", color="black", label=f"slope $-{exponent:g}$")
    right.set(xlabel="steps $T$", ylabel="excess risk")
    right.set_title("(b) the risk at the end", loc="left")
    right.legend()
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    xi, delta, exponent = theory.schedule_exponents(B, A)
    listed = lambda values: ", ".join(f"{value:.3f}" for value in values)
    return [
        f"The best rates C (1 - t/T)^delta for eigenvalues j^-{B}, a teacher with squares j^-{A} and label noise",
        f"{NOISE}, at d = {table.attrs['d']:.0e}, for T = {', '.join(f'{T:.0e}' for T in table['T'].values)} steps.",
        f"delta: {listed(table.delta.values)}; theory {delta:g}.",
        f"xi, from C at neighbouring T: {listed(local_slopes(table, 'C'))}; theory {xi:g}.",
        f"Exponent of the excess risk: {listed(local_slopes(table, 'risk'))}; theory {exponent:g};",
        f"with the best constant rate: {listed(local_slopes(table, 'constant'))}.",
    ]
