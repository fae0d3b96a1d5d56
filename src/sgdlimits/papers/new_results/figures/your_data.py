"""SGD on real and on artificial inputs that are not Gaussian, beside the levels for Gaussian inputs of the same covariance.

Real inputs are patches of 8 by 8 pixels, minus their mean, of two images that matplotlib ships: a map of elevations and a
photograph. The label is the next pixel to the right. A linear unit learns it. Artificial inputs have independent coordinates
(signs, uniform or sparse), or are a hidden manifold erf(F z). Two erf units learn one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import xarray as xr
from matplotlib import cbook

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
    sizes,
    tabulate,
)

PATCH, ROWS = 8, 20_000
"""Width of a patch in pixels, and number of patches, and of points of the hidden manifold."""
LR, NOISE = 0.1, 0.01
"""Learning rate of the patches, and variance of the label noise of artificial inputs."""
NONZERO = 2.0
"""Mean number of nonzero coordinates of sparse inputs."""
FULL_SIZE, QUICK_SIZE, PARAMETER_WORDS = sizes(
    runs=("runs", 400, 20),
    t_max=("samples per dimension", 30.0, 3.0),
    d=("dimension of artificial inputs", 100, 40),
    saves=("saved times", 25, 4),
)


def patches(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return random patches of an image minus their mean, and the pixel to the right of each, both of variance 1."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (PATCH, PATCH + 1)).reshape(-1, PATCH, PATCH + 1)
    chosen = windows[np.random.default_rng(0).permutation(len(windows))[:ROWS]]
    X, y = chosen[:, :, :PATCH].reshape(ROWS, -1), chosen[:, PATCH // 2, PATCH]
    mean = X.mean(1)
    X, y = X - mean[:, None], y - mean
    return X / X.std(), y / y.std()


def terrain() -> np.ndarray:
    """Return the map of elevations around a fault in Tennessee."""
    file: Any = cbook.get_sample_data("jacksboro_fault_dem.npz")
    with file:
        return np.asarray(file["elevation"], float)


def photograph() -> np.ndarray:
    """Return the grey values of a portrait of Grace Hopper."""
    file: Any = cbook.get_sample_data("grace_hopper.jpg")
    with file:
        pixels: Any = matplotlib.image.imread(file, format="jpg")
    return np.asarray(pixels, float).mean(2)


def of_image(image: np.ndarray) -> tuple[sl.ProjectionProblem, sl.inputs.GaussianFit]:
    """Return the problem in which a linear unit predicts the next pixel of patches of an image, and the fit of their inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sl.AccuracyWarning)
        fit = sl.inputs.from_data(*patches(image))
    problem = sl.ProjectionProblem(
        data=fit.rows,
        target=sl.Target(sl.CommitteeReadout("linear"), gram=fit.gram, noise=fit.noise),
        network=sl.TwoLayer(1, "linear"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(lr=LR),
    )
    return problem, fit


def signs(key, d):
    """Draw an input with d independent random signs as its coordinates."""
    return jax.random.rademacher(key, (d,), float)


def uniform(key, d):
    """Draw an input with d independent uniform coordinates of variance 1."""
    return jax.random.uniform(key, (d,), float, -(3**0.5), 3**0.5)


def sparse(key, d):
    """Draw an input with d independent coordinates, each zero with high probability and otherwise normal."""
    use, value = jax.random.split(key)
    share = NONZERO / d
    return jnp.where(jax.random.bernoulli(use, share, (d,)), jax.random.normal(value, (d,)) * share**-0.5, 0.0)


def manifold(d: int) -> np.ndarray:
    """Return points erf(F z) of a hidden manifold of d/2 dimensions, with a random matrix F."""
    rng = np.random.default_rng(0)
    F, z = rng.normal(size=(d, d // 2)) / np.sqrt(d / 2), rng.normal(size=(ROWS, d // 2))
    return np.asarray(jax.scipy.special.erf(z @ F.T))


def committee(data: sl.inputs.Inputs) -> sl.ProjectionProblem:
    """Return the problem in which two erf units learn one, on given inputs."""
    plain = sl.presets.committee(2, 1, "erf", lr=1.0, noise=NOISE)
    return sl.ProjectionProblem(plain.target, plain.network, plain.loss, plain.algorithm, data=data, initial=plain.initial)


SAMPLERS: dict[str, Callable] = {"signs": signs, "uniform": uniform, "sparse": sparse}


def make_figure(size: Size, seed: int, save_dataset: SaveDataset) -> DrawnFigure:
    """Simulate SGD on the user's inputs, the chain and the ODE of Gaussian inputs, and draw their risks."""
    real = {"terrain": of_image(terrain()), "photograph": of_image(photograph())}
    problems = {name: (problem, fit.d) for name, (problem, fit) in real.items()}
    problems |= {name: (committee(sl.inputs.sampler(fn)), size.d) for name, fn in SAMPLERS.items()}
    problems["hidden manifold"] = committee(sl.inputs.Rows(manifold(size.d), blocks=10)), size.d
    curves = {name: _simulate(problem, d, size, seed) for name, (problem, d) in bar(problems.items(), desc="inputs")}
    rows = [{"inputs": name} | _compare(curve) for name, curve in curves.items()]
    fits = [
        {"inputs": name, "kurtosis": fit.tests[0].kurtosis, "distance": fit.tests[0].distance, "length": fit.length_ratio}
        for name, (_, fit) in real.items()
    ]
    table, fitted = save_dataset("table", tabulate(rows)), save_dataset("fits", tabulate(fits))
    for name, curve in curves.items():
        save_dataset(name.replace(" ", "_"), curve)
    return DrawnFigure(_draw_figure(curves), _write_caption(table, fitted, size))


def _simulate(problem: sl.ProjectionProblem, d: int, size: Size, seed: int) -> xr.Dataset:
    """Return the mean risks of SGD, chain and ODE over time, with standard errors for SGD and chain."""
    times = np.concatenate([[0.0], np.geomspace(0.1, size.t_max, size.saves - 1)])
    found = {}
    # different seeds: levels share random numbers
    for shift, level in enumerate((sl.SGD(d), sl.Chain(d), sl.ODE())):
        runs = sl.simulate(
            problem, level, sl.RandomInit(d), t_max=size.t_max, runs=size.runs, seed=seed + shift, save=times, progress=False
        )
        found[level.name] = ("t", runs.risk.mean("run").values)
        found[f"{level.name}_error"] = ("t", runs.risk.std("run").values / np.sqrt(size.runs))
    return xr.Dataset(found, {"t": runs.t.values})


def _compare(curve: xr.Dataset) -> dict[str, float]:
    """Return the largest relative distance over time of each mean risk from SGD's, and SGD's relative standard error there."""
    gap = np.abs(curve.chain / curve.sgd - 1).values[1:]
    at = int(np.argmax(gap)) + 1
    error = float(np.hypot(curve.sgd_error, curve.chain_error)[at] / curve.sgd[at])
    return {"chain": float(gap.max()), "error": error, "ode": float(np.abs(curve.ode / curve.sgd - 1).values[1:].max())}


def _draw_figure(curves: dict[str, xr.Dataset]) -> Figure:
    figure, axes = make_panels(1, 3, figsize=(12.0, 3.9))
    _draw_curves(axes[0], curves, ("terrain", "photograph"), "(a) patches of images, $d = 64$")
    _draw_curves(axes[1], curves, ("signs", "uniform", "sparse"), "(b) independent coordinates")
    _draw_curves(axes[2], curves, ("hidden manifold",), "(c) hidden manifold")
    return figure


def _draw_curves(ax: Axes, curves: dict[str, xr.Dataset], names: tuple[str, ...], title: str) -> None:
    """Draw the mean risk of SGD as points, of the chain as lines, and of the ODE as dashes."""
    for name, colour in zip(names, OKABE_ITO_COLOURS, strict=False):
        curve = curves[name].isel(t=slice(1, None))
        ax.errorbar(curve.t, curve.sgd, 2 * curve.sgd_error, fmt="o", markersize=3, color=colour, label=f"SGD, {name}")
        ax.plot(curve.t, curve.chain, "-", linewidth=1, color=colour)
        ax.plot(curve.t, curve.ode, "--", linewidth=1, color=colour)
    ax.plot([], [], "-", linewidth=1, color="black", label="chain, Gaussian inputs")
    ax.plot([], [], "--", linewidth=1, color="black", label="ODE, Gaussian inputs")
    ax.set(xscale="log", yscale="log", xlabel="$t$, samples per dimension", ylabel="risk (mean)")
    ax.set_title(title, loc="left")
    ax.legend(fontsize=6, loc="lower left")


def _write_caption(table: xr.Dataset, fits: xr.Dataset, size: Size) -> list[str]:
    each = lambda data: [{str(key): data[key].values[i] for key in data.data_vars} for i in range(data.sizes["point"])]
    return [
        f"Means over {size.runs} runs with two standard errors. Largest relative gap between the mean risks of SGD on the",
        f"inputs and of the chain for Gaussian inputs of the same covariance, up to {size.t_max:g} samples per dimension, with",
        "two standard errors, and that of the ODE:",
        "; ".join(f"{row['inputs']} {row['chain']:.1%} ± {2 * row['error']:.1%} (ODE {row['ode']:.1%})" for row in each(table))
        + ".",
        "Random fields of the patches:",
        "; ".join(
            f"{row['inputs']} with excess kurtosis {row['kurtosis']:.2f}, distance {row['distance']:.3f}, and variance of the "
            f"squared length {row['length']:.1f} times that of Gaussian inputs"
            for row in each(fits)
        )
        + ".",
    ]
