"""What is on the page, as files: figures by `plot`, datasets as netCDF, curves as CSV."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

from sgdlimits.errors import BadInput

FIGURES = ("png", "svg", "pdf")


def exported(job: Any, form: str, log: bool) -> tuple[str, bytes]:
    """The name of a file and what is in it, for a format: png, svg, pdf, nc or csv."""
    name = job.settings[0].preset
    every = {f"{'AB'[side]}, {level}" if len(job.settings) > 1 else level: dataset
             for side in range(len(job.settings)) for level, dataset in job.datasets(side).items()}  # fmt: skip
    if form in FIGURES:
        return f"{name}.{form}", _figure(every, form, log)
    if form == "nc":
        from sgdlimits.trajectory.io import save

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.nc"
            save(next(iter(every.values())), path)
            return f"{name}-{next(iter(every))}.nc".replace(", ", "-"), path.read_bytes()
    if form == "csv":
        return f"{name}.csv", _table(every).encode()
    raise BadInput(f"format must be one of png, svg, pdf, nc, csv; got {form[:40]!r}. Give one of them.")


def _figure(datasets: dict[str, Any], form: str, log: bool) -> bytes:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sgdlimits.plot import PAPER, overview

    with plt.rc_context(PAPER):
        left, _ = overview(datasets, log=log)
        buffer = io.BytesIO()
        left.figure.savefig(buffer, format=form)
        plt.close(left.figure)
    return buffer.getvalue()


def _table(datasets: dict[str, Any]) -> str:
    """A row for each level, time and quantity: the mean over runs."""
    from sgdlimits.explorer.views import quantities

    rows = ["level,t,quantity,mean"]
    for level, dataset in datasets.items():
        for name, values in quantities(dataset).items():
            mean = values.mean(0)
            rows += [
                f'"{level}",{t!r},"{name}",{value!r}' for t, value in zip(dataset.t.values.tolist(), mean.tolist(), strict=True)
            ]
    return "\n".join(rows) + "\n"
