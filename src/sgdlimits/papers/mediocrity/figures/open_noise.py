"""Open question: how label noise sets the plateau of the excess risk at the end of phase retrieval [1]_.

The exact chain starts at the end state of the theory, and its stationary risk is compared with the theory: for one unit at
several learning rates, for five units on the sphere, off it, and with a trained second layer, and for finite dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    make_panels,
    select_rows,
    sizes,
    standard_error,
    tabulate,
)
from sgdlimits.papers.mediocrity.theory import asymptotic_excess_risk, learnt_state, max_lr, plateau_correction
from sgdlimits.papers.mediocrity.theory.asymptotic import EndState, free_end, plateau_series, trained_end

LEARNING_RATES = (0.03, 0.06, 0.1)
"""Learning rates of one unit in (a)."""
WIDE_NOISE = 2.0
"""Variance of the label noise in (b)."""
NETWORK_KINDS = ("sphere", "free", "trained")
"""Kinds of network in (b): on the sphere, off it, and on the sphere with a trained second layer."""
FINITE_D_CASES = ((0.1, 1.0), (0.03, 2.0))
"""Learning rates and noises in (c), the correction at finite dimension."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension", 600, 200),
    t_max=("end in t", 250.0, 60.0),
    runs=("runs", 24, 16),
    noises=("noise levels of one unit", (0.5, 1.0, 2.0, 4.0, 6.0, 7.5), (1.0, 4.0)),
    width=("width of the wide network", 5, 3),
    steps=("its steps lr/p", (0.03, 0.06, 0.09), (0.05, 0.09)),
    dimensions=("dimensions of (c)", (100, 200, 400, 800), (100, 200)),
    long=("end of (c)", 1000.0, 400.0),
    many=("runs of (c)", 512, 128),
)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the final excess risk of the chain with label noise, and draw it against noise, lr/p and dimension."""
    rows = [
        {"panel": panel, "kind": kind, "width": width, "lr": lr, "noise": noise, "d": d}
        | measure_excess_risk(
            kind,
            width,
            lr,
            noise,
            d,
            size.with_changes(t_max=size.long, runs=size.many) if panel == "dimension" else size,
            seed,
        )
        for panel, kind, width, lr, noise, d in bar(list(list_points(size)), desc="points")
    ]
    table = save_dataset("table", tabulate(rows, runs=size.runs))
    return DrawnFigure(_draw_figure(table, size), _write_caption(table, size))


def list_points(size: Size) -> Iterator[tuple[str, str, int, float, float, int]]:
    """Yield (panel, kind of network, width, learning rate, noise, dimension) for every simulated point of the figure."""
    for lr in LEARNING_RATES:
        for noise in size.noises:
            if lr < 0.95 * max_lr(1, noise):  # close to max_lr the stationary state fluctuates to the saddle and back
                yield "noise", "sphere", 1, lr, noise, size.d
    for kind in NETWORK_KINDS:
        for g in size.steps:
            yield "width", kind, size.width, g * size.width, WIDE_NOISE, size.d
    for lr, noise in FINITE_D_CASES:
        for d in size.dimensions:
            yield "dimension", "sphere", 1, lr, noise, d


def end_state(kind: str, width: int, lr: float, noise: float) -> EndState:
    """Return the theoretical end state of equal students: on the sphere, with free norms, or with a trained second layer."""
    if kind == "sphere":
        m, q, risk = learnt_state(width, lr, noise)
        return EndState(np.ones(()), m, np.ones(()), q, risk)
    return (free_end if kind == "free" else trained_end)(width, lr, noise)


def measure_excess_risk(kind: str, width: int, lr: float, noise: float, d: int, size: Size, seed: int) -> dict[str, float]:
    """Return the chain's mean excess risk at late times from the end state, its standard error, and the theoretical value."""
    problem = sl.presets.phase_retrieval(width, lr=lr, noise=noise, sphere=kind != "free", train_second=kind == "trained")
    state = end_state(kind, width, lr, noise)
    a, m, norm, q = (float(each) for each in state[:4])
    start = sl.Overlaps(jnp.full(width, a), jnp.full((width, 1), m), q + (norm - q) * jnp.eye(width))
    found = sl.simulate(problem, sl.Chain(d), start, t_max=size.t_max, runs=size.runs, seed=seed, save=201, progress=False)
    means = (found.risk.values - noise / 2)[:, 40:].mean(1)  # of 201 saved times, the first 40 relax
    return {"chain": means.mean(), "error": standard_error(means), "theory": float(state.excess_risk)}


def _draw_figure(table: xr.Dataset, size: Size) -> Figure:
    figure, (left, middle, right) = make_panels(1, 3, figsize=(12.0, 3.9))
    _draw_against_noise(left, select_rows(table, panel="noise"))
    _draw_against_step(middle, select_rows(table, panel="width"), size)
    _draw_against_dimension(right, select_rows(table, panel="dimension"))
    return figure


def _draw_against_noise(ax: Axes, rows: xr.Dataset) -> None:
    """Draw the final excess risk of one unit against the variance of the label noise, at several learning rates."""
    noise = np.linspace(0, 9, 451)
    for lr, colour in zip(LEARNING_RATES, OKABE_ITO_COLOURS, strict=False):
        ax.plot(noise, asymptotic_excess_risk(1, lr, noise), color=colour, linewidth=1.2)
        here = select_rows(rows, lr=lr)
        ax.errorbar(here.noise, here.chain, 1.96 * here.error, fmt="o", color=colour, markersize=4, label=f"lr {lr:g}")
    ax.axhline(2, color="0.7", linewidth=0.8, linestyle="--", zorder=0)
    ax.set(xlabel=r"noise $\Delta$", ylabel="excess risk at the end", ylim=(0, 2.2), xlim=(0, 9))
    ax.set_title("(a) one unit; dashed: the saddle", loc="left")
    ax.legend()


def _draw_against_step(ax: Axes, rows: xr.Dataset, size: Size) -> None:
    """Draw the final excess risk of several units against lr/p, for three kinds of network, with theory."""
    p, g = size.width, np.linspace(1e-3, 0.1, 60)
    series = plateau_series(p, g * p, WIDE_NOISE)
    for kind, colour, second, marker in zip(NETWORK_KINDS, OKABE_ITO_COLOURS[3:], series, "osv", strict=False):
        risk = [float(end_state(kind, p, each * p, WIDE_NOISE).excess_risk) for each in g]
        ax.plot(g, risk / (g * WIDE_NOISE), color=colour, linewidth=1.2)
        ax.plot(g, second / (g * WIDE_NOISE), color=colour, linewidth=0.7, linestyle=":")
        here = select_rows(rows, kind=kind)
        scale = (here.lr / p * here.noise).values
        how: dict = dict(fmt=marker, color=colour, markersize=4, label=kind)
        ax.errorbar(here.lr / p, here.chain / scale, 1.96 * here.error / scale, **how)
    ax.set(xlabel=r"$g = \gamma/p$", ylabel=r"excess risk over $g\Delta$", xlim=(0, None))
    ax.set_title(rf"(b) $p = {p}$, $\Delta = {WIDE_NOISE:g}$; dotted: second order", loc="left")
    ax.legend()


def _draw_against_dimension(ax: Axes, rows: xr.Dataset) -> None:
    """Draw d times the relative correction to the final excess risk at dimension d, against 1/d."""
    for (lr, noise), colour, marker in zip(FINITE_D_CASES, OKABE_ITO_COLOURS, "os", strict=False):
        here = select_rows(rows, lr=lr, noise=noise)
        value, error = scale_correction(here)
        ax.errorbar(1 / here.d, value, 1.96 * error, fmt=marker, color=colour, markersize=4)
        ax.axhline(float(plateau_correction(lr, noise)), color=colour, linewidth=1.2, label=rf"lr {lr:g}, $\Delta = {noise:g}$")
    ax.set(xlabel="$1/d$", ylabel="$d$ (chain over theory, less 1)", xlim=(0, None), ylim=(-3.2, None))
    ax.set_title("(c) correction at finite $d$; lines: $d\\to\\infty$", loc="left")
    ax.legend(loc="lower left")


def scale_correction(rows: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return d times the relative difference between simulated and theoretical excess risk, and its standard error."""
    return (rows.d * (rows.chain / rows.theory - 1)).values, (rows.d * rows.error / rows.theory).values


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    one, wide, small = (select_rows(table, panel=name) for name in ("noise", "width", "dimension"))
    away = lambda rows: float(np.sqrt((((rows.chain - rows.theory) / rows.error) ** 2).mean()))
    off = lambda rows: 100 * float(np.abs(rows.chain / rows.theory - 1).max())
    sentences = [
        "How the plateau of the excess risk at the end of phase retrieval depends on label noise; the paper has (8) and no",
        f"figure. Dots: the exact chain at d = {size.d}, {size.runs} runs from the end state of the theory, mean from",
        f"t = {size.t_max / 5:g} to {size.t_max:g} with 95 % intervals; lines: d to infinity. (a) One unit on the sphere:",
        "lr noise/(1 - 6 lr), linear in the noise up to 2/lr - 12, where it reaches the risk 2 of the saddle continuously.",
        f"The chain differs from it by at most {off(one):.1f} % ({away(one):.1f} standard errors, root mean square).",
        f"(b) {size.width} units, noise {WIDE_NOISE:g}: the risk over g noise tends to 1 for all kinds of network as g = lr/p",
        "falls.",
    ]
    for kind in NETWORK_KINDS:
        last = select_rows(wide, kind=kind).isel(point=-1)
        scale = float(last.lr / size.width * last.noise)
        sentences.append(
            f"At g = {float(last.lr) / size.width:.3g}, {kind}: {float(last.chain) / scale:.3f} ± "
            f"{float(last.error) / scale:.3f}, in theory {float(last.theory) / scale:.3f}."
        )
    sentences.append(
        f"(c) The relative correction at finite d of one unit, times d, in {size.many} runs to t = {size.long:g}; the lines "
        "are its limit."
    )
    for lr, noise in FINITE_D_CASES:
        here = select_rows(small, lr=lr, noise=noise)
        triples = zip(*scale_correction(here), here.d.values, strict=True)
        values = ", ".join(f"{value:.2f} ± {error:.2f} at d = {d}" for value, error, d in triples)
        sentences.append(f"At lr {lr:g} and noise {noise:g}: {values}; in theory {float(plateau_correction(lr, noise)):.2f}.")
    return sentences
