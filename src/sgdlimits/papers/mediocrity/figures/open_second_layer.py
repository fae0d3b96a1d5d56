"""Open question: what follows the escape when both layers are trained, only the first, or only the second [1]_.

Appendix I says that a trained second layer could become sparse or stay homogeneous. The ODE from many random starts answers as
a function of the ratio r of the learning rates of the layers, the chain confirms it, and label noise makes the layer
homogeneous.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.analysis.plot.style import OKABE_ITO_COLOURS
from sgdlimits.papers.figure import (
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    make_panels,
    participation_ratio,
    select_rows,
    sizes,
    tabulate,
)
from sgdlimits.papers.mediocrity.theory.asymptotic import end_rates, second_only_risk, terminal_risk

LR_PER_UNIT = 1 / 24
"""Learning rate of the first layer over width, lr/p."""
NOISE = 0.2
"""Variance of the label noise in the curves that have some."""
MAX_ZERO_ENTRY = 0.05
"""Size of an entry of the second layer below which it counts as zero."""
# legends by r, the ratio of the learning rates
RATIO_LABELS = {0.0: "first layer only", 0.3: "both layers, $r = 0.3$", 1.0: "both layers, $r = 1$"}
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    width=("width of the curves", 5, 3),
    widths=("runs of the census by width", {3: 96, 10: 48}, {3: 32}),
    ratios=("ratios of the learning rates", (0.1, 0.3, 1.0, 3.0, 10.0), (0.3, 1.0, 3.0)),
    d=("dimension of the chain", 500, 200),
    chain=("runs of the chain", 16, 8),
    ends=("end of each panel", (2000.0, 30.0, 400.0), (300.0, 20.0, 100.0)),
)


def build_problem(width: int, ratio: float, noise: float = 0.0) -> sl.ProjectionProblem:
    """Build phase retrieval on the sphere, with the second layer at `ratio` times the learning rate of the first."""
    return sl.presets.single_index("square", width=width, lr=LR_PER_UNIT * width, noise=noise, train_second=ratio or False)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Solve the ODE and simulate the chain with one or both layers trained, and draw the time after the escape.

    The panels show the risk and the second layer.
    """
    datasets = {**solve_curves(size, seed), "census": tabulate_second_layers(size, seed), "noisy": solve_noisy(size)}
    for name, dataset in datasets.items():
        save_dataset(name, dataset)
    return DrawnFigure(_draw_figure(datasets, size), _write_caption(datasets, size))


def solve_curves(size: Size, seed: int) -> dict[str, xr.Dataset]:
    """Solve the ODE from one random start, with and without label noise, with the first layer or both layers trained."""
    found = {}
    # power laws need times in equal ratios
    times = np.concatenate([[0], np.geomspace(0.1, size.ends[0], 60)]) / LR_PER_UNIT
    for ratio in RATIO_LABELS:
        for noise in (0.0, NOISE):
            each = build_problem(size.width, ratio, noise)
            start = sl.RandomInit(size.d).one(each, seed=seed)
            key = f"ode-{ratio:g}-{noise:g}"
            found[key] = sl.simulate(each, sl.ODE(), start, t_max=times[-1], save=times, progress=False)
    return found


def tabulate_second_layers(size: Size, seed: int) -> xr.Dataset:
    """Tabulate the unevenness of the final second layer over random starts without noise.

    Width and ratio of the layers' learning rates vary.
    """
    rows, plan = [], list[tuple[sl.ODE | sl.Chain, int, int, float]]()
    plan += [(sl.ODE(), width, runs, ratio) for width, runs in size.widths.items() for ratio in size.ratios]
    plan += [(sl.Chain(size.d), min(size.widths), size.chain, ratio) for ratio in size.ratios]
    for level, width, runs, ratio in bar(plan, desc="second layers"):
        how = dict(t_max=size.ends[1] / LR_PER_UNIT, runs=runs, seed=seed, save=2, progress=False)
        found = sl.simulate(build_problem(width, ratio), level, sl.RandomInit(size.d), **how).isel(t=-1)
        a, m = found.a.values, found.M.values[..., 0]
        share = participation_ratio(a)
        low, middle, high = np.quantile(share, (0.1, 0.5, 0.9))
        row = {"level": level.name, "width": width, "ratio": ratio, "runs": runs, "low": low, "share": middle, "high": high}
        row |= {
            "smallest": share.min(),
            "gone": (np.abs(a) < MAX_ZERO_ENTRY).mean(),
            # weights that act along the teacher
            "useful": np.median(participation_ratio(a * m**2)),
        }
        rows.append(row | {"idle": (np.abs(m) < 0.5).mean(), "risk": np.median(found.risk.values)})
    return tabulate(rows)


def solve_noisy(size: Size) -> xr.Dataset:
    """Solve the ODE with label noise from an uneven second layer, and return the spread of that layer against time."""
    ratios = size.ratios[-3:]
    p, tau = size.width, np.linspace(0, size.ends[2], 41)
    # mean 1, so that the network is recovered exactly
    uneven = 1 + np.linspace(-0.5, 0.5, p)
    start = sl.Overlaps(jnp.asarray(uneven), jnp.ones((p, 1)), jnp.ones((p, p)))
    how: dict = dict(t_max=tau[-1] / LR_PER_UNIT, save=tau / LR_PER_UNIT, progress=False)
    found = [sl.simulate(build_problem(p, ratio, NOISE), sl.ODE(), start, **how) for ratio in ratios]
    spread = [each.a.values[0].std(-1) / uneven.std() for each in found]
    return xr.Dataset({"spread": (("ratio", "tau"), spread)}, coords={"ratio": list(ratios), "tau": tau})


def _draw_figure(datasets: dict[str, xr.Dataset], size: Size) -> Figure:
    figure, (left, middle, right) = make_panels(1, 3, figsize=(12.0, 3.9))
    _draw_risks(left, datasets, size)
    _draw_shares(middle, datasets["census"], size)
    _draw_spreads(right, datasets["noisy"], size)
    return figure


def _draw_risks(ax: Axes, datasets: dict[str, xr.Dataset], size: Size) -> None:
    """Draw the excess risk against time, with and without label noise, with the theoretical power law."""
    for (ratio, name), colour in zip(RATIO_LABELS.items(), OKABE_ITO_COLOURS, strict=False):
        for noise, dashes in ((0.0, "-"), (NOISE, "--")):
            found = datasets[f"ode-{ratio:g}-{noise:g}"]
            label = name if noise == 0 else None
            ax.plot(found.t[1:] * LR_PER_UNIT, found.risk[0, 1:] - noise / 2, dashes, color=colour, linewidth=1.3, label=label)
        tau = np.array([size.ends[0] / 100, size.ends[0]])
        limit = terminal_risk(datasets[f"ode-{ratio:g}-0"].a.values[0, -1], LR_PER_UNIT * size.width, trained=ratio > 0)
        ax.plot(tau, limit / tau**2, ":", color="black", linewidth=1.2, zorder=5)
    ax.axhline(float(second_only_risk(size.width)), color="0.5", linewidth=1.3, label="second layer only")
    ax.set(xscale="log", yscale="log", xlabel=r"time of the paper $\tau = \gamma t/p$", ylabel="excess risk")
    ax.set_title(rf"(a) $p = {size.width}$; dashed: noise {NOISE:g}; dotted: $\tau^{{-2}}$", loc="left")
    ax.legend(loc="lower left")


def _draw_shares(ax: Axes, census: xr.Dataset, size: Size) -> None:
    """Draw the participation ratio of the final second layer against the ratio of the learning rates of the layers."""
    for width, colour in zip(size.widths, OKABE_ITO_COLOURS, strict=False):
        rows = select_rows(census, width=width, level="ode")
        ax.fill_between(rows.ratio, rows.low, rows.high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(rows.ratio, rows.share, "-", color=colour, label=f"$p = {width}$, ODE")
    rows = select_rows(census, level="chain")
    bars = np.stack([rows.share - rows.low, rows.high - rows.share])
    how: dict = dict(fmt="o", color=OKABE_ITO_COLOURS[0], markersize=4, capsize=2)
    ax.errorbar(rows.ratio, rows.share, bars, label=f"$p = {min(size.widths)}$, chain", **how)
    ax.set(xscale="log", xlabel=r"ratio $r$ of the learning rates", ylim=(0, 1.03))
    ax.set_xticks(size.ratios, [f"{ratio:g}" for ratio in size.ratios])
    ax.minorticks_off()
    ax.set_ylabel(r"participation ratio of $a$ over $p$")
    ax.set_title("(b) without noise: median, 10 to 90 % of starts", loc="left")
    ax.legend(loc="lower left")


def _draw_spreads(ax: Axes, noisy: xr.Dataset, size: Size) -> None:
    """Draw the spread of the second layer's entries against time under label noise, with the theoretical decay."""
    for ratio, colour in zip(noisy.ratio.values, OKABE_ITO_COLOURS[3:], strict=False):
        ax.plot(noisy.tau, noisy.spread.sel(ratio=ratio), color=colour, label=f"$r = {ratio:g}$")
        rate = float(end_rates(size.width, LR_PER_UNIT * size.width, NOISE, ratio).differences)
        ax.plot(noisy.tau, np.exp(-rate * noisy.tau), ":", color="black", linewidth=1)
    ax.set(yscale="log", ylim=(3e-3, 1.2), xlabel=r"time of the paper $\tau$", ylabel="spread of $a$ over that at the start")
    ax.set_title(rf"(c) noise {NOISE:g}; dotted: rate $2rg\Delta/(1-6g)$", loc="left")
    ax.legend()


def _write_caption(datasets: dict[str, xr.Dataset], size: Size) -> list[str]:
    p = size.width
    sentences = [
        "What follows the escape in phase retrieval on the sphere when both layers are trained, only the first, or only the",
        f"second: appendix I of the paper leaves it open. lr = p/{1 / LR_PER_UNIT:.0f}, a starts at 1. (a) p = {p}, the ODE",
        f"from one random start at d = {size.d}. With the second layer only, the excess risk stays at (p + 3)/(p + 2) =",
        f"{float(second_only_risk(p)):.3f}.",
    ]
    for ratio, name in RATIO_LABELS.items():
        quiet, loud = (datasets[f"ode-{ratio:g}-{noise:g}"].isel(run=0, t=-1) for noise in (0.0, NOISE))
        limit = terminal_risk(quiet.a.values, LR_PER_UNIT * p, trained=ratio > 0)
        theory = f"with a from {quiet.a.values.min():.4f} to {quiet.a.values.max():.2f}, for which there is no formula"
        theory = f"and in theory {limit:.4f}" if np.isfinite(limit) else theory
        sentences.append(
            f"{name.capitalize().replace('$', '')}: without noise the risk times tau^2 is "
            f"{float(quiet.risk) * size.ends[0] ** 2:.4f} at the end, tau = {size.ends[0]:g}, {theory}; with noise {NOISE:g} "
            f"the excess risk ends at {float(loud.risk) - NOISE / 2:.5f}."
        )
    join = lambda values, form: ", ".join(f"{x:{form}}" for x in values)
    sentences += [
        f"(b) Median participation ratio of a at tau = {size.ends[1]:g} over random starts, without noise, for r =",
        f"{join(size.ratios, 'g')}.",
    ]
    for (level, width), rows in datasets["census"].groupby(["level", "width"]):
        shares, gone = join(rows.share.values, ".2f"), join(100 * rows.gone.values, ".0f")
        level = "ODE" if level == "ode" else "Chain"
        sentences.append(f"{level}, p = {width}: {shares} of p; {gone} % of entries are below {MAX_ZERO_ENTRY:g}.")
    noisy = datasets["noisy"]
    sentences.append(
        f"(c) With noise {NOISE:g} and recovered units, an uneven second layer becomes homogeneous at the rate "
        "2 r g noise/(1 - 6 g)."
    )
    for ratio in noisy.ratio.values:
        spread = noisy.spread.sel(ratio=ratio).values
        rate = float(end_rates(p, LR_PER_UNIT * p, NOISE, ratio).differences)
        save_dataset = spread > 1e-3  # below that the tolerance of the solver shows
        measured = -np.polyfit(noisy.tau.values[save_dataset], np.log(spread[save_dataset]), 1)[0]
        sentences.append(f"r = {ratio:g}: {measured:.4f}, in theory {rate:.4f}.")
    return sentences
