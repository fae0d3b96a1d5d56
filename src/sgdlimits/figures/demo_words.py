"""The demo in numbers: its table and the caption of its figure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

LATE = 0.2
"""A run with more risk than this at the end has not yet arrived: the ODE ends near 0.066."""


def table(datasets: dict[str, xr.Dataset], seconds: dict[str, float], noise: float) -> Iterator[str]:
    """For each level its runs, the final risk, when the mean excess risk has fallen by half, and what it cost."""
    yield f"{'level':<7}{'runs':>5}{'final risk':>20}{'t at half':>11}{'seconds':>9}{'cost of a run':>15}"
    per_run = {name: seconds[name] / dataset.sizes["run"] for name, dataset in datasets.items()}
    for name, dataset in datasets.items():
        final, runs = dataset.risk.values[:, -1], dataset.sizes["run"]
        error = f" ± {final.std(ddof=1) / runs**0.5:.4f}" if runs > 1 else ""
        half = _when(half_times(dataset.mean("run").expand_dims("run"), noise)[0])
        row = f"{name:<7}{runs:>5}{f'{final.mean():.4f}{error}':>20}{half:>11}{seconds[name]:>9.1f}"
        yield f"{row}{per_run[name] / per_run['SGD']:>15.2g}"
    yield "(final risk: mean over runs ± standard error; t at half: when the mean excess risk has fallen by half;"
    yield " seconds: with compilation; cost of a run: seconds per run, relative to SGD)"


def half_times(dataset: xr.Dataset, noise: float) -> np.ndarray:
    """When each run's excess risk is first down to half, by interpolation; infinity where it never is."""
    excess, t = dataset.risk.values - noise / 2, dataset.t.values
    below = excess <= excess[:, :1] / 2
    found = np.full(excess.shape[0], np.inf)
    for run in np.flatnonzero(below.any(1)):
        after = int(below[run].argmax())
        found[run] = np.interp(-excess[run, 0] / 2, -excess[run, after - 1 : after + 1], t[after - 1 : after + 1])
    return found


def caption(datasets: dict[str, xr.Dataset], lr: float, noise: float) -> str:
    """The figure in words and numbers."""
    half = {name: half_times(dataset, noise) for name, dataset in datasets.items()}
    low, high = (_when(time) for time in np.quantile(half["chain"], [0.1, 0.9], method="nearest"))
    median = {name: _when(np.median(times)) for name, times in half.items()}
    final = {name: dataset.risk.values[:, -1] for name, dataset in datasets.items()}
    late = {name: f"{(risks > LATE).sum()} of {risks.size}" for name, risks in final.items()}
    overlap = abs(float(datasets["ODE"].M.values[0, 0, 0, 0]))
    sentences = [
        f"Phase retrieval by one unit on the sphere, d = {datasets['SGD'].attrs['d']}, learning rate 1/{1 / lr:g},",
        f"label noise {noise:g}. All levels start from the same weights, with overlap {overlap:.3g}.",
        "Thick lines are means over runs, thin lines runs of SGD; bands hold 80 % of the runs of chain and SDE.",
        f"Half of the excess risk is lost at t = {median['ODE']} in the ODE,",
        "and at a random time in the chain, which has the law of SGD:",
        f"median {median['chain']}, and 80 % of the runs between {low} and {high};",
        f"the median is {median['SGD']} for the {half['SGD'].size} runs of SGD and {median['SDE']} for the SDE.",
        f"The mean risk at the end is {final['SGD'].mean():.3f} for SGD, {final['chain'].mean():.3f} for the chain,",
        f"{final['SDE'].mean():.3f} for the SDE and {final['ODE'].mean():.3f} for the ODE,",
        f"of which the label noise is {noise / 2:g}. Late runs, with a risk above {LATE:g}, raise the means:",
        f"there are {late['SGD']} for SGD, {late['chain']} for the chain and {late['SDE']} for the SDE.",
    ]
    return " ".join(sentences)


def _when(t: float | np.floating) -> str:
    return f"{t:.2f}" if np.isfinite(t) else "later"
