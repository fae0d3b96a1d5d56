"""Effective dynamics: the signal-to-noise ratios and ridges at which a network that classifies well exists [2]_.

The paper has no such figure. Below the line the good classifier of the binary or XOR mixture is a fixed point of the ODE; on
the line its weights shrink to zero.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import xarray as xr
from scipy.optimize import root

import sgdlimits as sl
from sgdlimits.papers import figure as base
from sgdlimits.papers.effective.theory import classifier_ridge, critical_ridge, ring_radius
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    make_panels,
    select_rows,
    sizes,
    standard_error,
)

CLUSTER_WEIGHTS = {"binary_mixture": 0.5, "xor_mixture": 0.25}
"""Probability of one cluster by preset."""
# legends of the presets
PRESET_LABELS = {"binary_mixture": "two classes", "xor_mixture": "XOR"}
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    snr=("ratios snr", (100.0, 20.0, 5.0, 2.0), (100.0, 5.0)),
    shares=("ridges over that of the line", (0.1, 0.3, 0.5, 0.7, 0.85, 0.95), (0.3, 0.7, 0.95)),
    chain=("dimension, end in t and runs of the chain", (1000, 20.0, 16), (300, 20.0, 8)),
)
UNIT_PAIR_KINDS = np.array([[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 0, 1], [2, 2, 1, 0]])
"""Kinds of pairs of units of the good classifier: 0 the same unit, 1 opposite directions, 2 different labels."""

drift = eqx.filter_jit(lambda problem, stats: problem.drift(stats))


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Find the good classifier at each signal-to-noise ratio and ridge, and draw where it exists and its second layer.

    The exact chain is simulated from the classifier for comparison.
    """
    cases = [(name, snr, share) for name in CLUSTER_WEIGHTS for snr in size.snr for share in size.shares]
    rows = [
        {"preset": name, "snr": snr, "share": share} | measure_classifier(name, snr, share, size, seed)
        for name, snr, share in base.bar(cases, desc="points")
    ]
    table = save_dataset("table", base.tabulate(rows))
    return DrawnFigure(_draw_figure(table, size), _write_caption(table, size))


def build_classifier(preset: str, x: np.ndarray) -> sl.Overlaps:
    """Build the symmetric classifier's overlaps from the vector x of its independent entries.

    The entries are second layer, overlap, squared norm, and overlaps between units.
    """
    v, m, *overlaps = x
    if preset == "binary_mixture":
        return sl.Overlaps(
            jnp.array([v, -v]), jnp.array([[m], [-m]]), jnp.asarray(np.choose(UNIT_PAIR_KINDS[:2, :2], overlaps))
        )
    M = jnp.array([[m, 0], [-m, 0], [0, m], [0, -m]])
    return sl.Overlaps(jnp.array([v, v, -v, -v]), M, jnp.asarray(np.choose(UNIT_PAIR_KINDS, overlaps)))


def find_classifier(preset: str, snr: float, ridge: float) -> tuple[sl.ProjectionProblem, np.ndarray]:
    """Find the good classifier by continuation from a large signal-to-noise ratio.

    Return the problem and the vector x of `build_classifier`, which is NaN if there is no good classifier.
    """
    C = ring_radius(min(ridge, 0.99 * critical_ridge(CLUSTER_WEIGHTS[preset])), CLUSTER_WEIGHTS[preset]) ** 2
    # the solution without noise; a norm slightly above m^2 keeps the fields independent
    x = np.array([C**0.5, C**0.5, C * 1.001, -C, 0.0])[: 4 if preset == "binary_mixture" else 5]
    for each in np.geomspace(max(1000.0, snr), snr, 1 + int(np.ceil(4 * np.log10(max(1000.0, snr) / snr)))):
        problem = getattr(sl.presets, preset)(snr=float(each), ridge=ridge)
        found = root(partial(_independent_drift, problem, preset), x, tol=1e-10)
        # the weights have shrunk to zero: beyond the line
        if not found.success or found.x[:2].min() < 1e-3:
            return problem, np.full(x.size, np.nan)
        x = found.x
    return problem, x


def measure_classifier(preset: str, snr: float, share: float, size: Size, seed: int) -> dict[str, float]:
    """Return the second layer and accuracy of the good classifier, and the mean squared second layer of the chain.

    The chain starts at the classifier. The ridge is `share` times the largest ridge at which the classifier exists.
    """
    d, t_max, runs = size.chain
    problem, x = find_classifier(preset, snr, share * classifier_ridge(preset, snr))
    stats = build_classifier(preset, x)
    lowest = float(jnp.linalg.eigvalsh(stats.Q - stats.M @ stats.M.T)[0])  # zero up to the accuracy of the integrals
    start = sl.Overlaps(stats.a, stats.M, stats.Q + max(0.0, 1e-9 - lowest) * jnp.eye(stats.Q.shape[0]))
    found = sl.simulate(problem, sl.Chain(d), start, t_max=t_max, runs=runs, seed=seed, save=21, progress=False)
    # the second half of the times, in which the chain is stationary
    squares = (found.a.values[:, 10:] ** 2).mean((1, 2))
    return {"v": x[0], "chain": squares.mean(), "error": standard_error(squares), "accuracy": float(found.accuracy[0, 0])}


def _independent_drift(problem: sl.ProjectionProblem, preset: str, x: np.ndarray) -> np.ndarray:
    """Return the independent entries of the ODE's drift at the symmetric classifier with the entries x.

    All of them vanish at the good classifier.
    """
    # by symmetry the other entries repeat these
    change = drift(problem, build_classifier(preset, x))
    return np.array([change.a[0], change.M[0, 0], *np.asarray(change.Q[0])[: x.size - 2]])


def _draw_figure(table: xr.Dataset, size: Size) -> Figure:
    figure, axes = make_panels(1, 3, figsize=(12.6, 3.8))
    snr = np.geomspace(0.3, 2000, 200)
    for preset, colour in zip(CLUSTER_WEIGHTS, OKABE_ITO_COLOURS, strict=False):
        line = [classifier_ridge(preset, each) for each in snr]
        axes[0].plot(snr, line, color=colour, label=PRESET_LABELS[preset])
        axes[0].fill_between(snr, 0, line, color=colour, alpha=0.12, linewidth=0)
    axes[0].set(xscale="log", xlabel="snr", ylabel="ridge", ylim=(0, 0.3), xlim=(snr[0], snr[-1]))
    axes[0].set_title("(a) where a good classifier exists", loc="left")
    axes[0].legend(loc="upper left", ncols=2)
    for preset, ax, letter in zip(CLUSTER_WEIGHTS, axes[1:], "bc", strict=True):
        _draw_second_layer(ax, select_rows(table, preset=preset), preset, size)
        ax.set_title(f"({letter}) {PRESET_LABELS[preset]}: its second layer", loc="left")
    return figure


def _draw_second_layer(ax: Axes, rows: xr.Dataset, preset: str, size: Size) -> None:
    """Draw the squared second layer v^2 against the ridge, for the ODE and the chain."""
    for snr, colour in zip(size.snr, OKABE_ITO_COLOURS[3:], strict=False):
        here, line = select_rows(rows, snr=snr), classifier_ridge(preset, snr)
        ax.plot([*(here.share * line), line], [*(here.v**2), 0.0], color=colour, linewidth=1.1, label=f"snr {snr:g}")
        ax.errorbar(here.share * line, here.chain, 1.96 * here.error, fmt="o", color=colour, markersize=3.5)
    ax.set(xlabel="ridge", ylabel="$v^2$: ODE (lines), chain (dots)", ylim=(0, None), xlim=(0, None))
    ax.legend()


def _write_caption(table: xr.Dataset, size: Size) -> list[str]:
    d, t_max, runs = size.chain
    values = ", ".join(f"{classifier_ridge('xor_mixture', snr):.4f} at snr {snr:g}" for snr in size.snr)
    sentences = [
        "The region in which a network that tells all classes apart is a fixed point of the ODE; the paper treats the limit of",
        "a large signal-to-noise ratio. (a) It lies below the lines, from closed forms: 0.250 at every ratio for two classes,",
        f"and for XOR {values}; 0.125 in the limit. (b), (c) The squared second layer of that network against the ridge: lines",
        "are fixed points of the ODE, continued from large ratios down, and end at the closed forms; dots are the chain from",
        f"there, d = {d}, {runs} runs, mean from t = {t_max / 2:g} to {t_max:g} with 95 % intervals.",
    ]
    for preset in CLUSTER_WEIGHTS:
        rows = select_rows(table, preset=preset)
        near = select_rows(rows, share=size.shares[-1])
        words = ", ".join(f"{a:.3f} at snr {s:g}" for a, s in zip(near.accuracy.values, near.snr.values, strict=True))
        off = float(np.abs(rows.chain / rows.v**2 - 1).max())
        sentences.append(
            f"For {PRESET_LABELS[preset]} the chain differs from the ODE by at most {100 * off:.1f} %; at "
            f"{size.shares[-1]:g} of the line the network classifies correctly with probability {words}."
        )
    return sentences
