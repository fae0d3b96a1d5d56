"""Escaping mediocrity, figure 5: the largest overlap with the second layer fixed and trained, widths 20 and 50 [1]_.

The paper shows at d = 1000 that the largest overlap leaves the plateau at the same time in both cases, with a zoom on the exit,
and asks in appendix I whether a trained second layer becomes sparse afterwards. The lower panels answer by its sorted entries
at the end. Appendix I also says that other starts of the second layer, such as Bernoulli(1/2), go to the plateau quickly.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.ticker import MaxNLocator

import sgdlimits as sl
from sgdlimits.analysis.plot.curves import draw_run_curves
from sgdlimits.analysis.plot.style import CurveStyle, curve_styles
from sgdlimits.papers.figure import (
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    half_overlap_margin,
    make_panels,
    participation_ratio,
    standard_error,
)

LR_PER_UNIT = 1 / 12
"""Learning rate over width, lr/p, of all networks in the figure."""
SECOND_LAYER_KINDS = {"fixed": False, "trained": True}
"""Values of the argument `train_second`, by the names of curves."""
BERNOULLI = "bernoulli"
SECOND_LAYER_CASES = {**SECOND_LAYER_KINDS, BERNOULLI: True}
"""Values of the argument `train_second` by the names of curves, with the case of a random initial second layer."""
CASE_LABELS = {BERNOULLI: "trained from Bernoulli(1/2)"}
"""Labels of cases in the legend that differ from the names of the cases."""
ZOOM_LIMITS = 0.25
"""Half of the width of the inset in time, relative to the mean exit time."""
FULL_SIZE = Size(d=1000, t_max=60.0, widths={20: 48, 50: 16}, sgd=4)
QUICK_SIZE = FULL_SIZE.with_changes(d=200, t_max=36.0, widths={20: 16, 50: 4}, sgd=2)
PARAMETER_WORDS = dict(
    d="dimension", t_max="end in t", widths="runs of the chain by width", sgd="runs of SGD at the first width, as a check"
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate wide networks with fixed and trained second layer, and draw largest overlap and final second layer."""
    datasets = {}
    for width, runs in size.widths.items():
        for kind, train in SECOND_LAYER_CASES.items():
            problem = sl.presets.phase_retrieval(width=width, lr=LR_PER_UNIT * width, train_second=train)
            second = sl.Bernoulli(0.5) if kind == BERNOULLI else None
            start = sl.RandomInit(size.d, second=second).one(problem, seed=seed)
            levels = [(sl.Chain(size.d), runs), (sl.ODE(), 1)]
            # SGD on weights is slow; one width checks the chain
            levels += [(sl.SGD(size.d), size.sgd)] if width == next(iter(size.widths)) and kind in SECOND_LAYER_KINDS else []
            for level, count in levels:
                found = sl.simulate(problem, level, start, t_max=size.t_max, runs=count, seed=seed, save=240)
                datasets[f"{level.name}-{kind}-{width}"] = found
                save_dataset(f"{level.name}-{kind}-{width}", found.drop_vars("Q"))
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, axes = make_panels(2, 2, figsize=(8.4, 6.2), height_ratios=[1.25, 1], sharey="row")
    for column, width in zip(axes.T, size.widths, strict=True):
        zoom = column[0].inset_axes((0.56, 0.08, 0.42, 0.42))
        for kind, look in zip(SECOND_LAYER_CASES, curve_styles(3), strict=True):
            _draw_largest(column[0], datasets, width, kind, look)
            _draw_zoom(zoom, datasets[f"chain-{kind}-{width}"], look)
            # units are interchangeable: compare them by rank
            a = np.sort(datasets[f"chain-{kind}-{width}"].a.values[:, -1], axis=1)[:, ::-1]
            singles = 100 if SECOND_LAYER_KINDS.get(kind) else 0
            draw_run_curves(column[1], np.arange(1, width + 1), a, CurveStyle(look.colour, "-"), "", singles=singles, band=None)
        centre = _crossing_times(datasets[f"chain-fixed-{width}"]).mean()
        zoom.set(xlim=centre * np.array([1 - ZOOM_LIMITS, 1 + ZOOM_LIMITS]), ylim=(0.3, 0.7))
        zoom.axhline(0.5, color="0.7", linewidth=0.8, zorder=0)
        zoom.tick_params(labelsize=6)
        column[0].indicate_inset_zoom(zoom, edgecolor="0.5")
        column[0].axhline(0.5, color="0.7", linewidth=0.8, zorder=0)
        column[0].set(title=rf"$p = {width}$, $d = {size.d}$", xlabel=r"time of the paper, $\gamma t/p$", ylim=(0, 1.02))
        column[0].margins(x=0)
        column[1].set(xlabel="unit, sorted by its weight", ylim=(0, None), xlim=(0.5, width + 0.5))
        column[1].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[0, 0].set_ylabel(r"largest overlap $\max_j |m_j|$")
    axes[1, 0].set_ylabel(r"second layer $a_j$ at the end")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _draw_largest(ax: Axes, datasets: dict[str, xr.Dataset], width: int, kind: str, look: CurveStyle) -> None:
    """Draw the largest overlap of a unit against time, for chain and ODE, with the mean time at which it passes 1/2."""
    chain, ode = (datasets[f"{level}-{kind}-{width}"] for level in ("chain", "ode"))
    t = chain.t.values * chain.attrs["rate"]
    words = CASE_LABELS.get(kind, kind)
    label = f"second layer {words}, chain, mean and runs"
    draw_run_curves(ax, t, _largest_overlap(chain), CurveStyle(look.colour, "-"), label, singles=100, band=None)
    how: dict = dict(color="black" if kind == "fixed" else "0.5", linewidth=1.4, zorder=5, label=f"second layer {words}, ODE")
    if kind in SECOND_LAYER_KINDS:
        ax.plot(ode.t * ode.attrs["rate"], _largest_overlap(ode)[0], ":", **how)
    ax.axvline(_crossing_times(chain).mean(), color=look.colour, linewidth=1, linestyle=look.dashes, zorder=0)


def _draw_zoom(ax: Axes, chain: xr.Dataset, look: CurveStyle) -> None:
    """Draw the mean over runs of the largest unit overlap, for times near the exit."""
    ax.plot(chain.t * chain.attrs["rate"], _largest_overlap(chain).mean(0), color=look.colour, linestyle=look.dashes)


def _largest_overlap(dataset: xr.Dataset) -> np.ndarray:
    """Return the largest overlap of any unit with the teacher, at each run and time."""
    return np.abs(dataset.M.values[..., 0]).max(-1)


def _crossing_times(dataset: xr.Dataset) -> np.ndarray:
    """Return for each run the time, in the paper's units, at which the largest overlap of any unit passes 1/2."""
    return sl.exit_times(dataset, half_overlap_margin).t.values * dataset.attrs["rate"]


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    end = size.t_max * LR_PER_UNIT
    sentences = [
        "Figure 5 of the paper shows at p = 20 and p = 50, d = 1000, that the largest overlap leaves the plateau at the same",
        "time with a fixed and a trained second layer. It does not give lr and noise; here they are p/12 and 0, and d =",
        f"{size.d}. The weights stay on the sphere, a starts at 1 unless said, and all runs of a width start from the same",
        "random weights.",
        "Thin lines are runs of the exact chain, and vertical lines the mean times at which the largest overlap passes 0.5.",
    ]
    for width in size.widths:
        chains = {kind: datasets[f"chain-{kind}-{width}"] for kind in SECOND_LAYER_CASES}
        exits = {kind: _crossing_times(each) for kind, each in chains.items()}
        words = [
            f"{t.mean():.3f} ± {standard_error(t):.3f} ({kind})" for kind, t in exits.items() if kind in SECOND_LAYER_KINDS
        ]
        other = exits[BERNOULLI] - exits["fixed"]
        gap = exits["trained"] - exits["fixed"]
        ode = {kind: _crossing_times(datasets[f"ode-{kind}-{width}"])[0] for kind in SECOND_LAYER_KINDS}
        ratio = participation_ratio(chains[BERNOULLI].a.values[:, -1]).mean()
        bernoulli = f"{exits[BERNOULLI].mean():.3f} ± {standard_error(exits[BERNOULLI]):.3f}"
        a = chains["trained"].a.values[:, -1]
        smallest = np.abs(chains["trained"].M.values[:, -1, :, 0]).min(1).mean()
        share = participation_ratio(a).mean()
        sentences.append(
            f"p = {width}: it passes at {' and '.join(words)} over {gap.size} runs with the same random numbers in "
            f"both cases; the difference is {gap.mean():+.4f} ± {standard_error(gap):.4f}, "
            f"{100 * gap.mean() / exits['fixed'].mean():+.1f} %. A trained second layer that starts at entries 0 or 1, drawn "
            f"with equal probability, passes at {bernoulli}, {100 * other.mean() / exits['fixed'].mean():+.1f} %; "
            f"it ends with a participation ratio of {ratio:.2f}. The ODE passes at {ode['fixed']:.3f} and "
            f"{ode['trained']:.3f}. At the end ({end:.3g}) the trained entries lie between {a.min(1).mean():.2f} and "
            f"{a.max(1).mean():.2f} (means over runs of the smallest and the largest), their participation ratio is "
            f"{share:.2f} of the width, and the smallest overlap of a unit is {smallest:.2f}: a "
            f"{'does not become' if share > 0.5 else 'becomes'} sparse."
        )
        if f"sgd-fixed-{width}" in datasets:
            sgd = [f"{_crossing_times(datasets[f'sgd-{kind}-{width}']).mean():.3f} ({kind})" for kind in SECOND_LAYER_KINDS]
            sentences.append(f"{size.sgd} runs of SGD on the weights pass at {' and '.join(sgd)}.")
    return sentences
