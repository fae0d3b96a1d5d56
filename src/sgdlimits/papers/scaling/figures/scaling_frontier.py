r"""Compute-optimal models: the smallest risk at a given compute, against the exponents of Paquette et al. [21]_.

A model of size m sees the first m features of a power law. The part of the teacher in all other features is independent noise,
so that its risk is again that of least squares, exactly. The compute of a run is m times its steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import OKABE_ITO_COLOURS, DrawnFigure, Figure, SaveDataset, bar, make_panels, sizes, tabulate
from sgdlimits.papers.scaling import theory

CASES = {"the teacher": (1.5, 2.2), "the noise of SGD": (1.3, 4.0)}
"""Exponents b and a for which the named term dominates the risk."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    models=("model sizes", 33, 9),
    largest=("largest model", 10**5, 10**4),
    times=("saved times", 161, 41),
    blocks=("blocks", 64, 48),
)


def tail(a: float, m: int) -> float:
    """Return the sum of j^-a over all ranks j > m, the part of the risk that a model of size m cannot reduce."""
    x = m + 0.5
    return x ** (1 - a) / (a - 1) - a / 24 * x ** (-a - 1)


def risk_of_model(m: int, b: float, a: float, compute: np.ndarray, size: Any) -> np.ndarray:
    """Return the risk of a model of size m at the given compute; infinite where that is not a step."""
    spectrum = sl.spectrum.power_law(m, b, size.blocks)
    steps = np.rint(compute / m)
    possible = (steps >= 1) & (steps < 1e15)
    unique, place = np.unique(steps[possible], return_inverse=True)
    rate = sl.OnePassSGD(0.5 * m / theory.trace(spectrum))
    floor = tail(a, m)
    risk = np.full(compute.size, np.inf)
    risk[possible] = (theory.excess_risk(theory.problem(spectrum, a, rate, noise=floor), m, unique) + floor / 2)[place]
    return risk


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute the risk of all model sizes and draw it with the frontier and its exponent."""
    models = np.unique(np.rint(np.geomspace(10, size.largest, size.models)).astype(int))
    curves: dict[str, xr.Dataset] = {}
    rows = []
    for name, (b, a) in bar(CASES.items(), desc="cases"):
        compute = np.geomspace(1e2, size.largest ** (1 + b) / 10, size.times)
        risks = np.array([risk_of_model(int(m), b, a, compute, size) for m in models])
        best = risks.min(0)
        # fitted where the best model is neither the smallest nor the largest
        which = risks.argmin(0)
        inside = (which > 1) & (which < models.size - 2) & (compute > compute[-1] ** 0.4)
        slope = -np.polyfit(np.log(compute[inside]), np.log(best[inside]), 1)[0] if inside.sum() > 2 else np.nan
        curves[name] = save_dataset(
            f"curves-{len(curves)}",
            xr.Dataset({"risk": (("model", "budget"), risks), "best": ("budget", best)}, {"model": models, "budget": compute}),
        )
        rows.append({"case": name, "b": b, "a": a, "slope": slope, "theory": float(theory.frontier_exponent(b, a))})
    table = save_dataset("table", tabulate(rows))
    return DrawnFigure(_draw(curves, table), _write_caption(table))


def _draw(curves: dict[str, xr.Dataset], table: xr.Dataset) -> Figure:
    figure, axes = make_panels(1, len(curves), figsize=(10.5, 4.4))
    for i, (ax, (name, data)) in enumerate(zip(axes, curves.items(), strict=True)):
        shades = np.linspace(0.75, 0.25, data.sizes["model"])
        for m, shade in zip(range(data.sizes["model"]), shades, strict=True):
            ax.loglog(data.budget, data.risk.values[m], color=str(shade), linewidth=0.6)
        row = table.isel(point=i)
        ax.loglog(data.budget, data.best, color=OKABE_ITO_COLOURS[5], linewidth=2, label="the best model")
        guide = float(data.best[-1]) * (data.budget / float(data.budget[-1])) ** -float(row.theory)
        label = f"slope {-float(row.theory):.3f}; measured {-float(row.slope):.3f}"
        ax.loglog(data.budget, 0.4 * guide, "--", color="black", linewidth=1.2, label=label)
        ax.set(xlabel="compute: model size times steps", ylabel="risk", ylim=(0.2 * float(data.best[-1]), 2))
        ax.set_title(f"({'ab'[i]}) {name} dominates: $b = {float(row.b)}$, $a = {float(row.a)}$", loc="left")
        ax.legend(loc="lower left")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = ["Risk against compute for models of many sizes (grey, larger ones darker) and the frontier of the best model."]
    for i in range(table.sizes["point"]):
        row = table.isel(point=i)
        sentences.append(
            f"Where {row.case.item()} dominates (b = {float(row.b)}, a = {float(row.a)}) the frontier falls with the exponent "
            f"{float(row.slope):.3f}; theory, (a - 1)/(1 + b), has {float(row.theory):.3f}."
        )
    return [*sentences, "Where the noise of SGD dominates, the exponent is approached only as 1/log m, in the model size m."]
