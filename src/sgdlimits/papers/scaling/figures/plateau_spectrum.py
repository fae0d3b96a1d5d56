r"""Plateaus of single-index targets on power-law inputs: steps until one unit has learnt, against the dimension.

The inputs have the eigenvalues :math:`j^{-a}`, scaled to the mean 1, and the teacher a random direction e. On the sphere with
the loss -yf, one unit learns the direction Se, with the covariance S, and has learnt when its cosine with Se is 1/2. Free
weights with the squared loss learn the teacher, and have learnt when the correlation of the two fields is 1/2.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

import sgdlimits as sl
from sgdlimits.expectation.gaussian import GaussHermite
from sgdlimits.model.loss import Loss
from sgdlimits.papers.figure import (
    OKABE_ITO_COLOURS,
    DrawnFigure,
    Figure,
    SaveDataset,
    bar,
    make_panels,
    select_rows,
    sizes,
    tabulate,
)
from sgdlimits.papers.scaling import theory

SPHERE_2, FREE_2, SPHERE_3 = "He_2, sphere", "He_2, free weights", "He_3, sphere"
"""Names of the three cases."""
LR = {SPHERE_2: 0.1, FREE_2: 0.03, SPHERE_3: 0.3}
"""Learning rate; for exponent 3 over the root of the effective dimension."""
DIMENSIONS = {
    SPHERE_2: {0.0: (10**3, 10**4, 10**5), 0.3: (10**3, 10**4, 10**5), 0.7: (10**3, 10**4, 10**5), 1.2: (10**3, 10**4, 10**5)},
    FREE_2: {0.0: (10**3, 10**4, 10**5), 0.3: (10**3, 10**4, 50_000), 0.7: (10**3, 10**4, 10**5), 1.2: (10**3, 10**4, 10**5)},
    SPHERE_3: {0.0: (250, 1000, 4000), 0.3: (250, 500, 1000), 0.7: (10**3, 4000, 16_000), 1.2: (10**3, 10**4, 10**5)},
}
TINY_DIMENSIONS = {case: {0.0: (100, 200), 0.7: (100, 200)} for case in DIMENSIONS}
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    dimensions=("dimensions", DIMENSIONS, TINY_DIMENSIONS),
    runs=("runs of a point", 64, 16),
    blocks=("blocks", 12),
    ode=("runs of the ODE", 16, 4),
)
MAX_TIME_FACTOR, RESAMPLES = 12, 1000
"""Longest time over that of the linear law, or over 1/lr if that is longer; and number of bootstrap samples."""


class CorrelationLoss(Loss):
    """The loss -yf of a prediction f and a label y."""

    def __call__(self, prediction, label):
        return -prediction * label


def spectrum(d: int, a: float, blocks: int) -> sl.Spectrum:
    """Return the spectrum of the eigenvalues j^-a with the mean 1."""
    if a == 0:
        return sl.Spectrum([1.0], [1.0])
    binned = sl.spectrum.power_law(d, a, blocks)
    return sl.Spectrum(np.asarray(binned.eigenvalues) / (theory.trace(binned) / d), binned.shares)


def problem(case: str, inputs: sl.Spectrum, lr: float) -> sl.ProjectionProblem:
    """Return the problem of one unit that learns a random direction."""
    sphere, name = case != FREE_2, case[:4].lower().replace("_", "")
    return sl.ProjectionProblem(
        data=sl.inputs.gaussian(spectrum=inputs) if len(inputs.shares) > 1 else sl.inputs.gaussian(),
        target=sl.Target(sl.CommitteeReadout(name), 1),
        network=sl.TwoLayer(1, name),
        loss=CorrelationLoss() if sphere else sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr, sphere=sphere),
        expectation=GaussHermite(16) if sphere else None,
        initial=sl.InitialWeights(unit=True),
    )


def make_figure(size: Any, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate the times of all cases, and draw the steps against the dimension."""
    points = [(case, a, d) for case, rows in size.dimensions.items() for a, many in rows.items() for d in many]
    last = {(case, a): many[-1] for case, rows in size.dimensions.items() for a, many in rows.items()}
    rows = [measure_point(case, a, d, size, seed, d == last[case, a]) for case, a, d in bar(points, desc="points")]
    cases, exponents, dimensions = zip(*points, strict=True)
    table = tabulate(rows, coords={"case": cases, "a": exponents, "d": dimensions}, runs=size.runs)
    table = save_dataset("table", table)
    return DrawnFigure(_draw(table), _write_caption(table))


def measure_point(case: str, a: float, d: int, size: Any, seed: int, with_ode: bool) -> dict[str, float]:
    """Return a table row: median steps of the chain with their interval, of the ODE, and of the linear law."""
    inputs = spectrum(d, a, size.blocks)
    values, shares = np.asarray(inputs.eigenvalues), np.array(inputs.shares)
    second = float(values**2 @ shares)
    n = 3 if case == SPHERE_3 else 2
    lr = LR[case] * (second / d) ** 0.5 if n == 3 else LR[case]
    law = theory.plateau_time(n, lr, second, d)
    sphere, learner = case != FREE_2, problem(case, inputs, lr)
    start = sl.RandomInit(d).sample(learner, runs=size.runs, seed=seed)
    overlap = (np.asarray(start.M).reshape(size.runs, -1) * values).sum(1)
    sign = np.sign(overlap).reshape(-1, *[1] * (np.ndim(start.M) - 1))
    start = sl.Overlaps(start.a, np.asarray(start.M) * sign, start.Q)  # He_3 learns positive overlaps only

    def learnt(stats):
        m, q = (values * stats.M.ravel()).sum(), (values * stats.Q.ravel()).sum()
        return jnp.abs(m) - 0.5 * (second**0.5 if sphere else jnp.sqrt(q))

    def exits(level, runs):
        t_max = MAX_TIME_FACTOR * law if sphere else max(MAX_TIME_FACTOR * law, 3 / lr)
        found = sl.simulate(learner, level, start, t_max=t_max, runs=runs, seed=seed, until=learnt, progress=False)
        found = sl.exit_times(found, learnt)
        return d * np.where(found.censored, np.inf, found.t)

    steps = exits(sl.Chain(d), size.runs)
    ode = exits(sl.ODE(), size.ode) if with_ode else np.full(1, np.nan)
    drawn = np.random.default_rng(seed).choice(steps, (RESAMPLES, steps.size))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975], method="nearest")
    # the ODE's runs are the first of the chain's
    return {
        "steps": np.median(steps), "low": low, "high": high, "ode": np.median(ode), "same": np.median(steps[: size.ode]),
        "law": law * d, "lr": lr, "effective": d / second, "left": np.isinf(steps).mean(),
    }  # fmt: skip


def known_medians(rows: xr.Dataset) -> xr.Dataset:
    """Select the points at which at least half of the runs have learnt."""
    return rows.isel(point=np.isfinite(rows.steps.values))


def fit_slope(rows: xr.Dataset) -> tuple[float, float]:
    """Return the exponent of d in the steps, and its standard error, from the intervals of the medians."""
    rows = known_medians(rows)
    high = np.where(np.isfinite(rows.high.values), rows.high.values, rows.steps.values**2 / rows.low.values)
    error = np.maximum(np.log(high / rows.low.values) / (2 * 1.96), 1e-3)
    line, covariance = np.polyfit(np.log(rows.d.values), np.log(rows.steps.values), 1, w=1 / error, cov="unscaled")
    return float(line[0]), float(np.sqrt(covariance[0, 0]))


def law_slope(rows: xr.Dataset) -> float:
    """Return the exponent of d in the steps of the linear law at the same dimensions."""
    rows = known_medians(rows)
    return float(np.polyfit(np.log(rows.d.values), np.log(rows.law.values), 1)[0])


def _series(table: xr.Dataset):
    for case in dict.fromkeys(table.case.values.tolist()):
        of_case = select_rows(table, case=case)
        for a in np.unique(of_case.a.values).tolist():
            yield case, a, select_rows(of_case, a=a)


def _draw(table: xr.Dataset) -> Figure:
    cases = list(dict.fromkeys(table.case.values.tolist()))
    figure, axes = make_panels(1, len(cases), figsize=(11.5, 4.2), squeeze=False)
    axes = axes[0]
    colours = dict(zip(np.unique(table.a.values).tolist(), OKABE_ITO_COLOURS, strict=False))
    for case, a, rows in _series(table):
        ax = axes[cases.index(case)]
        ax.plot(rows.d, rows.law, color=colours[a], linestyle="--", linewidth=0.9)
        ax.plot(rows.d, np.where(np.isfinite(rows.ode), rows.ode, np.nan), "x", color=colours[a], ms=6)
        rows = known_medians(rows)
        d = rows.d.values
        steps, low, high = (rows[name].values for name in ("steps", "low", "high"))
        high = np.where(np.isfinite(high), high, steps)
        label = rf"$a = {a:g}$: $d^{{\,{fit_slope(rows)[0]:.2f}}}$"
        ax.errorbar(d, steps, [steps - low, high - steps], fmt="o", ms=4, capsize=2, color=colours[a], label=label)
    for letter, case, ax in zip("abc", cases, axes, strict=False):
        ax.set(xscale="log", yscale="log", xlabel="$d$")
        ax.set_title(f"({letter}) ${case.split(',')[0]}$,{case.split(',')[1]}", loc="left")
        ax.legend(fontsize=8)
    axes[0].set_ylabel("steps until learnt; linear law dashed, ODE crosses")
    return figure


def _write_caption(table: xr.Dataset) -> list[str]:
    sentences = [
        f"Median steps of the exact chain ({table.attrs['runs']} runs, 95 % bootstrap intervals)",
        "for eigenvalues j^-a of mean 1,",
        "with the exponents of d between the given dimensions, and in brackets those of the linear law.",
    ]
    for case, a, rows in _series(table):
        (slope, error), known, last = fit_slope(rows), known_medians(rows), rows.isel(point=-1)
        end = known.isel(point=-1)
        sentence = (
            f"{case}, a = {a:g}, d = {int(rows.d[0])} to {int(end.d)}: {slope:.3f} ± {error:.3f} ({law_slope(rows):.3f}); "
            f"at the largest d {float(end.steps):.3g} steps, linear law {float(end.law):.3g}, effective dimension "
            f"{float(end.effective):.3g}."
        )
        if int(end.d) < int(last.d):
            share = float(last.left)
            sentence += (
                f" At d = {int(last.d)} a share of {share:.2f} has not learnt in {MAX_TIME_FACTOR} times the linear law."
            )
        elif np.isfinite(last.ode):
            sentence += f" The ODE's median is {float(last.ode / last.same):.2f} times the chain's from the same starts."
        else:
            sentence += " Half of the ODE's runs or more do not learn in that time."
        sentences.append(sentence)
    return sentences
