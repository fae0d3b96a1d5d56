"""Escape from mediocrity at four levels of description: phase retrieval from one random start, as in figure 1 of [1]_.

The paper does not say which learning rate and noise its figure has; here the noise is 0.1 and the learning rate
1/(12 + noise), which needs the fewest samples to leave the start.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
"""

from __future__ import annotations

import textwrap
import time
from typing import NamedTuple

import xarray as xr
from matplotlib.figure import Figure

import sgdlimits as sl
from sgdlimits.figures.base import Drawn, Keep, ignore
from sgdlimits.figures.demo_words import caption, table
from sgdlimits.figures.exit_time_words import lines, reading

NOISE = 0.1
LR = 1 / (12 + NOISE)
THRESHOLD = 0.5


class Size(NamedTuple):
    """How large the demo is: dimension, end, runs of each level, and runs behind the table of exit times."""

    d: int
    t_max: float
    sgd: int
    many: int
    exits: int


FULL, QUICK = Size(3000, 50.0, 12, 256, 96), Size(300, 30.0, 8, 64, 64)


def make(size: Size = FULL, seed: int = 0, keep: Keep = ignore) -> Drawn:
    """Simulate the four levels from one start, and exit times from random ones."""
    problem = sl.presets.phase_retrieval(lr=LR, noise=NOISE)
    start = sl.RandomInit(size.d).one(problem, seed=seed)
    levels = {
        "SGD": (sl.SGD(size.d), size.sgd),
        "chain": (sl.Chain(size.d), size.many),
        "SDE": (sl.SDE(size.d), size.many),
        "ODE": (sl.ODE(), 1),
    }
    datasets, seconds = {}, {}
    for name, (level, runs) in levels.items():
        begin = time.perf_counter()
        datasets[name] = sl.simulate(problem, level, start, t_max=size.t_max, runs=runs, seed=seed)
        seconds[name] = time.perf_counter() - begin
        keep(level.name, datasets[name])
    exits = sl.theory.mediocrity.compare(problem, size.d, THRESHOLD, runs=size.exits, seed=seed)
    keep("exit-times", exits)
    text = [
        f"Phase retrieval, d = {size.d}, lr = 1/{1 / LR:g}, noise = {NOISE:g}, up to t = {size.t_max:g}.", "",
        *table(datasets, seconds, NOISE), "",
        f"Mean exit times from random starts at threshold {THRESHOLD:g}, with the paper's formulas:", "",
        *lines(exits), "", *textwrap.wrap(reading(exits), width=110, break_on_hyphens=False), "",
    ]  # fmt: skip
    return Drawn(figure(datasets), caption(datasets, LR, NOISE), {**datasets, "exit-times": exits}, text)


def figure(datasets: dict[str, xr.Dataset]) -> Figure:
    """Risk and overlap at all levels."""
    words = {"SGD": "SGD on the weights", "chain": "exact chain", "SDE": "SDE", "ODE": r"ODE, $d\to\infty$"}
    runs = {name: dataset.sizes["run"] for name, dataset in datasets.items()}
    labels = {name: words[name] + (f", {runs[name]} runs" if runs[name] > 1 else "") for name in datasets}
    left, right = sl.plot.overview(
        {labels[name]: dataset for name, dataset in datasets.items()}, singles={labels["SGD"]: runs["SGD"]}
    )
    left.set_ylim(bottom=0)
    right.set_ylim(0, 1.02)
    drawn = left.get_figure(root=True)
    assert drawn is not None
    drawn.suptitle(rf"Phase retrieval, $d = {datasets['SGD'].attrs['d']}$: one random start, four descriptions of SGD")
    return drawn
