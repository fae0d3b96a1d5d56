"""Synthetic datasets for plots."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import xarray as xr

matplotlib.use("Agg")
ATTRIBUTES = {
    "level_parameters": "{}",
    "problem": "{}",
    "problem_name": "test",
    "statistics": "sgdlimits.statistics.overlaps:Overlaps",
    "start": "{}",
    "seed": "0",
    "t_max": 10.0,
    "save": "21",
    "rate": 0.25,
    "floor": 0.05,
    "until": "",
    "version": "0",
}


@pytest.fixture
def dataset():
    """Return a function that makes a dataset of smooth random curves: `dataset(runs=8, width=1, level="chain")`."""

    def make(runs=8, width=1, teachers=1, level="chain", diverged=(), seed=0, d=100):
        rng = np.random.default_rng(seed)
        t = np.linspace(0, 10, 21)
        rise = 1 / (1 + np.exp(5 - t[:, None, None] + rng.normal(size=(runs, 1, width, teachers))))
        M = np.where(rng.random((runs, 1, width, teachers)) < 0.5, -1, 1) * rise
        status = np.full(runs, "finished", dtype=object)
        status[list(diverged)] = "diverged"
        M[list(diverged)] *= 1e5
        Q = np.einsum("rtjs,rtls->rtjl", M, M) + np.eye(width)
        return xr.Dataset(
            {
                "a": (("run", "t", "student"), np.ones((runs, t.size, width))),
                "M": (("run", "t", "student", "teacher"), M),
                "Q": (("run", "t", "student", "student_other"), Q),
                "risk": (("run", "t"), 2.1 - (M**2).mean((2, 3))),
            },
            coords={
                "run": np.arange(runs),
                "t": t,
                "step": ("t", t * d),
                "status": ("run", status.astype(str)),
                "t_end": ("run", np.full(runs, t[-1])),
            },
            attrs=ATTRIBUTES | {"level": level, "d": 0 if level == "ode" else d},
        )

    return make


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")
