"""Exit times from plateaus of several problems: chain, SDE, ODE, and the ODE from starts to which SGD's noise is added.

The preprint of *Escaping mediocrity* asks for this comparison beyond phase retrieval on the sphere. Starts are random weights;
a run exits when it has lost half of the plateau's excess risk. The noisy law adds SGD's noise near the plateau, to first order,
to the random start of the ODE (`plateau_exits`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import DrawnFigure, Figure, SaveDataset, Size, bar, curve_styles, make_panels, tabulate

THRESHOLD = 0.5
GEOMETRIES: dict[str, Callable[[], sl.Problem]] = {
    "phase retrieval, one unit on the sphere": lambda: sl.presets.phase_retrieval(lr=1 / 12),
    "phase retrieval, three units on the sphere": lambda: sl.presets.phase_retrieval(width=3, lr=3 / 12, noise=0.1),
    "phase retrieval, two free units, both layers": lambda: sl.presets.phase_retrieval(
        width=2, lr=0.05, sphere=False, train_second=True
    ),
    "quadratic network, two units and one teacher": lambda: sl.presets.quadratic_network(2, 1, lr=0.1),
    "committee, two erf units and two teachers": lambda: sl.presets.committee(2, 2, lr=1.5),
    "spiked matrix": lambda: sl.presets.spiked_tensor(2, 3.0, lr=0.1),
}
"""Problems of the figure by name, each with a linearly unstable plateau."""
FULL_SIZE = Size(d=1000, runs=400, geometries=tuple(GEOMETRIES))
QUICK_SIZE = FULL_SIZE.with_changes(d=300, runs=64, geometries=tuple(GEOMETRIES)[:2])
PARAMETER_WORDS = dict(d="dimension", runs="runs of chain, SDE and ODE", geometries="problems")


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute the table of exit times of each problem from its plateau, and draw it.

    The times are those of chain, SDE, ODE and the linear noisy law.
    """
    rows: list[dict] = []
    coords: dict[str, list[str]] = {"problem": [], "source": []}
    for name in bar(size.geometries, desc="problems"):
        found = sl.plateau_exits(GEOMETRIES[name](), size.d, THRESHOLD, runs=size.runs, seed=seed, progress=False)
        data, saddle = found.data, found.plateau
        gain = saddle.noise @ np.linalg.inv(saddle.projection @ saddle.projection.T)
        for source in data.source.values.tolist():
            mean = data.sel(source=source, statistic="mean")
            row = {key: float(mean[key]) for key in ("t", "low", "high")}
            rows.append(row | {"censored": int(mean.censored), "rate": float(saddle.rates[0].real), "gain": float(gain[0, 0])})
            coords["problem"].append(name)
            coords["source"].append(source)
    table = save_dataset("table", tabulate(rows, coords=coords, d=size.d, runs=size.runs, threshold=THRESHOLD))
    return DrawnFigure(_draw_figure(table), _write_caption(table))


def _select_problem(table: xr.Dataset, name: str) -> dict[str, xr.Dataset]:
    """Return the exit times of one problem in the table, by source: chain, SDE, ODE, and the ODE from starts with noise."""
    here = table.isel(point=table.problem.values == name)
    return {source: here.isel(point=i) for i, source in enumerate(here.source.values.tolist())}


def _problem_names(table: xr.Dataset) -> list[str]:
    """Return the names of the problems in a table, each once."""
    return list(dict.fromkeys(table.problem.values.tolist()))


def _draw_figure(table: xr.Dataset) -> Figure:
    names = _problem_names(table)
    figure, ax = make_panels(figsize=(8.0, 1.2 + 0.62 * len(names)))
    sources = list(_select_problem(table, names[0]))
    for k, (source, look, marker) in enumerate(zip(sources, curve_styles(len(sources)), "osD^", strict=True)):
        for i, name in enumerate(names):
            row, scale = _select_problem(table, name)[source], float(_select_problem(table, name)["chain"].t)
            t, low, high = (float(row[key]) / scale for key in ("t", "low", "high"))
            how: dict = dict(color=look.colour, markersize=5, capsize=2, label=source if i == 0 else None)
            ax.errorbar(t, -i - 0.15 * (k - 1.5), xerr=[[t - low], [high - t]], fmt=marker, **how)
    ax.axvline(1.0, color="0.7", linewidth=0.8, zorder=0)
    ax.set_yticks([-i for i in range(len(names))], names)
    ax.set(xlabel="mean exit time relative to the chain, 95 %", ylim=(0.6 - len(names), 0.5))
    ax.legend(loc="upper center", bbox_to_anchor=(0.3, -0.16 if len(names) > 3 else -0.3), ncols=4)
    ax.set_title(rf"$T = {table.attrs['threshold']:g}$ of the plateau, $d = {table.attrs['d']}$", loc="left")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = [
        f"Mean exit times from plateaus at d = {table.attrs['d']} from random starts, {table.attrs['runs']} runs each; a run",
        f"exits at the share {table.attrs['threshold']:g} of the plateau's excess risk. The noisy law adds SGD's noise",
        "near the plateau, to first order, to the random start of the ODE.",
    ]
    for name in _problem_names(table):
        rows = _select_problem(table, name)
        chain = float(rows["chain"].t)
        half = (float(rows["chain"].high) - float(rows["chain"].low)) / 2
        off = {source: 100 * (float(row.t) / chain - 1) for source, row in rows.items() if source != "chain"}
        words = ", ".join(f"{source} {value:+.1f} %" for source, value in off.items())
        lost = sum(int(row.censored) for row in rows.values())
        sentences.append(
            f"{name} (growth rate {float(rows['chain'].rate):.3g}): chain t = {chain:.4g} ± {half:.2g}; {words}"
            f"{f'; {lost} runs not done' if lost else ''}."
        )
    return sentences
