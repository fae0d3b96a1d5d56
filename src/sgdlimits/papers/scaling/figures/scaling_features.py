r"""Compute-optimal models of random features in three phases of Paquette et al. [21]_, with their exponents.

A model of size d has d random features of a power law, whose spectrum and target come from the deterministic equivalent. The
compute of a run is d times its steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sgdlimits.papers.figure import OKABE_ITO_COLOURS, DrawnFigure, Figure, SaveDataset, bar, make_panels, sizes, tabulate
from sgdlimits.papers.scaling import theory
from sgdlimits.papers.scaling.random_features import frontier_exponents, random_features

CASES = ((0.8, 0.3), (1.0, 0.7), (1.0, 1.6))
"""Exponents alpha and beta, one pair for each phase."""
INPUTS = 10**8
"""Number of inputs; a hundred times more change the floor of the largest model by less than 1 per cent."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    models=("model sizes", 33, 9),
    largest=("largest model", 10**5, 10**3),
    times=("saved times", 161, 41),
    blocks=("nodes of the inputs", 256, 128),
)


def risk_of_model(d: int, alpha: float, beta: float, compute: np.ndarray, size: Any) -> np.ndarray:
    """Return the risk of d random features at the given compute; infinite where that is not a step."""
    features = random_features(d, INPUTS, alpha, beta, size.blocks)
    steps = np.rint(compute / d)
    possible = (steps >= 1) & (steps < 1e15)
    unique, place = np.unique(steps[possible], return_inverse=True)
    gamma = 0.5 / float(features.counts @ features.eigenvalues)
    risk = np.full(compute.size, np.inf)
    risk[possible] = (theory.excess_risk(features.problem(gamma), d, unique) + features.unreachable / 2)[place]
    return risk


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Compute the risk of all model sizes in each phase and draw it with the frontier and its exponents."""
    models = np.unique(np.rint(np.geomspace(10, size.largest, size.models)).astype(int))
    curves, rows = [], []
    for alpha, beta in bar(CASES, desc="phases"):
        phase, loss_exponent, size_exponent = frontier_exponents(alpha, beta)
        compute = np.geomspace(1e2, size.largest ** (1 / size_exponent) / 10, size.times)
        risks = np.array([risk_of_model(int(d), alpha, beta, compute, size) for d in models])
        best, which = risks.min(0), risks.argmin(0)
        # fitted where the best model is neither the smallest nor one of the largest
        inside = (which > 1) & (which < models.size - 2) & (compute > compute[-1] ** 0.5)
        x = np.log(compute[inside])
        slopes = [np.polyfit(x, np.log(y[inside]), 1)[0] for y in (best, models[which])]
        data = xr.Dataset(
            {"risk": (("model", "budget"), risks), "best": ("budget", best), "best_model": ("budget", models[which])},
            {"model": models, "budget": compute},
        )
        curves.append(save_dataset(f"curves-{phase}", data))
        rows.append(
            {
                "phase": phase,
                "alpha": alpha,
                "beta": beta,
                "slope": -slopes[0],
                "theory": loss_exponent,
                "size_slope": slopes[1],
                "size_theory": size_exponent,
            }
        )
    table = save_dataset("table", tabulate(rows))
    return DrawnFigure(_draw(curves, table), _write_caption(table))


def _draw(curves: list[xr.Dataset], table: xr.Dataset) -> Figure:
    figure, axes = make_panels(1, len(curves), figsize=(13, 4.2))
    for i, (ax, data) in enumerate(zip(axes, curves, strict=True)):
        shades = np.linspace(0.8, 0.25, data.sizes["model"])
        for m, shade in enumerate(shades):
            ax.loglog(data.budget, data.risk.values[m], color=str(shade), linewidth=0.6)
        row = table.isel(point=i)
        ax.loglog(data.budget, data.best, color=OKABE_ITO_COLOURS[5], linewidth=2, label="the best model")
        guide = float(data.best[-1]) * (data.budget / float(data.budget[-1])) ** -float(row.theory)
        label = f"slope {-float(row.theory):.3f}; measured {-float(row.slope):.3f}"
        ax.loglog(data.budget, 0.3 * guide, "--", color="black", linewidth=1.2, label=label)
        ax.set(xlabel="compute: model size times steps", ylabel="risk" if i == 0 else "", ylim=(0.1 * float(data.best[-1]), 2))
        title = rf"({'abc'[i]}) phase {row.phase.item()}: $\alpha = {float(row.alpha)}$, $\beta = {float(row.beta)}$"
        ax.set_title(title, loc="left")
        ax.legend(loc="lower left")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = [
        "Risk against compute for models of random features of many sizes (grey, larger ones darker), and the best model, in "
        "three phases of Paquette et al."
    ]
    for i in range(table.sizes["point"]):
        row = table.isel(point=i)
        sentences.append(
            f"In phase {row.phase.item()} (alpha = {float(row.alpha)}, beta = {float(row.beta)}) the best risk falls with the "
            f"exponent {float(row.slope):.3f}, theory {float(row.theory):.3f}, and the best size grows with "
            f"{float(row.size_slope):.3f}, theory {float(row.size_theory):.3f}."
        )
    return sentences
