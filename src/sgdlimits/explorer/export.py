"""What is on the page, as files: the figure, the datasets as netCDF, the curves as CSV."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sgdlimits.errors import BadInput

FIGURES = ("png", "svg", "pdf")


def exported(job: Any, message: dict[str, Any]) -> tuple[str, bytes]:
    """The name of a file and what is in it, for a format: png, svg, pdf, nc or csv."""
    name, form = job.settings[0].preset, str(message.get("format"))
    every = {f"{'AB'[side]} {level}" if len(job.settings) > 1 else level: dataset
             for side in range(len(job.settings)) for level, dataset in job.datasets(side).items()}  # fmt: skip
    if form in FIGURES:
        from sgdlimits.explorer.figure import figure

        left, right = (str(message.get(side) or usual) for side, usual in (("left", "risk"), ("right", "largest overlap")))
        log, log_time = bool(message.get("log")), bool(message.get("logt"))
        return f"{name}.{form}", figure(job, form, left=left, right=right, log=log, log_time=log_time)
    if form == "nc":
        return f"{name}.nc", _netcdf(every)
    if form == "csv":
        return f"{name}.csv", _table(every).encode()
    raise BadInput(f"format must be one of png, svg, pdf, nc, csv; got {form[:40]!r}. Give one of them.")


def _netcdf(datasets: dict[str, Any]) -> bytes:
    """The first dataset, the chain's, as `load` reads it, and each of the others in a group of its name."""
    from sgdlimits.trajectory.io import save

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.nc"
        for order, (name, dataset) in enumerate(datasets.items()):
            if order:
                dataset.to_netcdf(path, mode="a", group=name.replace(" ", "_"), engine="h5netcdf")
            else:
                save(dataset, path)
        return path.read_bytes()


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
