"""Escape from mediocrity at four levels of description: phase retrieval from one random start, as in figure 1 of [1]_.

The paper does not say which learning rate and noise its figure has; here the noise is 0.1 and the learning rate
1/(12 + noise), which needs the fewest samples to leave the start.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib
import xarray as xr

import sgdlimits as sl
from sgdlimits.errors import BadInput
from sgdlimits.figures.demo_words import caption, table

NOISE = 0.1
LR = 1 / (12 + NOISE)


class Size(NamedTuple):
    """How large the demo is: dimension, end, and runs of each level."""

    d: int
    t_max: float
    sgd: int
    many: int


FULL, QUICK = Size(3000, 50.0, 16, 256), Size(300, 30.0, 8, 64)


def demo(out: str | Path, *, quick: bool = False, seed: int = 0) -> Iterator[str]:
    """Simulate the four levels, write datasets, figure and caption into a folder, and say what came out in lines."""
    size, folder = QUICK if quick else FULL, _folder(out)
    problem = sl.presets.phase_retrieval(lr=LR, noise=NOISE)
    start = sl.RandomInit(size.d).one(problem, seed=seed)
    levels = {
        "SGD": (sl.SGD(size.d), size.sgd),
        "chain": (sl.Chain(size.d), size.many),
        "SDE": (sl.SDE(size.d), size.many),
        "ODE": (sl.ODE(), 1),
    }
    yield f"Phase retrieval, d = {size.d}, lr = 1/{1 / LR:g}, noise = {NOISE:g}, up to t = {size.t_max:g}."
    datasets, seconds = {}, {}
    for name, (level, runs) in levels.items():
        begin = time.perf_counter()
        datasets[name] = sl.simulate(problem, level, start, t_max=size.t_max, runs=runs, seed=seed)
        seconds[name] = time.perf_counter() - begin
        sl.save(datasets[name], folder / f"{level.name}.nc")
    figure(datasets, folder / "demo")
    text = caption(datasets, LR, NOISE)
    (folder / "caption.txt").write_text(text + "\n", encoding="utf-8")
    yield from ["", *table(datasets, seconds, NOISE), "", text, ""]
    files = ", ".join(f"{name.lower()}.nc" for name in levels)
    yield f"In {folder}: demo.png, demo.svg, caption.txt and the datasets {files}."


def figure(datasets: dict[str, xr.Dataset], path: Path) -> None:
    """Risk and overlap at all levels, as PNG and SVG."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    words = {"SGD": "SGD on the weights", "chain": "exact chain", "SDE": "SDE", "ODE": r"ODE, $d\to\infty$"}
    runs = {name: dataset.sizes["run"] for name, dataset in datasets.items()}
    labels = {name: words[name] + (f", {runs[name]} runs" if runs[name] > 1 else "") for name in datasets}
    with plt.rc_context(sl.plot.PAPER):
        left, right = sl.plot.overview(
            {labels[name]: dataset for name, dataset in datasets.items()}, singles={labels["SGD"]: runs["SGD"]}
        )
        left.set_ylim(bottom=0)
        right.set_ylim(0, 1.02)
        drawn = plt.gcf()
        drawn.suptitle(rf"Phase retrieval, $d = {datasets['SGD'].attrs['d']}$: one random start, four descriptions of SGD")
        drawn.savefig(path.with_suffix(".png"))
        drawn.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        plt.close(drawn)


def _folder(out: str | Path) -> Path:
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise BadInput(f"the folder {out} cannot be made: {reason.strerror}. Give another --out.") from reason
    return Path(out)
