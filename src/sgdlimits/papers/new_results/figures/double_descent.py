r"""Double descent of gradient descent on n reused samples with linear labels, beside its limits.

A linear unit learns a linear teacher with label noise from n samples, by gradient descent on the empirical risk from zero
(`Reused(n)` with `batch=n`). After s steps of size :math:`\eta` the components along an eigenvector of the empirical
covariance have moved by :math:`1 - (1 - \eta\lambda)^s` of the way to the least-squares solution, with eigenvalue
:math:`\lambda`. As d and n grow at a fixed ratio, the eigenvalues follow the law of Marchenko and Pastur, and the excess risk

.. math:: E[(1-\eta\lambda)^{2s}] + \Delta \tfrac dn E\big[(1 - (1-\eta\lambda)^s)^2 / \lambda\big] .

For inputs with the covariance :math:`\Sigma`, the limit after infinitely many steps is that of ridgeless regression [26]_.
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.optimize import brentq

import sgdlimits as sl
from sgdlimits.papers.figure import (
    Axes,
    DrawnFigure,
    Figure,
    SaveDataset,
    Size,
    bar,
    curve_styles,
    make_panels,
    select_rows,
    sizes,
    standard_error,
    tabulate,
)

NODES = 4000
"""Number of nodes of the integral over the law of Marchenko and Pastur."""
STEP = 0.9
"""Step size of gradient descent, relative to the inverse of the largest eigenvalue in the limit."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    d=("dimension of (a)", 400, 60),
    ratios=("ratios n/d", (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.2, 3.0), (0.5, 1.0, 2.0)),
    steps=("numbers of steps", (10, 100, 1000), (10, 100)),
    strong=("strong dimensions of (b)", 300, 50),
    high=("dimension of (b)", 10**6),
    tails=("weights of the other dimensions", (30.0, 100.0, 300.0), (30.0,)),
    noise=("label noise", 0.25),
    long=("steps of (b)", 500, 200),
    runs=("runs", 8, 4),
    runs_high=("runs of (b)", 4, 2),
)


def descent_limit(ratio: float, noise: float, steps: np.ndarray, lr: float) -> np.ndarray:
    """Return the limit, as d grows, of gradient descent's excess risk after some steps on n = `ratio` d isotropic samples.

    The teacher has norm 1, and weights begin at zero.

    >>> gap = descent_limit(0.5, 0.25, np.array([10**6]), 0.1) - (0.5 + 0.25)  # 1 - n/d, and noise over d/n - 1
    >>> bool(abs(gap) < 1e-9)
    True
    """
    gamma = 1 / ratio
    angle = (np.arange(NODES) + 0.5) * np.pi / NODES
    value = 1 + gamma + 2 * np.sqrt(gamma) * np.cos(angle)
    weight = 2 * np.sin(angle) ** 2 / (NODES * value)
    left = (1 - lr * value) ** np.asarray(steps, float)[:, None]
    still = max(0.0, 1 - ratio)  # the share of dimensions without samples
    return (weight * left**2).sum(1) + still + noise * gamma * (weight * (1 - left) ** 2 / value).sum(1)


def ridgeless_limit(n: float, noise: float, eigenvalues: np.ndarray, dims: np.ndarray, signal: np.ndarray) -> float:
    """Return the limit of the excess risk of least squares of smallest norm, for inputs with blocks of variances.

    Parameters
    ----------
    n : number of samples, fewer than dimensions
    eigenvalues, dims, signal : variance in each block, its number of dimensions, and the squared length of the teacher in it

    >>> one = np.ones(1)
    >>> bool(abs(ridgeless_limit(50, 0.25, one, 100 * one, one) - (0.5 + 0.25)) < 1e-9)
    True
    """
    count = lambda kappa: (dims * eigenvalues / (eigenvalues + kappa)).sum() - n
    kappa = brentq(count, 1e-15 * eigenvalues.max(), dims @ eigenvalues / n * 2, xtol=1e-16, rtol=1e-14)
    kept = eigenvalues / (eigenvalues + kappa)
    used = (dims * kept**2).sum() / n
    bias = kappa**2 * (signal * eigenvalues / (eigenvalues + kappa) ** 2).sum()
    return float((bias + noise * used) / (1 - used))


def _problem(n: int, lr: float, noise: float, data: sl.inputs.Inputs, gram=None) -> sl.ProjectionProblem:
    """Build gradient descent, with the step size `lr` over d, on n samples of a linear teacher."""
    return sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("he1"), 1, noise=noise, gram=gram),
        sl.TwoLayer(1, "he1"),
        sl.SquaredLoss(),
        sl.OnePassSGD(lr, batch=n),
        data=sl.Reused(n, base=data),
    )


def _descend(problem: sl.ProjectionProblem, d: int, n: int, steps, runs: int, seed: int) -> xr.Dataset:
    """Simulate gradient descent from zero, and save it after the given numbers of steps."""
    shape = (problem.data.blocks,) if problem.data.blocks else ()
    start = sl.Overlaps([1.0], np.zeros((*shape, 1, 1)), np.zeros((*shape, 1, 1)))
    times = np.asarray(steps) * (n / d)
    return sl.simulate(problem, sl.Chain(d), start, t_max=times[-1], save=times, runs=runs, seed=seed, progress=False)


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate gradient descent for several numbers of samples, and draw the excess risk beside its limits."""
    rows = []
    for ratio in bar(size.ratios, desc="isotropic inputs"):
        n = round(ratio * size.d)
        lr = STEP / (1 + np.sqrt(size.d / n)) ** 2
        found = _descend(_problem(n, lr * size.d, size.noise, sl.inputs.gaussian()), size.d, n, size.steps, size.runs, seed)
        limits = descent_limit(n / size.d, size.noise, np.array(size.steps), lr)
        rows += [
            _row(found.isel(t=i), size.noise) | {"n": n, "steps": steps, "limit": limits[i]}
            for i, steps in enumerate(size.steps)
        ]
    isotropic = save_dataset("isotropic", tabulate(rows, d=size.d, noise=size.noise, runs=size.runs))
    rows = []
    dims, signal = np.array([size.strong, size.high - size.strong]), np.array([1.0, 0.0])
    for tail in bar(size.tails, desc="strong and weak dimensions"):
        values = np.array([1.0, tail / dims[1]])
        data = sl.inputs.gaussian(sl.Spectrum(values, dims / size.high))
        for ratio in size.ratios:
            n = round(ratio * size.strong)
            lr = STEP / ((1 + np.sqrt(size.strong / n)) ** 2 + tail / n)
            problem = _problem(n, lr * size.high, size.noise, data, signal[:, None, None])
            found = _descend(problem, size.high, n, [size.long], size.runs_high, seed)
            limit = ridgeless_limit(n, size.noise, values, dims, signal)
            rows.append(_row(found.isel(t=-1), size.noise) | {"n": n, "others": tail, "limit": limit})
    weak = save_dataset(
        "blocks", tabulate(rows, d=size.high, strong=size.strong, noise=size.noise, runs=size.runs_high, steps=size.long)
    )
    return DrawnFigure(_draw_figure(isotropic, weak), _write_caption(isotropic, weak))


def _row(end: xr.Dataset, noise: float) -> dict[str, float]:
    """Return the mean excess population risk with its standard error, and the mean training risk, both as squared errors."""
    excess = 2 * end.risk.values - noise
    return {"excess": excess.mean(), "error": standard_error(excess), "train": float(2 * end.train_risk.mean())}


def _draw_figure(isotropic: xr.Dataset, weak: xr.Dataset) -> Figure:
    figure, (left, right) = make_panels(1, 2, figsize=(9.0, 3.6))
    d, noise = isotropic.attrs["d"], isotropic.attrs["noise"]
    counts = list(dict.fromkeys(isotropic.steps.values.tolist()))
    looks = curve_styles(len(counts) + 1)
    ratios = np.geomspace(0.08, 3.6, 200)
    for look, steps in zip(looks, counts, strict=False):
        rows = select_rows(isotropic, steps=steps)
        each = [descent_limit(r, noise, np.array([steps]), STEP / (1 + r**-0.5) ** 2)[0] for r in ratios]
        left.plot(ratios, each, color=look.colour, linestyle=look.dashes)
        _draw_points(left, rows.n / d, rows, color=look.colour, label=f"{steps} steps")
    least = np.array([1 - r + noise * r / (1 - r) if r < 1 else noise / (r - 1) for r in ratios])
    left.plot(ratios, least, color="0.5", linestyle=":", label="least squares, limit")
    left.set(title=f"(a) isotropic inputs, $d = {d}$", xlabel="$n/d$", ylabel="excess population risk")
    strong, dims = weak.attrs["strong"], np.array([weak.attrs["strong"], weak.attrs["d"] - weak.attrs["strong"]])
    tails = list(dict.fromkeys(weak.others.values.tolist()))
    for look, tail in zip(curve_styles(len(tails)), tails, strict=True):
        rows, values = select_rows(weak, others=tail), np.array([1.0, tail / dims[1]])
        each = [ridgeless_limit(r * strong, noise, values, dims, np.array([1.0, 0.0])) for r in ratios]
        right.plot(ratios, each, color=look.colour, linestyle=look.dashes)
        _draw_points(right, rows.n / strong, rows, color=look.colour, label=f"{tail:g}")
    exponent = f"10^{{{np.log10(weak.attrs['d']):.0f}}}"
    right.set(title=f"(b) {strong} strong dimensions of ${exponent}$", xlabel=f"$n/{strong}$")
    for ax, title in ((left, None), (right, "total variance of the others")):
        ax.set(xscale="log", yscale="log", ylim=(0.03, 30.0))
        ax.legend(title=title)
    return figure


def _draw_points(ax: Axes, x, rows: xr.Dataset, **how) -> None:
    """Draw means over runs with their standard errors."""
    ax.errorbar(x, rows.excess, rows.error, fmt="o", markersize=4, capsize=2, **how)


def _write_caption(isotropic: xr.Dataset, weak: xr.Dataset) -> list[str]:
    counts = isotropic.steps.values
    last = select_rows(isotropic, steps=counts.max())
    first = select_rows(isotropic, steps=counts.min())
    worst = np.abs(last.excess / last.limit - 1).values
    top = last.isel(point=int(last.excess.values.argmax()))
    same = first.isel(point=int(last.excess.values.argmax()))
    gap = np.abs(weak.excess / weak.limit - 1).values
    runs, high = (f"{data.attrs['runs']} runs a point" for data in (isotropic, weak))
    sentences = [
        "Excess population risk of gradient descent on n reused samples of a linear teacher, as exact chains without d (dots,",
        f"{runs} in (a) and {high} in (b), standard errors), and its limits as d and n grow (lines). (a) isotropic inputs,",
        f"d = {isotropic.attrs['d']}, label noise {isotropic.attrs['noise']:g}: the risk is largest at n = {int(top.n)},",
        f"where it is {float(top.excess):.3g} after {int(top.steps)} steps, {float(same.excess):.3g} after {int(same.steps)};",
        f"after {int(top.steps)} steps the dots are off the limit by {100 * np.median(worst):.1f} % in the median.",
        f"(b) {weak.attrs['strong']} strong dimensions of {weak.attrs['d']:,}, after {weak.attrs['steps']} steps; lines are",
        f"the limit of least squares of smallest norm, off by {100 * np.median(gap):.1f} % in the median.",
    ]
    for tail in dict.fromkeys(weak.others.values.tolist()):
        rows = select_rows(weak, others=tail)
        at = rows.isel(point=int(np.abs(rows.n.values - weak.attrs["strong"]).argmin()))
        risk, limit = float(at.excess), float(at.limit)
        sentences.append(
            f"Total variance {tail:g} of the other dimensions: excess {risk:.3g} at n = {int(at.n)} (limit {limit:.3g}),"
            f" training risk {float(at.train):.1g}."
        )
    return sentences
