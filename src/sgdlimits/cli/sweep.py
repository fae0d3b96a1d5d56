"""`sgdlimits sweep FILE.toml`: run a sweep, estimate its cost, or show its progress."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from typing import Any

import click

from sgdlimits.cli.options import Command, FileType, Option, echo
from sgdlimits.cli.work import INTERRUPTED_CODE, check_picture, save_drawn_figure
from sgdlimits.errors import BadInput
from sgdlimits.text import format_count, format_table

# headings of the help page
PLACE_HEADING, ACTION_HEADING = "Where it is computed", "What is done"
SWEEP_OPTIONS: list[click.Parameter] = [
    Option("--workers", type=click.IntRange(min=1), heading=PLACE_HEADING, help="number of processes on this machine"),
    Option("--shard", metavar="I/N", heading=PLACE_HEADING, help="the I-th of N parts, for job arrays; the first is 1/N"),
    Option("--cluster", metavar="WHERE", heading=PLACE_HEADING,
           help="through dask: local, slurm, or the address of a scheduler such as tcp://host:8786"),
    Option("--jobs", type=click.IntRange(min=1), default=10, show_default=True, heading=PLACE_HEADING,
           help="jobs of --cluster slurm"),
    Option("--job", multiple=True, metavar="KEY=VALUE", heading=PLACE_HEADING,
           help="a setting of the jobs of --cluster slurm, such as queue=cpu, walltime=08:00:00, memory=4GB or cores=2"),
    Option("--folder", type=FileType(), heading=ACTION_HEADING, help="folder of the results, instead of the one in FILE"),
    Option("--dry-run", is_flag=True, heading=ACTION_HEADING,
           help="print size and estimated time only; with slurm, the job script"),
    Option("--status", is_flag=True, heading=ACTION_HEADING,
           help="print the progress of a sweep, also while others compute it"),
    Option("--retry", is_flag=True, heading=ACTION_HEADING, help="try units again that failed before"),
    Option("--export", type=FileType(), heading=ACTION_HEADING, help="write all results to one file .nc or .zarr afterwards"),
    Option("--plot", type=FileType(), heading=ACTION_HEADING,
           help="a diagram of the first stored value over the first two parameters"),
    Option("--force", is_flag=True, heading=ACTION_HEADING, help="replace a picture that exists"),
    Option("--quiet", is_flag=True, heading=ACTION_HEADING, help="no progress and no table"),
]  # fmt: skip


@click.command(cls=Command, params=SWEEP_OPTIONS, short_help="Simulate a problem at many points.")
@click.argument("file", type=FileType())
def sweep(file: str, **given: Any) -> None:
    """Simulate a problem at the points that FILE defines; after an interruption, the same command resumes the sweep.

    A FILE can name functions of your own, which are then imported: run only those that you trust.

    \b
    Examples:
      sgdlimits sweep diagram.toml --dry-run
      sgdlimits sweep diagram.toml --workers 4
      sgdlimits sweep diagram.toml --status
      sgdlimits sweep diagram.toml --shard 3/100
      sgdlimits sweep diagram.toml --cluster slurm --job queue=cpu --dry-run
    """
    sys.path.insert(0, os.getcwd())  # FILE may name functions in a module of the current folder
    from sgdlimits.run.sweeps import collect, export
    from sgdlimits.run.sweeps.estimate import estimate_sweep, report_progress
    from sgdlimits.run.sweeps.job import SweepFailed, SweepStopped, as_shard, compute_sweep
    from sgdlimits.run.sweeps.toml import read_spec

    job = read_spec(file).take_shard(as_shard(given["shard"] and given["shard"].split("/")))
    if given["folder"]:
        job = dataclasses.replace(job, folder=given["folder"])
    if given["status"]:
        return echo(format_table(report_progress(job).items()))
    engine = _choose_executor(given)
    picture_path = given["plot"] and check_picture(given["plot"], given["force"], "--plot")
    if given["dry_run"]:
        script = engine.batch_script(job.folder) if given["cluster"] else ""
        return echo(script or format_table(estimate_sweep(job).items()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            units = compute_sweep(job, engine, retry=given["retry"], progress=not given["quiet"])
        except SweepStopped as stopped:
            # the same command resumes
            again = " ".join(["sgdlimits", *sys.argv[1:]])
            echo(f"Interrupted. {str(stopped).removeprefix('interrupted; ')}: {again}", err=True)
            sys.exit(INTERRUPTED_CODE)
    for warning in caught:
        text = str(warning.message).replace("Give retry=True", "Give --retry")
        echo(f"Warning: {text}", err=True)
    if given["export"]:
        export(job.folder, given["export"])
    found = collect(job.folder, keys=[unit.key for unit in units], runs=job.runs) if units else None
    if picture_path and found is not None:
        _draw_diagram(found, job.design.parameter_names, picture_path)
    if not given["quiet"] and found is not None:
        echo(
            f"{_format_ranges(found)}{format_count(len(units), 'unit')} in {job.folder}. "
            f"In Python: sgdlimits.collect({job.folder!r})"
        )
    # results are saved, but scripts must notice
    if any(issubclass(warning.category, SweepFailed) for warning in caught):
        sys.exit(1)


def _draw_diagram(dataset: Any, names: tuple[str, ...], path: Any) -> None:
    """Draw a phase diagram of a sweep to `path`: its first stored scalar over two numerical parameters among `names`."""
    values = [name for name, each in dataset.data_vars.items() if each.dtype.kind == "f" and not {"t", "time"} & set(each.dims)]
    numbers = [each for name in names if dataset[each := name.rpartition(".")[2]].dtype.kind in "fiu"]
    if not values or len(numbers) < 2:
        raise BadInput("--plot needs two numerical parameters and a scalar value. Plot the dataset in Python instead.")
    with save_drawn_figure(path):
        from sgdlimits.analysis.plot import phase_diagram

        phase_diagram(dataset, numbers[0], numbers[1], str(values[0]))


def _choose_executor(given: dict[str, Any]) -> Any:
    """Return the executor of a sweep: a dask cluster, a number of processes, or None for this process."""
    if given["cluster"] and given["workers"] and given["cluster"] != "local":
        raise BadInput("--workers (this machine) and --cluster (other machines) exclude each other. Leave one of them out.")
    if given["job"] and given["cluster"] != "slurm":
        raise BadInput("--job needs --cluster slurm. Leave --job out, or add --cluster slurm.")
    if not given["cluster"]:
        return given["workers"]
    from sgdlimits.run.sweeps.cluster import Dask

    settings = dict(each.partition("=")[::2] for each in given["job"])
    return Dask.from_address(given["cluster"], workers=given["workers"] or given["jobs"], settings=settings)


def _format_ranges(dataset: Any) -> str:
    """Format, for each value that a sweep stores, its range over the points."""
    rows = []
    for name, values in dataset.data_vars.items():
        if values.dtype.kind in "fi" and "t" not in values.dims and "time" not in values.dims:
            mean = values.mean("run") if "run" in values.dims else values
            rows.append((str(name), f"{float(mean.min()):.4g} to {float(mean.max()):.4g} over the points"))
    return format_table(rows) + "\n" if rows else ""
